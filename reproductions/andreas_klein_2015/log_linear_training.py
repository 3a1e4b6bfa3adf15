"""Training a log-linear language model: unnormalised likelihood, sampled normalisers, and a sparse Adagrad.

Shapes: N positions, J features of a context, V vocabulary, M weights in the table; A cells of it that gold words read;
H the positions whose normaliser is computed, B a block of them, W their H J windows in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reproductions.andreas_klein_2015.log_linear import LogLinear, window_sums
from reproductions.andreas_klein_2015.streams import Positions

_STRETCH = 2**15  # three pieces of the tables of this size stay in a cache while they are worked on


@dataclass(frozen=True)
class Normalization:
    """Penalty of log Z in a loss, and the fraction of the positions that pay it."""

    fraction: float  # gamma, in [0, 1]
    penalty: Callable[[Tensor], Tensor]

    def draw(self, num_positions: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw H: ``ceil(gamma n)`` different places in [0, n), every subset of that size equally likely."""
        # Rounded first: 0.07 * 100 is 7.000000000000001 in floating point.
        size = math.ceil(round(self.fraction * num_positions, 9))
        if size == num_positions:
            return torch.arange(num_positions)
        return torch.randperm(num_positions, generator=generator)[:size]


def exact_normalization() -> Normalization:
    """Penalise log Z at every position, which makes the loss cross-entropy."""
    return Normalization(1.0, lambda log_partitions: log_partitions)


def sampled_normalization(alpha: float, *, fraction: float) -> Normalization:
    """Penalise ``alpha (log Z)^2`` on a random fraction gamma of the positions (Andreas and Klein 2015, equation 5)."""
    return Normalization(fraction, lambda log_partitions: alpha * log_partitions.square())


def penalized_normalization(alpha: float, *, fraction: float = 1.0) -> Normalization:
    """Penalise ``log Z + alpha (log Z)^2``: normalised likelihood, and log Z near 0 (Devlin et al. 2014).

    At fraction 1, it is the objective that Andreas and Klein compare with. Below, the mean of log Z in the likelihood
    is also over H only, an unbiased estimate; the optimum is at log Z near 0, not at ``1 / (2 alpha)``.
    """
    return Normalization(fraction, lambda log_partitions: log_partitions + alpha * log_partitions.square())


@dataclass(frozen=True, eq=False)
class AdagradState:
    """Tables of Adagrad."""

    squares_M: Tensor  # sums of squared gradients
    gradient_M: Tensor  # gradients, 0 between steps


def adagrad_state(model: LogLinear, *, initial: float = 1.0) -> AdagradState:
    """Return the state before the first step."""
    return AdagradState(torch.full_like(model.weights_M, initial), torch.zeros_like(model.weights_M))


@torch.no_grad()
def adagrad_step(
    model: LogLinear,
    state: AdagradState,
    positions: Positions,
    normalization: Normalization,
    *,
    learning_rate: float,
    generator: torch.Generator | None = None,
    block_size: int = 32,
) -> float:
    """Take a step of Adagrad on the weights that the loss depends on, and return the loss before it::

        - mean_n f(x_n, y_n) + mean_{h in H} penalty(log Z_h)   in nats

    With `sampled_normalization`, this is ``- mean_n f(y_n) + alpha / (gamma n) sum_{h in H} (log Z_h)^2``, with gamma n
    rounded up to |H|. So its mean over draws of H is the loss at gamma = 1, and the best alpha does not depend on
    gamma. (The printed equation 5 lacks the signs and 1 / gamma.) Adding a constant to the bias of every word adds it
    to f and to log Z, so at the minimum of the mean over draws, ``E[log Z] = 1 / (2 alpha)``, not 0.

    ``g = n dloss/dtheta``, ``s += g^2``, ``theta -= rate g / sqrt(s)``. The gradient is that of the *sum* over the n
    positions, so that the learning rate and the initial squares mean the same at every batch size. A position outside H
    touches J weights; one in H touches its J windows, J V weights: far too many to list with their addresses, as a
    sparse gradient for ``torch.optim.Adagrad`` does.

    Source: Duchi et al. (2011), diagonal Adagrad; Andreas and Klein (2015), sections 4 (equation 5) and 5. Not
    implemented: regularisation.
    """
    num_positions = len(positions.words_N)
    weights_M, width = model.weights_M, model.vocabulary_size
    addresses_NJ = model.addresses(*positions)
    cells_A, counts_A = addresses_NJ.flatten().unique(return_counts=True)
    weights_A, squares_A, gradient_A = weights_M[cells_A], state.squares_M[cells_A], -counts_A.to(weights_M.dtype)
    loss = (weights_A * gradient_A).sum()
    chosen_H = normalization.draw(num_positions, generator).to(cells_A.device)
    offsets_HJ = (addresses_NJ - positions.words_N[:, None])[chosen_H]
    layout = _layout(offsets_HJ, cells_A, width)
    state.gradient_M[cells_A[layout.shared_A]] = gradient_A[layout.shared_A]
    for start in range(0, len(chosen_H), block_size):
        block = slice(start, start + block_size)
        gradient_BV = window_sums(weights_M, offsets_HJ[block], width)
        loss += _into_gradient(gradient_BV, normalization, num_positions / len(chosen_H))
        here = ((layout.owners_A >= start) & (layout.owners_A < start + len(gradient_BV))).nonzero()[:, 0]
        gradient_A[here] += gradient_BV[layout.owners_A[here] - start, layout.columns_A[here]]
        _move_alone(weights_M, state, gradient_BV, offsets_HJ[block], layout.alone_HJ[block], learning_rate)
    _move_shared(weights_M, state, offsets_HJ[~layout.alone_HJ].tolist(), width, learning_rate)
    # Gold words in windows alone were moved without their own gradient; they are moved again, from their old weights.
    single_A = ~layout.shared_A
    cells, gradient, squares = cells_A[single_A], gradient_A[single_A], squares_A[single_A]
    squares.addcmul_(gradient, gradient)
    state.squares_M[cells] = squares
    weights_M[cells] = weights_A[single_A].addcmul_(gradient, squares.rsqrt(), value=-learning_rate)
    return float(loss) / num_positions


