"""Softmax-margin: a likelihood over a beam in which outputs with higher costs weigh more.

Shapes: B batch, K hypotheses, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.beam_likelihood import beam_crf_loss
from seqwise.objectives.objective import Objective, per_token_objective, search_targets
from seqwise.objectives.rescoring import beam_outputs
from seqwise.objectives.risk import OutputCost, hamming_distances
from seqwise.search.candidates import Score, as_score, local
from seqwise.search.operators import require_beam_size


def softmax_margin_objective(
    *,
    k: int,
    score: Score | ScoreName = local,
    cost: OutputCost = hamming_distances,
    cross_entropy_weight: float = 0.0,
) -> Objective:
    """Make the softmax-margin objective: ``log sum_y e^(s(y) + D(y, y*)) - s(y*)`` over a beam, in nats per token.

    y ranges over the k outputs of a hard beam and gold, which has cost 0. Without costs, this is the beam CRF; it is an
    upper bound on that loss and on the cost-augmented hinge over the same outputs. Uses no schedule.

    Args:
        k: size of the beam; the search uses only the score, without gradients.
        score: score that is searched and normalised.
        cost: cost of complete outputs: ``hamming_distances``, ``edit_distances``, or your own.
        cross_entropy_weight: weight of the teacher-forced cross-entropy that is added.

    Raises:
        InputError: k is less than 1.

    Source: Gimpel and Smith (NAACL 2010), equation 6, over a beam. Not implemented: a cost-augmented search.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.objectives import beam_crf_objective
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([EncodedExample((1, 2), (0, 1))])
        >>> bool(softmax_margin_objective(k=3)(model, batch, {}) > beam_crf_objective(k=3)(model, batch, {}))
        True
    """
    require_beam_size(k)
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        outputs_BKT, live_BK = beam_outputs(model, context, k=k, num_steps_B=num_steps_B, score=score)
        costs_BK = cost(outputs_BKT, gold_BT, model.end)
        return beam_crf_loss(model, context, gold_BT, outputs_BKT, live_BK, score, costs_BK, num_steps_B=num_steps_B)

    return per_token_objective(loss, cross_entropy_weight)
