"""Mask-Predict: fill all free positions at once, then repeatedly mask and refill the least certain ones.

Shapes: B sequences or inputs, T positions, V vocabulary, M masked positions in all sequences, K lengths of each input,
L the greatest length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import MAX_ROWS, joint_logits, require_allowed


def require_iterations(num_iterations: int) -> None:
    """Raise an InputError for a decoder without iterations."""
    if num_iterations < 1:
        raise InputError(f"a decoder needs at least 1 iteration, got {num_iterations}")


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
    require_iterations(num_iterations)
    require_allowed(allowed_V, model.vocab_size)
    tokens_BT, free_BT = tokens_BT.cpu(), free_BT.cpu()
    log_probs_BT = torch.zeros_like(tokens_BT, dtype=torch.float64).masked_fill(~free_BT, torch.inf)
    for iteration in range(num_iterations):
        count_B1 = free_BT.sum(1, keepdim=True) * (num_iterations - iteration) // num_iterations
        # Rank of each position by certainty; fixed positions, at plus infinity, come last.
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
    *_, last = refinements(
        model,
        tokens_BT,
        free_BT,
        num_iterations=num_iterations,
        context=context,
        allowed_V=allowed_V,
        max_rows=max_rows,
    )
    return last.tokens_BT, last.log_probs_BT.masked_fill(~free_BT.cpu(), 0.0)


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
