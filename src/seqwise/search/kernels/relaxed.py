"""The relaxed beam's selection without B x K x J x V weights: few candidates where a bound allows it, else all, summed.

Of the V scores of a slot, nearly all are so far below the k best that their weight ``exp(-alpha (s - m_r)^2)`` is
nothing to the precision of the numbers. Which ones is not known before all have been computed, but that needs no graph.
So each step computes all scores without one, takes the n best candidates, bounds what all others can weigh together,
and, where the bound is below a tolerance, goes on with these alone: a soft top-k over B x K x n. An input where it is
not takes all candidates into account, summed in chunks that are computed again in the backward pass.

Shapes: B batch, J slots before, K slots after, V vocabulary, H features, X candidates of an input that are kept,
M = k + 1 best candidates, I some of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seqwise.search.candidates import Candidates, Shared, SlotTerms
from seqwise.search.kernels.certificate import Best
from seqwise.search.kernels.deferral import Matrix
from seqwise.search.kernels.dense import DenseProblem, dense_soft_top_k
from seqwise.search.kernels.logits import few_logits
from seqwise.search.kernels.partition import mean_rows
from seqwise.search.kernels.scan import (
    Choice,
    Kept,
    Scan,
    alphas,
    certify,
    cost_in_scores,
    end_scores,
    kept_of,
    scan_of,
    scan_scores,
    token_ids,
)
from seqwise.search.kernels.selections import FewSelection, JoinedSelection, ReducedSelection
from seqwise.search.operators import finite, of_scores, weights_and_gaps

if TYPE_CHECKING:
    from seqwise.search.selection import SoftSelection

__all__ = ["default_tolerance", "relaxed_top_k"]

# Scores of one group of inputs, which bounds what is held at a time (in floats).
GROUP = 2**25

Part = tuple[Tensor, FewSelection | ReducedSelection]
Expand = Callable[[Candidates], "SoftSelection"]


def default_tolerance(dtype: torch.dtype) -> float:
    """How much mass may be left out without the numbers showing it: 1e-12 in float64, else 1e-7.

    Example:
        >>> default_tolerance(torch.float32)
        1e-07
    """
    return 1e-12 if dtype == torch.float64 else 1e-7


def relaxed_top_k(
    candidates: Candidates, choice: Choice, expand: Expand
) -> FewSelection | ReducedSelection | JoinedSelection:
    """The soft top-k of candidates that are never expanded with a graph.

    Args:
        candidates: of a search (``shared`` is there), none of them excluded.
        choice: k, alpha and its unit, the tolerance of the certificate and the most candidates that it may keep.
        expand: the same selection in the plain form, for heads that are not linear and for questions nobody foresaw.

    Returns:
        A selection that equals the plain one: to rounding where all candidates were summed, up to the tolerance where
        few were kept.

    Example:
        >>> default_tolerance(torch.float64)
        1e-12
    """
    batch_size, num_slots = candidates.prefix_scores_BJ.shape
    shared = cast(Shared, candidates.shared)
    head = shared.deferred.of_head(candidates.head)
    per_input = num_slots * len(shared.embedding_VD) * (choice.k if head is None else 1)
    width = max(1, GROUP // max(per_input, 1))
    parts: list[Part] = []
    for start in range(0, batch_size, width):
        inputs_I = torch.arange(start, min(start + width, batch_size), device=candidates.prefix_scores_BJ.device)
        group = candidates if width >= batch_size else candidates.of_inputs(inputs_I)
        if head is None:
            parts.append((inputs_I, _expanded_again(group, expand)))
            continue
        parts += [(inputs_I[some_I], part) for some_I, part in _of_linear_head(group, head, choice, expand)]
    return parts[0][1] if len(parts) == 1 else JoinedSelection(parts, candidates.cost)


def _summable(candidates: Candidates) -> bool:
    """Whether the cost, if there is one, is the same for all slots, without a gradient, and can be made again."""
    cost, shared = candidates.cost, cast(Shared, candidates.shared)
    return cost is None or (cost.dim() == 2 and not cost.requires_grad and shared.cost is not None)


# ---------------------------------------------------------------------------------------- any head


def _expanded_again(candidates: Candidates, expand: Expand) -> ReducedSelection:
    """The plain form, of which only sums are kept: the backward pass expands the candidates again."""
    shared, cost, end = cast(Shared, candidates.shared), candidates.cost, candidates.end

    def again() -> SoftSelection:
        return expand(replace(candidates))

    def summed() -> tuple[Tensor, ...]:
        selection = again()
        zeros_BK = torch.zeros_like(selection.scores_BK)
        return (
            selection.scores_BK,
            selection.parents_BK,
            selection.tokens_BK,
            selection.parent_weights_BKJ,
            selection.embed(shared.embedding_VD),
            zeros_BK if cost is None else selection.expect(cost),
            zeros_BK if end is None else selection.token_mass(end),
        )

    sums: tuple[Any, ...] = (*checkpoint(summed, use_reentrant=False), cost, end, shared, again)
    return ReducedSelection(*sums)


# ---------------------------------------------------------------------------------------- a linear head


def _of_linear_head(candidates: Candidates, head: Matrix, choice: Choice, expand: Expand) -> Iterator[Part]:
    """Few candidates of the inputs where the certificate allows it, all of the others."""
    with torch.no_grad(), _own_precision(candidates):
        scan = scan_scores(candidates, head)
        kept = certify(candidates, scan, choice)
        certified_B = kept.bound_B <= choice.tolerance
    for mask_B, build in ((certified_B, _few), (~certified_B, _all)):
        inputs_I, some = mask_B.nonzero().squeeze(1), (candidates, head, scan, kept)
        if not mask_B.all():  # no need to look up what is everything
            some = candidates.of_inputs(inputs_I), head, scan_of(scan, inputs_I), kept_of(kept, inputs_I)
        if not len(inputs_I):
            continue
        if build is _all and not _summable(candidates):
            yield inputs_I, _expanded_again(some[0], expand)
            continue
        with _own_precision(candidates):
            part = build(*some, choice, expand)
        yield inputs_I, part


def _own_precision(candidates: Candidates) -> torch.autocast:
    """Products of weights and scores are never rounded to 16 bits; the head computes as its caller has asked."""
    return torch.autocast(candidates.features_BJH.device.type, enabled=False)


def _scores(candidates: Candidates, head: Matrix, scan: Scan, best: Best, used_BX: Tensor) -> Tensor:
    """Scores of the best candidates, with gradients: (B, X)."""
    score, terms, (_, slots_BX, tokens_BX) = candidates.score, candidates.slot_terms(), best
    ids_BX, is_end_BX = token_ids(tokens_BX, candidates.end), tokens_BX < 0
    logits_BX = scan.logits_BJV.flatten(1).gather(1, slots_BX * scan.logits_BJV.shape[2] + ids_BX)
    if scan.end_BJ is not None:
        logits_BX = torch.where(is_end_BX, scan.end_BJ.gather(1, slots_BX), logits_BX)
    mean_row_BJH = _mean_rows(candidates, head, scan, slots_BX, used_BX & (best.scores_BX != -torch.inf))
    looked_up = head, slots_BX, ids_BX, logits_BX, scan.log_partition_BJ, mean_row_BJH
    logits_BX, log_partition_BJ = few_logits(candidates.features_BJH, *looked_up)
    added_BX = logits_BX
    if score.log_partition_weight != 0:
        added_BX = added_BX - score.log_partition_weight * log_partition_BJ.gather(1, slots_BX)
    scores_BX = added_BX + terms.going_BJ.gather(1, slots_BX)
    if candidates.end is not None:
        of_slots = SlotTerms(*(values.gather(1, slots_BX) for values in terms))
        scores_BX = torch.where(is_end_BX, end_scores(of_slots, added_BX - score.constant), scores_BX)
    cost_BJV = cost_in_scores(candidates)
    if cost_BJV is not None:
        slots_of_cost_BX = slots_BX if cost_BJV.shape[1] > 1 else torch.zeros_like(slots_BX)
        scores_BX = scores_BX + cost_BJV.flatten(1).gather(1, slots_of_cost_BX * cost_BJV.shape[2] + ids_BX)
    return scores_BX


def _mean_rows(candidates: Candidates, head: Matrix, scan: Scan, slots_BX: Tensor, used_BX: Tensor) -> Tensor | None:
    """``softmax(f) W`` of the slots whose log Z some candidate with weight contains, 0 of the others."""
    wanted = torch.is_grad_enabled() and candidates.features_BJH.requires_grad
    if candidates.score.log_partition_weight == 0 or not wanted:
        return None
    used_BJ = torch.zeros_like(scan.log_partition_BJ, dtype=torch.long).scatter_add_(1, slots_BX, used_BX.long()) > 0
    with torch.no_grad():
        logits_NV, log_partition_N = (
            values.flatten(0, 1) if used_BJ.all() else values[used_BJ]
            for values in (scan.logits_BJV, scan.log_partition_BJ)
        )
        rows_NH = mean_rows(logits_NV, log_partition_N, head.weight_VD)
        if scan.end_BJ is not None:  # of which the scores know nothing
            share_N = (scan.end_BJ[used_BJ] - log_partition_N).exp()
            rows_NH.addr_(share_N, head.weight_VD[candidates.end].to(rows_NH.dtype))
        rows_BJH = rows_NH.new_zeros(*used_BJ.shape, rows_NH.shape[1])
        rows_BJH[used_BJ] = rows_NH
    return rows_BJH


def _few(
    candidates: Candidates,
    head: Matrix,
    scan: Scan,
    kept: Kept,
    choice: Choice,
    expand: Expand,
) -> FewSelection:
    """The soft top-k of the kept candidates alone."""
    best, num_slots = kept.best, candidates.prefix_scores_BJ.shape[1]
    k = min(choice.k, scan.logits_BJV[0].numel())
    # The unit of alpha needs the k + 1 best, with weight or without.
    used_BX = kept.kept_BX.clone()
    if choice.unit is not of_scores:
        used_BX[:, : k + 1] = True
    scores_BX = _scores(candidates, head, scan, best, used_BX)
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
    return FewSelection(
        mixed_BK.masked_fill(dead_BK, -torch.inf),
        best.slots_BX[:, :k],
        ids_BX[:, :k],
        weights_BKX @ slots_BXJ,
        weights_BKX,
        ids_BX,
        candidates.cost,
        cast(Shared, candidates.shared),
    )


def _all(
    candidates: Candidates,
    head: Matrix,
    scan: Scan,
    kept: Kept,
    choice: Choice,
    expand: Expand,
) -> ReducedSelection:
    """The soft top-k of all candidates, summed; the scan's scores are used up."""
    shared, score, end, step = cast(Shared, candidates.shared), candidates.score, candidates.end, candidates.step
    k = min(choice.k, scan.logits_BJV[0].numel())
    best = Best(*(values[:, : k + 1] for values in kept.best))
    alpha_B = alphas(candidates, best, choice, k + 1)
    if choice.unit is not of_scores:
        scores_BM = _scores(candidates, head, scan, best, torch.ones_like(best.slots_BX, dtype=torch.bool))
        alpha_B = alphas(candidates, Best(scores_BM, best.slots_BX, best.tokens_BX), choice, k + 1)
    maxima = tuple(values[:, :k] for values in best)
    embedding, cost = shared.deferred.of(shared.embedding_VD), shared.cost
    problem = DenseProblem(
        head,
        embedding,
        scan.log_partition_BJ,
        score.log_partition_weight,
        score.constant,
        score.cost_weight,
        None if cost is None else lambda: cost(step),
        end,
        *maxima,
    )
    if scan.end_BJ is not None:
        scan.logits_BJV[..., end] = scan.end_BJ
    terms = candidates.slot_terms()
    sums = dense_soft_top_k(problem, candidates.features_BJH, terms, alpha_B, scan.logits_BJV, candidates.cost)
    slots_BK, tokens_BK = maxima[1], token_ids(maxima[2], end)
    fixed = sums.scores_BK, slots_BK, tokens_BK, sums.parent_weights_BKJ, sums.fed_BKD, sums.cost_BK, sums.end_mass_BK
    return ReducedSelection(*fixed, candidates.cost, end, shared, lambda: expand(replace(candidates)))
