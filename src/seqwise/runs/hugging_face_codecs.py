"""Codecs with tokenizers of Hugging Face models: for generators, taggers with an encoder, and masked models."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqwise.data.batches import EncodedExample
from seqwise.data.fasta import each_entry
from seqwise.data.readers import Example, FilePath, line_of_token, require_some
from seqwise.data.spooled import spooled
from seqwise.data.subwords import normalize_text
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError, placed
from seqwise.names import TextUnits
from seqwise.runs.codecs import OutputCodec, SequenceCodec, require_separate_marks, set_derived
from seqwise.runs.inputs import each_sequence
from seqwise.runs.pretrained import is_causal, load_pretrained_tokenizer, quiet

if TYPE_CHECKING:
    from seqwise.hugging_face import HuggingFaceMaskedModel
    from seqwise.hugging_face.tagger import Piece
    from seqwise.hugging_face.text_codec import TextCodec
    from seqwise.sampling.problems import Tokenizations
    from seqwise.search.selectors import Selector

FORBIDDING = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""Fields of a generation config that forbid tokens; the decoder ignores the others."""

FASTA = (".fasta", ".fa", ".faa", ".fasta.gz", ".fa.gz", ".faa.gz")


def piece_vocabulary(tokenizer: Any, size: int, *, end: int | None = None) -> Vocabulary:
    """Make a vocabulary of a tokenizer's tokens by id; ids without a unique token get a name made from the id."""
    known = min(size, len(tokenizer))
    names: list[str] = []
    taken: set[str] = set()
    for place, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(known))) + [None] * (size - known)):
        name = token if isinstance(token, str) and token not in taken else f"<id {place}>"
        names.append(name)
        taken.add(name)
    unknown = tokenizer.unk_token_id
    has_unknown = unknown is not None and unknown != end and unknown < size
    return Vocabulary(
        tuple(names), unknown=names[unknown] if has_unknown else None, end=None if end is None else names[end]
    )


# ------------------------------------------------------------------------------ encoder-decoders, causal models


