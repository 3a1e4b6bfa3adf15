"""The objective "cross-entropy"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.configuration import setting
from seqwise.objectives.named.base import NOTHING, Context, ObjectiveConfig

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class CrossEntropy(ObjectiveConfig):
    """Cross-entropy of the gold tokens.

    See :func:`~seqwise.objectives.objective.cross_entropy_objective`.
    """

    from_scratch = True
    name: Literal["cross-entropy"] = "cross-entropy"
    label_smoothing: float = setting(
        0.0, "the part of each gold token's probability that is spread over all tokens", ge=0, lt=1
    )

    def loss_unit(self, token: str) -> str:
        """Nats, and how labels are smoothed."""
        smoothed = f", labels smoothed by {self.label_smoothing:g}" if self.label_smoothing else ""
        return super().loss_unit(token) + smoothed

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import cross_entropy_objective

        return cross_entropy_objective(label_smoothing=self.label_smoothing)
