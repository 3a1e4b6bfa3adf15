"""Statistics of log Z over all positions, by position, and by output length.

Shapes: T length of one output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.evaluation.translation import bins_by_length


@dataclass(frozen=True)
class LogPartitionSummary:
    """log Z over some positions, in nats."""

    count: int
    mean: float  # of log Z
    variance: float  # divided by the count
    mean_absolute: float  # mean |log Z|, the *normalisation risk* R of Andreas and Klein
    mean_absolute_deviation: float  # mean |log Z - mean|, the risk that a constant shift of all scores leaves
    minimum: float
    maximum: float


@dataclass(frozen=True)
class LogPartitionReport:
    """log Z of a data set.

    Attributes:
        overall: all positions.
        by_position: the first position of all outputs, the second, and so on; later ones have fewer outputs.
        by_length: all positions of the outputs in each bin, by its shortest and longest length: "4-6", or "4".
    """

    overall: LogPartitionSummary
    by_position: tuple[LogPartitionSummary, ...]
    by_length: Mapping[str, LogPartitionSummary]


def summarize_log_partitions(log_partitions: Tensor) -> LogPartitionSummary:
    """Summarise log Z over some positions: mean, variance, mean |log Z| and mean |log Z - mean|.

    The last one shows how well a single constant would normalise the model.

    Args:
        log_partitions: log Z at each position, of any shape, in nats.

    Raises:
        InputError: there are no positions.

    Example:
        >>> summarize_log_partitions(torch.tensor([1.0, 3.0])).mean
        2.0

    Source: mean and variance, Goyal et al. (NAACL 2019), table 5.1 of Goyal's thesis; R, Andreas and Klein (NAACL
    2015), section 5.
    """
    if log_partitions.numel() == 0:
        raise InputError("there is no position with a log Z")
    values = log_partitions.cpu().double()
    mean = values.mean()
    numbers = (mean, values.var(correction=0), values.abs().mean(), (values - mean).abs().mean(), *values.aminmax())
    return LogPartitionSummary(values.numel(), *(number.item() for number in numbers))


def log_partition_report(
    log_partitions: Sequence[Tensor], *, edges: Sequence[int] = (20, 30, 40)
) -> LogPartitionReport:
    """Compute statistics of log Z over a data set, by position and by output length.

    Args:
        log_partitions: for each output, log Z at its T positions, (T,), in nats. For a batch, use
            ``objectives.log_partitions(model, batch).split(batch.target_lengths_B.tolist())``. Empty ones are ignored.
        edges: lower edges of the bins of lengths, in tokens, in increasing order.

    Raises:
        InputError: there are no positions, an entry has more than one dimension, or the edges do not increase.

    Example:
        >>> report = log_partition_report([torch.tensor([1.0, 5.0]), torch.tensor([3.0])], edges=[2])
        >>> [summary.mean for summary in report.by_position]
        [2.0, 5.0]
        >>> {name: summary.count for name, summary in report.by_length.items()}
        {'1': 1, '2': 2}
    """
    outputs = []
    for number, output_T in enumerate(log_partitions):
        if output_T.dim() != 1:
            raise InputError(f"log Z of output {number} has shape {[*output_T.shape]}", hint="give one dimension each")
        if len(output_T):
            outputs.append(output_T)
    if not outputs:
        raise InputError("there is no position with a log Z")
    lengths = [len(output_T) for output_T in outputs]
    return LogPartitionReport(
        summarize_log_partitions(torch.cat(outputs)),
        tuple(
            summarize_log_partitions(torch.stack([output_T[place] for output_T in outputs if place < len(output_T)]))
            for place in range(max(lengths))
        ),
        {
            _name({lengths[index] for index in indices}): summarize_log_partitions(
                torch.cat([outputs[index] for index in indices])
            )
            for indices in bins_by_length(lengths, edges).values()
        },
    )


def _name(lengths: set[int]) -> str:
    """Name a bin by its shortest and its longest length; with half-open names, "2-4" and "4-6" would share 4."""
    return "-".join(str(length) for length in sorted({min(lengths), max(lengths)}))