@dataclass(frozen=True)
class GeneratorCodec(OutputCodec):
    """Codec for raw text of an encoder-decoder or causal model; each side is a single token, its text.

    A causal model continues its source, the prompt, with a blank and the target, tokenized as one text.
    """

    tokenizer: Any
    model: Any  # as of ``step_model``

    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        pieces = piece_vocabulary(self.tokenizer, len(self.model.embedding_VD), end=self.model.end)
        set_derived(
            self,
            source_vocabulary=pieces,
            target_vocabulary=pieces,
            writes_text=True,
            target_things="target tokens",
        )

    @property
    def identity(self) -> str:
        return repr(sorted(self.tokenizer.get_vocab().items()))

    def units_of_target(self, example: Example) -> Sequence[str]:
        ids = self._ids(example, "target") if example.target else ()
        return self.target_vocabulary.decode(token for token in ids if token != self.model.end)

    def split(self, examples: Sequence[Example]) -> list[Example]:
        return [
            replace(
                example,
                source=tuple(self.target_vocabulary.decode(self._ids(example, "source"))),
                target=tuple(self.units_of_target(example)),
            )
            for example in examples
        ]

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        encoded = [
            EncodedExample(self._ids(example, "source"), self._ids(example, "target") if example.target else ())
            for example in examples
        ]
        for example, ids in zip(examples, encoded, strict=True):
            self._require_steps(ids.source_ids, ids.target_ids, **example.place)
        if encoded:  # any two of them may share a batch
            sides = zip(*((ids.source_ids, ids.target_ids) for ids in encoded), strict=True)
            self._require_steps(*(max(side, key=len) for side in sides))
        return encoded

    def output_ids(self, example: Example) -> tuple[int, ...]:
        # A causal model needs a prompt; any will do.
        prompted = replace(example, source=("a",))
        return tuple(token for token in self._ids(prompted, "target") if token != self.model.end)

    def target_text(self, tokens: Iterable[str]) -> str:
        vocabulary = self.target_vocabulary
        ids = vocabulary.encode([token for token in tokens if token != vocabulary.end])
        return normalize_text(self.tokenizer.decode(ids, skip_special_tokens=True))

    def allowed(self, selector: Selector) -> Selector:
        """Restrict a selector to the tokens that the model's generation config allows."""
        from transformers import GenerationConfig

        from seqwise.hugging_face import generation_selector
        from seqwise.hugging_face.generation import ended_by

        config = ended_by(self.model.model.generation_config, self.tokenizer)
        forbidden = {name: getattr(config, name, None) for name in FORBIDDING}
        # Only single tokens can be excluded, not sequences of tokens.
        forbidden["bad_words_ids"] = [word for word in forbidden["bad_words_ids"] or [] if len(word) == 1] or None
        names = ("bos_token_id", "decoder_start_token_id", "forced_bos_token_id")
        special = {name: getattr(config, name) for name in names}
        restrictions = GenerationConfig(**forbidden, **special, eos_token_id=self.model.end)
        restricted = generation_selector(selector, self.model, generation_config=restrictions)
        return restricted if restricted.restricts else selector

    def save(self, model: Any, folder: Path) -> None:
        with quiet():
            model.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _ids(self, example: Example, side: str) -> tuple[int, ...]:
        from seqwise.hugging_face.positions import configured_limit

        text = getattr(example, side)[0]
        if not self.model.model.config.is_encoder_decoder:
            ids = self._prompt(text) if side == "source" else self._continuation(example.source[0], text)
        else:
            ids = self._read(**({"text": text} if side == "source" else {"text_target": text}))
        if side == "target" and self.model.end in ids[:-1]:
            self._require_no_end(example, ids)
        if side == "target" and ids[-1:] != (self.model.end,):
            ids = (*ids, self.model.end)
        if not text.strip() or not ids:
            raise InputError(f"the {side} is blank", **example.place, hint="fill it in or drop the line")
        config = self.model.model.config
        limit = configured_limit(config, "encoder" if side == "source" and config.is_encoder_decoder else "decoder")
        if limit is not None and len(ids) > limit.positions:
            problem = f"the {side} has {len(ids)} tokens, and the model has {limit.positions} positions"
            raise InputError(problem, **example.place, hint="shorten it, or drop the line")
        return ids

    def _require_no_end(self, example: Example, ids: tuple[int, ...]) -> None:
        """Raise an InputError for a text with the end token, unless the tokenizer has added all of them."""
        if self.model.model.config.is_encoder_decoder:
            ids = self._read(text_target=example.target[0], add_special_tokens=False)
        if self.model.end in ids:
            token = self.tokenizer.convert_ids_to_tokens(self.model.end)
            hint = "leave it out; it is added"
            raise InputError(f"the target contains the end token {token!r}", **example.place, hint=hint)

    def _read(self, **text: Any) -> tuple[int, ...]:
        return tuple(self.tokenizer(**text, truncation=False, padding=False, verbose=False)["input_ids"])

    def _prompt(self, text: str) -> tuple[int, ...]:
        """Encode a prompt, without the end token that some tokenizers add."""
        ids = self._read(text=text)
        return ids[:-1] if ids[-1:] == (self.model.end,) else ids

    def _continuation(self, prompt: str, text: str) -> tuple[int, ...]:
        """Encode a text after a prompt, or separately if they share a token."""
        before = self._read(text=prompt, add_special_tokens=False)
        both = self._read(text=f"{prompt} {text}", add_special_tokens=False)
        if both[: len(before)] == before:
            return both[len(before) :]
        return self._read(text=text, add_special_tokens=False)

    def _require_steps(
        self, source: Sequence[int], target: Sequence[int], *, path: str | None = None, line: int | None = None
    ) -> None:
        most = self.model.most_steps(source)
        if most is not None and len(target) > most:
            which = "the source" if path else "the longest source"
            left = f"{max(most, 0)} positions for a target of {len(target)}"
            problem = f"{which} has {len(source)} tokens, which leave {left}"
            raise InputError(problem, path=path, line=line, hint="shorten one of them")


# ------------------------------------------------------------------------------------- taggers over encoders


