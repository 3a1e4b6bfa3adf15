"""The objective "self-normalized"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Penalized

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class SelfNormalized(Penalized):
    """Cross-entropy, and a penalty that draws log Z to 0.

    See :func:`~seqwise.objectives.objective.self_normalized_objective`.
    """

    name: Literal["self-normalized"] = "self-normalized"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import self_normalized_objective

        return self_normalized_objective(weight=self.weight, fraction=self.fraction)
