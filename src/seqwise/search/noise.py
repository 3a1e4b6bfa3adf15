"""Noise on candidate scores, for selections that sample instead of maximising."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Noise = Callable[[Tensor, torch.Generator | None], Tensor]
"""Function from scores and a generator to noisy scores of the same shape."""


def no_noise(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the scores unchanged."""
    return scores


@dataclass(frozen=True)
class Gumbel:
    """Independent standard Gumbel noise on each candidate: the argmax of ``f + G`` is a sample of softmax(f).

    For K = 1 only. For K > 1, fresh noise at each step is *not* stochastic beam search (Kool et al. 2019), which
    conditions the noise of each step on the previous one.

    Example:
        >>> Gumbel()(torch.zeros(2), torch.Generator().manual_seed(0)).shape
        torch.Size([2])
    """

    def __call__(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return scores plus noise from ``generator`` or torch's global one."""
        exponential = torch.empty_like(scores, requires_grad=False).exponential_(generator=generator)
        # An exact zero, which float32 can draw, would be infinite noise.
        return scores - exponential.clamp_(min=torch.finfo(scores.dtype).tiny).log()