@dataclass(frozen=True)
class TaggerCodec(OutputCodec):
    """Codec for words in pieces of an encoder's tokenizer, one of which has the label of the word.

    ``RUN/model`` is a folder of ``save_tagger`` with the labels and, in ``backbone``, the tokenizer.
    """

    tokenizer: Any
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    positions: int | None
    piece: Piece = "first"

    kind: ClassVar[str] = "word-pieces"

    @classmethod
    def over(cls, model: Any, tokenizer: Any, labels: Vocabulary, *, source: Path | str) -> TaggerCodec:
        """Make the codec of a tagger from the tokenizer and the limits of its encoder."""
        from seqwise.hugging_face.positions import num_positions

        backbone = model.encoder.backbone
        size = backbone.get_input_embeddings().num_embeddings
        if len(tokenizer) > size:
            problem = f"the tokenizer has {len(tokenizer):,} tokens, and the encoder has embeddings for {size:,}"
            raise InputError(problem, path=source, hint="save it after model.resize_token_embeddings(len(tokenizer))")
        # In a causal model, the first piece does not attend to the rest of the word.
        piece: Piece = "last" if is_causal(backbone.config.to_dict()) else "first"
        return cls(tokenizer, piece_vocabulary(tokenizer, size), labels, num_positions(backbone), piece)

    @property
    def identity(self) -> str:
        return repr([sorted(self.tokenizer.get_vocab().items()), self.target_vocabulary])

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        return [
            EncodedExample(self._pieces(example), tuple(self.target_vocabulary.encode(example.target, **example.place)))
            for example in examples
        ]

    def encode_sources(self, examples: Sequence[Example]) -> list[EncodedExample]:
        # Not without targets, from which the line of an error is found.
        return [EncodedExample(self._pieces(example), ()) for example in examples]

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        from seqwise.hugging_face.tagger import split_pieces

        if not words:
            return (), []
        self._require_pieces(Example(tuple(words), ()))
        before, pieces, _ = split_pieces(self.tokenizer, words, piece=self.piece)
        return before, pieces

    def source_tokens(self, encoded: EncodedExample) -> Sequence[int]:
        # The piece that stands for a word has the id ~id, which is negative.
        return [max(token, ~token) for token in encoded.source_ids]

    def _pieces(self, example: Example) -> tuple[int, ...]:
        from seqwise.hugging_face.tagger import word_pieces

        if not example.source:
            raise InputError("the source is empty", **example.place, hint="fill it in or drop the example")
        self._require_pieces(example)
        ids = word_pieces(self.tokenizer, example.source, piece=self.piece)
        if self.positions is not None and len(ids) > self.positions:
            problem = f"the sentence has {len(ids)} pieces, and the encoder has {self.positions} positions"
            raise InputError(problem, **example.place, hint="split the sentence")
        return ids

    def _require_pieces(self, example: Example) -> None:
        from seqwise.hugging_face.tagger import words_without_pieces

        for place in words_without_pieces(self.tokenizer, example.source):
            problem = f"the tokenizer returns nothing for {example.source[place]!r}"
            where = example.place
            if example.line and example.target:  # with labels, every word has a line of its own
                where["line"] = line_of_token(example, place)
            raise InputError(problem, **where, hint="replace the word, or drop it")

    def save(self, model: Any, folder: Path) -> None:
        from seqwise.hugging_face.tagger import BACKBONE, save_tagger

        with quiet():
            save_tagger(model, folder)
            self.tokenizer.save_pretrained(folder / BACKBONE)
        save_tokenizer(Tokenizer(self.target_vocabulary), folder / "target")

    @classmethod
    def load(cls, folder: Path, model: Any) -> TaggerCodec:
        """Load the labels and the tokenizer of a tagger."""
        from seqwise.hugging_face.tagger import BACKBONE

        labels = load_tokenizer(folder / "target").vocabulary
        return cls.over(model, load_pretrained_tokenizer(folder / BACKBONE), labels, source=folder)


# ------------------------------------------------------------------------------------------------ scoring only


