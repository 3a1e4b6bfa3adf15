"""Mask-Predict with several lengths for each output, of which the best is kept.

Shapes: T positions, V vocabulary, K lengths of each input, N (input, length) pairs of one length T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import rows_of
from seqwise.sampling.refinement import likeliest_lengths, refine


class LengthPrediction(NamedTuple):
    """Best output for one input."""

    tokens: Tensor
    log_prob: float  # mean over its tokens, each when it was last filled in


@torch.no_grad()
def predict_with_lengths(
    model: MaskedModel, context: Any, *, beam: int, num_iterations: int, allowed_V: Tensor | None = None
) -> list[LengthPrediction]:
    """Run Mask-Predict with the likeliest lengths of each input; return the best by mean log-probability per token.

    ``argmax_l 1/l sum_t log p(y_t)`` over the ``beam`` likeliest lengths l, with p as in ``refine``. Ties go to the
    likelier length. All pairs of one length are refined together, without padding. The context is an encoding of all
    inputs, with ``length_log_probs_BL``.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4.
    """
    lengths_BK = likeliest_lengths(context.length_log_probs_BL.cpu(), beam=beam)
    predictions: dict[tuple[int, int], LengthPrediction] = {}
    for length in lengths_BK.unique().tolist():
        rows_N, ranks_N = (lengths_BK == length).nonzero(as_tuple=True)
        masks_NT, free_NT = torch.zeros(len(rows_N), length).long(), torch.ones(len(rows_N), length).bool()
        own = rows_of(context, rows_N)
        filled = refine(model, masks_NT, free_NT, num_iterations=num_iterations, context=own, allowed_V=allowed_V)
        for row, rank, tokens_T, log_probs_T in zip(rows_N.tolist(), ranks_N.tolist(), *filled, strict=True):
            predictions[row, rank] = LengthPrediction(tokens_T, log_probs_T.mean().item())
    rows, ranks = map(range, lengths_BK.shape)
    # max keeps the first of ties, and ranks are in the order of the lengths' probabilities.
    return [max((predictions[row, rank] for rank in ranks), key=lambda each: each.log_prob) for row in rows]
