"""Self-normalisation: train log Z towards 0, so that raw scores can be read as log-probabilities.

=========================================  =========================================  =======================
loss                                       likelihood term                            vocabulary is scored at
=========================================  =========================================  =======================
``self_normalized_cross_entropy``          log-probability                            every position
``sampled_self_normalized_cross_entropy``  log-probability, log Z estimated from H    positions in H
``unnormalized_likelihood_loss``           raw score                                  positions in H
=========================================  =========================================  =======================

H is a random subset of a batch's positions, drawn anew at each call. Shapes: ... any leading shape, N positions with a
target, M positions in H, H features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqwise.data.batches import Batch
from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.models.heads import log_partition
from seqwise.models.protocols import StepModel
from seqwise.objectives.linear_head import (
    gold_scores_and_log_partitions,
    objective_of_features,
    require_fit,
    require_tokens,
)
from seqwise.objectives.objective import Objective, teacher_forced_logits


def self_normalized_cross_entropy(
    logits: Tensor, targets: Tensor, weight: float, fraction: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Add a penalty on log Z to cross-entropy: ``mean_t (log Z_t - f(h_t, y_t)) + lambda mean_{t in H} (log Z_t)^2``.

    One logsumexp serves both terms. H is all targets, or a fraction of them drawn anew at each call; the mean over H is
    an unbiased estimate of the mean over all.

    Args:
        logits: unnormalised scores, (..., V).
        targets: int64 of the leading shape; negative entries are ignored.
        weight: lambda, 0 or more, in nats per squared nat.
        fraction: gamma, in (0, 1]; ``|H| = ceil(gamma n)`` of the n targets.
        generator: random generator for H.

    Returns:
        A scalar, in nats per token; 0 if every target is ignored.

    Raises:
        InputError: the weight is negative or the fraction outside (0, 1]; the shapes do not fit; or, on the CPU, a
            target is outside the vocabulary.

    Source: Devlin et al. (2014); Goyal et al. (NAACL 2019), section 3.3. Not implemented here: skipping the vocabulary
    outside H, which the two other losses of this module do.

    Example:
        >>> self_normalized_cross_entropy(torch.zeros(1, 1, 4), torch.tensor([[3]]), weight=1.0)
        tensor(3.3081)
    """
    _check(weight, fraction)
    require_tokens(targets, logits)
    logits_NV, targets_N = _counted(logits, targets)
    if len(targets_N) == 0:
        return logits.sum() * 0.0
    log_prob_N, log_partition_N = _LogProbAndPartition.apply(logits_NV, targets_N)
    penalized_M = log_partition_N
    if fraction < 1:
        penalized_M = log_partition_N[_drawn(log_partition_N, fraction, generator)]
    return weight * penalized_M.square().mean() - log_prob_N.mean()


