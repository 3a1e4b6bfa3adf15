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
Gumbel  K = k: stochastic beam search       K = k: open
        ``StochasticTopK(k)``
======  ==================================  ===================================================

This file says what a selection is; how to choose one stands in :mod:`seqwise.search.selectors`.

Shapes: B batch, J slots before, K slots after, V vocabulary, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise import tree

__all__ = ["HardSelection", "Selection", "SoftSelection"]


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
