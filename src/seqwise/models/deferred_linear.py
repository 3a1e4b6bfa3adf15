"""Product ``W h + b`` at every step of a search, with one gradient of its weights for all steps.

At each of T steps, a search multiplies by the weights of the head and of an LSTM, and looks up rows of the embedding.
Autograd would compute a gradient of the size of the matrix at each step and add up all T. Here the backward of each
step only records the terms of the gradient, and one node of the graph, whose backward runs after those of all steps,
computes the gradient from these records. Records belong to one backward pass, so graphs may be kept and reused.

Shapes: B batch, J slots, X tokens of an input, V rows of the matrix (vocabulary, gates), D size of a row, N vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.devices import at_least_float32
from seqwise.models.heads import linear_weights
from seqwise.models.products import Products, fast_linear

# Number of scores in a tile of the vocabulary: few enough to stay in the processor's cache.
TILE = 2**19

Autocast = Callable[[], AbstractContextManager[Any]]


class DeferredLinear:
    """``W h + b`` for all steps of a search, with one node that computes the gradients of W and b.

    Attributes:
        weight_VD: W, detached.
        bias_V: b, detached, or None.
        anchor: an empty tensor, an argument of every function that records gradients; None without gradients.

    Not implemented: second derivatives.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3, 2))
        >>> linear = DeferredLinear(weight)
        >>> sum(linear(torch.full((1, 2), float(step))) for step in range(3)).sum().backward()
        >>> weight.grad
        tensor([[3., 3.],
                [3., 3.],
                [3., 3.]])
    """

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None = None) -> None:
        self.weight_VD = weight_VD.detach()
        self.bias_V = None if bias_V is None else bias_V.detach()
        self._products = Products(self.weight_VD, self.bias_V)
        # By number of the backward pass; the node gets only this, because a reference to self would be a cycle.
        self._notes: dict[int, _Notes] = {}
        self._autocast = _autocast_of(weight_VD.device.type)
        self.anchor: Tensor | None = None
        if torch.is_grad_enabled() and (weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad)):
            self.anchor = _Collect.apply(weight_VD, bias_V, self._notes, self._autocast)

    def __call__(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b``, (..., D) to (..., V), with gradients."""
        if self.anchor is None:
            return fast_linear(rows, self.weight_VD, self.bias_V)
        product: Tensor = _Linear.apply(rows, self.anchor, self)
        return product

    def scores(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b`` without a graph, in float32 or better, rounded like the first product of the search."""
        with torch.no_grad(), self._autocast():
            return at_least_float32(self._products(rows))

    def of_gradient(self, gradient_NV: Tensor) -> Tensor:
        """Compute ``g W`` without a graph, rounded like the first product of the search."""
        with torch.no_grad(), self._autocast():
            return gradient_NV @ self.weight_VD.to(gradient_NV.dtype)

    def note_outer(self, tokens_BX: Tensor, weights_BJX: Tensor, vectors_BJD: Tensor) -> None:
        """Record that ``sum_j weights[b, j, x] vectors[b, j]`` belongs to row ``tokens[b, x]`` of the gradient."""
        self._of_this_pass().outer.append((tokens_BX, weights_BJX, vectors_BJD.detach()))

    def note_partitions(self, rows_ND: Tensor, log_partition_N: Tensor, gradient_N: Tensor) -> None:
        """Record the gradient with respect to log Z of some rows."""
        self._of_this_pass().partitions.append((rows_ND.detach(), log_partition_N, gradient_N))

    def note_rows(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        """Record the gradient with respect to the products of some rows; those of all steps are multiplied at once."""
        self._of_this_pass().rows.append((gradient_NV, rows_ND.detach()))

    def note_product(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        """Add the gradient with respect to all scores of some rows to the sum immediately; it is too large to keep."""
        gradient_NV = at_least_float32(gradient_NV)
        with self._autocast():
            self._of_this_pass().add_product(gradient_NV, rows_ND.detach().to(gradient_NV.dtype))

    def _of_this_pass(self) -> _Notes:
        """Return the records of the current backward pass, keyed by the number that checkpointing also uses."""
        return self._notes.setdefault(torch._C._current_graph_task_id(), _Notes(self.bias_V is not None))


class Matrices:
    """Head and embedding of one search, each wrapped on first use.

    Selectors for large vocabularies carry them from step to step.
    """

    def __init__(self) -> None:
        # Each entry keeps the object of its key alive, so that its id is not reused.
        self._heads: dict[tuple[int, int, bool], tuple[Callable[[Tensor], Tensor], DeferredLinear | None]] = {}
        self._embeddings: dict[tuple[int, bool], tuple[Tensor, DeferredLinear]] = {}

    def of_head(self, head: Callable[[Tensor], Tensor], num_features: int) -> DeferredLinear | None:
        """Wrap a head that is linear in this number of features; None for others."""
        # Not by its weights, which some heads make anew at every access.
        key = (id(head), num_features, torch.is_grad_enabled())
        if key not in self._heads:
            linear = linear_weights(head, num_features)
            self._heads[key] = (head, None if linear is None else DeferredLinear(*linear))
        return self._heads[key][1]

    def of_embedding(self, embedding_VD: Tensor) -> DeferredLinear:
        """Wrap an embedding, whose rows are looked up and mixed."""
        key = (id(embedding_VD), torch.is_grad_enabled())
        if key not in self._embeddings:
            self._embeddings[key] = (embedding_VD, DeferredLinear(embedding_VD))
        return self._embeddings[key][1]


def exp_(values: Tensor) -> Tensor:
    """Exponentiate in place, with exactly 0 where the result is below the rounding error of a sum that contains a 1.

    On a CPU, numbers that underflow take a hundred times as long as others, and nearly all exponents here underflow.
    Elsewhere, they are as fast, and remain as they are.
    """
    if values.device.type != "cpu":
        return values.exp_()
    lowest = -600.0 if values.dtype == torch.float64 else -60.0
    return F.threshold(values.clamp_(min=lowest).exp_(), 1.001 * math.exp(lowest), 0.0, inplace=True)


@dataclass
class _Notes:
    """Gradient of a matrix, accumulated over the steps of one backward pass."""

    has_bias: bool
    outer: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    partitions: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    sums: tuple[Tensor, Tensor] | None = None

    def add_product(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        """Add ``g^T h``."""
        if self.sums is None:
            self.sums = at_least_float32(gradient_NV.mT @ rows_ND), gradient_NV.sum(0)
            return
        if torch.is_autocast_enabled(rows_ND.device.type):  # which addmm_ does not follow
            self.sums[0].add_(gradient_NV.mT @ rows_ND)
        else:
            self.sums[0].addmm_(gradient_NV.mT, rows_ND)
        if self.has_bias:
            self.sums[1].add_(gradient_NV.sum(0))


class _Linear(torch.autograd.Function):
    """Product whose weights get their gradient from :class:`_Collect`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, anchor: Tensor, linear: DeferredLinear) -> Tensor:
        ctx.save_for_backward(rows, linear.weight_VD)
        ctx.linear = linear
        return fast_linear(rows, linear.weight_VD, linear.bias_V)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight_VD = ctx.saved_tensors
        ctx.linear.note_rows(gradient.flatten(0, -2), rows.flatten(0, -2))
        return gradient @ weight_VD if ctx.needs_input_grad[0] else None, gradient.new_zeros(()), None


