"""Codecs, which convert between the examples of a run and the ids of its model. Kinds of runs differ only in codecs.

=================== ============================================================ ===========================
kind                text                                                         class
=================== ============================================================ ===========================
``tokenizers``      words, characters or subwords on both sides                  ``TokenizerCodec``
``spelling``        words with their characters, and labels                      ``SpellingCodec``
``text``            raw text, by the tokenizer of a Hugging Face model           ``GeneratorCodec``
``word-pieces``     words, in pieces of a Hugging Face encoder, and labels       ``TaggerCodec``
``masked``          sequences of a masked model, with sources or without         ``MaskedCodec``
``masked-text``     raw text, by the tokenizer of a Hugging Face masked model    ``MaskedTextCodec``
=================== ============================================================ ===========================

The first four are for predicting outputs (``OutputCodec``), the others for scoring and sampling sequences
(``SequenceCodec``). Those of Hugging Face models are in ``hugging_face_codecs``.

Shapes: V vocabulary.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from seqwise.data.batches import FREE, EncodedExample, encode_examples
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example, FilePath, require_some, split_text
from seqwise.data.records import read_record
from seqwise.data.spooled import spooled
from seqwise.data.subwords import BLANK, normalize_text
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.models.characters import spelt_source
from seqwise.names import TextUnits
from seqwise.runs.inputs import each_sequence, file_units
from seqwise.runs.masked_model_settings import Format

if TYPE_CHECKING:
    from seqwise.sampling.problems import Tokenizations
    from seqwise.search.selectors import Selector

Purpose = Literal["predict", "score"]
"""Purpose of a run: to predict outputs, or to score and sample sequences."""

LENGTHS = "lengths.json"


class Codec(ABC):
    """Codec between examples and ids, which can be saved. ``kind`` is its name in ``codec.json``."""

    kind: ClassVar[str]
    purpose: ClassVar[Purpose]

    @property
    @abstractmethod
    def identity(self) -> str:
        """Return a fingerprint of the tokenizers."""

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode sources and targets; raise an InputError with file and line for unreadable ones."""

    @abstractmethod
    def save(self, model: Any, folder: Path) -> None:
        """Write the model and the tokenizers."""

    def split(self, examples: Sequence[Example]) -> list[Example]:
        """Split raw texts into tokens, on both sides."""
        return list(examples)

    def source_text(self, example: Example) -> str:
        """Return the source as written."""
        return " ".join(example.source)


