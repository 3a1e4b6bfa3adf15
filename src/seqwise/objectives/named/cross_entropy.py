"""The objective "cross-entropy"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, ObjectiveConfig

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective

__all__ = ["CrossEntropy"]


class CrossEntropy(ObjectiveConfig):
    """Cross-entropy of the gold tokens.

    See :func:`~seqwise.objectives.objective.cross_entropy_objective`.
    """

    from_scratch = True
    name: Literal["cross-entropy"] = "cross-entropy"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import cross_entropy_objective

        return cross_entropy_objective()
