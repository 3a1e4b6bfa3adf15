"""Losses of the step at which a hard beam goes wrong: early update, beam-search optimisation, hard-beam hinge.

Shapes: B batch, K slots, N candidates besides gold, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.likelihood import gold_scores
from seqwise.objectives.objective import (
    CostOfGold,
    Objective,
    per_token,
    plus_likelihood,
    search_targets,
    teacher_forced_logits,
)
from seqwise.objectives.search_aware import hamming_cost
from seqwise.search.beam import beam_search
from seqwise.search.candidates import Score, as_score, cost_augmented, global_, local
from seqwise.search.costs import Cost
from seqwise.search.gold import no_rivals, out_of_beam, unroll_with_gold
from seqwise.search.selectors import HardTopK

Violation = Callable[[Tensor, Tensor], Tensor]
"""Losses of a beam that lacks gold: the score of gold (B, 1) and those of its rivals (B, N) to a loss (B,)."""


def perceptron_violation(gold_B1: Tensor, others_BN: Tensor) -> Tensor:
    """By how much the best outscores gold: ``max(0, max_i other_i - gold)``.

    Args:
        gold_B1: score of gold.
        others_BN: scores of its rivals; minus infinity excludes one.

    Returns:
        (B,), in units of score.

    Example:
        >>> perceptron_violation(torch.zeros(2, 1), torch.tensor([[1.5, 2.0], [-1.0, -torch.inf]]))
        tensor([2., 0.])
    """
    return torch.cat([gold_B1, others_BN], dim=1).amax(-1) - gold_B1[:, 0]


# ---------------------------------------------------------------------------------------- early update


def early_update_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    k: int,
    score: Score | ScoreName = global_,
    violation: Violation = perceptron_violation,
) -> Tensor:
    """The violation at the first step at which a hard beam of k loses gold, or at the last step if it never does.

    With ``perceptron_violation``: ``max_y s(y_1..t) - s(y*_1..t)`` over the beam at that step t, whose gradient is the
    perceptron's update. With ``negative_log_share``: ``log sum_y exp s(y_1..t) - s(y*_1..t)`` over the beam and gold.
    Later steps play no part.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        gold_BT: int64; with an end token, continued by it up to the number of steps.
        num_steps_B: int64, how many steps each input takes.
        k: size of the beam; gold wins ties.
        score: what a token adds.
        violation: of gold and its rivals on the beam at that step.

    Returns:
        (B,).

    Raises:
        InputError: k is less than 1.

    Source: Collins and Roark (ACL 2004); Andor et al. (ACL 2016), equation 6. Not implemented: averaged parameters,
    updates at the largest violation (Huang et al. 2012).

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> loss_B = early_update_loss(
        ...     model, model.encode(batch), batch.targets_BT, num_steps_B=batch.target_lengths_B, k=4
        ... )
        >>> bool(loss_B >= 0)
        True
    """
    lost = out_of_beam(k)
    losses_B, open_B = torch.zeros_like(num_steps_B, dtype=torch.float32), num_steps_B > 0
    rivals = HardTopK(k - 1) if k > 1 else no_rivals
    for step in unroll_with_gold(
        model, context, gold_BT, num_steps_B=num_steps_B, rivals=rivals, lost=lost, score=score
    ):
        lost_B = lost(step.gold_B1, step.others_BN)
        stops_B = open_B & (lost_B | step.last_B)
        on_beam_BK = step.others_BN.topk(min(k, step.others_BN.shape[1])).values
        if on_beam_BK.shape[1] == k:
            # Where gold is on the beam, it takes one of the k places.
            on_beam_BK = torch.cat(
                [on_beam_BK[:, :-1], on_beam_BK[:, -1:].masked_fill(~lost_B[:, None], -torch.inf)], dim=1
            )
        losses_B = losses_B + violation(step.gold_B1, on_beam_BK).where(stops_B, 0.0)
        open_B = open_B & ~stops_B
        if not bool(open_B.any()):
            break
    return losses_B


def early_update_objective(
    *,
    k: int,
    score: Score | ScoreName = global_,
    violation: Violation = perceptron_violation,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Early update, per token of the whole gold output; uses no schedule.

    Args:
        k: size of the beam.
        score: what a token adds.
        violation: ``perceptron_violation`` (Collins and Roark), or ``negative_log_share`` for the beam-normalised
            likelihood with early update (Andor et al.).
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.objectives import negative_log_share
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> objective = early_update_objective(k=2, violation=negative_log_share)
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) > 0)
        True
    """
    out_of_beam(k)  # refuses a bad k now rather than at the first step
    score = as_score(score)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        loss_B = early_update_loss(
            model, context, gold_BT, num_steps_B=num_steps_B, k=k, score=score, violation=violation
        )
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective


