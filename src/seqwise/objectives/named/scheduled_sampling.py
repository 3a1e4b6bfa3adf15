"""The objective "scheduled-sampling"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.configuration import Config, setting
from seqwise.names import Feeding, FeedingPasses
from seqwise.objectives.named.base import NOTHING, RELAXATION, Context, ObjectiveConfig
from seqwise.schedules import Alpha, Probability, Schedule

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class Sampling(Config):
    """Options of scheduled sampling."""

    feeding: Feeding = setting("greedy", "what is fed in place of gold")
    feeding_passes: FeedingPasses = setting(
        "step-by-step", "two-pass (transformer) chooses along gold, for all positions at once"
    )
    gold_probability: Probability = setting(
        "linear(1, 0)",
        "probability of feeding gold: a number, linear(a, b), inverse_sigmoid(k) ...",
        metavar="SCHEDULE",
    )
    alpha: Alpha = setting("exponential(1, 8)", RELAXATION, metavar="SCHEDULE")


class ScheduledSampling(Sampling, ObjectiveConfig):
    """Cross-entropy along what the model writes itself, more and more of it.

    See :func:`~seqwise.objectives.objective.scheduled_sampling_objective`.
    """

    name: Literal["scheduled-sampling"] = "scheduled-sampling"

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The probability of feeding gold, and alpha, where what is fed is soft."""
        soft = {"alpha": self.alpha} if self.feeding.startswith("soft") else {}
        return {"gold_probability": self.gold_probability, **soft}

    @property
    def steps_singly(self) -> bool:
        """Whether the passes are step by step."""
        return self.feeding_passes == "step-by-step"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.objective import scheduled_sampling_objective, two_pass_scheduled_sampling_objective

        make = scheduled_sampling_objective if self.steps_singly else two_pass_scheduled_sampling_objective
        return make(self.feeding)
