"""Rescoring of beam outputs: search without gradients, then score all outputs at once with gradients.

Shapes: B batch, K hypotheses, T steps, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqwise import tree
from seqwise.data.batches import IGNORE
from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.likelihood import gold_scores
from seqwise.search.beam import Beam, backtrace, beam_search, search_steps
from seqwise.search.candidates import Score, as_score
from seqwise.search.commits import COMMITTED, CommitRule, Committing
from seqwise.search.language import allowed_logits, language_of
from seqwise.search.selectors import HardTopK


@torch.no_grad()
def beam_outputs(
    model: StepModel, context: Any, *, k: int, num_steps_B: Tensor, score: Score | ScoreName
) -> tuple[Tensor, Tensor]:
    """Find the final outputs of a hard beam without gradients.

    Returns ``outputs_BKT``, int64, continued by end tokens, negative beyond an input's steps; the live outputs of an
    input are distinct. ``live_BK`` is false for missing outputs if there are fewer than k, which are negative.
    """
    beam = beam_search(model, context, HardTopK(k), num_steps=num_steps_B, score=score)
    live_BK = beam.scores_BK > -torch.inf
    # Missing outputs may begin with any token, and a model that forces its first token refuses to score another.
    return backtrace(beam).masked_fill(~live_BK[..., None], IGNORE), live_BK


@torch.no_grad()
def outputs_until_wrong(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    k: int,
    num_steps_B: Tensor,
    score: Score | ScoreName,
    commit: CommitRule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the outputs of a hard beam that commits labels, up to the step that commits one that is not gold.

    Returns ``gold_BT``, cut there, and ``outputs_BKT`` and ``live_BK``, as :func:`beam_outputs` does. If no wrong label
    is committed, these are the complete outputs that agree with the committed labels; otherwise, they are the prefixes
    that agree with the wrong label, so gold is not among them. For models without an end token.
    """
    steps_B, beam = num_steps_B.clone(), Beam.start(model, context)
    selector = Committing(HardTopK(k), commit)
    steps = search_steps(model, context, selector, num_steps=steps_B, score=score)
    for done, step in enumerate(steps, start=1):
        beam, committed_BT = step.beam, step.carry.committed_BT
        open_BT = gold_BT[:, done - committed_BT.shape[1] : done]
        wrong_B = ((committed_BT != COMMITTED) & (committed_BT != open_BT)).any(1)
        steps_B.masked_fill_(wrong_B & (steps_B > done), done)  # ends the search of these inputs
        if not bool((steps_B > done).any()):
            break
    outputs_BKT = backtrace(beam)
    gold_BT = gold_BT[:, : outputs_BKT.shape[2]]
    beyond_BT = torch.arange(gold_BT.shape[1], device=gold_BT.device) >= steps_B[:, None]
    return gold_BT.masked_fill(beyond_BT, IGNORE), outputs_BKT, beam.scores_BK > -torch.inf


def cut_at_end(outputs: Tensor, end: int | None) -> Tensor:
    """Replace everything after the first end token, and all negative values, by -100."""
    ignored = outputs < 0
    if end is not None:
        is_end = (outputs == end).long()
        ignored = ignored | (is_end.cumsum(-1) - is_end > 0)
    return outputs.masked_fill(ignored, IGNORE)


def output_scores(
    model: StepModel,
    context: Any,
    outputs_BKT: Tensor,
    score: Score | ScoreName,
    *,
    num_steps_B: Tensor | None = None,
) -> Tensor:
    """Score every output, ``s(y) = sum_t score(f(h_t, .))[y_t]``, in one teacher-forced batch of B K rows: (B, K).

    Tokens after the end token and negative ones are ignored. Not implemented: versions that never hold all B K T V
    scores.

    In a language, a renormalised score sums over the tokens after which an output can be finished in ``num_steps_B``.
    """
    score, language = as_score(score), language_of(model)
    targets_NT = cut_at_end(outputs_BKT, model.end).flatten(0, 1)
    features_NTH = model.teacher_forced(_repeated(context, *outputs_BKT.shape[:2]), targets_NT)
    logits_NTV = at_least_float32(model.head(features_NTH))
    if language is not None and score.over == "allowed":
        num_steps_N = None if num_steps_B is None else num_steps_B.repeat_interleave(outputs_BKT.shape[1])
        logits_NTV = allowed_logits(logits_NTV, targets_NT, language, num_steps=num_steps_N)
    return gold_scores(logits_NTV, targets_NT, score).view(outputs_BKT.shape[:2])


def _repeated(context: Any, num_inputs: int, times: int) -> Any:
    """Repeat each row of every tensor: (B, ...) to (B K, ...)."""

    def repeat(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (int, float, str)):
            return leaf
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (num_inputs,):
            is_tensor = isinstance(leaf, Tensor)
            what = f"a tensor of shape {list(leaf.shape)}" if is_tensor else f"an object of type {type(leaf).__name__}"
            problem = f"the encoded sources hold {what}, which has no row for each of the {num_inputs} inputs"
            hint = "encode() must return tuples, lists or dicts of tensors (B, ...); keep others in the model"
            raise InputError(problem, hint=hint)
        return leaf.repeat_interleave(times, dim=0)

    return tree.map(repeat, context)