class _Collect(torch.autograd.Function):
    """Node that all steps lead to; it frees nothing, so several backward passes may reach it."""

    @staticmethod
    def forward(
        ctx: Any, weight_VD: Tensor, bias_V: Tensor | None, notes: dict[int, _Notes], autocast: Autocast
    ) -> Tensor:
        ctx.weight_VD, ctx.bias_V = weight_VD.detach(), None if bias_V is None else bias_V.detach()
        ctx.notes, ctx.autocast = notes, autocast
        return weight_VD.new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        weight_VD, bias_V = ctx.weight_VD, ctx.bias_V
        notes = ctx.notes.pop(torch._C._current_graph_task_id(), _Notes(bias_V is not None))
        if notes.rows:
            notes.add_product(*(torch.cat(parts) for parts in zip(*notes.rows, strict=True)))
        sums = notes.sums
        if notes.partitions:
            sums = _from_partitions(weight_VD, bias_V, notes.partitions, ctx.autocast, sums)
        if sums is None:
            sums = (_zeros(weight_VD), _zeros(weight_VD[:, 0]))
        for tokens_BX, weights_BJX, vectors_BJD in notes.outer:
            tokens_N = tokens_BX.flatten()
            weights_BJX = weights_BJX.to(sums[0].dtype)
            rows_BXD = weights_BJX.mT @ vectors_BJD.to(sums[0].dtype)
            sums[0].index_add_(0, tokens_N, rows_BXD.flatten(0, 1))
            if bias_V is not None:
                sums[1].index_add_(0, tokens_N, weights_BJX.sum(1).flatten())
        return sums[0].to(weight_VD.dtype), None if bias_V is None else sums[1].to(bias_V.dtype), None, None


