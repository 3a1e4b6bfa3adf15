"""Minimum risk: the expected cost of the outputs that a beam finds.

Shapes: B batch, K hypotheses, T steps, G gold length, P = G + 1 places between and around gold tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.objective import Objective, per_token_objective, search_targets
from seqwise.objectives.rescoring import beam_outputs, cut_at_end, output_scores
from seqwise.search.candidates import Score, as_score, local
from seqwise.search.costs import levenshtein_row
from seqwise.search.operators import peaked_softmax, require_beam_size

OutputCost = Callable[[Tensor, Tensor, int | None], Tensor]
"""Cost of complete outputs: maps outputs (B, K, T), gold (B, T) and the end token or None to (B, K), no gradient.

Both are int64 and continued by end tokens; outputs are negative beyond an input's own steps.
"""


def hamming_distances(outputs_BKT: Tensor, gold_BT: Tensor, end: int | None) -> Tensor:
    """Count the positions at which tokens differ, end tokens after the end included: (B, K), float32."""
    return ((outputs_BKT != gold_BT[:, None]) & (outputs_BKT >= 0)).sum(-1).float()


def edit_distances(outputs_BKT: Tensor, gold_BT: Tensor, end: int | None) -> Tensor:
    """Compute Levenshtein distances: the fewest insertions, deletions and substitutions that turn an output into gold.

    The end token counts like any other, so that outputs that fail to end incur a cost; tokens after it are ignored.

    Args:
        outputs_BKT: int64; negative entries only at the end.
        gold_BT: int64, padded in the same way.
        end: id of the end token, or None.

    Returns:
        (B, K), float32.

    Source: Wagner and Fischer (1974), all B K tables at once, row by row.

    Example:
        >>> edit_distances(torch.tensor([[[1, 2, 3, 0], [1, 0, 0, 0]]]), torch.tensor([[2, 3, 0, 0]]), 0)
        tensor([[1., 2.]])
    """
    outputs_BKT, gold_BG = cut_at_end(outputs_BKT, end), cut_at_end(gold_BT, end)
    lengths_BK, gold_lengths_B = (outputs_BKT >= 0).sum(-1), (gold_BG >= 0).sum(-1)
    row_BKP = torch.arange(gold_BG.shape[1] + 1, device=gold_BG.device).expand(*lengths_BK.shape, -1)
    final_BKP = row_BKP
    for step in range(outputs_BKT.shape[2]):
        same_BKG = (outputs_BKT[..., step, None] == gold_BG[:, None]).long()
        row_BKP = levenshtein_row(row_BKP, same_BKG)
        final_BKP = torch.where((lengths_BK == step + 1)[..., None], row_BKP, final_BKP)
    return final_BKP.gather(-1, gold_lengths_B[:, None, None].expand(*lengths_BK.shape, 1))[..., 0].float()


def expected_cost(scores_BK: Tensor, costs_BK: Tensor, live_BK: Tensor, alpha: float = 1.0) -> Tensor:
    """Compute the expected cost of an output drawn from the beam: ``sum_k softmax_alpha(s)_k D_k``.

    Outputs that are not live are ignored. Shape (B,), in units of cost per sequence.

    Source: Smith and Eisner (2006); Shen et al. (ACL 2016), equation 11.
    """
    weights_BK = peaked_softmax(scores_BK.masked_fill(~live_BK, -torch.inf), alpha)
    return (weights_BK * costs_BK).sum(-1)


def minimum_risk_objective(
    *, k: int, score: Score | ScoreName = local, cost: OutputCost = hamming_distances, cross_entropy_weight: float = 0.0
) -> Objective:
    """Make the minimum-risk objective: expected cost per token of the k outputs of a hard beam, plus cross-entropy.

    A hard beam without gradients finds the outputs; one teacher-forced batch rescores them. Schedule used: ``alpha``,
    the inverse temperature of the distribution over the outputs (by default 1).

    Args:
        k: size of the beam; with k = 1 there is no gradient.
        score: score that is searched, and normalised over the beam.
        cost: cost of complete outputs: ``hamming_distances``, ``edit_distances``, or your own.
        cross_entropy_weight: weight of the teacher-forced cross-entropy that is added.

    Raises:
        InputError: k is less than 1.

    Source: Shen et al. (ACL 2016), with a beam instead of samples. Not implemented: gold among the outputs, sampling.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([EncodedExample((1, 2), (0, 1))])
        >>> bool(0 <= minimum_risk_objective(k=4, cost=edit_distances)(model, batch, {}) <= 1)
        True
    """
    require_beam_size(k)
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        outputs_BKT, live_BK = beam_outputs(model, context, k=k, num_steps_B=num_steps_B, score=score)
        scores_BK = output_scores(model, context, outputs_BKT, score, num_steps_B=num_steps_B)
        costs_BK = cost(outputs_BKT, gold_BT, model.end)
        return expected_cost(scores_BK, costs_BK, live_BK, values.get("alpha", 1.0))

    return per_token_objective(loss, cross_entropy_weight)
