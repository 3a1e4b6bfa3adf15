"""The objective "early-update"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Searching

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class EarlyUpdate(Searching):
    """The perceptron where gold falls out of the beam.

    See :func:`~seqwise.objectives.violations.early_update_objective`.
    """

    name: Literal["early-update"] = "early-update"

    def counted(self, token: str) -> str:
        """A margin in the beam."""
        return f"nats by which gold loses in the beam, per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.violations import early_update_objective

        return early_update_objective(**self.beam())
