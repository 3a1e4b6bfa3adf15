"""Likelihoods normalised over a beam: of complete outputs (beam CRF), and of every prefix on the way (dense beam loss).

Shapes: B batch, K hypotheses, N candidates besides gold, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.objective import Objective, per_token, plus_likelihood, schedule_value, search_targets
from seqwise.objectives.rescoring import beam_outputs, cut_at_end, output_scores
from seqwise.search.candidates import Score, as_score, global_
from seqwise.search.gold import Lost, never_lost, no_rivals, out_of_beam, unroll_with_gold
from seqwise.search.operators import AlphaUnit, of_scores
from seqwise.search.selectors import HardTopK, Selector, SoftTopK


def negative_log_share(gold_B1: Tensor, others_BN: Tensor) -> Tensor:
    """Gold's negative log-probability among itself and others: ``log(e^gold + sum_i e^other_i) - gold``.

    Args:
        gold_B1: score of gold.
        others_BN: scores of what it competes with, gold not among them; minus infinity excludes an entry.

    Returns:
        (B,), 0 or more, in nats.

    Example:
        >>> negative_log_share(torch.zeros(1, 1), torch.tensor([[0.0, -torch.inf]]))
        tensor([0.6931])
    """
    return torch.cat([gold_B1, others_BN], dim=1).logsumexp(-1) - gold_B1[:, 0]


# ---------------------------------------------------------------------------------------- complete outputs


def beam_crf_loss(
    model: StepModel, context: Any, gold_BT: Tensor, outputs_BKT: Tensor, live_BK: Tensor, score: Score
) -> Tensor:
    """The negative log-likelihood of gold, normalised over a set of outputs and gold: ``log sum_y e^s(y) - s(y*)``.

    Gold is counted once, whether it is among the outputs or not. When all V^T outputs are there, this is the exact
    likelihood of a globally normalised model.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        gold_BT: int64, negative where there is none; what follows the end token counts for nothing.
        outputs_BKT: int64 distinct outputs, usually of :func:`~seqwise.objectives.rescoring.beam_outputs`.
        live_BK: false for outputs that do not count.
        score: local, or global_ for a globally normalised model.

    Returns:
        (B,), in nats per sequence.

    Source: Andor et al. (ACL 2016), equation 6, on complete outputs.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> only_gold = batch.targets_BT[:, None]
        >>> live = torch.ones(1, 1, dtype=torch.bool)
        >>> beam_crf_loss(model, model.encode(batch), batch.targets_BT, only_gold, live, global_).item()
        0.0
    """
    gold_B1T = gold_BT[:, None]
    is_gold_BK = (cut_at_end(outputs_BKT, model.end) == cut_at_end(gold_B1T, model.end)).all(-1)
    scores_BK = output_scores(model, context, torch.cat([gold_B1T, outputs_BKT], dim=1), score)
    return negative_log_share(scores_BK[:, :1], scores_BK[:, 1:].masked_fill(is_gold_BK | ~live_BK, -torch.inf))


def beam_crf_objective(*, k: int, score: Score | ScoreName = global_, cross_entropy_weight: float = 0.0) -> Objective:
    """Beam-normalised likelihood of complete outputs, in nats per token; uses no schedule.

    A hard beam without gradients finds k outputs; they and gold are scored again in one teacher-forced batch.

    Args:
        k: size of the beam.
        score: what is searched and normalised: global_, or local for a re-normalised local model.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1.

    Source: Andor et al. (ACL 2016), without early update; with it, see
    :func:`~seqwise.objectives.violations.early_update_objective`.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> bool(beam_crf_objective(k=2)(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) > 0)
        True
    """
    HardTopK(k)  # refuses a bad k now rather than at the first step
    score = as_score(score)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        outputs_BKT, live_BK = beam_outputs(model, context, k=k, num_steps_B=num_steps_B, score=score)
        loss_B = beam_crf_loss(model, context, gold_BT, outputs_BKT, live_BK, score)
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective


# ---------------------------------------------------------------------------------------- every prefix


def dense_beam_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    rivals: Selector,
    lost: Lost,
    score: Score | ScoreName = global_,
) -> Tensor:
    """At every step, the negative log share of the gold prefix among all candidates of the beam.

    ``sum_t [log sum over slots i and tokens w of exp s~_t[i, w] - s(y*_1..t)]``, where the gold prefix always holds one
    slot, so that its continuation is one of the candidates, once. Gradients flow through the search.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        gold_BT: int64; with an end token, continued by it up to the number of steps.
        num_steps_B: int64, how many steps each input takes.
        rivals: chooses the slots beside gold: ``HardTopK(k - 1)`` or ``SoftTopK(k - 1, alpha)``; with ``no_rivals`` and
            local scores, the loss is cross-entropy.
        lost: ``out_of_beam(k)`` restarts the beam from gold where a beam of k would have dropped it; ``never_lost``
            puts gold back and keeps the rivals.
        score: what a token adds.

    Returns:
        (B,), in nats summed over the steps.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> dense_beam_loss(
        ...     model, model.encode(batch), batch.targets_BT, num_steps_B=batch.target_lengths_B, rivals=HardTopK(1),
        ...     lost=out_of_beam(2),
        ... ).shape
        torch.Size([1])
    """
    losses_B = torch.zeros_like(num_steps_B, dtype=torch.float32)
    for step in unroll_with_gold(
        model, context, gold_BT, num_steps_B=num_steps_B, rivals=rivals, lost=lost, score=score
    ):
        losses_B = losses_B + negative_log_share(step.gold_B1, step.others_BN).where(step.active_B, 0.0)
    return losses_B


def dense_beam_objective(*, k: int, score: Score | ScoreName = global_, cross_entropy_weight: float = 0.0) -> Objective:
    """Dense beam loss of a hard beam that restarts from gold where it would lose it, per token; uses no schedule.

    Args:
        k: slots of the beam, gold's among them; with k = 1 and local scores this is exactly cross-entropy.
        score: what a token adds.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import local
        >>> from seqwise.objectives import cross_entropy_objective
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> dense, plain = dense_beam_objective(k=1, score=local), cross_entropy_objective()
        >>> torch.allclose(dense(model, batch, {}), plain(model, batch, {}))
        True
    """
    lost = out_of_beam(k)

    def rivals(values: Mapping[str, float]) -> Selector:
        return HardTopK(k - 1) if k > 1 else no_rivals

    return _dense_objective(rivals, lost, as_score(score), cross_entropy_weight)


def soft_dense_beam_objective(
    *, k: int, score: Score | ScoreName = global_, unit: AlphaUnit = of_scores, cross_entropy_weight: float = 0.0
) -> Objective:
    """Dense beam loss of a relaxed beam beside gold, which always keeps its own hard slot, per token.

    The candidates come from the mixed states of the relaxed beam, so the loss is continuous in the parameters, and the
    search itself gets gradients. As alpha grows it tends to the loss of a hard beam with gold put back where it would
    be lost, and the rivals kept.

    Schedule used: ``alpha``.

    Args:
        k: slots of the beam, gold's among them.
        score: what a token adds.
        unit: what alpha is divided by at each step, as of ``SoftTopK``.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: k is less than 1.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([(0, EncodedExample((1, 2), (0, 1)))])
        >>> bool(soft_dense_beam_objective(k=3)(model, batch, {"alpha": 1.0}) > 0)
        True
    """
    out_of_beam(k)  # refuses a bad k

    def rivals(values: Mapping[str, float]) -> Selector:
        return (
            SoftTopK(k - 1, schedule_value(values, "alpha", "soft_dense_beam_objective"), unit) if k > 1 else no_rivals
        )

    return _dense_objective(rivals, never_lost, as_score(score), cross_entropy_weight)


def _dense_objective(
    rivals: Callable[[Mapping[str, float]], Selector], lost: Lost, score: Score, cross_entropy_weight: float
) -> Objective:
    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        loss_B = dense_beam_loss(
            model, context, gold_BT, num_steps_B=num_steps_B, rivals=rivals(values), lost=lost, score=score
        )
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective
