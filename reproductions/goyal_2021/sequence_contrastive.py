"""Noise-contrastive estimation of whole sequences: a global energy is trained to distinguish data from noise.

The noise of Table 6.1 is a small masked model, trained on the training data to fill a row of masks one position at a
time, from left to right or in any order. The order of every sequence, of data and of noise, is drawn independently of
its tokens, and sequences are compared by ``q(y | order)``. The probability of the order is the same for both and
cancels, so each order is a noise distribution of its own, for which the estimate is consistent. The probability of y
over all T! orders is never needed. As for the other objectives of the table, draws are replaced by expectations: the
noise by the exact probability of each of the N sequences.

Shapes: B sequences, K noise sequences for each of the data, N = V^T sequences of an enumerable space, T positions,
O orders, C contexts, V vocabulary, M rows with one masked position that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from reproductions.goyal_2021.energy_training import enumerated_logits, fit_enumerated, new_model, raw_scores
from seqwise.errors import InputError
from seqwise.models.masked import MaskedLSTM
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.correctness import every_sequence

Orders: TypeAlias = Callable[[int, torch.Generator | None], Tensor]
"""From a number of sequences to the order in which each is filled: (B, T), positions from first to last."""


def left_to_right(length: int) -> Orders:
    """Return the one order that makes a masked model autoregressive."""
    return lambda count, generator: torch.arange(length).expand(count, length)


def shuffled_orders(length: int) -> Orders:
    """Return uniformly random orders, drawn for each sequence."""
    return lambda count, generator: torch.rand(count, length, generator=generator).argsort(-1)


def fill_log_probs(model: MaskedModel, tokens_BT: Tensor, orders_BT: Tensor) -> Tensor:
    """Return ``log q(y | order)`` of given sequences, (B,), all T steps of each in one pass of the model::

        sum_j log p_mlm(y_(order_j) | y at order_1 .. order_(j - 1), masks elsewhere)

    Minus its mean is a loss; over random orders, it is that of Uria, Murray and Larochelle (ICML 2014). Goyal's thesis
    (2021), chapter 7, proposes such noise as future work.
    """
    length = orders_BT.shape[1]
    # Row (b, j): the position filled at step j, and all later ones, are still masked.
    ranks_MT = orders_BT.argsort(-1).repeat_interleave(length, dim=0)
    steps_M1 = torch.arange(length, device=tokens_BT.device).repeat(len(tokens_BT))[:, None]
    masked_MT = ranks_MT >= steps_M1
    next_MT = ranks_MT == steps_M1
    rows_MT = tokens_BT.repeat_interleave(length, dim=0)
    log_probs_MV = model.masked_logits(rows_MT, masked_MT)[next_MT[masked_MT]].log_softmax(-1)
    return log_probs_MV.gather(1, rows_MT[next_MT][:, None]).view(-1, length).sum(1)


def expected_sequence_contrastive_loss(
    scores_N: Tensor,
    weights_N: Tensor,
    log_noise: Tensor,
    *,
    num_noise: int,
    log_partition: Tensor | float = 0.0,
) -> Tensor:
    """Return the logistic loss of distinguishing data from K noise sequences each, in expectation over both::

        - sum_y w(y) log sigmoid(odds(y)) - K sum_y q(y) log sigmoid(-odds(y)),   odds(y) = -E(y) - log Z - log(K q(y))

    Its minimum has ``-E - log Z = log p`` for every sequence that the noise covers, so that the learnt log Z is that of
    the energy. Source: Gutmann and Hyvarinen (AISTATS 2010), section 2.
    """
    log_noise = log_noise.to(scores_N)
    drawn = log_noise > -torch.inf
    if not bool(drawn[..., weights_N > 0].all()):
        problem = "a sequence of the data has no probability under the noise"
        raise InputError(problem, hint="use noise that covers all sequences")
    shifted = log_noise.where(drawn, 0.0) + math.log(num_noise)
    odds = scores_N - log_partition - shifted
    gold_loss = weights_N.to(scores_N) * F.softplus(-odds)
    # Sequences that are never drawn are not in the data either, and have no weight.
    noise_loss = torch.where(drawn, shifted.exp() * F.softplus(odds), 0.0)
    return (gold_loss + noise_loss).sum(-1).mean()


def estimated_log_partition(noise_scores_B: Tensor, noise_log_noise_B: Tensor) -> Tensor:
    """Estimate log Z by importance sampling: ``log mean_b exp(-E(y'_b)) / q(y'_b)``."""
    return (noise_scores_B - noise_log_noise_B).logsumexp(0) - math.log(len(noise_scores_B))


# ------------------------------------------------------------------------------------------------- for Table 6.1

NOISES: Mapping[str, Callable[[int], Orders]] = {"left to right": left_to_right, "any order": shuffled_orders}
"""Orders in which masks are filled, by name."""
NUM_NOISE = 10  # for each sequence of the data
NOISE_STEPS, NOISE_BATCH, NOISE_ORDERS = 200, 64, 10


def train_filler(
    vocab_size: int, train_N: Tensor, orders: Orders, *, length: int, steps: int, seed: int, generator: torch.Generator
) -> MaskedLSTM:
    """Train a small masked model to fill rows of masks; the seed gives weights, the generator batches and orders."""
    model = new_model(vocab_size, seed=seed, embedding_size=16, hidden_size=32, feedforward_size=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    every_NT = every_sequence(vocab_size, length)
    for _ in range(steps):
        tokens_BT = every_NT[torch.multinomial(train_N, NOISE_BATCH, replacement=True, generator=generator)]
        optimizer.zero_grad()
        (-fill_log_probs(model, tokens_BT, orders(NOISE_BATCH, generator)).mean()).backward()
        optimizer.step()
    return model


def train_noise(vocab_size: int, train_N: Tensor, orders: Orders, *, length: int, seed: int) -> Tensor:
    """Return log q of every sequence under a masked model trained to fill rows of masks, (O, N).

    If orders are random, ten are drawn once; each distinct one is a noise distribution of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    model = train_filler(
        vocab_size, train_N, orders, length=length, steps=NOISE_STEPS, seed=seed, generator=generator
    )  # fmt: skip
    every_NT = every_sequence(vocab_size, length)
    orders_OT = orders(NOISE_ORDERS, generator).unique(dim=0)
    with torch.no_grad():
        return torch.stack([fill_log_probs(model, every_NT, order_T.expand_as(every_NT)) for order_T in orders_OT])


def fit_contrasted(
    model: MaskedLSTM, log_noise_ON: Tensor, *, length: int, train_N: Tensor, dev_N: Tensor, seed: int, **budget: Any
) -> float:
    """Train E_raw by noise-contrastive estimation, stopped early by the same loss; return its estimate of log Z.

    This is estimated from noise before training and then fixed; the biases of the head learn the rest. ``budget`` goes
    to :func:`~reproductions.goyal_2021.energy_training.fit_enumerated`.
    """
    with torch.no_grad():
        scores_N = raw_scores(enumerated_logits(model, length))
        generator = torch.Generator().manual_seed(seed)
        drawn_B = torch.multinomial(log_noise_ON[0].exp(), 1_000, replacement=True, generator=generator)
        log_partition = estimated_log_partition(scores_N[drawn_B], log_noise_ON[0, drawn_B]).item()

    def loss(logits_TCV: Tensor, weights_N: Tensor) -> Tensor:
        return expected_sequence_contrastive_loss(
            raw_scores(logits_TCV), weights_N, log_noise_ON, num_noise=NUM_NOISE, log_partition=log_partition
        )

    fit_enumerated(model, loss, length=length, train_N=train_N, dev_N=dev_N, **budget)
    return log_partition
