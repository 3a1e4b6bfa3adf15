"""Mask-Predict: all free positions filled at once, then the least certain ones masked and filled again.

Shapes: B sequences, T positions, V vocabulary, M masked positions in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import MAX_ROWS, joint_logits


class Refinement(NamedTuple):
    """State of an iteration.

    Attributes:
        masked_BT: bool, the positions that were filled in it; none where a sequence was left alone.
        tokens_BT: int64, all of them.
        log_probs_BT: float64, what each token had when it was last filled in; plus infinity where nothing is free.
    """

    masked_BT: Tensor
    tokens_BT: Tensor
    log_probs_BT: Tensor


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
    """The iterations of :func:`refine`, one after another; arguments and errors are the same.

    Example:
        >>> from seqwise.sampling import table_model
        >>> model, free_BT = table_model(num_positions=4, vocab_size=3), torch.ones(1, 4).bool()
        >>> steps = refinements(model, torch.zeros(1, 4).long(), free_BT, num_iterations=4)
        >>> [int(step.masked_BT.sum()) for step in steps]
        [4, 3, 2, 1]
    """
    if num_iterations < 1:
        raise InputError(f"Mask-Predict needs at least 1 iteration, got {num_iterations}")
    log_probs_BT = torch.zeros_like(tokens_BT, dtype=torch.float64).masked_fill(~free_BT, torch.inf)
    for iteration in range(num_iterations):
        count_B1 = free_BT.sum(1, keepdim=True) * (num_iterations - iteration) // num_iterations
        # The rank of each position by certainty; the fixed ones, at plus infinity, come last.
        rank_BT = log_probs_BT.argsort(dim=1, stable=True).argsort(1)
        masked_BT = free_BT & (rank_BT < count_B1)
        if bool(masked_BT.any()):
            logits_MV = joint_logits(model, tokens_BT, masked_BT, context=context, max_rows=max_rows).double()
            if allowed_V is not None:
                logits_MV = logits_MV.masked_fill(~allowed_V.to(logits_MV.device), -torch.inf)
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
    """Fill the free positions as :func:`~seqwise.sampling.kernels.mask_predict` does, without an energy.

    Args:
        model: a masked model in evaluation mode.
        tokens_BT: int64; what stands at free positions plays no part.
        free_BT: bool.
        num_iterations: N; iteration i masks ``F (N - i) // N`` of the F free positions, the least certain ones.
        context: None, or a nest of tensors whose first dimension is B.
        allowed_V: bool, the tokens that may be filled in; all by default.
        max_rows: how many sequences the model is given at once.

    Returns:
        The tokens, and at each free position the log-probability that its token had when it was last filled in, over
        the allowed tokens, float64 (B, T); 0 at the others. One pass an iteration.

    Raises:
        InputError: there is no iteration.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4.

    Example:
        >>> from seqwise.sampling import table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> tokens_BT, log_probs_BT = refine(model, torch.zeros(1, 3).long(), torch.ones(1, 3).bool(), num_iterations=2)
        >>> tokens_BT.shape, bool((log_probs_BT < 0).all())
        (torch.Size([1, 3]), True)
    """
    options: dict[str, Any] = {"num_iterations": num_iterations, "context": context, "allowed_V": allowed_V}
    options |= {"max_rows": max_rows}
    for refinement in refinements(model, tokens_BT, free_BT, **options):
        tokens_BT, log_probs_BT = refinement.tokens_BT, refinement.log_probs_BT
    return tokens_BT, log_probs_BT.masked_fill(~free_BT, 0.0)
