"""What a training run is made from: every setting with its default and one line of help.

The command line's flags and the keys of a YAML file are these fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from seqwise.errors import InputError
from seqwise.objectives import (
    Objective,
    beam_crf_objective,
    beam_search_optimization_objective,
    cross_entropy_objective,
    dense_beam_objective,
    early_update_objective,
    hard_beam_hinge_objective,
    hinge_objective,
    minimum_risk_objective,
    relaxed_beam_objective,
    scheduled_sampling_objective,
    self_normalized_objective,
    soft_dense_beam_objective,
)
from seqwise.search.candidates import Score, global_, local
from seqwise.training.configuration import load_configuration
from seqwise.training.schedules import Schedule, parse_schedule

__all__ = [
    "SEARCH_OBJECTIVES",
    "Settings",
    "build_objective",
    "build_schedules",
    "check",
    "load_settings",
    "score_by_name",
    "warm_start_settings",
]

Task = Literal["tag", "transduce"]
ObjectiveName = Literal[
    "cross-entropy",
    "self-normalized",
    "scheduled-sampling",
    "relaxed-beam",
    "hinge",
    "hard-hinge",
    "beam-crf",
    "dense-beam",
    "soft-dense-beam",
    "early-update",
    "beam-search-optimization",
    "minimum-risk",
]
ScoreName = Literal["local", "global"]
Feeding = Literal["greedy", "sample", "soft-greedy", "soft-sample"]
WarmStart = Literal["none", "cross-entropy", "self-normalized"]
Direction = Literal["left-to-right", "bidirectional"]
Units = Literal["words", "characters"]


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """Settings of ``seqwise train``; see each field's help."""

    task: Task = _setting("tag", "tag: one label per source token; transduce: an output of its own length")
    train: Path = _setting(Path(), "training data: CoNLL columns (tag) or two-column TSV (transduce), plain or gzipped")
    dev: Path | None = _setting(None, "development data, for choosing how to decode")
    token_column: int = _setting(0, "tag: the column of the tokens, from 0")
    label_column: int = _setting(-1, "tag: the column of the labels, from 0; -1 is the last")
    source_units: Units = _setting("words", "transduce: what a source is made of")
    target_units: Units = _setting("words", "transduce: what a target is made of")
    minimum_count: int | None = _setting(
        None,
        "source tokens seen less often are trained as the unknown token; 1 refuses unknown tokens; "
        "by default 2 for words, 1 for characters",
    )
    encoder: Direction = _setting("bidirectional", "tag: left-to-right sees only the source so far")
    embedding_size: int = _setting(64, "size of source (and output) embeddings")
    label_embedding_size: int = _setting(16, "tag: size of label embeddings")
    hidden_size: int = _setting(96, "size of each LSTM direction")
    dropout: float = _setting(0.1, "dropout rate")
    objective: ObjectiveName = _setting("relaxed-beam", "what training minimises")
    score: ScoreName = _setting("local", "search-aware objectives: local (log-softmax) or global (raw) scores")
    beam_size: int = _setting(5, "slots of the beam, in training and decoding; fewer where there are fewer candidates")
    alpha: str = _setting(
        "exponential(1, 8)", "inverse temperature of relaxations: a number, linear(a, b) or exponential(a, b)"
    )
    feeding: Feeding = _setting("greedy", "scheduled-sampling: what is fed in place of gold")
    gold_probability: str = _setting(
        "linear(1, 0)",
        "scheduled-sampling: probability of feeding gold: a number, linear(a, b), inverse_sigmoid(k) ...",
    )
    log_partition_weight: float = _setting(0.1, "self-normalized: weight of (log Z)^2")
    log_partition_fraction: float = _setting(1.0, "self-normalized: the part of the positions that is penalised")
    cross_entropy_weight: float = _setting(0.1, "search-aware objectives: weight of added cross-entropy")
    warm_start: WarmStart = _setting("cross-entropy", "search-aware objectives: what is trained first")
    warm_start_epochs: float = _setting(5.0, "epochs of the warm start")
    warm_start_learning_rate: float = _setting(2e-3, "its highest learning rate")
    epochs: float = _setting(5.0, "epochs of the objective itself")
    learning_rate: float = _setting(1e-3, "highest learning rate; decays linearly to 0")
    batch_size: int = _setting(64, "examples in a batch")
    clip: float = _setting(1.0, "longest gradient")
    seed: int = _setting(0, "seed of initial weights, batches and noise")
    save_every: int = _setting(200, "steps between checkpoints")


