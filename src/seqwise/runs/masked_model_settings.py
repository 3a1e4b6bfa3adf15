"""What a masked model is trained with: every setting, its range, and what reads it."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from seqwise.data.durable import write_atomically
from seqwise.errors import InputError
from seqwise.runs.settings import Units
from seqwise.training.configuration import setting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Format", "MaskedModelSettings", "load_masked_settings", "require_read", "save_masked_settings"]

Format = Literal["sequences", "fasta", "pairs"]
"""How a file holds sequences: one a line, FASTA, or source, tab, sequence."""

Architecture = Literal["transformer", "lstm"]
MASKINGS = {"uniform": "mask_uniformly", "one": "mask_one"}  # functions of seqwise.objectives.masked_likelihood


@dataclass(frozen=True)
class MaskedModelSettings:
    """Settings of ``seqwise masked-model train``; see each field's help.

    Raises:
        InputError: a setting is out of its range, does not go with another, or differs from its default though nothing
            would read it.

    Example:
        >>> MaskedModelSettings(format="pairs").conditional
        True
        >>> MaskedModelSettings(model="lstm", num_heads=8)
        Traceback (most recent call last):
        seqwise.errors.InputError: num_heads: nothing in this training reads it; leave it out, or use ...
    """

    format: Format = setting(
        "sequences", "sequences (one a line), fasta, or pairs (source, tab, sequence: a conditional model)"
    )
    units: Units = setting(
        "words", "what a sequence is made of: words, characters or subwords; in FASTA no words, but characters"
    )
    source_units: Units = setting("words", "pairs: the same for sources")
    subword_vocabulary: int = setting(8000, "subwords: how many to learn at most, for each side on its own")
    minimum_count: int | None = setting(
        None,
        "rarer tokens are the unknown symbol (not subwords); at 1 there is none, and unknown tokens are refused later; "
        "by default 2, for characters 1",
    )
    model: Architecture = setting("transformer", "lstm is two of them, not of pairs")
    hidden_size: int = setting(128, "of embeddings and layers; of each LSTM")
    num_layers: int = setting(2, "transformer; pairs: for each side")
    num_heads: int = setting(4, "transformer: of each attention")
    feedforward_size: int = setting(512, "hidden size of the feed-forward networks; of the head of an LSTM")
    embedding_size: int = setting(64, "lstm: size of embeddings")
    dropout: float = setting(0.1, "transformer: dropout rate")
    max_length: int | None = setting(
        None, "pairs: the longest sequence that has a probability; by default that of the training data"
    )
    masking: str = setting(
        "uniform",
        "uniform (between one and all tokens), one, or a number: the probability of each token",
        metavar="HOW",
    )
    epochs: float = setting(20.0, "how often each sequence is seen")
    batch_size: int = setting(64, "sequences of a step")
    learning_rate: float = setting(1e-3, "the highest; it falls linearly to 0")
    warmup: float = setting(0.05, "the part of the steps in which it rises to that")
    seed: int = setting(0, "of weights, batches, masks and dropout")
    save_every: int = setting(500, "steps between checkpoints")

    def __post_init__(self) -> None:
        _require_choices(self)
        _require_ranges(self)
        _ = self.masks  # which checks the masking
        if self.format == "fasta" and self.units == "words":
            raise InputError("units: a FASTA sequence has no words", mend="use --units characters or subwords")
        if self.conditional and self.model != "transformer":
            mend = "use --model transformer, or another --format"
            raise InputError("model: a masked model that reads a source is a Transformer", mend=mend)
        if self.model == "transformer" and self.hidden_size % self.num_heads:
            problem = f"hidden_size: {self.hidden_size} cannot be divided among {self.num_heads} heads"
            raise InputError(problem, mend=f"use a multiple of {self.num_heads}, or other --num-heads")
        require_read(self, [field.name for field in fields(self) if getattr(self, field.name) != field.default])

    @property
    def conditional(self) -> bool:
        """Whether each sequence has a source."""
        return self.format == "pairs"

    @property
    def masks(self) -> Callable[[Tensor], Tensor]:
        """What chooses the positions to mask in training, (N, T) int64 to (N, T) bool."""
        from seqwise.objectives import masked_likelihood

        if self.masking in MASKINGS:
            named: Callable[[Tensor], Tensor] = getattr(masked_likelihood, MASKINGS[self.masking])
            return named
        try:
            fraction = float(self.masking)
        except ValueError:
            fraction = math.nan
        if not 0 < fraction <= 1:
            problem = f"masking: {self.masking!r} is neither {' nor '.join(MASKINGS)} nor a number between 0 and 1"
            raise InputError(problem, mend="0.15 masks 15%")
        return functools.partial(masked_likelihood.mask_fraction, fraction=fraction)


Effect = tuple[Callable[[MaskedModelSettings], bool], str]
"""Whether a training reads a setting, and what it takes for that."""

_PAIRS: Effect = (lambda settings: settings.conditional, "--format pairs")
_TRANSFORMER: Effect = (lambda settings: settings.model == "transformer", "--model transformer")
_EFFECTS: dict[str, Effect] = {
    "source_units": _PAIRS,
    "max_length": _PAIRS,
    "num_layers": _TRANSFORMER,
    "num_heads": _TRANSFORMER,
    "dropout": _TRANSFORMER,
    "embedding_size": (lambda settings: settings.model == "lstm", "--model lstm"),
    "subword_vocabulary": (
        lambda settings: "subwords" in (settings.units, settings.source_units),
        "subwords as units",
    ),
    "minimum_count": (
        lambda settings: settings.conditional or settings.units != "subwords",
        "words or characters as units",
    ),
}
"""Settings that not every training reads."""


def require_read(settings: MaskedModelSettings, names: Collection[str]) -> None:
    """Refuse a setting that was given though nothing would read it.

    Args:
        settings: all of them.
        names: those that were given, with their default value perhaps.

    Raises:
        InputError: names the setting and what it would take.

    Example:
        >>> require_read(MaskedModelSettings(), ["dropout", "units"])
    """
    for name, (is_read, what_it_takes) in _EFFECTS.items():
        if name in names and not is_read(settings):
            mend = f"leave it out, or use {what_it_takes}"
            raise InputError(f"{name}: nothing in this training reads it", mend=mend)


def load_masked_settings(path: Path) -> MaskedModelSettings:
    """Read the settings of a run.

    Raises:
        InputError: the file cannot be read, or does not hold the settings of a masked model.

    Example:
        >>> file = getfixture("tmp_path") / "settings.json"
        >>> _ = file.write_text('{"alpha": 1.0}')
        >>> load_masked_settings(file)
        Traceback (most recent call last):
        seqwise.errors.InputError: ...settings.json: these are not the settings of a masked model; ...
    """
    from seqwise.data.records import read_record

    problem, mend = "these are not the settings of a masked model", "give the --output of a seqwise masked-model train"
    names = [field.name for field in fields(MaskedModelSettings)]
    try:
        record = read_record(path, names, what="settings of a masked model", mend=mend)
        return MaskedModelSettings(**record)
    except (InputError, TypeError):  # the latter where a text stands for a number
        raise InputError(problem, path=path, mend=mend) from None


def save_masked_settings(settings: MaskedModelSettings, path: Path) -> None:
    """Write the settings of a run."""
    write_atomically(path, json.dumps(asdict(settings), indent=1, sort_keys=True) + "\n")


def _require_choices(settings: MaskedModelSettings) -> None:
    for name, choices in (("format", Format), ("units", Units), ("source_units", Units), ("model", Architecture)):
        value, known = getattr(settings, name), get_args(choices)
        if value not in known:
            raise InputError(f"{name}: there is no {value!r}", mend=f"choose from {', '.join(known)}")


def _require_ranges(settings: MaskedModelSettings) -> None:
    whole = ("subword_vocabulary", "minimum_count", "hidden_size", "num_layers", "num_heads", "feedforward_size")
    for name in (*whole, "embedding_size", "max_length", "batch_size", "save_every"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    for name in ("epochs", "learning_rate"):
        if not 0 < getattr(settings, name) < math.inf:
            raise InputError(f"{name} must be finite and greater than 0, got {getattr(settings, name)}")
    for name in ("dropout", "warmup"):
        if not 0 <= getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 0 and less than 1, got {getattr(settings, name)}")
    if not 0 <= settings.seed < 2**32:
        raise InputError(f"seed must be at least 0 and less than 2**32, got {settings.seed}")
