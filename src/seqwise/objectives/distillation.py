"""Distillation of a locally normalised model into raw scores: a warm start for globally normalised training.

Shapes: B batch, K outputs of one search, N outputs of all, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.models.protocols import StepModel
from seqwise.objectives.objective import Objective, per_token_objective, search_targets
from seqwise.objectives.rescoring import beam_outputs, cut_at_end, output_scores
from seqwise.search.candidates import global_, local
from seqwise.search.operators import require_beam_size


def distillation_loss(teacher_BN: Tensor, student_BN: Tensor, live_BN: Tensor) -> Tensor:
    """Compute the divergence between teacher and student over a set of outputs: ``KL(q || p)``.

    Both scores are normalised over the set: ``q = softmax(teacher)``, ``p = softmax(student)``,
    ``KL = sum_y q(y) (log q(y) - log p(y))``. A constant added to either score has no effect.

    Outputs that are not live are excluded. Shape (B,), 0 or more, in nats; 0 if the set is empty.
    """
    lowest = torch.finfo(student_BN.dtype).min
    # Finite, because a teacher probability of 0 would give 0 x infinity.
    log_q_BN = teacher_BN.detach().masked_fill(~live_BN, lowest).clamp(min=lowest).log_softmax(-1)
    log_p_BN = student_BN.masked_fill(~live_BN | (student_BN == -torch.inf), lowest).log_softmax(-1)
    return (log_q_BN.exp() * (log_q_BN - log_p_BN)).masked_fill(~live_BN, 0.0).sum(-1)


def distillation_objective(teacher: StepModel, *, k: int) -> Objective:
    """Distil a local model into a global one: ``KL(q || p)`` over the outputs of both, per token; no schedule.

    Let S be the k best outputs of the teacher's beam and the k best of the student's, by raw scores. Then

        q(y) = p_teacher(y) / sum over S of p_teacher,    p(y) = exp s(y) / sum over S of exp s,

    where ``s(y) = sum_t f(h_t, y_t)`` is the student's raw score. From the teacher's outputs alone, the student would
    not learn which outputs it wrongly scores above them. This hardly matters if all outputs have the same length. If
    lengths vary, raw scores initialised from a local model prefer outputs of very different lengths, which the
    teacher's beam never contains; these have almost no mass under q, and are pushed down. Gold is not in the set unless
    a beam finds it: the teacher is the target, and only the sources and the lengths of gold outputs are used.

    *Limits.* If the beams contain every output, this is the exact KL divergence between the teacher's distribution and
    the student's globally normalised one. *Fixed point.* A student whose raw scores are the teacher's
    log-probabilities, ``f - log Z`` (plus any constant for each input), has loss 0 for any set.

    The teacher keeps its mode (call ``eval()`` to switch off its dropout) and is never changed.

    Source: named as future work by Goyal et al. (NAACL 2019), section 6; sequence-level distillation with k-best lists:
    Kim and Rush (EMNLP 2016), section 3.2. Not implemented: a teacher with another vocabulary.
    """
    require_beam_size(k)

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        _, num_steps_B = search_targets(batch, model.end)
        with torch.no_grad():
            teacher_context = teacher.encode(batch)
            teacher_outputs = beam_outputs(teacher, teacher_context, k=k, num_steps_B=num_steps_B, score=local)
            student_outputs = beam_outputs(model, context, k=k, num_steps_B=num_steps_B, score=global_)
            outputs_BNT, live_BN = _union(teacher_outputs, student_outputs, model.end)
            teacher_BN = output_scores(teacher, teacher_context, outputs_BNT, local)
        return distillation_loss(teacher_BN, output_scores(model, context, outputs_BNT, global_), live_BN)

    return per_token_objective(loss, cross_entropy_weight=0.0)


def _union(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], end: int | None) -> tuple[Tensor, Tensor]:
    """Concatenate two lists of outputs, (B, N, T); outputs of the second that are in the first are not live."""
    (first_BKT, first_live_BK), (second_BKT, second_live_BK) = first, second
    same_BKK = (cut_at_end(second_BKT, end)[:, :, None] == cut_at_end(first_BKT, end)[:, None]).all(-1)
    repeated_BK = (same_BKK & first_live_BK[:, None]).any(-1)
    live_BN = torch.cat([first_live_BK, second_live_BK & ~repeated_BK], dim=1)
    return torch.cat([first_BKT, second_BKT], dim=1), live_BN
