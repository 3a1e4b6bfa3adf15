"""Groups of sequences: energies and chains take one length at a time, and what fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

MOST_SCORES = 2**25
"""Number of scores (chains x positions x vocabulary) that chains advanced together may keep."""


def of_one_length(lengths: Sequence[int], most: Callable[[int], int]) -> Iterator[list[int]]:
    """Places of sequences that have one length, the shortest first, and as many at a time as fit.

    Args:
        lengths: of the sequences.
        most: how many sequences of a length go together; 1 at least, whatever it says.

    Returns:
        Lists of places; each place is in one of them, and those of one length are in order.

    Example:
        >>> list(of_one_length([3, 2, 3, 3], lambda length: 6 // length))
        [[1], [0, 2], [3]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in itertools.groupby(order, key=lengths.__getitem__):
        alike = list(group)
        size = max(1, most(length))
        yield from (alike[first : first + size] for first in range(0, len(alike), size))


def chains_at_once(length: int, *, vocab_size: int, max_rows: int) -> int:
    """Number of chains that are advanced together: their scores fit the memory, and a model is given no more at once.

    Args:
        length: of their sequences.
        vocab_size: V.
        max_rows: how many masked sequences a model is given at once.

    Example:
        >>> chains_at_once(16, vocab_size=32, max_rows=1024), chains_at_once(16, vocab_size=2**15, max_rows=1024)
        (1024, 64)
    """
    return min(max_rows, MOST_SCORES // (length * vocab_size))