class _Layout(NamedTuple):
    """Overlaps of the windows of H with each other and with the A cells of gold words, in ascending order.

    ``alone_HJ``: whether a window overlaps no other of this step. ``shared_A``: whether a cell is in one that does.
    ``owners_A``, ``columns_A``: of a cell in a window alone, the row of H and the word that it belongs to; else -1.
    """

    alone_HJ: Tensor
    shared_A: Tensor
    owners_A: Tensor
    columns_A: Tensor


def _layout(offsets_HJ: Tensor, cells_A: Tensor, width: int) -> _Layout:
    if offsets_HJ.numel() == 0:
        nowhere_A = torch.full_like(cells_A, -1)
        return _Layout(offsets_HJ.bool(), torch.zeros_like(cells_A, dtype=torch.bool), nowhere_A, nowhere_A)
    starts_W, order_W = offsets_HJ.flatten().sort()
    clear = starts_W.diff() >= width
    edge = clear.new_ones(1)
    alone_W = torch.cat([edge, clear]) & torch.cat([clear, edge])
    # All windows are equally wide, so if any contains a cell, the last one to begin before it does.
    last_A = torch.searchsorted(starts_W, cells_A, right=True) - 1
    columns_A = cells_A - starts_W[last_A]
    held_A = (last_A >= 0) & (columns_A < width)
    owned_A = held_A & alone_W[last_A]
    owners_A = torch.where(owned_A, order_W[last_A] // offsets_HJ.shape[1], -1)
    alone_HJ = torch.empty_like(alone_W).scatter_(0, order_W, alone_W).view_as(offsets_HJ)
    return _Layout(alone_HJ, held_A & ~owned_A, owners_A, columns_A)


def _into_gradient(scores_BV: Tensor, normalization: Normalization, scale: float) -> Tensor:
    """Turn scores into the scaled gradient of the penalty, in place, and return the scaled penalty."""
    highest_B1 = scores_BV.amax(dim=-1, keepdim=True)
    sums_B = scores_BV.sub_(highest_B1).exp_().sum(dim=-1)
    with torch.enable_grad():
        log_partitions_B = (sums_B.log() + highest_B1[:, 0]).requires_grad_()
        penalty = normalization.penalty(log_partitions_B).sum() * scale
        (slopes_B,) = torch.autograd.grad(penalty, log_partitions_B)
    scores_BV.mul_((slopes_B / sums_B)[:, None])
    return penalty.detach()


def _move_alone(
    weights_M: Tensor, state: AdagradState, gradient_BV: Tensor, offsets_BJ: Tensor, alone_BJ: Tensor, rate: float
) -> None:
    """Move windows alone directly by the gradient of their row; add the gradients of the others to the table."""
    width = gradient_BV.shape[1]
    scratch_V, squared_V = torch.empty_like(gradient_BV[0]), torch.empty_like(gradient_BV[0])
    for gradient_V, offsets, alone in zip(gradient_BV, offsets_BJ.tolist(), alone_BJ.tolist(), strict=True):
        torch.mul(gradient_V, gradient_V, out=squared_V)
        for offset, is_alone in zip(offsets, alone, strict=True):
            if is_alone:
                squares = state.squares_M.narrow(0, offset, width).add_(squared_V)
                torch.rsqrt(squares, out=scratch_V)
                weights_M.narrow(0, offset, width).addcmul_(gradient_V, scratch_V, value=-rate)
            else:
                state.gradient_M.narrow(0, offset, width).add_(gradient_V)


def _move_shared(
    weights_M: Tensor, state: AdagradState, offsets: Sequence[int], width: int, learning_rate: float
) -> None:
    """Move overlapping windows by the table of gradients, which is reset to 0."""
    for start, stop in _merged(offsets, width):
        for begin in range(start, stop, _STRETCH):
            here = slice(begin, min(begin + _STRETCH, stop))
            gradient, squares = state.gradient_M[here], state.squares_M[here]
            squares.addcmul_(gradient, gradient)
            weights_M[here].addcmul_(gradient, squares.rsqrt(), value=-learning_rate)
            gradient.zero_()


def _merged(offsets: Sequence[int], width: int) -> list[list[int]]:
    """Merge windows into disjoint stretches [start, stop), so that no weight is moved twice."""
    stretches: list[list[int]] = []
    for offset in sorted(offsets):
        if stretches and offset <= stretches[-1][1]:
            stretches[-1][1] = offset + width
        else:
            stretches.append([offset, offset + width])
    return stretches
