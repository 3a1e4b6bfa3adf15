"""Noise-contrastive estimation of whole sequences: a global energy learns to tell data from noise; no log Z needed.

What the noise can be, and why an order in which a masked model fills it does no harm, is told in
`reproductions.goyal_2021.sequence_noise`. Table 6.1 has two noises, small masked models that have learnt from the
training data to fill rows of masks: from left to right, or in any order. As for the other objectives of the table, what
is drawn enters in expectation: the noise by the exact probability of each of the N sequences.

Shapes: B sequences of the data, K noise sequences for each, N = V^T sequences of an enumerable space, T positions,
O orders, C contexts, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from reproductions.goyal_2021.energy_training import enumerated_logits, fit_enumerated, raw_scores
from reproductions.goyal_2021.sequence_noise import (
    Orders,
    SequenceNoise,
    fill_log_probs,
    left_to_right,
    shuffled_orders,
)
from seqwise.errors import InputError
from seqwise.models.masked import MaskedLSTM
from seqwise.objectives.contrastive import noise_contrastive_loss
from seqwise.sampling.correctness import every_sequence

Contrast: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A loss of scores and log q of the data (B,), then of the noise (B, K): :func:`sequence_contrastive_loss`."""


def sequence_contrastive_loss(
    gold_scores_B: Tensor,
    gold_log_noise_B: Tensor,
    noise_scores_BK: Tensor,
    noise_log_noise_BK: Tensor,
    *,
    log_partition: Tensor | float = 0.0,
) -> Tensor:
    """Logistic loss of telling each sequence from its K noise sequences, by log-odds ``-E(y) - log Z - log(K q(y))``::

        mean_b [ -log sigmoid(odds(y_b)) - sum_k log sigmoid(-odds(y'_bk)) ]

    In expectation it is least where ``-E - log Z = log p`` for every sequence that the noise has, so that what is
    learnt as log Z becomes the log Z of the energy. Source: Gutmann and Hyvarinen (AISTATS 2010), section 2.
    """
    return noise_contrastive_loss(
        gold_scores_B - log_partition, gold_log_noise_B, noise_scores_BK - log_partition, noise_log_noise_BK
    )


def ranking_contrastive_loss(
    gold_scores_B: Tensor, gold_log_noise_B: Tensor, noise_scores_BK: Tensor, noise_log_noise_BK: Tensor
) -> Tensor:
    """Loss of finding each sequence among itself and K noise sequences; log Z cancels::

        mean_b -log softmax over the K + 1 of ( -E(y) - log q(y) )  at y_b

    In expectation it is least where ``-E = log p`` up to a constant. Source: Ma and Collins (EMNLP 2018), section 3.
    """
    ratios_BK = noise_scores_BK - noise_log_noise_BK
    ratios_B = gold_scores_B - gold_log_noise_B
    return (torch.cat([ratios_B[:, None], ratios_BK], dim=1).logsumexp(1) - ratios_B).mean()


def sampled_sequence_contrastive_loss(
    scores: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    noise: SequenceNoise,
    *,
    num_noise: int,
    contrast: Contrast = sequence_contrastive_loss,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw K noise sequences for each of the data, score all in one call, and contrast them."""
    count = len(tokens_BT)
    with torch.no_grad():
        gold_log_noise_B = noise.log_probs(tokens_BT, generator)
        drawn_KT, log_noise_K = noise.draw(count * num_noise, generator)
    gold_scores_B, noise_scores = scores(torch.cat([tokens_BT, drawn_KT])).split([count, count * num_noise])
    shape = (count, num_noise)
    return contrast(gold_scores_B, gold_log_noise_B, noise_scores.view(shape), log_noise_K.view(shape))


def expected_sequence_contrastive_loss(
    scores_N: Tensor,
    weights_N: Tensor,
    log_noise: Tensor,
    *,
    num_noise: int,
    log_partition: Tensor | float = 0.0,
) -> Tensor:
    """Return the mean of :func:`sequence_contrastive_loss` over all data and noise, on an enumerable space::

    - sum_y w(y) log sigmoid(odds(y)) - K sum_y q(y) log sigmoid(-odds(y))
    """
    log_noise = log_noise.to(scores_N)
    drawn = log_noise > -torch.inf
    if not bool(drawn[..., weights_N > 0].all()):
        problem = "a sequence of the data has no probability under the noise"
        raise InputError(problem, hint="use noise that covers all sequences")
    shifted = log_noise.where(drawn, 0.0) + math.log(num_noise)
    odds = scores_N - log_partition - shifted
    gold_loss = weights_N.to(scores_N) * F.softplus(-odds)
    # Sequences that are never drawn are not data either, and count for nothing.
    noise_loss = torch.where(drawn, shifted.exp() * F.softplus(odds), 0.0)
    return (gold_loss + noise_loss).sum(-1).mean()


def estimated_log_partition(noise_scores_B: Tensor, noise_log_noise_B: Tensor) -> Tensor:
    """Estimate log Z by importance sampling: ``log mean_b exp(-E(y'_b)) / q(y'_b)``."""
    return (noise_scores_B - noise_log_noise_B).logsumexp(0) - math.log(len(noise_scores_B))


# ------------------------------------------------------------------------------------------------- for Table 6.1

NOISES: Mapping[str, Callable[[int], Orders]] = {"left to right": left_to_right, "any order": shuffled_orders}
"""By name, the orders in which masks are filled."""
NUM_NOISE = 10  # for each sequence of the data
NOISE_STEPS, NOISE_BATCH, NOISE_ORDERS = 200, 64, 10


def train_noise(vocab_size: int, train_N: Tensor, orders: Orders, *, length: int, seed: int) -> Tensor:
    """Train a small masked model to fill rows of masks; returns log q of every sequence, (O, N).

    Where orders are drawn, ten of them are, once for all, and those that differ count: each is a noise of its own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MaskedLSTM(vocab_size=vocab_size, embedding_size=16, hidden_size=32, feedforward_size=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    generator = torch.Generator().manual_seed(seed)
    every_NT = every_sequence(vocab_size, length)
    for _ in range(NOISE_STEPS):
        tokens_BT = every_NT[torch.multinomial(train_N, NOISE_BATCH, replacement=True, generator=generator)]
        optimizer.zero_grad()
        (-fill_log_probs(model, tokens_BT, orders(NOISE_BATCH, generator)).mean()).backward()
        optimizer.step()
    orders_OT = orders(NOISE_ORDERS, generator).unique(dim=0)
    with torch.no_grad():
        return torch.stack([fill_log_probs(model, every_NT, order_T.expand_as(every_NT)) for order_T in orders_OT])


def fit_contrasted(
    model: MaskedLSTM, log_noise_ON: Tensor, *, length: int, train_N: Tensor, dev_N: Tensor, seed: int
) -> float:
    """Train E_raw by noise-contrastive estimation, stopped early by the same loss; returns what stood for log Z.

    That stays as it was guessed from noise before training: the biases of the head learn the rest.
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

    fit_enumerated(model, loss, length=length, train_N=train_N, dev_N=dev_N)
    return log_partition