class _LogProbAndPartition(torch.autograd.Function):
    """``log p(y)`` and ``log Z = f(y) - log p(y)`` of each row, from a single saved log-softmax.

    With g and z the gradients of the two, the gradient of the scores is ``(z - g) p + g 1_y``: one pass over the
    vocabulary, where autograd takes two.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        log_probs_NV = F.log_softmax(logits_NV, dim=-1, dtype=dtype)
        ctx.save_for_backward(log_probs_NV, targets_N)
        log_prob_N, gold_N = (x.gather(1, targets_N[:, None])[:, 0] for x in (log_probs_NV, logits_NV))
        # The score of an excluded gold token does not determine log Z.
        excluded_N = gold_N == -torch.inf
        log_partition_N = gold_N - log_prob_N
        if bool(excluded_N.any()):
            log_partition_N[excluded_N] = logits_NV[excluded_N].to(dtype).logsumexp(-1)
        return log_prob_N, log_partition_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        log_probs_NV, targets_N = ctx.saved_tensors
        to_log_prob_N, to_log_partition_N = gradients
        gradient_NV = log_probs_NV.exp().mul_((to_log_partition_N - to_log_prob_N)[:, None])
        return gradient_NV.scatter_add_(1, targets_N[:, None], to_log_prob_N[:, None]), None


def unnormalized_likelihood_loss(
    features: Tensor,
    head_weight_VH: Tensor,
    head_bias_V: Tensor | None,
    targets: Tensor,
    *,
    weight: float,
    fraction: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute raw gold scores with a penalty on a few log Z: ``-mean_t f(h_t, y_t) + alpha mean_{t in H} (log Z_t)^2``.

    Positions outside H need only one row of the head's weights, which gives the gold score.

    *Scaling.* Andreas and Klein print ``sum_i f(y_i) - (alpha / gamma) sum_{h in H} (log Z_h)^2`` (equation 5, with the
    signs and the ``1 / gamma`` restored). Divided by -n, this is the loss above whenever gamma n is an integer, as then
    ``|H| = gamma n``. Otherwise ``|H| = ceil(gamma n)``, and the mean over H, unlike ``1 / (gamma n)``, remains an
    unbiased estimate of the mean over all positions. So alpha has the same meaning for every gamma.

    *Optimum.* Completing the square, the expected loss is cross-entropy plus a penalty that is not centred on 0::

        -f(y) + alpha (log Z)^2  =  -log p(y) + alpha (log Z - 1 / (2 alpha))^2 - 1 / (4 alpha)

    So with unrestricted scores, the optimum is the true distribution with ``log Z = 1 / (2 alpha)`` everywhere. Any
    model that can add a constant to all its scores (a head with a bias) reaches ``E[log Z] = 1 / (2 alpha)``, as the
    derivative with respect to this constant is ``-1 + 2 alpha E[log Z]``.

    Args:
        features: (..., H), input of the head.
        head_weight_VH: the output layer's weights, ``f(h, w) = W_w . h + b_w``.
        head_bias_V: its biases, or None.
        targets: int64 of the leading shape; negative entries are ignored.
        weight: alpha, 0 or more, in nats per squared nat.
        fraction: gamma, in [0, 1]; ``|H| = ceil(gamma n)`` of the n targets. With gamma or alpha 0, scores are
            unbounded and the loss has no minimum: the pathological end of the published table.
        generator: random generator for H.

    Returns:
        A scalar, in nats per token, which may be negative; 0 if every target is ignored.

    Raises:
        InputError: the weight is negative or the fraction outside [0, 1]; the shapes do not fit; or, on the CPU, a
            target is outside the vocabulary.

    Source: Andreas and Klein (NAACL 2015), equation 5. Not implemented: heads that are not linear in their features,
    sparse gradients (the gradient of the weights is as large as the weights), second derivatives.

    Example:
        >>> loss = unnormalized_likelihood_loss(
        ...     torch.zeros(1, 3, 2), torch.zeros(4, 2), None, torch.tensor([[3, 0, 1]]), weight=1.0, fraction=0.1
        ... )
        >>> round(loss.item(), 4)  # no score, and log Z = log 4
        1.9218
    """
    _check(weight, fraction if fraction != 0 else 1.0)  # 0 is allowed here
    gold_N, log_partition_M = _gold_and_drawn(features, head_weight_VH, head_bias_V, targets, fraction, generator)
    if gold_N.numel() == 0:
        return gold_N.sum()
    if log_partition_M.numel() == 0:
        return -gold_N.mean()
    return -gold_N.mean() + weight * log_partition_M.square().mean()


