"""How long to train, in batches of which size, at which rates and evaluated how often, where no setting says so."""

from __future__ import annotations

from typing import Any

from seqwise.runs.settings import Settings

__all__ = ["evaluated_examples", "sized", "sized_like"]

_SIZES = ("batch_size", "epochs", "learning_rate", "evaluate_every", "patience")


def sized(settings: Settings, num_examples: int) -> Settings:
    """Choose the settings that depend on the amount of training data, unless they were given.

    Small data are seen often, in small batches: a model learns little in a few hundred steps, however large its
    batches. With development data the epochs are the most there may be, since training stops at its best.

    Args:
        settings: those that were given stay as they are.
        num_examples: of the training data.

    Returns:
        Settings with ``batch_size``, ``learning_rate``, ``epochs``, those of the warm start, ``evaluate_every`` and
        ``patience``.

    Example:
        >>> from seqwise.runs.settings import train_settings
        >>> small, large = (sized(train_settings(dev="dev.tsv"), count) for count in (1_500, 100_000))
        >>> small.batch_size, small.learning_rate, small.epochs, small.evaluate_every
        (16, 0.005, 25.0, 100)
        >>> large.batch_size, large.learning_rate, large.epochs, large.evaluate_every
        (64, 0.003, 6.0, 1000)
    """
    given = settings.model_fields_set
    batch_size = settings.batch_size
    if "batch_size" not in given:
        batch_size = 16 if num_examples < 8_000 else 32 if num_examples < 30_000 else 64
    steps_an_epoch = -(-num_examples // batch_size)
    pretrained = settings.model.pretrained
    fewest, most = (3, 10) if pretrained else (6, 25)
    epochs = float(round(min(max(8_000 / steps_an_epoch, fewest), most)))
    first_rate = settings.warm_start_learning_rate if pretrained else _rate(settings, batch_size)
    goes_on = settings.warm_start is not None
    choices: dict[str, Any] = {
        "batch_size": batch_size,
        "epochs": max(1.0, epochs / 2) if goes_on else epochs,
        "learning_rate": settings.learning_rate if pretrained else first_rate * (0.4 if goes_on else 1.0),
        "evaluate_every": 0 if settings.dev is None else min(max(steps_an_epoch, 100), 1_000),
    }
    start = settings.warm_start
    if start is not None:
        of_start = {"epochs": epochs, "learning_rate": first_rate}
        changes = {name: value for name, value in of_start.items() if name not in start.model_fields_set}
        choices["warm_start"] = start.model_copy(update=changes)
    changes = {name: value for name, value in choices.items() if name == "warm_start" or name not in given}
    chosen = settings.model_copy(update=changes)
    return chosen if chosen.evaluate_every else chosen.model_copy(update={"patience": None})


def sized_like(settings: Settings, other: Settings) -> Settings:
    """Take over from other settings what :func:`sized` would choose, unless it was given.

    Example:
        >>> from seqwise.runs.settings import train_settings
        >>> sized_like(train_settings(epochs=3.0), sized(train_settings(), 100)).batch_size
        16
    """
    changes: dict[str, Any] = {name: getattr(other, name) for name in _SIZES if name not in settings.model_fields_set}
    start, other_start = settings.warm_start, other.warm_start
    if start is not None and other_start is not None:
        names = {"epochs", "learning_rate"} - start.model_fields_set
        changes["warm_start"] = start.model_copy(update={name: getattr(other_start, name) for name in names})
    return settings.model_copy(update=changes)


def _rate(settings: Settings, batch_size: int) -> float:
    """The highest learning rate of new weights: an LSTM takes a higher one than a Transformer."""
    if settings.model.parallel:
        return 1e-3
    return 5e-3 if batch_size <= 32 else 3e-3


def evaluated_examples(settings: Settings) -> int:
    """How many development examples an evaluation decodes at most: a quarter of those trained on since the last one.

    Example:
        >>> from seqwise.runs.settings import train_settings
        >>> [evaluated_examples(train_settings(evaluate_every=steps, batch_size=16)) for steps in (1, 100, 1000)]
        [100, 400, 500]
    """
    return min(max(settings.evaluate_every * settings.batch_size // 4, 100), 500)
