"""What benchmarks share: systems that take turns, and ratios by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["median_ratio", "time_in_turn"]


def time_in_turn(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call in every round; another one begins each time.

    Each timed call follows an untimed one of its own kind: behind a call that fills caches and memory otherwise, the
    same one can take half as long again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            calls[name]()
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios by round."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))
