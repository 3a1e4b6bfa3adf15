"""Gradient checkpointing of a search: the backward pass recomputes the steps, segment by segment.

The graph of a search stores what every step has computed, and the past of a Transformer grows with the steps: T steps
store O(T^2) numbers. Under a checkpoint, a segment of s steps keeps only the beam that it begins with, and the rest is
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

# Length of the first segment, in segments. Pasts are short there, so keeping it takes only 2 / T of the memory of all.
FIRST = 2


def root(num_steps: int) -> int:
    """Return the square root of half the number of steps, rounded, at least 1."""
    return max(1, round(math.sqrt(num_steps / 2)))


def segment_of(model: object) -> Length | None:
    """Return :func:`root` for a model whose attribute ``gradient_checkpointing`` is true, else None."""
    return root if getattr(model, "gradient_checkpointing", False) else None


def segments(num_steps: int, length: Length | None) -> Iterator[tuple[range, bool]]:
    """Yield the steps of each segment, and whether the backward pass recomputes them; without a length, all in one.

    The first is kept, because pasts are short there and models compute what all later steps share; so is the last,
    because the backward pass begins there.

    Example:
        >>> list(segments(10, lambda _: 3))
        [(range(0, 6), False), (range(6, 9), True), (range(9, 10), False)]
    """
    width = num_steps if length is None or not torch.is_grad_enabled() else length(num_steps)
    for first in (0, *range(FIRST * width, num_steps, max(width, 1))):
        last = min(first + (width if first else FIRST * width), num_steps)
        if first < last:
            yield range(first, last), first > 0 and last < num_steps


def recomputed(
    function: Callable[[State], Iterable[Result]], state: State, *, generator: torch.Generator | None = None
) -> Collection[Result]:
    """Return the results of a function of a nested state; the graph keeps only the state and recomputes the results.

    Both calls draw the same random numbers, from torch's global generators and from the given one.
    """
    leaves, rebuild = tree.flatten(state)
    recomputation = _Recomputation(generator)

    def call(*leaves: object) -> Collection[Result]:
        # A recomputation only rebuilds the graph; its results are dropped, as each would keep its past in memory.
        return deque(function(rebuild(leaves)), maxlen=0 if recomputation.entered else None)

    return checkpoint(call, *leaves, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputation))


class _Recomputation(AbstractContextManager[None]):
    """Context of a recomputation, in which a generator repeats its numbers; each backward pass enters it."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator, self.entered = generator, False
        self._at_first_call = None if generator is None else generator.get_state()

    def __enter__(self) -> None:
        self.entered = True
        if self._generator is not None and self._at_first_call is not None:
            self._at_entry = self._generator.get_state()
            self._generator.set_state(self._at_first_call)

    def __exit__(self, *_: object) -> None:
        self.entered = False
        if self._generator is not None:
            self._generator.set_state(self._at_entry)
