"""Supertags from dependency trees: a word's relation to its head, the side of the head, and its own dependents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqwise.data.durable import write_atomically
from seqwise.data.readers import FilePath, read_lines
from seqwise.errors import InputError

COLUMNS = 10
CORE = ("ccomp", "cop", "csubj", "expl", "iobj", "nsubj", "obj", "xcomp")
"""Relations that a supertag names; all others but punctuation are written ``+``."""


@dataclass(frozen=True)
class Dependent:
    """Word of a dependency tree."""

    form: str
    upos: str  # universal part of speech
    xpos: str  # part of speech in the language's own tag set
    features: str  # morphological features, as in the file
    head: int  # number of its head in the sentence, from 1; 0 for the root
    relation: str  # to its head, with its subtype


def read_dependencies(path: FilePath) -> list[list[Dependent]]:
    r"""Read the basic trees of a CoNLL-U file, plain or gzip.

    Words only: lines of ranges (``1-2``), of empty nodes (``1.1``) and comments are left out.

    Source: universaldependencies.org/format.html. Not implemented: enhanced dependencies.
    """
    sentences: list[list[Dependent]] = []
    words: list[Dependent] = []
    start = end = 0
    for end, text in read_lines(path):
        if not text:
            _close(words, sentences, path, start)
            words = []
        elif not text.startswith("#"):
            start = start if words else end
            words += _word(text, len(words) + 1, path, end)
    _close(words, sentences, path, start)
    if not sentences:
        raise InputError("no sentence in the file", path=path, hint="give a file in CoNLL-U, with ten columns per word")
    return sentences


def _word(text: str, number: int, path: FilePath, line: int) -> list[Dependent]:
    """Return the word of a row, or nothing if the row is a range or an empty node."""
    cells = text.split("\t")
    if len(cells) != COLUMNS:
        found = f"{len(cells)} column" + "s" * (len(cells) != 1)
        hint = "separate the ten columns of CoNLL-U with one tab each"
        raise InputError(f"{found} where {COLUMNS} were expected", path=path, line=line, hint=hint)
    identifier, form, _, upos, xpos, features, head, relation, *_ = cells
    if "-" in identifier or "." in identifier:
        return []
    if identifier != str(number):
        hint = "number the words of a sentence 1, 2, 3, with a blank line after it"
        raise InputError(f"word {identifier[:20]!r} where {number} was expected", path=path, line=line, hint=hint)
    if not (head.isascii() and head.isdecimal()) or len(head) > len("9999"):
        raise InputError(f"the head {head[:20]!r} is not a number", path=path, line=line, hint="give a basic tree")
    if not form or not relation.strip("_"):
        empty = "relation" if form else "word"
        raise InputError(f"the {empty} is missing", path=path, line=line, hint=f"write the {empty} in its column")
    return [Dependent(form, upos, xpos, features, int(head), relation)]


def _close(words: list[Dependent], sentences: list[list[Dependent]], path: FilePath, start: int) -> None:
    """Append a sentence, after checking that its heads are in it."""
    for number, word in enumerate(words, start=1):
        if word.head > len(words) or word.head == number:
            problem = f"the head of word {number} is {word.head}, in a sentence of {len(words)} words"
            raise InputError(problem, path=path, line=start, hint="each head is another word, or 0")
    if words:
        sentences.append(words)


def dependency_supertags(words: Sequence[Dependent]) -> list[str]:
    """Return the supertag of each word of a sentence.

    It consists of the relation without subtype; ``<`` for a head to the left, ``>`` to the right, or ``^`` for a root;
    and, if the word has dependents other than punctuation, ``[L_R]``: on each side the sorted set of core relations
    among them (:data:`CORE`), and ``+`` if there is any other.

    Source: after Ouchi, Duh and Matsumoto (EACL 2014), whose labels split dependents by side in the same way.
    """
    sides: list[tuple[set[str], set[str]]] = [(set(), set()) for _ in words]
    for number, word in enumerate(words, start=1):
        if word.head and _kind(word) != "punct":
            sides[word.head - 1][number > word.head].add(_kind(word))
    return [_supertag(number, word, *sides[number - 1]) for number, word in enumerate(words, start=1)]


def _kind(word: Dependent) -> str:
    return word.relation.partition(":")[0]


def _supertag(number: int, word: Dependent, left: set[str], right: set[str]) -> str:
    direction = "^" if word.head == 0 else "<" if word.head < number else ">"
    governed = f"[{_side(left)}_{_side(right)}]" if left or right else ""
    return f"{_kind(word)}{direction}{governed}"


def _side(kinds: set[str]) -> str:
    core = ",".join(sorted(kinds.intersection(CORE)))
    return core + "+" * bool(kinds.difference(CORE))


def write_supertags(path: FilePath, sentences: Iterable[Sequence[Dependent]]) -> None:
    """Write a column file: word, supertag, ``XPOS|FEATS|DEPREL``, UPOS; a blank line after each sentence."""
    rows = []
    for words in sentences:
        for word, supertag in zip(words, dependency_supertags(words), strict=True):
            rows.append(f"{word.form}\t{supertag}\t{word.xpos}|{word.features}|{word.relation}\t{word.upos}\n")
        rows.append("\n")
    write_atomically(os.fspath(path), "".join(rows))
