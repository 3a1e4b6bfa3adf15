"""The objective "beam-search-optimization"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Costed, Searching

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class BeamSearchOptimization(Costed, Searching):
    """Margin violations wherever gold falls out of the beam, which then begins anew from gold.

    See :func:`~seqwise.objectives.violations.beam_search_optimization_objective`.
    """

    name: Literal["beam-search-optimization"] = "beam-search-optimization"

    def counted(self, token: str) -> str:
        """A margin in the beam."""
        return f"nats by which gold loses in the beam, per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.violations import beam_search_optimization_objective

        return beam_search_optimization_objective(**self.beam(), **self.token_cost(context))
