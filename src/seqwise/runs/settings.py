"""What a training run is made from: every setting with its default and one line of help.

The command line's flags and the keys of a YAML file are these fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from seqwise.errors import InputError
from seqwise.names import (
    GLOBAL_OBJECTIVES,
    ONLY_FOR,
    SEARCH_OBJECTIVES,
    AlphaUnitName,
    CostName,
    Feeding,
    FeedingPasses,
    ScoreName,
    TrainedObjective,
)
from seqwise.runs.label_costs import parse_label_costs
from seqwise.runs.model_names import ARCHITECTURES, names_pretrained
from seqwise.training.configuration import did_you_mean, load_configuration, setting
from seqwise.training.schedules import RANGES, schedule_in_range

__all__ = [
    "Settings",
    "adopt",
    "check",
    "line_of",
    "load_settings",
    "names_pretrained",
    "over_encoder",
    "parse_label_costs",
    "trained_score",
]

Task = Literal["tag", "transduce"]
ObjectiveName = Literal["auto", TrainedObjective]
WarmStart = Literal["none", "cross-entropy", "self-normalized", "scheduled-sampling", "distilled"]
Direction = Literal["left-to-right", "bidirectional"]
Units = Literal["words", "characters", "subwords"]


@dataclass(frozen=True)
class Settings:
    """Settings of ``seqwise train``; see each field's help."""

    task: Task = setting(
        None,
        "tag: one label per source token; transduce: an output of its own length; by default tag, and transduce with "
        "a model of transformers",
        panel="Data",
    )
    train: Path = setting(Path(), "training data: CoNLL columns (tag) or two-column TSV (transduce), plain or gzipped")
    dev: Path | None = setting(None, "development data, for choosing how to decode")
    token_column: int = setting(0, "tag: the column of the tokens, from 0")
    label_column: int = setting(-1, "tag: the column of the labels, from 0; -1 is the last")
    source_units: Units = setting("words", "transduce: what a source is made of; subwords are learnt from raw text")
    target_units: Units = setting("words", "transduce: what a target is made of")
    subword_vocabulary: int = setting(8000, "subwords: how many to learn at most, for each side on its own")
    minimum_count: int | None = setting(
        None,
        "source tokens seen less often are trained as the unknown token; 1 refuses unknown tokens (not subwords); "
        "by default 2 for words and subwords, 1 for characters",
    )
    encoder: Direction = setting("bidirectional", "tag: left-to-right sees only the source so far", panel="Model")
    model: str = setting(
        "lstm",
        "tag: lstm, or chain (a label sees the source and the label before); transduce: lstm or transformer; or a "
        "model of transformers to go on with, a folder or a name on the hub (bert-base-cased, ada/bart): for --task "
        "tag an encoder (such as BERT), else an encoder-decoder or a causal language model (which continues sources by "
        "targets)",
        metavar="NAME|FOLDER",
        choices=ARCHITECTURES,
    )
    embedding_size: int = setting(64, "lstm: size of source (and output) embeddings")
    label_embedding_size: int = setting(16, "tag: size of label embeddings")
    hidden_size: int = setting(
        96, "size of each LSTM direction, and of the decoder of a tagger; transformer: of embeddings and layers"
    )
    num_layers: int = setting(2, "transformer: layers of the encoder, and of the decoder")
    num_heads: int = setting(4, "transformer: heads of each attention")
    feedforward_size: int = setting(512, "transformer: hidden size of the feed-forward networks")
    dropout: float = setting(0.1, "dropout rate")
    objective: ObjectiveName = setting(
        "auto",
        "what training minimises; auto: beam-crf over global scores left to right, else cross-entropy, which then has "
        "the epochs of the warm start as well",
        panel="Objective",
    )
    score: ScoreName = setting(
        "local", "search-aware objectives: local (log-softmax) or global (raw) scores; crf, distillation: raw"
    )
    beam_size: int = setting(5, "slots of the beam, in training and decoding; fewer where there are fewer candidates")
    alpha: str = setting(
        "exponential(1, 8)", "inverse temperature of relaxations: a number, linear(a, b) or exponential(a, b)"
    )
    alpha_unit: AlphaUnitName = setting("scores", "gaps: alpha is divided by the mean squared gap of the best scores")
    feeding: Feeding = setting("greedy", "scheduled-sampling: what is fed in place of gold")
    feeding_passes: FeedingPasses = setting(
        "step-by-step", "scheduled-sampling: two-pass (transformer) chooses along gold, for all positions at once"
    )
    gold_probability: str = setting(
        "linear(1, 0)",
        "scheduled-sampling: probability of feeding gold: a number, linear(a, b), inverse_sigmoid(k) ...",
    )
    log_partition_weight: float = setting(
        0.1, "(sampled-)self-normalized, unnormalized-likelihood: weight of (log Z)^2; the last ends at 1/(2 weight)"
    )
    log_partition_fraction: float = setting(1.0, "the same: the part of the positions that is penalised")
    noise_tokens: int = setting(10, "noise-contrastive: how many for each gold token, drawn as often as they are gold")
    wrong_label_costs: str = setting(
        "",
        "relaxed-beam, hinge, hard-hinge, beam-search-optimization: cost of wrongly choosing a label, as in 'O=2,X=.5'",
        metavar="COSTS",
    )
    cost: CostName = setting("hamming", "the same, and minimum-risk: what a wrong output costs")
    direct_loss_weight: float = setting(0.0, "beam-crf, dense-beam, soft-dense-beam: weight of added relaxed-beam loss")
    cross_entropy_weight: float = setting(0.1, "search-aware objectives: weight of added cross-entropy")
    warm_start: WarmStart = setting(
        "cross-entropy",
        "scheduled-sampling, crf, distillation, search-aware objectives: what is trained first; distilled (for raw "
        "scores): cross-entropy, whose outputs the raw scores then learn",
        panel="Optimisation",
    )
    warm_start_epochs: float = setting(5.0, "epochs of the warm start")
    warm_start_learning_rate: float = setting(2e-3, "its highest learning rate; of a trained model 5e-5")
    epochs: float = setting(5.0, "epochs of the objective itself")
    learning_rate: float = setting(1e-3, "highest learning rate; decays linearly to 0; of a trained model 5e-5")
    decoder_learning_rate: float = setting(
        1e-3, "tag with an encoder of transformers: that of the decoder in each stage, for its weights are new"
    )
    batch_size: int = setting(64, "examples in a batch")
    clip: float = setting(1.0, "longest gradient")
    seed: int = setting(0, "seed of initial weights, batches and noise")
    save_every: int = setting(200, "steps between checkpoints", panel="Log")
    measurements: int = setting(
        10, "how often in each stage a sample of the development data is measured, for the curves of seqwise report"
    )

    def __post_init__(self) -> None:
        # Without a task, the model decides; where there is one it stays.
        usual = "transduce" if names_pretrained(self.model) else "tag"
        object.__setattr__(self, "task", self.task or usual)
        for name in ("train", "dev"):  # from Python, a str will do
            path = getattr(self, name)
            object.__setattr__(self, name, path if path is None else Path(path))


