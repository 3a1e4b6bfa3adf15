"""Checks of the arguments of :func:`~seqwise.training.fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from torch import nn

from seqwise.configuration.written import did_you_mean
from seqwise.data.batches import EncodedExample
from seqwise.errors import InputError
from seqwise.models.recurrent import ONE_LABEL_EACH
from seqwise.names import DecayName

DECAYS: dict[DecayName, str] = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
}
"""Names of decays, and of the schedulers of Transformers that they are."""


def check_arguments(**settings: Any) -> None:
    """Raise an InputError for a number that is out of range, or a decay that is unknown."""
    at_least = {
        "steps": 1,
        "save_every": 1,
        "measure_every": 1,
        "warmup_steps": 0,
        "seed": 0,
        "weight_decay": 0,
        "gradient_accumulation_steps": 1,
    }
    for name in (*at_least, "batch_size", "batch_tokens", "learning_rate", "clip"):
        value, is_real = settings[name], name in ("weight_decay", "learning_rate", "clip")
        if not isinstance(value, Real if is_real else Integral) and not (value is None and name.startswith("batch")):
            raise InputError(f"{name} must be a {'' if is_real else 'whole '}number, got {value!r}")
    for name, lowest in at_least.items():
        if not settings[name] >= lowest:
            raise InputError(f"{name} must be at least {lowest}, got {settings[name]}")
    if not settings["seed"] < 2**32:
        raise InputError(f"seed must be less than 2**32, got {settings['seed']}")
    for name in ("learning_rate", "clip"):
        if not settings[name] > 0:
            raise InputError(f"{name} must be greater than 0, got {settings[name]}")
    if settings["decay"] not in DECAYS:
        raise InputError(f"unknown decay {settings['decay']!r}", hint=did_you_mean(str(settings["decay"]), DECAYS))


def check_objective(objective: object) -> None:
    """Raise an InputError for anything but a function, such as the name or the settings of an objective."""
    if isinstance(objective, type) or not callable(objective):
        name = repr(objective) if isinstance(objective, str | type) else f"a {type(objective).__name__}"
        hint = "pass a function of model, batch and values, such as CrossEntropy().build()"
        raise InputError(f"objective: {name} is not a function", hint=hint)


def check_patience(patience: int | None, *, evaluates: bool) -> None:
    """Raise an InputError for a patience that is out of range, or without evaluations."""
    if patience is None:
        return
    if not evaluates:
        raise InputError("patience: there is no development metric", hint="give evaluate as well")
    if not isinstance(patience, Integral):
        raise InputError(f"patience must be an integer, got {patience!r}")
    if not patience >= 1:
        raise InputError(f"patience must be at least 1, got {patience}")


def check_targets(model: nn.Module, train: Sequence[EncodedExample], name_of: Callable[[int], str]) -> None:
    """Raise an InputError for targets that the model cannot produce, which a cost would silently count as wrong.

    Without an end token, the source determines the number of labels.
    """
    embedding_VD = getattr(model, "embedding_VD", None)
    num_labels = getattr(model, "most_steps", None) if getattr(model, "end", None) is None else None
    for index, example in enumerate(train):
        count, largest = len(example.target_ids), max(example.target_ids, default=0)
        if embedding_VD is not None and not 0 <= largest < len(embedding_VD):
            problem = f"{name_of(index)} has the target id {largest}, the model {len(embedding_VD)} targets"
            raise InputError(problem, hint="make the model with the size of the target vocabulary")
        expected = None if num_labels is None else num_labels(example.source_ids)
        if expected not in (None, count):
            raise InputError(f"{name_of(index)} has {count} labels for {expected} tokens", hint=ONE_LABEL_EACH)


def check_rates(model: nn.Module, rates: Mapping[str, float]) -> None:
    """Raise an InputError for a learning rate that is out of range, or of no part of the model."""
    for part, rate in rates.items():
        if not rate > 0:
            raise InputError(f"the learning rate of {part} must be greater than 0, got {rate}")
        if not any(name.startswith(part) for name, _ in model.named_parameters()):
            problem = f"no weights of the model have names that begin with {part!r}"
            raise InputError(problem, hint="name a module of the model")
