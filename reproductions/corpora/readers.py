"""Readers of the corpora of the reproductions, from the folder ``SEQWISE_DATA``; see `docs/data.md`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from reproductions.systems import Data
from seqwise.data.durable import sha256_of_file
from seqwise.data.readers import Example, read_columns, read_pairs
from seqwise.data.subwords import Subwords, learn_subwords, split_text
from seqwise.errors import InputError
from seqwise.runs.measures import references_by_source

PIECES = 4000
"""Size of the joint subword vocabulary of a translation pair."""
EVERY = 6  # one in this many training pairs is used: 27,473
LONG_LENGTHS = (20, 50)
"""Range, ends included, from which the smallest number of words of each concatenated source is drawn."""
EVERY_IN_LONG = 4  # one in this many training pairs of the whole corpus is also part of a concatenation

SUPERTAGS = {
    # corpus: folder, training, development and test file
    "ewt": ("supertag-ud-ewt", "train.tsv.gz", "dev.tsv.gz", "test.tsv.gz"),
    "erg": ("supertag-erg", "train_silver.tsv.gz", "dev.tsv.gz", "test_wiki.tsv.gz"),
    "pmb": ("supertag-ccg-pmb", "en.train.tsv.gz", "en.dev.tsv", "en.test.tsv"),
}


def corpus(name: str) -> Path:
    """Return the folder of a corpus."""
    root = os.environ.get("SEQWISE_DATA")
    if not root:
        problem = f"the corpus {name} is needed, and SEQWISE_DATA is not set"
        raise InputError(problem, hint=f"set SEQWISE_DATA to the folder that holds {name}")
    folder = Path(root) / name
    if not folder.is_dir():
        raise InputError("the corpus is missing", path=folder, hint="set SEQWISE_DATA to the folder that holds it")
    return folder


@cache
def named_entities() -> Data:
    """Read German named entities, GermEval 2014 re-split: 5,100 / 1,100 / 1,100 sentences, 9 BIO labels."""
    return columns("ner-de-germeval14", "train.tsv.gz", "dev.tsv", "test.tsv")


@cache
def supertags(name: str) -> Data:
    """Read the supertags "ewt" (dependency), "erg" (HPSG lexical types) or "pmb" (CCG categories)."""
    return columns(*SUPERTAGS[name])


def columns(name: str, *files: str) -> Data:
    """Read a corpus of labelled words from its training, development and test file."""
    folder = corpus(name)

    def read(file: str) -> list[Example]:
        return read_columns(folder / file, label_column=1)

    train, dev, test = map(read, files)
    return Data(train=train, dev=dev, test=test, sources=(source_of(folder / files[0]),))


@cache
def translation(*, every: int = EVERY) -> Data:
    """Read Tatoeba, German to English, every sixth training pair, in subwords; sources of other parts are distinct."""
    train, dev, test = ([split_pair(pair, translation_subwords()) for pair in pairs] for pairs in _translation(every))
    return Data(train=train, dev=dev, test=test, sources=_translation_sources())


@cache
def long_translation() -> Data:
    """Read all 164,834 training pairs of Tatoeba in the same subwords; concatenations follow the sentences.

    Tatoeba's sentences have 6.5 words on average, and almost none has more than 20. So in each part, randomly drawn
    sentences are concatenated until a randomly drawn number of words is reached. Each development and test source is in
    one concatenation, and so is one in four training pairs.
    """
    train, dev, test = ([split_pair(pair, translation_subwords()) for pair in pairs] for pairs in _with_long())
    return Data(train=train, dev=dev, test=test, sources=_translation_sources())


def _with_long() -> Iterable[list[Example]]:
    """List training, development and test pairs, each followed by its concatenations."""
    train, dev, test = _translation(1)
    for pairs, parts in ((train, train[::EVERY_IN_LONG]), (dev, dev), (test, test)):
        yield [*pairs, *(_concatenated([parts[place] for place in places]) for places in long_groups(parts))]


def _concatenated(pairs: Sequence[Example]) -> Example:
    source, target = (
        tuple(chain.from_iterable(side)) for side in zip(*((p.source, p.target) for p in pairs), strict=True)
    )
    return replace(pairs[0], source=source, target=target)


def long_groups(pairs: Sequence[Example]) -> list[list[int]]:
    """Group pairs randomly, and return the indices of each group; the last group is dropped if it is too short."""
    generator = np.random.default_rng(0)
    low, high = LONG_LENGTHS
    groups: list[list[int]] = []
    group: list[int] = []
    words, enough = 0, int(generator.integers(low, high + 1))
    for place in generator.permutation(len(pairs)).tolist():
        group.append(place)
        words += len(pairs[place].source)
        if words >= enough:
            groups.append(group)
            group, words, enough = [], 0, int(generator.integers(low, high + 1))
    return groups


@cache
def translation_subwords() -> Subwords:
    """Return the subwords of :func:`translation`, joint for the two languages."""
    texts = (join(side) for pair in _translation(EVERY)[0] for side in (pair.source, pair.target))
    return learn_subwords(texts, size=PIECES)


@cache
def translation_text() -> Data:
    """Read the pairs of :func:`translation` as raw text, each side one token."""
    train, dev, test = (
        [replace(pair, source=(join(pair.source),), target=(join(pair.target),)) for pair in pairs]
        for pairs in _translation(EVERY)
    )
    return Data(train=train, dev=dev, test=test, sources=_translation_sources())


def _translation_sources() -> tuple[str, ...]:
    return (source_of(corpus("mt-de-en-tatoeba") / "train.tsv.gz"),)


def source_of(path: Path) -> str:
    """Name a training file by folder, name and SHA-256, for a signature."""
    return f"{path.parent.name}/{path.name} {sha256_of_file(path)}"


@cache
def _translation(every: int) -> tuple[list[Example], ...]:
    return _pairs("train.tsv.gz")[::every], *(_unique(part)[0] for part in ("dev", "test"))


@cache
def translation_references(part: str) -> list[list[str]]:
    """Return all translations of each source of "dev" or "test", as text."""
    return [[join(option) for option in options] for options in _unique(part)[1]]


@cache
def long_translation_references(part: str) -> list[list[str]]:
    """Return all translations of each source of :func:`long_translation`, as text.

    A concatenation has as many as its sentence with the most; the translations of the others are used in turn.
    """
    examples, options = _unique(part)
    groups = ([options[place] for place in places] for places in long_groups(examples))
    long = [
        [join(chain.from_iterable(each[turn % len(each)] for each in group)) for turn in range(max(map(len, group)))]
        for group in groups
    ]
    return [*translation_references(part), *long]


def join(words: Iterable[str]) -> str:
    """Join words to text."""
    return " ".join(words)


def _unique(part: str) -> tuple[list[Example], list[list[tuple[str, ...]]]]:
    return references_by_source(_pairs({"dev": "valid.tsv.gz", "test": "test.tsv.gz"}[part]))


def _pairs(file: str) -> list[Example]:
    return read_pairs(corpus("mt-de-en-tatoeba") / file, source_units="words", target_units="words")


def split_pair(pair: Example, subwords: Subwords) -> Example:
    """Split both sides of a pair into subwords."""
    return replace(pair, source=split_text(join(pair.source), subwords), target=split_text(join(pair.target), subwords))
