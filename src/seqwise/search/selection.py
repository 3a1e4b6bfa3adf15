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
from seqwise.search.candidates import MANY, Candidates
from seqwise.search.kernels.hard import best_of_many
from seqwise.search.kernels.relaxed import default_tolerance, relaxed_top_k
from seqwise.search.kernels.scan import MOST, Choice
from seqwise.search.noise import Noise, no_noise
from seqwise.search.operators import (
    AlphaUnit,
    finite,
    hard_top_k,
    of_scores,
    peaked_softmax,
    require_alpha,
    weights_and_gaps,
)

__all__ = [
    "Form",
    "HardSelection",
    "HardTopK",
    "Selection",
    "Selector",
    "SoftArgmax",
    "SoftSelection",
    "SoftTopK",
    "automatic",
    "expanded",
    "summed",
]


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

    def expect(self, values: Tensor) -> Tensor:
        """A per-token quantity, such as the cost, of the token each new slot added: (B, K).

        From (B, V), the same for all slots, or from (B, J, V), where it depends on the slot that was lengthened.
        """
        ...

    def token_mass(self, token: int) -> Tensor:
        """How much of each new slot added this token: (B, K), in [0, 1]."""
        ...

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """How much of each new slot added each of these tokens, which may differ from input to input: (B, K, G)."""
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

    def expect(self, values: Tensor) -> Tensor:
        """``values[tokens]``, of its parent where they depend on the slot."""
        if values.dim() == 2:
            return values.gather(1, self.tokens_BK)
        return self.follow(values).gather(2, self.tokens_BK[..., None]).squeeze(-1)

    def token_mass(self, token: int) -> Tensor:
        """1 or 0."""
        return (self.tokens_BK == token).to(self.scores_BK.dtype)

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """1 or 0."""
        return (self.tokens_BK[..., None] == tokens_BG[:, None]).to(self.scores_BK.dtype)

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

    def expect(self, values: Tensor) -> Tensor:
        """``a_r . values``, or ``a_r . sum_i b_r[i] values_i`` where they depend on the slot."""
        values = values.to(self.token_weights_BKV.dtype)
        if values.dim() == 2:
            return torch.bmm(self.token_weights_BKV, values.unsqueeze(-1)).squeeze(-1)
        return (self.token_weights_BKV * self.follow(values)).sum(-1)

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        return self.token_weights_BKV[..., token]

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """``a_r[tokens]``."""
        return self.token_weights_BKV.gather(2, tokens_BG[:, None].expand(-1, self.token_weights_BKV.shape[1], -1))

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
        followed = torch.is_grad_enabled() or candidates.augmented
        few = 2 * (self.k + candidates.num_excluded) <= MANY
        if candidates.many and few and not followed and self.noise is no_noise:
            return HardSelection(*best_of_many(candidates, self.k))
        scores_BJV = candidates.scores_BJV
        k = min(self.k, scores_BJV.shape[1:].numel())
        _, parents_BK, tokens_BK = hard_top_k(self.noise(scores_BJV, generator), k)
        flat_BK = parents_BK * scores_BJV.shape[-1] + tokens_BK
        return HardSelection(scores_BJV.flatten(1).gather(1, flat_BK), parents_BK, tokens_BK)


@dataclass(frozen=True)
class SoftTopK:
    """Keep k mixtures of candidates, each peaked at one of the k best: the relaxed beam (Algorithms 2 and 3).

    Args:
        k: size of the beam. Where a step has fewer candidates, there are as many slots as candidates.
        alpha: inverse temperature, greater than 0; as it grows, the search tends to ``HardTopK(k)``.
        unit: what alpha is divided by at each step: 1, or :func:`~seqwise.search.operators.mean_squared_gap`, with
            which it does not matter how far apart the scores are.
        form: how it is computed: :func:`automatic`, or one form for all steps, :func:`expanded` or :func:`summed`.

    Example:
        >>> SoftTopK(k=3, alpha=1.0).alpha
        1.0
    """

    k: int
    alpha: float
    unit: AlphaUnit = field(default=of_scores)
    form: Form = field(default_factory=lambda: automatic)

    def __post_init__(self) -> None:
        _check_noise(self.k, no_noise)
        require_alpha(self.alpha)

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> Selection:
        """Choose from one step's candidates."""
        return self.form(candidates, self.k, self.alpha, self.unit)


Form = Callable[[Candidates, int, float, AlphaUnit], Selection]
"""A way to compute the soft top-k of one step's candidates, for k, alpha and its unit."""


