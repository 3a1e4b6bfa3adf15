"""Clocks, systems that take turns, ratios by round, memory, and the speed of matrix products."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch

from seqwise.models.products import fast_linear

__all__ = ["clock_of", "cpu_seconds", "median_ratio", "peak_bytes", "products_a_second", "time_in_turn"]

CPU = torch.device("cpu")

Clock = Callable[[], float]
"""Function that returns the seconds since some moment."""


def clock_of(device: torch.device, on_cpu: Clock = time.perf_counter) -> Clock:
    """Return the clock for work on a device: ``on_cpu`` on the CPU, elsewhere wall-clock time after synchronisation.

    A device works asynchronously, and CPU seconds do not include its work.
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
    """Return the seconds of every call in every round; another call begins each round.

    Each timed call follows an untimed one of the same kind: after another kind, which uses caches and memory
    differently, it can take half as long again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            calls[name]()
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios by round."""
    return statistics.median(numerator / denominator for numerator, denominator in zip(above, below, strict=True))


def products_a_second(device: torch.device = CPU, *, dtype: torch.dtype = torch.float32, rounds: int = 9) -> float:
    """Return the floating-point operations per second of a large matrix product, which no model here can exceed."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    with torch.no_grad():
        call = {"product": lambda: fast_linear(left, right, None)}
        seconds = time_in_turn(call, rounds, clock=clock_of(device))["product"]
    return 2 * size**3 / statistics.median(seconds)


def cpu_seconds(arguments: Sequence[str], *, code: int = 0) -> float:
    """Run Python with some arguments, on one thread, and return its CPU seconds.

    Args:
        arguments: arguments of Python.
        code: the expected exit code.

    Raises:
        SystemExit: it ended with another exit code.
    """
    # Compiled modules are kept, as those of an installed package are.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != code:
        raise SystemExit(f"{' '.join(arguments)}: exit code {ended.returncode}: {ended.stderr.decode()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_bytes(call: Callable[[], object], device: torch.device = CPU) -> int:
    """Return the peak memory of the allocator during a call, beyond what it held before."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate((event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), initial=0))
