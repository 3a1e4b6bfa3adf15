"""Losses that need only some scores of a linear head: those of gold tokens, and log Z at some positions.

Autograd computes a gradient of the size of the weights for the gold scores, another for log Z, and adds them: with few
drawn positions, this takes as long as everything else. Here the rows of the gold tokens are added to the gradient of
log Z. Of the scores at a drawn position, only their exponentials are kept, in the same memory.

Shapes: N positions, M drawn ones, H features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqwise.data.batches import Batch
from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.models.deferred_linear import exp_
from seqwise.models.products import Products
from seqwise.models.protocols import StepModel
from seqwise.objectives.objective import Objective


def objective_of_features(loss: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]) -> Objective:
    """Make a teacher-forced objective from a loss of features (B, T, H), a linear head's weights and bias, and gold."""

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        return loss(features_BTH, *_weights_and_biases(model), batch.targets_BT)

    return objective


def _weights_and_biases(model: StepModel) -> tuple[Tensor, Tensor | None]:
    """Return W and b of ``f = W h + b``; each row gives the score of one token."""
    head = model.head
    if isinstance(head, nn.Linear):
        return head.weight, head.bias
    if isinstance(head, nn.Identity):  # features that are the scores themselves
        embedding_VD = model.embedding_VD
        return torch.eye(len(embedding_VD), dtype=embedding_VD.dtype, device=embedding_VD.device), None
    problem = f"scores of single tokens need a linear head, which that of {type(model).__name__} is not"
    raise InputError(problem, hint="use cross_entropy_objective or self_normalized_objective")


def require_fit(features: Tensor, head_weight_VH: Tensor, head_bias_V: Tensor | None, targets: Tensor) -> None:
    """Raise an InputError if features, linear head and targets do not fit; token ids are checked only on the CPU."""
    of_targets, of_features, of_head = (tuple(tensor.shape) for tensor in (targets, features, head_weight_VH))
    if of_targets != of_features[:-1]:
        raise InputError(f"targets of shape {of_targets} for features of shape {of_features}")
    if len(of_head) != 2 or of_head[1] != of_features[-1]:
        raise InputError(f"a head of shape {of_head} for features of shape {of_features}")
    if head_bias_V is not None and tuple(head_bias_V.shape) != of_head[:1]:
        raise InputError(f"biases of shape {tuple(head_bias_V.shape)} for a head of shape {of_head}")
    _require_known(targets, of_head[0])


def require_tokens(targets: Tensor, logits: Tensor) -> None:
    """Raise an InputError if targets do not fit scores (..., V) in shape or, on the CPU, in vocabulary."""
    if targets.shape != logits.shape[:-1]:
        raise InputError(f"targets of shape {tuple(targets.shape)} for scores of shape {tuple(logits.shape)}")
    _require_known(targets, logits.shape[-1])


def _require_known(targets: Tensor, vocabulary_size: int) -> None:
    # A GPU would have to be waited for.
    if targets.device.type == "cpu" and targets.numel() and int(targets.max()) >= vocabulary_size:
        raise InputError(f"the target {int(targets.max())} is outside the vocabulary of {vocabulary_size}")


def gold_scores_and_log_partitions(
    features_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, drawn_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute ``f(h_n, y_n) = W_y . h_n + b_y`` everywhere, and ``log Z_n = log sum_w exp f(h_n, w)`` where drawn.

    Returns (N,) and (M,), in nats. log Z is in float32 or better, and minus infinity, without gradient, where no token
    is possible. Not implemented: second derivatives.
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
        logits_MV = at_least_float32(Products(weight_VH, bias_V)(features_NH[drawn_M]))
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