def expanded(candidates: Candidates, k: int, alpha: float, unit: AlphaUnit) -> SoftSelection:
    """The soft top-k as it is defined: a weight for each of K x J x V, all in the graph.

    Example:
        >>> from seqwise.search import global_
        >>> zeros_BJ, scores_BJV = torch.zeros(1, 1), torch.tensor([[[3.0, 1.0, 2.0]]])
        >>> candidates = Candidates(zeros_BJ, scores_BJV, torch.nn.Identity(), global_, None, zeros_BJ, None, 0)
        >>> expanded(candidates, 2, 50.0, of_scores).token_weights_BKV.round()
        tensor([[[1., 0., 0.],
                 [0., 0., 1.]]])
    """
    scores_BJV = candidates.scores_BJV
    k = min(k, scores_BJV.shape[1:].numel())
    maxima_BK, parents_BK, tokens_BK = hard_top_k(scores_BJV, k)
    in_units: float | Tensor = alpha
    if unit is not of_scores:
        best_BM, parents_BM, tokens_BM = hard_top_k(scores_BJV, min(k + 1, scores_BJV.shape[1:].numel()))
        in_units = (alpha / unit(best_BM, candidates.open_shares(parents_BM, tokens_BM)))[:, None, None]
    weights_BKN, gaps_BKN = weights_and_gaps(scores_BJV.flatten(1), maxima_BK, in_units)
    weights_BKJV = weights_BKN.unflatten(-1, scores_BJV.shape[1:])
    return _mixture(maxima_BK, weights_BKJV, gaps_BKN, parents_BK, tokens_BK)


def summed(*, tolerance: float | None = None, most: int = MOST) -> Form:
    """Nothing of size K x J x V is held, and nothing of size V saved: few candidates, or all of them in chunks.

    Of each input the n best candidates are taken, where a bound says that all others together have no more mass than
    the tolerance in any of the k distributions; else all candidates, exactly. For a head that is not linear the plain
    form is computed for a few inputs at a time, and again in the backward pass.

    Args:
        tolerance: share of the mass that may be left out; by default 1e-12 in float64, else 1e-7, which the numbers do
            not show. Below 0, nothing is left out ever.
        most: n at most.

    The gradient cannot be differentiated again, and a cost may be asked for a step again while it is computed.

    Example:
        >>> SoftTopK(k=3, alpha=1.0, form=summed(tolerance=1e-9)).k
        3
    """

    def form(candidates: Candidates, k: int, alpha: float, unit: AlphaUnit) -> Selection:
        if not len(candidates.prefix_scores_BJ):
            return expanded(candidates, k, alpha, unit)
        allowed = default_tolerance(candidates.prefix_scores_BJ.dtype) if tolerance is None else tolerance
        return relaxed_top_k(
            candidates, Choice(k, alpha, unit, allowed, most), lambda them: expanded(them, k, alpha, unit)
        )

    return form


def automatic(candidates: Candidates, k: int, alpha: float, unit: AlphaUnit) -> Selection:
    """:func:`summed` in a search over many candidates, :func:`expanded` over few, or where scores are there already.

    Example:
        >>> SoftTopK(k=3, alpha=1.0).form is automatic
        True
    """
    form = summed() if candidates.many and not candidates.num_excluded else expanded
    return form(candidates, k, alpha, unit)


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
        require_alpha(self.alpha)

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> SoftSelection:
        """Choose from one step's candidates."""
        scores_BJV = candidates.scores_BJV
        noisy_BJV = self.noise(scores_BJV, generator)
        _, parents_B1, tokens_B1 = hard_top_k(noisy_BJV, 1)
        weights_B1JV = peaked_softmax(noisy_BJV.flatten(1), self.alpha).view_as(scores_BJV)[:, None]
        flat_B1 = parents_B1 * scores_BJV.shape[-1] + tokens_B1
        scores_BN = scores_BJV.flatten(1)
        centre_B1 = scores_BN.gather(1, flat_B1)
        gaps_BN = finite(scores_BN) - finite(centre_B1)
        return _mixture(centre_B1, weights_B1JV, gaps_BN[:, None], parents_B1, tokens_B1)


def _mixture(
    centre_BK: Tensor, weights_BKJV: Tensor, gaps_BKN: Tensor, parents_BK: Tensor, tokens_BK: Tensor
) -> SoftSelection:
    """Turn weights over candidates into a selection; ``s_r = m_r + sum p_r (s~ - m_r)``, of the gaps to a centre."""
    dead_BK = centre_BK == -torch.inf
    scores_BK = finite(centre_BK) + (weights_BKJV.flatten(2) * gaps_BKN).sum(-1)
    return SoftSelection(
        scores_BK.masked_fill(dead_BK, -torch.inf), parents_BK, tokens_BK, weights_BKJV.sum(-1), weights_BKJV.sum(-2)
    )


def _check_noise(k: int, noise: Noise) -> None:
    if k < 1:
        raise InputError(f"the beam size k must be at least 1, got {k}")
    if k > 1 and noise is not no_noise:
        raise InputError(
            f"fresh noise at each step with k = {k} is not stochastic beam search",
            mend="use k = 1 with noise, or stochastic_beam_search",
        )