_AT_LEAST_ONE = (
    "beam_size", "noise_tokens", "batch_size", "save_every", "embedding_size", "label_embedding_size", "hidden_size",
    "num_layers", "num_heads", "feedforward_size", "subword_vocabulary", "minimum_count",
)  # fmt: skip
_POSITIVE = ("epochs", "learning_rate", "warm_start_learning_rate", "decoder_learning_rate", "clip")
_NOT_NEGATIVE = (
    "log_partition_weight", "cross_entropy_weight", "direct_loss_weight", "warm_start_epochs", "measurements",
)  # fmt: skip


def check(settings: Settings) -> Settings:
    """Refuse settings that cannot be trained with, though each is of the right type; return them.

    Raises:
        InputError: names the setting and its range.
    """
    found = _first_fault(settings)
    if found is not None:
        raise found[1]
    if settings.train == Path():
        raise InputError("there is no training data", mend="give --train FILE, or a line 'train: FILE' in the YAML")
    return settings


def load_settings(path: Path | None, flags: Mapping[str, str]) -> Settings:
    """Settings from a YAML file, then from flags, each in its range.

    Raises:
        InputError: a setting cannot be used; where it comes from the file, its line is named.
    """
    settings = load_configuration(Settings, path, flags)

    # Given with its default value it is a wish all the same.
    def is_given(name: str) -> bool:
        return name in flags or (path is not None and line_of(path, name) is not None)

    found = _first_fault(settings)
    if found is None and settings.objective == "auto":
        found = next((_auto_chooses(name) for name in CHOSEN_BY_AUTO if is_given(name)), None)
    if found is None and names_pretrained(settings.model):
        given = [name for name in _READ_AS_TEXT if is_given(name) and settings.task == "transduce"]
        found = next((fault for name in given if (fault := _no_text(settings, name))), None)
        settings = adopt(_with_small_steps(settings, is_given))
    if found is None:
        return settings
    name, error = found
    line = None if path is None or name in flags else line_of(path, name)
    raise error if line is None else InputError(error.problem, path=path, line=line, mend=error.mend)


