"""Errors of outputs by token: alignment with gold, scores of each label, and confusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from seqwise.evaluation.entities import TypeScores, type_scores
from seqwise.evaluation.metrics import Tokens, edit_distances

Pair: TypeAlias = tuple[str | None, str | None]
"""Output token and the gold token at its position; None if one is missing."""


def align(output: Tokens, gold: Tokens) -> list[Pair]:
    """Align an output with gold by the fewest insertions, deletions and substitutions, each with cost 1.

    Ties go to the alignment that substitutes as late as possible.

    Example:
        >>> align("a cat sat".split(), "a black cat ran".split())
        [('a', 'a'), (None, 'black'), ('cat', 'cat'), ('sat', 'ran')]
    """
    costs = list(edit_distances(output, gold))
    aligned: list[Pair] = []
    i, j = len(output), len(gold)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (output[i - 1] != gold[j - 1]):
            i, j = i - 1, j - 1
            aligned.append((output[i], gold[j]))
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
            aligned.append((output[i], None))
        else:
            j -= 1
            aligned.append((None, gold[j]))
    return aligned[::-1]


def by_position(output: Tokens, gold: Tokens) -> list[Pair]:
    """Pair labels with the gold labels at their positions; missing output positions have None.

    Example:
        >>> by_position(["D"], ["D", "N"])
        [('D', 'D'), (None, 'N')]
    """
    return [(output[t] if t < len(output) else None, label) for t, label in enumerate(gold)]


def label_scores(pairs: Iterable[Pair]) -> dict[str, TypeScores]:
    """Return precision, recall, F1 and the number of gold tokens of each label.

    Example:
        >>> label_scores([("D", "D"), ("N", "D"), ("N", "N")])["D"]
        TypeScores(precision=1.0, recall=0.5, f1=0.6666666666666666, support=2)
    """
    counted = Counter(pairs)
    right: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for (output, label), count in counted.items():
        if output is not None:
            predicted[output] += count
        if label is not None:
            gold[label] += count
            right[label] += count * (output == label)
    return {label: type_scores(right[label], predicted[label], gold[label]) for label in {**gold, **predicted}}


def confusions(pairs: Iterable[Pair]) -> Counter[Pair]:
    """Count the pairs that differ.

    Example:
        >>> confusions([("D", "D"), ("N", "D"), (None, "N"), ("N", "D")]).most_common(1)
        [(('N', 'D'), 2)]
    """
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def num_errors(pairs: Sequence[Pair]) -> int:
    """Count the edits, or wrong labels, of an output."""
    return sum(output != gold for output, gold in pairs)
