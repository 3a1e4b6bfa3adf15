"""The objective "hinge"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Costed, Relaxed, Searching

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class Hinge(Relaxed, Costed, Searching):
    """A hinge on the relaxed beam, searched with the cost.

    See :func:`~seqwise.objectives.objective.hinge_objective`.
    """

    name: Literal["hinge"] = "hinge"

    def counted(self, token: str) -> str:
        """A margin in the beam."""
        return f"nats by which gold loses in the beam, per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import hinge_objective

        return hinge_objective(**self.beam(), unit=self.alpha_unit(), **self.token_cost(context))
