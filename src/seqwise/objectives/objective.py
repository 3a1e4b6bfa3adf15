"""Objectives: functions of a model, a batch and the values of the schedules at the current step.

A function builds each objective from its fixed options; values that change during training (alpha, the probability of
feeding gold) are passed by name. Shapes: B batch, T target length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.likelihood import cross_entropy
from seqwise.search.candidates import Score, as_score, local
from seqwise.search.costs import Cost
from seqwise.search.language import allowed_logits, language_of, require_members

Objective = Callable[[StepModel, Batch, Mapping[str, float]], Tensor]
"""``objective(model, batch, values)``: a scalar loss; ``values`` holds the schedules at this step, by name."""

CostOfGold = Callable[[Tensor, int], Cost]
"""``cost(gold_BT, vocab_size)``: the cost of each token at each step, given the gold outputs (negative: no gold)."""

LossOfOutputs = Callable[[StepModel, Any, Batch, Mapping[str, float]], Tensor]
"""``loss(model, context, batch, values)``: the loss of each output, (B,), or their mean, given encoded sources."""


def cross_entropy_objective(*, label_smoothing: float = 0.0, score: Score | ScoreName = local) -> Objective:
    """Make the cross-entropy objective with teacher forcing; uses no schedule.

    Args:
        score: "local" or "renormalized": log Z over all tokens, or over those that the model's language allows, as in
            a search by the same score.
        label_smoothing: probability moved from each gold token to all tokens; see
            :func:`~seqwise.objectives.likelihood.cross_entropy`.

    Raises:
        InputError: the label smoothing is outside [0, 1), or above 0 with renormalised scores; the score is not
            normalised.
    """
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}")
    score = as_score(score)
    if score.log_partition_weight != 1:
        raise InputError("cross-entropy needs normalised scores", hint="choose local or renormalized")
    if label_smoothing and score.over == "allowed":
        raise InputError("labels cannot be smoothed over tokens that are not allowed", hint="set label_smoothing to 0")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        logits_BTV = teacher_forced_logits(model, model.encode(batch), batch, score)
        return cross_entropy(logits_BTV, batch.targets_BT, label_smoothing=label_smoothing)

    return objective


def per_token_objective(loss: LossOfOutputs, cross_entropy_weight: float = 0.0) -> Objective:
    """Make an objective from a loss per output: its mean over gold tokens, plus weighted cross-entropy."""

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        loss_of_outputs = loss(model, context, batch, values).mean()
        loss_of_tokens = loss_of_outputs * len(batch.target_lengths_B) / batch.target_lengths_B.sum().clamp(min=1)
        if cross_entropy_weight == 0:
            return loss_of_tokens
        logits_BTV = teacher_forced_logits(model, context, batch)
        return loss_of_tokens + cross_entropy_weight * cross_entropy(logits_BTV, batch.targets_BT)

    return objective


def mixed_objective(objectives: Sequence[Objective], weights: Sequence[float]) -> Objective:
    """Make a weighted sum of objectives: ``L = sum_i w_i L_i``, each with its own pass through the model.

    Args:
        objectives: objectives; each reads its own schedules, and dropout differs between their passes.
        weights: one for each, 0 or more; objectives with weight 0 are not computed.

    Raises:
        InputError: the number of weights is wrong, one is negative or not finite, or all are 0.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> batch = collate([EncodedExample((1, 2), (0, 1))])
        >>> likelihood = cross_entropy_objective()
        >>> mixed = mixed_objective([likelihood, likelihood], [1.0, 0.5])(model, batch, {})
        >>> round((mixed / likelihood(model, batch, {})).item(), 4)
        1.5
    """
    if len(weights) != len(objectives):
        raise InputError(f"{len(objectives)} objectives cannot be mixed by {len(weights)} weights")
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise InputError(f"weights of objectives must be 0 or more, finite, and not all 0, got {list(weights)}")
    parts = tuple((objective, weight) for objective, weight in zip(objectives, weights, strict=True) if weight > 0)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        return torch.stack([weight * part(model, batch, values) for part, weight in parts]).sum()

    return objective


@dataclass(frozen=True, eq=False)
class Mean:
    """Scalar mean with gradients, and the number of its terms, a scalar integer tensor."""

    value: Tensor
    count: Tensor


@dataclass(frozen=True)
class SumOfMeans:
    """Objective whose means are not over gold tokens, unlike those of all others: ``L = sum_i mean_i``.

    ``means`` always returns the same number of means, so that those of parts of a batch can be combined.

    Example:
        >>> halves = SumOfMeans(lambda *_: [Mean(torch.tensor(0.5), torch.tensor(4)), Mean(torch.tensor(1.0), None)])
        >>> halves(None, None, {})
        tensor(1.5000)
    """

    means: Callable[[Any, Batch, Mapping[str, float]], Sequence[Mean]]

    def __call__(self, model: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        return reduce(add, (mean.value for mean in self.means(model, batch, values)))


# ---------------------------------------------------------------------------------------- parts of objectives


def teacher_forced_logits(model: StepModel, context: object, batch: Batch, score: Score = local) -> Tensor:
    """Compute unnormalised scores along the gold output, (B, T, V); minus infinity for tokens outside the normaliser.

    Raises:
        InputError: the score is renormalised in a language, and a gold output is not in it.
    """
    logits_BTV = model.head(model.teacher_forced(context, batch.targets_BT))
    language = language_of(model)
    if language is None or score.over == "vocabulary":
        return logits_BTV
    require_members(language, batch.targets_BT)
    num_steps_B = batch.target_lengths_B + (model.end is not None)
    return allowed_logits(logits_BTV, batch.targets_BT, language, num_steps=num_steps_B)


def search_targets(batch: Batch, end: int | None) -> tuple[Tensor, Tensor]:
    """Return the outputs to compare a search with, and its number of steps for each input.

    Without an end token, these are the gold outputs. With one, they are continued by end tokens and have one more step,
    so that outputs that fail to end in time incur a cost. The number of steps of an input depends only on its own gold
    output, never on the batch.

    Returns:
        ``gold_BT`` (negative where there is none) and ``num_steps_B``.
    """
    if end is None:
        return batch.targets_BT, batch.target_lengths_B
    extended_BT = torch.cat([batch.targets_BT, batch.targets_BT.new_full((len(batch.targets_BT), 1), -1)], dim=1)
    return extended_BT.masked_fill(extended_BT < 0, end), batch.target_lengths_B + 1


def schedule_value(values: Mapping[str, float], name: str, objective: str) -> float:
    """Look up the value of a schedule."""
    if name not in values:
        hint = f'pass schedules={{"{name}": ...}} to fit: a number, text such as "linear(0.1, 1)", or a function'
        raise InputError(f"{objective} reads the schedule {name}, which is missing", hint=hint)
    return values[name]