@dataclass(frozen=True, eq=False)
class LanguageModelCodec:
    """Codec for raw text scored by a causal model or an encoder-decoder."""

    tokenizer: Any

    conditional: ClassVar[bool] = False

    @property
    def identity(self) -> str:
        """Return a fingerprint of the tokenizer."""
        return repr(sorted(self.tokenizer.get_vocab().items()))

    def read(self, path: FilePath) -> Sequence[Example]:
        """Read the texts of a file, one per line, or the proteins of a FASTA file."""
        return _texts(path, self._needs_blanks)

    def _needs_blanks(self, letters: str) -> bool:
        return self.tokenizer.unk_token_id in self.tokenizer(letters, add_special_tokens=False)["input_ids"]


def _texts(path: FilePath, needs_blanks: Callable[[str], bool]) -> Sequence[Example]:
    """Read texts, one per line, or the proteins of a FASTA file, with blanks if the tokenizer needs them."""

    def protein(entry: Example) -> Example:
        letters = "".join(entry.target)
        return replace(entry, target=(" ".join(letters) if needs_blanks(letters) else letters,))

    if os.fspath(path).endswith(FASTA):
        return require_some(spooled(map(protein, each_entry(path))), path)
    hint = "give one text per line; seqwise score reads prefix, tab, text from a .tsv file"
    examples = each_sequence(path, format="sequences", units="subwords", source_units="words", hint=hint)
    return require_some(spooled(examples), path)


def masked_text_codec(model: Any, tokenizer: Any) -> tuple[HuggingFaceMaskedModel, MaskedTextCodec]:
    """Adapt a Hugging Face masked model, and make its codec."""
    from seqwise.hugging_face.masked_text import adapted_with_codec

    adapted, codec = adapted_with_codec(model, tokenizer)
    return adapted, MaskedTextCodec(adapted, codec)


# ----------------------------------------------------------------------------------------------- masked models


@dataclass(frozen=True, eq=False)
class MaskedTextCodec(SequenceCodec):
    """Codec for raw text of a Hugging Face masked model, with special tokens around its sequences."""

    model: HuggingFaceMaskedModel
    codec: TextCodec

    kind: ClassVar[str] = "masked-text"
    units: TextUnits = field(init=False, default="subwords")
    source_units: TextUnits = field(init=False, default="words")
    conditional: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        set_derived(
            self,
            lengths={},
            allowed_V=self.codec.allowed_V,
            unknown_id=self.codec.unknown_id,
            spell=self.codec.plain,
        )

    @property
    def identity(self) -> str:
        return repr([sorted(self.codec.tokenizer.get_vocab().items()), self.codec.before, self.codec.after])

    def read(self, path: FilePath) -> Sequence[Example]:
        """Read the texts of a file, one per line, or the proteins of a FASTA file."""
        return _texts(path, self._needs_blanks)

    def _needs_blanks(self, letters: str) -> bool:
        ids = self.codec.ids_to_fill(letters)
        return len(ids) == 1 < len(letters) or self.unknown_id in ids

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        return [
            EncodedExample((0,), self._ids(example, self.codec.ids) if example.target else ()) for example in examples
        ]

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        return self.codec.pieces(ids)

    def phrase(self, text: str) -> Tokenizations:
        if not text.strip():
            raise InputError("a phrase is blank", hint="give at least one token")
        return self.codec.phrase(text)

    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        """Return the ids of a text, FREE at mask tokens and at the mark of free positions as a word."""
        if self.codec.tokenizer.mask_token not in example.target[0]:  # with mask tokens, other marks may be text
            require_separate_marks(example, free)
        return self._ids(example, lambda text: self.codec.ids_to_fill(self._marked(text, free)))

    def _ids(self, example: Example, encode: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        with placed(**example.place):
            ids = encode(example.target[0])
            self.model.require_room(len(ids))
        return ids

    def _marked(self, text: str, free: str) -> str:
        mask: str = self.codec.tokenizer.mask_token
        return re.sub(rf"(?<!\S){re.escape(free)}(?!\S)", lambda _: mask, text)

    def text(self, ids: Sequence[int]) -> str:
        return self.codec.text(ids)

    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        return self.codec.filled(self._marked(example.target[0], free), ids) if example.target else self.text(ids)

    def save(self, model: Any, folder: Path) -> None:
        with quiet():
            model.model.save_pretrained(folder)
            self.codec.tokenizer.save_pretrained(folder)
