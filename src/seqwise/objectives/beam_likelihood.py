"""Likelihoods normalised over a beam: of complete outputs (beam CRF), and of all prefixes (dense beam loss).

Shapes: B batch, K hypotheses, N candidates besides gold, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.objective import Objective, per_token_objective, schedule_value, search_targets
from seqwise.objectives.rescoring import beam_outputs, cut_at_end, output_scores, outputs_until_wrong
from seqwise.search.candidates import Score, as_score, local
from seqwise.search.commits import CommitRule, delay
from seqwise.search.gold import Lost, never_lost, no_rivals, out_of_beam, unroll_with_gold
from seqwise.search.operators import AlphaUnit, of_scores, require_beam_size
from seqwise.search.selectors import HardTopK, Selector, SoftTopK


def negative_log_share(gold_B1: Tensor, others_BN: Tensor) -> Tensor:
    """Compute the negative log-probability of gold against others: ``log(e^gold + sum_i e^other_i) - gold``, (B,).

    Gold is not among the others; minus infinity excludes one of them.
    """
    return torch.cat([gold_B1, others_BN], dim=1).logsumexp(-1) - gold_B1[:, 0]


def _commit_rule(commit_delay: int | None) -> CommitRule | None:
    return None if commit_delay is None else delay(commit_delay)


def _require_labels(model: StepModel, commit: CommitRule | None) -> None:
    if commit is not None and model.end is not None:
        problem = f"commit_delay: labels are committed only without an end token, and a {type(model).__name__} has one"
        raise InputError(problem, hint="leave it out, or train a tagger")


# ---------------------------------------------------------------------------------------- complete outputs


def beam_crf_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    outputs_BKT: Tensor,
    live_BK: Tensor,
    score: Score,
    costs_BK: Tensor | float = 0.0,
    *,
    num_steps_B: Tensor | None = None,
) -> Tensor:
    """Compute the negative log-likelihood of gold over a set of outputs and gold: ``log sum_y e^s(y) - s(y*)``.

    Gold counts once, whether or not it is among the outputs. With all V^T outputs, this is the exact likelihood of a
    globally normalised model.

    Outputs are distinct; ones that are not live are ignored. Costs are added to their scores; gold has cost 0. Shape
    (B,), in nats per sequence.

    Source: Andor et al. (ACL 2016), equation 6, on complete outputs.
    """
    gold_B1T = gold_BT[:, None]
    is_gold_BK = (cut_at_end(outputs_BKT, model.end) == cut_at_end(gold_B1T, model.end)).all(-1)
    scores_BK = output_scores(model, context, torch.cat([gold_B1T, outputs_BKT], dim=1), score, num_steps_B=num_steps_B)
    others_BK = (scores_BK[:, 1:] + costs_BK).masked_fill(is_gold_BK | ~live_BK, -torch.inf)
    return negative_log_share(scores_BK[:, :1], others_BK)


def beam_crf_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cross_entropy_weight: float = 0.0,
    commit_delay: int | None = None,
) -> Objective:
    """Make the beam CRF objective: beam-normalised likelihood of complete outputs, in nats per token; no schedule.

    A hard beam without gradients finds k outputs; one teacher-forced batch rescores them and gold.

    With a commit delay d, the search is that of a stream: a label of the best slot is final d steps later, and slots
    that disagree are dropped. If a final label differs from gold, the search ends there, and the loss is that of the
    prefixes, ``log sum_y e^s(y_1..t) - s(y*_1..t)``, as in early update; so gold must win in time.

    Args:
        k: size of the beam.
        score: score that is searched and normalised: local for a local model re-normalised over the beam, or global_.
        cross_entropy_weight: weight of the teacher-forced cross-entropy that is added.
        commit_delay: d, for taggers; None commits nothing before the end.

    Raises:
        InputError: k is less than 1, or the delay less than 0.

    Source: Andor et al. (ACL 2016), without early update where gold falls off the beam; with it, see
    ``early_update_objective``.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> bool(beam_crf_objective(k=2)(model, collate([EncodedExample((1, 2), (0, 1))]), {}) > 0)
        True
    """
    require_beam_size(k)
    score, commit = as_score(score), _commit_rule(commit_delay)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        _require_labels(model, commit)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        if commit is None:
            outputs_BKT, live_BK = beam_outputs(model, context, k=k, num_steps_B=num_steps_B, score=score)
        else:
            gold_BT, outputs_BKT, live_BK = outputs_until_wrong(
                model, context, gold_BT, k=k, num_steps_B=num_steps_B, score=score, commit=commit
            )
        return beam_crf_loss(model, context, gold_BT, outputs_BKT, live_BK, score, num_steps_B=num_steps_B)

    return per_token_objective(loss, cross_entropy_weight)


# ---------------------------------------------------------------------------------------- every prefix


def dense_beam_loss(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    rivals: Selector,
    lost: Lost,
    score: Score | ScoreName = local,
    commit: CommitRule | None = None,
) -> Tensor:
    """Compute the negative log share of the gold prefix among all candidates of the beam, summed over steps.

    ``sum_t [log sum over slots i and tokens w of exp s~_t[i, w] - s(y*_1..t)]``, where the gold prefix always has one
    slot, so its continuation is a candidate exactly once. Gradients flow through the search.

    With ``no_rivals`` and local scores, the loss is cross-entropy. ``out_of_beam(k)`` restarts the beam from gold when
    a beam of k would have dropped it; ``never_lost`` puts gold back and keeps the rivals. A commit rule drops rivals
    that disagree with committed labels, and restarts from gold when gold disagrees. Shape (B,), in nats.
    """
    losses_B = torch.zeros_like(num_steps_B, dtype=torch.float32)
    for step in unroll_with_gold(
        model, context, gold_BT, num_steps_B=num_steps_B, rivals=rivals, lost=lost, score=score, commit=commit
    ):
        losses_B = losses_B + negative_log_share(step.gold_B1, step.others_BN).where(step.active_B, 0.0)
    return losses_B


def dense_beam_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cross_entropy_weight: float = 0.0,
    commit_delay: int | None = None,
) -> Objective:
    """Make the dense beam objective of a hard beam that restarts from gold when it loses it, per token; no schedule.

    Gold takes one of the k slots; with k = 1 and local scores, this is exactly cross-entropy. With a commit delay d, as
    in :func:`beam_crf_objective`, gold is also lost when a stream would make a different label final; with d = 0, this
    is cross-entropy for any k and scores.
    """
    lost = out_of_beam(k)

    def rivals(values: Mapping[str, float]) -> Selector:
        return HardTopK(k - 1) if k > 1 else no_rivals

    return _dense_objective(rivals, lost, as_score(score), cross_entropy_weight, _commit_rule(commit_delay))


def soft_dense_beam_objective(
    *, k: int, score: Score | ScoreName = local, unit: AlphaUnit = of_scores, cross_entropy_weight: float = 0.0
) -> Objective:
    """Make the dense beam objective of a relaxed beam with a hard slot for gold, per token.

    The candidates come from the mixed states of the relaxed beam, so the loss is continuous in the parameters, and
    gradients flow through the search. As alpha grows, it tends to the loss of a hard beam that puts gold back when it
    would lose it, and keeps the rivals.

    Gold takes one of the k slots. Schedule used: ``alpha``.
    """
    require_beam_size(k)

    def rivals(values: Mapping[str, float]) -> Selector:
        if k == 1:
            return no_rivals
        return SoftTopK(k - 1, schedule_value(values, "alpha", "soft_dense_beam_objective"), unit)

    return _dense_objective(rivals, never_lost, as_score(score), cross_entropy_weight)


def _dense_objective(
    rivals: Callable[[Mapping[str, float]], Selector],
    lost: Lost,
    score: Score,
    cross_entropy_weight: float,
    commit: CommitRule | None = None,
) -> Objective:
    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        _require_labels(model, commit)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        return dense_beam_loss(
            model,
            context,
            gold_BT,
            num_steps_B=num_steps_B,
            rivals=rivals(values),
            lost=lost,
            score=score,
            commit=commit,
        )

    return per_token_objective(loss, cross_entropy_weight)
