"""Objectives of a training step: functions of a model, a batch and the values of the schedules at that step.

Each objective is built by a function from its fixed choices; what changes during training (alpha, the probability of
feeding gold) comes in by name. Shapes: B batch, T target length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.contrastive import sampled_noise_contrastive_loss
from seqwise.objectives.likelihood import cross_entropy, gold_scores
from seqwise.objectives.search_aware import direct_loss, hamming_cost, hinge_loss
from seqwise.objectives.self_normalization import (
    sampled_self_normalized_cross_entropy,
    self_normalized_cross_entropy,
    unnormalized_likelihood_loss,
)
from seqwise.search.beam import Beam, beam_search
from seqwise.search.candidates import Score, as_score, cost_augmented, local
from seqwise.search.costs import Cost
from seqwise.search.feeding import FEEDINGS, fed_logits, fed_logits_in_two_passes
from seqwise.search.operators import AlphaUnit, of_scores
from seqwise.search.selectors import SoftTopK

Objective = Callable[[StepModel, Batch, Mapping[str, float]], Tensor]
"""``objective(model, batch, values)``: a scalar loss; ``values`` holds the schedules at this step, by name."""

CostOfGold = Callable[[Tensor, int], Cost]
"""``cost(gold_BT, vocab_size)``: the cost of each token at each step, given the gold outputs (negative: no gold)."""


def cross_entropy_objective(*, label_smoothing: float = 0.0) -> Objective:
    """Teacher forcing with cross-entropy; uses no schedule.

    Args:
        label_smoothing: the part of each gold token's probability that is spread over all tokens; see
            :func:`~seqwise.objectives.likelihood.cross_entropy`.

    Raises:
        InputError: the label smoothing is outside [0, 1).
    """
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        logits_BTV = teacher_forced_logits(model, model.encode(batch), batch)
        return cross_entropy(logits_BTV, batch.targets_BT, label_smoothing=label_smoothing)

    return objective


def self_normalized_objective(*, weight: float, fraction: float = 1.0) -> Objective:
    """Teacher forcing with cross-entropy plus ``weight (log Z)^2``; uses no schedule.

    Args:
        weight: lambda.
        fraction: gamma, the part of the positions that is penalised.
    """

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        logits_BTV = teacher_forced_logits(model, model.encode(batch), batch)
        return self_normalized_cross_entropy(logits_BTV, batch.targets_BT, weight, fraction)

    return objective


def sampled_self_normalized_objective(*, weight: float, fraction: float) -> Objective:
    """The same in expectation, with log Z at a fraction of the positions only; uses no schedule.

    Args:
        weight: lambda.
        fraction: gamma, the part of the positions whose log Z is computed.

    Raises:
        InputError: later, the weight or the fraction is out of range, or the model's head is not linear.

    Source: see :func:`~seqwise.objectives.self_normalization.sampled_self_normalized_cross_entropy`.
    """
    return _objective_of_features(partial(sampled_self_normalized_cross_entropy, weight=weight, fraction=fraction))


def unnormalized_likelihood_objective(*, weight: float, fraction: float) -> Objective:
    """Raw gold scores and a penalty on log Z at a fraction of the positions; ends near ``log Z = 1 / (2 weight)``.

    Uses no schedule.

    Args:
        weight: alpha.
        fraction: gamma, the part of the positions whose log Z is computed.

    Raises:
        InputError: later, the weight or the fraction is out of range, or the model's head is not linear.

    Source: Andreas and Klein (NAACL 2015), equation 5; see
    :func:`~seqwise.objectives.self_normalization.unnormalized_likelihood_loss`.
    """
    return _objective_of_features(partial(unnormalized_likelihood_loss, weight=weight, fraction=fraction))


def noise_contrastive_objective(log_noise_V: Tensor, *, num_noise: int) -> Objective:
    """Noise-contrastive estimation at every gold position, under teacher forcing; uses no schedule.

    Args:
        log_noise_V: log q, as from :func:`~seqwise.objectives.contrastive.noise_log_probs`.
        num_noise: K, noise tokens for each gold one.

    Raises:
        InputError: later, K is less than 1, a gold token is no noise, or the model's head is not linear.

    Source: Mnih and Teh (ICML 2012), section 3.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.objectives import noise_log_probs
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> objective = noise_contrastive_objective(noise_log_probs(torch.ones(2)), num_noise=3)
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) > 0)
        True
    """

    def loss(features_BTH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_BT: Tensor) -> Tensor:
        noise_V = log_noise_V.to(features_BTH)
        return sampled_noise_contrastive_loss(features_BTH, weight_VH, bias_V, targets_BT, noise_V, num_noise=num_noise)

    return _objective_of_features(loss)


def _objective_of_features(loss: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]) -> Objective:
    """Teacher forcing with a loss that looks up what it needs of the scores: of features, a linear head and gold."""

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        return loss(features_BTH, *_linear_head(model), batch.targets_BT)

    return objective


def scheduled_sampling_objective(feeding: str) -> Objective:
    """Cross-entropy while the decoder is fed its own choices some of the time.

    Schedules used: ``gold_probability``, and ``alpha`` for the soft feedings (1 if there is none).

    Args:
        feeding: "greedy", "sample", "soft-greedy" or "soft-sample".

    Raises:
        InputError: there is no such feeding.
    """
    return _objective_of_fed(fed_logits, feeding)


def two_pass_scheduled_sampling_objective(feeding: str) -> Objective:
    """Scheduled sampling in two passes, all positions at once: the second is fed what the first would have chosen.

    Schedules used: ``gold_probability``, and ``alpha`` for the soft feedings (1 if there is none).

    Args:
        feeding: "greedy", "sample", "soft-greedy" or "soft-sample"; the soft ones carry gradients through both passes.

    Raises:
        InputError: there is no such feeding; later, the model can only take one step at a time.

    Source: Mihaylova and Martins (ACL 2019, student workshop); see ``fed_logits_in_two_passes``.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Transformer
        >>> model = Transformer(source_size=5, target_size=3, end=2, hidden_size=8, num_heads=2, feedforward_size=16)
        >>> objective = two_pass_scheduled_sampling_objective("soft-greedy")
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1, 2)))])
        >>> bool(objective(model, batch, {"gold_probability": 0.5, "alpha": 2.0}) > 0)
        True
    """
    return _objective_of_fed(fed_logits_in_two_passes, feeding)


def _objective_of_fed(fed: Callable[..., Tensor], feeding: str) -> Objective:
    """Cross-entropy of what ``fed`` scores."""
    if feeding not in FEEDINGS:
        raise InputError(f"no feeding is called {feeding!r}", hint=f"choose one of {', '.join(FEEDINGS)}")

    soft = feeding.startswith("soft")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        alpha = schedule_value(values, "alpha", "scheduled_sampling_objective") if soft else 1.0
        logits_BTV = fed(
            model,
            model.encode(batch),
            batch.targets_BT,
            otherwise=FEEDINGS[feeding](alpha),
            gold_probability=schedule_value(values, "gold_probability", "scheduled_sampling_objective"),
        )
        return cross_entropy(logits_BTV, batch.targets_BT)

    return objective


def relaxed_beam_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cost: CostOfGold = hamming_cost,
    unit: AlphaUnit = of_scores,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Direct loss through the relaxed beam, in cost per token, plus an optional share of cross-entropy.

    Schedule used: ``alpha``.

    Args:
        k: size of the beam.
        score: local (search-aware, locally normalised) or global_ (globally normalised); or "local", "global".
        cost: makes the task cost from the gold output; Hamming, ``partial(hamming_cost, weights=...)``,
            ``partial(edit_distance_cost, end=...)``, or yours.
        unit: what alpha is divided by at each step of the search, as of ``SoftTopK``; the final choice takes alpha as
            it is.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.
    """
    return _objective_of_relaxed_beam(
        "relaxed_beam_objective",
        lambda beam, alpha, *_: direct_loss(beam, alpha),
        cross_entropy_weight,
        k=k,
        score=as_score(score),
        cost=cost,
        unit=unit,
    )


def hinge_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cost: CostOfGold = hamming_cost,
    unit: AlphaUnit = of_scores,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Hinge loss through the cost-augmented relaxed beam, per token, plus an optional share of cross-entropy.

    Schedule used: ``alpha``.

    Args:
        k: size of the beam.
        score: local or global_; or "local", "global".
        cost, unit: as of :func:`relaxed_beam_objective`.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.
    """

    score = as_score(score)

    def loss(beam: Beam, alpha: float, model: StepModel, context: Any, batch: Batch) -> Tensor:
        gold_B = gold_scores(teacher_forced_logits(model, context, batch), batch.targets_BT, score)
        return hinge_loss(beam, gold_B, alpha)

    searched = cost_augmented(score)
    return _objective_of_relaxed_beam(
        "hinge_objective", loss, cross_entropy_weight, k=k, score=searched, cost=cost, unit=unit
    )


def _objective_of_relaxed_beam(
    name: str,
    loss: Callable[[Beam, float, StepModel, Any, Batch], Tensor],
    cross_entropy_weight: float,
    *,
    k: int,
    score: Score,
    cost: CostOfGold,
    unit: AlphaUnit,
) -> Objective:
    """A relaxed search, and a loss of the beam that it ends with."""

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context, alpha = model.encode(batch), schedule_value(values, "alpha", name)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
        selector = SoftTopK(k, alpha, unit)
        beam = beam_search(model, context, selector, num_steps=num_steps_B, score=score, cost=cost_of_token)
        found = per_token(loss(beam, alpha, model, context, batch), batch)
        return plus_likelihood(found, model, context, batch, cross_entropy_weight)

    return objective


def schedule_value(values: Mapping[str, float], name: str, objective: str) -> float:
    """The value of a schedule that an objective reads.

    Args:
        values: of all schedules, by name.
        name: of the one wanted.
        objective: that reads it, for the error.

    Raises:
        InputError: there is no such schedule.

    Example:
        >>> schedule_value({}, "alpha", "relaxed_beam_objective")
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: relaxed_beam_objective reads the schedule alpha, which is missing; pass ...
    """
    if name not in values:
        hint = f'pass schedules={{"{name}": ...}} to fit: a number, text such as "linear(0.1, 1)", or a function'
        raise InputError(f"{objective} reads the schedule {name}, which is missing", hint=hint)
    return values[name]


def mixed_objective(objectives: Sequence[Objective], weights: Sequence[float]) -> Objective:
    """A weighted sum of objectives: ``L = sum_i w_i L_i``, each with its own pass through the model.

    Args:
        objectives: each reads the schedules that it knows; with dropout, each pass has its own.
        weights: one for each, 0 or more; what has weight 0 is not computed.

    Raises:
        InputError: there is not one weight for each objective, or one is negative, not finite, or all are 0.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> likelihood = cross_entropy_objective()
        >>> mixed = mixed_objective([likelihood, likelihood], [1.0, 0.5])(model, batch, {})
        >>> round((mixed / likelihood(model, batch, {})).item(), 4)
        1.5
    """
    if len(weights) != len(objectives):
        raise InputError(f"{len(objectives)} objectives cannot be mixed by {len(weights)} weights")
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise InputError(f"weights of objectives must be 0 or more, finite, and not all 0, got {list(weights)}")
    parts = [(objective, weight) for objective, weight in zip(objectives, weights, strict=True) if weight > 0]

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        return torch.stack([weight * part(model, batch, values) for part, weight in parts]).sum()

    return objective


def search_targets(batch: Batch, end: int | None) -> tuple[Tensor, Tensor]:
    """Outputs that a search is compared with, and the number of steps that it runs on each input.

    Without an end token, the gold output as it is. With one, the gold output continued by end tokens, and one step more
    than it has, so that an output that fails to end in time pays for it. The number of steps of an input depends on
    its own gold output only, never on the batch.

    Returns:
        ``gold_BT`` (negative where there is none) and ``num_steps_B``.
    """
    if end is None:
        return batch.targets_BT, batch.target_lengths_B
    extended_BT = torch.cat([batch.targets_BT, batch.targets_BT.new_full((len(batch.targets_BT), 1), -1)], dim=1)
    return extended_BT.masked_fill(extended_BT < 0, end), batch.target_lengths_B + 1


def teacher_forced_logits(model: StepModel, context: object, batch: Batch) -> Tensor:
    """Unnormalised scores along the gold output, (B, T, V)."""
    return model.head(model.teacher_forced(context, batch.targets_BT))


def per_token(loss_per_sequence: Tensor, batch: Batch) -> Tensor:
    """A mean over the sequences of a batch as one over its gold tokens, the end tokens counted."""
    return loss_per_sequence * len(batch.target_lengths_B) / batch.target_lengths_B.sum().clamp(min=1)


def plus_likelihood(loss: Tensor, model: StepModel, context: object, batch: Batch, weight: float) -> Tensor:
    """The loss plus a share of teacher-forced cross-entropy."""
    if weight == 0:
        return loss
    return loss + weight * cross_entropy(teacher_forced_logits(model, context, batch), batch.targets_BT)


def _linear_head(model: StepModel) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of ``f = W h + b``, one row of which is the score of one token."""
    head = model.head
    if isinstance(head, nn.Linear):
        return head.weight, head.bias
    if isinstance(head, nn.Identity):  # features that are the scores themselves
        embedding_VD = model.embedding_VD
        return torch.eye(len(embedding_VD), dtype=embedding_VD.dtype, device=embedding_VD.device), None
    problem = f"scores of single tokens need a linear head, which that of {type(model).__name__} is not"
    raise InputError(problem, hint="use cross_entropy_objective or self_normalized_objective")


