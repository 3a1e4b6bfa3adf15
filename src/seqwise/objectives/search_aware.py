"""Search-aware losses: objectives of the final beam of a relaxed search.

Shapes: B batch, K slots, T target length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    per_token_objective,
    schedule_value,
    search_targets,
    teacher_forced_logits,
)
from seqwise.search.beam import Beam, beam_search
from seqwise.search.candidates import Score, as_score, cost_augmented, local
from seqwise.search.costs import Cost
from seqwise.search.operators import AlphaUnit, of_scores, peaked_softmax
from seqwise.search.selectors import SoftTopK


def hamming_cost(gold_BT: Tensor, vocab_size: int, weights: Tensor | None = None) -> Cost:
    """Make the Hamming cost ``d_t(w) = weight[w] [w != y*_t]``: 1, or the token's weight, for every wrong token.

    Args:
        gold_BT: int64 gold tokens; a step whose gold token is negative, or beyond T, costs nothing.
        vocab_size: V.
        weights: cost of *wrongly choosing* each token, (V,), by default 1. In named-entity recognition, the paper
            doubles the cost of a wrong "O".

    Returns:
        A function from the step to a (B, V) tensor of costs, for ``beam_search(..., cost=...)``.

    Source: Goyal et al. (AAAI 2018), sections 2.3 and 3.1.

    Example:
        >>> hamming_cost(torch.tensor([[2, 0]]), 3)(0)
        tensor([[1., 1., 0.]])
    """
    device = gold_BT.device
    weights_V = torch.ones(vocab_size, device=device) if weights is None else weights.to(device).expand(vocab_size)
    is_gold_BT, places_BT = gold_BT >= 0, gold_BT.long().clamp(0, vocab_size - 1)
    # For a gold token outside the vocabulary, the cost of the last token does not change.
    of_gold_BT = weights_V[places_BT] * (gold_BT >= vocab_size)

    def cost(step: int) -> Tensor:
        if step >= gold_BT.shape[1]:
            return weights_V.new_zeros(gold_BT.shape[0], vocab_size)
        place = slice(step, step + 1)
        # Overwrite the cost of gold, in one pass over B x V.
        return (weights_V * is_gold_BT[:, place]).scatter_(1, places_BT[:, place], of_gold_BT[:, place])

    return cost


def direct_loss(beam: Beam, alpha: float) -> Tensor:
    """Compute the cost of a softly chosen best hypothesis: ``softmax_alpha(s_T) . D_T``.

    Args:
        beam: the result of a search with a cost.
        alpha: inverse temperature of the final choice, greater than 0.

    Returns:
        The mean over the batch, a scalar in units of cost per sequence.

    Raises:
        InputError: alpha is not positive.

    Source: Goyal et al. (AAAI 2018), Algorithm 3, line 19.

    Example:
        >>> score_BK, cost_BK = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0]])
        >>> direct_loss(Beam(score_BK, cost_BK, cost_BK, cost_BK, state=None), alpha=100.0)
        tensor(1.)
    """
    return (peaked_softmax(beam.scores_BK, alpha) * beam.costs_BK).sum(-1).mean()


def hinge_loss(beam: Beam, gold_scores_B: Tensor, alpha: float) -> Tensor:
    """Compute the margin by which a wrong hypothesis outscores gold: ``max(0, softmax_alpha(s_T) . s_T - s(y*))``.

    Args:
        beam: the result of a search with a ``cost_augmented`` score.
        gold_scores_B: s(y*), from :func:`seqwise.objectives.gold_scores` with the same score.
        alpha: inverse temperature of the final choice, greater than 0.

    Returns:
        The mean over the batch, a scalar in units of score.

    Raises:
        InputError: alpha is not positive.

    Source: Goyal et al. (AAAI 2018), section 2.5. With a hard beam it is the baseline of the paper's footnote 3.

    Example:
        >>> score_BK = torch.tensor([[2.0, -torch.inf]])
        >>> hinge_loss(Beam(score_BK, score_BK, score_BK, score_BK, state=None), torch.tensor([0.5]), alpha=1.0)
        tensor(1.5000)
    """
    weights_BK = peaked_softmax(beam.scores_BK, alpha)
    live_scores_BK = beam.scores_BK.masked_fill(beam.scores_BK == -torch.inf, 0.0)
    return ((weights_BK * live_scores_BK).sum(-1) - gold_scores_B).clamp(min=0).mean()


def relaxed_beam_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cost: CostOfGold = hamming_cost,
    unit: AlphaUnit = of_scores,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Make the direct loss of a relaxed beam, in cost per gold token, plus optional cross-entropy.

    The loss is :func:`direct_loss`, ``softmax_alpha(s_T) . D_T``, of a search with ``SoftTopK(k, alpha)``. Schedule
    used: ``alpha``.

    Args:
        k: size of the beam.
        score: local (search-aware, locally normalised) or global_ (globally normalised); or "local", "global".
        cost: makes the task cost from the gold output; ``hamming_cost``, ``partial(hamming_cost, weights=...)``,
            ``partial(edit_distance_cost, end=...)``, or your own.
        unit: divisor of alpha at each step of the search, see ``SoftTopK``; the final choice uses alpha itself.
        cross_entropy_weight: weight of the teacher-forced cross-entropy that is added.

    Raises:
        InputError: when called, if k is less than 1, or alpha is missing or not positive.

    Source: Goyal et al. (AAAI 2018), Algorithm 3; Goyal et al. (NAACL 2019) for global scores.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([EncodedExample((1, 2), (0, 1))])
        >>> bool(0 <= relaxed_beam_objective(k=2, score="global")(model, batch, {"alpha": 1.0}) <= 1)
        True
    """
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        alpha = schedule_value(values, "alpha", "relaxed_beam_objective")
        return direct_loss(_relaxed_beam(model, context, batch, SoftTopK(k, alpha, unit), score, cost), alpha)

    return per_token_objective(loss, cross_entropy_weight)


def hinge_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cost: CostOfGold = hamming_cost,
    unit: AlphaUnit = of_scores,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Make the hinge loss of a cost-augmented relaxed beam, per gold token, plus optional cross-entropy.

    The loss is :func:`hinge_loss`. Schedule used: ``alpha``.

    Args:
        k, score, cost, unit, cross_entropy_weight: see :func:`relaxed_beam_objective`.

    Raises:
        InputError: see :func:`relaxed_beam_objective`.

    Source: Goyal et al. (AAAI 2018), section 2.5.
    """
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        alpha = schedule_value(values, "alpha", "hinge_objective")
        beam = _relaxed_beam(model, context, batch, SoftTopK(k, alpha, unit), cost_augmented(score), cost)
        gold_B = gold_scores(teacher_forced_logits(model, context, batch, score), batch.targets_BT, score)
        return hinge_loss(beam, gold_B, alpha)

    return per_token_objective(loss, cross_entropy_weight)


def _relaxed_beam(
    model: StepModel, context: Any, batch: Batch, selector: SoftTopK, score: Score, cost: CostOfGold
) -> Beam:
    gold_BT, num_steps_B = search_targets(batch, model.end)
    cost_of_token = cost(gold_BT, model.embedding_VD.shape[0])
    return beam_search(model, context, selector, num_steps=num_steps_B, score=score, cost=cost_of_token)
