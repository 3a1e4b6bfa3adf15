"""Gradients of big matrices, collected over all steps of a search and made once, when backward has seen every step.

A search looks up rows of the head's weights W and of the embedding E at each of T steps. Left to autograd, each step
makes a gradient as large as the matrix, and T of them are added up. Here each step's backward only notes what it found,
and one node of the graph, whose backward comes after those of all steps, makes the gradient from the notes. What is
noted belongs to one backward pass and plays no part in any other, so that graphs may be kept and used again.

Shapes: B batch, J slots, X candidates of an input, V vocabulary, D size of a row, N rows.
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

from seqwise.search.kernels.heads import linear_weights
from seqwise.search.kernels.products import Products

__all__ = ["DeferredGradients", "Matrix", "exp_"]

# How many rows of a gradient with respect to all scores may wait.
WAITING = 160

# How many scores a tile of the last pass holds: what it makes of them should find them in the processor's cache.
TILE = 2**19


@dataclass
class _Notes:
    """What the steps of one backward pass have found out about the gradient of a matrix."""

    has_bias: bool
    outer: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    partitions: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    sums: tuple[Tensor, Tensor] | None = None
    waiting: tuple[Tensor, Tensor] | None = None
    num_waiting: int = 0

    def add_product(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        """Add ``g^T h``: adding up few rows takes longer than multiplying them, so they wait for others."""
        if self.sums is None:
            vocabulary_size, size = gradient_NV.shape[1], rows_ND.shape[1]
            self.sums = gradient_NV.new_zeros(vocabulary_size, size), gradient_NV.new_zeros(vocabulary_size)
        room = min(WAITING, rows_ND.shape[1])  # so that no more waits than what it is added to
        if len(gradient_NV) > room // 2:
            self._add(gradient_NV, rows_ND)
            return
        if self.waiting is None:
            self.waiting = gradient_NV.new_empty(room, gradient_NV.shape[1]), rows_ND.new_empty(room, rows_ND.shape[1])
        if self.num_waiting + len(gradient_NV) > room:
            self.add_waiting()
        some = slice(self.num_waiting, self.num_waiting + len(gradient_NV))
        self.waiting[0][some], self.waiting[1][some] = gradient_NV, rows_ND
        self.num_waiting = some.stop

    def add_waiting(self) -> None:
        """Add what waits."""
        if self.waiting is not None and self.num_waiting:
            self._add(*(rows[: self.num_waiting] for rows in self.waiting))
            self.num_waiting = 0

    def _add(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        assert self.sums is not None
        self.sums[0].addmm_(gradient_NV.mT, rows_ND)
        if self.has_bias:
            self.sums[1].add_(gradient_NV.sum(0))


class Matrix:
    """One matrix of a search, with or without a bias, and the node that its gradient comes from.

    Attributes:
        weight_VD: the matrix, detached.
        bias_V: its bias, detached, or None.
        anchor: an empty tensor to hand to every function that notes gradients; None where none is wanted.
    """

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None) -> None:
        self.weight_VD = weight_VD.detach()
        self.bias_V = None if bias_V is None else bias_V.detach()
        self._products = Products(self.weight_VD, self.bias_V)
        # By number of the backward pass. The node must not refer to this object, which refers to the node.
        self.notes: dict[int, _Notes] = {}
        wanted = torch.is_grad_enabled() and (weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad))
        self._autocast = _autocast_of(weight_VD.device.type)
        context = self._autocast
        self.anchor: Tensor | None = _Collect.apply(weight_VD, bias_V, self.notes, context) if wanted else None

    def scores(self, rows_ND: Tensor) -> Tensor:
        """``W h + b`` without a graph, (N, V), in float32 or better, as the first call of the search would do it."""
        with torch.no_grad(), self._autocast():
            return _at_least_float(self._products(rows_ND))

    def note_outer(self, tokens_BX: Tensor, weights_BJX: Tensor, vectors_BJD: Tensor) -> None:
        """To row ``tokens[b, x]`` of the gradient belongs ``sum_j weights[b, j, x] vectors[b, j]``."""
        self._noted().outer.append((tokens_BX, weights_BJX, vectors_BJD.detach()))

    def note_partitions(self, rows_ND: Tensor, log_partition_N: Tensor, gradient_N: Tensor) -> None:
        """The gradient with respect to log Z of some rows."""
        self._noted().partitions.append((rows_ND.detach(), log_partition_N, gradient_N))

    def note_product(self, gradient_NV: Tensor, rows_ND: Tensor) -> None:
        """The gradient with respect to all scores of some rows: added up soon, because it is too large to keep."""
        dtype = torch.promote_types(gradient_NV.dtype, torch.float32)
        self._noted().add_product(gradient_NV.to(dtype), rows_ND.detach().to(dtype))

    def _noted(self) -> _Notes:
        """What this backward pass has noted so far."""
        return self.notes.setdefault(torch._C._current_graph_task_id(), _Notes(self.bias_V is not None))


class DeferredGradients:
    """The matrices of one search, each made ready when it is first asked for.

    Example:
        >>> weight, deferred = torch.nn.Parameter(torch.ones(3, 2)), DeferredGradients()
        >>> deferred.of(weight) is deferred.of(weight)
        True
    """

    def __init__(self) -> None:
        self._matrices: dict[tuple[int, int, bool], tuple[Tensor, Tensor | None, Matrix]] = {}
        self._heads: dict[tuple[int, bool], tuple[Callable[[Tensor], Tensor], Matrix | None]] = {}

    def of(self, weight_VD: Tensor, bias_V: Tensor | None = None) -> Matrix:
        """The matrix made of these weights; with gradients on, one that notes them."""
        # With its bias: the weights of the head may be the embedding too. They are kept, so that their ids stay theirs.
        key = (id(weight_VD), id(bias_V), torch.is_grad_enabled())
        if key not in self._matrices:
            self._matrices[key] = (weight_VD, bias_V, Matrix(weight_VD, bias_V))
        return self._matrices[key][2]

    def of_head(self, head: Callable[[Tensor], Tensor]) -> Matrix | None:
        """The matrix of a linear head, None of another; it is asked for its weights once, for some make them anew."""
        key = (id(head), torch.is_grad_enabled())
        if key not in self._heads:
            linear = linear_weights(head)
            self._heads[key] = (head, None if linear is None else self.of(*linear))
        return self._heads[key][1]


class _Collect(torch.autograd.Function):
    """The node behind all steps of a search."""

    @staticmethod
    def forward(
        ctx: Any,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        notes: dict[int, _Notes],
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> Tensor:
        ctx.save_for_backward(weight_VD, bias_V)
        ctx.notes, ctx.autocast = notes, autocast
        return weight_VD.new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        weight_VD, bias_V = ctx.saved_tensors
        notes = ctx.notes.pop(torch._C._current_graph_task_id(), _Notes(bias_V is not None))
        notes.add_waiting()
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
    noted: list[tuple[Tensor, Tensor, Tensor]],
    autocast: Callable[[], AbstractContextManager[Any]],
    sums: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """``dW = P^T (g h)`` over the rows of all steps, P made again by tiles of the vocabulary."""
    rows_ND = torch.cat([rows for rows, _, _ in noted])
    log_partition_N1 = torch.cat([log_partition for _, log_partition, _ in noted])[:, None]
    gradient_N = torch.cat([gradient for _, _, gradient in noted])
    scaled_ND = rows_ND.to(gradient_N.dtype) * gradient_N[:, None]
    dtype, (vocabulary_size, size) = gradient_N.dtype, weight_VD.shape
    made = sums or (scaled_ND.new_empty(vocabulary_size, size), scaled_ND.new_empty(vocabulary_size))
    width = min(max(128, TILE // max(len(rows_ND), 1)), vocabulary_size)
    place = rows_ND.new_empty(len(rows_ND) * width)
    for start in range(0, vocabulary_size, width):
        tile = slice(start, start + width)
        with autocast():
            scores_NU = _scores(rows_ND, weight_VD[tile], None if bias_V is None else bias_V[tile], place)
        probabilities_NU = exp_(scores_NU.to(dtype).sub_(log_partition_N1))
        if sums is None:
            torch.mm(probabilities_NU.mT, scaled_ND, out=made[0][tile])
        else:
            made[0][tile].addmm_(probabilities_NU.mT, scaled_ND)
        if bias_V is not None:
            partial_U = probabilities_NU.mT @ gradient_N
            made[1][tile] = partial_U if sums is None else made[1][tile] + partial_U
    return made


def _scores(rows_ND: Tensor, weight_UD: Tensor, bias_U: Tensor | None, place: Tensor) -> Tensor:
    """``W h + b``, in a place that is used again for each tile: memory from the operating system is slow at first."""
    if torch.is_autocast_enabled(rows_ND.device.type):
        return F.linear(rows_ND, weight_UD, bias_U)
    scores_NU = place[: len(rows_ND) * len(weight_UD)].view(len(rows_ND), -1)
    if bias_U is None:
        return torch.mm(rows_ND, weight_UD.mT, out=scores_NU)
    return torch.addmm(bias_U, rows_ND, weight_UD.mT, out=scores_NU)


def exp_(values: Tensor) -> Tensor:
    """The exponential in place, exactly 0 where it is below any rounding of a sum that contains a 1.

    Of numbers that underflow it takes a hundred times as long as of others, and nearly all exponents here are such.

    Example:
        >>> exp_(torch.tensor([0.0, -1e9, -torch.inf]))
        tensor([1., 0., 0.])
    """
    lowest = -600.0 if values.dtype == torch.float64 else -60.0
    return F.threshold(values.clamp_(min=lowest).exp_(), 1.001 * math.exp(lowest), 0.0, inplace=True)


def _autocast_of(device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    """The autocast that holds now, for whenever the same scores are computed again."""
    enabled = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type)
    return lambda: torch.autocast(device_type, dtype=dtype, enabled=enabled)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))


def _at_least_float(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
