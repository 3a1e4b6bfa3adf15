"""Examples of stress assignment and of spelling to sound from pronunciation lexicons."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from seqwise.data.readers import BLANKS, Example, FilePath, read_lines, require_some
from seqwise.errors import InputError

Lexicon = Iterable[tuple[str, Sequence[str]]]
"""Words with their phonemes; a word with several pronunciations occurs several times."""


def read_lexicon(source: FilePath | Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Read a pronunciation lexicon in the format of the CMU dictionary: a word, blanks, its phonemes.

    ``;;;`` lines and ``" # ..."`` tails are comments; ``word(2)`` is a further pronunciation of ``word``.

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
            hint = "write a word, blanks, and its phonemes"
            raise InputError(f"no phonemes for {word[:100]!r}", path=path, line=number, hint=hint)
        entries.append((re.sub(r"(?<=.)\(\d+\)$", "", word), tuple(phonemes)))
    if not entries:
        raise InputError("no word in the lexicon", path=path, hint="write one word and its phonemes per line")
    return entries


def read_stress(lexicon: Lexicon) -> list[Example]:
    """Turn a lexicon into streaming stress assignment: phonemes without stress in, one stress label per phoneme out.

    Kept: the first pronunciation of each word of the letters a to z, with two or more vowels and at most 14 phonemes.
    The label is ``-`` for a consonant, else ``0`` (none), ``1`` (primary) or ``2`` (secondary). A suffix often decides
    which vowel is stressed (photograph, photography), so a model that reads left to right must be able to revise.
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
            examples.append(Example(without_stress(phonemes), target, "lexicon", number, word))
    return require_some(examples, "lexicon")


def read_spelling(lexicon: Lexicon, *, min_letters: int = 2, max_letters: int = 10) -> list[Example]:
    """Turn a lexicon into spelling to sound: letters in, phonemes without stress out, each pronunciation an example."""
    examples: dict[tuple[str, tuple[str, ...]], Example] = {}
    for number, word, phonemes in _spelled(lexicon):
        if min_letters <= len(word) <= max_letters:
            target = without_stress(phonemes)
            examples.setdefault((word, target), Example(tuple(word), target, "lexicon", number, word))
    return require_some(list(examples.values()), "lexicon")


def _spelled(lexicon: Lexicon) -> Iterator[tuple[int, str, Sequence[str]]]:
    for number, (word, phonemes) in enumerate(lexicon, start=1):
        if not phonemes or not all(phonemes):
            raise InputError(f"no phonemes for {word!r}", path="lexicon", line=number, hint="drop the entry")
        if re.fullmatch("[A-Za-z]+", word):
            yield number, word.lower(), phonemes


def without_stress(phonemes: Sequence[str]) -> tuple[str, ...]:
    """Remove the stress digits of phonemes."""
    return tuple(phoneme.rstrip("0123456789") for phoneme in phonemes)


def split_by_hash(key: str) -> float:
    """Map a key to [0, 1) by the first 53 bits of its SHA-256, so that a split needs neither a file nor a seed."""
    # 53 bits, not 64: rounding to a double must never reach 1.
    return (int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 11) / 2**53
