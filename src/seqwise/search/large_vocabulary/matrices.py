"""The big matrices of one search, wrapped once: what a selector over a large vocabulary carries from step to step.

Shapes: V vocabulary, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqwise.models.deferred_linear import DeferredLinear


class Matrices:
    """The head and the embedding of one search, each made ready by the step that first asks for it.

    Example:
        >>> head, matrices = torch.nn.Linear(2, 3), Matrices()
        >>> matrices.of_head(head, 2) is matrices.of_head(head, 2)
        True
    """

    def __init__(self) -> None:
        # With what they were made of, so that its id stays its own.
        self._heads: dict[tuple[int, int, bool], tuple[Callable[[Tensor], Tensor], DeferredLinear | None]] = {}
        self._embeddings: dict[tuple[int, bool], tuple[Tensor, DeferredLinear]] = {}

    def of_head(self, head: Callable[[Tensor], Tensor], num_features: int) -> DeferredLinear | None:
        """A head that is linear in so many features; None of another. Asked for its weights once: some make them."""
        key = (id(head), num_features, torch.is_grad_enabled())
        if key not in self._heads:
            self._heads[key] = (head, DeferredLinear.of_head(head, num_features))
        return self._heads[key][1]

    def of_embedding(self, embedding_VD: Tensor) -> DeferredLinear:
        """An embedding, whose rows are looked up and mixed."""
        key = (id(embedding_VD), torch.is_grad_enabled())
        if key not in self._embeddings:
            self._embeddings[key] = (embedding_VD, DeferredLinear(embedding_VD))
        return self._embeddings[key][1]
