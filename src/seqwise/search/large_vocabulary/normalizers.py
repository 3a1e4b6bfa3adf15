"""Maxima of blocks and log Z of scores that are there already.

Shapes: B batch, J slots, V vocabulary, M full blocks, N rows.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from seqwise.search.large_vocabulary.certificate import full_maxima


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
        full_BJM = full_maxima(logits_BJV)
        log_partition_BJ = logits_BJV.logsumexp(-1) if normalized else logits_BJV[..., 0]
    if not normalized:
        return full_BJM, torch.zeros_like(log_partition_BJ)
    return full_BJM, log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)


def fits_one_pass(logits_BJV: Tensor) -> bool:
    """Whether the kernel of :mod:`~seqwise.search.large_vocabulary.triton` can scan these scores."""
    return logits_BJV.is_cuda and logits_BJV.dtype == torch.float32 and find_spec("triton") is not None
