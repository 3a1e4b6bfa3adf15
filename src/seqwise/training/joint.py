"""A step that several processes take together: each has its share of the batch, and the gradient is that of the batch.

Nothing here is for callers: ``trainer.fit`` is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, distributed

from seqwise.data.batches import Batch, EncodedExample, collate
from seqwise.objectives.means import means_of
from seqwise.objectives.objective import Objective
from seqwise.training.processes import number_of, rank, share

__all__ = ["collate_share", "joint_loss", "loss_of_share", "seed_own_noise"]


def collate_share(items: Sequence[tuple[int, EncodedExample]]) -> dict[str, Any]:
    """The rows of a batch that fall to this process, and the indices of all; the Trainer looks into a batch by key.

    Example:
        >>> found = collate_share([(7, EncodedExample((1,), (0,)))])
        >>> len(found["batch"]), found["weight"], found["indices"]
        (1, 1.0, [7])
    """
    own = share(items)
    # Whoever has no row takes part with one that counts for nothing: the others wait for its gradient.
    return {
        "batch": collate(own or items[:1]),
        "weight": 1.0 if own else 0.0,
        "indices": [index for index, _ in items],
    }


def loss_of_share(
    objective: Objective, model: Any, batch: Batch, values: Mapping[str, float], *, weight: float
) -> Tensor:
    """The loss of this process's rows, such that the mean over the processes is the loss of the whole batch.

    A mean over ``n`` of the ``N`` that all processes count together is weighted by ``P n / N``, P being the number of
    processes.

    Args:
        objective, model, values: see :data:`~seqwise.objectives.objective.Objective`.
        batch: the rows of this process.
        weight: 0 if none of them counts, otherwise 1.
    """
    if number_of() == 1:
        return objective(model, batch, values)
    means = means_of(objective, model, batch, values)
    own_M = torch.stack([mean.count for mean in means]).double() * weight
    all_M = own_M.clone()
    distributed.all_reduce(all_M)
    weights_M = number_of() * own_M / all_M.clamp(min=1)
    return reduce(add, (mean.value * weight for mean, weight in zip(means, weights_M, strict=True)))


def joint_loss(loss: Tensor) -> Tensor:
    """The mean of a scalar over all processes."""
    if number_of() == 1:
        return loss
    total = loss.clone()
    distributed.all_reduce(total)
    return total / number_of()


def seed_own_noise(seed: int, step: int) -> None:
    """Where there are several processes, give each noise of its own, which depends on nothing but the step.

    One process goes through one stream of random numbers from the first step to the last.
    """
    if number_of() > 1:
        digest = hashlib.sha256(f"{seed}/{step}/{rank()}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
