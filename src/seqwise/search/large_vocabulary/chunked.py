"""Soft top-k over all J x V candidates of a linear head, with all sums that a search needs in one pass.

Weights are computed for one slot and a few inputs at a time, on a GPU for all slots and more inputs, and recomputed in
the backward pass: saved tensors have no dimension V. Each pass over scores is one line with ``out=``, so that few
temporaries leave the CPU's cache. The plain version of each step under a checkpoint takes 1.7 and 2.4 times as long at
V = 1,284 and 32,000 (``checkpointed`` in ``benchmarks.relaxed_beam``).

With ``t_r = sqrt(alpha) (s - m_r)``, ``q_r = exp(-t_r^2)`` and ``Z_r = sum q_r``, the weights are ``p_r = q_r / Z_r``.
Let g_r be the gradient of the r-th score and y_r that of the weight p_r, minus its mean under p_r:

    ds = sum_r p_r (g_r - 2 sqrt(alpha) t_r y_r)        dm_r = g_r - (the r-th term of it, summed over the candidates)

Shapes: B batch, C inputs of a chunk, J slots before, K slots after, R of these, V vocabulary, H features, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqwise.devices import passes_are_cheap, widest_float
from seqwise.models.deferred_linear import DeferredLinear, exp_
from seqwise.search.candidates import Candidates, Score
from seqwise.search.large_vocabulary.blocks import Best
from seqwise.search.large_vocabulary.few import few_scores
from seqwise.search.large_vocabulary.scan import Choice, Kept, Scan, alphas, token_ids
from seqwise.search.operators import LOWEST, of_scores
from seqwise.search.selection import TokenSums

# Numbers in an array of a chunk, a few of which should fit the CPU's cache.
CHUNK = 2**17
# The same on a GPU, where every chunk costs kernel launches.
LARGE_CHUNK = 2**26


class _Sums(NamedTuple):
    """Sums of the weights p that a search needs; a is the sum of p over slots."""

    scores_BK: Tensor
    parent_weights_BKJ: Tensor
    fed_BKD: Tensor
    cost_BK: Tensor
    end_mass_BK: Tensor


@dataclass(frozen=True)
class _Problem:
    """Inputs of the sums without gradients.

    Attributes:
        head, embedding: the matrices of the search.
        log_partition_BJ: log Z of each slot.
        score: score of a token.
        cost: recomputes the cost of each token, (B, V); None without a cost.
        end: id of the end token, or None.
        maxima_BK, maximum_slots_BK, maximum_tokens_BK: the k best candidates, the end token as -1.
    """

    head: DeferredLinear
    embedding: DeferredLinear
    log_partition_BJ: Tensor
    score: Score
    cost: Callable[[], Tensor] | None
    end: int | None
    maxima_BK: Tensor
    maximum_slots_BK: Tensor
    maximum_tokens_BK: Tensor


def sums_of_all(
    candidates: Candidates, head: DeferredLinear, embedding: DeferredLinear, scan: Scan, kept: Kept, choice: Choice
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], TokenSums]:
    """Compute the sums of the soft top-k over all candidates, saving nothing of size V for gradients.

    Args:
        candidates: candidates; their cost, if any, has no gradient and can be recomputed.
        head, embedding: matrices of the search, which record their gradients.
        scan: all scores of the step, which are overwritten.
        kept: the best candidates, at least k + 1 if there are as many.
        choice: k, alpha and its unit.

    Returns:
        Scores, parents, tokens and parent weights of the new slots, and the sums over their tokens.
    """
    end = candidates.end
    k = min(choice.k, scan.logits_BJV[0].numel())
    best = Best(*(values[:, : k + 1] for values in kept.best))
    alpha_B = alphas(candidates, best, choice, k + 1)
    if choice.unit is not of_scores:
        scores_BM = few_scores(candidates, head, scan, best, torch.ones_like(best.slots_BX, dtype=torch.bool))
        alpha_B = alphas(candidates, Best(scores_BM, best.slots_BX, best.tokens_BX), choice, k + 1)
    maxima_BK, slots_BK, tokens_BK = (values[:, :k] for values in best)
    problem = _Problem(
        head,
        embedding,
        scan.log_partition_BJ,
        candidates.score,
        candidates.recompute_cost,
        end,
        maxima_BK,
        slots_BK,
        tokens_BK,
    )
    if scan.end_BJ is not None:
        scan.logits_BJV[..., end] = scan.end_BJ
    inputs = candidates.features_BJH, *candidates.slot_terms(), alpha_B, head.anchor, embedding.anchor
    sums = _Sums(*_Dense.apply(*inputs, problem, [scan.logits_BJV, candidates.cost]))
    fixed = sums.scores_BK, slots_BK, token_ids(tokens_BK, end), sums.parent_weights_BKJ
    return fixed, TokenSums(sums.fed_BKD, sums.cost_BK, sums.end_mass_BK)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        features_BJH, going_BJ, staying_BJ, opened_BJ, alpha_B, _, _, problem, used_up = arguments
        terms = going_BJ, staying_BJ, opened_BJ
        cost_BV, logits_BJV = used_up.pop(), used_up.pop()
        frame = _frame(problem, logits_BJV, cost_BV, *terms, alpha_B)
        sums, share_BK = _sums(problem, frame)
        ctx.frame = frame._replace(logits_BJV=logits_BJV.new_empty(0), cost_BV=None)
        tensors = problem.log_partition_BJ, problem.maxima_BK, problem.maximum_slots_BK, problem.maximum_tokens_BK
        matrices = problem.head.weight_VD, problem.embedding.weight_VD
        ctx.save_for_backward(features_BJH, share_BK, *sums, *tensors, *matrices)
        ctx.problem = problem
        return tuple(sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features_BJH, share_BK, *rest = ctx.saved_tensors
        problem: _Problem = ctx.problem
        logits_BJV = problem.head.scores(features_BJH)
        cost_BV = None if problem.cost is None else problem.cost().to(logits_BJV.dtype)
        _scale_(problem, logits_BJV, cost_BV, ctx.frame.roots_B11)
        frame = ctx.frame._replace(logits_BJV=logits_BJV, cost_BV=cost_BV)
        sums, needs_alpha = _Sums(*rest[:5]), ctx.needs_input_grad[4]
        made = _gradients(problem, frame, sums, share_BK, _Sums(*gradients), needs_alpha)
        rows_NV = made.logits_BJV.flatten(0, 1)
        features_gradient = None
        if ctx.needs_input_grad[0]:
            features_NH = problem.head.of_gradient(rows_NV)
            features_gradient = features_NH.view_as(features_BJH).to(features_BJH.dtype)
        if problem.head.anchor is not None:
            problem.head.note_product(rows_NV, features_BJH.flatten(0, 1))
        if problem.embedding.anchor is not None:
            problem.embedding.note_product(made.tokens_BKV.flatten(0, 1), made.fed_BKD.flatten(0, 1))
        zero = rows_NV.new_zeros(())
        anchors = (None if matrix.anchor is None else zero for matrix in (problem.head, problem.embedding))
        return features_gradient, *made.terms, made.alpha_B, *anchors, None, None


class _Frame(NamedTuple):
    """Scores scaled so that one addition gives each of the k gaps: ``t_r = L + shift_r``.

    Attributes:
        logits_BJV: L, ``sqrt(alpha) f``, plus the cost if it is part of the score, without the end token.
        shifts_BKJ: ``sqrt(alpha) (going - c log Z - m_r)``.
        roots_B11: ``sqrt(alpha)``.
        maxima_BK, dead_BK: m, 0 where no candidate is left.
        places_BK: places of the maxima among the J V scores; that of a maximum that ends is of no use.
        end_scores_BJ, end_logits_BJ: scores of the candidates that end, and their f - c log Z - constant; or None.
        cost_BV: the cost, if any.
    """

    logits_BJV: Tensor
    shifts_BKJ: Tensor
    roots_B11: Tensor
    maxima_BK: Tensor
    dead_BK: Tensor
    places_BK: Tensor
    end_scores_BJ: Tensor | None
    end_logits_BJ: Tensor | None
    end_f_BJ: Tensor | None
    opened_BJ: Tensor
    cost_BV: Tensor | None


def _frame(
    problem: _Problem,
    logits_BJV: Tensor,
    cost_BV: Tensor | None,
    going_BJ: Tensor,
    staying_BJ: Tensor,
    opened_BJ: Tensor,
    alpha_B: Tensor,
) -> _Frame:
    end, dtype = problem.end, logits_BJV.dtype
    cost_BV = None if cost_BV is None else cost_BV.to(dtype)
    normalizer_BJ = problem.score.log_partition_weight * problem.log_partition_BJ
    end_scores_BJ = end_logits_BJ = end_f_BJ = None
    if end is not None:
        end_f_BJ = logits_BJV[..., end].clone()
        end_logits_BJ = (end_f_BJ - normalizer_BJ - problem.score.constant).clamp(min=LOWEST)
        end_scores_BJ = staying_BJ + opened_BJ * end_logits_BJ
        if cost_BV is not None and problem.score.cost_weight != 0:
            end_scores_BJ = end_scores_BJ + problem.score.cost_weight * cost_BV[:, end, None]
        end_scores_BJ = end_scores_BJ.clamp(min=LOWEST)
    dead_BK = problem.maxima_BK == -torch.inf
    maxima_BK = problem.maxima_BK.masked_fill(dead_BK, 0.0)
    wide = widest_float(alpha_B.device)
    roots_B11 = alpha_B.to(wide).sqrt()[:, None, None]
    _scale_(problem, logits_BJV, cost_BV, roots_B11.to(dtype))
    offsets_BJ = (going_BJ.to(wide) - normalizer_BJ).clamp(min=LOWEST)
    # Computed from the scaled score of the maximum itself, so that its gap is exactly 0 however large alpha is.
    slots_BK, tokens_BK = problem.maximum_slots_BK, problem.maximum_tokens_BK
    places_BK = slots_BK * logits_BJV.shape[2] + (tokens_BK if end is None else tokens_BK.clamp(min=0))
    scaled_BK, from_BK = logits_BJV.flatten(1).gather(1, places_BK).to(wide), offsets_BJ.gather(1, slots_BK)
    if end is not None:
        scaled_BK = scaled_BK.masked_fill(tokens_BK < 0, 0.0)
        from_BK = torch.where(tokens_BK < 0, maxima_BK.to(wide), from_BK)
    shifts_BKJ = (roots_B11 * (offsets_BJ[:, None] - from_BK[..., None]) - scaled_BK[..., None]).to(dtype)
    roots_B11, ends = roots_B11.to(dtype), (end_scores_BJ, end_logits_BJ, end_f_BJ)
    return _Frame(logits_BJV, shifts_BKJ, roots_B11, maxima_BK, dead_BK, places_BK, *ends, opened_BJ, cost_BV)


def _scale_(problem: _Problem, logits_BJV: Tensor, cost_BV: Tensor | None, roots_B11: Tensor) -> None:
    """Overwrite the scores of the head with L."""
    if cost_BV is not None and problem.score.cost_weight != 0:
        logits_BJV.add_(cost_BV[:, None], alpha=problem.score.cost_weight)
    if problem.end is not None:
        logits_BJV[..., problem.end] = -torch.inf
    logits_BJV.clamp_(min=LOWEST).mul_(roots_B11)


def _chunks(frame: _Frame) -> Iterator[slice]:
    """Yield groups of inputs, so that the arrays of :func:`_buffers` have the size of a chunk."""
    batch_size, num_slots, vocabulary_size = frame.logits_BJV.shape
    per_input = max(1, _num_ranks(frame) * num_slots * vocabulary_size)
    width = max(1, (CHUNK if passes_are_cheap(frame.logits_BJV) else LARGE_CHUNK) // per_input)
    return (slice(start, start + width) for start in range(0, batch_size, width))


def _ranks(frame: _Frame) -> Iterator[slice]:
    """Yield groups of new slots whose weights are computed together."""
    width = _num_ranks(frame)
    return (slice(start, start + width) for start in range(0, frame.maxima_BK.shape[1], width))


def _num_ranks(frame: _Frame) -> int:
    """Return R: one new slot at a time on the CPU, else all."""
    return 1 if passes_are_cheap(frame.logits_BJV) else frame.maxima_BK.shape[1]


def _buffers(frame: _Frame, chunk: slice, count: int) -> list[Tensor]:
    """Make arrays for the scores of a chunk and a group of new slots, (C, R, J, V) each."""
    logits_CJV = frame.logits_BJV[chunk]
    width, *sizes = logits_CJV.shape
    return [logits_CJV.new_empty(width, _num_ranks(frame), *sizes) for _ in range(count)]


def _gaps(frame: _Frame, chunk: slice, ranks: slice, out: Tensor) -> Tensor:
    """Compute ``t_r``, (C, R, J, V)."""
    return torch.add(frame.logits_BJV[chunk, None], frame.shifts_BKJ[chunk, ranks, :, None], out=out)


def _powers(gaps_CRJV: Tensor, zero: Tensor, out: Tensor) -> Tensor:
    """Compute ``exp(-t^2)``."""
    return exp_(torch.addcmul(zero, gaps_CRJV, gaps_CRJV, value=-1, out=out))


def _end_gaps(frame: _Frame) -> Tensor:
    """Compute ``t_r`` of the candidates that end, (B, K, J)."""
    assert frame.end_scores_BJ is not None
    return frame.roots_B11 * (frame.end_scores_BJ[:, None] - frame.maxima_BK[..., None])


def _sums(problem: _Problem, frame: _Frame) -> tuple[_Sums, Tensor]:
    """Sum the weights; also return 1 / Z of each distribution (0 without live candidates)."""
    vocabulary_size, (batch_size, k) = frame.logits_BJV.shape[2], frame.maxima_BK.shape
    parents_BKJ = torch.empty_like(frame.shifts_BKJ)
    firsts_BK = torch.empty_like(frame.maxima_BK)
    tokens_BKV, zero = frame.logits_BJV.new_empty(batch_size, k, vocabulary_size), frame.logits_BJV.new_zeros(())
    for chunk in _chunks(frame):
        gaps_CRJV, powers_CRJV = _buffers(frame, chunk, 2)
        for ranks in _ranks(frame):
            _powers(_gaps(frame, chunk, ranks, gaps_CRJV), zero, powers_CRJV)
            torch.sum(powers_CRJV, dim=3, out=parents_BKJ[chunk, ranks])
            torch.sum(powers_CRJV, dim=2, out=tokens_BKV[chunk, ranks])
            torch.sum(gaps_CRJV.mul_(powers_CRJV), dim=(2, 3), out=firsts_BK[chunk, ranks])
    end_BK = torch.zeros_like(firsts_BK)
    if problem.end is not None:
        gaps_BKJ = _end_gaps(frame)
        powers_BKJ = (-gaps_BKJ.square()).exp()
        end_BK = powers_BKJ.sum(-1)
        parents_BKJ = parents_BKJ + powers_BKJ
        firsts_BK = firsts_BK + (powers_BKJ * gaps_BKJ).sum(-1)
        tokens_BKV[..., problem.end] = end_BK
    share_BK = parents_BKJ.sum(-1).reciprocal().masked_fill(frame.dead_BK, 0.0)
    embedding_VD = problem.embedding.weight_VD
    fed_BKD = (tokens_BKV @ embedding_VD.to(tokens_BKV.dtype)) * share_BK[..., None]
    cost_BK = torch.zeros_like(end_BK)
    if frame.cost_BV is not None:
        cost_BK = (tokens_BKV @ frame.cost_BV[..., None])[..., 0] * share_BK
    scores_BK = frame.maxima_BK + firsts_BK * share_BK / frame.roots_B11[..., 0]
    sums = _Sums(
        scores_BK.masked_fill(frame.dead_BK, -torch.inf),
        parents_BKJ * share_BK[..., None],
        fed_BKD.to(embedding_VD.dtype),
        cost_BK,
        end_BK * share_BK,
    )
    return sums, share_BK


class _Gradients(NamedTuple):
    """Gradients of the head's scores, the slots' terms and alpha; and the factors a and g of the gradient of E."""

    logits_BJV: Tensor
    terms: tuple[Tensor, Tensor, Tensor]
    alpha_B: Tensor | None
    tokens_BKV: Tensor
    fed_BKD: Tensor


def _gradients(
    problem: _Problem,
    frame: _Frame,
    sums: _Sums,
    share_BK: Tensor,
    upstream: _Sums,
    needs_alpha: bool,
) -> _Gradients:
    """Compute all gradients except products with matrices; those of the scores overwrite the scores in the frame."""
    slopes = _slopes(problem, frame, sums, share_BK, upstream)
    end = problem.end
    going_BJ = torch.empty_like(frame.logits_BJV[..., 0])
    ending_BJ, alphas_BK, maxima_BK = (
        torch.zeros_like(going_BJ),
        torch.zeros_like(slopes.direct_BK),
        slopes.scores_BK.clone(),
    )
    end_powers_BK = torch.zeros_like(maxima_BK)
    if end is not None:
        gaps_BKJ = _end_gaps(frame)
        powers_BKJ = (-gaps_BKJ.square()).exp()
        slope_BKJ = slopes.of_token_BKV[..., end, None] + slopes.of_end_BK[..., None] + slopes.of_slot_BKJ
        slope_BKJ = powers_BKJ * (slope_BKJ + slopes.of_gap_BK[..., None] * gaps_BKJ) * gaps_BKJ
        gradient_BKJ = powers_BKJ * slopes.direct_BK[..., None] + slope_BKJ
        alphas_BK += (gaps_BKJ * slope_BKJ).sum(-1)
        ending_BJ, maxima_BK = gradient_BKJ.sum(1), maxima_BK - gradient_BKJ.sum(-1)
        end_powers_BK = powers_BKJ.sum(-1)
    for chunk in _chunks(frame):
        gradient_CJV, spare_CJV = _chunk_gradient(frame, slopes, chunk, maxima_BK, alphas_BK, needs_alpha)
        maxima_CK = maxima_BK[chunk]
        if end is not None:
            is_end_CK = problem.maximum_tokens_BK[chunk] < 0
            at_end_CK, maxima_CK = maxima_CK.masked_fill(~is_end_CK, 0.0), maxima_CK.masked_fill(is_end_CK, 0.0)
            ending_BJ[chunk].scatter_add_(1, problem.maximum_slots_BK[chunk], at_end_CK)
        gradient_CJV.flatten(1).scatter_add_(1, frame.places_BK[chunk], maxima_CK)
        torch.sum(gradient_CJV, dim=-1, out=going_BJ[chunk])
        _to_logits(problem, frame, chunk, gradient_CJV, spare_CJV, going_BJ, ending_BJ)
    if end is not None:
        slopes.of_token_BKV[..., end] = end_powers_BK
    opened_BJ = torch.zeros_like(ending_BJ) if frame.end_logits_BJ is None else ending_BJ * frame.end_logits_BJ
    alpha_B = alphas_BK.sum(1) / (2 * frame.roots_B11[:, 0, 0] ** 3) if needs_alpha else None
    fed_BKD = share_BK[..., None] * upstream.fed_BKD.to(going_BJ.dtype)
    return _Gradients(frame.logits_BJV, (going_BJ, ending_BJ, opened_BJ), alpha_B, slopes.of_token_BKV, fed_BKD)


class _Slopes(NamedTuple):
    """y, a sum of four terms, times ``-2 sqrt(alpha) / Z``; and the other factors of the powers.

    The slope of candidate (i, w) is ``of_token[w] + of_slot[i] + of_gap t``, plus ``of_end`` if w is the end token.
    """

    of_token_BKV: Tensor
    of_slot_BKJ: Tensor
    of_gap_BK: Tensor
    of_end_BK: Tensor
    direct_BK: Tensor
    scores_BK: Tensor


def _slopes(problem: _Problem, frame: _Frame, sums: _Sums, share_BK: Tensor, upstream: _Sums) -> _Slopes:
    roots_B1, dtype = frame.roots_B11[..., 0], frame.logits_BJV.dtype
    factor_BK, scores_BK = -2 * roots_B1 * share_BK, upstream.scores_BK.masked_fill(frame.dead_BK, 0.0)
    of_fed_BKD = factor_BK[..., None] * upstream.fed_BKD.to(dtype)
    of_token_BKV = of_fed_BKD @ problem.embedding.weight_VD.to(dtype).mT
    if frame.cost_BV is not None:
        of_token_BKV.addcmul_((factor_BK * upstream.cost_BK)[..., None], frame.cost_BV[:, None])
    mean_BK = (
        _columns(sums, sums.scores_BK.masked_fill(frame.dead_BK, 0.0) - frame.maxima_BK) * _columns(upstream, scores_BK)
    ).sum(-1)
    of_slot_BKJ = factor_BK[..., None] * (upstream.parent_weights_BKJ - mean_BK[..., None])
    of_gap_BK, of_end_BK = factor_BK * scores_BK / roots_B1, factor_BK * upstream.end_mass_BK
    return _Slopes(of_token_BKV, of_slot_BKJ, of_gap_BK, of_end_BK, share_BK * scores_BK, scores_BK)


def _columns(sums: _Sums, scores_BK: Tensor) -> Tensor:
    """Return the sums side by side, with other scores."""
    single = torch.stack([scores_BK, sums.cost_BK, sums.end_mass_BK], dim=-1)
    return torch.cat([single, sums.parent_weights_BKJ, sums.fed_BKD.to(single.dtype)], dim=-1)


def _chunk_gradient(
    frame: _Frame, slopes: _Slopes, chunk: slice, maxima_BK: Tensor, alphas_BK: Tensor, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return ds of the candidates that continue, and an array to reuse.

    Adds the gradients of the maxima and of alpha in place; the token weights, not yet divided by Z, overwrite the
    slopes of the tokens.
    """
    gaps_CRJV, powers_CRJV, slope_CRJV = _buffers(frame, chunk, 3)
    gradient_CJV = torch.zeros_like(frame.logits_BJV[chunk])
    zero = gradient_CJV.new_zeros(())
    for ranks in _ranks(frame):
        _powers(_gaps(frame, chunk, ranks, gaps_CRJV), zero, powers_CRJV)
        of_token_CRV, of_gap_CR11 = slopes.of_token_BKV[chunk, ranks], slopes.of_gap_BK[chunk, ranks, None, None]
        torch.addcmul(of_token_CRV[:, :, None], gaps_CRJV, of_gap_CR11, out=slope_CRJV)
        slope_CRJV.add_(slopes.of_slot_BKJ[chunk, ranks, :, None])
        torch.sum(powers_CRJV, dim=2, out=of_token_CRV)
        # Multiply by the power first: the squared gap of an excluded candidate would overflow, and 0 x infinity is NaN.
        slope_CRJV.mul_(powers_CRJV).mul_(gaps_CRJV)
        if needs_alpha:
            alphas_BK[chunk, ranks] += gaps_CRJV.mul_(slope_CRJV).sum((2, 3))
        slope_CRJV.addcmul_(powers_CRJV, slopes.direct_BK[chunk, ranks, None, None])
        for slope_CJV in slope_CRJV.unbind(1):
            gradient_CJV.add_(slope_CJV)
        maxima_BK[chunk, ranks] -= slope_CRJV.sum((2, 3))
    return gradient_CJV, gaps_CRJV[:, 0]


