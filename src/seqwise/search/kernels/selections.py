"""Soft selections that do not hold a weight for each token.

Shapes: B batch, J slots before, K slots after, V vocabulary, X candidates that have weight, D embedding, G asked
tokens, I inputs of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seqwise import tree
from seqwise.search.candidates import Shared
from seqwise.search.kernels.deferral import Matrix

if TYPE_CHECKING:
    from seqwise.search.selection import Selection

__all__ = ["FewSelection", "ForcedSelection", "JoinedSelection", "ReducedSelection", "mixed_rows"]


@dataclass(frozen=True)
class FewSelection:
    """Weights on the few candidates that a certificate has left; all others have none.

    Attributes:
        weights_BKX, candidate_tokens_BX: the weight of each candidate, and the token it adds.
        parent_weights_BKJ: the back-pointers, as of every soft selection.
        cost: of the tokens of this step, if there is one.
        shared: of the search.
    """

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    parent_weights_BKJ: Tensor
    weights_BKX: Tensor
    candidate_tokens_BX: Tensor
    cost: Tensor | None
    shared: Shared

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = sum_x p_r[x] E[w_x]``."""
        weights_BKX = self.weights_BKX.to(embedding_VD.dtype)
        if embedding_VD is self.shared.embedding_VD:
            return mixed_rows(weights_BKX, self.shared.deferred.of(embedding_VD), self.candidate_tokens_BX)
        return weights_BKX @ F.embedding(self.candidate_tokens_BX, embedding_VD)

    def expect(self, values: Tensor) -> Tensor:
        """``sum_x p_r[x] values[w_x]``, of the mixed parents where they depend on the slot."""
        values = values.to(self.weights_BKX.dtype)
        if values.dim() == 2:
            return (self.weights_BKX @ values.gather(1, self.candidate_tokens_BX)[..., None]).squeeze(-1)
        places_BJX = self.candidate_tokens_BX[:, None].expand(-1, values.shape[1], -1)
        return (self.weights_BKX * self.follow(values.gather(2, places_BJX))).sum(-1)

    def token_mass(self, token: int) -> Tensor:
        """The weights of the candidates that add this token."""
        return (self.weights_BKX * (self.candidate_tokens_BX == token)[:, None]).sum(-1)

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """The same for each of these tokens."""
        same_BXG = self.candidate_tokens_BX[..., None] == tokens_BG[:, None]
        return self.weights_BKX @ same_BXG.to(self.weights_BKX.dtype)

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> ForcedSelection:
        """One-hot token weights where the mask is true; scores are left as they were."""
        return ForcedSelection(self, mask_B, tokens_B)


@dataclass(frozen=True)
class ReducedSelection:
    """What is left of weights over all candidates once everything that a search asks for has been summed.

    Attributes:
        fed_BKD: mixed embeddings.
        cost_BK: expected cost, 0 where there is none.
        end_mass_BK: mass of the end token, 0 where there is none.
        cost, end: what these were summed of.
        again: the same selection with a weight for each token; whatever else is asked for comes from there, in which
            case the weights are made once more, in the backward pass too.
    """

    scores_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    parent_weights_BKJ: Tensor
    fed_BKD: Tensor
    cost_BK: Tensor
    end_mass_BK: Tensor
    cost: Tensor | None
    end: int | None
    shared: Shared
    again: Callable[[], Selection]

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = a_r E``."""
        if embedding_VD is self.shared.embedding_VD:
            return self.fed_BKD
        return self._asked(lambda selection: selection.embed(embedding_VD))

    def expect(self, values: Tensor) -> Tensor:
        """``a_r . values``, or ``a_r . sum_i b_r[i] values_i`` where they depend on the slot."""
        if values is self.cost:
            return self.cost_BK
        return self._asked(lambda selection: selection.expect(values))

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        if token == self.end:
            return self.end_mass_BK
        return self._asked(lambda selection: selection.token_mass(token))

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """``a_r[tokens]``."""
        return self._asked(lambda selection: selection.token_masses(tokens_BG))

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> ForcedSelection:
        """One-hot token weights where the mask is true; scores are left as they were."""
        return ForcedSelection(self, mask_B, tokens_B)

    def _asked(self, question: Callable[[Selection], Tensor]) -> Tensor:
        return checkpoint(lambda: question(self.again()), use_reentrant=False)


@dataclass(frozen=True)
class JoinedSelection:
    """One selection made of others, each of which knows about some of the inputs.

    Attributes:
        parts: their inputs, int64 (I,), and the selection of these inputs.
        cost: of this step, for all inputs.
    """

    parts: Sequence[tuple[Tensor, FewSelection | ReducedSelection]]
    cost: Tensor | None
    order_B: Tensor = field(init=False)
    scores_BK: Tensor = field(init=False)
    parents_BK: Tensor = field(init=False)
    tokens_BK: Tensor = field(init=False)
    parent_weights_BKJ: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order_B", torch.cat([inputs_I for inputs_I, _ in self.parts]).argsort())
        for name in ("scores_BK", "parents_BK", "tokens_BK", "parent_weights_BKJ"):
            values = [getattr(part, name) for _, part in self.parts]
            object.__setattr__(self, name, torch.cat(values)[self.order_B])

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return tree.mix(state, self.parent_weights_BKJ)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``e_r = a_r E``."""
        return self._joined(lambda _, part: part.embed(embedding_VD))

    def expect(self, values: Tensor) -> Tensor:
        """``a_r . values``, or ``a_r . sum_i b_r[i] values_i`` where they depend on the slot."""
        known = values is self.cost
        return self._joined(
            lambda inputs_I, part: part.expect(part.cost if known and part.cost is not None else values[inputs_I])
        )

    def token_mass(self, token: int) -> Tensor:
        """``a_r[token]``."""
        return self._joined(lambda _, part: part.token_mass(token))

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """``a_r[tokens]``."""
        return self._joined(lambda inputs_I, part: part.token_masses(tokens_BG[inputs_I]))

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> ForcedSelection:
        """One-hot token weights where the mask is true; scores are left as they were."""
        return ForcedSelection(self, mask_B, tokens_B)

    def _joined(self, of_part: Callable[[Tensor, FewSelection | ReducedSelection], Tensor]) -> Tensor:
        return torch.cat([of_part(inputs_I, part) for inputs_I, part in self.parts])[self.order_B]


