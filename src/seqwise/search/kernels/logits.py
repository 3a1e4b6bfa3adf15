"""Scores of a few tokens and log Z of a linear head, without a graph through all V scores.

Shapes: B batch, J slots, X candidates of an input, V vocabulary, H features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.search.kernels.deferral import Matrix

__all__ = ["few_logits"]


def few_logits(
    features_BJH: Tensor,
    head: Matrix,
    slots_BX: Tensor,
    tokens_BX: Tensor,
    logits_BX: Tensor,
    log_partition_BJ: Tensor,
    mean_row_BJH: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Give numbers that are known their gradients: ``df = W_w dh``, ``d log Z = (softmax W) dh``, weights later.

    Args:
        features_BJH: h.
        head: W and b, which note the gradient.
        slots_BX, tokens_BX: which scores were looked up.
        logits_BX: what they are.
        log_partition_BJ: log Z of every slot.
        mean_row_BJH: ``softmax(f) W`` of every slot whose log Z is used; None where none is.

    Returns:
        ``logits_BX`` and ``log_partition_BJ``, with gradients.

    Example:
        >>> from torch import nn
        >>> weight, h = nn.Parameter(torch.tensor([[1.0], [2.0]])), torch.ones(1, 1, 1, requires_grad=True)
        >>> chosen = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long)  # slot 0, token 1
        >>> f, _ = few_logits(h, Matrix(weight, None), *chosen, torch.full((1, 1), 2.0), torch.zeros(1, 1), None)
        >>> f.backward(torch.full((1, 1), 3.0))
        >>> h.grad.item(), weight.grad.tolist()
        (6.0, [[0.0], [3.0]])
    """
    known = slots_BX, tokens_BX, logits_BX, log_partition_BJ, mean_row_BJH
    found: tuple[Tensor, Tensor] = _FewLogits.apply(features_BJH, head.anchor, head, *known)
    return found


class _FewLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_BJH: Tensor,
        anchor: Tensor | None,
        head: Matrix,
        slots_BX: Tensor,
        tokens_BX: Tensor,
        logits_BX: Tensor,
        log_partition_BJ: Tensor,
        mean_row_BJH: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(features_BJH, head.weight_VD, slots_BX, tokens_BX, log_partition_BJ, mean_row_BJH)
        ctx.head, ctx.noting = head, anchor is not None
        return logits_BX.clone(), log_partition_BJ.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_BX: Tensor, partition_BJ: Tensor) -> tuple[Tensor | None, ...]:
        features_BJH, weight_VH, slots_BX, tokens_BX, log_partition_BJ, mean_row_BJH = ctx.saved_tensors
        by_slot_BJX = F.one_hot(slots_BX, features_BJH.shape[1]).mT * gradient_BX[:, None]
        if ctx.noting:
            ctx.head.note_outer(tokens_BX, by_slot_BJX, features_BJH)
            live_BJ = partition_BJ != 0
            if live_BJ.any():
                ctx.head.note_partitions(features_BJH[live_BJ], log_partition_BJ[live_BJ], partition_BJ[live_BJ])
        if not ctx.needs_input_grad[0]:
            return (None, _zero(ctx, gradient_BX), *[None] * 6)
        features_gradient_BJH = by_slot_BJX @ weight_VH[tokens_BX].to(by_slot_BJX.dtype)
        if mean_row_BJH is not None:
            features_gradient_BJH = features_gradient_BJH + partition_BJ[..., None] * mean_row_BJH
        return (features_gradient_BJH.to(features_BJH.dtype), _zero(ctx, gradient_BX), *[None] * 6)


def _zero(ctx: Any, like: Tensor) -> Tensor | None:
    return like.new_zeros(()) if ctx.noting else None
