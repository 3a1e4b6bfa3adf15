"""Soft top-k of the few candidates that a certificate keeps, without a graph through V scores.

Shapes: B batch, J slots before, K slots after, V vocabulary, H features, X candidates of an input, D embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.devices import reading_is_free
from seqwise.models.deferred_linear import DeferredLinear, exp_
from seqwise.search.candidates import Candidates
from seqwise.search.ending import SlotTerms
from seqwise.search.large_vocabulary.blocks import Best
from seqwise.search.large_vocabulary.scan import Choice, Kept, Scan, alphas, cost_in_scores, token_ids
from seqwise.search.operators import finite, of_scores, weights_and_gaps
from seqwise.search.selection import SoftSelection


def top_k_of_few(candidates: Candidates, head: DeferredLinear, scan: Scan, kept: Kept, choice: Choice) -> SoftSelection:
    """Compute the soft top-k of the kept candidates; no other token has weight."""
    best, num_slots = kept.best, candidates.prefix_scores_BJ.shape[1]
    k = min(choice.k, scan.logits_BJV[0].numel())
    # The unit of alpha needs the k + 1 best, with weight or without.
    used_BX = kept.kept_BX.clone()
    if choice.unit is not of_scores:
        used_BX[:, : k + 1] = True
    scores_BX = few_scores(candidates, head, scan, best, used_BX)
    alpha: float | Tensor = choice.alpha
    if choice.unit is not of_scores:
        alpha = alphas(candidates, Best(scores_BX, best.slots_BX, best.tokens_BX), choice, k + 1)[:, None, None]
    maxima_BK = scores_BX[:, :k]
    weighed_BX = scores_BX.masked_fill(~kept.kept_BX, -torch.inf)
    weights_BKX, gaps_BKX = weights_and_gaps(weighed_BX, maxima_BK, alpha)
    dead_BK = maxima_BK == -torch.inf
    mixed_BK = finite(maxima_BK) + (weights_BKX * gaps_BKX).sum(-1)
    slots_BXJ = F.one_hot(best.slots_BX, num_slots).to(weights_BKX.dtype)
    ids_BX = token_ids(best.tokens_BX, candidates.end)
    return SoftSelection(
        mixed_BK.masked_fill(dead_BK, -torch.inf),
        best.slots_BX[:, :k],
        ids_BX[:, :k],
        weights_BKX @ slots_BXJ,
        weights_BKX,
        ids_BX,
    )


def few_scores(candidates: Candidates, head: DeferredLinear, scan: Scan, best: Best, used_BX: Tensor) -> Tensor:
    """Compute scores of the best candidates with gradients, (B, X); ``used_BX`` marks those with weight."""
    score, terms, (_, slots_BX, tokens_BX) = candidates.score, candidates.slot_terms(), best
    ids_BX, is_end_BX = token_ids(tokens_BX, candidates.end), tokens_BX < 0
    logits_BX = scan.logits_BJV.flatten(1).gather(1, slots_BX * scan.logits_BJV.shape[2] + ids_BX)
    if scan.end_BJ is not None:
        logits_BX = torch.where(is_end_BX, scan.end_BJ.gather(1, slots_BX), logits_BX)
    mean_row_BJH = _mean_rows(candidates, head, scan, slots_BX, used_BX & (best.scores_BX != -torch.inf))
    looked_up = head.anchor, head, slots_BX, ids_BX, logits_BX, scan.log_partition_BJ, mean_row_BJH
    added_BX, log_partition_BJ = _FewLogits.apply(candidates.features_BJH, *looked_up)
    if score.log_partition_weight != 0:
        added_BX = added_BX - score.log_partition_weight * log_partition_BJ.gather(1, slots_BX)
    scores_BX = added_BX + terms.going_BJ.gather(1, slots_BX)
    if candidates.end is not None:
        of_slots = SlotTerms(*(values.gather(1, slots_BX) for values in terms))
        scores_BX = torch.where(is_end_BX, of_slots.of_ending(added_BX - score.constant), scores_BX)
    cost_BJV = cost_in_scores(candidates)
    if cost_BJV is not None:
        slots_of_cost_BX = slots_BX if cost_BJV.shape[1] > 1 else torch.zeros_like(slots_BX)
        scores_BX = scores_BX + cost_BJV.flatten(1).gather(1, slots_of_cost_BX * cost_BJV.shape[2] + ids_BX)
    return scores_BX


def _mean_rows(
    candidates: Candidates, head: DeferredLinear, scan: Scan, slots_BX: Tensor, used_BX: Tensor
) -> Tensor | None:
    """Compute ``softmax(f) W`` for slots with log Z in the score of a candidate with weight, 0 for the others."""
    has_gradient = torch.is_grad_enabled() and candidates.features_BJH.requires_grad
    if candidates.score.log_partition_weight == 0 or not has_gradient:
        return None
    used_BJ = torch.zeros_like(scan.log_partition_BJ, dtype=torch.long).scatter_add_(1, slots_BX, used_BX.long()) > 0
    with torch.no_grad():
        every = not reading_is_free(used_BJ) or bool(used_BJ.all())
        logits_NV, log_partition_N = (
            values.flatten(0, 1) if every else values[used_BJ] for values in (scan.logits_BJV, scan.log_partition_BJ)
        )
        rows_NH = exp_(logits_NV - log_partition_N[:, None]) @ head.weight_VD.to(logits_NV.dtype)
        if scan.end_BJ is not None:  # the end token, which is excluded from these scores
            end_N = scan.end_BJ.flatten() if every else scan.end_BJ[used_BJ]
            share_N = (end_N - log_partition_N).exp()
            rows_NH.addr_(share_N, head.weight_VD[candidates.end].to(rows_NH.dtype))
        if every:
            return rows_NH.unflatten(0, used_BJ.shape).masked_fill(~used_BJ[..., None], 0.0)
        rows_BJH = rows_NH.new_zeros(*used_BJ.shape, rows_NH.shape[1])
        rows_BJH[used_BJ] = rows_NH
    return rows_BJH


class _FewLogits(torch.autograd.Function):
    """Selected scores and log Z, with gradients: ``df = W_w dh``, ``d log Z = (softmax W) dh``.

    The head records the gradients of W and b. ``mean_row_BJH`` is ``softmax(f) W`` of every slot whose log Z is used.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_BJH: Tensor,
        anchor: Tensor | None,
        head: DeferredLinear,
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
            noted = features_BJH, log_partition_BJ, partition_BJ
            live_BJ = partition_BJ != 0
            if not reading_is_free(live_BJ):
                ctx.head.note_partitions(*(values.flatten(0, 1) for values in noted))
            elif bool(live_BJ.any()):
                ctx.head.note_partitions(*(values[live_BJ] for values in noted))
        if not ctx.needs_input_grad[0]:
            return (None, _zero(ctx, gradient_BX), *[None] * 6)
        features_gradient_BJH = by_slot_BJX @ weight_VH[tokens_BX].to(by_slot_BJX.dtype)
        if mean_row_BJH is not None:
            features_gradient_BJH = features_gradient_BJH + partition_BJ[..., None] * mean_row_BJH
        return (features_gradient_BJH.to(features_BJH.dtype), _zero(ctx, gradient_BX), *[None] * 6)


