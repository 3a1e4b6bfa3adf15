"""The best of many candidates, found without sorting them, and how much all the others can weigh at most.

A row of V scores is cut into blocks of 64. The n best candidates lie in the n blocks with the largest maxima, so that
only these are looked into; and what is left out weighs no more than if every block were full of its maximum.

Shapes: B batch, J slots, V vocabulary, M blocks of all slots (and single candidates beside them), N the same in order,
X best candidates of an input, K slots after, W width of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Scores in a block.
BLOCK = 64


class Blocks(NamedTuple):
    """The blocks of all candidates of each input.

    Block m of a slot holds the tokens from 64 m on. The last V mod 64 tokens of each slot are single, and so are extra
    candidates.

    Attributes:
        maxima_BM: the largest score in each block.
        values_BJV: what the scores were made of.
        offsets_BJ: what was added to the values of each slot.
        extra_BE: scores of the extra candidates, which stand for ``tokens`` of their own.
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
    """Cut the candidates ``values + offset`` into blocks.

    Args:
        values_BJV: minus infinity excludes a candidate.
        offsets_BJ: added to all values of a slot; minus infinity excludes the slot.
        extra_BE: scores of further candidates, one for each slot, or (B, 0).
        full_BJM: the largest value of each full block, where that is known.

    Example:
        >>> blocks = block_maxima(torch.arange(130.0).view(1, 1, 130), torch.zeros(1, 1), torch.zeros(1, 0))
        >>> blocks.maxima_BM
        tensor([[ 63., 127., 128., 129.]])
    """
    full = values_BJV.shape[2] // BLOCK
    maxima_BJM = values_BJV[..., BLOCK * full :]
    if full:
        if full_BJM is None:
            full_BJM = full_maxima(values_BJV)
        maxima_BJM = torch.cat([full_BJM, maxima_BJM], dim=2)
    return Blocks((maxima_BJM + offsets_BJ[..., None]).flatten(1), values_BJV, offsets_BJ, extra_BE)


def full_maxima(values_BJV: Tensor) -> Tensor:
    """The largest value of each full block, (B, J, V // 64).

    Example:
        >>> full_maxima(torch.arange(130.0).view(1, 1, 130))
        tensor([[[ 63., 127.]]])
    """
    full = values_BJV.shape[2] // BLOCK
    return values_BJV[..., : BLOCK * full].unflatten(2, (full, BLOCK)).amax(3)


