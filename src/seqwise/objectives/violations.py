"""Losses at the steps where a hard beam loses gold: early update, beam-search optimisation, hard-beam hinge.

Shapes: B batch, K slots, N candidates besides gold, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.devices import worth_reading
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.likelihood import gold_scores
from seqwise.objectives.objective import (
    CostOfGold,
    Objective,
    per_token_objective,
    search_targets,
    teacher_forced_logits,
)
from seqwise.objectives.search_aware import hamming_cost
from seqwise.search.beam import beam_search
from seqwise.search.candidates import Score, as_score, cost_augmented, local
from seqwise.search.costs import Cost
from seqwise.search.gold import no_rivals, out_of_beam, unroll_with_gold
from seqwise.search.operators import require_beam_size
from seqwise.search.selectors import HardTopK

Violation = Callable[[Tensor, Tensor], Tensor]
"""Loss of a beam without gold: maps the score of gold (B, 1) and those of its rivals (B, N) to a loss (B,)."""


def perceptron_violation(gold_B1: Tensor, others_BN: Tensor) -> Tensor:
    """Compute the margin of the best rival over gold, ``max(0, max_i other_i - gold)``; minus infinity excludes one."""
    return torch.cat([gold_B1, others_BN], dim=1).amax(-1) - gold_B1[:, 0]


# ---------------------------------------------------------------------------------------- early update


def early_update_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    k: int,
    score: Score | ScoreName = local,
    violation: Violation = perceptron_violation,
) -> Tensor:
    """Compute the violation at the first step at which a hard beam of k loses gold, or else at the last step.

    With ``perceptron_violation``: ``max_y s(y_1..t) - s(y*_1..t)`` over the beam at that step t, whose gradient is the
    perceptron update. With ``negative_log_share``: ``log sum_y exp s(y_1..t) - s(y*_1..t)`` over the beam and gold.
    Later steps have no effect.

    Shape (B,). If there is an end token, gold is continued by it up to the number of steps. Gold wins ties.

    Source: Collins and Roark (ACL 2004); Andor et al. (ACL 2016), equation 6. Not implemented: averaged parameters,
    updates at the largest violation (Huang et al. 2012).
    """
    lost = out_of_beam(k)
    losses_B, open_B = torch.zeros_like(num_steps_B, dtype=torch.float32), num_steps_B > 0
    rivals = HardTopK(k - 1) if k > 1 else no_rivals
    steps = unroll_with_gold(model, context, gold_BT, num_steps_B=num_steps_B, rivals=rivals, lost=lost, score=score)
    for number, step in enumerate(steps, start=1):
        lost_B = lost(step.gold_B1, step.others_BN)
        stops_B = open_B & (lost_B | step.last_B)
        on_beam_BK = step.others_BN.topk(min(k, step.others_BN.shape[1])).values
        # If gold is on the beam, it takes the place of the k-th of them.
        is_kth_K = torch.arange(on_beam_BK.shape[1], device=on_beam_BK.device) == k - 1
        on_beam_BK = on_beam_BK.masked_fill(is_kth_K & ~lost_B[:, None], -torch.inf)
        losses_B = losses_B + violation(step.gold_B1, on_beam_BK).where(stops_B, 0.0)
        open_B = open_B & ~stops_B
        if worth_reading(open_B, number) and not bool(open_B.any()):
            break
    return losses_B


def early_update_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    violation: Violation = perceptron_violation,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Make the early-update objective, per token of the whole gold output; uses no schedule.

    The violation is ``perceptron_violation`` (Collins and Roark), or ``negative_log_share`` for the beam-normalised
    likelihood with early update (Andor et al.).
    """
    require_beam_size(k)
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        return early_update_loss(
            model, context, gold_BT, num_steps_B=num_steps_B, k=k, score=score, violation=violation
        )

    return per_token_objective(loss, cross_entropy_weight)


# ---------------------------------------------------------------------------------------- beam-search optimisation


def beam_search_optimization_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    k: int,
    cost: Cost,
    score: Score | ScoreName = local,
    margin: float = 1.0,
) -> Tensor:
    """Sum margin violations of gold against its k-th best rival, weighted by the rival's cost.

    ``sum_t D(r_t) max(0, margin + s(r_t) - s(y*_1..t))``: r_t is the k-th best prefix that is not gold, or the best one
    at the last step, where gold must rank first. After a violation, the beam restarts from gold. Otherwise, gold and
    its k best rivals continue: a training beam of k + 1 for a test beam of k.

    Shape (B,). If there is an end token, gold is continued by it up to the number of steps. D sums the cost of tokens
    along a prefix.

    Source: Wiseman and Rush (EMNLP 2016), section 4. Here the score of a prefix is the sum over its tokens; there it is
    the score of its last token. Not implemented: costs that do not sum over steps, hard constraints, a growing beam.
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
        # Scores from before a restart, which removes the scores of the rivals on the beam, but not their costs.
        rivals_BK = step.others_BN.topk(min(k, step.others_BN.shape[1])).values
        # With fewer than k rivals, the last entry is that of gold, at minus infinity: no violation.
        rank_B1 = torch.where(step.last_B, 0, rivals_BK.shape[1] - 1)[:, None]
        lacking_B1 = (margin + rivals_BK.gather(1, rank_B1) - step.gold_B1).clamp(min=0)
        weighted_B1 = step.beam.costs_BK[:, 1:].gather(1, rank_B1) * lacking_B1
        losses_B = losses_B + weighted_B1[:, 0].where(step.active_B, 0.0)
    return losses_B


def beam_search_optimization_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    margin: float = 1.0,
    cost: CostOfGold = hamming_cost,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Make the beam-search optimisation objective for a test-time beam of k, per token; uses no schedule."""
    out_of_beam(k, margin=margin)  # refuses bad values now rather than at the first step
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
        return beam_search_optimization_loss(
            model, context, gold_BT, num_steps_B=num_steps_B, k=k, cost=cost_of_token, score=score, margin=margin
        )

    return per_token_objective(loss, cross_entropy_weight)


# ---------------------------------------------------------------------------------------- hinge


def hard_beam_hinge_objective(
    *, k: int, score: Score | ScoreName = local, cost: CostOfGold = hamming_cost, cross_entropy_weight: float = 0.0
) -> Objective:
    """Make the hinge loss of a cost-augmented hard beam of k, per token; uses no schedule.

    ``max(0, max_y [s(y) + D(y)] - s(y*))`` over the final beam. Gradients flow through the scores of the chosen tokens.

    Source: Goyal et al. (AAAI 2018), footnote 3, the baseline of the relaxed hinge.
    """
    selector, score = HardTopK(k), as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
        beam = beam_search(
            model, context, selector, num_steps=num_steps_B, score=cost_augmented(score), cost=cost_of_token
        )
        gold_B = gold_scores(teacher_forced_logits(model, context, batch, score), batch.targets_BT, score)
        return perceptron_violation(gold_B[:, None], beam.scores_BK)

    return per_token_objective(loss, cross_entropy_weight)
