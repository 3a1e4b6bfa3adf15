"""The objective "sampled-self-normalized"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Penalized

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class SampledSelfNormalized(Penalized):
    """Raw scores of the gold tokens, and log Z at a part of the positions.

    See :func:`~seqwise.objectives.objective.sampled_self_normalized_objective`.
    """

    name: Literal["sampled-self-normalized"] = "sampled-self-normalized"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import sampled_self_normalized_objective

        return sampled_self_normalized_objective(weight=self.weight, fraction=self.fraction)
