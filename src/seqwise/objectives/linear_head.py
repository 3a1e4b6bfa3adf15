"""Scores of gold tokens by a linear head, and log Z of a few positions, with gradients made in one pass.

Autograd makes a gradient as large as the weights for the gold scores, another for log Z, and adds the two up: with few
positions drawn, that takes as long as everything else. Here the rows of the gold tokens are added to the gradient that
log Z has made. Of the scores of a drawn position, nothing is kept but their exponentials, in the same memory.

Shapes: N positions, M drawn ones, H features, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqwise.models.deferred_linear import exp_
from seqwise.models.products import Products


def gold_scores_and_log_partitions(
    features_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, drawn_M: Tensor
) -> tuple[Tensor, Tensor]:
    """``f(h_n, y_n) = W_y . h_n + b_y`` of every position, and ``log Z_n = log sum_w exp f(h_n, w)`` of those drawn.

    Args:
        features_NH: h.
        weight_VH, bias_V: W and b, or None for no bias.
        targets_N: y, int64.
        drawn_M: the positions that log Z is asked of, int64.

    Returns:
        (N,) and (M,), in nats. log Z is in float32 or better, and minus infinity where no token is possible, which has
        no gradient.

    Not implemented: second derivatives.

    Example:
        >>> chosen = torch.tensor([2]), torch.tensor([0])  # the token 2, and log Z of the only position
        >>> gold, log_partition = gold_scores_and_log_partitions(torch.ones(1, 2), torch.zeros(4, 2), None, *chosen)
        >>> gold.item(), round(log_partition.item(), 4)
        (0.0, 1.3863)
    """
    scores: tuple[Tensor, Tensor] = _GoldAndPartition.apply(features_NH, weight_VH, bias_V, targets_N, drawn_M)
    return scores


class _GoldAndPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, drawn_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        gold_NH = weight_VH[targets_N]
        gold_N = (features_NH * gold_NH).sum(-1)
        if bias_V is not None:
            gold_N = gold_N + bias_V[targets_N]
        logits_MV = Products(weight_VH, bias_V)(features_NH[drawn_M])
        logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
        highest_M = logits_MV.amax(-1)
        base_M = highest_M.masked_fill(highest_M == -torch.inf, 0.0)
        powers_MV = exp_(logits_MV.sub_(base_M[:, None]))
        sums_M = powers_MV.sum(-1)
        ctx.save_for_backward(features_NH, weight_VH, bias_V, targets_N, gold_NH, drawn_M, powers_MV, sums_M)
        return gold_N, base_M + sums_M.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features_NH, weight_VH, bias_V, targets_N, gold_NH, drawn_M, powers_MV, sums_M = ctx.saved_tensors
        gold_N, log_partition_M = gradients
        shares_M = (log_partition_M / sums_M).masked_fill(sums_M == 0, 0.0)
        wanted_features, wanted_weight, wanted_bias, *_ = ctx.needs_input_grad
        of_features = of_weight = of_bias = None
        own = powers_MV.to(weight_VH.dtype)
        if wanted_features:
            of_features = gold_N[:, None] * gold_NH
            of_drawn_MH = shares_M[:, None] * (own @ weight_VH)
            of_features = of_features.index_add_(0, drawn_M, of_drawn_MH.to(of_features.dtype)).to(features_NH.dtype)
        if wanted_weight:
            scaled_MH = shares_M[:, None] * features_NH[drawn_M]
            of_weight = own.mT @ scaled_MH.to(own.dtype)
            rows_NH = gold_N[:, None] * features_NH
            of_weight.index_put_((targets_N,), rows_NH.to(own.dtype), accumulate=True)
        if wanted_bias:
            of_bias = (powers_MV.mT @ shares_M).to(bias_V.dtype)
            of_bias.index_put_((targets_N,), gold_N.to(bias_V.dtype), accumulate=True)
        return of_features, of_weight, of_bias, None, None
