"""Noise-contrastive estimation for Table 6.1: two noises, both learnt from the training data, and the energy.

The noises are small masked models that have learnt to fill rows of masks: from left to right, which is an
autoregressive model, or in any order. As for the other objectives of the table, what is drawn enters in expectation:
the noise by the exact probability of each of the N = V^T sequences.

Shapes: N sequences, B of them in a batch, T positions, O orders, C contexts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from reproductions.goyal_2021.energy_training import enumerated_logits, fit_enumerated, raw_scores
from reproductions.goyal_2021.sequence_contrastive import estimated_log_partition, expected_sequence_contrastive_loss
from reproductions.goyal_2021.sequence_noise import Orders, fill_log_probs, left_to_right, shuffled_orders
from seqwise.models.masked import MaskedLSTM
from seqwise.sampling.correctness import every_sequence

NOISES: Mapping[str, Callable[[int], Orders]] = {"left to right": left_to_right, "any order": shuffled_orders}
"""By name, the orders in which masks are filled."""
NUM_NOISE = 10  # for each sequence of the data
NOISE_STEPS, NOISE_BATCH, NOISE_ORDERS = 200, 64, 10


def train_noise(vocab_size: int, train_N: Tensor, orders: Orders, *, length: int, seed: int) -> Tensor:
    """Train a small masked model to fill rows of masks."""
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
    """Train E_raw by noise-contrastive estimation, with early stopping on the same loss of the development data."""
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
