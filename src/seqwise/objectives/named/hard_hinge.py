"""The objective "hard-hinge"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Costed, Searching

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class HardHinge(Costed, Searching):
    """A hinge on the hard beam.

    See :func:`~seqwise.objectives.violations.hard_beam_hinge_objective`.
    """

    name: Literal["hard-hinge"] = "hard-hinge"

    def counted(self, token: str) -> str:
        """A margin in the beam."""
        return f"nats by which gold loses in the beam, per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.violations import hard_beam_hinge_objective

        return hard_beam_hinge_objective(**self.beam(), **self.token_cost(context))
