"""N-best lists with a second score: read from files, ranked by a weighted sum, with a weight tuned on development data.

Shapes: N inputs, H candidates of all inputs concatenated, C sums of a measure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqwise.data.readers import read_lines
from seqwise.data.records import is_number
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Floats, Sums

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Weights of a second score to try, in ascending order."""


@dataclass(frozen=True)
class Candidate:
    """Output of the first model, with its score (higher is better)."""

    text: str
    score: float


@dataclass(frozen=True)
class NBest:
    """Input with its candidates, and its place in a file."""

    source: str
    candidates: tuple[Candidate, ...]
    path: str = ""
    line: int = 0


def read_nbest(path: str | os.PathLike[str]) -> list[NBest]:
    """Read the lists that ``seqwise predict --json --n-best`` writes: one object per line; blank lines are skipped."""
    hint = "write it with seqwise predict --n-best N --json"
    lists = []
    for line, text in read_lines(path):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("not a JSON object", path=path, line=line, hint=hint) from None
        try:
            candidates = tuple(map(_candidate, record["outputs"]))
            lists.append(NBest(_text(record["input"]), candidates, os.fspath(path), line))
        except (KeyError, TypeError, ValueError, OverflowError):
            problem = "not an n-best list: expected an input and outputs, each with an output and a finite score"
            raise InputError(problem, path=path, line=line, hint=hint) from None
        if not candidates:
            raise InputError("a list without an output", path=path, line=line, hint=hint)
    if not lists:
        raise InputError("no n-best list in the file", path=path, hint=hint)
    return lists


def _candidate(record: Any) -> Candidate:
    if not is_number(record["score"]):
        raise ValueError
    return Candidate(_text(record["output"]), float(record["score"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """All candidates of all inputs, with both scores."""

    starts_N: npt.NDArray[np.intp]  # index of the first candidate of each input
    scores_H: Floats  # of the model that made them
    seconds_H: Floats  # the second scores
    words_H: Floats  # length of each candidate, in words

    def totals(self, weight: float, *, word_bonus: float = 0.0) -> Floats:
        """Return ``score + weight (second + word_bonus words)`` of each candidate."""
        return self.scores_H + weight * (self.seconds_H + word_bonus * self.words_H)

    def best(self, weight: float, *, word_bonus: float = 0.0) -> npt.NDArray[np.intp]:
        """Return the index of each input's best candidate by its total, (N,), the first of ties.

        A constant in every log Z of the second score acts as a word bonus: with the bonus tuned too, scores of models
        that were normalised to different constants can be compared.
        """
        totals_H = self.totals(weight, word_bonus=word_bonus)
        highest_N = np.maximum.reduceat(totals_H, self.starts_N)
        sizes_N = np.diff(self.starts_N, append=len(totals_H))
        is_best_H = totals_H == np.repeat(highest_N, sizes_N)
        owners_H = np.repeat(np.arange(len(sizes_N)), sizes_N)[is_best_H]
        firsts_N = np.unique(owners_H, return_index=True)[1]
        return np.flatnonzero(is_best_H)[firsts_N]


def candidate_table(lists: Sequence[Sequence[Candidate]], seconds: Iterable[Sequence[float]]) -> CandidateTable:
    """Make a table of candidates and their second scores."""
    scores_H = np.array([candidate.score for candidates in lists for candidate in candidates])
    seconds_H = np.array([score for scores in seconds for score in scores], dtype=np.float64)
    if not (np.isfinite(scores_H).all() and np.isfinite(seconds_H).all()):
        raise InputError("a score of an n-best list, or of the language model, is not a finite number")
    words_H = np.array([float(len(candidate.text.split())) for candidates in lists for candidate in candidates])
    starts_N = np.cumsum([0, *(len(candidates) for candidates in lists[:-1])])
    return CandidateTable(starts_N, scores_H, seconds_H, words_H)


class Tuned(NamedTuple):
    """Chosen weight and word bonus, with the value of the measure."""

    weight: float
    word_bonus: float
    value: float


def tune(
    table: CandidateTable, counts: Sums, *, weights: Sequence[float] = WEIGHTS, word_bonuses: Sequence[float] = (0.0,)
) -> Tuned:
    """Choose the weight of the second score and the word bonus from a grid, by the measure of the best candidates.

    Source: in Andreas and Klein (2015), section 5, the language model is one of the features that a translation system
    tunes. Not implemented: more than two features, and searches finer than the grid.
    """
    tried = (
        Tuned(weight, bonus, Sums(counts.columns_NC[table.best(weight, word_bonus=bonus)], counts.combine).value)
        for weight, bonus in product(weights, word_bonuses)
    )
    return max(tried, key=lambda choice: choice.value)