@dataclass(frozen=True)
class ForcedSelection:
    """Another selection, with a given token where the mask is true, which keeps its score and its parents (K = 1)."""

    soft: FewSelection | ReducedSelection | JoinedSelection
    mask_B: Tensor
    forced_B: Tensor

    @property
    def scores_BK(self) -> Tensor:
        """As they were."""
        return self.soft.scores_BK

    @property
    def parents_BK(self) -> Tensor:
        """As they were."""
        return self.soft.parents_BK

    @property
    def tokens_BK(self) -> Tensor:
        """The forced tokens where the mask is true."""
        return self._where(self.forced_B[:, None], self.soft.tokens_BK)

    def follow(self, state: Any) -> Any:
        """``h~_r = sum_i b_r[i] h_i``."""
        return self.soft.follow(state)

    def embed(self, embedding_VD: Tensor) -> Tensor:
        """``E[token]`` where the mask is true, else ``a_r E``."""
        return self._where(F.embedding(self.forced_B, embedding_VD)[:, None], self.soft.embed(embedding_VD))

    def expect(self, values: Tensor) -> Tensor:
        """``values[token]`` where the mask is true, of the mixed parent where they depend on the slot."""
        soft_BK = self.soft.expect(values)
        mixed_BKV = values[:, None] if values.dim() == 2 else self.follow(values)
        return self._where(mixed_BKV.gather(2, self.forced_B[:, None, None]).squeeze(-1).to(soft_BK.dtype), soft_BK)

    def token_mass(self, token: int) -> Tensor:
        """1 or 0 where the mask is true."""
        soft_BK = self.soft.token_mass(token)
        return self._where((self.forced_B == token)[:, None].to(soft_BK.dtype), soft_BK)

    def token_masses(self, tokens_BG: Tensor) -> Tensor:
        """1 or 0 where the mask is true."""
        soft_BKG = self.soft.token_masses(tokens_BG)
        return self._where((self.forced_B[:, None] == tokens_BG)[:, None].to(soft_BKG.dtype), soft_BKG)

    def forced(self, mask_B: Tensor, tokens_B: Tensor) -> ForcedSelection:
        """The last that was forced holds."""
        return ForcedSelection(self.soft, self.mask_B | mask_B, torch.where(mask_B, tokens_B, self.forced_B))

    def _where(self, forced: Tensor, soft: Tensor) -> Tensor:
        return torch.where(self.mask_B.view(-1, *[1] * (soft.dim() - 1)), forced, soft)


def mixed_rows(weights_BKX: Tensor, matrix: Matrix, tokens_BX: Tensor) -> Tensor:
    """``sum_x p[k, x] E[w_x]``, (B, K, D), with the gradient of E noted for later.

    Example:
        >>> matrix = Matrix(torch.tensor([[1.0], [2.0], [4.0]]), None)
        >>> mixed_rows(torch.tensor([[[0.5, 0.5]]]), matrix, torch.tensor([[2, 0]]))
        tensor([[[2.5000]]])
    """
    mixed: Tensor = _MixedRows.apply(weights_BKX, matrix.anchor, matrix, tokens_BX)
    return mixed


class _MixedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights_BKX: Tensor, anchor: Tensor | None, matrix: Matrix, tokens_BX: Tensor) -> Tensor:
        ctx.save_for_backward(weights_BKX, tokens_BX, matrix.weight_VD)
        ctx.matrix, ctx.noting = matrix, anchor is not None
        with torch.autocast(weights_BKX.device.type, enabled=False):
            return weights_BKX @ matrix.weight_VD[tokens_BX]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_BKD: Tensor) -> tuple[Tensor | None, ...]:
        weights_BKX, tokens_BX, weight_VD = ctx.saved_tensors
        if ctx.noting:
            ctx.matrix.note_outer(tokens_BX, weights_BKX, gradient_BKD)
        weights = gradient_BKD @ weight_VD[tokens_BX].mT if ctx.needs_input_grad[0] else None
        return weights, gradient_BKD.new_zeros(()) if ctx.noting else None, None, None