# ---------------------------------------------------------------------------------------- beam-search optimisation


def beam_search_optimization_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    k: int,
    cost: Cost,
    score: Score | ScoreName = global_,
    margin: float = 1.0,
) -> Tensor:
    """At every step, the margin that the gold prefix lacks over its k-th best rival, times that rival's cost.

    ``sum_t D(r_t) max(0, margin + s(r_t) - s(y*_1..t))``: r_t is the k-th best prefix that is not gold, and at the last
    step the best, because there gold has to come first. After a violation the beam restarts from gold. Without one,
    gold and its k best rivals go on, which is a training beam of k + 1 for a test beam of k.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        gold_BT: int64; with an end token, continued by it up to the number of steps.
        num_steps_B: int64, how many steps each input takes.
        k: size of the test-time beam.
        cost: cost of each token at each step, such as ``hamming_cost(gold_BT, V)``; D sums it along a prefix.
        score: what a token adds.
        margin: 0 or more, in units of score.

    Returns:
        (B,), summed over the steps.

    Raises:
        InputError: k is less than 1, or the margin negative or not finite.

    Source: Wiseman and Rush (EMNLP 2016), section 4. Here a prefix scores the sum of its tokens, there what its last
    token scores. Not implemented: costs that do not sum over steps, hard constraints, the beam that grows in training.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> beam_search_optimization_loss(
        ...     model, model.encode(batch), batch.targets_BT, num_steps_B=batch.target_lengths_B, k=1,
        ...     cost=hamming_cost(batch.targets_BT, 2),
        ... ).shape
        torch.Size([1])
    """
    losses_B = torch.zeros_like(num_steps_B, dtype=torch.float32)
    for step in unroll_with_gold(
        model,
        context,
        gold_BT,
        num_steps_B=num_steps_B,
        rivals=HardTopK(k),
        lost=out_of_beam(k, margin=margin),
        score=score,
        cost=cost,
    ):
        # The rivals' own scores: a restart has already put out those on the beam. Their costs it leaves alone.
        rivals_BK = step.others_BN.topk(min(k, step.others_BN.shape[1])).values
        # Where there are fewer than k, the last of these is gold's own place, at minus infinity: nothing is lacking.
        rank_B1 = torch.where(step.last_B, 0, rivals_BK.shape[1] - 1)[:, None]
        lacking_B1 = (margin + rivals_BK.gather(1, rank_B1) - step.gold_B1).clamp(min=0)
        weighted_B1 = step.beam.costs_BK[:, 1:].gather(1, rank_B1) * lacking_B1
        losses_B = losses_B + weighted_B1[:, 0].where(step.active_B, 0.0)
    return losses_B


def beam_search_optimization_objective(
    *,
    k: int,
    score: Score | ScoreName = global_,
    margin: float = 1.0,
    cost: CostOfGold = hamming_cost,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Beam-search optimisation, per token; uses no schedule.

    Args:
        k: size of the test-time beam.
        score: what a token adds.
        margin: 0 or more, in units of score.
        cost: makes the task cost from the gold output.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1, or the margin negative or not finite.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> objective = beam_search_optimization_objective(k=2)
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) >= 0)
        True
    """
    out_of_beam(k, margin=margin)  # refuses bad values now rather than at the first step
    score = as_score(score)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
        loss_B = beam_search_optimization_loss(
            model, context, gold_BT, num_steps_B=num_steps_B, k=k, cost=cost_of_token, score=score, margin=margin
        )
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective


# ---------------------------------------------------------------------------------------- hinge


def hard_beam_hinge_objective(
    *, k: int, score: Score | ScoreName = local, cost: CostOfGold = hamming_cost, cross_entropy_weight: float = 0.0
) -> Objective:
    """Hinge loss of a cost-augmented hard beam, per token; uses no schedule.

    ``max(0, max_y [s(y) + D(y)] - s(y*))`` over the final beam. Gradients flow through the scores of what was chosen.

    Args:
        k: size of the beam.
        score: local or global_.
        cost: makes the task cost from the gold output.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1.

    Source: Goyal et al. (AAAI 2018), footnote 3, the baseline of the relaxed hinge.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> objective = hard_beam_hinge_objective(k=2)
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) >= 0)
        True
    """
    selector, score = HardTopK(k), as_score(score)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
        beam = beam_search(
            model, context, selector, num_steps=num_steps_B, score=cost_augmented(score), cost=cost_of_token
        )
        gold_B = gold_scores(teacher_forced_logits(model, context, batch), batch.targets_BT, score)
        loss_B = perceptron_violation(gold_B[:, None], beam.scores_BK)
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective
