"""The objective "relaxed-beam"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Costed, Relaxed, Searching

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class RelaxedBeam(Relaxed, Costed, Searching):
    """Expected cost of the outputs of a relaxed beam.

    See :func:`~seqwise.objectives.objective.relaxed_beam_objective`.
    """

    name: Literal["relaxed-beam"] = "relaxed-beam"

    def counted(self, token: str) -> str:
        """An expected cost."""
        return f"expected {self.cost_name(token)} per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import relaxed_beam_objective

        return relaxed_beam_objective(**self.beam(), unit=self.alpha_unit(), **self.token_cost(context))
