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
from seqwise.objectives.objective import Objective, per_token, plus_likelihood, search_targets
from seqwise.objectives.rescoring import output_scores
from seqwise.search.candidates import Score, as_score, global_

MOST_OUTPUTS = 10_000
"""V^T beyond which enumeration is refused, unless the caller says otherwise."""


def every_output(
    vocabulary_size: int, num_steps_B: Tensor, *, end: int | None, limit: int = MOST_OUTPUTS
) -> tuple[Tensor, Tensor]:
    """All outputs of the given numbers of steps, each once: V^T of them, or those that an end token leaves distinct.

    With an end token, an output is one that ends within its steps, or one of all its steps that has not ended.

    Args:
        vocabulary_size: V.
        num_steps_B: int64, how many steps each input takes.
        end: id of the end token, or None.
        limit: the largest V^T, with T the most steps of the batch.

    Returns:
        ``outputs_BNT``, int64, ended ones continued by end tokens, negative beyond an input's steps, and ``live_BN``:
        false for those that do not count, because another is the same.

    Raises:
        InputError: V^T is above the limit.

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
    """log of the summed exponentiated scores of all outputs: ``log Z = log sum_y exp s(y)``.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        num_steps_B: int64, how many steps each input takes.
        score: with ``local``, the answer is 0.
        limit: see :func:`every_output`.

    Returns:
        (B,), with gradients.

    Raises:
        InputError: there are too many outputs.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import local
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> context = model.encode(collate([(0, EncodedExample((1, 2), ()))]))
        >>> bool(enumerated_log_partition(model, context, num_steps_B=context.lengths_B, score=local).abs() < 1e-5)
        True
    """
    outputs_BNT, live_BN = every_output(model.embedding_VD.shape[0], num_steps_B, end=model.end, limit=limit)
    return output_scores(model, context, outputs_BNT, score).masked_fill(~live_BN, -torch.inf).logsumexp(-1)


def enumerated_likelihood_objective(
    *, score: Score | ScoreName = global_, limit: int = MOST_OUTPUTS, cross_entropy_weight: float = 0.0
) -> Objective:
    """The exact likelihood of a globally normalised model of any kind, in nats per token; uses no schedule.

    ``log sum_y exp s(y) - s(y*)`` over every output of as many steps as a search would take. It costs V^T outputs an
    input; for chains, :func:`~seqwise.objectives.chain.crf_objective` has the same value at T V^2.

    Args:
        score: what is normalised: global_, or another.
        limit: see :func:`every_output`.
        cross_entropy_weight: how much of the teacher-forced cross-entropy is added.

    Raises:
        InputError: later, there are too many outputs.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> objective = enumerated_likelihood_objective()
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) > 0)
        True
    """
    score = as_score(score)

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        context = model.encode(batch)
        gold_BT, num_steps_B = search_targets(batch, model.end)
        outputs_BNT, live_BN = every_output(model.embedding_VD.shape[0], num_steps_B, end=model.end, limit=limit)
        # Gold is among the outputs and is scored with them in one batch, so that dropout cannot set it apart.
        loss_B = beam_crf_loss(model, context, gold_BT, outputs_BNT, live_BN, score)
        return plus_likelihood(per_token(loss_B.mean(), batch), model, context, batch, cross_entropy_weight)

    return objective
