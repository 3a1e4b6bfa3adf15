"""Settings of a training run, each with a default and one line of help.

Command-line flags and keys of a YAML file are these fields and those of the chosen model, objective and warm start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PrivateAttr, field_validator, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.configuration.flat import build, changed, flags_of, flat_values, plain_values
from seqwise.configuration.written import Given, Written, given_in_python, read_given
from seqwise.errors import InputError
from seqwise.names import AlphaUnitName, ScoreName, TextUnits
from seqwise.objectives.options import ALPHA_UNIT, BEAM, RELAXATION, ObjectiveConfig, Sampling
from seqwise.objectives.settings import CRF, CrossEntropy, Distillation, ScheduledSampling, SelfNormalized
from seqwise.runs.model_settings import (
    ARCHITECTURES,
    Chain,
    ModelConfig,
    ModelsOf,
    PretrainedGenerator,
    TaggerModel,
    TransducerModel,
    names_pretrained,
)
from seqwise.runs.paths import recorded_language
from seqwise.runs.trainer_options import SIZED, TrainerOptions, read_saved, require_evaluation
from seqwise.schedules import Alpha

if TYPE_CHECKING:
    from seqwise.search.operators import AlphaUnit

Task = Literal["tag", "transduce"]

WARM_START_FOLDERS = ("warm-start", "scheduled-sampling", "distillation")
"""Folders of the stages of a warm start, below the run folder."""

RATE_OF_PRETRAINED = 5e-5
"""Learning rate of pretrained weights."""

_TASK = "tag: one label per source token; transduce: an output of its own length, the default for Hugging Face models"
_MODEL = (
    "tag: lstm, or chain (a label depends on the source and the previous label); transduce: lstm or transformer; or a "
    "Hugging Face model to fine-tune, a folder or a name on the hub (bert-base-cased, ada/bart): for --task tag an "
    "encoder such as BERT or a causal model such as GPT-2, else an encoder-decoder or a causal model, which reads "
    "sources as prompts"
)


class WarmStart(Config):
    """Warm start: training before the objective; a subclass has a ``name: Literal["..."]``."""

    name: str
    epochs: float = setting(
        5.0, "maximum number of epochs of the warm start", usual=SIZED, flag="warm_start_epochs", ge=0
    )
    learning_rate: float | None = setting(
        None,
        "peak learning rate of the warm start; for a pretrained model 5e-5",
        usual=SIZED,
        flag="warm_start_learning_rate",
        gt=0,
    )

    def stages(self) -> list[tuple[str, str, ObjectiveConfig, float]]:
        """List the stages: name, folder, objective, and fraction of the epochs and of the learning rate."""
        return [("warm start", "warm-start", CrossEntropy(), 1.0)]


class CrossEntropyStart(WarmStart):
    """Cross-entropy."""

    name: Literal["cross-entropy"] = "cross-entropy"


class SelfNormalizedStart(WarmStart):
    """Self-normalised cross-entropy."""

    name: Literal["self-normalized"] = "self-normalized"
    weight: float = setting(0.1, "weight of (log Z)^2", flag="log_partition_weight", ge=0)
    fraction: float = setting(
        1.0, "fraction of the positions that is penalised", flag="log_partition_fraction", gt=0, le=1
    )

    def stages(self) -> list[tuple[str, str, ObjectiveConfig, float]]:
        return [("warm start", "warm-start", SelfNormalized(weight=self.weight, fraction=self.fraction), 1.0)]


class ScheduledSamplingStart(Sampling, WarmStart):
    """Cross-entropy, then half as many epochs of scheduled sampling at half the learning rate."""

    name: Literal["scheduled-sampling"] = "scheduled-sampling"

    def stages(self) -> list[tuple[str, str, ObjectiveConfig, float]]:
        sampling = ScheduledSampling(**{name: getattr(self, name) for name in Sampling.model_fields})
        return [*super().stages(), ("scheduled sampling", "scheduled-sampling", sampling, 0.5)]


class DistilledStart(WarmStart):
    """Cross-entropy, then distillation into raw scores for half as many epochs."""

    name: Literal["distilled"] = "distilled"
    k: int = setting(5, BEAM, flag="beam_size", ge=1)

    def stages(self) -> list[tuple[str, str, ObjectiveConfig, float]]:
        # The teacher is the model of the first stage.
        return [*super().stages(), ("distillation", "distillation", Distillation(k=self.k), 0.5)]


def _from_objective(name: str, default: Any) -> Any:
    """Return a function that computes the default of a decoding option: its value in the objective, if any."""
    return lambda values: getattr(values.get("objective"), name, default)


class _ExperimentOptions(Config):
    """Data, model, objective and the stages of training."""

    task: Task = setting(..., _TASK, panel="Data")
    train: Path = setting(Path(), "training data: CoNLL columns (tag) or two-column TSV (transduce), plain or gzipped")
    dev: Path | None = setting(None, "development data, for early stopping and for choosing the decoder")
    model: ModelConfig = setting(..., _MODEL, panel="Model")
    init: Path | None = setting(
        None,
        "run to start from: its weights, vocabulary and model settings, and its objective and language unless given",
        metavar="RUN",
    )
    objective: Annotated[ObjectiveConfig, OneOf(ObjectiveConfig, usual="auto")] = setting(
        ...,
        "what training minimises; auto is beam-crf with global scores for left-to-right taggers, else cross-entropy "
        "with the epochs of the warm start added",
        panel="Objective",
        usual="auto",
    )
    language: str = setting(
        "",
        "restrict the outputs of every search to bio (well-formed entities), a file with one output per line, a JSON "
        "schema (.json), a grammar (.lark, .gbnf), or a regular expression",
        metavar="FILE|PATTERN",
    )
    beam_size: int = setting(_from_objective("k", 5), BEAM, ge=1)
    alpha: Alpha = setting(_from_objective("alpha", "exponential(1, 8)"), RELAXATION, metavar="SCHEDULE")
    alpha_unit: AlphaUnitName = setting(_from_objective("unit", "scores"), ALPHA_UNIT)
    warm_start: Annotated[WarmStart | None, OneOf(WarmStart, optional=True, usual="cross-entropy")] = setting(
        lambda values: (
            None if values.get("init") or _trains_new_weights(values.get("objective")) else CrossEntropyStart()
        ),
        "scheduled-sampling, crf, distillation, search-aware objectives: the first stage; distilled trains "
        "cross-entropy and then distils it into raw scores",
        panel="Optimisation",
        usual="cross-entropy",
    )
    epochs: float = setting(5.0, "maximum number of epochs of the objective", usual=SIZED, gt=0)
    learning_rate: float = setting(
        lambda values: RATE_OF_PRETRAINED if getattr(values.get("model"), "pretrained", False) else 1e-3,
        "peak learning rate; for a pretrained model 5e-5",
        usual=SIZED,
        gt=0,
    )
    gradient_checkpointing: bool = setting(
        False,
        "save memory: recompute the steps of a search, and the layers of a pretrained generator, in the backward pass",
    )


@dataclass(frozen=True)
class Stage:
    """Stage of training, which continues from the weights of the previous stage.

    Attributes:
        name: name in progress bars and metrics.
        folder: folder below the run folder; "" for the run folder itself.
        settings: settings of the run, with the objective, epochs and learning rate of this stage.
    """

    name: str
    folder: str
    settings: Settings

    @property
    def loss_unit(self) -> str:
        """Unit of the loss, for messages."""
        return self.settings.objective.loss_unit("label" if self.settings.task == "tag" else "token")


class Settings(TrainerOptions, _ExperimentOptions):
    """Settings of ``seqwise train``: ``Tagging`` or ``Transducing``; see each field's help.

    Make them from flat names with :func:`train_settings`.

    Example:
        >>> settings = train_settings(objective="relaxed-beam", beam_size=3, hidden_size=8)
        >>> settings.task, settings.objective.k, settings.beam_size, settings.model.hidden_size
        ('tag', 3, 3, 8)
        >>> train_settings(objective="cross-entropy", cost="edit-distance")
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: cost: has no effect here; leave it out, or use objective beam-crf, ...
    """

    tag = "task"

    _chosen_by_auto: bool = PrivateAttr(False)

    @property
    def chosen_by_auto(self) -> bool:
        """Whether "auto" chose the objective."""
        return self._chosen_by_auto

    @property
    def source_units(self) -> TextUnits:
        """Units of sources."""
        return self.model.units("source")

    @property
    def target_units(self) -> TextUnits:
        """Units of targets."""
        return self.model.units("target")

    @property
    def divisor_of_alpha(self) -> AlphaUnit:
        """Function that computes the unit of alpha."""
        from seqwise.search.operators import ALPHA_UNITS

        return ALPHA_UNITS[self.alpha_unit]

    @property
    def trained_score(self) -> ScoreName:
        """Scores that the objective trains: local, global or renormalized."""
        return self.objective.trained_score

    @property
    def warm_start_learning_rate(self) -> float:
        """Peak learning rate of the warm start."""
        given = self.warm_start.learning_rate if self.warm_start else None
        return given or (RATE_OF_PRETRAINED if self.model.pretrained else 2e-3)

    def stages(self) -> list[Stage]:
        """List the stages of training in order: the warm start, then the objective."""
        stages = []
        if self.warm_start is not None and self.warm_start.epochs > 0:
            for name, folder, objective, share in self.warm_start.stages():
                changes = {
                    "objective": objective,
                    "warm_start": None,
                    "epochs": share * self.warm_start.epochs,
                    "learning_rate": share * self.warm_start_learning_rate,
                }
                stages.append(Stage(name, folder, self.model_copy(update=changes)))
        return [*stages, Stage("training", "", self)]

    def with_changes(self, **changes: Any) -> Settings:
        """Return a copy with some flat settings changed.

        Options that a newly chosen model, objective or warm start does not have are dropped.

        Example:
            >>> train_settings(objective="relaxed-beam", beam_size=3).with_changes(objective="beam-crf").objective.k
            3
        """
        leave_out: tuple[str, ...] = ()
        if "objective" in changes and "warm_start" not in changes:
            named = OneOf(ObjectiveConfig).validate(changes["objective"])
            leave_out = ("warm_start",) if _trains_new_weights(named) else ()
        return changed(SETTINGS, self, changes, leave_out)

    @field_validator("warm_start", mode="after")
    @classmethod
    def _warm_start_has_effect(cls, start: WarmStart | None, info: Any) -> WarmStart | None:
        objective = info.data.get("objective")
        if start is not None and _trains_new_weights(objective):
            problem, hint = _without_warm_start("warm_start", type(objective))
            raise InputError(problem, hint=hint)
        return start

    @model_validator(mode="after")
    def _are_compatible(self) -> Any:
        objective, start = self.objective, self.warm_start
        if isinstance(objective, CRF) and not isinstance(self.model, Chain):
            problem = f"objective: crf needs the scores of a chain, which the model {self.model.title} does not have"
            raise InputError(problem, hint="use --model chain, or --objective beam-crf")
        if getattr(objective, "commit_delay", None) is not None:
            if self.task == "transduce":
                hint = "leave it out, or use --task tag"
                raise InputError("commit_delay: only the labels of a tagger can be final before the end", hint=hint)
            if getattr(self.model, "encoder", None) == "bidirectional":
                problem = "commit_delay: a bidirectional encoder reads the whole source, so there is no stream"
                raise InputError(problem, hint="leave it out, or use --encoder left-to-right")
        if self.trained_score == "renormalized" and not self.language:
            problem = "language: renormalised scores sum over the tokens that a language allows, and there is none"
            raise InputError(problem, hint="give --language, or train local scores")
        if isinstance(objective, Distillation):
            self._require_teacher()
        if isinstance(start, DistilledStart) and self.trained_score == "local":
            problem = f"warm_start: distilled prepares raw scores, and {objective.name} is trained on local ones here"
            other = "--score global, or " if hasattr(objective, "score") else ""
            raise InputError(problem, hint=f"use {other}--warm-start cross-entropy")
        can_recompute = isinstance(self.model, PretrainedGenerator) or any(
            stage.settings.objective.unrolls for stage in self.stages()
        )
        if self.gradient_checkpointing and not can_recompute:
            problem = f"gradient_checkpointing: {objective.name} has no search with gradients to recompute"
            raise InputError(problem, hint="leave it out, or use --objective relaxed-beam")
        in_two_passes = any(getattr(stage, "feeding_passes", "") == "two-pass" for stage in (objective, start))
        if in_two_passes and not self.model.parallel:
            problem = "feeding_passes: only scheduled sampling of a transformer can be fed in two passes"
            raise InputError(problem, hint="use --feeding-passes step-by-step, or --model transformer")
        return self

    def _require_teacher(self) -> None:
        """Raise an InputError if nothing trains the teacher of distillation."""
        start, need = self.warm_start, "distillation needs a teacher, a local model that the warm start trains"
        if isinstance(start, DistilledStart) or (start is None and self.init is None):
            hint = "use --warm-start cross-entropy, self-normalized or scheduled-sampling"
            raise InputError(f"warm_start: {need}", hint=hint)
        if start is not None and start.epochs == 0 and self.init is None:
            raise InputError(f"warm_start_epochs: {need}", hint="use --warm-start-epochs greater than 0")


class Tagging(Settings):
    """Settings of a tagger."""

    task: Literal["tag"] = setting("tag", _TASK, panel="Data")
    token_column: int = setting(0, "column of the tokens, counted from 0", panel="Data")
    label_column: int = setting(-1, "column of the labels, counted from 0; -1 is the last")
    model: Annotated[TaggerModel, ModelsOf(TaggerModel, other="--task transduce")] = setting(
        "lstm", _MODEL, panel="Model", metavar="NAME|FOLDER", choices=ARCHITECTURES
    )


class Transducing(Settings):
    """Settings of a transducer."""

    task: Literal["transduce"] = setting("transduce", _TASK, panel="Data")
    model: Annotated[TransducerModel, ModelsOf(TransducerModel, other="--task tag")] = setting(
        "lstm", _MODEL, panel="Model"
    )


SETTINGS = OneOf(Settings)
"""Both kinds of settings, for ``configure`` and ``flags_of``."""


def _without_warm_start(option: str, objective: type[ObjectiveConfig]) -> tuple[str, str]:
    """Return the problem and the hint about an option of the warm start, which an objective does not have."""
    problem = f"{option}: {objective.model_fields['name'].default} trains new weights, without a warm start"
    return problem, "leave it out, or use an objective that starts from a trained model"


def _trains_new_weights(objective: Any) -> bool:
    return isinstance(objective, ObjectiveConfig) and objective.from_scratch


def train_settings(**flat: Any) -> Settings:
    """Make settings of ``seqwise train`` from flat ones, named like its flags.

    ``objective`` is a name or an object; other given options of the objective override those of an object.

    Raises:
        InputError: a setting cannot be used.

    Example:
        >>> train_settings(encoder="left-to-right").objective.name, train_settings().objective.name
        ('beam-crf', 'cross-entropy')
    """
    objective, overrides = flat.get("objective"), set[str]()
    if isinstance(objective, ObjectiveConfig):
        overrides = {flag.name for flag in flags_of(type(objective))} & {*flat}
    settings = _built(given_in_python({name: value for name, value in flat.items() if name not in overrides}))
    return settings.with_changes(**{name: flat[name] for name in overrides}) if overrides else settings


def load_settings(path: Path | None, flags: Mapping[str, str] | None = None) -> Settings:
    """Read settings from a YAML file and flags; flags take precedence."""
    given = read_given(path, flags)
    if "format" in given.file:  # the tag of their settings
        problem = "settings of a masked model, which seqwise train and tune do not take"
        raise InputError(problem, path=path, hint="use seqwise masked-model train")
    return _built(given)


def saved_settings(folder: Path) -> Settings | None:
    """Read the settings of a run of ``seqwise train``; None if the folder holds none."""
    given = read_saved(folder, SETTINGS)
    return None if given is None else _built(given)


def require_data(settings: Settings) -> None:
    """Raise an InputError without training data, or for evaluations without development data."""
    if settings.train == Path() and "train" not in settings.model_fields_set:  # a given "." is a different mistake
        raise InputError("there is no training data", hint="give --train FILE, or a line 'train: FILE' in the YAML")
    require_evaluation(settings, has_dev=settings.dev is not None)


def _built(given: Given) -> Settings:
    _take_from_init(given)
    model = given.value("model.path", "model.name", "model")
    if given.value("task") is None:
        pretrained = model == "pretrained" or (isinstance(model, str) and names_pretrained(model))
        given.put("task", "transduce" if pretrained or isinstance(model, TransducerModel) else "tag")
    by_auto = given.value("objective.name", "objective") in (None, "auto")
    if by_auto:
        _choose_objective(given)
    kind: Any = OneOf(ObjectiveConfig).members.get(str(given.value("objective.name", "objective")))
    for name in ("warm_start_epochs", "warm_start_learning_rate"):
        if kind is not None and kind.from_scratch and given.value(name) is not None:
            raise given.error(name, *_without_warm_start(name, kind))
    settings: Settings = build(SETTINGS, given)
    settings._chosen_by_auto = by_auto
    return settings


def _take_from_init(given: Given) -> None:
    """Take task, model, objective and language from the run ``init``, unless given."""
    missing = [name for name in ("task", "model", "objective", "language") if given.value(name) is None]
    if given.value("init") is None or not missing:
        return
    folder = Path(str(given.value("init")))
    before = saved_settings(folder)
    if before is None:
        raise given.error("init", f"init: {folder} is not a run of seqwise train", "give the --output of one")
    if "task" not in missing and given.value("task") != before.task:
        problem = f"init: the run is of another task ({before.task}, not {given.value('task')})"
        raise given.error("init", problem, "give a run of this task, or leave the task out")
    if "model" in missing:
        for name in flat_values(before.model):
            if name != "name" and given.value(name) is not None:
                raise given.error(name, f"{name}: the run in init determines it", "leave it out")
    for name in missing:
        value = getattr(before, name)
        value = recorded_language(value, folder) if name == "language" else value
        given.put(name, plain_values(value) if isinstance(value, Config) else value)


def _choose_objective(given: Given) -> None:
    """Replace the objective "auto" by the best one in the reproductions.

    For a left-to-right tagger, whose labels do not depend on all of the input: cross-entropy, then scheduled
    sampling, then the beam CRF with raw scores (``python -m reproductions search-objectives``). For models that read
    the whole input, nothing was better than longer training with cross-entropy (Tables 4.1 and 4.2, g2p), so the epochs
    of a warm start are added.
    """
    for name in ("score", "objective.score", "warm_start"):
        if given.value(name) is not None:
            problem = f"{name}: the objective auto chooses it"
            raise given.error(name, problem, f"leave {name.replace('_', '-')} out, or name an objective")
    encoder = given.value("encoder", "model.encoder")
    if given.value("task") == "tag" and encoder == "left-to-right":
        _name_objective(given, "beam-crf")
        for name, value in (("score", "global"), ("warm_start", "scheduled-sampling")):
            given.put(name, value)
        return
    _name_objective(given, "cross-entropy")
    written, epochs = given.value("warm_start_epochs"), given.value("epochs")
    if written is None:
        return
    try:
        added = CrossEntropyStart(epochs=written).epochs
    except InputError as error:
        raise given.error("warm_start_epochs", f"warm_start_{error.problem}", error.hint) from None
    given.drop("warm_start_epochs")
    if epochs is None:
        if added > 0:
            given.put("epochs", added)
        return
    try:
        total = added + float(epochs)
    except (TypeError, ValueError):
        return  # an error of validation, which names the line
    if added < total < math.inf:
        given.put("epochs", total)


def _name_objective(given: Given, name: str) -> None:
    """Replace the name of the objective, and keep the options in its section."""
    written = given.file.get("objective")
    given.put("objective", name)
    if written is not None and isinstance(written.value, Mapping):
        given.file["objective"] = replace(written, value={**written.value, "name": Written(name, "objective.name")})
