"""The objective "minimum-risk"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from seqwise.configuration import setting
from seqwise.names import CostName
from seqwise.objectives.named.base import NOTHING, RELAXATION, Context, Searching
from seqwise.schedules import Alpha, Schedule

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class MinimumRisk(Searching):
    """Expected cost of the outputs of a beam.

    See :func:`~seqwise.objectives.risk.minimum_risk_objective`.
    """

    name: Literal["minimum-risk"] = "minimum-risk"
    alpha: Alpha = setting("exponential(1, 8)", RELAXATION, metavar="SCHEDULE")
    cost: CostName = setting("hamming", "what a wrong output costs")

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Alpha."""
        return {"alpha": self.alpha}

    @property
    def relaxes(self) -> bool:
        """Always, in that outputs are weighted."""
        return True

    def counted(self, token: str) -> str:
        """An expected cost."""
        return f"expected {'edits' if self.cost == 'edit-distance' else f'wrong {token}s'} per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.risk import edit_distances, minimum_risk_objective

        options: dict[str, Any] = {"cost": edit_distances} if self.cost == "edit-distance" else {}
        return minimum_risk_objective(**self.beam(), **options)
