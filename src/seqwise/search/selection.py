"""The idea of seqwise: one search loop, and a *selection* that decides what survives each of its steps.

At every step a model scores J slots x V tokens. A selection turns these candidates into K new slots, and the decoder
state, the fed embedding, the scores and the costs all follow it. A **hard** selection is an index and is followed by
gathering. A **soft** one is a distribution over the same candidates and is followed by mixing, which is linear, so
gradients flow through the search itself. That is the whole difference between the methods below:

======  ==================================  ===================================================
noise   hard: gather                        soft: mix
======  ==================================  ===================================================
none    K = 1: greedy decoding              K = 1: alpha-soft greedy
        ``HardTopK(1)``                     ``SoftArgmax(alpha)``
none    K = k: beam search, Algorithm 1     K = k: relaxed beam, Algorithms 2 and 3
        ``HardTopK(k)``                     ``SoftTopK(k, alpha)``
Gumbel  K = 1: ancestral sample             K = 1: alpha-soft ("concrete") sample
        ``HardTopK(1, noise=Gumbel())``     ``SoftArgmax(alpha, noise=Gumbel())``
Gumbel  K = k: stochastic beam search,      K = k: open
        which needs conditional noise:
        ``stochastic_beam_search``
======  ==================================  ===================================================

Shapes: B batch, J slots before, K slots after, V vocabulary, D embedding, N = J V candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise import tree
from seqwise.errors import InputError
from seqwise.search.candidates import Candidates
from seqwise.search.noise import Noise, no_noise

__all__ = [
    "HardSelection",
    "HardTopK",
    "Selection",
    "Selector",
    "SoftArgmax",
    "SoftSelection",
    "SoftTopK",
    "hard_top_k",
    "peaked_softmax",
    "soft_top_k",
]


# ---------------------------------------------------------------------------------------- the operators


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
    _check_alpha(alpha)
    excluded = (scores == -torch.inf).all(dim, keepdim=True)
    weights = (alpha * scores.masked_fill(excluded, 0.0)).softmax(dim)
    return weights.masked_fill(excluded, 0.0)


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
    _check_k(k, scores_BJV)
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
    return _soft_top_k(scores_BJV, hard_top_k(scores_BJV, k)[0], alpha)


def _soft_top_k(scores_BJV: Tensor, maxima_BK: Tensor, alpha: float) -> Tensor:
    _check_alpha(alpha)
    scores_B1N = scores_BJV.flatten(1)[:, None]
    maxima_BK1 = maxima_BK[..., None]
    dead_B1N, dead_BK1 = scores_B1N == -torch.inf, maxima_BK1 == -torch.inf
    # Infinities are replaced before the square: (-inf) - (-inf) is NaN, and so would be its gradient behind a `where`.
    gaps_BKN = scores_B1N.masked_fill(dead_B1N, 0.0) - maxima_BK1.masked_fill(dead_BK1, 0.0)
    logits_BKN = (-alpha * gaps_BKN.square()).masked_fill(dead_B1N, -torch.inf)
    # The r-th maximum is one of the candidates, so a live row has an entry at 0 and the softmax cannot overflow.
    weights_BKN = logits_BKN.masked_fill(dead_BK1, 0.0).softmax(-1).masked_fill(dead_BK1, 0.0)
    return weights_BKN.unflatten(-1, scores_BJV.shape[1:])


# ---------------------------------------------------------------------------------------- selections


class Selection(Protocol):
    """K slots made from J: their scores, where they came from, and how everything else follows."""

    @property
    def scores_BK(self) -> Tensor:
        """Score of each new slot."""
        ...

    @property
    def parents_BK(self) -> Tensor:
        """The slot each came from; of a soft selection, that of its most probable candidate (for tracing back)."""
        ...

    @property
    def tokens_BK(self) -> Tensor:
        """The token each added, likewise."""
        ...

    def follow(self, state: Any) -> Any:
        """The decoder states of the new slots, from those of the old: (B, J, ...) to (B, K, ...)."""
        ...

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """What the new slots are fed next, (B, K, D)."""
        ...

    def expect(self, values_BV: Tensor) -> Tensor:
        """A per-token quantity, such as the cost, of the token each new slot added: (B, K)."""
        ...

    def token_mass(self, token: int) -> Tensor:
        """How much of each new slot added this token: (B, K), in [0, 1]."""
        ...

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> Selection:
        """The same selection with a given token, in the first slot's continuation, where the mask is true (K = 1)."""
        ...


