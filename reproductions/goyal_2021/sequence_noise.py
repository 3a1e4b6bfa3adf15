"""Noise for whole sequences: drawn from a table, or by a masked model that fills a row of masks in an order.

Two things are wanted of noise: sequences drawn from it, and its exact log-probability of any sequence. Both come from
anything autoregressive, and from any masked model that fills a row of masks one position at a time. From left to right,
that is an autoregressive model. An order drawn at random is drawn for each sequence, of the data as of the noise,
without a look at its tokens, and ``q(y | order)`` is what a sequence is held against. The probability of the order is
the same for both and drops out, so each order is a contrast with a noise of its own, and each of these is consistent:
best where the model is the truth. The probability of y over all T! orders is never needed.

Shapes: B sequences, T positions, V vocabulary, M rows with one masked position that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from reproductions.goyal_2021.enumerable import Enumerable, sequence_numbers
from seqwise.models.protocols import MaskedModel

Orders: TypeAlias = Callable[[int, torch.Generator | None], Tensor]
"""From a number of sequences to the order in which each is filled: (B, T), the positions from the first to the last."""


@dataclass(frozen=True)
class SequenceNoise:
    """What sequences are told from; an order of filling is drawn alike for the data and the noise."""

    # from a number of sequences and a generator to ``tokens_BT`` and ``log q``, (B,)
    draw: Callable[[int, torch.Generator | None], tuple[Tensor, Tensor]]
    # from sequences ``tokens_BT`` and a generator to ``log q``, (B,). Where the noise has a part that is not in the
    # tokens (an order), it is drawn here as it is there, and both are conditioned on it.
    log_probs: Callable[[Tensor, torch.Generator | None], Tensor]


def table_noise(distribution: Enumerable) -> SequenceNoise:
    """Return noise from a table of all sequences."""

    def draw(count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        numbers_B = torch.multinomial(distribution.probs_N, count, replacement=True, generator=generator)
        powers_T = distribution.vocab_size ** torch.arange(distribution.length - 1, -1, -1)
        return numbers_B[:, None] // powers_T % distribution.vocab_size, distribution.log_probs_N[numbers_B]

    def log_probs(tokens_BT: Tensor, generator: torch.Generator | None) -> Tensor:
        return distribution.log_probs_N[sequence_numbers(tokens_BT, distribution.vocab_size)]

    return SequenceNoise(draw, log_probs)


def left_to_right(length: int) -> Orders:
    """Return the one order that makes a masked model autoregressive."""
    return lambda count, generator: torch.arange(length).expand(count, length)


def shuffled_orders(length: int) -> Orders:
    """Return every order as likely as the other, drawn anew for each sequence."""
    return lambda count, generator: torch.rand(count, length, generator=generator).argsort(-1)


def filling_noise(model: MaskedModel, orders: Orders) -> SequenceNoise:
    """Return a masked model as noise: rows of masks, filled one position at a time by its conditionals.

    ``log q(y | order) = sum_j log p_mlm(y_(order_j) | y at order_1 .. order_(j - 1), masks elsewhere)``, exactly.
    Source: Goyal's thesis (2021), chapter 7, which wishes for such noise.
    """

    def log_probs(tokens_BT: Tensor, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            return fill_log_probs(model, tokens_BT, orders(len(tokens_BT), generator))

    return SequenceNoise(
        lambda count, generator: fill_masks(model, orders(count, generator), generator=generator), log_probs
    )


@torch.no_grad()
def fill_masks(
    model: MaskedModel, orders_BT: Tensor, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw sequences by filling masks in the given orders, one position of each at a time; returns log q as well."""
    ranks_BT = _ranks(orders_BT)
    tokens_BT = torch.zeros_like(orders_BT)
    log_probs_B = torch.zeros(len(orders_BT))
    for step in range(orders_BT.shape[1]):
        next_BT = ranks_BT == step
        logits_BV = model.masked_logits(tokens_BT, ranks_BT >= step)[next_BT[ranks_BT >= step]]
        every_BV = logits_BV.log_softmax(-1)
        drawn_B1 = torch.multinomial(every_BV.exp(), 1, generator=generator)
        tokens_BT[next_BT] = drawn_B1[:, 0]
        log_probs_B = log_probs_B.to(every_BV) + every_BV.gather(1, drawn_B1)[:, 0]
    return tokens_BT, log_probs_B


def fill_log_probs(model: MaskedModel, tokens_BT: Tensor, orders_BT: Tensor) -> Tensor:
    """Return ``log q(y | order)`` of given sequences, (B,), all T steps of each in one pass of the model.

    Minus its mean is a loss, over random orders that of Uria, Murray and Larochelle (ICML 2014).
    """
    length = orders_BT.shape[1]
    # Row (b, j): what is filled at step j, and all that comes later, is still masked.
    ranks_MT = _ranks(orders_BT).repeat_interleave(length, dim=0)
    steps_M1 = torch.arange(length, device=tokens_BT.device).repeat(len(tokens_BT))[:, None]
    masked_MT = ranks_MT >= steps_M1
    next_MT = ranks_MT == steps_M1
    rows_MT = tokens_BT.repeat_interleave(length, dim=0)
    log_probs_MV = model.masked_logits(rows_MT, masked_MT)[next_MT[masked_MT]].log_softmax(-1)
    return log_probs_MV.gather(1, rows_MT[next_MT][:, None]).view(-1, length).sum(1)


def _ranks(orders_BT: Tensor) -> Tensor:
    """Return when each position is filled, from 0."""
    ranks_BT = orders_BT.argsort(-1)
    return ranks_BT
