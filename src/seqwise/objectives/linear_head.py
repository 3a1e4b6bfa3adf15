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
    if isinstance(head, nn.Identity):  # the features are the scores
        embedding_VD = model.embedding_VD
        return torch.eye(len(embedding_VD), dtype=embedding_VD.dtype, device=embedding_VD.device), None
    problem = f"scores of single tokens need a linear head, which that of {type(model).__name__} is not"
    raise InputError(problem, hint="use cross_entropy_objective or self_normalized_objective")


def require_fit(features: Tensor, head_weight_VH: Tensor, head_bias_V: Tensor | None, targets: Tensor) -> None:
    """Raise an InputError if features, linear head and targets do not fit; token ids are checked only on the CPU."""
    feature_shape, head_shape = tuple(features.shape), tuple(head_weight_VH.shape)
    if tuple(targets.shape) != feature_shape[:-1]:
        raise InputError(f"targets of shape {tuple(targets.shape)} for features of shape {feature_shape}")
    if len(head_shape) != 2 or head_shape[1] != feature_shape[-1]:
        raise InputError(f"a head of shape {head_shape} for features of shape {feature_shape}")
    if head_bias_V is not None and tuple(head_bias_V.shape) != head_shape[:1]:
        raise InputError(f"biases of shape {tuple(head_bias_V.shape)} for a head of shape {head_shape}")
    _require_known(targets, head_shape[0])


def require_tokens(targets: Tensor, logits: Tensor) -> None:
    """Raise an InputError if targets do not fit scores (..., V) in shape or, on the CPU, in vocabulary."""
    if targets.shape != logits.shape[:-1]:
        raise InputError(f"targets of shape {tuple(targets.shape)} for scores of shape {tuple(logits.shape)}")
    _require_known(targets, logits.shape[-1])


def _require_known(targets: Tensor, vocabulary_size: int) -> None:
    # On a GPU, the check would wait for the device.
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
        to_gold_N, to_log_partition_M = gradients
        shares_M = (to_log_partition_M / sums_M).masked_fill(sums_M == 0, 0.0)
        needs_features, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        to_features_NH = to_weight_VH = to_bias_V = None
        cast_MV = powers_MV.to(weight_VH.dtype)
        if needs_features:
            to_features_NH = to_gold_N[:, None] * gold_NH
            to_drawn_MH = (shares_M[:, None] * (cast_MV @ weight_VH)).to(to_features_NH.dtype)
            to_features_NH = to_features_NH.index_add_(0, drawn_M, to_drawn_MH).to(features_NH.dtype)
        if needs_weight:
            scaled_MH = shares_M[:, None] * features_NH[drawn_M]
            to_weight_VH = cast_MV.mT @ scaled_MH.to(cast_MV.dtype)
            rows_NH = to_gold_N[:, None] * features_NH
            to_weight_VH.index_put_((targets_N,), rows_NH.to(cast_MV.dtype), accumulate=True)
        if needs_bias:
            to_bias_V = (powers_MV.mT @ shares_M).to(bias_V.dtype)
            to_bias_V.index_put_((targets_N,), to_gold_N.to(bias_V.dtype), accumulate=True)
        return to_features_NH, to_weight_VH, to_bias_V, None, None