def line_of(path: Path, name: str) -> int | None:
    """Where a key stands in a YAML file that has been read before."""
    root = yaml.compose(path.read_text("utf-8-sig"), Loader=yaml.SafeLoader)
    # What comes through a pipe can be read only once.
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    return next((key.start_mark.line + 1 for key, _ in entries if key.value == name), None)


def over_encoder(settings: Settings) -> bool:
    """Whether a tagger is asked for that reads with an encoder of transformers.

    Example:
        >>> over_encoder(Settings(model="./my-bert", task="tag")), over_encoder(Settings())
        (True, False)
    """
    return settings.task == "tag" and names_pretrained(settings.model)


def adopt(settings: Settings) -> Settings:
    """Settings of a trained model as it will have them: what writes reads and writes raw text, by its own tokenizer.

    Others are returned as they are.

    Example:
        >>> adopt(Settings(model="./my-bart")).task, adopt(Settings()).task
        ('transduce', 'tag')
    """
    if not names_pretrained(settings.model):
        return settings
    # With a separator a folder's name means the same wherever and whenever it is read.
    is_plain_folder = not {"/", os.sep} & set(settings.model) and Path(settings.model).is_dir()
    model = f".{os.sep}{settings.model}" if is_plain_folder else settings.model
    return replace(settings, model=model, **({} if settings.task == "tag" else _READ_AS_TEXT))


def _with_small_steps(settings: Settings, is_given: Callable[[str], bool]) -> Settings:
    """Rates that do not undo what is trained already, unless others are asked for."""
    rates: dict[str, Any] = {name: rate for name, rate in _RATES_OF_PRETRAINED.items() if not is_given(name)}
    return replace(settings, **rates)


def _no_text(settings: Settings, name: str) -> Fault | None:
    if getattr(settings, name) == _READ_AS_TEXT[name]:
        return None
    return _fault(
        name, f"{settings.model} reads and writes raw text, by its own tokenizer", f"leave {name.replace('_', '-')} out"
    )


_READ_AS_TEXT: dict[str, Any] = {"source_units": "subwords", "target_units": "subwords"}
_RATES_OF_PRETRAINED = {"learning_rate": 5e-5, "warm_start_learning_rate": 5e-5}

CHOSEN_BY_AUTO = ("score", "warm_start")
Fault = tuple[str, InputError]
"""The name of a setting, and what is wrong with it."""


def _fault(name: str, problem: str, mend: str | None) -> Fault:
    return name, InputError(f"{name}: {problem}", mend=mend)


def _first_fault(settings: Settings) -> Fault | None:
    """The first setting that is out of its range, or that does not go with the others."""
    for find in (_number_out_of_range, _wrong_label_cost, _schedule_out_of_range, _misfit):
        fault = find(settings)
        if fault is not None:
            return fault
    return None