class OutputCodec(Codec):
    """Codec of a tagger, transducer or language model; by default, tokens are words.

    Attributes:
        source_vocabulary: the tokens with embeddings, including the unknown token.
        target_vocabulary: the tokens that the model scores.
        writes_text: whether a target is a single token, its raw text.
        target_things: plural noun for ``units_of_target``, for messages.
    """

    purpose: ClassVar[Purpose] = "predict"
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    writes_text: bool = False
    target_things: str = "labels"

    @cached_property
    def writable(self) -> set[str]:
        """Return the ``units_of_target`` that the model can produce."""
        return set(self.target_vocabulary.tokens) - {self.target_vocabulary.unknown}

    def units_of_target(self, example: Example) -> Sequence[str]:
        """Return a target in units that the model can either produce or not: labels, tokens or characters."""
        return example.target

    def encode_sources(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode the sources and ignore the targets."""
        return self.encode([replace(example, target=()) for example in examples])

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Encode words one by one: return the ids before the first word of a source, and those of each word."""
        return (), [encoded.source_ids for encoded in self.encode_sources([Example((word,), ()) for word in words])]

    def source_tokens(self, encoded: EncodedExample) -> Sequence[int]:
        """Return the ids of a source in the source vocabulary."""
        return encoded.source_ids

    def target_text(self, tokens: Iterable[str]) -> str:
        """Return output tokens as text."""
        return " ".join(tokens)

    def output_ids(self, example: Example) -> tuple[int, ...]:
        """Return the ids of a target without its source and end token."""
        return tuple(self.target_vocabulary.encode(example.target, **example.place))

    def allowed(self, selector: Selector) -> Selector:
        """Restrict a selector to the tokens that may be written."""
        return selector


class SequenceCodec(Codec):
    """Codec of a masked model, for scoring and sampling whole sequences.

    Attributes:
        conditional: whether each sequence has a source.
        lengths: number of training sequences by length; empty if unknown.
        allowed_V: bool (V,), tokens that may be proposed.
        spell: converts ids to text, in which phrases are matched as words; None matches phrases as tokens.
    """

    purpose: ClassVar[Purpose] = "score"
    units: TextUnits
    source_units: TextUnits
    conditional: bool
    lengths: Mapping[int, int]
    allowed_V: Tensor
    unknown_id: int | None
    spell: Callable[[Sequence[int]], str] | None

    @abstractmethod
    def read(self, path: FilePath) -> Sequence[Example]:
        """Read the sequences of a file as targets; only a few are in memory at a time."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the tokens of ids."""

    def words(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the number of each token's word, from 0."""
        return tuple(range(len(ids)))

    def pieces_of(self, tokens: Sequence[str]) -> list[str]:
        """Return tokens as written in a text."""
        return list(tokens)

    @abstractmethod
    def phrase(self, text: str) -> Tokenizations:
        """Return the tokenizations of a phrase."""

    def require_free(self, free: str) -> None:
        """Raise an InputError for an ambiguous mark of free positions."""
        if not free or free != "".join(free.split()):
            raise InputError(f"free: {free!r} is blank, or contains a space", hint="choose another token for it")

    @abstractmethod
    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        """Return the ids of a sequence, FREE at the marks of free positions."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """Return a sequence as written in a file."""

    @abstractmethod
    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        """Return the example's text with free positions filled in and the rest as written."""

    def example_text(self, example: Example) -> str:
        """Return the sequence as written."""
        return " ".join(example.target)


def require_separate_marks(example: Example, free: str) -> None:
    """Raise an InputError for marks of free positions without blanks between them, which would be a fixed word."""
    for word in " ".join(example.target).split():
        number = word.count(free)
        if number > 1 and word == number * free:
            hint = f"write {' '.join(number * [free])}, or choose another token for free positions"
            raise InputError(f"{word!r} is not {number} free positions", **example.place, hint=hint)


def set_derived(codec: Codec, **values: Any) -> None:
    """Set derived attributes of a frozen codec."""
    for name, value in values.items():
        object.__setattr__(codec, name, value)


def save_own_model(model: Any, folder: Path) -> None:
    """Save a model of seqwise, without the card that ``save_pretrained`` adds."""
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------ outputs


@dataclass(frozen=True)
class TokenizerCodec(OutputCodec):
    """Codec with a tokenizer for each side; with subwords, this side of an example is a single token, its raw text."""

    source: Tokenizer
    target: Tokenizer

    kind: ClassVar[str] = "tokenizers"

    def __post_init__(self) -> None:
        # A tagger's labels have no end token.
        things = "labels" if self.target.vocabulary.end is None else "target tokens"
        set_derived(
            self,
            source_vocabulary=self.source.vocabulary,
            target_vocabulary=self.target.vocabulary,
            writes_text=self.target.subwords is not None,
            target_things=things if self.target.subwords is None else "target characters",
        )

    @property
    def identity(self) -> str:
        return repr(self)

    def units_of_target(self, example: Example) -> Sequence[str]:
        return self.target.characters(example.target)

    def split(self, examples: Sequence[Example]) -> list[Example]:
        return [
            replace(
                example, source=_split(example, "source", self.source), target=_split(example, "target", self.target)
            )
            for example in examples
        ]

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        return encode_examples(self.split(examples), self.source.vocabulary, self.target.vocabulary)

    def output_ids(self, example: Example) -> tuple[int, ...]:
        return self.target.encode(example.target, **example.place)

    def source_text(self, example: Example) -> str:
        return self.source.as_read(example.source)

    def target_text(self, tokens: Iterable[str]) -> str:
        return self.target.join(tokens)

    def save(self, model: Any, folder: Path) -> None:
        save_own_model(model, folder)
        for part in fields(self):
            save_tokenizer(getattr(self, part.name), folder / part.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the tokenizers of a folder."""
        return cls(*(load_tokenizer(folder / part.name) for part in fields(cls)))


@dataclass(frozen=True)
class SpellingCodec(TokenizerCodec):
    """Codec for words with their characters, and labels."""

    characters: Tokenizer

    kind: ClassVar[str] = "spelling"

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode words with ``spelt_source``, and labels."""
        return [
            replace(encoded, source_ids=spelt_source(encoded.source_ids, map(self.characters.encode, example.source)))
            for example, encoded in zip(examples, super().encode(examples), strict=True)
        ]

    def source_tokens(self, encoded: EncodedExample) -> Sequence[int]:
        return [~token for token in encoded.source_ids if token < 0]


def _split(example: Example, side: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    tokens: tuple[str, ...] = getattr(example, side)
    pieces = tokenizer.split(tokens)
    if tokens and not pieces:
        raise InputError(f"the {side} is blank", **example.place, hint="fill it in or drop the line")
    return pieces


# ------------------------------------------------------------------------------------------------ masked models


@dataclass(frozen=True)
class MaskedCodec(SequenceCodec):
    """Codec for sequences of a masked model; with subwords, a side of an example is a single token, its raw text.

    The model scores all V tokens, including the unknown one, which is never proposed.
    """

    sequence: Tokenizer
    source: Tokenizer | None = None
    lengths: Mapping[int, int] = field(default_factory=dict)
    format: Format = "sequences"

    kind: ClassVar[str] = "masked"

    def __post_init__(self) -> None:
        vocabulary = self.sequence.vocabulary
        set_derived(
            self,
            units=self.sequence.units,
            source_units="words" if self.source is None else self.source.units,
            conditional=self.source is not None,
            allowed_V=torch.tensor([token != vocabulary.unknown for token in vocabulary.tokens]),
            unknown_id=vocabulary.unknown_id,
            # With words or characters, phrases are matched as tokens.
            spell=None if self.sequence.subwords is None else self.text,
        )

    @property
    def identity(self) -> str:
        return repr(self.sequence.vocabulary.tokens)

    def read(self, path: FilePath) -> Sequence[Example]:
        examples = each_sequence(path, format=self.format, units=self.units, source_units=self.source_units)
        return require_some(spooled(examples), path)

    def split(self, examples: Sequence[Example]) -> list[Example]:
        return [
            replace(
                example,
                source=() if self.source is None else self.source.split(example.source),
                target=self.sequence.split(example.target),
            )
            for example in examples
        ]

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode the sequences as targets; the source is ``(0,)`` if the model has none."""
        return [EncodedExample(self._source_ids(example), self._sequence_ids(example)) for example in examples]

    def _source_ids(self, example: Example) -> tuple[int, ...]:
        if self.source is None:
            return (0,)
        ids = self.source.encode(example.source, **example.place)
        if not ids:
            raise InputError("the source is blank", **example.place, hint="fill it in or drop the line")
        return ids

    def _sequence_ids(self, example: Example) -> tuple[int, ...]:
        subwords = self.sequence.subwords
        if subwords is not None and example.target:
            unknown = set(normalize_text(example.target[0])) - {" ", *subwords.pieces}
            if unknown:
                problem = f"the character {min(unknown)!r} does not occur in the training data"
                raise InputError(problem, **example.place, hint="drop or replace it")
        ids = self.sequence.encode(example.target, **example.place)
        if example.target and not ids:
            raise InputError("the sequence is blank", **example.place, hint="fill it in or drop the line")
        return ids

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.sequence.vocabulary.decode(ids))

    def words(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self.sequence.subwords is None:
            return super().words(ids)
        begins = [piece.startswith(BLANK) for piece in self.decode(ids)]
        return tuple(sum(begins[1 : place + 1]) for place in range(len(ids)))

    def pieces_of(self, tokens: Sequence[str]) -> list[str]:
        return list(tokens) if self.sequence.subwords is None else [token.replace(BLANK, "") for token in tokens]

    def phrase(self, text: str) -> Tokenizations:
        pieces = self.sequence.split(split_text(text, file_units(self.units)))
        if not pieces:
            raise InputError("a phrase is blank", hint="give at least one token")
        ids = tuple(self.sequence.vocabulary.encode(pieces))
        for piece, token in zip(pieces, ids, strict=True):
            if not self.allowed_V[token]:
                raise InputError(
                    f"the token {piece!r} is unknown to the run", hint="it is never drawn; choose other tokens"
                )
        return (ids,)

    def require_free(self, free: str) -> None:
        super().require_free(free)
        hint, subwords = "choose another token for it", self.sequence.subwords
        if self.units == "characters" and len(free) != 1:
            raise InputError(f"free: the sequences are made of characters, and {free!r} is not one", hint=hint)
        if free in (self.sequence.vocabulary.tokens if subwords is None else subwords.pieces):
            raise InputError(f"free: {free!r} is a token of the run", hint=hint)

    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        require_separate_marks(example, free)
        tokens: list[int] = []
        for part in self._parts(example.target, free):
            tokens += [FREE] if part is None else self.encode([replace(example, target=part)])[0].target_ids
        return tuple(tokens)

    def _parts(self, target: Sequence[str], free: str) -> Iterator[tuple[str, ...] | None]:
        """Yield runs of fixed tokens, and None for each free position."""
        if self.sequence.subwords is None:
            yield from (None if token == free else (token,) for token in target)
            return
        for is_free, group in groupby(target[0].split(), key=free.__eq__):
            words = list(group)
            yield from [None] * len(words) if is_free else [(" ".join(words),)]

    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        if not example.target or self.sequence.subwords is not None:
            return self.text(ids)
        drawn = zip(example.target, self.decode(ids), strict=True)
        return self.sequence.as_read(new if token == free else token for token, new in drawn)

    def text(self, ids: Sequence[int]) -> str:
        return self.sequence.join(self.sequence.vocabulary.decode(ids))

    def example_text(self, example: Example) -> str:
        return self.sequence.as_read(example.target)

    def source_text(self, example: Example) -> str:
        return "" if self.source is None else self.source.as_read(example.source)

    @classmethod
    def load(cls, folder: Path, *, format: Format) -> MaskedCodec:
        """Read the tokenizers and lengths of a folder, for files in this format."""
        source = load_tokenizer(folder / "source") if format == "pairs" else None
        record = read_record(folder / LENGTHS, ["lengths"], what="counts of lengths", hint="use another copy")
        lengths = {int(length): count for length, count in record["lengths"].items()}
        return cls(load_tokenizer(folder / "sequence"), source, lengths, format)

    def save(self, model: Any, folder: Path) -> None:
        save_own_model(model, folder)
        save_tokenizer(self.sequence, folder / "sequence")
        if self.source is not None:
            save_tokenizer(self.source, folder / "source")
        lengths = {str(length): count for length, count in sorted(self.lengths.items())}
        write_atomically(folder / LENGTHS, json.dumps({"lengths": lengths}, indent=1) + "\n")
