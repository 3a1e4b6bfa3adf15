"""Objectives of masked language models: cross-entropy of randomly masked tokens.

Shapes: N rows, T positions of the longest row (``IGNORE`` after the end of shorter ones), B batch, S source length,
M masked positions of all rows, V vocabulary, L greatest length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import IGNORE, Batch
from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.objectives.likelihood import cross_entropy
from seqwise.objectives.objective import Mean, Objective, SumOfMeans


def masked_cross_entropy(model: MaskedModel, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
    """Compute the mean loss of masked tokens, ``mean_(t in M) -log softmax(f(., h(y\\M)))[y_t]``, in nats.

    The masked positions M of a row are also hidden from each other; the mean is over all rows together.

    Args:
        model: a masked model.
        tokens_NT: int64, ``IGNORE`` after the end of shorter rows.
        masked_NT: bool.
        context: the context of each row, or None.

    Returns:
        A scalar.

    Raises:
        InputError: nothing is masked, the model does not score a masked token, or the model refuses its inputs.

    Source: Devlin et al. (NAACL 2019), section 3.1. Not implemented: predicting tokens that are kept or replaced by
    random ones.

    Example:
        >>> from seqwise.models import MaskedLSTM
        >>> model = MaskedLSTM(vocab_size=5, embedding_size=4, hidden_size=8, feedforward_size=8)
        >>> tokens_NT = torch.tensor([[0, 3, 2], [4, IGNORE, IGNORE]])
        >>> masked_cross_entropy(model, tokens_NT, mask_one(tokens_NT)).shape
        torch.Size([])
    """
    logits_MV = model.masked_logits(tokens_NT, masked_NT, context)
    hidden_M = tokens_NT[masked_NT]
    if len(hidden_M) == 0:
        raise InputError("no position is masked, so there is nothing to predict", hint="mask at least one position")
    unknown_M = (hidden_M < 0) | (hidden_M >= model.vocab_size)
    if bool(unknown_M.any()):
        raise InputError(
            f"a masked position holds {int(hidden_M[unknown_M][0])}, which is not one of the {model.vocab_size} tokens",
            hint=f"use 0 to {model.vocab_size - 1}",
        )
    return cross_entropy(logits_MV, hidden_M)


def mask_uniformly(tokens_NT: Tensor) -> Tensor:
    """Mask a uniform number of positions: ``n ~ U{1 .. length}``, then n random positions.

    Uses torch's global generator, like dropout.

    Args:
        tokens_NT: int64, ``IGNORE`` after the end of shorter rows, where nothing is masked.

    Returns:
        ``masked_NT``, bool.

    Source: Ghazvininejad et al. (EMNLP 2019), section 2.2.

    Example:
        >>> bool(mask_uniformly(torch.tensor([[1, 2, 3], [1, IGNORE, IGNORE]]))[1, 0])
        True
    """
    lengths_N1 = (tokens_NT != IGNORE).sum(1, keepdim=True)
    # 1 + floor(u length); the product cannot be rounded up to the length, since u is at most 1 - 2^-24.
    counts_N1 = 1 + (torch.rand(lengths_N1.shape, device=tokens_NT.device) * lengths_N1).long()
    return (_ranks(_draws(tokens_NT)) < counts_N1) & (tokens_NT != IGNORE)


def mask_fraction(tokens_NT: Tensor, *, fraction: float) -> Tensor:
    """Mask each position with a given probability, and at least one in each row.

    With ``u_t ~ U[0, 1)``, all t with ``u_t < fraction`` are masked, and the t with the smallest u_t. In a row of
    length l, each position is masked with probability ``fraction + (1 - fraction)^l / l``. Uses torch's global
    generator.

    Args:
        tokens_NT: int64, ``IGNORE`` after the end of shorter rows, where nothing is masked.
        fraction: greater than 0, at most 1.

    Returns:
        ``masked_NT``, bool.

    Raises:
        InputError: the fraction is out of range.

    Source: Devlin et al. (NAACL 2019), section 3.1, with 0.15.

    Example:
        >>> mask_fraction(torch.tensor([[1, 2, 3], [1, IGNORE, IGNORE]]), fraction=1.0)
        tensor([[ True,  True,  True],
                [ True, False, False]])
    """
    if not 0 < fraction <= 1:
        raise InputError(
            f"the fraction of masked positions must be greater than 0 and at most 1, got {fraction}",
            hint="use mask_one for a single position of each row",
        )
    draws_NT = _draws(tokens_NT)
    return ((draws_NT < fraction) | (_ranks(draws_NT) == 0)) & (tokens_NT != IGNORE)


def mask_one(tokens_NT: Tensor) -> Tensor:
    """Mask exactly one uniformly drawn position of each row.

    Energies and pseudo-log-likelihoods also mask one token at a time. Uses torch's global generator.

    Args:
        tokens_NT: int64, ``IGNORE`` after the end of shorter rows, where nothing is masked.

    Returns:
        ``masked_NT``, bool.

    Source: Goyal's thesis (2021), section 6.2.

    Example:
        >>> mask_one(torch.tensor([[1, 2, 3], [1, IGNORE, IGNORE]])).sum(1)
        tensor([1, 1])
    """
    return (_ranks(_draws(tokens_NT)) == 0) & (tokens_NT != IGNORE)


def masked_objective(masks: Callable[[Tensor], Tensor]) -> Objective:
    """Make an objective: masked cross-entropy of the targets, masked anew at every step; uses no schedule.

    Args:
        masks: tokens (N, T) to ``masked_NT``: :func:`mask_uniformly`, :func:`mask_one`, or
            ``functools.partial(mask_fraction, fraction=0.15)``.

    Returns:
        An objective for masked models without context; the sources of the batch are ignored.

    Raises:
        InputError: when called, as :func:`masked_cross_entropy`.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import MaskedLSTM
        >>> model = MaskedLSTM(vocab_size=5, embedding_size=4, hidden_size=8, feedforward_size=8)
        >>> batch = collate([EncodedExample((0,), (1, 4)), EncodedExample((0,), (2,))])
        >>> masked_objective(mask_uniformly)(model, batch, {}).requires_grad
        True
    """

    def means(model: Any, batch: Batch, values: Mapping[str, float]) -> list[Mean]:
        masked_BT = masks(batch.targets_BT)
        return [Mean(masked_cross_entropy(model, batch.targets_BT, masked_BT), masked_BT.sum())]

    return SumOfMeans(means)


def conditional_masked_objective(masks: Callable[[Tensor], Tensor], *, length_weight: float = 1.0) -> Objective:
    """Make an objective: conditional masked cross-entropy plus ``length_weight * mean_b -log p(length_b | x_b)``.

    Uses no schedule.

    Args:
        masks: as for :func:`masked_objective`.
        length_weight: 0 or more, finite.

    Returns:
        An objective for a :class:`~seqwise.models.conditional.ConditionalMaskedTransformer`.

    Raises:
        InputError: the weight is out of range; when called, as :func:`masked_cross_entropy`, or if a target is empty or
            longer than the model's ``max_length``.

    Source: Ghazvininejad et al. (EMNLP 2019), sections 2.2 and 2.3, where the weight is 1.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import ConditionalMaskedTransformer
        >>> model = ConditionalMaskedTransformer(source_size=7, vocab_size=5, max_length=9, hidden_size=8, num_heads=2)
        >>> batch = collate([EncodedExample((6, 2), (1, 4)), EncodedExample((3,), (2,))])
        >>> conditional_masked_objective(mask_uniformly)(model, batch, {}).requires_grad
        True
    """
    if not 0 <= length_weight < math.inf:
        raise InputError(f"length_weight must be 0 or more and finite, got {length_weight}")

    def means(model: Any, batch: Batch, values: Mapping[str, float]) -> list[Mean]:
        context = model.encode(batch.sources_BS, batch.source_lengths_B)
        length_loss = _length_cross_entropy(context.length_log_probs_BL, batch.target_lengths_B)
        masked_BT = masks(batch.targets_BT)
        token_loss = masked_cross_entropy(model, batch.targets_BT, masked_BT, context)
        rows = torch.tensor(len(batch), device=masked_BT.device)
        return [Mean(token_loss, masked_BT.sum()), Mean(length_weight * length_loss, rows)]

    return SumOfMeans(means)


def _length_cross_entropy(length_log_probs_BL: Tensor, lengths_B: Tensor) -> Tensor:
    max_length = length_log_probs_BL.shape[1]
    shortest, longest = (int(length) for length in lengths_B.aminmax())
    if longest > max_length:
        raise InputError(
            f"a target of {longest} tokens is longer than the model's max_length {max_length}",
            hint=f"give the model a max_length of at least {longest}, or leave such targets out",
        )
    if shortest < 1:
        raise InputError("a target is empty", hint="leave such examples out")
    return -length_log_probs_BL.gather(1, lengths_B[:, None] - 1).mean()


def _draws(tokens_NT: Tensor) -> Tensor:
    """Draw a number from [0, 1) for each token; padding gets 2."""
    return torch.rand(tokens_NT.shape, device=tokens_NT.device).masked_fill(tokens_NT == IGNORE, 2.0)


def _ranks(draws_NT: Tensor) -> Tensor:
    """Rank the numbers of each row, from 0; equal numbers get different ranks."""
    return draws_NT.argsort(1).argsort(1)