_AT_LEAST_ONE = (
    "beam_size",
    "batch_size",
    "save_every",
    "embedding_size",
    "label_embedding_size",
    "hidden_size",
    "minimum_count",
)
_POSITIVE = ("epochs", "learning_rate", "warm_start_learning_rate", "clip")
_NOT_NEGATIVE = ("log_partition_weight", "cross_entropy_weight", "warm_start_epochs")


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
    found = _first_fault(settings)
    if found is None:
        return settings
    name, error = found
    line = None if path is None or name in flags else _line_of(path, name)
    raise error if line is None else InputError(error.problem, path=path, line=line, mend=error.mend)


def _line_of(path: Path, name: str) -> int | None:
    """Where a key stands in a YAML file that has been read before."""
    root = yaml.compose(path.read_text("utf-8-sig"), Loader=yaml.SafeLoader)
    # What comes through a pipe can be read only once.
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    return next((key.start_mark.line + 1 for key, _ in entries if key.value == name), None)


def _first_fault(settings: Settings) -> tuple[str, InputError] | None:
    """The first setting that is out of its range, with what is wrong."""
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
    if settings.score == "global" and settings.objective not in SEARCH_OBJECTIVES:
        problem = f"score: {settings.objective} is trained on local scores, whatever the score"
        return "score", InputError(problem, mend="use --objective relaxed-beam, or predict with --decoder raw-beam")
    for name, lowest, highest, wanted in (
        # What is smaller than this is 0 in the models' float32.
        ("alpha", 1e-30, math.inf, "greater than 0"),
        ("gold_probability", 0.0, 1.0, "between 0 and 1"),
    ):
        try:
            schedule = parse_schedule(getattr(settings, name), total_steps=1)
        except InputError as error:
            return name, InputError(f"{name}: {error.problem}", mend=error.mend)
        # Every schedule goes one way, so its two ends are its extremes.
        for value in (schedule(0), schedule(math.inf)):
            if not lowest <= value <= highest:
                problem = f"{name} must stay {wanted}, but {getattr(settings, name)!r} reaches {value:g}"
                return name, InputError(problem)
    return None


SEARCH_OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "relaxed-beam": relaxed_beam_objective,
    "hinge": hinge_objective,
    "hard-hinge": hard_beam_hinge_objective,
    "beam-crf": beam_crf_objective,
    "dense-beam": dense_beam_objective,
    "soft-dense-beam": soft_dense_beam_objective,
    "early-update": early_update_objective,
    "beam-search-optimization": beam_search_optimization_objective,
    "minimum-risk": minimum_risk_objective,
}
"""Objectives that see the beam, and so the score it is searched with; all but cross-entropy and its variants."""


def score_by_name(name: ScoreName) -> Score:
    """``local`` or ``global_``."""
    return {"local": local, "global": global_}[name]


def build_objective(settings: Settings) -> Objective:
    """The objective that the settings name."""
    if settings.objective == "cross-entropy":
        return cross_entropy_objective()
    if settings.objective == "self-normalized":
        return self_normalized_objective(weight=settings.log_partition_weight, fraction=settings.log_partition_fraction)
    if settings.objective == "scheduled-sampling":
        return scheduled_sampling_objective(settings.feeding)
    return SEARCH_OBJECTIVES[settings.objective](
        k=settings.beam_size,
        score=score_by_name(settings.score),
        cross_entropy_weight=settings.cross_entropy_weight,
    )


def build_schedules(settings: Settings, *, total_steps: int) -> dict[str, Schedule]:
    """The schedules that objectives ask for by name."""
    return {
        name: parse_schedule(getattr(settings, name), total_steps=total_steps) for name in ("alpha", "gold_probability")
    }


def warm_start_settings(settings: Settings) -> Settings | None:
    """The settings of the training that goes before, or None where the objective starts from scratch."""
    from_scratch = settings.objective in ("cross-entropy", "self-normalized")
    if from_scratch or settings.warm_start == "none" or settings.warm_start_epochs == 0:
        return None
    return replace(
        settings,
        objective=settings.warm_start,
        epochs=settings.warm_start_epochs,
        learning_rate=settings.warm_start_learning_rate,
    )
