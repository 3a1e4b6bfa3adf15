"""The idea of seqwise: one search loop, and a *selection* that decides what survives each of its steps.

At every step a model scores J slots x V tokens. A selection turns these candidates into K new slots, and the decoder
state, the next input embedding, the scores and the costs all follow it. A **hard** selection is an index and is applied
by gathering. A **soft** one is a distribution over the same candidates and is applied by mixing, which is linear, so
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

This module defines selections; :mod:`seqwise.search.selectors` chooses them.

Shapes: B batch, J slots before, K slots after, V vocabulary, X tokens with weight, D embedding, G queried tokens,
I inputs of one part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seqwise import tree


class Selection(Protocol):
    """K slots made from J: their scores and parents, and how everything else follows them."""

    @property
    def scores_BK(self) -> Tensor:
        """Score of each new slot."""
        ...

    @property
    def parents_BK(self) -> Tensor:
        """Slot that each came from; in a soft selection, the slot of its most probable candidate (for tracing back)."""
        ...

    @property
    def tokens_BK(self) -> Tensor:
        """Token that each added; in a soft selection, the token of its most probable candidate."""
        ...

    def follow(self, state: Any) -> Any:
        """Compute the decoder states of the new slots from those of the old: (B, J, ...) to (B, K, ...)."""
        ...

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """Compute the embeddings that the new slots are fed next, (B, K, D)."""
        ...

    def expect(self, values: Tensor) -> Tensor:
        """Compute the expected value of a per-token quantity, such as the cost, over the token that each slot added.

        Maps values (B, V), the same for all slots, or (B, J, V), if they depend on the slot that was extended, to
        (B, K).
        """
        ...

    def token_mass(self, token: int) -> Tensor:
        """Share of each new slot that added this token: (B, K), in [0, 1]."""
        ...

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """Share of each new slot that added each of these tokens, which may differ between inputs: (B, K, G)."""
        ...

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> Selection:
        """Replace the token of the only slot by a given one where the mask is true (K = 1)."""
        ...


@dataclass(frozen=True)
class HardSelection:
    """An index into the candidates, applied by gathering."""

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
        """``values[tokens]``, or ``values[parents, tokens]`` if they depend on the slot."""
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
        """Replace the token where the mask is true; scores do not change."""
        tokens_B1 = torch.where(mask_B, tokens_B, self.tokens_BK[:, 0])[:, None]
        return HardSelection(self.scores_BK, self.parents_BK, tokens_B1)


@dataclass(frozen=True)
class SoftSelection:
    """Distributions over the candidates, applied by mixing.

    Apart from the scores, only two marginals of ``p_r[i, w]`` are used: the back-pointer ``b_r[i] = sum_w p_r[i, w]``
    and the token weights ``a_r[w] = sum_i p_r[i, w]``. Feeding ``sum_w a_r[w] E[w]`` to ``sum_i b_r[i] h_i`` treats
    parent and token as independent given r. The thesis makes the same factorisation; it is exact when p_r is one-hot.

    Attributes:
        scores_BK, parents_BK, tokens_BK: see :class:`Selection`.
        parent_weights_BKJ: b.
        token_weights_BKX: a, for all V tokens, or for the few in ``token_ids_BX``.
        token_ids_BX: tokens with weight, int64, once for each candidate that adds the token; None if all V have
            weight.
    """

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    parent_weights_BKJ: Tensor
    token_weights_BKX: Tensor
    token_ids_BX: Tensor | None = None

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = a_r E``."""
        weights_BKX = self.token_weights_BKX.to(embedding_VD.dtype)
        if self.token_ids_BX is None:
            return weights_BKX @ embedding_VD
        return weights_BKX @ F.embedding(self.token_ids_BX, embedding_VD)

    def expect(self, values: Tensor) -> Tensor:
        """``a_r . values``, or ``a_r . sum_i b_r[i] values_i`` if they depend on the slot."""
        values = values.to(self.token_weights_BKX.dtype)
        if self.token_ids_BX is not None:
            ids = self.token_ids_BX if values.dim() == 2 else self.token_ids_BX[:, None].expand(-1, values.shape[1], -1)
            values = values.gather(-1, ids)
        if values.dim() == 2:
            return torch.bmm(self.token_weights_BKX, values.unsqueeze(-1)).squeeze(-1)
        return (self.token_weights_BKX * self.follow(values)).sum(-1)

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        if self.token_ids_BX is None:
            return self.token_weights_BKX[..., token]
        return (self.token_weights_BKX * (self.token_ids_BX == token)[:, None]).sum(-1)

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """``a_r[tokens]``."""
        if self.token_ids_BX is None:
            return self.token_weights_BKX.gather(2, tokens_BG[:, None].expand(-1, self.token_weights_BKX.shape[1], -1))
        same_BXG = self.token_ids_BX[..., None] == tokens_BG[:, None]
        return self.token_weights_BKX @ same_BXG.to(self.token_weights_BKX.dtype)

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> SoftSelection:
        """Make the token weights one-hot where the mask is true; scores do not change."""
        tokens_B1 = torch.where(mask_B, tokens_B, self.tokens_BK[:, 0])[:, None]
        mask_B11, weights_B1X, ids_BX = mask_B[:, None, None], self.token_weights_BKX, self.token_ids_BX
        if ids_BX is None:
            one_hot_B1V = F.one_hot(tokens_B, weights_B1X.shape[-1]).to(weights_B1X.dtype)[:, None]
            weights_B1X = torch.where(mask_B11, one_hot_B1V, weights_B1X)
        else:
            weights_B1X = torch.cat([weights_B1X.masked_fill(mask_B11, 0.0), mask_B11.to(weights_B1X.dtype)], dim=-1)
            ids_BX = torch.cat([ids_BX, tokens_B[:, None]], dim=1)
        return replace(self, tokens_BK=tokens_B1, token_weights_BKX=weights_B1X, token_ids_BX=ids_BX)


