"""log Z of scores that are there already, and their softmax times a matrix, without another tensor of their size.

A processor writes faster to memory that it has just used than to any other, and much faster than to what the operating
system has yet to give it. So what is made of the scores is made in pieces, each in the place of the one before. Meant
for where no graph is made.

Shapes: B batch, J slots, V vocabulary, N rows, R of them at a time, H features, U tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from seqwise.models.deferred_linear import exp_
from seqwise.search.large_vocabulary.certificate import row_maxima

__all__ = ["fits_one_pass", "log_partition", "maxima_and_log_partitions", "mean_rows"]

# Scores in a piece, on a processor.
PIECE = 2**17
# Scores up to this may be exponentiated as they are: their sum overflows nothing, and what vanishes is below rounding.
MODERATE = 40.0


def maxima_and_log_partitions(logits_BJV: Tensor, *, normalized: bool) -> tuple[Tensor, Tensor]:
    """The largest score of each full block of a slot, (B, J, V // 64), and ``log Z``, (B, J).

    Args:
        logits_BJV: f.
        normalized: whether log Z is needed. It is 0 where it is not, and where no token is possible.

    Example:
        >>> maxima_and_log_partitions(torch.zeros(1, 1, 64), normalized=True)
        (tensor([[[0.]]]), tensor([[4.1589]]))
    """
    if fits_one_pass(logits_BJV):
        from seqwise.search.large_vocabulary.triton import scan_rows  # which imports Triton

        maxima_NM, log_partition_N = scan_rows(logits_BJV.flatten(0, 1))
        full_BJM = maxima_NM.unflatten(0, logits_BJV.shape[:2])
        log_partition_BJ = log_partition_N.view(logits_BJV.shape[:2])
    else:
        full_BJM, highest_BJ = row_maxima(logits_BJV)
        log_partition_BJ = log_partition(logits_BJV, highest_BJ) if normalized else highest_BJ
    if not normalized:
        return full_BJM, torch.zeros_like(log_partition_BJ)
    return full_BJM, log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)


def fits_one_pass(logits_BJV: Tensor) -> bool:
    """Whether the kernel of :mod:`~seqwise.search.large_vocabulary.triton` can scan these scores."""
    return logits_BJV.is_cuda and logits_BJV.dtype == torch.float32 and find_spec("triton") is not None


def log_partition(logits_BJV: Tensor, highest_BJ: Tensor) -> Tensor:
    """``log Z = log sum_v exp f_v`` of every slot, (B, J), in nats; minus infinity where no token is possible.

    Args:
        logits_BJV: f.
        highest_BJ: the largest score of each slot.

    Example:
        >>> logits_BJV = torch.tensor([[[0.0, 0.0, -torch.inf]]])
        >>> log_partition(logits_BJV, logits_BJV.amax(-1))
        tensor([[0.6931]])
    """
    dead_BJ, logits_NV = highest_BJ == -torch.inf, logits_BJV.flatten(0, 1)
    base_N1 = _base(highest_BJ.masked_fill(dead_BJ, 0.0).view(-1, 1))
    sums = [weights_RV.sum(1) for _, weights_RV in _exponentials(logits_NV, base_N1, 0)]
    if not sums:
        return highest_BJ
    log_sums_BJ = (base_N1 + torch.cat(sums).log()[:, None]).view_as(highest_BJ)
    return log_sums_BJ.masked_fill(dead_BJ, -torch.inf)


def mean_rows(logits_NV: Tensor, log_partition_N: Tensor, weight_VH: Tensor) -> Tensor:
    """``sum_v exp(f_v - log Z) W_v`` of every row, (N, H), in the precision of the scores.

    Args:
        logits_NV: f; minus infinity excludes a token.
        log_partition_N: log Z.
        weight_VH: W.

    Example:
        >>> logits_NV = torch.zeros(1, 2)
        >>> mean_rows(logits_NV, logits_NV.logsumexp(1), torch.tensor([[1.0], [3.0]]))
        tensor([[2.]])
    """
    base_N1 = _base(log_partition_N[:, None])
    rows_NH = logits_NV.new_zeros(len(logits_NV), weight_VH.shape[1])
    for tokens, weights_NU in _exponentials(logits_NV, base_N1, 1):
        rows_NH.addmm_(weights_NU, weight_VH[tokens].to(rows_NH.dtype))
    return rows_NH * (base_N1 - log_partition_N[:, None]).exp()


def _base(values_N1: Tensor) -> Tensor:
    """What to subtract from scores: 0 if that will do for all, which a GPU would have to be waited for to know."""
    moderate = values_N1.device.type == "cpu" and bool((values_N1.abs() < MODERATE).all())
    return values_N1.new_zeros(1, 1) if moderate else values_N1


def _exponentials(logits_NV: Tensor, base_N1: Tensor, dim: int) -> Iterator[tuple[slice, Tensor]]:
    """``exp(f - base)``, some rows or some columns at a time; each piece in the place of the one before."""
    length, width = logits_NV.shape[dim], max(1, logits_NV.shape[1 - dim])
    # On a GPU all at once.
    at_once = max(1, min(length, PIECE // width) if logits_NV.device.type == "cpu" else length)
    place = logits_NV.new_empty(at_once * width)
    for start in range(0, length, at_once):
        some = slice(start, min(start + at_once, length))
        part = logits_NV[some] if dim == 0 else logits_NV[:, some]
        made = place[: part.numel()].view(part.shape)
        if len(base_N1) < len(logits_NV):
            yield some, torch.exp(part, out=made)
        else:
            yield some, exp_(torch.sub(part, base_N1[some] if dim == 0 else base_N1, out=made))
