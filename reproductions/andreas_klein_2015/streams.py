"""Text of any size as a stream of (context, next word) batches, in constant memory.

Shapes: N positions, C context words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqwise.data.readers import BLANKS, read_lines
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError

UNKNOWN, END = "<unk>", "</s>"
"""Tokens of each vocabulary."""

BEFORE = -1
"""Padding of contexts before the first word of a sentence, which is not a word id."""

CHUNK_POSITIONS = 4096  # made at once: few enough for a cache, and enough to make NumPy's overhead negligible

Rows = npt.NDArray[np.int64]  # (N, 1 + C): the word to predict, then its context, the nearest word first


class Sentence(NamedTuple):
    """Words of a line, with its place in a file."""

    tokens: tuple[str, ...]
    path: str = ""
    line: int = 0


class Positions(NamedTuple):
    """N positions in a text: their contexts and words."""

    contexts_NC: Tensor  # int64; column d - 1 holds the word at distance d to the left, or `BEFORE`
    words_N: Tensor  # int64, the word to predict


def read_sentences(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Sentence]:
    """Yield the sentences of plain or gzipped files: one per line, words between blanks; blank lines are skipped."""
    named = False
    for path in paths:
        named, empty = True, True
        for line, text in read_lines(path):
            tokens = tuple(token for token in BLANKS.split(text) if token)
            if tokens:
                empty = False
                yield Sentence(tokens, os.fspath(path), line)
        if empty:
            raise InputError("no word in the file", path=path, hint="write one sentence per line")
    if not named:
        raise InputError("there is no file to read", hint="name at least one")


def build_vocabulary(sentences: Iterable[Sentence], *, minimum_count: int = 1) -> Vocabulary:
    """Build the vocabulary of a text, in one pass; memory grows with the number of distinct words only."""

    def checked() -> Iterator[tuple[str, ...]]:
        for sentence in sentences:
            if END in sentence.tokens:
                problem, hint = f"the text holds {END!r}, which marks its end", "remove it, or write it in another way"
                raise InputError(problem, path=sentence.path or None, line=sentence.line or None, hint=hint)
            yield sentence.tokens

    return Vocabulary.build(checked(), minimum_count=minimum_count, unknown=UNKNOWN, end=END)


def encode(sentence: Sentence, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of the words and of the end token."""
    ids = vocabulary.encode(sentence.tokens, path=sentence.path or None, line=sentence.line or None)
    return ids if vocabulary.end_id is None else [*ids, vocabulary.end_id]


def gather_positions(sequences: Iterable[Sequence[int]], *, context_size: int) -> Positions:
    """Return every position of some sentences; no context extends into the sentence before."""
    return _as_positions(_rows(sequences, context_size))


def _rows(sequences: Iterable[Sequence[int]], context_size: int) -> Rows:
    before = [BEFORE] * context_size
    flat = list(before)
    for ids in sequences:
        flat += ids
        flat += before
    text = np.array(flat, dtype=np.int64)
    places = np.flatnonzero(text >= 0)
    return text[places[:, None] - np.arange(context_size + 1)]


def _as_positions(rows: Rows) -> Positions:
    # Copied, because a view would keep the whole chunk alive as long as one of its batches.
    return Positions(torch.from_numpy(rows[:, 1:].copy()), torch.from_numpy(rows[:, 0].copy()))


def stream_positions(
    sentences: Iterable[Sentence],
    vocabulary: Vocabulary,
    *,
    context_size: int,
    batch_size: int,
    shuffle_buffer: int = 0,
    seed: int = 0,
) -> Iterator[Positions]:
    """Yield every position of a text once, in batches: each word, and the end of each sentence, with its context.

    Memory holds the buffer, one chunk of a few thousand positions, and one line. Each time the buffer is full, a random
    half of it leaves in random order, and the text fills it up again. A position may wait arbitrarily long, but never
    leaves more than ``shuffle_buffer`` positions early.
    """
    chunks = _chunks(sentences, vocabulary, context_size)
    if shuffle_buffer:
        chunks = _mixed(chunks, shuffle_buffer, np.random.default_rng(seed))
    return map(_as_positions, _batches(chunks, batch_size))


def _chunks(sentences: Iterable[Sentence], vocabulary: Vocabulary, context_size: int) -> Iterator[Rows]:
    waiting: list[list[int]] = []
    num_waiting = 0
    for sentence in sentences:
        waiting.append(encode(sentence, vocabulary))
        num_waiting += len(waiting[-1])
        if num_waiting >= CHUNK_POSITIONS:
            yield _rows(waiting, context_size)
            waiting, num_waiting = [], 0
    if waiting:
        yield _rows(waiting, context_size)


def _mixed(chunks: Iterator[Rows], buffer_size: int, random: np.random.Generator) -> Iterator[Rows]:
    held: Rows | None = None
    for chunk in chunks:
        # A long line makes a long chunk; only what the buffer has room for enters at once.
        while len(chunk):
            room = buffer_size - (0 if held is None else len(held))
            held = chunk[:room] if held is None else np.concatenate([held, chunk[:room]])
            chunk = chunk[room:]
            if len(held) == buffer_size:
                held = random.permutation(held)
                leaving = (buffer_size + 1) // 2
                yield held[:leaving]
                held = held[leaving:]
    if held is not None and len(held):
        yield random.permutation(held)


def _batches(chunks: Iterator[Rows], batch_size: int) -> Iterator[Rows]:
    rest: Rows | None = None
    for chunk in chunks:
        rows = chunk if rest is None else np.concatenate([rest, chunk])
        full = len(rows) - len(rows) % batch_size
        yield from (rows[start : start + batch_size] for start in range(0, full, batch_size))
        rest = rows[full:]
    if rest is not None and len(rest):
        yield rest
