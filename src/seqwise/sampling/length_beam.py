"""Mask-Predict where the length is not known: several lengths for each input, and the best of what they lead to.

Shapes: B inputs, K lengths of each, L the greatest length, N (input, length) pairs of one length T, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import MAX_ROWS, rows_of
from seqwise.sampling.refinement import refine


class LengthContext(Protocol):
    """Encoding of B inputs, with a guess of how long the output is.

    Attributes:
        length_log_probs_BL: the log-probability of length l at index l - 1, l = 1 .. L.
    """

    @property
    def length_log_probs_BL(self) -> Tensor:
        """See above."""
        ...


class LengthPrediction(NamedTuple):
    """The best output for one input.

    Attributes:
        tokens: int64 (length,).
        log_prob: the mean log-probability of its tokens, each as it was when the token was last filled in.
        length: how many tokens there are.
    """

    tokens: Tensor
    log_prob: float
    length: int


def likeliest_lengths(
    length_log_probs_BL: Tensor, *, beam: int, shortest: int = 1, longest: int | None = None
) -> Tensor:
    """The lengths of the highest probability for each input, the likeliest first; of two alike the shorter one first.

    Args:
        length_log_probs_BL: length l at index l - 1.
        beam: how many; all there are, where there are fewer.
        shortest: lengths below are left out.
        longest: lengths above are left out; None: none.

    Returns:
        int64 (B, K), K = min(beam, M - shortest + 1), where M is the lesser of L and the longest.

    Raises:
        InputError: the beam is less than 1, or no length is left.

    Example:
        >>> likeliest_lengths(torch.tensor([[0.1, 0.2, 0.4, 0.3]]).log(), beam=2)
        tensor([[3, 4]])
    """
    greatest = length_log_probs_BL.shape[1]
    if beam < 1:
        raise InputError(f"a length beam needs at least 1 length, got {beam}")
    if not 1 <= shortest <= min(greatest, greatest if longest is None else longest):
        asked = f"at least {shortest} tokens" if longest is None else f"{shortest} to {longest}"
        raise InputError(f"the model knows lengths from 1 to {greatest}, and {asked} are asked for")
    order_BL = length_log_probs_BL[:, shortest - 1 : longest].argsort(dim=1, descending=True, stable=True)
    return order_BL[:, :beam] + shortest


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
    """Mask-Predict with each of the likeliest lengths of each input; the best by the mean log-probability of a token.

    ``argmax_l 1/l sum_t log p(y_t)`` over the ``beam`` likeliest lengths l, with p as in :func:`refine`. Of two alike,
    the one of the likelier length is taken. All pairs of one length are refined together, without padding.

    Args:
        model: a masked model in evaluation mode.
        context: of B inputs: a nest of tensors whose first dimension is B, with the distribution of the length.
        beam: how many lengths.
        num_iterations: of Mask-Predict, for each length.
        allowed_V: bool, the tokens that may be filled in; all by default.
        shortest: lengths below are left out.
        max_rows: how many sequences the model is given at once.

    Returns:
        One prediction for each input, in their order.

    Raises:
        InputError: as :func:`likeliest_lengths` and :func:`refine`.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4 and its end on the length.

    Example:
        >>> from seqwise.models import ConditionalMaskedTransformer
        >>> model = ConditionalMaskedTransformer(source_size=7, vocab_size=5, max_length=9, hidden_size=8, num_heads=2)
        >>> context = model.eval().encode(torch.tensor([[6, 2, 1]]), torch.tensor([3]))
        >>> (best,) = predict_with_lengths(model, context, beam=3, num_iterations=2)
        >>> len(best.tokens) == best.length
        True
    """
    if max_rows < 1:
        raise InputError(f"the number of rows that a model is given at once must be at least 1, got {max_rows}")
    lengths_BK = likeliest_lengths(context.length_log_probs_BL, beam=beam, shortest=shortest)
    found: dict[tuple[int, int], LengthPrediction] = {}
    for length in lengths_BK.unique().tolist():
        inputs_N, ranks_N = (lengths_BK == length).nonzero(as_tuple=True)
        for first in range(0, len(inputs_N), max_rows):
            rows_N = inputs_N[first : first + max_rows]
            free_NT = torch.ones(len(rows_N), length, dtype=torch.bool, device=rows_N.device)
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
                found[pair] = LengthPrediction(tokens_T, mean, length)
    ranks = range(lengths_BK.shape[1])
    # max keeps the first of equals, and the ranks are in the order of the lengths' probabilities.
    return [max((found[row, rank] for rank in ranks), key=lambda one: one.log_prob) for row in range(len(lengths_BK))]
