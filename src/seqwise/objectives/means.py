"""What the mean in a loss is taken over: with it, the losses of parts of a batch give that of the whole batch.

Shapes: B batch, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, cast

from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel

__all__ = ["Mean", "SumOfMeans", "means_of"]


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


def means_of(
    objective: Callable[[StepModel, Batch, Mapping[str, float]], Tensor],
    model: Any,
    batch: Batch,
    values: Mapping[str, float],
) -> Sequence[Mean]:
    """An objective as the means that it is the sum of.

    With ``n_p`` the counts of the parts of a batch and ``N`` their sum, ``sum_p (n_p / N) mean_p`` is the mean of the
    whole batch, and so are the gradients.

    Args:
        objective: a :class:`SumOfMeans`, or any other: one mean over the gold tokens of the batch.
        model, batch, values: what it is called with.

    Example:
        >>> import torch
        >>> from seqwise.data import EncodedExample, collate
        >>> batch = collate([(0, EncodedExample((1,), (0, 1))), (1, EncodedExample((1,), (0,)))])
        >>> means_of(lambda *_: torch.tensor(0.25), None, batch, {})
        [Mean(value=tensor(0.2500), count=tensor(3))]
    """
    if isinstance(objective, SumOfMeans):
        return objective.means(model, batch, values)
    return [Mean(objective(cast(StepModel, model), batch, values), batch.target_lengths_B.sum())]