def _zero(ctx: Any, like: Tensor) -> Tensor | None:
    return like.new_zeros(()) if ctx.noting else None


def mixed_rows(weights_BKX: Tensor, matrix: DeferredLinear, tokens_BX: Tensor) -> Tensor:
    """Compute ``sum_x p[k, x] E[w_x]``, (B, K, D), and record the gradient of E for later."""
    mixed: Tensor = _MixedRows.apply(weights_BKX, matrix.anchor, matrix, tokens_BX)
    return mixed


class _MixedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights_BKX: Tensor, anchor: Tensor | None, matrix: DeferredLinear, tokens_BX: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights_BKX, tokens_BX, matrix.weight_VD)
        ctx.matrix, ctx.noting = matrix, anchor is not None
        with torch.autocast(weights_BKX.device.type, enabled=False):
            return weights_BKX @ matrix.weight_VD[tokens_BX]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_BKD: Tensor) -> tuple[Tensor | None, ...]:
        weights_BKX, tokens_BX, weight_VD = ctx.saved_tensors
        if ctx.noting:
            ctx.matrix.note_outer(tokens_BX, weights_BKX, gradient_BKD)
        weights = gradient_BKD @ weight_VD[tokens_BX].mT if ctx.needs_input_grad[0] else None
        return weights, gradient_BKD.new_zeros(()) if ctx.noting else None, None, None
