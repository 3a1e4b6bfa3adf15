"""Subword vocabularies by byte-pair encoding, with the ``tokenizers`` library.

Byte-pair encoding counts integers, so the same texts always give the same pieces, as resuming requires; a unigram
vocabulary is fitted with floating-point sums whose order varies between runs.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seqwise.errors import InputError

UNKNOWN_PIECE = "<unk>"
"""Token for characters that do not occur in the training texts."""

BLANK = "\u2581"  # printable sign for the blank before a word, at the start of its first piece
MINIMUM_FREQUENCY = 2  # of a pair that is merged
HINT = "learn the subwords again"


@dataclass(frozen=True)
class Subwords:
    """Subword vocabulary: all characters of the training texts, and the merged pieces."""

    pieces: tuple[str, ...]  # characters and results of merges, without white space
    merges: tuple[tuple[str, str], ...]  # in the order of splitting

    @cached_property
    def splitter(self) -> Any:
        """The library's tokenizer for normalised text."""
        return bpe((UNKNOWN_PIECE, *self.pieces), self.merges)


def normalize_text(text: str) -> str:
    """Normalise text: Unicode form NFC, each run of whitespace as one blank, none at the ends.

    The sign U+2581, which replaces blanks inside pieces, counts as whitespace.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the text is not UTF-8", hint="set the terminal to UTF-8, or give a file")
    return " ".join(unicodedata.normalize("NFC", text).replace(BLANK, " ").split())


def learn_subwords(texts: Iterable[str], *, size: int) -> Subwords:
    """Learn pieces from texts: all characters, then repeated merges of the most frequent pair of neighbours.

    Pieces never cross a blank. The result depends on the counts of words, not on the order of the texts.

    Source: Sennrich et al. (ACL 2016), section 3.2; blanks as part of the pieces: Kudo and Richardson (EMNLP 2018).
    Not implemented: unigram vocabularies, BPE dropout, bytes for unknown characters.
    """
    from tokenizers import trainers

    characters: set[str] = set()
    tokenizer = bpe((), ())
    trainer = trainers.BpeTrainer(
        vocab_size=max(size, 0), min_frequency=MINIMUM_FREQUENCY, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(_normalized(texts, characters), trainer)
    if not characters:
        raise InputError("there is no text to learn subwords from", hint="give at least one word")
    # A blank is a character too: each word's first piece begins with it.
    needed = len(characters | {" "})
    if size < needed:
        problem = f"a subword vocabulary of {size} has no room for the {needed} characters of the texts"
        raise InputError(problem, hint=f"ask for {needed} or more")
    return subwords_of(json.loads(tokenizer.to_str())["model"])


def _normalized(texts: Iterable[str], characters: set[str]) -> Iterator[str]:
    """Yield normalised texts, and collect their characters."""
    for text in texts:
        normalized = normalize_text(text)
        characters.update(normalized)
        yield normalized


def split_text(text: str, subwords: Subwords) -> tuple[str, ...]:
    """Split raw text into pieces; unknown characters become ``UNKNOWN_PIECE``.

    ``join_pieces(split_text(text, subwords)) == normalize_text(text)`` if all characters are known.
    """
    normalized = normalize_text(text)
    return tuple(subwords.splitter.encode(normalized, add_special_tokens=False).tokens) if normalized else ()


def join_pieces(pieces: Iterable[str]) -> str:
    """Join subword pieces to text.

    Example:
        >>> join_pieces(["▁low", "e", "r", "▁low"])
        'lower low'
    """
    return " ".join("".join(pieces).replace(BLANK, " ").split())


def subwords_of(model: Mapping[str, Any]) -> Subwords:
    """Return the subwords of a ``tokenizer.json``: its characters by code point, then its merged pieces.

    Example:
        >>> subwords_of({"vocab": {"</s>": 0, "ab": 1, "b": 2, "a": 3}, "merges": [["a", "b"]]}).pieces
        ('a', 'b', 'ab')
    """
    merges, known = model.get("merges"), model["vocab"]
    if not isinstance(merges, list) or not all(isinstance(merge, list) and len(merge) == 2 for merge in merges):
        raise InputError("merges is not a list of pairs", hint=HINT)
    for left, right in merges:
        if not (isinstance(left, str) and isinstance(right, str) and {left, right, left + right} <= known.keys()):
            raise InputError(f"the merge of {left!r} and {right!r} is not among the tokens", hint=HINT)
    characters = sorted(token for token in known if len(token) == 1)
    merged = dict.fromkeys(left + right for left, right in merges)
    return Subwords((*characters, *merged), tuple((left, right) for left, right in merges))


def bpe(tokens: Iterable[str], merges: Iterable[tuple[str, str]]) -> Any:
    """Build a tokenizer of the library that marks word starts and never merges across words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token=UNKNOWN_PIECE if ids else None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    return tokenizer
