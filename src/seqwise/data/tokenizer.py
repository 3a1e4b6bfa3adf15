"""Tokenizers of one side of the examples, built from training data and saved for ``AutoTokenizer.from_pretrained``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqwise.data.durable import write_atomically
from seqwise.data.records import read_json_object
from seqwise.data.subwords import (
    BLANK,
    UNKNOWN_PIECE,
    Subwords,
    bpe,
    join_pieces,
    learn_subwords,
    normalize_text,
    split_text,
    subwords_of,
)
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.names import TextUnits

END = "</s>"
"""Token that ends a target."""

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
HINT = "save the tokenizer again"


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer of one side of the examples. With subwords, this side of an example is one token, its raw text.

    Args:
        vocabulary: tokens with ids.
        units: units of the tokens; characters are joined without blanks.
        subwords: pieces of raw text; None for words and characters.

    Example:
        >>> letters = Tokenizer(Vocabulary(("a", "b", "?"), unknown="?"), "characters")
        >>> letters.encode("abc"), letters.join(letters.vocabulary.decode([1, 0]))
        ((0, 1, 2), 'ba')
    """

    vocabulary: Vocabulary
    units: TextUnits = "words"
    subwords: Subwords | None = None

    def split(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens of one side of an example; with subwords, the pieces of its raw text."""
        return tuple(tokens) if self.subwords is None or not tokens else split_text(tokens[0], self.subwords)

    def encode(self, tokens: Sequence[str], *, path: str | None = None, line: int | None = None) -> tuple[int, ...]:
        """Return the ids of one side of an example.

        Args:
            tokens: tokens of this side.
            path, line: its place, for error messages.

        Raises:
            InputError: a token is unknown, and there is no unknown token.
        """
        return tuple(self.vocabulary.encode(self.split(tokens), path=path, line=line))

    def join(self, tokens: Iterable[str]) -> str:
        """Join tokens to text: characters without blanks, subwords into words."""
        return join_pieces(tokens) if self.subwords is not None else self.as_read(tokens)

    def as_read(self, tokens: Iterable[str]) -> str:
        """Return the text of one side of an example, as in its file."""
        return ("" if self.units == "characters" else " ").join(tokens)

    def characters(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return the units of one side that may be unknown: its characters with subwords, else its tokens."""
        if self.subwords is None:
            return tokens
        return [character for text in tokens for character in normalize_text(text) if character != " "]


def reading_tokenizer(
    sides: Sequence[Sequence[str]], *, units: TextUnits, subword_vocabulary: int, minimum_count: int | None
) -> Tokenizer:
    """Build the tokenizer of sources.

    Tokens below the minimum count (by default 1 for characters, else 2) become the unknown token. With a minimum of 1,
    there is no unknown token, except with subwords.
    """
    subwords = _learn(sides, units, subword_vocabulary)
    minimum_count = minimum_count or (1 if units == "characters" else 2)
    unknown = None if minimum_count == 1 and subwords is None else UNKNOWN_PIECE
    split: Iterable[Sequence[str]] = sides if subwords is None else (split_text(side[0], subwords) for side in sides)
    return Tokenizer(Vocabulary.build(split, minimum_count=minimum_count, unknown=unknown), units, subwords)


def writing_tokenizer(
    sides: Sequence[Sequence[str]], *, units: TextUnits, subword_vocabulary: int, end: str | None = None
) -> Tokenizer:
    """Build the tokenizer of targets: all tokens of the training data, or all subwords."""
    subwords = _learn(sides, units, subword_vocabulary)
    return Tokenizer(Vocabulary.build(sides if subwords is None else [subwords.pieces], end=end), units, subwords)


def _learn(sides: Sequence[Sequence[str]], units: TextUnits, size: int) -> Subwords | None:
    return learn_subwords((side[0] for side in sides), size=size) if units == "subwords" else None


# ------------------------------------------------------------------------------------------------------- files


def library_tokenizer(tokenizer: Tokenizer) -> Any:
    """Convert to a tokenizer of the ``tokenizers`` library that splits and joins texts in the same way.

    Pieces without an id in the vocabulary, which merges may need, get ids above all others.
    """
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as LibraryTokenizer

    vocabulary, subwords = tokenizer.vocabulary, tokenizer.subwords
    library: Any
    if subwords is not None:
        library = bpe((*vocabulary.tokens, UNKNOWN_PIECE, *subwords.pieces), subwords.merges)
        blanks = normalizers.Replace(Regex(rf"[\s{BLANK}]+"), " ")
        library.normalizer = normalizers.Sequence([normalizers.NFC(), blanks, normalizers.Strip()])
        library.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    else:
        ids = {token: place for place, token in enumerate(vocabulary.tokens)}
        # The library requires a name for the unknown token even if there is none.
        library = LibraryTokenizer(models.WordLevel(ids, unk_token=vocabulary.unknown or UNKNOWN_PIECE))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if tokenizer.units == "characters":
            library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            library.decoder = decoders.Fuse()
    if vocabulary.end is not None:
        library.add_special_tokens([vocabulary.end])
        special = [(vocabulary.end, vocabulary.end_id)]
        library.post_processor = processors.TemplateProcessing(single=["$A", vocabulary.end], special_tokens=special)
    return library


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> save_tokenizer(Tokenizer(Vocabulary(("a", "b"))), folder)
        >>> load_tokenizer(folder).vocabulary.tokens
        ('a', 'b')
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer.vocabulary
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "units": tokenizer.units,
        "vocabulary_size": len(vocabulary),
        "unk_token": vocabulary.unknown,
        "eos_token": vocabulary.end,
    }
    write_atomically(folder / TOKENIZER, library_tokenizer(tokenizer).to_str(pretty=True) + "\n")
    write_atomically(folder / CONFIG, json.dumps(config, ensure_ascii=False, indent=1) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the files of :func:`save_tokenizer`.

    Raises:
        InputError: a file cannot be read, is not JSON, or is not a valid tokenizer.
    """
    path = folder / TOKENIZER
    config = read_json_object(folder / CONFIG, what="tokenizer", hint=HINT)
    model: Any = read_json_object(path, what="tokenizer", hint=HINT).get("model")
    units, size = config.get("units"), config.get("vocabulary_size")
    specials = {name: config.get(f"{short}_token") for name, short in (("unknown", "unk"), ("end", "eos"))}
    if units not in ("words", "characters", "subwords") or not isinstance(size, int):
        raise InputError("invalid units or vocabulary_size", path=folder / CONFIG, hint=HINT)
    if not all(special is None or isinstance(special, str) for special in specials.values()):
        raise InputError("unk_token and eos_token must be a string or null", path=folder / CONFIG, hint=HINT)
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict) or sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise InputError("invalid tokenizer: the ids are not 0, 1, 2, ...", path=path, hint=HINT)
    tokens = sorted(ids, key=ids.__getitem__)
    try:
        vocabulary = Vocabulary(tuple(tokens[:size]), **specials)
        return Tokenizer(vocabulary, units, subwords_of(model) if units == "subwords" else None)
    except InputError as error:
        raise InputError(error.problem, path=path, hint=error.hint or HINT) from None
