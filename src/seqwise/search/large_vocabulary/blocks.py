"""Best of many candidates without sorting, and an upper bound on the weight of all others.

A row of V scores is cut into blocks of 64. The n best candidates lie in the n blocks with the largest maxima, so only
these are searched; the rest weighs at most as much as if every block were full of its maximum.

Shapes: B batch, J slots, V vocabulary, M blocks of all slots and single candidates, N the same in order, X best
candidates of an input, K slots after, W width of a block.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from seqwise.devices import widest_float
from seqwise.models.heads import log_partition
from seqwise.search.ending import SlotTerms

# Scores in a block.
BLOCK = 64


class Blocks(NamedTuple):
    """Blocks of all candidates of each input.

    Block m of a slot holds the tokens from 64 m on. The last V mod 64 tokens of each slot, and extra candidates, are
    single.

    Attributes:
        maxima_BM: the largest score in each block.
        values_BJV: scores before the offsets.
        offsets_BJ: offset added to the values of each slot.
        extra_BE: scores of the extra candidates, with their own ``tokens``.
    """

    maxima_BM: Tensor
    values_BJV: Tensor
    offsets_BJ: Tensor
    extra_BE: Tensor


class Best(NamedTuple):
    """The n best candidates in descending order: scores, slots, tokens (-1: the extra candidate of that slot)."""

    scores_BX: Tensor
    slots_BX: Tensor
    tokens_BX: Tensor


def block_maxima(values_BJV: Tensor, offsets_BJ: Tensor, extra_BE: Tensor, *, full_BJM: Tensor | None = None) -> Blocks:
    """Cut the candidates ``values + offset`` into blocks; minus infinity excludes a candidate or a slot.

    Args:
        values_BJV, offsets_BJ: terms of the candidates' scores.
        extra_BE: scores of extra candidates, one for each slot, or (B, 0).
        full_BJM: the largest value of each full block, if known.
    """
    full = values_BJV.shape[2] // BLOCK
    maxima_BJM = values_BJV[..., BLOCK * full :]
    if full:
        if full_BJM is None:
            full_BJM = full_maxima(values_BJV)
        maxima_BJM = torch.cat([full_BJM, maxima_BJM], dim=2)
    return Blocks((maxima_BJM + offsets_BJ[..., None]).flatten(1), values_BJV, offsets_BJ, extra_BE)


def full_maxima(values_BJV: Tensor) -> Tensor:
    """Compute the largest value of each full block, (B, J, V // 64)."""
    full = values_BJV.shape[2] // BLOCK
    return values_BJV[..., : BLOCK * full].unflatten(2, (full, BLOCK)).amax(3)


def best_candidates(blocks: Blocks, inputs_B: Tensor, n: int) -> Best:
    """Find the n best candidates of some of the inputs; n is at most the number of candidates."""
    if takes_all(blocks, n):
        return best_of_all(blocks.values_BJV[inputs_B], blocks.offsets_BJ[inputs_B], blocks.extra_BE[inputs_B], n)
    vocabulary_size = blocks.values_BJV.shape[2]
    full, rest = vocabulary_size // BLOCK, vocabulary_size % BLOCK
    maxima_BM, extra_BE = blocks.maxima_BM[inputs_B], blocks.extra_BE[inputs_B]
    best_BN, places_BN = maxima_BM.topk(n, sorted=False)
    slots_BN, places_BN = places_BN // (full + rest), places_BN % (full + rest)
    is_block_BN, rows_BN = places_BN < full, (inputs_B[:, None], slots_BN)
    blocks_BJMW = blocks.values_BJV[..., : BLOCK * full].unflatten(2, (full, BLOCK))
    scores_BNW = blocks_BJMW[(*rows_BN, places_BN.clamp(max=full - 1))] + blocks.offsets_BJ[rows_BN][..., None]
    if rest:  # the maximum of a single candidate is its score
        scores_BNW.masked_fill_(~is_block_BN[..., None], -torch.inf)
        scores_BNW[..., 0] = torch.where(is_block_BN, scores_BNW[..., 0], best_BN)
    scores_BX, chosen_BX = torch.cat([scores_BNW.flatten(1), extra_BE], dim=1).topk(n)
    beyond_BX = chosen_BX - n * BLOCK  # index of the extra candidate; negative for others
    chosen_BX = chosen_BX.clamp(max=n * BLOCK - 1)
    first_BN = torch.where(is_block_BN, BLOCK * places_BN, places_BN + (BLOCK - 1) * full)
    # The padding of a single candidate's row is chosen only if no live candidate is left; any token will do.
    tokens_BX = (first_BN.gather(1, chosen_BX // BLOCK) + chosen_BX % BLOCK).clamp(max=vocabulary_size - 1)
    slots_BX = slots_BN.gather(1, chosen_BX // BLOCK)
    return _with_extra(scores_BX, slots_BX, tokens_BX, beyond_BX)


def takes_all(blocks: Blocks, n: int) -> bool:
    """Whether the n best blocks contain all candidates."""
    _, num_slots, vocabulary_size = blocks.values_BJV.shape
    return vocabulary_size < BLOCK or n * BLOCK >= num_slots * vocabulary_size


def best_of_all(values_BJV: Tensor, offsets_BJ: Tensor, extra_BE: Tensor, n: int) -> Best:
    """Find the n best candidates by expanding all of them, in fewer passes than by blocks."""
    scores_BJV = values_BJV + offsets_BJ[..., None]
    (num_slots, vocabulary_size), num_extra = scores_BJV.shape[1:], extra_BE.shape[1]
    scores_BC = torch.cat([scores_BJV.flatten(1), extra_BE], dim=1) if num_extra else scores_BJV.flatten(1)
    scores_BX, chosen_BX = scores_BC.topk(n)
    slots_BX, tokens_BX = chosen_BX // vocabulary_size, chosen_BX % vocabulary_size
    if not num_extra:
        return Best(scores_BX, slots_BX, tokens_BX)
    return _with_extra(scores_BX, slots_BX, tokens_BX, chosen_BX - num_slots * vocabulary_size)


def _with_extra(scores_BX: Tensor, slots_BX: Tensor, tokens_BX: Tensor, beyond_BX: Tensor) -> Best:
    """Set the slots of extra candidates, whose token is -1."""
    is_extra_BX = beyond_BX >= 0
    return Best(scores_BX, torch.where(is_extra_BX, beyond_BX, slots_BX), tokens_BX.masked_fill(is_extra_BX, -1))


def worst_maximum(best_scores_BX: Tensor, k: int) -> Tensor:
    """Return the smallest live one of the k best scores, (B,), whose distribution reaches lowest; 0 if none is live."""
    maxima_BK = best_scores_BX[:, :k]
    dead_BK = maxima_BK == -torch.inf
    return maxima_BK.masked_fill(dead_BK, torch.inf).amin(1).masked_fill(dead_BK.all(1), 0.0)


def excluded_mass_bound(blocks: Blocks, inputs_B: Tensor, best: Best, k: int, alpha_B: Tensor) -> Tensor:
    """Bound the weight of all candidates but the n best in any of the k distributions of the soft top-k.

    With m the smallest live one of the k maxima, v_n the score of the last of the n kept candidates, and M_g the
    maximum of block g: ``sum over blocks of |g| e(min(M_g, v_n)) - n e(v_n)``, ``e(s) = exp(-alpha (m - s)^2)``. A
    dropped candidate scores at most min(M_g, v_n), which is at most m and every other maximum; a kept one counts as
    v_n; and the normaliser of the weights is at least 1, the term of the maximum itself. So the bound holds for each of
    the k distributions. (B,), of the widest floats of the device, rounded upwards; NaN if a score is NaN.

    Example:
        >>> blocks = block_maxima(torch.tensor([[[3.0, 2.0, 0.0]]]), torch.zeros(1, 1), torch.zeros(1, 0))
        >>> best = best_candidates(blocks, torch.tensor([0]), 2)
        >>> excluded_mass_bound(blocks, torch.tensor([0]), best, 1, torch.tensor([1.0]))  # the truth is exp(-9)
        tensor([0.0001], dtype=torch.float64)
    """
    vocabulary_size = blocks.values_BJV.shape[2]
    num_slots, full = blocks.values_BJV.shape[1], vocabulary_size // BLOCK
    num_candidates = num_slots * vocabulary_size + blocks.extra_BE.shape[1]
    dtype = widest_float(alpha_B.device)
    if best.scores_BX.shape[1] >= num_candidates:
        return torch.zeros_like(alpha_B, dtype=dtype).where(~best.scores_BX.isnan().any(1), torch.nan)
    sizes_M = torch.ones(full + vocabulary_size % BLOCK, device=alpha_B.device, dtype=dtype)
    sizes_M[:full] = BLOCK
    sizes_M = torch.cat([sizes_M.repeat(num_slots), sizes_M.new_ones(blocks.extra_BE.shape[1])])
    last_B1 = best.scores_BX[:, -1:]
    maxima_BM = torch.cat([last_B1, blocks.maxima_BM[inputs_B], blocks.extra_BE[inputs_B]], dim=1)
    reached_BM = torch.minimum(maxima_BM, last_B1).to(dtype)
    gaps_BM = worst_maximum(best.scores_BX, k)[:, None] - reached_BM
    # Exponents are capped before the mass underflows, and the sum is rounded upwards, so it is never too small. The
    # relative error of an exponent x is at most 4 eps, so that of its mass is at most 4 x eps; a sum of n adds n eps.
    largest = 700.0 if dtype == torch.float64 else 80.0
    slack = 1e-9 if dtype == torch.float64 else (4 * largest + len(sizes_M)) * torch.finfo(dtype).eps
    exponents_BM = (alpha_B.to(dtype)[:, None] * gaps_BM.square()).clamp(max=largest)
    masses_BM = (-exponents_BM).exp().masked_fill(reached_BM == -torch.inf, 0.0)
    return masses_BM[:, 1:] @ sizes_M * (1 + slack) - best.scores_BX.shape[1] * masses_BM[:, 0]


def maxima_and_log_partitions(logits_BJV: Tensor, *, normalized: bool) -> tuple[Tensor, Tensor]:
    """Compute the largest score of each full block of a slot, (B, J, V // 64), and ``log Z``, (B, J).

    log Z is 0 if it is not requested or no token is possible.
    """
    if fits_one_pass(logits_BJV):
        from seqwise.search.large_vocabulary.triton import scan_rows  # imports Triton

        maxima_NM, log_partition_N = scan_rows(logits_BJV.flatten(0, 1))
        full_BJM = maxima_NM.unflatten(0, logits_BJV.shape[:2])
        log_partition_BJ = log_partition_N.view(logits_BJV.shape[:2])
    else:
        full_BJM = full_maxima(logits_BJV)
        log_partition_BJ = log_partition(logits_BJV) if normalized else logits_BJV[..., 0]
    if not normalized:
        return full_BJM, torch.zeros_like(log_partition_BJ)
    return full_BJM, log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)


def fits_one_pass(logits_BJV: Tensor) -> bool:
    """Whether the Triton kernel can scan these scores."""
    return logits_BJV.is_cuda and logits_BJV.dtype == torch.float32 and find_spec("triton") is not None


@torch.no_grad()
def best_of_many(
    logits_BJV: Tensor,
    terms: SlotTerms,
    k: int,
    *,
    log_partition_weight: float = 0.0,
    log_partition_BJ: Tensor | None = None,
    constant: float = 0.0,
    end: int | None = None,
    excluded_BX: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``hard_top_k``, up to rounding, in half the passes over B x J x V, for searches without gradients.

    A slot adds the same term to all of its tokens but the end, so block maxima of unnormalised scores come first, and
    only blocks that can contain one of the best candidates are searched. With the number of slots and excluded
    candidates, k is at most J V; the score f - c log Z - m has no cost. By default, log Z is that of the logits.
    """
    batch_size, num_slots, vocabulary_size = logits_BJV.shape
    is_missing = log_partition_weight != 0 and log_partition_BJ is None
    full_BJM, own_BJ = maxima_and_log_partitions(logits_BJV, normalized=is_missing)
    if log_partition_BJ is None:
        log_partition_BJ = own_BJ
    else:
        log_partition_BJ = log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)
    partition_BJ = log_partition_weight * log_partition_BJ
    every_B, none_BE = torch.arange(batch_size, device=logits_BJV.device), logits_BJV.new_empty(batch_size, 0)
    blocks = block_maxima(logits_BJV, terms.going_BJ - partition_BJ, none_BE, full_BJM=full_BJM)
    # Some may have to be removed again: the end token of each slot, which is scored differently, and excluded ones.
    spare = (0 if end is None else num_slots) + (0 if excluded_BX is None else excluded_BX.shape[1])
    scores_BN, slots_BN, tokens_BN = best_candidates(blocks, every_B, k + spare)
    if end is not None:
        ending_BJ = terms.of_ending(logits_BJV[..., end] - partition_BJ - constant)
        slots_BJ = torch.arange(num_slots, device=slots_BN.device).expand(batch_size, -1)
        scores_BN = torch.cat([scores_BN.masked_fill(tokens_BN == end, -torch.inf), ending_BJ], dim=1)
        slots_BN = torch.cat([slots_BN, slots_BJ], dim=1)
        tokens_BN = torch.cat([tokens_BN, torch.full_like(slots_BJ, end)], dim=1)
    if excluded_BX is not None:
        flat_BN1 = (slots_BN * vocabulary_size + tokens_BN)[..., None]
        scores_BN = scores_BN.masked_fill((flat_BN1 == excluded_BX[:, None]).any(-1), -torch.inf)
    scores_BK, chosen_BK = scores_BN.topk(k)
    return scores_BK, slots_BN.gather(1, chosen_BK), tokens_BN.gather(1, chosen_BK)
