"""The objective "crf"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.names import ScoreName
from seqwise.objectives.named.base import NOTHING, Context, ObjectiveConfig

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class CRF(ObjectiveConfig):
    """Likelihood of a linear chain, normalised over all outputs.

    See :func:`~seqwise.objectives.chain.crf_objective`.
    """

    name: Literal["crf"] = "crf"

    @property
    def trained_score(self) -> ScoreName:
        """Raw scores."""
        return "global"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.chain import crf_objective

        return crf_objective()
