"""Complete outputs of a beam, and their scores with gradients: search without a graph, then score everything at once.

Shapes: B batch, K hypotheses, T steps, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqwise import tree
from seqwise.data.batches import IGNORE
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.objectives.likelihood import gold_scores
from seqwise.search.beam import backtrace, beam_search
from seqwise.search.candidates import Score
from seqwise.search.selectors import HardTopK


@torch.no_grad()
def beam_outputs(
    model: StepModel, context: Any, *, k: int, num_steps_B: Tensor, score: Score | ScoreName
) -> tuple[Tensor, Tensor]:
    """The outputs that a hard beam ends with, found without gradients.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        k: size of the beam.
        num_steps_B: int64, how many steps each input takes.
        score: what the search ranks by.

    Returns:
        ``outputs_BKT``, int64, ended ones continued by end tokens, negative beyond an input's steps; all of an input's
        live outputs differ. ``live_BK``: false where there were fewer outputs than k.

    Raises:
        InputError: k is less than 1.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import global_
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> context = model.encode(collate([(0, EncodedExample((1, 2), ())), (1, EncodedExample((4,), ()))]))
        >>> outputs_BKT, live_BK = beam_outputs(model, context, k=4, num_steps_B=context.lengths_B, score=global_)
        >>> outputs_BKT.shape, live_BK.sum(1)
        (torch.Size([2, 4, 2]), tensor([4, 3]))
    """
    beam = beam_search(model, context, HardTopK(k), num_steps=num_steps_B, score=score)
    return backtrace(beam), beam.scores_BK > -torch.inf


def cut_at_end(outputs: Tensor, end: int | None) -> Tensor:
    """Ignore what follows the first end token, and whatever is negative.

    Args:
        outputs: int64, (..., T).
        end: id of the end token, or None.

    Returns:
        The same shape; ignored entries are -100.

    Example:
        >>> cut_at_end(torch.tensor([[5, 0, 0], [4, 3, -1]]), end=0)
        tensor([[   5,    0, -100],
                [   4,    3, -100]])
    """
    ignored = outputs < 0
    if end is not None:
        is_end = (outputs == end).long()
        ignored = ignored | (is_end.cumsum(-1) - is_end > 0)
    return outputs.masked_fill(ignored, IGNORE)


def output_scores(model: StepModel, context: Any, outputs_BKT: Tensor, score: Score | ScoreName) -> Tensor:
    """The score of every output, ``s(y) = sum_t score(f(h_t, .))[y_t]``, in one teacher-forced batch of B K rows.

    Args:
        model: a step model.
        context: what ``model.encode`` returned: tensors, in any nest, that start with the batch dimension.
        outputs_BKT: int64; what follows the end token counts for nothing, nor does what is negative.
        score: local, global or between.

    Returns:
        (B, K), with gradients, float32 or better.

    Not implemented: forms that never hold the scores of all B K T V tokens.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import local
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> context = model.encode(collate([(0, EncodedExample((1, 2), ()))]))
        >>> every = torch.tensor([[[0, 0], [0, 1], [1, 0], [1, 1]]])
        >>> round(output_scores(model, context, every, local).exp().sum().item(), 4)
        1.0
    """
    targets_NT = cut_at_end(outputs_BKT, model.end).flatten(0, 1)
    logits_NTV = model.head(model.teacher_forced(_repeated(context, outputs_BKT.shape[1]), targets_NT))
    logits_NTV = logits_NTV.to(torch.promote_types(logits_NTV.dtype, torch.float32))
    return gold_scores(logits_NTV, targets_NT, score).view(outputs_BKT.shape[:2])


def _repeated(context: Any, times: int) -> Any:
    """Each row of every tensor so many times in turn: (B, ...) to (B K, ...)."""

    def repeat(leaf: Any) -> Any:
        return leaf.repeat_interleave(times, dim=0) if isinstance(leaf, Tensor) else leaf

    return tree.map(repeat, context)
