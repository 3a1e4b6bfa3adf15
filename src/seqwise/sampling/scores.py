"""Scores of tokens and their sums over words and texts.

Shapes: T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor

from seqwise.errors import InputError
from seqwise.names import ScoreUnit

Span = tuple[int, int]
"""Range of characters in a text, from the first to the one after the last."""

NATS_OF: dict[ScoreUnit, float] = {"nats": 1.0, "bits": math.log(2)}


def pseudo_perplexity(log_prob: float, num_tokens: int) -> float:
    """Compute ``exp(-log_prob / num_tokens)`` of one or many sequences, at most e^700.

    Source: Salazar et al. (ACL 2020), section 4.

    Example:
        >>> round(pseudo_perplexity(-6.0, 3), 3)
        7.389
    """
    return math.exp(min(-log_prob / num_tokens, 700.0))


def with_contexts(
    texts: Iterable[str], prefixes: Sequence[str] | None, suffixes: Sequence[str] | None = None
) -> list[tuple[str, str, str]]:
    """Combine texts with their prefixes and suffixes, by default empty.

    Raises:
        InputError: there is a single text instead of a list, an entry is not text, or the numbers differ.

    Example:
        >>> with_contexts(["a cat", "dogs"], ["see", ""])
        [('a cat', 'see', ''), ('dogs', '', '')]
    """
    given: dict[str, Any] = {"text": texts, "prefix": prefixes, "suffix": suffixes}
    if any(isinstance(values, str) for values in given.values()):
        raise InputError("one text was given where several were expected", hint="give a list of texts")
    given["text"] = texts = list(texts)
    columns = []
    for role, values in given.items():
        column = [""] * len(texts) if values is None else values
        if len(column) != len(texts):
            raise InputError(f"{len(column)} {role}es for {len(texts)} texts", hint="give one for each, '' for none")
        for number, value in enumerate(column, start=1):
            if not isinstance(value, str):
                problem = f"{role} {number}: a text was expected, got {type(value).__name__}"
                raise InputError(problem, hint="give a list of str")
        columns.append(column)
    return list(zip(*columns, strict=True))


class WordScore(NamedTuple):
    """Word with the sum of its tokens' scores, in nats, and its characters, or None if unknown."""

    word: str
    start: int | None
    end: int | None
    log_prob: float


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Tokens, without special ones, with their log-probabilities, in nats, on the CPU.

    Attributes:
        tokens: tokens as in the vocabulary.
        token_log_probs_T: ``log p(token | unmasked tokens)`` of a masked model, ``log p(token | previous tokens)`` of
            one that reads from left to right.
        words_T: nondecreasing number of each token's word; by default each token is a word.
        spans: characters of each token in the text, None if unknown, as by default.

    Example:
        >>> import torch
        >>> scores = TokenScores(("the", "d", "##og"), torch.tensor([-1.0, -3.0, -0.5]), words_T=(0, 1, 1))
        >>> scores.log_prob, scores.mean_log_prob, [word.log_prob for word in scores.words()]
        (-4.5, -1.5, [-1.0, -3.5])
    """

    tokens: tuple[str, ...]
    token_log_probs_T: Tensor
    words_T: tuple[int, ...] = field(default=(), kw_only=True)
    spans: tuple[Span | None, ...] = field(default=(), kw_only=True)

    @property
    def log_prob(self) -> float:
        """Sum over tokens; for a masked model, the pseudo-log-likelihood."""
        return float(self.token_log_probs_T.double().sum())

    @property
    def mean_log_prob(self) -> float:
        """Mean over tokens."""
        return self.log_prob / len(self.tokens)

    @property
    def pseudo_perplexity(self) -> float:
        """``exp(-log_prob / T)``, at most e^700; for a causal model, the perplexity."""
        return pseudo_perplexity(self.log_prob, len(self.tokens))

    def words(self, text: str | None = None) -> list[WordScore]:
        """Sum scores by word.

        Args:
            text: text of the spans; without it or spans, a word is written as its tokens.
        """
        values = self.token_log_probs_T.double().tolist()
        numbers: Sequence[int] = self.words_T or range(len(self.tokens))
        groups = [list(places) for _, places in groupby(range(len(self.tokens)), key=numbers.__getitem__)]
        return [
            WordScore(*_written(text, group, self.tokens, self.spans), math.fsum(values[place] for place in group))
            for group in groups
        ]


def _written(
    text: str | None, group: Sequence[int], tokens: Sequence[str], spans: Sequence[Span | None]
) -> tuple[str, int | None, int | None]:
    known = [span for place in group if spans and (span := spans[place]) is not None]
    if text is None or not known:
        return "".join(tokens[place] for place in group), None, None
    known = [span for span in known if span[0] < span[1]] or known  # blanks have empty spans
    start, end = min(span[0] for span in known), max(span[1] for span in known)
    return text[start:end], start, end


@dataclass(frozen=True, eq=False)
class TextScore(TokenScores):
    """Text with scores of its tokens, in nats.

    Attributes:
        text: the given text.
        prefix: context before it; for an encoder-decoder, the source.
        suffix: context after it, for a masked model.
        num_windows: number of windows for a text longer than the model, else 0.
        num_unknown: number of unknown tokens.
        lower_bound: lower bound of log p(text) under a masked model as a diffusion model, if requested.
        is_pseudo: whether a masked model gave the scores, so that their sum is not log p(text).
    """

    text: str
    prefix: str = ""
    suffix: str = ""
    num_windows: int = 0
    num_unknown: int = 0
    lower_bound: float | None = None
    is_pseudo: bool = True

    def record(self, unit: ScoreUnit = "nats") -> dict[str, Any]:
        """Return sums, means, tokens and words as a JSON record, in a named unit."""

        def in_unit(value: float) -> float:
            return round(value / NATS_OF[unit], 4) + 0.0  # turns -0.0 into 0.0

        record: dict[str, Any] = {"text": self.text}
        record |= {name: text for name in ("prefix", "suffix") if (text := getattr(self, name))}
        record |= {"log_prob": in_unit(self.log_prob), "mean_log_prob": in_unit(self.mean_log_prob), "unit": unit}
        record |= {"tokens": list(self.tokens), "token_log_probs": list(map(in_unit, self.token_log_probs_T.tolist()))}
        record["words"] = [
            {"word": word.word, "start": word.start, "end": word.end, "surprisal": in_unit(-word.log_prob)}
            for word in self.words(self.text)
        ]
        record["pseudo_perplexity" if self.is_pseudo else "perplexity"] = round(self.pseudo_perplexity, 4)
        if self.lower_bound is not None:
            record["lower_bound"] = in_unit(self.lower_bound)
        counts = {"windows": self.num_windows, "unknown": self.num_unknown}
        record |= {name: count for name, count in counts.items() if count}
        return record

    def rows(self, unit: ScoreUnit = "nats", **more: Any) -> list[dict[str, Any]]:
        """Return a flat dict for each token, for a data frame; ``more`` comes first in each."""
        rows, numbers = [], self.words_T or tuple(range(len(self.tokens)))
        for place, value in enumerate(self.token_log_probs_T.double().tolist()):
            start, end = (self.spans[place] if self.spans else None) or (None, None)
            row = {"token": self.tokens[place], "word": numbers[place] - numbers[0], "start": start, "end": end}
            log_prob = value / NATS_OF[unit]
            rows.append({**more, **row, "log_prob": log_prob, "surprisal": -log_prob, "unit": unit})
        return rows


def located(pieces: Sequence[str], text: str) -> tuple[Span | None, ...]:
    """Locate successive pieces in a text, as written or in lower case; None if missing.

    Example:
        >>> located(["the", "zebra", "ran"], "The  okapi ran")
        ((0, 3), None, (11, 14))
    """
    lowered = text.lower() if len(text.lower()) == len(text) else text
    spans: list[Span | None] = []
    cursor = 0
    for piece in pieces:
        places = [text.find(piece, cursor), lowered.find(piece.lower(), cursor)] if piece else []
        at = min((place for place in places if place >= 0), default=-1)
        skipped = text[cursor:at].strip() if at >= 0 else ""
        if at < 0 or (skipped and (not spans or spans[-1] is not None)):
            spans.append(None)
            continue
        spans.append((at, at + len(piece)))
        cursor = at + len(piece)
    return tuple(spans)