def log_partition_objective(*, fraction: float = 1.0) -> Objective:
    """The penalty that draws log Z to 0, alone: ``mean_{t in H} (log Z_t)^2`` along gold; uses no schedule.

    To be mixed with an objective that has none. H is all gold positions, or a fraction of them drawn anew at each call;
    the others never touch the vocabulary.

    Args:
        fraction: gamma, in (0, 1]; ``|H| = ceil(gamma n)`` of the n gold positions.

    Returns:
        An objective, in squared nats.

    Raises:
        InputError: the fraction is outside (0, 1].

    Source: Devlin et al. (ACL 2014), section 2.4; known as z-loss since PaLM (2022).

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> _ = nn.init.zeros_(model.head.weight), nn.init.zeros_(model.head.bias)
        >>> loss = log_partition_objective()(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {})
        >>> round(loss.item(), 4)  # (log 2)^2
        0.4805
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of penalised positions must lie in (0, 1], got {fraction}")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        features_NH = features_BTH[batch.targets_BT >= 0]
        if len(features_NH) == 0:
            return features_BTH.sum() * 0.0
        if fraction < 1:
            # Rounded first: 0.07 * 100 is 7.000000000000001 in floating point.
            num_drawn = math.ceil(round(fraction * len(features_NH), 9))
            features_NH = features_NH[torch.randperm(len(features_NH), device=features_NH.device)[:num_drawn]]
        logits_NV = model.head(features_NH)
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return logits_NV.logsumexp(-1).square().mean()

    return objective
