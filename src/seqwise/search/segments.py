"""Gradient checkpointing of a search: the backward pass takes the steps again, segment by segment.

The graph of a search keeps what every step has computed, and the past of a Transformer grows with the steps: T steps
keep O(T^2) numbers. Under a checkpoint, a segment of s steps keeps only the beam that it begins with, and the others
are computed again when the backward pass reaches it. T / s such beams and one segment take O(T^2 / s + s T), which is
smallest, O(T^1.5), where s is about the square root of T.

Source: Chen, Xu, Zhang and Guestrin (2016), section 4.1, there for layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from seqwise import tree

State = TypeVar("State")
Result = TypeVar("Result")


Length = Callable[[int], int]
"""Length of the segments of a search, given its number of steps."""


def root(num_steps: int) -> int:
    """Return the square root of the number of steps, rounded, at least 1."""
    return max(1, round(math.sqrt(num_steps)))


def segment_of(model: object) -> Length | None:
    """Return :func:`root` for a model whose attribute ``gradient_checkpointing`` is true, else None."""
    return root if getattr(model, "gradient_checkpointing", False) else None


def segments(num_steps: int, length: Length | None) -> Iterator[tuple[range, bool]]:
    """Yield the steps of each segment, and whether the backward pass takes them again; without a length, all in one.

    It never takes the first again, in which models make what later steps share, nor the last, with which it begins.

    Example:
        >>> list(segments(8, lambda _: 3))
        [(range(0, 3), False), (range(3, 6), True), (range(6, 8), False)]
    """
    width = num_steps if length is None or not torch.is_grad_enabled() else length(num_steps)
    for first in range(0, num_steps, max(width, 1)):
        last = min(first + width, num_steps)
        yield range(first, last), first > 0 and last < num_steps


def computed_again(
    function: Callable[[State], Result], state: State, *, generator: torch.Generator | None = None
) -> Result:
    """Call a function of a nested state, of which the graph keeps only this; the backward pass calls it again.

    Both calls draw the same random numbers, from torch's global generators and from the given one.
    """
    leaves, rebuild = tree.flatten(state)
    again = nullcontext() if generator is None else _Rewound(generator)
    return checkpoint(
        lambda *leaves: function(rebuild(leaves)),
        *leaves,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), again),
    )


class _Rewound(AbstractContextManager[None]):
    """Context in which a generator draws what it was about to draw when this was made; each backward pass enters it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._then = generator, generator.get_state()

    def __enter__(self) -> None:
        self._now = self._generator.get_state()
        self._generator.set_state(self._then)

    def __exit__(self, *_: object) -> None:
        self._generator.set_state(self._now)
