"""Subword vocabularies: raw text to pieces and back, learnt from text by byte-pair encoding.

Learning and splitting are done by the ``tokenizers`` library (``pip install 'seqwise[translation]'``). Byte-pair
encoding counts whole numbers, so the same texts always give the same pieces, which a resumed training relies on; a
unigram vocabulary is fitted with floating-point sums whose order changes from run to run.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seqwise.data.readers import write_atomically
from seqwise.data.records import read_record
from seqwise.errors import InputError

__all__ = [
    "UNKNOWN_PIECE",
    "Subwords",
    "join_pieces",
    "learn_subwords",
    "load_subwords",
    "normalize_text",
    "save_subwords",
    "split_text",
]

UNKNOWN_PIECE = "<unk>"
"""What stands for a character that was in none of the texts learnt from."""

BLANK = "\u2581"  # the printable sign that stands for a blank at the start of a word's first piece
FEWEST = 2  # a pair of pieces that occurs only once is no regularity
MEND = "learn the subwords again"


@dataclass(frozen=True)
class Subwords:
    """What text is split into: every character learnt from, and pieces merged from them.

    Args:
        pieces: distinct texts without white space; each is one character or the result of a merge.
        merges: pairs of pieces in the order in which splitting puts them together.

    Raises:
        InputError: there is no piece, a piece is empty, doubled or holds white space, or a merge does not make a piece
            out of pieces.

    Example:
        >>> Subwords(("a", "b", "ab"), (("a", "b"),)).pieces
        ('a', 'b', 'ab')
        >>> Subwords(("a", "b"), (("a", "b"),))
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: the merge of 'a' and 'b' is not among the pieces; learn the subwords again
    """

    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.pieces:
            raise InputError("there is no piece", mend=MEND)
        known = set(self.pieces)
        if len(known) < len(self.pieces):
            raise InputError("a piece stands twice", mend=MEND)
        for piece in self.pieces:
            if piece.split() != [piece]:
                raise InputError(f"the piece {piece!r} is empty or holds white space", mend=MEND)
        for left, right in self.merges:
            if not {left, right, left + right} <= known:
                raise InputError(f"the merge of {left!r} and {right!r} is not among the pieces", mend=MEND)

    @cached_property
    def tokenizer(self) -> Any:
        """What splits, of the ``tokenizers`` library; id 0 is the unknown character, the pieces follow in order."""
        library = _library()
        ids = {piece: index for index, piece in enumerate(dict.fromkeys((UNKNOWN_PIECE, *self.pieces)))}
        return _with_blanks(library.models.BPE(vocab=ids, merges=list(self.merges), unk_token=UNKNOWN_PIECE))


def normalize_text(text: str) -> str:
    r"""Text as splitting sees it: Unicode form NFC, each run of white space one blank, none at the ends.

    The sign U+2581, which stands for a blank inside pieces, counts as white space.

    Raises:
        InputError: the text holds a lone surrogate, which no file can.

    Example:
        >>> normalize_text(" Cafe\u0301\u00a0 noir\n")
        'Café noir'
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the text is not UTF-8", mend="set the terminal to UTF-8, or give a file")
    return " ".join(unicodedata.normalize("NFC", text).replace(BLANK, " ").split())


