"""Operators of hard and soft selections, and units of alpha.

Shapes: B batch, J slots before, K slots after, V vocabulary, N = J V candidates, M = k + 1 best candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.names import AlphaUnitName

# Gaps between scores that are smaller than the root of this are rounding errors.
SMALLEST_SQUARED_GAP = 1e-8
# Replaces minus infinity: its square is finite, the weight at such a distance is 0, and 0 times it is 0.
LOWEST = -1e18

USUAL_ALPHAS = (1e-25, 1e15)
"""Range of alpha in which the gap of an excluded candidate, 1e18, has weight exactly 0 and no slope that overflows
float32. Masking these candidates instead would make a search over few labels 5% slower.
"""


def finite(scores: Tensor) -> Tensor:
    """Replace minus infinity by a finite number, as (-inf) - (-inf) and its gradient would be NaN."""
    # Far enough above the lowest number of the type that the difference of two is finite.
    return scores.clamp(min=max(LOWEST, torch.finfo(scores.dtype).min / 4))


def require_alpha(alpha: float) -> None:
    """Raise an InputError unless an inverse temperature is a positive finite number."""
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be a positive finite number, got {alpha}")


def require_beam_size(k: int) -> None:
    """Raise an InputError unless a beam size is at least 1."""
    if k < 1:
        raise InputError(f"the beam size k must be at least 1, got {k}")


def in_range(alpha: float | Tensor, scores: Tensor) -> Tensor:
    """Clip alpha to numbers that the type of the scores can represent, as 0 x infinity would be NaN."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return torch.as_tensor(alpha, dtype=dtype).clamp(torch.finfo(dtype).tiny, torch.finfo(dtype).max)


def peaked_softmax(scores: Tensor, alpha: float, dim: int = -1) -> Tensor:
    """Compute a softmax at inverse temperature alpha: ``softmax_alpha(s)_i = exp(alpha s_i) / sum_j exp(alpha s_j)``.

    As alpha grows, it tends to the one-hot argmax if the maximum is unique.

    Args:
        scores: any shape; minus infinity excludes an entry.
        alpha: inverse temperature, greater than 0.
        dim: the dimension that sums to one.

    Returns:
        Weights of the same shape. If every entry of a row is excluded, all its weights are 0.

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
    # Subtracting the maximum does not change the softmax: alpha times the maximum could overflow, alpha times 0 cannot.
    highest = live.detach().amax(dim, keepdim=True) if live.shape[dim] else live
    alpha_in_range = in_range(alpha, scores)
    weights = (alpha_in_range * (live - highest).to(alpha_in_range.dtype)).softmax(dim)
    return weights.masked_fill(excluded, 0.0).to(scores.dtype)


def hard_top_k(scores_BJV: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Select the k best of J x V candidates: their scores, parent slots and tokens.

    Args:
        scores_BJV: score of each candidate.
        k: number of candidates to keep, from 1 to J V.

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
    """Compute the continuous top-k-argmax: k distributions over the candidates, the r-th peaked at the r-th best.

    ``p_r = softmax over all (i, w) of -alpha (s~[i, w] - m_r)^2`` with ``m_1 >= ... >= m_k`` the k largest scores. As
    alpha grows, p_r tends to the one-hot r-th argmax if the k best are distinct; exact ties share their mass.

    Args:
        scores_BJV: score of each candidate; minus infinity excludes it.
        k: number of distributions, from 1 to J V.
        alpha: inverse temperature, greater than 0.

    Returns:
        ``weights_BKJV``; each ``weights[b, r]`` sums to 1, or is all 0 if fewer than r candidates are live. Gradients
        also flow through the k maxima; detaching these would make them wrong.

    Raises:
        InputError: alpha is not positive, or k is less than 1 or more than the number of candidates.

    Source: Goyal et al. (AAAI 2018), Algorithm 2. Not implemented here: versions that never hold all B K J V weights.

    Example:
        >>> soft_top_k(torch.tensor([[[3.0, 1.0, 2.0]]]), k=2, alpha=50.0).round(decimals=3)[0, :, 0]
        tensor([[1., 0., 0.],
                [0., 0., 1.]])
    """
    require_alpha(alpha)
    weights_BKN, _ = weights_and_gaps(scores_BJV.flatten(1), hard_top_k(scores_BJV, k)[0], alpha)
    return weights_BKN.unflatten(-1, scores_BJV.shape[1:])


def weights_and_gaps(scores_BN: Tensor, maxima_BK: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of N candidates in the k distributions, (B, K, N), and their gaps to the k largest scores.

    Alpha is a number, or (B, 1, 1) by input. The mixed score is the maximum plus the weighted sum of gaps: with
    differences, float32 noise does not grow with alpha. A gap from or to minus infinity is an arbitrary number with
    weight 0.
    """
    dtype, wide = scores_BN.dtype, torch.promote_types(scores_BN.dtype, torch.float32)
    scores_BN, maxima_BK = scores_BN.to(wide), maxima_BK.to(wide)
    gaps_BKN = finite(scores_BN)[:, None] - finite(maxima_BK)[..., None]
    dead_BK1 = (maxima_BK == -torch.inf)[..., None]
    if not isinstance(alpha, Tensor) and USUAL_ALPHAS[0] <= alpha <= USUAL_ALPHAS[1]:
        exponents_BKN = -alpha * gaps_BKN.square()
    else:
        # A dead row, whose weights become 0 below, must not consist of minus infinities: its softmax would be NaN.
        excluded_BKN = (scores_BN == -torch.inf)[:, None] & ~dead_BK1
        exponents_BKN = (-in_range(alpha, scores_BN) * gaps_BKN.square()).masked_fill(excluded_BKN, -torch.inf)
    # The r-th maximum is one of the candidates, so a row has an entry at 0 and the softmax cannot overflow.
    return exponents_BKN.softmax(-1).masked_fill(dead_BK1, 0.0).to(dtype), gaps_BKN