def _to_logits(
    problem: _Problem,
    frame: _Frame,
    chunk: slice,
    gradient_CJV: Tensor,
    spare_CJV: Tensor,
    going_BJ: Tensor,
    ending_BJ: Tensor,
) -> None:
    """Convert ds to df, through log Z if it is part of the score; overwrites the scores."""
    logits_CJV, weight = frame.logits_BJV[chunk], problem.score.log_partition_weight
    if weight == 0:
        logits_CJV.copy_(gradient_CJV)
    else:
        log_partition_CJ1 = problem.log_partition_BJ[chunk, :, None]
        torch.div(logits_CJV, frame.roots_B11[chunk], out=spare_CJV).sub_(log_partition_CJ1)
        if frame.cost_BV is not None and problem.score.cost_weight != 0:
            spare_CJV.sub_(frame.cost_BV[chunk, None], alpha=problem.score.cost_weight)
        exp_(spare_CJV)
        if frame.end_f_BJ is not None:
            spare_CJV[..., problem.end] = (frame.end_f_BJ[chunk] - log_partition_CJ1[..., 0]).exp()
        gradient_CJ = -weight * (going_BJ[chunk] + frame.opened_BJ[chunk] * ending_BJ[chunk])
        torch.addcmul(gradient_CJV, spare_CJV, gradient_CJ[..., None], out=logits_CJV)
    if problem.end is not None:
        logits_CJV[..., problem.end] += frame.opened_BJ[chunk] * ending_BJ[chunk]
