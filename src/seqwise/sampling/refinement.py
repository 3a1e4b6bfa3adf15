"""Mask-Predict: fill all free positions at once, then repeatedly mask and refill the least certain ones.

If the length is unknown, it tries several lengths for each input.

Shapes: B sequences or inputs, T positions, V vocabulary, M masked positions in all sequences, K lengths of each input,
L the greatest length, N (input, length) pairs of one length T.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import MAX_ROWS, checked_rows, joint_logits, rows_of


class Refinement(NamedTuple):
    """State after an iteration."""

    masked_BT: Tensor  # bool, the positions that were filled in it
    tokens_BT: Tensor
    log_probs_BT: Tensor  # float64, of each token when it was last filled in; infinite where nothing is free


@torch.no_grad()
def refinements(
    model: MaskedModel,
    tokens_BT: Tensor,
    free_BT: Tensor,
    *,
    num_iterations: int,
    context: Any = None,
    allowed_V: Tensor | None = None,
    max_rows: int = MAX_ROWS,
) -> Iterator[Refinement]:
    """Yield the iterations of :func:`refine`, with the same arguments and errors.

    Example:
        >>> from seqwise.sampling import table_model
        >>> model, free_BT = table_model(num_positions=4, vocab_size=3), torch.ones(1, 4).bool()
        >>> steps = refinements(model, torch.zeros(1, 4).long(), free_BT, num_iterations=4)
        >>> [int(step.masked_BT.sum()) for step in steps]
        [4, 3, 2, 1]
    """
    if num_iterations < 1:
        raise InputError(f"Mask-Predict needs at least 1 iteration, got {num_iterations}")
    tokens_BT, free_BT = tokens_BT.cpu(), free_BT.cpu()
    log_probs_BT = torch.zeros_like(tokens_BT, dtype=torch.float64).masked_fill(~free_BT, torch.inf)
    for iteration in range(num_iterations):
        count_B1 = free_BT.sum(1, keepdim=True) * (num_iterations - iteration) // num_iterations
        # The rank of each position by certainty; the fixed ones, at plus infinity, come last.
        rank_BT = log_probs_BT.argsort(dim=1, stable=True).argsort(1)
        masked_BT = free_BT & (rank_BT < count_B1)
        if bool(masked_BT.any()):
            logits_MV = joint_logits(model, tokens_BT, masked_BT, context=context, max_rows=max_rows).cpu().double()
            if allowed_V is not None:
                logits_MV = logits_MV.masked_fill(~allowed_V.cpu(), -torch.inf)
            best_M, tokens_M = logits_MV.log_softmax(-1).max(-1)
            tokens_BT = tokens_BT.masked_scatter(masked_BT, tokens_M)
            log_probs_BT = log_probs_BT.masked_scatter(masked_BT, best_M)
        yield Refinement(masked_BT, tokens_BT, log_probs_BT)


def refine(
    model: MaskedModel,
    tokens_BT: Tensor,
    free_BT: Tensor,
    *,
    num_iterations: int,
    context: Any = None,
    allowed_V: Tensor | None = None,
    max_rows: int = MAX_ROWS,
) -> tuple[Tensor, Tensor]:
    """Fill the free positions like :func:`~seqwise.sampling.kernels.mask_predict`, without an energy.

    Returns the tokens, and the log-probability of each, over the allowed tokens, when it was last filled in, float64
    (B, T), 0 at positions that are not free; both on the CPU. Iteration i of N masks ``F (N - i) // N`` of the F free
    positions, the least certain ones.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4.
    """
    steps = refinements(
        model,
        tokens_BT,
        free_BT,
        num_iterations=num_iterations,
        context=context,
        allowed_V=allowed_V,
        max_rows=max_rows,
    )
    for refinement in steps:
        tokens_BT, log_probs_BT = refinement.tokens_BT, refinement.log_probs_BT
    return tokens_BT, log_probs_BT.masked_fill(~free_BT.cpu(), 0.0)


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


def likeliest_lengths(
    length_log_probs_BL: Tensor, *, beam: int, shortest: int = 1, longest: int | None = None
) -> Tensor:
    """Return the most probable lengths for each input, likeliest first; ties go to the shorter one.

    int64 (B, K), K = min(beam, M - shortest + 1), with M the smaller of L and the longest.

    Example:
        >>> likeliest_lengths(torch.tensor([[0.1, 0.2, 0.4, 0.3]]).log(), beam=2)
        tensor([[3, 4]])
    """
    greatest = length_log_probs_BL.shape[1]
    if beam < 1:
        raise InputError(f"a length beam needs at least 1 length, got {beam}")
    if not 1 <= shortest <= min(greatest, greatest if longest is None else longest):
        asked = f"at least {shortest} tokens" if longest is None else f"{shortest} to {longest}"
        raise InputError(f"the model has lengths from 1 to {greatest}, not {asked}")
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
    """Run Mask-Predict with the likeliest lengths of each input; return the best by mean log-probability per token.

    ``argmax_l 1/l sum_t log p(y_t)`` over the ``beam`` likeliest lengths l, with p as in :func:`refine`. Ties go to the
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
