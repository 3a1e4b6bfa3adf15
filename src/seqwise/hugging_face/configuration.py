"""Training arguments for search-aware objectives: those of the Hugging Face Trainer, and the objective."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from transformers import Seq2SeqTrainingArguments

from seqwise.configuration import Config, OneOf, configure, setting
from seqwise.configuration.flat import changed, flags_of
from seqwise.errors import InputError
from seqwise.hugging_face.sharding import not_shardable
from seqwise.objectives.options import NOTHING, Context, ObjectiveConfig
from seqwise.objectives.settings import CRF, CrossEntropy, SelfNormalized
from seqwise.schedules import AnySchedule, Function

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective
    from seqwise.search.language import Language

OBJECTIVES = tuple(name for name, kind in OneOf(ObjectiveConfig).members.items() if kind is not CRF)


class _Minimised(Config):
    """Objective with an optional penalty on log Z."""

    objective: Annotated[ObjectiveConfig, OneOf(ObjectiveConfig)] = setting(..., "what training minimises")
    weight: float = setting(0.0, "weight of added (log Z)^2", flag="log_partition_weight", ge=0)
    fraction: float = setting(
        1.0, "fraction of the positions that is penalised", flag="log_partition_fraction", gt=0, le=1
    )

    @property
    def adds_penalty(self) -> bool:
        """Whether the penalty is added to an objective that has none."""
        return self.weight > 0 and not self.objective.self_normalizing

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective with the penalty."""
        if not self.adds_penalty:
            return self.objective.build(context)
        if self.objective == CrossEntropy():  # one pass, and one logsumexp, serve both terms
            return SelfNormalized(weight=self.weight, fraction=self.fraction).build(context)
        from seqwise.objectives.objective import mixed_objective
        from seqwise.objectives.self_normalization import log_partition_objective

        penalty = log_partition_objective(fraction=self.fraction)
        return mixed_objective([self.objective.build(context), penalty], [1.0, self.weight])


if TYPE_CHECKING:
    _ScheduleText = AnySchedule
    _Objective = str | ObjectiveConfig
    _Language = str | Language
else:
    _ScheduleText = _Objective = _Language = str  # HfArgumentParser reads annotations, and a command line only has text


def _option(text: str) -> Any:
    return field(default=None, metadata={"help": text})