def _from_partitions(
    weight_VD: Tensor,
    bias_V: Tensor | None,
    records: list[tuple[Tensor, Tensor, Tensor]],
    autocast: Autocast,
    sums: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Compute ``dW = P^T (g h)`` over the rows of all steps, recomputing P by tiles of the vocabulary."""
    rows_ND = torch.cat([rows for rows, _, _ in records])
    log_partition_N1 = torch.cat([log_partition for _, log_partition, _ in records])[:, None]
    gradient_N = torch.cat([gradient for _, _, gradient in records])
    scaled_ND = rows_ND.to(gradient_N.dtype) * gradient_N[:, None]
    dtype, (vocabulary_size, size) = gradient_N.dtype, weight_VD.shape
    result_VD, result_V = sums or (scaled_ND.new_empty(vocabulary_size, size), scaled_ND.new_empty(vocabulary_size))
    width = min(max(128, TILE // max(len(rows_ND), 1)), vocabulary_size)
    buffer = rows_ND.new_empty(len(rows_ND) * width)
    for start in range(0, vocabulary_size, width):
        tile = slice(start, start + width)
        with autocast():
            scores_NU = _scores(rows_ND, weight_VD[tile], None if bias_V is None else bias_V[tile], buffer)
        probabilities_NU = exp_(scores_NU.to(dtype).sub_(log_partition_N1))
        if sums is None:
            torch.mm(probabilities_NU.mT, scaled_ND, out=result_VD[tile])
        else:
            result_VD[tile].addmm_(probabilities_NU.mT, scaled_ND)
        if bias_V is not None:
            partial_U = probabilities_NU.mT @ gradient_N
            result_V[tile] = partial_U if sums is None else result_V[tile] + partial_U
    return result_VD, result_V


def _scores(rows_ND: Tensor, weight_UD: Tensor, bias_U: Tensor | None, buffer: Tensor) -> Tensor:
    """Compute ``W h + b`` in a buffer that all tiles share: new memory from the operating system is slow."""
    if torch.is_autocast_enabled(rows_ND.device.type):
        return F.linear(rows_ND, weight_UD, bias_U)
    scores_NU = buffer[: len(rows_ND) * len(weight_UD)].view(len(rows_ND), -1)
    if bias_U is None:
        return torch.mm(rows_ND, weight_UD.mT, out=scores_NU)
    return torch.addmm(bias_U, rows_ND, weight_UD.mT, out=scores_NU)


def _autocast_of(device_type: str) -> Autocast:
    """Return the current autocast state, for recomputing the same scores."""
    enabled = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type)
    return lambda: torch.autocast(device_type, dtype=dtype, enabled=enabled)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
