"""Mask-Predict over several lengths of each output, of which the best is kept.

Shapes: B inputs, T positions, V vocabulary, K lengths of each input, L the greatest length, N (input, length) pairs of
one length T.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import MAX_ROWS, checked_rows, rows_of
from seqwise.sampling.refinement import likeliest_lengths, refine


class LengthContext(Protocol):
    """Encoding of B inputs, with a distribution of the output length."""

    @property
    def length_log_probs_BL(self) -> Tensor:
        """Log-probability of length l at index l - 1, l = 1 .. L."""
        ...


class LengthPrediction(NamedTuple):
    """Best output for one input."""

    tokens: Tensor
    log_prob: float  # mean over its tokens, each when it was last filled in
    length: int


@torch.no_grad()
def predict_with_lengths(
    model: MaskedModel,
    context: LengthContext,
    *,
    beam: int,
    num_iterations: int,
    allowed_V: Tensor | None = None,
    shortest: int = 1,
    max_rows: int = MAX_ROWS,
) -> list[LengthPrediction]:
    """Run Mask-Predict with the likeliest lengths of each input; return the best by mean log-probability per token.

    ``argmax_l 1/l sum_t log p(y_t)`` over the ``beam`` likeliest lengths l, with p as in ``refine``. Ties go to the
    likelier length. All pairs of one length are refined together, without padding.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4.
    """
    max_rows = checked_rows(max_rows)
    lengths_BK = likeliest_lengths(context.length_log_probs_BL.cpu(), beam=beam, shortest=shortest)
    predictions: dict[tuple[int, int], LengthPrediction] = {}
    for length in lengths_BK.unique().tolist():
        inputs_N, ranks_N = (lengths_BK == length).nonzero(as_tuple=True)
        for first in range(0, len(inputs_N), max_rows):
            rows_N = inputs_N[first : first + max_rows]
            free_NT = torch.ones(len(rows_N), length, dtype=torch.bool)
            tokens_NT, log_probs_NT = refine(
                model,
                torch.zeros_like(free_NT, dtype=torch.int64),
                free_NT,
                num_iterations=num_iterations,
                context=rows_of(context, rows_N),
                allowed_V=allowed_V,
                max_rows=max_rows,
            )
            pairs = zip(rows_N.tolist(), ranks_N[first : first + max_rows].tolist(), strict=True)
            means = log_probs_NT.mean(1).tolist()
            for pair, tokens_T, mean in zip(pairs, tokens_NT, means, strict=True):
                predictions[pair] = LengthPrediction(tokens_T, mean, length)
    ranks = range(lengths_BK.shape[1])
    # max keeps the first of equals, and the ranks are in the order of the lengths' probabilities.
    return [
        max((predictions[row, rank] for rank in ranks), key=lambda prediction: prediction.log_prob)
        for row in range(len(lengths_BK))
    ]