def learn_subwords(texts: Iterable[str], *, size: int) -> Subwords:
    """Learn pieces from texts: all their characters, then the most frequent pair of neighbours again and again.

    Pieces never reach across a blank. The result depends on how often each word occurs, not on the order of the texts.

    Args:
        texts: what to learn from, normalised by :func:`normalize_text` first.
        size: how many pieces at most; fewer where no further pair occurs twice.

    Returns:
        The pieces, the characters first.

    Raises:
        InputError: the texts are empty, have more characters than ``size``, or ``tokenizers`` is not installed.

    Example:
        >>> learn_subwords(["low lower", "low"], size=9).pieces
        ('e', 'l', 'o', 'r', 'w', '▁', 'lo', '▁lo', '▁low')

    Source: Sennrich et al. (ACL 2016), section 3.2; blanks as part of the pieces: Kudo and Richardson (EMNLP 2018).
    Not implemented: unigram vocabularies, BPE dropout, bytes for unknown characters.
    """
    library = _library()
    characters: set[str] = set()
    tokenizer = _with_blanks(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=max(size, 0), min_frequency=FEWEST, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(_normalized(texts, characters), trainer)
    if not characters:
        raise InputError("there is no text to learn subwords from", mend="give at least one word")
    # A blank is a character too: each word's first piece begins with it.
    needed = len(characters | {" "})
    if size < needed:
        problem = f"a subword vocabulary of {size} has no room for the {needed} characters of the texts"
        raise InputError(problem, mend=f"ask for {needed} or more")
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return Subwords(tuple(pieces), tuple((left, right) for left, right in model["merges"]))


def _normalized(texts: Iterable[str], characters: set[str]) -> Iterator[str]:
    """The texts as splitting sees them; on the way, their characters are collected."""
    for text in texts:
        normalized = normalize_text(text)
        characters.update(normalized)
        yield normalized


def split_text(text: str, subwords: Subwords) -> tuple[str, ...]:
    """Text to pieces; a character that is no piece becomes :data:`UNKNOWN_PIECE`.

    ``join_pieces(split_text(text, subwords)) == normalize_text(text)`` where all characters are known.

    Args:
        text: raw text; it is normalised first.
        subwords: what to split into.

    Raises:
        InputError: as :func:`normalize_text`, or ``tokenizers`` is not installed.

    Example:
        >>> subwords = learn_subwords(["low lower", "low"], size=9)
        >>> split_text("lower  low x", subwords)
        ('▁low', 'e', 'r', '▁low', '▁', '<unk>')
    """
    normalized = normalize_text(text)
    return tuple(subwords.tokenizer.encode(normalized, add_special_tokens=False).tokens) if normalized else ()


def join_pieces(pieces: Iterable[str]) -> str:
    """Pieces back to text.

    Example:
        >>> join_pieces(["▁low", "e", "r", "▁low"])
        'lower low'
    """
    return " ".join("".join(pieces).replace(BLANK, " ").split())


def save_subwords(subwords: Subwords, path: str | os.PathLike[str]) -> None:
    """Write subwords as JSON, a piece or a merge a line, whole or not at all.

    Example:
        >>> file = getfixture("tmp_path") / "subwords.json"
        >>> save_subwords(Subwords(("a", "b", "ab"), (("a", "b"),)), file)
        >>> load_subwords(file)
        Subwords(pieces=('a', 'b', 'ab'), merges=(('a', 'b'),))
    """
    # No piece holds a blank, so one separates the two sides of a merge.
    fields = {"pieces": subwords.pieces, "merges": [" ".join(merge) for merge in subwords.merges]}
    write_atomically(path, json.dumps(fields, ensure_ascii=False, indent=1) + "\n")


def load_subwords(path: str | os.PathLike[str]) -> Subwords:
    """Read what :func:`save_subwords` wrote.

    Raises:
        InputError: the file cannot be read, is no JSON, or holds no sound subwords.
    """
    fields = read_record(path, ["pieces", "merges"], what="subwords", mend=MEND)
    for name, entries in fields.items():
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{name} is not a list of strings", path=path, mend=MEND)
    merges = [tuple(entry.split(" ")) for entry in fields["merges"]]
    if not all(len(merge) == 2 for merge in merges):
        raise InputError("a merge is not two pieces with one blank between them", path=path, mend=MEND)
    try:
        return Subwords(tuple(fields["pieces"]), tuple(merges))
    except InputError as error:
        raise InputError(error.problem, path=path, mend=error.mend) from None


def _with_blanks(model: Any) -> Any:
    """A tokenizer of the library that marks the start of each word and never merges across it."""
    library = _library()
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    return tokenizer


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "subwords need the tokenizers package, which is not installed", mend="pip install 'seqwise[translation]'"
        ) from None
    return tokenizers
