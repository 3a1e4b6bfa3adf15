"""The objective "unnormalized-likelihood"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.configuration import setting
from seqwise.objectives.named.base import NOTHING, Context, Penalized

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class UnnormalizedLikelihood(Penalized):
    """Raw scores of the gold tokens, held down by a penalty on log Z alone.

    See :func:`~seqwise.objectives.objective.unnormalized_likelihood_objective`.
    """

    name: Literal["unnormalized-likelihood"] = "unnormalized-likelihood"
    weight: float = setting(
        0.1, "unnormalized-likelihood: log Z ends near 1/(2 weight)", flag="log_partition_weight", gt=0
    )

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import unnormalized_likelihood_objective

        return unnormalized_likelihood_objective(weight=self.weight, fraction=self.fraction)