class TokenValues(NamedTuple):
    """Values of tokens that a search sums over the tokens that each slot adds; known before anything is selected.

    Attributes:
        embedding_VD: embedding of each token, which is fed next.
        cost: cost of each token, (B, V) or per slot (B, J, V), or None.
        end: id of the end token, whose share is summed, or None.
    """

    embedding_VD: Tensor
    cost: Tensor | None
    end: int | None


class TokenSums(NamedTuple):
    """Sums of :class:`TokenValues` over the tokens that each slot added; 0 for values that are None."""

    fed_BKD: Tensor
    cost_BK: Tensor
    ended_BK: Tensor


def token_sums(selection: Selection, token_values: TokenValues) -> TokenSums:
    """Sum values over the added tokens of a selection; a :class:`SummedSelection` already has the sums.

    Example:
        >>> one_BK = torch.ones(1, 1)
        >>> selection = SoftSelection(one_BK, one_BK.long(), one_BK.long(), one_BK[None], torch.tensor([[[0.5, 0.5]]]))
        >>> token_sums(selection, TokenValues(torch.tensor([[2.0], [4.0]]), None, 1))
        TokenSums(fed_BKD=tensor([[[3.]]]), cost_BK=tensor([[0.]]), ended_BK=tensor([[0.5000]]))
    """
    if isinstance(selection, SummedSelection):
        return selection.sums
    zeros_BK = torch.zeros_like(selection.scores_BK)
    return TokenSums(
        selection.embed(token_values.embedding_VD),
        zeros_BK if token_values.cost is None else selection.expect(token_values.cost),
        zeros_BK if token_values.end is None else selection.token_mass(token_values.end),
    )


@dataclass(frozen=True)
class SummedSelection:
    """Soft selection over a large vocabulary that keeps the sums the search needs in place of its token weights.

    Attributes:
        scores_BK, parents_BK, tokens_BK: see :class:`Selection`.
        parent_weights_BKJ: the back-pointers; see :class:`SoftSelection`.
        token_values: values that the search sums over tokens.
        sums: their sums.
        parts: pairs of int64 inputs (I,) and a function that makes the soft selection of these inputs. Any other
            quantity is computed from it, which computes the weights again, also in the backward pass.
    """

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    parent_weights_BKJ: Tensor
    token_values: TokenValues
    sums: TokenSums
    parts: tuple[tuple[Tensor, Callable[[], SoftSelection]], ...]

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = a_r E``."""
        return self._by_part(lambda part, _: part.embed(embedding_VD))

    def expect(self, values: Tensor) -> Tensor:
        """``a_r . values``, or ``a_r . sum_i b_r[i] values_i`` where they depend on the slot."""
        return self._by_part(lambda part, inputs_I: part.expect(values[inputs_I]))

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        return self._by_part(lambda part, _: part.token_mass(token))

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """``a_r[tokens]``."""
        return self._by_part(lambda part, inputs_I: part.token_masses(tokens_BG[inputs_I]))

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> SummedSelection:
        """Replace the token where the mask is true; scores do not change."""
        tokens_B1 = torch.where(mask_B[:, None], tokens_B[:, None], self.tokens_BK)
        one_B11, parents = self.parent_weights_BKJ.new_ones(len(mask_B), 1, 1), self.parent_weights_BKJ
        only = SoftSelection(self.scores_BK, self.parents_BK, tokens_B1, parents, one_B11, tokens_B[:, None])
        pairs = zip(token_sums(only, self.token_values), self.sums, strict=True)
        chosen = (torch.where(mask_B.view(-1, *[1] * (soft.dim() - 1)), hard, soft) for hard, soft in pairs)

        def forced_part(inputs_I: Tensor, make: Callable[[], SoftSelection]) -> Callable[[], SoftSelection]:
            return lambda: make().forced(mask_B[inputs_I], tokens_B[inputs_I])

        parts = tuple((inputs_I, forced_part(inputs_I, make)) for inputs_I, make in self.parts)
        return replace(self, tokens_BK=tokens_B1, sums=TokenSums(*chosen), parts=parts)

    def _by_part(self, function: Callable[[SoftSelection, Tensor], Tensor]) -> Tensor:
        """Apply a function to the selection of each part and its inputs, and return the results in order."""
        results = [
            checkpoint(lambda make, inputs_I: function(make(), inputs_I), make, inputs_I, use_reentrant=False)
            for inputs_I, make in self.parts
        ]
        return torch.cat(results)[torch.cat([inputs_I for inputs_I, _ in self.parts]).argsort()]