@dataclass(frozen=True)
class HardSelection:
    """An index into the candidates, followed by gathering."""

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor

    def follow(self, state: Any) -> Any:
        """``h[b, k] = h[b, parents[b, k]]``."""
        return tree.gather(state, self.parents_BK)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``E[tokens]``."""
        return F.embedding(self.tokens_BK, embedding_VD)

    def expect(self, values_BV: Tensor) -> Tensor:
        """``values[tokens]``."""
        return values_BV.gather(1, self.tokens_BK)

    def token_mass(self, token: int) -> Tensor:
        """1 or 0."""
        return (self.tokens_BK == token).to(self.scores_BK.dtype)

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> HardSelection:
        """Replace the token where the mask is true; scores are left as they were."""
        tokens_B1 = torch.where(mask_B, tokens_B, self.tokens_BK[:, 0])[:, None]
        return HardSelection(self.scores_BK, self.parents_BK, tokens_B1)


@dataclass(frozen=True)
class SoftSelection:
    """Distributions over the candidates, followed by mixing.

    Only two marginals of ``p_r[i, w]`` are used after the scores: the back-pointer ``b_r[i] = sum_w p_r[i, w]`` and the
    token weights ``a_r[w] = sum_i p_r[i, w]``. Feeding ``sum_w a_r[w] E[w]`` to ``sum_i b_r[i] h_i`` treats parent and
    token as independent given r: a factorisation that the thesis makes too, exact when p_r is one-hot.
    """

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    parent_weights_BKJ: Tensor
    token_weights_BKV: Tensor

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = a_r E``."""
        return self.token_weights_BKV.to(embedding_VD.dtype) @ embedding_VD

    def expect(self, values_BV: Tensor) -> Tensor:
        """``a_r . values``."""
        return (self.token_weights_BKV @ values_BV.to(self.token_weights_BKV.dtype).unsqueeze(-1)).squeeze(-1)

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        return self.token_weights_BKV[..., token]

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> SoftSelection:
        """One-hot token weights where the mask is true; scores are left as they were."""
        one_hot_B1V = F.one_hot(tokens_B, self.token_weights_BKV.shape[-1]).to(self.token_weights_BKV.dtype)[:, None]
        weights_B1V = torch.where(mask_B[:, None, None], one_hot_B1V, self.token_weights_BKV)
        tokens_B1 = torch.where(mask_B, tokens_B, self.tokens_BK[:, 0])[:, None]
        return SoftSelection(self.scores_BK, self.parents_BK, tokens_B1, self.parent_weights_BKJ, weights_B1V)


# ---------------------------------------------------------------------------------------- selectors

Selector = Callable[[Candidates, torch.Generator | None], Selection]
"""How to choose: one step's candidates and a source of random numbers to a selection."""


@dataclass(frozen=True)
class HardTopK:
    """Keep the k best candidates: greedy for k = 1, beam search for k > 1 (Algorithm 1).

    Args:
        k: size of the beam. Where a step has fewer candidates, all are kept.
        noise: added before choosing, never to the scores; for k = 1 only.

    Gradients flow through the scores of what was chosen, never through the choice.

    Example:
        >>> HardTopK(3).k
        3
    """

    k: int
    noise: Noise = field(default=no_noise)

    def __post_init__(self) -> None:
        _check_noise(self.k, self.noise)

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> HardSelection:
        """Choose from one step's candidates."""
        scores_BJV = candidates.scores_BJV
        k = min(self.k, scores_BJV[0].numel())
        _, parents_BK, tokens_BK = hard_top_k(self.noise(scores_BJV, generator), k)
        flat_BK = parents_BK * scores_BJV.shape[-1] + tokens_BK
        return HardSelection(scores_BJV.flatten(1).gather(1, flat_BK), parents_BK, tokens_BK)


