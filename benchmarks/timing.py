"""What benchmarks share: systems that take turns, ratios by round, and how fast the machine multiplies matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

__all__ = ["median_ratio", "products_a_second", "time_in_turn"]


def time_in_turn(
    calls: Mapping[str, Callable[[], object]], rounds: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every call in every round, by a clock; another one begins each time.

    Each timed call follows an untimed one of its own kind: behind a call that fills caches and memory otherwise, the
    same one can take half as long again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            calls[name]()
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios by round."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def products_a_second(size: int = 1024, rounds: int = 9) -> float:
    """Floating-point operations of one large float32 matrix product in a second: what no model here can go beyond."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    seconds = time_in_turn({"product": lambda: left @ right}, rounds)["product"]
    return 2 * size**3 / statistics.median(seconds)
