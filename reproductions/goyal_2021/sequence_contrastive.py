"""Noise-contrastive estimation of whole sequences: a global energy learns to tell data from noise; no log Z needed.

What the noise can be, and why an order in which a masked model fills it does no harm, is told in
`reproductions.goyal_2021.sequence_noise`.

Shapes: B sequences of the data, K noise sequences for each, N = V^T sequences of an enumerable space, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from reproductions.goyal_2021.sequence_noise import SequenceNoise
from seqwise.errors import InputError
from seqwise.objectives.contrastive import noise_contrastive_loss

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
    if noise_scores_BK.numel() == 0:
        raise InputError("noise-contrastive estimation needs at least one noise sequence for each of the data, got 0")
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
    _check_number(num_noise)
    count = len(tokens_BT)
    with torch.no_grad():
        gold_log_noise_B = noise.log_probs(tokens_BT, generator)
        drawn_KT, log_noise_K = noise.draw(count * num_noise, generator)
    _check_covered(gold_log_noise_B)
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
    _check_number(num_noise)
    log_noise = log_noise.to(scores_N)
    drawn = log_noise > -torch.inf
    _check_covered(log_noise[..., weights_N > 0])
    shifted = log_noise.where(drawn, 0.0) + math.log(num_noise)
    odds = scores_N - log_partition - shifted
    gold_loss = weights_N.to(scores_N) * F.softplus(-odds)
    # Sequences that are never drawn are not data either, and count for nothing.
    noise_loss = torch.where(drawn, shifted.exp() * F.softplus(odds), 0.0)
    return (gold_loss + noise_loss).sum(-1).mean()


def estimated_log_partition(noise_scores_B: Tensor, noise_log_noise_B: Tensor) -> Tensor:
    """Estimate log Z by importance sampling: ``log mean_b exp(-E(y'_b)) / q(y'_b)``."""
    if noise_scores_B.numel() == 0:
        raise InputError("an estimate of log Z needs at least one sequence of noise")
    return (noise_scores_B - noise_log_noise_B).logsumexp(0) - math.log(len(noise_scores_B))


def _check_number(num_noise: int) -> None:
    if num_noise < 1:
        raise InputError(f"noise-contrastive estimation needs num_noise of 1 or more, got {num_noise}")


def _check_covered(gold_log_noise: Tensor) -> None:
    """Refuse data that are never noise: their scores would grow without end."""
    if bool((gold_log_noise == -torch.inf).any()):
        raise InputError(
            "a sequence of the data has no probability under the noise", hint="use noise that covers all sequences"
        )