def best_candidates(blocks: Blocks, inputs_B: Tensor, n: int) -> Best:
    """The n best candidates of some of the inputs.

    Args:
        blocks: of all inputs.
        inputs_B: which inputs, int64.
        n: how many, at most all there are.

    Example:
        >>> blocks = block_maxima(torch.arange(130.0).view(1, 1, 130), torch.zeros(1, 1), torch.zeros(1, 0))
        >>> best_candidates(blocks, torch.tensor([0]), 3).tokens_BX
        tensor([[129, 128, 127]])
    """
    if takes_all(blocks, n):
        return _best_of_all(blocks, inputs_B, n)
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
    beyond_BX = chosen_BX - n * BLOCK  # which extra candidate, if it is one
    chosen_BX = chosen_BX.clamp(max=n * BLOCK - 1)
    first_BN = torch.where(is_block_BN, BLOCK * places_BN, places_BN + (BLOCK - 1) * full)
    # What is left of a single candidate's row, where nothing else is left, is no token.
    tokens_BX = (first_BN.gather(1, chosen_BX // BLOCK) + chosen_BX % BLOCK).clamp(max=vocabulary_size - 1)
    slots_BX = slots_BN.gather(1, chosen_BX // BLOCK)
    return _with_extra(scores_BX, slots_BX, tokens_BX, beyond_BX)


def takes_all(blocks: Blocks, n: int) -> bool:
    """Whether the n best blocks are no fewer candidates than there are.

    Example:
        >>> takes_all(block_maxima(torch.zeros(1, 1, 130), torch.zeros(1, 1), torch.zeros(1, 0)), 2)
        False
    """
    _, num_slots, vocabulary_size = blocks.values_BJV.shape
    return vocabulary_size < BLOCK or n * BLOCK >= num_slots * vocabulary_size or n > blocks.maxima_BM.shape[1]


def _best_of_all(blocks: Blocks, inputs_B: Tensor, n: int) -> Best:
    (_, num_slots, vocabulary_size), num_extra = blocks.values_BJV.shape, blocks.extra_BE.shape[1]
    num_own = num_slots * vocabulary_size
    scores_BC = blocks.values_BJV.new_empty(len(inputs_B), num_own + num_extra)
    own_BJV = scores_BC[:, :num_own].unflatten(1, (num_slots, vocabulary_size))
    torch.add(blocks.values_BJV[inputs_B], blocks.offsets_BJ[inputs_B][..., None], out=own_BJV)
    scores_BC[:, num_own:] = blocks.extra_BE[inputs_B]
    scores_BX, chosen_BX = scores_BC.topk(n)
    slots_BX, tokens_BX = chosen_BX // vocabulary_size, chosen_BX % vocabulary_size
    return _with_extra(scores_BX, slots_BX, tokens_BX, chosen_BX - num_own)


def _with_extra(scores_BX: Tensor, slots_BX: Tensor, tokens_BX: Tensor, beyond_BX: Tensor) -> Best:
    """Those that stand for an extra candidate are of its slot, and no token."""
    is_extra_BX = beyond_BX >= 0
    return Best(scores_BX, torch.where(is_extra_BX, beyond_BX, slots_BX), tokens_BX.masked_fill(is_extra_BX, -1))


def worst_maximum(best_scores_BX: Tensor, k: int) -> Tensor:
    """The smallest live one among the k best scores, (B,): that whose soft choice reaches lowest; 0 if none lives.

    Example:
        >>> worst_maximum(torch.tensor([[3.0, 2.0, 1.0], [3.0, -torch.inf, -torch.inf]]), 2)
        tensor([2., 3.])
    """
    maxima_BK = best_scores_BX[:, :k]
    dead_BK = maxima_BK == -torch.inf
    return maxima_BK.masked_fill(dead_BK, torch.inf).amin(1).masked_fill(dead_BK.all(1), 0.0)


def excluded_mass_bound(blocks: Blocks, inputs_B: Tensor, best: Best, k: int, alpha_B: Tensor) -> Tensor:
    """Bound on the weight of all candidates but the best in any of the k distributions of the soft top-k.

    With m the smallest live one of the k maxima, v_n the score of the last of the n candidates that are kept, and M_g
    the maximum of block g, ``sum over blocks of |g| e(min(M_g, v_n)) - n e(v_n)``, ``e(s) = exp(-alpha (m - s)^2)``. A
    candidate that was left out scores at most min(M_g, v_n), which is at most m and at most every other of the maxima;
    one that was kept has been counted as v_n; and the weights are divided by a sum in which the maximum itself is 1. So
    the bound holds for each of the k distributions.

    Args:
        blocks, inputs_B: as of :func:`best_candidates`.
        best: what it returned.
        k: how many distributions.
        alpha_B: inverse temperature of each of these inputs.

    Returns:
        (B,), float64, rounded upwards: a share of the mass 1. NaN where a score is NaN.

    Example:
        >>> blocks = block_maxima(torch.tensor([[[3.0, 2.0, 0.0]]]), torch.zeros(1, 1), torch.zeros(1, 0))
        >>> best = best_candidates(blocks, torch.tensor([0]), 2)
        >>> excluded_mass_bound(blocks, torch.tensor([0]), best, 1, torch.tensor([1.0]))  # the truth is exp(-9)
        tensor([0.0001], dtype=torch.float64)
    """
    vocabulary_size = blocks.values_BJV.shape[2]
    num_slots, full = blocks.values_BJV.shape[1], vocabulary_size // BLOCK
    num_candidates = num_slots * vocabulary_size + blocks.extra_BE.shape[1]
    if best.scores_BX.shape[1] >= num_candidates:
        return torch.zeros_like(alpha_B, dtype=torch.float64).where(~best.scores_BX.isnan().any(1), torch.nan)
    sizes_M = torch.ones(full + vocabulary_size % BLOCK, device=alpha_B.device, dtype=torch.float64)
    sizes_M[:full] = BLOCK
    sizes_M = torch.cat([sizes_M.repeat(num_slots), sizes_M.new_ones(blocks.extra_BE.shape[1])])
    last_B1 = best.scores_BX[:, -1:]
    maxima_BM = torch.cat([last_B1, blocks.maxima_BM[inputs_B], blocks.extra_BE[inputs_B]], dim=1)
    reached_BM = torch.minimum(maxima_BM, last_B1).double()
    gaps_BM = worst_maximum(best.scores_BX, k).double()[:, None] - reached_BM
    # Exponents are cut where the mass would vanish from float64, and the sum is rounded upwards: never below the truth.
    exponents_BM = (alpha_B.double()[:, None] * gaps_BM.square()).clamp(max=700.0)
    masses_BM = (-exponents_BM).exp().masked_fill(reached_BM == -torch.inf, 0.0)
    return masses_BM[:, 1:] @ sizes_M * (1 + 1e-9) - best.scores_BX.shape[1] * masses_BM[:, 0]
