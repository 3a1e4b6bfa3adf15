"""All scores of a step without a graph, the candidates to keep, and a bound on the weight of the others.

Shapes: B batch, J slots, V vocabulary, X best candidates of an input, M = k + 1 of them, E extra candidates (ending
ones), I some of the inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.devices import moved, passes_are_cheap
from seqwise.models.deferred_linear import DeferredLinear
from seqwise.search.candidates import Candidates
from seqwise.search.large_vocabulary.blocks import (
    BLOCK,
    Best,
    Blocks,
    best_candidates,
    best_of_all,
    block_maxima,
    excluded_mass_bound,
    maxima_and_log_partitions,
    takes_all,
    worst_maximum,
)
from seqwise.search.operators import AlphaUnit, in_range, in_units, of_scores

# Largest number of candidates that are kept: from about twice as many on, summing over all is no slower.
MOST = 512
# Number of candidates that are tried first; then four and sixteen times as many.
FIRST = 32
# Smallest alpha: below it, the finite number that replaces minus infinity would weigh as much as all other scores.
SMALLEST = 1e-30


class Choice(NamedTuple):
    """Parameters of a soft top-k: its size, alpha in its unit, and the mass that may be dropped."""

    k: int
    alpha: float
    unit: AlphaUnit
    tolerance: float
    most: int


class Scan(NamedTuple):
    """All scores of a step, without a graph.

    Attributes:
        logits_BJV: f; minus infinity at the end token, whose scores are ``end_BJ``.
        log_partition_BJ: log Z, 0 if the score does not use it.
        maxima_BJM: the largest score of each full block, if already known.
    """

    logits_BJV: Tensor
    end_BJ: Tensor | None
    log_partition_BJ: Tensor
    maxima_BJM: Tensor | None = None


class Kept(NamedTuple):
    """Best candidates of some of the inputs, which of them have weight, and a bound on the weight of the others."""

    best: Best
    kept_BX: Tensor
    bound_B: Tensor


def scan_scores(candidates: Candidates, head: DeferredLinear) -> Scan:
    """Compute all scores; call without a graph."""
    logits_BJV, end, end_BJ = head.scores(candidates.features_BJH), candidates.end, None
    normalized = candidates.score.log_partition_weight != 0
    maxima_BJM, log_partition_BJ = maxima_and_log_partitions(logits_BJV, normalized=normalized)
    if end is not None:
        end_BJ = logits_BJV[..., end].clone()
        logits_BJV[..., end] = -torch.inf
        if end < BLOCK * maxima_BJM.shape[2]:
            block = end // BLOCK
            maxima_BJM[..., block] = logits_BJV[..., BLOCK * block : BLOCK * (block + 1)].amax(-1)
    return Scan(logits_BJV, end_BJ, log_partition_BJ, maxima_BJM)


def scan_of(scan: Scan, inputs_I: Tensor) -> Scan:
    """Select the scan of some of the inputs."""
    return Scan(*(None if values is None else values[inputs_I] for values in scan))  # type: ignore[arg-type]


def kept_of(kept: Kept, inputs_I: Tensor) -> Kept:
    """Select the kept candidates of some of the inputs."""
    best = Best(*(values[inputs_I] for values in kept.best))
    return Kept(best, kept.kept_BX[inputs_I], kept.bound_B[inputs_I])


def certify(candidates: Candidates, scan: Scan, choice: Choice) -> Kept:
    """Keep the best candidates of every input, as few as the tolerance allows, with the bound."""
    score, terms, values_BJV = candidates.score, candidates.slot_terms(), scan.logits_BJV
    partition_BJ = score.log_partition_weight * scan.log_partition_BJ
    extra_BE = values_BJV.new_empty(len(values_BJV), 0)
    cost_BJV = cost_in_scores(candidates)
    if scan.end_BJ is not None:
        extra_BE = terms.of_ending(scan.end_BJ - partition_BJ - score.constant)
        if cost_BJV is not None:
            extra_BE = extra_BE + cost_BJV[..., candidates.end]
    maxima_BJM = scan.maxima_BJM
    if cost_BJV is not None:
        values_BJV, maxima_BJM = values_BJV + cost_BJV, None
    offsets_BJ, num_candidates = terms.going_BJ - partition_BJ, values_BJV[0].numel()
    k = min(choice.k, num_candidates)
    open_I = torch.arange(len(values_BJV), device=values_BJV.device)
    if choice.tolerance < 0:  # all candidates are used, and only the k + 1 best are needed
        n = min(k + 1, num_candidates)
        if passes_are_cheap(values_BJV):
            best = best_candidates(block_maxima(values_BJV, offsets_BJ, extra_BE, full_BJM=maxima_BJM), open_I, n)
        else:
            best = best_of_all(values_BJV, offsets_BJ, extra_BE, n)
        return Kept(best, best.scores_BX != -torch.inf, torch.zeros_like(best.scores_BX[:, 0]))
    blocks = block_maxima(values_BJV, offsets_BJ, extra_BE, full_BJM=maxima_BJM)
    width, kept = 0, None
    # If a search for fewer would visit all candidates anyway, look for the largest number at once.
    sizes = [size for size in (FIRST, 4 * FIRST, 16 * FIRST) if size < choice.most and not takes_all(blocks, size)]
    for size in [*sizes, choice.most]:
        n = min(max(size, k + 1), num_candidates)
        if n == width:
            break
        best = best_candidates(blocks, open_I, n)
        # Restricted to the open inputs only if needed, because this copies tensors.
        subset = candidates if width == 0 or choice.unit is of_scores else candidates.of_inputs(open_I)
        alpha_I = alphas(subset, best, choice, k + 1)
        bound_I = excluded_mass_bound(blocks, open_I, best, k, alpha_I)
        kept = _merged(kept, open_I, Kept(best, _with_weight(best, bound_I, k, alpha_I, choice.tolerance), bound_I))
        width = n
        open_B = ~(kept.bound_B <= choice.tolerance)
        open_B[open_I] &= ~_hopeless(blocks, open_I, best, k, alpha_I, choice)
        open_I = open_B.nonzero().squeeze(1)
        if not len(open_I):
            break
    return _narrowed(cast(Kept, kept), k + 1)


def _hopeless(blocks: Blocks, inputs_I: Tensor, best: Best, k: int, alpha_I: Tensor, choice: Choice) -> Tensor:
    """Mask the inputs in which too many blocks have a maximum that alone exceeds the tolerance."""
    gaps_IM = worst_maximum(best.scores_BX, k)[:, None] - blocks.maxima_BM[inputs_I]
    heavy_IM = alpha_I[:, None] * gaps_IM.square() < -math.log(max(choice.tolerance, 1e-300))
    return heavy_IM.sum(1) > choice.most


def _with_weight(best: Best, bound_I: Tensor, k: int, alpha_I: Tensor, tolerance: float) -> Tensor:
    """Mask the candidates that are needed: dropping all others stays within the tolerance."""
    gaps_IX = (worst_maximum(best.scores_BX, k)[:, None] - best.scores_BX).to(bound_I.dtype)
    masses_IX = (-alpha_I[:, None] * gaps_IX.square()).exp()
    left_out_IX = masses_IX.flip(1).cumsum(1).flip(1) + bound_I[:, None]
    first_X = torch.arange(gaps_IX.shape[1], device=gaps_IX.device) < k
    return (~(left_out_IX <= tolerance) | first_X) & (best.scores_BX != -torch.inf)


def _merged(kept: Kept | None, inputs_I: Tensor, more: Kept) -> Kept:
    """Add candidates for some of the inputs; the others are padded with candidates without weight."""
    if kept is None:
        return more
    columns = more.kept_BX.shape[1] - kept.kept_BX.shape[1]
    scores_BX = F.pad(kept.best.scores_BX, (0, columns), value=-torch.inf)
    slots_BX, tokens_BX, kept_BX = (
        F.pad(values, (0, columns)) for values in (kept.best.slots_BX, kept.best.tokens_BX, kept.kept_BX)
    )
    for values_BX, new_IX in zip((scores_BX, slots_BX, tokens_BX), more.best, strict=True):
        values_BX[inputs_I] = new_IX
    kept_BX[inputs_I] = more.kept_BX
    return Kept(Best(scores_BX, slots_BX, tokens_BX), kept_BX, kept.bound_B.index_copy(0, inputs_I, more.bound_B))


def _narrowed(kept: Kept, at_least: int) -> Kept:
    """Remove columns without weight for all inputs."""
    width = max(at_least, int(kept.kept_BX.sum(1).max()))
    return Kept(Best(*(values[:, :width] for values in kept.best)), kept.kept_BX[:, :width], kept.bound_B)


def alphas(candidates: Candidates, best: Best, choice: Choice, num_best: int) -> Tensor:
    """Divide alpha by its unit for each input, (B,), from the k + 1 best candidates."""
    best_BM, slots_BM, tokens_BM = (values[:, :num_best] for values in best)
    alpha_B = moved(in_range(choice.alpha, best_BM), best_BM.device).expand(len(best_BM))
    if choice.unit is not of_scores:
        open_BM = candidates.open_shares(slots_BM, token_ids(tokens_BM, candidates.end))
        alpha_B = in_units(choice.alpha, choice.unit(best_BM, open_BM))
    return alpha_B.clamp(min=SMALLEST)


def token_ids(tokens: Tensor, end: int | None) -> Tensor:
    """Return the token ids of the best candidates, in which -1 marks the end token."""
    return tokens if end is None else tokens.masked_fill(tokens < 0, end)


def cost_in_scores(candidates: Candidates) -> Tensor | None:
    """Return the term that the cost adds to the scores, (B, J, V) or (B, 1, V), or None."""
    weight, cost = candidates.score.cost_weight, candidates.cost
    if cost is None or not candidates.augmented:
        return None
    return weight * (cost if cost.dim() == 3 else cost[:, None])
