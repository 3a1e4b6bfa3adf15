"""Which settings a training reads, so that none that was given is passed over in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from seqwise.errors import InputError
from seqwise.names import SEARCH_OBJECTIVES
from seqwise.runs.settings import Settings, adopt, line_of, names_pretrained, over_encoder
from seqwise.runs.stages import resolve, stages

__all__ = ["require_effect", "unread_settings"]

Effect = tuple[Callable[[Settings], bool], str]
"""Whether a training of these settings reads one of them, and what it takes for that."""


def _trains(*objectives: str) -> Effect:
    """Read by some objectives, in whatever stage."""
    return (
        lambda settings: any(stage.settings.objective in objectives for stage in stages(resolve(settings))),
        f"an objective or a warm start of {', '.join(objectives)}",
    )


def _has(**values: str) -> Effect:
    """Read where other settings have these values."""
    return (
        lambda settings: all(getattr(settings, name) == value for name, value in values.items()),
        " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items()),
    )


_TAG, _TRANSDUCE, _TRANSFORMER = _has(task="tag"), _has(task="transduce"), _has(model="transformer")
_SUBWORDS: Effect = (
    lambda settings: (
        settings.task == "transduce"
        and "subwords" in (settings.source_units, settings.target_units)
        and not names_pretrained(settings.model)
    ),
    "subwords on either side of --task transduce",
)
_PENALTY = _trains("self-normalized", "sampled-self-normalized", "unnormalized-likelihood")
_SAMPLING = _trains("scheduled-sampling")
_SEARCH: Effect = (lambda settings: resolve(settings).objective in SEARCH_OBJECTIVES, "a search-aware objective")
_WARM_START: Effect = (
    lambda settings: len(stages(resolve(settings))) > 1,
    "an objective with a warm start (scheduled-sampling, crf, distillation or a search-aware one), not of 0 epochs",
)

_EFFECTS: dict[str, Effect] = {
    "token_column": _TAG,
    "label_column": _TAG,
    "encoder": _TAG,
    "source_units": _TRANSDUCE,
    "target_units": _TRANSDUCE,
    "subword_vocabulary": _SUBWORDS,
    "num_layers": _TRANSFORMER,
    "num_heads": _TRANSFORMER,
    "feedforward_size": _TRANSFORMER,
    "feeding": _SAMPLING,
    "gold_probability": _SAMPLING,
    "log_partition_weight": _PENALTY,
    "log_partition_fraction": _PENALTY,
    "decoder_learning_rate": (over_encoder, "--task tag with an encoder of transformers"),
    "noise_tokens": _trains("noise-contrastive"),
    "cross_entropy_weight": _SEARCH,
    "warm_start": _WARM_START,
    "measurements": (lambda settings: settings.dev is not None, "--dev FILE"),
}
"""Settings that not every training reads; the others are always read, or refused by ``check`` where they are not.

Except for sizes of embeddings that a model may lack, and for the length and learning rate of a warm start that there
may not be: one file of them serves to compare several models and objectives.
"""

_OF_NEW_MODELS = ("minimum_count", "embedding_size", "encoder")
"""Settings that a model of transformers brings along."""

_OF_NEW_DECODERS = ("hidden_size", "dropout", "label_embedding_size")
"""Settings that it brings along as well, but for a tagger over an encoder, whose decoder is new."""

_NOTHING = {"warm_start": "none", "cross_entropy_weight": 0.0, "log_partition_weight": 0.0, "measurements": 0}
"""Values that ask for no more than what a training does that does not read them."""


def require_effect(settings: Settings, *, path: Path | None = None, flags: Mapping[str, str] | None = None) -> None:
    """Refuse a setting that was changed from its default and that this training would never read.

    Args:
        settings: as they were given, each in its range.
        path: the YAML file that they come from, or None.
        flags: those that came from flags.

    Raises:
        InputError: names the setting, its line where it comes from the file, and what it would take.

    Example:
        >>> require_effect(Settings(objective="noise-contrastive", noise_tokens=3))
        >>> require_effect(Settings(objective="crf", model="chain", noise_tokens=3))
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: noise_tokens: nothing in this training reads it; leave noise-tokens out, or use ...
    """
    settings = adopt(settings)
    for name, what_it_takes in unread_settings(settings).items():
        if getattr(settings, name) in (getattr(Settings, name), _NOTHING.get(name)):
            continue
        line = None if path is None or name in (flags or {}) else line_of(path, name)
        mend = f"leave {name.replace('_', '-')} out, or use {what_it_takes}"
        raise InputError(
            f"{name}: nothing in this training reads it", path=None if line is None else path, line=line, mend=mend
        )


def unread_settings(settings: Settings) -> dict[str, str]:
    """The settings that a training never reads, whatever their values, and what it would take.

    Args:
        settings: as :func:`~seqwise.runs.settings.adopt` leaves them.

    Example:
        >>> unread_settings(Settings(objective="cross-entropy"))["noise_tokens"]
        'an objective or a warm start of noise-contrastive'
    """
    effects = dict(_EFFECTS)
    if names_pretrained(settings.model):
        brought = _OF_NEW_MODELS if over_encoder(settings) else _OF_NEW_MODELS + _OF_NEW_DECODERS
        effects |= {name: (lambda _: False, "a model that is made here") for name in brought}
    return {name: what_it_takes for name, (is_read, what_it_takes) in effects.items() if not is_read(settings)}
