"""The operators below every selection, hard and soft, and the units that alpha may be given in.

Shapes: B batch, J slots before, K slots after, V vocabulary, N = J V candidates, M = k + 1 best candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.names import AlphaUnitName

# Scores nearer to each other than the root of this are told apart by rounding.
SMALLEST_SQUARED_GAP = 1e-8
# In the place of minus infinity: its square is finite, the weight at such a distance 0, and 0 times it is 0.
LOWEST = -1e18


USUAL_ALPHAS = (1e-25, 1e15)
"""Where the gap to an excluded candidate, 1e18, gives it a weight of exactly 0 and no slope that overflows float32.

At each step of a search through few labels, masking these candidates as well would take a twentieth of the time.
"""


def finite(scores: Tensor) -> Tensor:
    """Replace minus infinity by a number that does as well: (-inf) - (-inf) would be NaN, and so would its gradient."""
    # Far enough above the lowest number of the type that the difference of two is finite.
    return scores.clamp(min=max(LOWEST, torch.finfo(scores.dtype).min / 4))


def require_alpha(alpha: float) -> None:
    """Refuse an inverse temperature that is not a positive finite number."""
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be a positive finite number, got {alpha}")


def in_range(alpha: float | Tensor, scores: Tensor) -> Tensor:
    """Alpha as a number that float32, or the type of the scores, can tell from 0 and infinity: 0 x infinity is NaN."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return torch.as_tensor(alpha, dtype=dtype).clamp(torch.finfo(dtype).tiny, torch.finfo(dtype).max)


def peaked_softmax(scores: Tensor, alpha: float, dim: int = -1) -> Tensor:
    """Softmax at inverse temperature alpha: ``softmax_alpha(s)_i = exp(alpha s_i) / sum_j exp(alpha s_j)``.

    As alpha grows it tends to the one-hot argmax, wherever the maximum is unique.

    Args:
        scores: any shape; minus infinity excludes an entry.
        alpha: inverse temperature, greater than 0.
        dim: the dimension that sums to one.

    Returns:
        Weights of the same shape. A row in which every entry is excluded gets weight 0 throughout.

    Raises:
        InputError: alpha is not a positive finite number.

    Source: Goyal et al. (AAAI 2018), section 2.2.

    Example:
        >>> peaked_softmax(torch.tensor([0.0, 1.0]), alpha=1.0)
        tensor([0.2689, 0.7311])
    """
    require_alpha(alpha)
    excluded = (scores == -torch.inf).all(dim, keepdim=True)
    live = scores.masked_fill(excluded, 0.0)
    # Taken from the highest, which leaves the softmax as it is: alpha times a score may be infinite, times 0 it is not.
    highest = live.detach().amax(dim, keepdim=True) if live.shape[dim] else live
    alpha_in_range = in_range(alpha, scores)
    weights = (alpha_in_range * (live - highest).to(alpha_in_range.dtype)).softmax(dim)
    return weights.masked_fill(excluded, 0.0).to(scores.dtype)