@dataclass
class SearchAwareConfig(Seq2SeqTrainingArguments):
    """Arguments of :class:`~seqwise.hugging_face.SearchAwareTrainer`, in addition to ``Seq2SeqTrainingArguments``.

    Attributes:
        objective: training objective, per token: one of :mod:`seqwise.objectives.settings` (except CRF), such as
            ``RelaxedBeam(k=3)``, or its name, such as "relaxed-beam". "distillation" distils the initial model into raw
            scores. After construction, it is the objective with its options.
        beam_size, score, cost, alpha, alpha_unit, feeding, feeding_passes, gold_probability, cross_entropy_weight,
            direct_loss_weight, noise_tokens, label_smoothing, normalized_over: options of the objective, named like the
            flags of ``seqwise train``; None keeps the default. Scheduled sampling has "two-pass" feeding by default. A
            schedule may also be a function of the step.
        log_partition_weight: weight of ``(log Z)^2`` along gold, known as z-loss, in ANY objective; by default 0.1 in
            self-normalising ones and 0 in all others.
        log_partition_fraction: fraction of positions that is penalised.
        language: restricts the outputs of searches in training and ``predict_with_generate``; labels must be in it. A
            :class:`~seqwise.search.Language`, or a regular expression for texts of the trainer's tokenizer, see
            :func:`~seqwise.hugging_face.text_language`; after a prompt, it begins with the blank that the labels of a
            byte-level tokenizer have.

    Raises:
        InputError: an option is out of range, not one of the objective's, or not supported
            (``label_smoothing_factor``, ``torch_compile``, ``neftune_noise_alpha``, DeepSpeed, FSDP in units that the
            objective cannot have).

    ``activation_checkpointing`` (in older releases ``gradient_checkpointing``) recomputes single steps by segments
    (``seqwise.search.segments``), and all steps at once by layers, as in Transformers.

    Example:
        >>> import tempfile
        >>> from seqwise.objectives import RelaxedBeam
        >>> config = SearchAwareConfig(tempfile.mkdtemp(), objective="relaxed-beam", alpha="linear(1, 4)", use_cpu=True)
        >>> config.objective == RelaxedBeam(alpha="linear(1, 4)")
        True
        >>> SearchAwareConfig(tempfile.mkdtemp(), objective="relaxed-beem", use_cpu=True)
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: objective must be one of ..., got 'relaxed-beem'; did you mean 'relaxed-beam'?
    """

    objective: _Objective = field(
        default="cross-entropy", metadata={"help": f"what training minimises: {', '.join(OBJECTIVES)}"}
    )
    beam_size: int | None = _option("slots of the beam in training")
    score: str | None = _option(
        "objectives that see the beam: local (log-softmax) or global (raw) scores, or renormalized ones (log-softmax "
        "over the tokens that the language allows)"
    )
    cost: str | None = _option("what a wrong output costs: hamming or edit-distance")
    alpha: _ScheduleText | None = _option("inverse temperature of relaxations: a number or a schedule")
    alpha_unit: str | None = _option("scores; or gaps: alpha is divided by the mean squared gap of the best scores")
    feeding: str | None = _option("scheduled sampling: greedy, sample, soft-greedy or soft-sample")
    feeding_passes: str | None = _option("scheduled sampling: two-pass (all positions at once) or step-by-step")
    gold_probability: _ScheduleText | None = _option("scheduled sampling: probability of feeding gold")
    cross_entropy_weight: float | None = _option("objectives that see the beam: weight of added cross-entropy")
    direct_loss_weight: float | None = _option("beam-crf, (soft-)dense-beam: weight of added relaxed-beam loss")
    log_partition_weight: float | None = _option("weight of (log Z)^2 along gold (z-loss), in any objective")
    log_partition_fraction: float | None = _option("fraction of the positions whose log Z is penalised")
    noise_tokens: int | None = _option("noise-contrastive: noise tokens for each gold token")
    language: _Language | None = _option("regular expression that restricts outputs in training and evaluation")
    label_smoothing: float | None = _option(
        "cross-entropy: probability that is moved from each gold token to all tokens"
    )
    normalized_over: str | None = _option(
        "cross-entropy: tokens that log Z sums over: vocabulary, or allowed by the language"
    )

    def __post_init__(self) -> None:
        for name, (problem, hint) in _UNSUPPORTED.items():  # first: Transformers looks for DeepSpeed
            if getattr(self, name):
                raise InputError(f"{name}: {problem}", hint=hint)
        super().__post_init__()
        if not torch.accelerator.is_available():  # torch warns about pinned memory without a device
            self.dataloader_pin_memory = False
        self._chosen = self.objective
        self._choose()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an argument; an option of the objective is checked and used, as ``hyperparameter_search`` expects."""
        if "minimised" not in self.__dict__ or name not in ("objective", *_OPTIONS):
            super().__setattr__(name, value)
            return
        if name == "objective":
            raise InputError("objective: it is chosen when the arguments are made", hint="make others")
        before = {kept: self.__dict__[kept] for kept in (name, "minimised", "objective")}
        super().__setattr__(name, value)
        try:
            self._choose()
        except InputError:
            self.__dict__.update(before)
            raise

    def _choose(self) -> None:
        """Set the objective that was chosen, with the options that are given."""
        chosen: Any = self._chosen
        options = {name: getattr(self, name) for name in _OPTIONS if getattr(self, name) is not None}
        kind = type(chosen) if isinstance(chosen, ObjectiveConfig) else OneOf(ObjectiveConfig).find(chosen)
        known = {flag.name for flag in flags_of(kind)} if kind else {*_OPTIONS}
        options = {name: value for name, value in options.items() if name in known or name not in _COMPARED}
        if isinstance(chosen, ObjectiveConfig):
            minimised = changed(_Minimised, _Minimised(objective=chosen), options)
        else:
            if chosen == "scheduled-sampling":
                options.setdefault("feeding_passes", "two-pass")
            minimised = configure(_Minimised, objective=chosen, **options)
        self.__dict__.update(minimised=minimised, objective=minimised.objective)
        fault = self._not_trainable()
        if fault is None and self.fsdp:
            fault = not_shardable(self.fsdp_plugin_args, minimised.objective)
        if fault is not None:
            raise fault

    def to_dict(self) -> dict[str, Any]:
        """Return all arguments like ``TrainingArguments.to_dict``, with the objective and schedules as text."""
        written = {name: _as_text(value) for name, value in super().to_dict().items()}
        if not isinstance(self.language, str | None):
            written["language"] = type(self.language).__name__
        return written

    def picklable(self) -> SearchAwareConfig:
        """Return a copy that can be saved, with functions replaced by their names."""
        copied = copy.copy(self)
        for name in ("alpha", "gold_probability"):
            if callable(getattr(self, name)):
                object.__setattr__(copied, name, _as_text(getattr(self, name)))
        if any(isinstance(schedule, Function) for schedule in self.minimised.objective.schedules.values()):
            object.__setattr__(copied, "objective", self.minimised.objective.name)
            del copied.__dict__["minimised"], copied.__dict__["_chosen"]
        return copied

    def _not_trainable(self) -> InputError | None:
        if isinstance(self.objective, CRF):
            problem = "crf needs scores that form a chain, and those of Hugging Face models do not"
            return InputError(f"objective: {problem}", hint="use beam-crf")
        if self.minimised.objective.trained_score == "renormalized" and self.language is None:
            problem = "language: renormalised scores sum over the tokens that a language allows, and there is none"
            return InputError(problem, hint="give language, or train local scores")
        if self.minimised.fraction < 1 and self.minimised.weight == 0 and not self.minimised.objective.self_normalizing:
            return InputError("log_partition_fraction: there is no penalty", hint="give log_partition_weight")
        return None


def _as_text(value: Any) -> Any:
    if isinstance(value, ObjectiveConfig):
        return value.name
    return getattr(value, "__qualname__", repr(value)) if callable(value) else value


_UNSUPPORTED = {
    "label_smoothing_factor": ("it would smooth the evaluation as well", "give label_smoothing"),
    **dict.fromkeys(
        ("torch_compile", "torch_compile_backend", "torch_compile_mode"), ("a search is not compiled", "leave it out")
    ),
    "neftune_noise_alpha": ("a search looks embeddings up without the noise", "leave it out"),
    "deepspeed": ("it gathers weights where the model is called, and a search calls parts", "leave it out"),
}
"""Arguments of the Trainer that are refused, with the reason and a hint."""

_COMPARED = ("beam_size", "alpha")
"""Options that are accepted even if the objective lacks them, so that one script can compare several."""

_OPTIONS = tuple(name for name in SearchAwareConfig.__annotations__ if name not in ("objective", "language"))