# ---------------------------------------------------------------------------------------- units of alpha

AlphaUnit = Callable[[Tensor, Tensor], Tensor]
"""Unit of alpha, which divides it: maps the k + 1 best scores of each input, (B, M) in descending order, and their open
shares, (B, M) in [0, 1], to (B,), above 0."""


def of_scores(best_BM: Tensor, open_BM: Tensor) -> Tensor:
    """Return unit 1: alpha is per squared unit of score."""
    return torch.ones_like(best_BM[:, 0])


def mean_squared_gap(best_BM: Tensor, open_BM: Tensor) -> Tensor:
    """Compute the mean squared gap of neighbours among the k + 1 best: ``u = sum_r o_{r+1} (m_r - m_{r+1})^2 / k``.

    The open share o is 1, except for candidates that continue a hypothesis with finished mass, where it falls to 0: a
    penalty keeps these far below the others, and a unit that included this gap would make all others equal. (If some o
    are below 1, their sum replaces k, but at least 1.)

    With ``alpha / u`` instead of alpha, the exponent ``-alpha (m_r - m_{r+1})^2 / u`` of a survivor's neighbour is
    -alpha on average, at every step of every input, whatever the scale of its scores. So the weights do not change if
    all scores of a step are multiplied by a constant or shifted by one; larger scores cannot make the search harder,
    and close scores do not merge the slots. The unit of an input depends only on its own candidates, never on the
    batch. It carries gradients: treating it as constant makes the derivative of the weights wrong.

    Limits. As alpha tends to infinity, the search still tends to the hard one if the k + 1 best are distinct, sooner if
    the gaps are even: the r-th is practically hard once ``alpha min(gap_r, gap_{r-1})^2 / u`` is large. As alpha tends
    to 0, all live candidates tend to equal weights, as without the unit. Exact ties share their mass for any alpha. For
    k = 1, the second best has weight ``exp(-alpha)`` relative to the best.

    Args:
        best_BM: in descending order; minus infinity for missing candidates. Only gaps between live ones count.
        open_BM: o, in [0, 1], see ``Candidates.open_shares``.

    Returns:
        (B,), at least 1e-8, below which gaps are rounding errors; 1 if only one candidate is live.

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
    """Divide alpha by its unit for each input, (B,), with gradients for the unit.

    If the derivative ``alpha / u^2`` is out of range, the weights are practically hard and do not depend on the unit,
    which is then a constant, as 0 x infinity would be NaN.
    """
    constant_B = unit_B.detach()
    wide_B = at_least_float32(constant_B)
    unit_B = torch.where((alpha / wide_B / wide_B).isfinite(), unit_B, constant_B)
    return in_range(alpha / unit_B, unit_B)


ALPHA_UNITS: dict[AlphaUnitName, AlphaUnit] = {"scores": of_scores, "gaps": mean_squared_gap}
"""Units of alpha, by their names in settings."""
