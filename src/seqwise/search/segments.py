"""Gradient checkpointing of a search: the backward pass recomputes the steps, segment by segment.

The graph of a search keeps what every step has computed, and the past of a Transformer grows with the steps: T steps
keep O(T^2) numbers. Under a checkpoint, a segment of s steps keeps only the beam that it begins with, and the rest is
computed again when the backward pass reaches it. T / s such beams and one segment take O(T^2 / s + s T), which is
smallest, O(T^1.5), for s in the order of the square root of T.

Source: Chen, Xu, Zhang and Guestrin (2016), section 4.1, there for layers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from seqwise import tree

State = TypeVar("State")
Result = TypeVar("Result")

Length = Callable[[int], int]
"""Length of the segments of a search, given its number of steps."""

# Length of the first segment, in segments: with a growing past, to keep it takes 2 / T of all memory.
FIRST = 2


def root(num_steps: int) -> int:
    """Return the square root of half the number of steps, rounded, at least 1."""
    return max(1, round(math.sqrt(num_steps / 2)))


def segment_of(model: object) -> Length | None:
    """Return :func:`root` for a model whose attribute ``gradient_checkpointing`` is true, else None."""
    return root if getattr(model, "gradient_checkpointing", False) else None


def segments(num_steps: int, length: Length | None) -> Iterator[tuple[range, bool]]:
    """Yield the steps of each segment, and whether the backward pass recomputes them; without a length, all in one.

    It never takes the first again, in which pasts are short and models make what later steps share, nor the last, with
    which it begins.

    Example:
        >>> list(segments(10, lambda _: 3))
        [(range(0, 6), False), (range(6, 9), True), (range(9, 10), False)]
    """
    width = num_steps if length is None or not torch.is_grad_enabled() else length(num_steps)
    for first in (0, *range(FIRST * width, num_steps, max(width, 1))):
        last = min(first + (width if first else FIRST * width), num_steps)
        if first < last:
            yield range(first, last), first > 0 and last < num_steps


def computed_again(
    function: Callable[[State], Iterable[Result]], state: State, *, generator: torch.Generator | None = None
) -> Collection[Result]:
    """Return the results of a function of a nested state; the graph keeps only the state, and calls the function again.

    Both calls draw the same random numbers, from torch's global generators and from the given one.
    """
    leaves, rebuild = tree.flatten(state)
    again = _Again(generator)

    def call(*leaves: object) -> Collection[Result]:
        # The second time, the graph is all that is wanted: each result would hold its past.
        return deque(function(rebuild(leaves)), maxlen=0 if again.entered else None)

    return checkpoint(call, *leaves, use_reentrant=False, context_fn=lambda: (nullcontext(), again))


class _Again(AbstractContextManager[None]):
    """Context of a second call, in which a generator draws the numbers of the first; each backward pass enters it."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator, self.entered = generator, False
        self._then = None if generator is None else generator.get_state()

    def __enter__(self) -> None:
        self.entered = True
        if self._generator is not None and self._then is not None:
            self._now = self._generator.get_state()
            self._generator.set_state(self._then)

    def __exit__(self, *_: object) -> None:
        self.entered = False
        if self._generator is not None:
            self._generator.set_state(self._now)
