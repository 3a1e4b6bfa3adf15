"""Self-normalisation: train log Z towards 0, so that raw scores can be read as log-probabilities.

Shapes: ... any leading shape, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel

__all__ = ["LogPartitionStatistics", "log_partition_statistics", "log_partitions", "self_normalized_cross_entropy"]


def self_normalized_cross_entropy(
    logits: Tensor, targets: Tensor, weight: float, fraction: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Cross-entropy plus a penalty on log Z: ``mean_t (log Z_t - f(h_t, y_t)) + lambda mean_{t in H} (log Z_t)^2``.

    One logsumexp serves both terms. H is all targets, or a fraction of them drawn anew at each call; the mean over H
    is then an unbiased estimate of the mean over all.

    Args:
        logits: unnormalised scores, (..., V).
        targets: int64 of the leading shape; negative entries are ignored.
        weight: lambda, 0 or more, in nats per squared nat.
        fraction: gamma, in (0, 1]; ``|H| = ceil(gamma n)`` of the n targets.
        generator: the source of random numbers for H.

    Returns:
        A scalar, in nats per token; 0 when every target is ignored.

    Raises:
        InputError: the weight is negative or the fraction outside (0, 1].

    Source: Devlin et al. (2014); Goyal et al. (NAACL 2019), section 3.3. Not implemented here: the unnormalised form
    of Andreas and Klein (2015), in which targets outside H never touch the vocabulary.

    Example:
        >>> self_normalized_cross_entropy(torch.zeros(1, 1, 4), torch.tensor([[3]]), weight=1.0)
        tensor(3.3081)
    """
    if weight < 0:
        raise InputError(f"the weight of the log Z penalty must not be negative, got {weight}")
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of normalised positions must lie in (0, 1], got {fraction}")
    counted = targets >= 0
    log_partition_N = logits[counted].logsumexp(-1)
    gold_N = logits[counted].gather(-1, targets[counted].unsqueeze(-1)).squeeze(-1)
    num_targets = log_partition_N.numel()
    if num_targets == 0:
        return logits.sum() * 0.0
    penalized_H = log_partition_N
    if fraction < 1:
        order_N = torch.rand(num_targets, generator=generator, device=logits.device).argsort()
        # Rounded first: 0.07 * 100 is 7.000000000000001 in floating point.
        penalized_H = log_partition_N[order_N[: math.ceil(round(fraction * num_targets, 9))]]
    return (log_partition_N - gold_N).mean() + weight * penalized_H.square().mean()


@torch.no_grad()
def log_partitions(model: StepModel, batch: Batch) -> Tensor:
    """log Z at every gold position of a batch, under teacher forcing: one dimension, in nats.

    Args:
        model: a step model.
        batch: with targets.
    """
    logits_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT))
    return logits_BTV[batch.targets_BT >= 0].logsumexp(-1)


class LogPartitionStatistics(NamedTuple):
    """How far from normalised a model is, in nats (Table 5.1 of the thesis reports mean and variance)."""

    mean: float
    variance: float
    mean_absolute: float
    mean_absolute_deviation: float


def log_partition_statistics(log_partitions: Tensor) -> LogPartitionStatistics:
    """Summarise log Z over positions: mean, variance, mean |log Z|, and mean |log Z - mean|.

    The last one says how well a single constant would normalise the model.

    Args:
        log_partitions: log Z at each position, one dimension, in nats.

    Raises:
        InputError: there is no position.

    Example:
        >>> log_partition_statistics(torch.tensor([1.0, 3.0])).mean
        2.0
    """
    if log_partitions.numel() == 0:
        raise InputError("there is no position to take log Z of")
    values = log_partitions.double()
    mean = values.mean()
    return LogPartitionStatistics(
        mean.item(), values.var(correction=0).item(), values.abs().mean().item(), (values - mean).abs().mean().item()
    )