def hard_top_k(scores_BJV: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of J x V candidates: their scores, which slot each lengthens, and by which token.

    Args:
        scores_BJV: score of each candidate.
        k: how many to keep, from 1 to J V.

    Returns:
        ``values_BK`` in descending order, ``parents_BK`` in [0, J) and ``tokens_BK`` in [0, V), both int64.

    Raises:
        InputError: k is less than 1 or more than the number of candidates.

    Source: Goyal et al. (AAAI 2018), Algorithm 1, lines 6-7.

    Example:
        >>> values, parents, tokens = hard_top_k(torch.tensor([[[0.1, 0.9], [0.8, 0.2]]]), k=2)
        >>> parents.tolist(), tokens.tolist()
        ([[0, 1]], [[1, 0]])
    """
    num_candidates = scores_BJV.shape[1:].numel()
    if not 1 <= k <= num_candidates:
        raise InputError(
            f"k must lie between 1 and the number of candidates, {num_candidates} "
            f"({scores_BJV.shape[1]} slots x {scores_BJV.shape[2]} tokens), got {k}"
        )
    values_BK, flat_BK = scores_BJV.flatten(1).topk(k)
    vocabulary_size = scores_BJV.shape[-1]
    return values_BK, flat_BK // vocabulary_size, flat_BK % vocabulary_size


def soft_top_k(scores_BJV: Tensor, k: int, alpha: float) -> Tensor:
    """The continuous top-k-argmax: k distributions over the candidates, the r-th peaked at the r-th best.

    ``p_r = softmax over all (i, w) of -alpha (s~[i, w] - m_r)^2`` with ``m_1 >= ... >= m_k`` the k largest scores. As
    alpha grows, p_r tends to the one-hot r-th argmax wherever the k best are distinct; exact ties share their mass.

    Args:
        scores_BJV: score of each candidate; minus infinity excludes it.
        k: how many distributions, from 1 to J V.
        alpha: inverse temperature, greater than 0.

    Returns:
        ``weights_BKJV``; each ``weights[b, r]`` sums to 1, or is 0 throughout when fewer than r candidates live.
        Gradients flow through the k maxima as well as through the scores: with the maxima detached they are wrong.

    Raises:
        InputError: alpha is not positive, or k is less than 1 or more than the number of candidates.

    Source: Goyal et al. (AAAI 2018), Algorithm 2. Not implemented here: forms that never hold all B K J V weights.

    Example:
        >>> soft_top_k(torch.tensor([[[3.0, 1.0, 2.0]]]), k=2, alpha=50.0).round(decimals=3)[0, :, 0]
        tensor([[1., 0., 0.],
                [0., 0., 1.]])
    """
    require_alpha(alpha)
    weights_BKN, _ = weights_and_gaps(scores_BJV.flatten(1), hard_top_k(scores_BJV, k)[0], alpha)
    return weights_BKN.unflatten(-1, scores_BJV.shape[1:])


def weights_and_gaps(scores_BN: Tensor, maxima_BK: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Weights of N candidates in the k distributions, (B, K, N), and the gap of each to each of the k largest scores.

    Alpha is a number, or differs from input to input, (B, 1, 1). The mixed score is the maximum and the weighted sum of
    the gaps: summed as differences, float32 noise does not grow with alpha. A gap from or to minus infinity, which has
    no weight, is some number.
    """
    dtype, wide = scores_BN.dtype, torch.promote_types(scores_BN.dtype, torch.float32)
    scores_BN, maxima_BK = scores_BN.to(wide), maxima_BK.to(wide)
    gaps_BKN = finite(scores_BN)[:, None] - finite(maxima_BK)[..., None]
    dead_BK1 = (maxima_BK == -torch.inf)[..., None]
    if not isinstance(alpha, Tensor) and USUAL_ALPHAS[0] <= alpha <= USUAL_ALPHAS[1]:
        exponents_BKN = -alpha * gaps_BKN.square()
    else:
        # A dead row, whose weights are taken away below, must not be minus infinity throughout.
        excluded_BKN = (scores_BN == -torch.inf)[:, None] & ~dead_BK1
        exponents_BKN = (-in_range(alpha, scores_BN) * gaps_BKN.square()).masked_fill(excluded_BKN, -torch.inf)
    # The r-th maximum is one of the candidates, so a row has an entry at 0 and the softmax cannot overflow.
    return exponents_BKN.softmax(-1).masked_fill(dead_BK1, 0.0).to(dtype), gaps_BKN


# ---------------------------------------------------------------------------------------- what alpha is measured in

AlphaUnit = Callable[[Tensor, Tensor], Tensor]
"""Unit of alpha, by which it is divided: a function of the k + 1 best scores of each input, (B, M) in descending order,
and of the share of each that is open, (B, M) in [0, 1], to (B,), above 0."""


def of_scores(best_BM: Tensor, open_BM: Tensor) -> Tensor:
    """Unit 1: alpha is per squared unit of score."""
    return torch.ones_like(best_BM[:, 0])


def mean_squared_gap(best_BM: Tensor, open_BM: Tensor) -> Tensor:
    """Mean squared gap between neighbours among the k + 1 best: ``u = sum_r o_{r+1} (m_r - m_{r+1})^2 / k``.

    The open share o is 1 but for going on with a hypothesis that has ended, in part or as a whole, where it falls to 0:
    such a candidate is kept far below the others by a penalty, and a unit with that gap in it would make all others
    equal. (Where some o are below 1, their sum takes the place of k, but no less than 1.)

    With ``alpha / u`` in the place of alpha, the exponent ``-alpha (m_r - m_{r+1})^2 / u`` of one survivor's neighbour
    is -alpha on average, at every step of every input, however far apart its scores are. So the weights do not change
    when all scores of a step are multiplied by a constant, or have one added; a model can make its search no harder by
    larger scores, and slots are not mixed into one where scores are close. The unit of an input depends on that input's
    candidates only, never on the batch. It carries gradient: held constant, the derivative of the weights is wrong.

    Limits. For alpha to infinity the search still tends to the hard one where the k + 1 best are distinct, sooner where
    the gaps are even: the r-th is as good as hard once ``alpha min(gap_r, gap_{r-1})^2 / u`` is large. For alpha to 0
    all live candidates tend to equal weights, as without the unit. Exact ties share their mass whatever alpha is. For
    k = 1 each second best has the weight ``exp(-alpha)`` of the best.

    Args:
        best_BM: in descending order; minus infinity where fewer candidates live. Only gaps between live ones count.
        open_BM: o, in [0, 1], as of ``Candidates.open_shares``.

    Returns:
        (B,), at least 1e-8, below which gaps are rounding; 1 where a single candidate lives.

    Example:
        >>> best_BM = torch.tensor([[3.0, 2.0, 0.0], [5.0, 4.5, -torch.inf], [1.0, -torch.inf, -torch.inf]])
        >>> mean_squared_gap(best_BM, torch.ones(3, 3))
        tensor([2.5000, 0.2500, 1.0000])
        >>> mean_squared_gap(torch.tensor([[3.0, 2.0, -900.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor([1.])
    """
    dead_BM = best_BM == -torch.inf
    gaps_BR = -best_BM.masked_fill(dead_BM, 0.0).diff(dim=1)
    squares_BR = gaps_BR.square().masked_fill(dead_BM[:, 1:], 0.0)
    open_BR = open_BM[:, 1:].masked_fill(dead_BM[:, 1:], 0.0)
    mean_B = ((open_BR * squares_BR).sum(1) / open_BR.sum(1).clamp(min=1)).clamp(min=SMALLEST_SQUARED_GAP)
    return torch.where(dead_BM[:, 1:].all(1), 1.0, mean_B)


def in_units(alpha: float, unit_B: Tensor) -> Tensor:
    """Alpha over its unit for each input, (B,), with gradients for the unit.

    Where the derivative ``alpha / u^2`` is out of range the weights are as good as hard, so that they do not change
    with the unit: there it is a constant, for 0 x infinity would be NaN.
    """
    constant_B = unit_B.detach()
    wide_B = constant_B.to(torch.promote_types(unit_B.dtype, torch.float32))
    unit_B = torch.where((alpha / wide_B / wide_B).isfinite(), unit_B, constant_B)
    return in_range(alpha / unit_B, unit_B)


ALPHA_UNITS: dict[AlphaUnitName, AlphaUnit] = {"scores": of_scores, "gaps": mean_squared_gap}
"""The functions that alpha is divided by, as settings name them."""
