"""From how many examples on a bootstrap can tell a difference from chance."""

from __future__ import annotations

from seqwise.evaluation.metrics import Sums

FEWEST = 10
"""Examples without which nothing is sure: the bootstrap of one has no width, and that of a few hardly any."""


def enough_examples(sums: Sums) -> bool:
    """Whether a measure rests on so many examples that the bootstrap can tell what chance may do.

    Example:
        >>> from seqwise.evaluation.metrics import Counts
        >>> enough_examples(Counts([0] * 10)), enough_examples(Counts([0] * 10, [1] * 9 + [0]))
        (True, False)
    """
    return num_examples(sums) >= FEWEST


def num_examples(sums: Sums) -> int:
    """Number of examples that a measure rests on; those that add nothing to any sum do not count."""
    return int((sums.columns_NC != 0).any(axis=1).sum())