def sampled_self_normalized_cross_entropy(
    features: Tensor,
    head_weight_VH: Tensor,
    head_bias_V: Tensor | None,
    targets: Tensor,
    *,
    weight: float,
    fraction: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate log Z from H alone: ``-mean_t f(h_t, y_t) + mean_{t in H} (log Z_t + lambda (log Z_t)^2)``.

    Each position of H has weight ``n / |H|``, which is ``1 / gamma`` if gamma n is an integer. So value and gradient
    are unbiased estimates of those of :func:`self_normalized_cross_entropy`, with the same optimum: log Z near 0, not
    near ``1 / (2 alpha)``. With weight 0, this is plain cross-entropy, which leaves log Z free. Positions outside H
    skip the vocabulary. The price is variance due to the choice of H, which is small once all log Z are near 0.

    Args:
        features, head_weight_VH, head_bias_V, targets, generator: see :func:`unnormalized_likelihood_loss`.
        weight: lambda, 0 or more, in nats per squared nat.
        fraction: gamma, in (0, 1]; ``|H| = ceil(gamma n)`` of the n targets.

    Returns:
        A scalar, in nats per token, which may be negative; 0 if every target is ignored.

    Raises:
        InputError: as for :func:`unnormalized_likelihood_loss`, or the fraction is 0.

    Source: this estimator is not in Andreas and Klein (2015), whose equation 5 omits log Z from the likelihood. Not
    implemented: heads that are not linear in their features, second derivatives.

    Example:
        >>> loss = sampled_self_normalized_cross_entropy(
        ...     torch.zeros(1, 3, 2), torch.zeros(4, 2), None, torch.tensor([[3, 0, 1]]), weight=1.0, fraction=0.1
        ... )
        >>> round(loss.item(), 4)  # log 4 + (log 4)^2
        3.3081
    """
    _check(weight, fraction)
    gold_N, log_partition_M = _gold_and_drawn(features, head_weight_VH, head_bias_V, targets, fraction, generator)
    if gold_N.numel() == 0:
        return gold_N.sum()
    return -gold_N.mean() + (log_partition_M + weight * log_partition_M.square()).mean()


def _check(weight: float, fraction: float) -> None:
    if not weight >= 0:
        raise InputError(f"the weight of the log Z penalty must not be negative, got {weight}")
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of normalised positions must lie in (0, 1], got {fraction}")


def _counted(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (..., X) that have a target, and the targets; avoid a copy if all rows have one."""
    counted = targets >= 0
    if bool(counted.all()):
        return rows.reshape(-1, rows.shape[-1]), targets.flatten()
    return rows[counted], targets[counted]


def _drawn(values_N: Tensor, fraction: float, generator: torch.Generator | None) -> Tensor:
    """Draw the indices of H: ``ceil(gamma n)`` of n, all subsets equally likely."""
    order_N = torch.rand(len(values_N), generator=generator, device=values_N.device).argsort()
    # Rounded first: 0.07 * 100 is 7.000000000000001 in floating point.
    return order_N[: math.ceil(round(fraction * len(values_N), 9))]


def _gold_and_drawn(
    features: Tensor,
    head_weight_VH: Tensor,
    head_bias_V: Tensor | None,
    targets: Tensor,
    fraction: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Compute the raw gold score at every position with a target, and log Z at those in H."""
    require_fit(features, head_weight_VH, head_bias_V, targets)
    features_NH, targets_N = _counted(features, targets)
    drawn_M = _drawn(features_NH, fraction, generator)
    return gold_scores_and_log_partitions(features_NH, head_weight_VH, head_bias_V, targets_N, drawn_M)


# ---------------------------------------------------------------------------------------- objectives


def self_normalized_objective(*, weight: float, fraction: float = 1.0) -> Objective:
    """Make a teacher-forced objective of :func:`self_normalized_cross_entropy`; uses no schedule."""

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        logits_BTV = teacher_forced_logits(model, model.encode(batch), batch)
        return self_normalized_cross_entropy(logits_BTV, batch.targets_BT, weight, fraction)

    return objective


def sampled_self_normalized_objective(*, weight: float, fraction: float) -> Objective:
    """Make a teacher-forced objective of :func:`sampled_self_normalized_cross_entropy`; uses no schedule."""
    return objective_of_features(partial(sampled_self_normalized_cross_entropy, weight=weight, fraction=fraction))


def unnormalized_likelihood_objective(*, weight: float, fraction: float) -> Objective:
    """Make a teacher-forced objective of :func:`unnormalized_likelihood_loss`; uses no schedule."""
    return objective_of_features(partial(unnormalized_likelihood_loss, weight=weight, fraction=fraction))


def log_partition_objective(*, fraction: float = 1.0) -> Objective:
    """Make an objective of the penalty on log Z alone: ``mean_{t in H} (log Z_t)^2`` along gold; uses no schedule.

    Mix it with an objective without such a penalty. H is all gold positions, or a fraction in (0, 1] of them drawn anew
    at each call; other positions skip the vocabulary. In squared nats.

    Source: Devlin et al. (ACL 2014), section 2.4; known as z-loss since PaLM (2022).
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of penalised positions must lie in (0, 1], got {fraction}")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        features_NH = features_BTH[batch.targets_BT >= 0]
        if len(features_NH) == 0:
            return features_BTH.sum() * 0.0
        if fraction < 1:
            features_NH = features_NH[_drawn(features_NH, fraction, None)]
        return at_least_float32(model.head(features_NH)).logsumexp(-1).square().mean()

    return objective


# ---------------------------------------------------------------------------------------- measures of log Z


@torch.no_grad()
def log_partitions(model: StepModel, batch: Batch) -> Tensor:
    """Compute log Z at every gold position of a batch, under teacher forcing.

    Returns:
        One dimension, in nats: the positions of the first output, then those of the second, and so on.
    """
    logits_BTV = teacher_forced_logits(model, model.encode(batch), batch)
    return log_partition(logits_BTV[batch.targets_BT >= 0])
