"""Noise-contrastive estimation: learn raw scores by discriminating gold tokens from noise, without computing log Z.

Shapes: ... any leading shape, N positions with a target, K noise tokens per position, H features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.objectives.linear_head import objective_of_features, require_fit
from seqwise.objectives.objective import Objective


def noise_log_probs(counts_V: Tensor) -> Tensor:
    """Compute a unigram noise distribution from token counts: ``q(w)`` proportional to ``count(w)``.

    Args:
        counts_V: token counts, 0 or more. A token with count 0 is never drawn as noise, and must not be gold.

    Returns:
        ``log q``, (V,), of the default floating type, or of the counts' type if they are floating point.

    Raises:
        InputError: a count is negative or not finite, or all are 0.

    Source: Mnih and Teh (ICML 2012), section 3.

    Example:
        >>> noise_log_probs(torch.tensor([3, 1, 0])).exp()
        tensor([0.7500, 0.2500, 0.0000])
    """
    counts = counts_V if counts_V.is_floating_point() else counts_V.to(torch.get_default_dtype())
    if not bool((torch.isfinite(counts) & (counts >= 0)).all()) or not bool((counts > 0).any()):
        raise InputError("noise needs counts that are finite, not negative, and not all 0")
    return counts.log().log_softmax(-1)


def smoothed_noise(rows: Iterable[Tensor], vocabulary_size: int) -> Tensor:
    """Compute :func:`noise_log_probs` of the tokens of gold rows, with one added to each count.

    Tokens that are never gold are then drawn as noise too. Negative ids are left out.

    Example:
        >>> smoothed_noise([torch.tensor([0, -100, 0])], 2).exp()
        tensor([0.7500, 0.2500])
    """
    # Integers: in 32 bits, floating-point counts would stay at 2**24.
    counts_V = torch.ones(vocabulary_size, dtype=torch.long)
    for row in rows:
        gold_N = row[row >= 0]
        counts_V.scatter_add_(0, gold_N, torch.ones_like(gold_N))
    return noise_log_probs(counts_V)


def noise_contrastive_loss(
    gold_scores_N: Tensor, gold_log_noise_N: Tensor, noise_scores_NK: Tensor, noise_log_noise_NK: Tensor
) -> Tensor:
    """Compute the logistic loss of discriminating gold from K noise tokens, with log-odds ``f(w) - log(K q(w))``::

        mean_t [ -log sigmoid(f(y_t) - log K q(y_t)) - sum_j log sigmoid(log K q(w_tj) - f(w_tj)) ]

    The raw score replaces the log-probability of a normalised model: log Z is assumed to be 0. The optimum satisfies
    this, as the expected loss is minimal at ``f = log p`` (if q is positive wherever p is). As K grows, the gradient
    with respect to f(w) tends to ``exp f(w) - p(w)``, that of maximum likelihood with log Z = 0.

    Maps scores f and log q of the gold tokens, and of noise tokens drawn from q independently, to a scalar in nats per
    gold token; 0 without gold tokens.

    Source: Gutmann and Hyvarinen (AISTATS 2010), section 2; Mnih and Teh (ICML 2012), section 3, with the normalising
    constant of every context fixed at 1. Not implemented: learned constants, noise shared between positions.
    """
    num_noise = noise_scores_NK.shape[-1]
    if num_noise < 1:
        raise InputError("noise-contrastive estimation needs at least one noise token for each gold token, got 0")
    if gold_scores_N.numel() == 0:
        return gold_scores_N.sum() + noise_scores_NK.sum()
    shift = math.log(num_noise)
    gold_loss_N = F.softplus(gold_log_noise_N + shift - gold_scores_N)
    noise_loss_N = F.softplus(noise_scores_NK - noise_log_noise_NK - shift).sum(-1)
    return (gold_loss_N + noise_loss_N).mean()


def sampled_noise_contrastive_loss(
    features: Tensor,
    head_weight_VH: Tensor,
    head_bias_V: Tensor | None,
    targets: Tensor,
    log_noise_V: Tensor,
    *,
    num_noise: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute ``noise_contrastive_loss`` for a linear head; draws K noise tokens per target, scores K + 1 rows of V.

    Maps features (..., H) and int64 targets, of which negative ones are ignored, to a scalar in nats per target. With
    biases initialised to log q, the model need not learn the noise distribution.

    Source: Mnih and Teh (ICML 2012), section 3. Goyal et al. (NAACL 2019) name it as another route to unnormalised
    models, which they found unstable. Not implemented: heads that are not linear in their features, noise that depends
    on the context, sparse gradients.
    """
    require_fit(features, head_weight_VH, head_bias_V, targets)
    vocabulary_size = len(head_weight_VH)
    if tuple(log_noise_V.shape) != (vocabulary_size,):
        raise InputError(f"noise of shape {tuple(log_noise_V.shape)} for a vocabulary of {vocabulary_size}")
    if num_noise < 1:
        raise InputError(f"noise-contrastive estimation needs num_noise of 1 or more, got {num_noise}")
    counted = targets >= 0
    features_NH, targets_N = features[counted], targets[counted]
    # A gold token that is never drawn as noise is discriminated with certainty: its score would grow without bound.
    uncovered_N = log_noise_V[targets_N] == -torch.inf
    if bool(uncovered_N.any()):
        problem = f"gold token {int(targets_N[uncovered_N][0])} has no probability under the noise"
        raise InputError(problem, hint="count it at least once in the noise")
    if targets_N.numel() == 0:
        return features.sum() * 0.0
    draws = torch.multinomial(log_noise_V.exp(), len(targets_N) * num_noise, replacement=True, generator=generator)
    noise_NK = draws.view(-1, num_noise)
    gold_N = (features_NH * head_weight_VH[targets_N]).sum(-1)
    scores_NK = (head_weight_VH[noise_NK] @ features_NH.unsqueeze(-1)).squeeze(-1)
    if head_bias_V is not None:
        gold_N, scores_NK = gold_N + head_bias_V[targets_N], scores_NK + head_bias_V[noise_NK]
    return noise_contrastive_loss(gold_N, log_noise_V[targets_N], scores_NK, log_noise_V[noise_NK])


def noise_contrastive_objective(log_noise_V: Tensor, *, num_noise: int) -> Objective:
    """Make a teacher-forced ``sampled_noise_contrastive_loss`` with K = ``num_noise`` noise tokens; no schedule."""

    def loss(features_BTH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_BT: Tensor) -> Tensor:
        noise_V = log_noise_V.to(features_BTH)
        return sampled_noise_contrastive_loss(features_BTH, weight_VH, bias_V, targets_BT, noise_V, num_noise=num_noise)

    return objective_of_features(loss)