@dataclass(frozen=True)
class SoftTopK:
    """Keep k mixtures of candidates, each peaked at one of the k best: the relaxed beam (Algorithms 2 and 3).

    Args:
        k: size of the beam. Where a step has fewer candidates, there are as many slots as candidates.
        alpha: inverse temperature, greater than 0; as it grows, the search tends to ``HardTopK(k)``.

    Example:
        >>> SoftTopK(k=3, alpha=1.0).alpha
        1.0
    """

    k: int
    alpha: float

    def __post_init__(self) -> None:
        _check_noise(self.k, no_noise)
        _check_alpha(self.alpha)

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> SoftSelection:
        """Choose from one step's candidates."""
        scores_BJV = candidates.scores_BJV
        maxima_BK, parents_BK, tokens_BK = hard_top_k(scores_BJV, min(self.k, scores_BJV[0].numel()))
        weights_BKJV = _soft_top_k(scores_BJV, maxima_BK, self.alpha)
        return _mixture(scores_BJV, maxima_BK, weights_BKJV, parents_BK, tokens_BK)


@dataclass(frozen=True)
class SoftArgmax:
    """Keep one mixture, ``softmax_alpha(s~)`` over all candidates: alpha-soft greedy, or with noise, alpha-soft sample.

    Not the same as ``SoftTopK(1, alpha)``, whose weights fall with the *square* of the distance from the best.

    Args:
        alpha: inverse temperature, greater than 0.
        noise: ``Gumbel()`` gives the concrete relaxation ``softmax_alpha(s~ + G)`` of a sample.

    Source: Goyal, Dyer and Berg-Kirkpatrick (ACL 2017); thesis, chapter 3.

    Example:
        >>> SoftArgmax(alpha=2.0).alpha
        2.0
    """

    alpha: float
    noise: Noise = field(default=no_noise)

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> SoftSelection:
        """Choose from one step's candidates."""
        scores_BJV = candidates.scores_BJV
        noisy_BJV = self.noise(scores_BJV, generator)
        _, parents_B1, tokens_B1 = hard_top_k(noisy_BJV, 1)
        weights_B1JV = peaked_softmax(noisy_BJV.flatten(1), self.alpha).view_as(scores_BJV)[:, None]
        flat_B1 = parents_B1 * scores_BJV.shape[-1] + tokens_B1
        return _mixture(scores_BJV, scores_BJV.flatten(1).gather(1, flat_B1), weights_B1JV, parents_B1, tokens_B1)


def _mixture(
    scores_BJV: Tensor, centre_BK: Tensor, weights_BKJV: Tensor, parents_BK: Tensor, tokens_BK: Tensor
) -> SoftSelection:
    """Turn weights over candidates into a selection; ``s_r = sum p_r s~``, summed as differences from a centre.

    The centred sum ``m_r + sum p_r (s~ - m_r)`` is the same number, but keeps float32 noise from growing with alpha.
    """
    dead_BK = centre_BK == -torch.inf
    centre_BK1 = centre_BK.masked_fill(dead_BK, 0.0)[..., None]
    scores_B1N = scores_BJV.flatten(1)[:, None]
    gaps_BKN = torch.where(scores_B1N == -torch.inf, 0.0, scores_B1N - centre_BK1)
    scores_BK = centre_BK1[..., 0] + (weights_BKJV.flatten(2) * gaps_BKN).sum(-1)
    return SoftSelection(
        scores_BK.masked_fill(dead_BK, -torch.inf), parents_BK, tokens_BK, weights_BKJV.sum(-1), weights_BKJV.sum(-2)
    )


# ---------------------------------------------------------------------------------------- argument checks


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be a positive finite number, got {alpha}")


def _check_k(k: int, scores_BJV: Tensor) -> None:
    if not 1 <= k <= scores_BJV[0].numel():
        raise InputError(
            f"k must lie between 1 and the number of candidates, {scores_BJV[0].numel()} "
            f"({scores_BJV.shape[1]} slots x {scores_BJV.shape[2]} tokens), got {k}"
        )


def _check_noise(k: int, noise: Noise) -> None:
    if k < 1:
        raise InputError(f"the beam size k must be at least 1, got {k}")
    if k > 1 and noise is not no_noise:
        raise InputError(
            f"fresh noise at each step with k = {k} is not stochastic beam search",
            mend="use k = 1 with noise, or stochastic_beam_search",
        )
