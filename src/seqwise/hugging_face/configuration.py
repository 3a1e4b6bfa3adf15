"""Arguments of a training by search-aware objectives: those of transformers, and what is minimised."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

from transformers import Seq2SeqTrainingArguments

from seqwise.errors import InputError
from seqwise.names import (
    ONLY_FOR,
    SEARCH_OBJECTIVES,
    SELF_NORMALIZING,
    AlphaUnitName,
    CostName,
    Feeding,
    FeedingPasses,
    ScoreName,
    TrainedObjective,
)
from seqwise.objectives.by_name import ObjectiveSettings
from seqwise.training.configuration import did_you_mean
from seqwise.training.schedules import RANGES, AnySchedule, schedule_in_range

__all__ = ["SearchAwareConfig"]

OBJECTIVES: tuple[str, ...] = tuple(name for name in get_args(TrainedObjective) if name != "crf")

_CHOICES: dict[str, tuple[str, ...]] = {
    "objective": OBJECTIVES,
    "score": get_args(ScoreName),
    "cost": get_args(CostName),
    "alpha_unit": get_args(AlphaUnitName),
    "feeding": get_args(Feeding),
    "feeding_passes": get_args(FeedingPasses),
}
_AT_LEAST_ONE = ("beam_size", "noise_tokens")
_NOT_NEGATIVE = ("log_partition_weight", "cross_entropy_weight", "direct_loss_weight")
_READ_BY: dict[str, tuple[str, ...]] = {
    **{name: objectives for name, objectives in ONLY_FOR.items() if name != "wrong_label_costs"},
    "score": SEARCH_OBJECTIVES,
    "cross_entropy_weight": SEARCH_OBJECTIVES,
    "feeding": ("scheduled-sampling",),
    "feeding_passes": ("scheduled-sampling",),
    "gold_probability": ("scheduled-sampling",),
    "noise_tokens": ("noise-contrastive",),
}
"""Settings that all other objectives would pass over in silence."""

_NOTHING = {"cross_entropy_weight": 0.0}
"""Values that ask for no more than what a training does that does not read them."""

_WITH_ALPHA = ("relaxed-beam", "hinge", "soft-dense-beam", "minimum-risk")
_DEFAULT_PENALTY = 0.1


if TYPE_CHECKING:
    _ScheduleText = AnySchedule
else:
    _ScheduleText = str  # HfArgumentParser reads the annotation, and a command line has text


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class SearchAwareConfig(Seq2SeqTrainingArguments):
    """What :class:`~seqwise.hugging_face.SearchAwareTrainer` is told: all of ``Seq2SeqTrainingArguments``, and these.

    Attributes:
        objective: what training minimises, per token: "cross-entropy", "self-normalized", "sampled-self-normalized",
            "unnormalized-likelihood", "noise-contrastive", "scheduled-sampling", "relaxed-beam", "hinge",
            "hard-hinge", "beam-crf", "dense-beam", "soft-dense-beam", "early-update", "beam-search-optimization",
            "minimum-risk" or "distillation" (into raw scores, of the model that training starts from).
        beam_size: slots of the beam.
        score: what a token adds in the search: "local" (log-softmax) or "global" (raw scores).
        cost: "hamming" or "edit-distance".
        alpha: inverse temperature of relaxations: a number, "linear(a, b)" or "exponential(a, b)", over all steps; or a
            function of the step.
        alpha_unit: "scores", or "gaps", by which alpha does not depend on the scale of the scores.
        feeding: of scheduled sampling, what is fed in place of gold: "greedy", "sample", "soft-greedy", "soft-sample".
        feeding_passes: "two-pass", for all positions at once, or "step-by-step".
        gold_probability: of scheduled sampling, the probability of feeding gold: as ``alpha``, or "inverse_sigmoid(k)".
        cross_entropy_weight: how much cross-entropy is added to an objective that sees the beam.
        direct_loss_weight: how much relaxed-beam loss is added to "beam-crf", "dense-beam" or "soft-dense-beam".
        log_partition_weight: weight of ``(log Z)^2`` along gold, known as z-loss, in ANY objective; by default 0.1 in
            the self-normalising ones and 0 in all others.
        log_partition_fraction: the part of the positions that is penalised.
        noise_tokens: of noise-contrastive estimation, for each gold token.

    Raises:
        InputError: a setting is out of its range, nothing in this training would read it, or it cannot be had
            (``label_smoothing_factor``, ``torch_compile``, FSDP, DeepSpeed; activation checkpointing where single steps
            are taken).

    Example:
        >>> import tempfile
        >>> config = SearchAwareConfig(tempfile.mkdtemp(), objective="relaxed-beam", alpha="linear(1, 4)", use_cpu=True)
        >>> config.steps_singly, config.schedules, config.penalty_weight
        (True, ('alpha',), 0.0)
        >>> SearchAwareConfig(tempfile.mkdtemp(), objective="relaxed-beem", use_cpu=True)
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: no objective is called 'relaxed-beem'; did you mean 'relaxed-beam'?
    """

    objective: str = _setting("cross-entropy", f"what training minimises: {', '.join(OBJECTIVES)}")
    beam_size: int = _setting(5, "slots of the beam in training")
    score: str = _setting("local", "objectives that see the beam: local (log-softmax) or global (raw) scores")
    cost: str = _setting("hamming", "what a wrong output costs: hamming or edit-distance")
    alpha: _ScheduleText = _setting("exponential(1, 8)", "inverse temperature of relaxations: a number or a schedule")
    alpha_unit: str = _setting("scores", "scores; or gaps: alpha is divided by the mean squared gap of the best scores")
    feeding: str = _setting("greedy", "scheduled sampling: greedy, sample, soft-greedy or soft-sample")
    feeding_passes: str = _setting("two-pass", "scheduled sampling: two-pass (all positions at once) or step-by-step")
    gold_probability: _ScheduleText = _setting("linear(1, 0)", "scheduled sampling: probability of feeding gold")
    cross_entropy_weight: float = _setting(0.1, "objectives that see the beam: weight of added cross-entropy")
    direct_loss_weight: float = _setting(0.0, "beam-crf, (soft-)dense-beam: weight of added relaxed-beam loss")
    log_partition_weight: float | None = _setting(None, "weight of (log Z)^2 along gold (z-loss), in any objective")
    log_partition_fraction: float = _setting(1.0, "the part of the positions whose log Z is penalised")
    noise_tokens: int = _setting(10, "noise-contrastive: how many for each gold token")

    def __post_init__(self) -> None:
        super().__post_init__()
        for find in (self._not_chosen, self._out_of_range, self._without_effect, self._not_supported):
            fault = find()
            if fault is not None:
                raise fault

    def to_dict(self) -> dict[str, Any]:
        """All arguments as ``TrainingArguments.to_dict`` has them, a function by its name."""
        return {name: _as_text(value) for name, value in super().to_dict().items()}

    def picklable(self) -> SearchAwareConfig:
        """A copy that can be saved, in which the name of a function stands for it."""
        copied = copy.copy(self)
        for name in RANGES:
            object.__setattr__(copied, name, _as_text(getattr(self, name)))
        return copied

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules that the objective reads."""
        sampled = self.objective == "scheduled-sampling"
        soft = self.objective in _WITH_ALPHA or (sampled and self.feeding.startswith("soft"))
        # The share of relaxed-beam loss has an alpha whatever it is added to.
        with_alpha = ("alpha",) if soft or self.direct_loss_weight > 0 else ()
        return with_alpha + (("gold_probability",) if sampled else ())

    @property
    def penalty_weight(self) -> float:
        """The weight of ``(log Z)^2``, with its default in place of None."""
        if self.log_partition_weight is not None:
            return self.log_partition_weight
        return _DEFAULT_PENALTY if self.objective in SELF_NORMALIZING else 0.0

    @property
    def searches(self) -> bool:
        """Whether the objective looks at a beam of outputs."""
        return self.objective in (*SEARCH_OBJECTIVES, "distillation")

    @property
    def steps_singly(self) -> bool:
        """Whether the objective takes one step after the other, by the model's cache."""
        sampled = self.objective == "scheduled-sampling" and self.feeding_passes == "step-by-step"
        return self.searches or sampled

    @property
    def adds_penalty(self) -> bool:
        """Whether ``(log Z)^2`` is added to an objective that has no such term itself."""
        return self.penalty_weight > 0 and self.objective not in (*SELF_NORMALIZING, "cross-entropy")

    def objective_settings(self) -> ObjectiveSettings:
        """What :func:`~seqwise.objectives.by_name.objective_by_name` takes."""
        values = {name: getattr(self, name) for name in _OWN}
        # One pass, and one logsumexp, serve both terms.
        if self.objective == "cross-entropy" and self.penalty_weight > 0:
            values["objective"] = "self-normalized"
        settings: Any = SimpleNamespace(**(values | {"log_partition_weight": self.penalty_weight}))
        return settings

    def _not_chosen(self) -> InputError | None:
        if self.objective == "crf":
            problem = "crf needs scores that form a chain, which those of no model of transformers do"
            return InputError(f"objective: {problem}", mend="use beam-crf")
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                what = "objective" if name == "objective" else name.replace("_", " ")
                return InputError(f"no {what} is called {value!r}", mend=did_you_mean(str(value), known))
        return None

    def _out_of_range(self) -> InputError | None:
        for name in _AT_LEAST_ONE:
            if not getattr(self, name) >= 1:
                return InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                return InputError(f"{name} must be 0 or more, and finite, got {value}")
        if not 0 < self.log_partition_fraction <= 1:
            problem = f"must be greater than 0 and at most 1, got {self.log_partition_fraction}"
            return InputError(f"log_partition_fraction {problem}")
        for name in RANGES:
            try:
                schedule_in_range(name, getattr(self, name), total_steps=1)
            except InputError as error:
                return error
        return None

    def _without_effect(self) -> InputError | None:
        if self.objective == "unnormalized-likelihood" and self.penalty_weight == 0:
            problem = "log_partition_weight: with 0, nothing in unnormalized-likelihood holds the scores down"
            return InputError(problem, mend="use a weight greater than 0, such as 0.1")
        defaults = {one.name: one.default for one in dataclasses.fields(self)}
        for name, objectives in _READ_BY.items():
            value = getattr(self, name)
            mixed = self.direct_loss_weight > 0 and name in ("alpha_unit", "cost")
            if value not in (defaults[name], _NOTHING.get(name)) and self.objective not in objectives and not mixed:
                mend = f"leave it out, or use one of {', '.join(objectives)}"
                return InputError(f"{name}: {self.objective} takes no notice of it", mend=mend)
        if self.log_partition_fraction < 1 and self.penalty_weight == 0:
            return InputError("log_partition_fraction: there is no penalty", mend="give log_partition_weight")
        return None

    def _not_supported(self) -> InputError | None:
        unsupported: Mapping[str, Any] = {
            "label_smoothing_factor": "no objective smooths labels",
            "torch_compile": "a search is not compiled",
            "fsdp": "a search calls the parts of a model one by one, which a sharded model does not allow",
            "deepspeed": "a search calls the parts of a model one by one, which a sharded model does not allow",
        }
        for name, problem in unsupported.items():
            if getattr(self, name, None):
                return InputError(f"{name}: {problem}", mend="leave it out")
        # transformers has renamed it; of the two names, a release may know one or both.
        checkpointing = [
            name for name in ("activation_checkpointing", "gradient_checkpointing") if getattr(self, name, None)
        ]
        if checkpointing and self.steps_singly:
            problem = f"{checkpointing[0]}: {self.objective} takes single steps, which need the cache that this drops"
            others = "cross-entropy, the self-normalising objectives, noise-contrastive and two-pass scheduled-sampling"
            return InputError(problem, mend=f"leave it out; it works with {others}")
        return None


def _as_text(value: Any) -> Any:
    return getattr(value, "__qualname__", repr(value)) if callable(value) else value


_OWN = tuple(SearchAwareConfig.__annotations__)
