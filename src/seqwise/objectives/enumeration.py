"""Global normalisation of any step model, exactly, by scoring every output that there is: for tiny spaces.

Shapes: B batch, N outputs, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.beam_likelihood import beam_crf_loss
from seqwise.objectives.objective import Objective, per_token_objective, search_targets
from seqwise.objectives.rescoring import output_scores
from seqwise.search.candidates import Score, as_score, global_

MOST_OUTPUTS = 10_000
"""V^T beyond which enumeration is refused, unless the caller says otherwise."""


def every_output(
    vocabulary_size: int, num_steps_B: Tensor, *, end: int | None, limit: int = MOST_OUTPUTS
) -> tuple[Tensor, Tensor]:
    """Enumerate the outputs of the given numbers of steps: V^T of them, or those that an end token leaves distinct.

    With an end token, an output is one that ends within its steps, or one of all its steps that has not ended.

    Returns ``outputs_BNT``, int64, ended ones continued by end tokens, negative beyond an input's steps, and
    ``live_BN``: false for those that do not count, because another is the same. Refuses V^T above the limit, with T the
    most steps of the batch.

    Example:
        >>> outputs_BNT, live_BN = every_output(2, torch.tensor([2, 1]), end=0)
        >>> outputs_BNT[0][live_BN[0]].tolist(), outputs_BNT[1][live_BN[1]].tolist()
        ([[0, 0], [1, 0], [1, 1]], [[0, -1], [1, -1]])
    """
    most = int(num_steps_B.max()) if num_steps_B.numel() else 0
    if vocabulary_size**most > limit:
        raise InputError(
            f"there are {vocabulary_size}^{most} outputs, more than the {limit:,} that are enumerated at most",
            hint="take shorter outputs or fewer tokens, a larger limit, or beam_crf_objective",
        )
    device = num_steps_B.device
    # The digits of the numbers from 0 to V^T - 1; with no steps there is one output, the empty one.
    powers_T = vocabulary_size ** torch.arange(most - 1, -1, -1, device=device)
    outputs_NT = torch.arange(vocabulary_size**most, device=device)[:, None] // powers_T % vocabulary_size
    beyond_B1T = (torch.arange(most, device=device) >= num_steps_B[:, None])[:, None]
    # Of those that differ only in what does not count, the one that holds the filling there stands for all.
    live_BN = ((outputs_NT == 0) | ~beyond_B1T).all(-1)
    if end is not None:
        is_end_NT = outputs_NT == end
        after_end_NT = is_end_NT.long().cumsum(-1) - is_end_NT.long() > 0
        live_BN = live_BN & (is_end_NT | ~after_end_NT | beyond_B1T).all(-1)
    return outputs_NT.expand(len(num_steps_B), -1, -1).masked_fill(beyond_B1T, -1), live_BN


def enumerated_log_partition(
    model: StepModel,
    context: Any,
    *,
    num_steps_B: Tensor,
    score: Score | ScoreName = global_,
    limit: int = MOST_OUTPUTS,
) -> Tensor:
    """Log of the summed exponentiated scores of all outputs: ``log Z = log sum_y exp s(y)``, (B,), with gradients."""
    outputs_BNT, live_BN = every_output(model.embedding_VD.shape[0], num_steps_B, end=model.end, limit=limit)
    return output_scores(model, context, outputs_BNT, score).masked_fill(~live_BN, -torch.inf).logsumexp(-1)


def enumerated_likelihood_objective(
    *, score: Score | ScoreName = global_, limit: int = MOST_OUTPUTS, cross_entropy_weight: float = 0.0
) -> Objective:
    """The exact likelihood of a globally normalised model of any kind, in nats per token; uses no schedule.

    ``log sum_y exp s(y) - s(y*)`` over every output of as many steps as a search would take. It costs V^T outputs an
    input; for chains, ``crf_objective`` has the same value at T V^2.
    """
    score = as_score(score)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        outputs_BNT, live_BN = every_output(model.embedding_VD.shape[0], num_steps_B, end=model.end, limit=limit)
        # Gold is among the outputs and is scored with them in one batch, so that dropout cannot set it apart.
        return beam_crf_loss(model, context, gold_BT, outputs_BNT, live_BN, score)

    return per_token_objective(loss, cross_entropy_weight)
