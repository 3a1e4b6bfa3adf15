"""Means in a loss, and what they are over: so the losses of parts of a batch give that of the whole batch.

Shapes: B batch, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from seqwise.data.batches import Batch


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean, and of how many.

    Args:
        value: a scalar that carries gradients.
        count: an integer tensor without dimensions.
    """

    value: Tensor
    count: Tensor


@dataclass(frozen=True)
class SumOfMeans:
    """An objective whose means are not over the gold tokens, as those of all others are: ``L = sum_i mean_i``.

    Args:
        means: of a model, a batch and the values of schedules; always the same number of them.

    Example:
        >>> import torch
        >>> halves = SumOfMeans(lambda *_: [Mean(torch.tensor(0.5), torch.tensor(4)), Mean(torch.tensor(1.0), None)])
        >>> halves(None, None, {})
        tensor(1.5000)
    """

    means: Callable[[Any, Batch, Mapping[str, float]], Sequence[Mean]]

    def __call__(self, model: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        return reduce(add, (mean.value for mean in self.means(model, batch, values)))
