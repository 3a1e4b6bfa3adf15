"""Random choices of kernels, which request each by its probabilities.

A kernel can therefore run with separate random numbers for each chain, or over every possible choice, which gives its
exact transition probabilities (:mod:`seqwise.sampling.correctness`).

Shapes: B chains, V choices.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Draws(Protocol):
    """Random choices for B chains; a chain that is not live gets an arbitrary result and consumes no numbers."""

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        """Draw one of V choices for each chain, int64 (B,), with probability proportional to exp(log_weights)."""
        ...

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        """Return true with probability ``min(1, exp(log_probs))``, bool (B,)."""
        ...


class SeededDraws:
    """Choices by numbers that depend only on the seed, the chain, the sweep, and the count of numbers used so far.

    So a chain draws the same numbers in any batch, on every device, and after a resume.

    Source: SplitMix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators).

    Example:
        >>> draws = SeededDraws(0, torch.arange(3), sweep=0)
        >>> alone = SeededDraws(0, torch.tensor([2]), sweep=0)
        >>> bool(draws.uniform(torch.ones(3).bool())[2] == alone.uniform(torch.ones(1).bool())[0])
        True
    """

    def __init__(self, seed: int, chain_B: Tensor, *, sweep: int) -> None:
        root = torch.full_like(chain_B, _signed(seed))
        self._start_B = _mixed(_mixed(_mixed(root + _GAMMA) + _GAMMA * (chain_B + 1)) + _signed(_GAMMA * (sweep + 1)))
        self._used_B = torch.zeros_like(chain_B)

    def uniform(self, live_B: Tensor) -> Tensor:
        """Return the next number of each chain in [0, 1), float64 (B,); chains that are not live consume none."""
        number_B = _shifted(_mixed(self._start_B + _GAMMA * (self._used_B + 1)), 11).double() * 2.0**-53
        self._used_B = self._used_B + live_B.long()
        return number_B

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        """See :class:`Draws`; by inversion, one number per choice."""
        return choice_at(self.uniform(live_B), log_weights_BV)

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        """See :class:`Draws`; one number per decision."""
        return self.uniform(live_B) < log_probs_B.double().exp()


def choice_at(uniform_B: Tensor, log_weights_BV: Tensor) -> Tensor:
    """Return the choice whose part of the unit interval contains a number: (B,) and (B, V) to int64 (B,)."""
    sums_BV = log_weights_BV.double().softmax(-1).cumsum(-1)
    total_B = sums_BV[:, -1]
    # Rounding must not reach the total, after which there may be choices of weight 0.
    point_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return (sums_BV <= point_B[:, None]).sum(-1)


def _signed(number: int) -> int:
    """Reinterpret an unsigned 64-bit integer as torch's int64."""
    return (number + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(bits: Tensor, count: int) -> Tensor:
    # torch shifts in the sign bit from the left, where an unsigned shift has zeros.
    return (bits >> count) & (2 ** (64 - count) - 1)


def _mixed(bits: Tensor) -> Tensor:
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)
