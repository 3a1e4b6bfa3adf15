"""Defaults that depend on the data: epochs, batch size, learning rate, evaluations and characters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from seqwise.data.readers import Example
from seqwise.data.summary import estimated_unseen_share
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.model_settings import MANY_UNSEEN, NewTagger
from seqwise.runs.settings import RATE_OF_PRETRAINED, Settings
from seqwise.runs.trainer_options import AnyOptions, TrainerOptions

SMALL_BATCH = 16
"""Batch size for small data."""

ENOUGH_STEPS = 1_500
"""Number of steps for small data if development data can stop training earlier."""
MOST_EPOCHS = 60

EPOCHS_OF_NEW, EPOCHS_OF_PRETRAINED = (6.0, 25.0), (3.0, 10.0)
"""Minimum and maximum number of epochs, for new and for pretrained weights."""

_SIZES = ("batch_size", "epochs", "learning_rate", "evaluate_every", "patience")


@dataclass(frozen=True)
class Sizes:
    """Settings for a given amount of training data; ``evaluate_every`` is in steps."""

    batch_size: int
    epochs: float
    evaluate_every: int


def sizes_for(
    num_examples: int,
    *,
    batch_size: int | None = None,
    epochs: tuple[float, float] = EPOCHS_OF_NEW,
    enough_steps: int = 0,
) -> Sizes:
    """Return sizes for a number of training examples.

    Small data get more epochs in smaller batches, because a few hundred steps teach little, however large the batches.

    Args:
        num_examples: number of training examples.
        batch_size: replaces the batch size for data of this size.
        epochs: minimum and maximum number of epochs.
        enough_steps: number of steps for which very small data may exceed this maximum, up to ``MOST_EPOCHS``.

    Example:
        >>> sizes_for(1_500)
        Sizes(batch_size=16, epochs=25.0, evaluate_every=100)
        >>> sizes_for(100_000)
        Sizes(batch_size=64, epochs=6.0, evaluate_every=1000)
    """
    batch_size = batch_size or (SMALL_BATCH if num_examples < 8_000 else 32 if num_examples < 30_000 else 64)
    steps_per_epoch = -(-num_examples // batch_size)
    fewest, most = epochs
    most = max(most, min(enough_steps / steps_per_epoch, MOST_EPOCHS))
    chosen = float(round(min(max(8_000 / steps_per_epoch, fewest), most)))
    return Sizes(batch_size, chosen, min(max(steps_per_epoch, 100), 1_000))


def sized(settings: Settings, examples: Sequence[Example]) -> Settings:
    """Choose the settings that depend on the training data, unless given.

    A stage that starts from trained weights gets half of the epochs and two fifths of the learning rate. A new tagger
    also reads characters if at least ``MANY_UNSEEN`` of the words of new text will be unknown.
    """
    start, pretrained = settings.warm_start, settings.model.pretrained
    sizes = sizes_for(
        len(examples),
        batch_size=_given_batch_size(settings),
        epochs=EPOCHS_OF_PRETRAINED if pretrained else EPOCHS_OF_NEW,
        enough_steps=ENOUGH_STEPS if _stops_early(settings) and not pretrained else 0,
    )
    first_rate = RATE_OF_PRETRAINED if pretrained else _rate(settings, sizes.batch_size)
    is_warm = (start is not None and start.epochs > 0) or settings.init is not None
    if start is not None:
        of_start = {"epochs": sizes.epochs, "learning_rate": first_rate}
        changes = {name: value for name, value in of_start.items() if name not in start.model_fields_set}
        settings = settings.model_copy(update={"warm_start": start.model_copy(update=changes)})
    if (
        _may_add_characters(settings.model)
        and settings.init is None
        and settings.model.minimum_count != 1  # with 1, unknown words are refused
        and estimated_unseen_share(examples) >= MANY_UNSEEN
    ):
        settings = settings.model_copy(update={"model": settings.model.model_copy(update={"characters": True})})
    return _with_choices(
        settings,
        batch_size=None if settings.batch_tokens else sizes.batch_size,
        epochs=sizes.epochs / 2 if is_warm else sizes.epochs,
        learning_rate=first_rate * (0.4 if is_warm and not pretrained else 1.0),
        evaluate_every=0 if settings.dev is None else sizes.evaluate_every,
    )


def _stops_early(settings: Settings) -> bool:
    """Whether development data can end stages early."""
    evaluated = "evaluate_every" not in settings.model_fields_set or settings.evaluate_every > 0
    return evaluated and settings.dev is not None and settings.patience is not None


def _may_add_characters(model: object) -> TypeGuard[NewTagger]:
    """Whether this is a new tagger whose settings do not say whether it reads characters."""
    return isinstance(model, NewTagger) and "characters" not in model.model_fields_set


def sized_masked(settings: MaskedModelSettings, num_examples: int, *, evaluated: bool) -> MaskedModelSettings:
    """Choose the same settings for a masked model."""
    sizes = sizes_for(num_examples, batch_size=_given_batch_size(settings))
    return _with_choices(
        settings,
        batch_size=None if settings.batch_tokens else sizes.batch_size,
        epochs=sizes.epochs if settings.init is None else sizes.epochs / 2,
        learning_rate=settings.learning_rate * (1.0 if settings.init is None else 0.4),
        evaluate_every=sizes.evaluate_every if evaluated else 0,
    )


def _with_choices(settings: AnyOptions, **choices: Any) -> AnyOptions:
    """Set values that were not given; without evaluations, there is no patience."""
    given = settings.model_fields_set
    chosen = settings.model_copy(update={name: value for name, value in choices.items() if name not in given})
    return chosen if chosen.evaluate_every else chosen.model_copy(update={"patience": None})


def sized_like(settings: AnyOptions, other: TrainerOptions) -> AnyOptions:
    """Take the values that sizing would choose from other settings, unless given."""
    changes: dict[str, Any] = {name: getattr(other, name) for name in _SIZES if name not in settings.model_fields_set}
    start, other_start = (getattr(each, "warm_start", None) for each in (settings, other))
    if start is not None and other_start is not None:
        names = {"epochs", "learning_rate"} - start.model_fields_set
        changes["warm_start"] = start.model_copy(update={name: getattr(other_start, name) for name in names})
    model, other_model = settings.model, other.model
    if _may_add_characters(model) and isinstance(other_model, NewTagger):
        changes["model"] = model.model_copy(update={"characters": other_model.characters})
    return settings.model_copy(update=changes)


def _given_batch_size(settings: TrainerOptions) -> int | None:
    return settings.batch_size if "batch_size" in settings.model_fields_set else None


def _rate(settings: Settings, batch_size: int) -> float:
    """Return the peak learning rate of new weights: highest for small-batch LSTM taggers, lowest for Transformers."""
    if settings.model.parallel:
        return 1e-3
    if batch_size > 32:
        return 3e-3
    return 5e-3 if settings.task == "tag" else 2e-3


def evaluated_examples(settings: TrainerOptions) -> int:
    """Return the number of examples per evaluation: a quarter of the training examples between two, 100 to 500."""
    return min(max(settings.evaluate_every * (settings.batch_size or SMALL_BATCH) // 4, 100), 500)


def sample_evenly(examples: Sequence[Example], most: int, *, key: Callable[[Example], Hashable]) -> list[Example]:
    """Choose a limited number of evenly spread keys, and all their examples.

    Example:
        >>> examples = [Example((letter,), ()) for letter in "abcdefaa"]
        >>> ["".join(example.source) for example in sample_evenly(examples, 3, key=lambda example: example.source)]
        ['a', 'c', 'e', 'a', 'a']
    """
    keys = list(dict.fromkeys(map(key, examples)))
    count = min(most, len(keys))
    chosen = {keys[place * len(keys) // count] for place in range(count)}
    return [example for example in examples if key(example) in chosen]
