"""What benchmarks share: clocks, systems that take turns, ratios by round, memory, and the speed of matrix products."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

__all__ = ["clock_of", "median_ratio", "peak_bytes", "products_a_second", "time_in_turn"]

CPU = torch.device("cpu")

Clock = Callable[[], float]
"""Seconds from some moment on."""


def clock_of(device: torch.device, on_cpu: Clock = time.perf_counter) -> Clock:
    """The clock of work on a device: one of choice for the CPU, elsewhere wall-clock time when the device is done.

    A device works on after it has been told what to do, and seconds of the processor say nothing about it.
    """
    if device.type == "cpu":
        return on_cpu

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def time_in_turn(
    calls: Mapping[str, Callable[[], object]], rounds: int, *, clock: Clock = time.perf_counter
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


def products_a_second(device: torch.device = CPU, *, dtype: torch.dtype = torch.float32, rounds: int = 9) -> float:
    """Floating-point operations of one large matrix product in a second: what no model here can go beyond."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    seconds = time_in_turn({"product": lambda: left @ right}, rounds, clock=clock_of(device))["product"]
    return 2 * size**3 / statistics.median(seconds)


def peak_bytes(call: Callable[[], object], device: torch.device = CPU) -> int:
    """The most that the allocator held at a time during a call, above what it held before."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
