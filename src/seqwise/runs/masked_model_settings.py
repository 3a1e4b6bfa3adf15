"""Settings of ``seqwise masked-model train``, by the format of the data and by the model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.configuration.config import WrongValue
from seqwise.configuration.flat import build, changed, plain_values
from seqwise.configuration.written import Given, given_in_python, read_given
from seqwise.errors import InputError
from seqwise.names import TextUnits
from seqwise.runs.model_settings import require_default, require_heads_that_divide
from seqwise.runs.trainer_options import SIZED, WARMUP, TrainerOptions, read_saved

if TYPE_CHECKING:
    from torch import Tensor

Format = Literal["sequences", "fasta", "pairs"]
"""Formats of a file of sequences: one per line, FASTA, or source, tab, sequence."""

MASKINGS = {"uniform": "mask_uniformly", "one": "mask_one"}  # functions of seqwise.objectives.masked_likelihood
_UNITS = "units of a sequence: words, characters or subwords; FASTA: characters or subwords"
_MODEL = "transformer, or lstm (one LSTM in each direction; not for pairs)"
_FORMAT = "sequences (one per line), fasta, or pairs (source, tab, sequence) for a conditional model"


class MaskedModelConfig(Config):
    """Masked model with its sizes; a subclass has a ``name: Literal["..."]``."""

    class_name: ClassVar[str]
    """Class of the model in ``seqwise.models``."""

    name: str
    hidden_size: int = setting(128, "size of embeddings and layers; lstm: of each direction", ge=1)
    feedforward_size: int = setting(512, "hidden size of the feed-forward networks; lstm: of the head", ge=1)

    @property
    def model_class(self) -> Any:
        """Class of the model."""
        from seqwise import models

        return getattr(models, self.class_name)

    def build(self, **sizes: Any) -> Any:
        """Make a model with new weights; the sizes depend on the vocabularies."""
        options = {name: getattr(self, name) for name in type(self).model_fields if name != "name"}
        return self.model_class(**options, **sizes)


class _OfSequences(MaskedModelConfig):
    """Model without sources."""


class _OfPairs(MaskedModelConfig):
    """Model with sources."""


class _Transformer(MaskedModelConfig):
    name: Literal["transformer"] = "transformer"
    num_layers: int = setting(2, "layers; pairs: of each side", ge=1)
    num_heads: int = setting(4, "attention heads", ge=1)
    dropout: float = setting(0.1, "dropout rate", ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> Any:
        return require_heads_that_divide(self)


class MaskedTransformerConfig(_Transformer, _OfSequences):
    """A Transformer over the sequence."""

    class_name = "MaskedTransformer"


class MaskedLSTMConfig(_OfSequences):
    """Two LSTMs, one in each direction."""

    class_name = "MaskedLSTM"

    name: Literal["lstm"] = "lstm"
    embedding_size: int = setting(64, "size of embeddings", ge=1)


class ConditionalTransformerConfig(_Transformer, _OfPairs):
    """A Transformer over the source, and one over the sequence."""

    class_name = "ConditionalMaskedTransformer"


class _ExperimentOptions(Config):
    """Sequences, model and masks."""

    format: Format = setting(..., _FORMAT)
    units: TextUnits = setting("words", _UNITS)
    subword_vocabulary: int = setting(8000, "subwords: maximum size of the vocabulary of each side", ge=1)
    minimum_count: int | None = setting(
        None,
        "rarer tokens become the unknown token; with 1, unknown tokens are refused (except for subwords of a source);"
        " sequences of subwords always refuse unknown characters; by default 2, for characters 1",
        ge=1,
    )
    model: MaskedModelConfig = setting(..., _MODEL)
    masking: str = setting(
        "uniform",
        "masked tokens: uniform (between one and all), one, or the probability of each token",
        metavar="HOW",
    )
    init: Path | None = setting(
        None, "run to start from: its weights, vocabulary, model settings and masking", metavar="RUN"
    )
    epochs: float = setting(20.0, "maximum number of epochs", usual=SIZED, gt=0)
    learning_rate: float = setting(1e-3, "peak learning rate", gt=0)


class MaskedModelSettings(TrainerOptions, _ExperimentOptions):
    """Settings of ``seqwise masked-model train`` for one data format; see the help of each field.

    Make them from flat names with :func:`masked_settings`.

    Raises:
        InputError: a setting is out of range, or incompatible with another.

    Example:
        >>> masked_settings(format="pairs").conditional
        True
        >>> masked_settings(model="lstm", num_heads=8)
        Traceback (most recent call last):
        seqwise.errors.InputError: num_heads: has no effect here; leave it out, or use model transformer
    """

    tag = "format"
    conditional: ClassVar[bool] = False
    """Whether each sequence has a source."""

    warmup: float = setting(0.05, WARMUP, ge=0, lt=1)

    @property
    def units_of_sources(self) -> TextUnits:
        """Units of the sources of pairs."""
        return "words"

    @property
    def masks(self) -> Callable[[Tensor], Tensor]:
        """Return the function that chooses positions to mask, (N, T) int64 to (N, T) bool."""
        from seqwise.objectives import masked_likelihood

        if self.masking in MASKINGS:
            named: Callable[[Tensor], Tensor] = getattr(masked_likelihood, MASKINGS[self.masking])
            return named
        return functools.partial(masked_likelihood.mask_fraction, fraction=float(self.masking))

    def with_changes(self, **changes: Any) -> MaskedModelSettings:
        """Return a copy with some flat settings changed."""
        return changed(MASKED_SETTINGS, self, changes)

    @field_validator("masking")
    @classmethod
    def _is_masking(cls, masking: str) -> str:
        try:
            fraction = 1.0 if masking in MASKINGS else float(masking)
        except ValueError:
            fraction = math.nan
        if not 0 < fraction <= 1:
            problem = f"{{name}}: {masking!r} is neither {' nor '.join(MASKINGS)} nor a number between 0 and 1"
            raise WrongValue(problem, hint="0.15 masks 15%")
        return masking

    @model_validator(mode="after")
    def _vocabulary_options_have_effect(self) -> Any:
        if "subwords" not in (self.units, self.units_of_sources):
            require_default(self, "subword_vocabulary", hint="subwords as units")
        if self.units == "subwords" and not self.conditional:
            require_default(self, "minimum_count", hint="words or characters as units")
        return self


class _WithoutSources(MaskedModelSettings):
    model: Annotated[_OfSequences, OneOf(_OfSequences)] = setting("transformer", _MODEL)


class SequenceSettings(_WithoutSources):
    """Settings of a model of sequences, one per line."""

    format: Literal["sequences"] = setting("sequences", _FORMAT)


class FastaSettings(_WithoutSources):
    """Settings of a model of sequences in FASTA."""

    format: Literal["fasta"] = setting("fasta", _FORMAT)
    units: TextUnits = setting("characters", _UNITS)

    @field_validator("units")
    @classmethod
    def _no_words(cls, units: TextUnits) -> TextUnits:
        if units == "words":
            raise InputError("units: a FASTA sequence has no words", hint="use --units characters or subwords")
        return units


class PairSettings(MaskedModelSettings):
    """Settings of a conditional model, of sequences with sources."""

    conditional = True

    format: Literal["pairs"] = setting("pairs", _FORMAT)
    source_units: TextUnits = setting("words", "units of a source")
    max_length: int | None = setting(None, "maximum length of a sequence; by default that of the training data", ge=1)
    model: Annotated[_OfPairs, OneOf(_OfPairs)] = setting("transformer", _MODEL)

    @property
    def units_of_sources(self) -> TextUnits:
        return self.source_units


MASKED_SETTINGS = OneOf(MaskedModelSettings)
"""Settings of every format, for ``configure`` and ``flags_of``."""


def masked_settings(**flat: Any) -> MaskedModelSettings:
    """Make settings of a masked model from flat ones, named like the flags of ``seqwise masked-model train``.

    Raises:
        InputError: a setting cannot be used.
    """
    return _built(given_in_python(flat))


def load_masked_flags(flags: Mapping[str, str]) -> MaskedModelSettings:
    """Make settings from flags."""
    return _built(read_given(None, flags))


def _built(given: Given) -> MaskedModelSettings:
    if given.value("init") is not None:
        _take_from_init(given)
    if given.value("format") is None:
        given.put("format", "sequences")
    settings: MaskedModelSettings = build(MASKED_SETTINGS, given)
    return settings


_KEPT = ("format", "units", "source_units", "subword_vocabulary", "minimum_count", "max_length", "model")
"""Settings determined by the run ``init``."""


def _take_from_init(given: Given) -> None:
    """Take settings from the run ``init``."""
    folder = Path(str(given.value("init")))
    before = saved_masked_settings(folder)
    if before is None:
        problem = f"init: {folder} is not a run of seqwise masked-model train"
        raise given.error("init", problem, "give the --output of one")
    kept = {name: value for name, value in plain_values(before).items() if name in _KEPT}
    for name in (*kept, *kept["model"]):
        if name != "name" and given.value(name) is not None:
            raise given.error(name, f"{name}: the run in init determines it", "leave it out")
    for name, value in kept.items():
        given.put(name, value)
    if given.value("masking") is None:
        given.put("masking", before.masking)


def saved_masked_settings(folder: Path) -> MaskedModelSettings | None:
    """Read the settings of a run of ``seqwise masked-model train``; None if the folder holds none."""
    given = read_saved(folder, MASKED_SETTINGS)
    return None if given is None else build(MASKED_SETTINGS, given)