def _number_out_of_range(settings: Settings) -> Fault | None:
    for names, holds, wanted in (
        (_AT_LEAST_ONE, lambda value: value >= 1, "at least 1"),
        (_POSITIVE, lambda value: value > 0, "greater than 0"),
        (_NOT_NEGATIVE, lambda value: value >= 0, "0 or more"),
        (("seed",), lambda value: 0 <= value < 2**32, "at least 0 and below 2**32"),
        (("dropout",), lambda value: 0 <= value < 1, "at least 0 and below 1"),
        (("log_partition_fraction",), lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
    ):
        for name in names:
            if getattr(settings, name) is not None and not holds(getattr(settings, name)):
                return name, InputError(f"{name} must be {wanted}, got {getattr(settings, name)}")
    return None


def _auto_chooses(name: str) -> Fault:
    return _fault(
        name, "the objective auto chooses it itself", f"leave {name.replace('_', '-')} out, or name an objective"
    )


def _misfit(settings: Settings) -> Fault | None:
    """A setting that the others leave without effect, or that they cannot be used with."""
    for name in CHOSEN_BY_AUTO if settings.objective == "auto" else ():
        if getattr(settings, name) != getattr(Settings, name):
            return _auto_chooses(name)
    if settings.score == "global" and settings.objective not in SEARCH_OBJECTIVES + GLOBAL_OBJECTIVES:
        problem = f"{settings.objective} is trained on local scores, whatever the score"
        return _fault("score", problem, "use --objective relaxed-beam, or predict with --decoder raw-beam")
    if settings.objective == "unnormalized-likelihood" and settings.log_partition_weight == 0:
        problem = "with 0, unnormalized-likelihood has nothing that holds the scores down"
        return _fault("log_partition_weight", problem, "use a weight greater than 0, such as 0.1")
    for name, objectives in ONLY_FOR.items():
        mixed = settings.direct_loss_weight > 0 and name != "direct_loss_weight"
        if getattr(settings, name) != getattr(Settings, name) and settings.objective not in objectives and not mixed:
            return _fault(name, f"{settings.objective} takes no notice of it", f"use one of {', '.join(objectives)}")
    if settings.cost == "edit-distance" and settings.wrong_label_costs:
        return _fault("cost", "edit-distance weighs all labels alike", "leave wrong-label-costs out")
    return _misfit_of_warm_start(settings) or _misfit_of_model(settings)


def _misfit_of_warm_start(settings: Settings) -> Fault | None:
    if settings.objective == "distillation":
        problem = "the teacher of distillation is what the warm start trains, a local model"
        if settings.warm_start in ("none", "distilled"):
            return _fault(
                "warm_start", problem, "use --warm-start cross-entropy, self-normalized or scheduled-sampling"
            )
        if settings.warm_start_epochs == 0:
            return _fault("warm_start_epochs", problem, "use --warm-start-epochs greater than 0")
    elif settings.warm_start == "distilled" and trained_score(settings) == "local" and settings.objective != "auto":
        problem = f"distilled prepares raw scores, and {settings.objective} is trained on local ones here"
        other = "--score global, or " if settings.objective in SEARCH_OBJECTIVES else ""
        return _fault("warm_start", problem, f"use {other}--warm-start cross-entropy")
    return None


def _misfit_of_model(settings: Settings) -> Fault | None:
    pretrained = names_pretrained(settings.model)
    if not pretrained and settings.model not in ARCHITECTURES:
        near = did_you_mean(settings.model, ARCHITECTURES)
        problem = f"must be one of {', '.join(ARCHITECTURES)}, a folder, or a name on the hub"
        return "model", InputError(f"model {problem}, got {settings.model!r}", mend=near)
    if settings.model == "chain" and settings.task != "tag":
        return _fault("model", "a chain has a label for each token of the source", "use --task tag, or --model lstm")
    if settings.objective == "crf" and settings.model != "chain":
        problem = f"crf needs scores that form a chain, which those of the model {settings.model} do not"
        return _fault("objective", problem, "use --model chain, or --objective beam-crf")
    transformer, writes = settings.model == "transformer", pretrained and settings.task == "transduce"
    if transformer and settings.task == "tag":
        return _fault("model", "a tagger is an LSTM", "use --model lstm, or --task transduce")
    if transformer and settings.hidden_size % settings.num_heads:
        problem = f"{settings.hidden_size} cannot be divided among {settings.num_heads} heads"
        return _fault("hidden_size", problem, f"use a multiple of {settings.num_heads}, or other --num-heads")
    sampled = "scheduled-sampling" in (settings.objective, settings.warm_start)
    if settings.feeding_passes == "two-pass" and not ((transformer or writes) and sampled):
        problem = "only scheduled sampling of a transformer can be fed in two passes"
        return _fault("feeding_passes", problem, "use --feeding-passes step-by-step, or --model transformer")
    return None


def _wrong_label_cost(settings: Settings) -> Fault | None:
    try:
        parse_label_costs(settings.wrong_label_costs)
    except InputError as error:
        return _fault("wrong_label_costs", error.problem, error.mend)
    return None


def _schedule_out_of_range(settings: Settings) -> Fault | None:
    for name in RANGES:
        try:
            schedule_in_range(name, getattr(settings, name), total_steps=1)
        except InputError as error:
            return name, error
    return None


def trained_score(settings: Settings) -> ScoreName:
    """Which scores the objective trains: raw ones count only where the whole output is normalised.

    Example:
        >>> trained_score(Settings(objective="crf")), trained_score(Settings(objective="cross-entropy"))
        ('global', 'local')
    """
    if settings.objective in GLOBAL_OBJECTIVES:
        return "global"
    return settings.score if settings.objective in SEARCH_OBJECTIVES else "local"
