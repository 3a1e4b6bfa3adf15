"""Lower bounds on log-probabilities under a masked model that writes tokens in random order.

Shapes: T positions, F free positions of them, N passes, K masked positions of a pass, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqwise.devices import moved
from seqwise.errors import InputError
from seqwise.models.heads import log_partition
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import checked_rows


@torch.no_grad()
def any_order_bound(
    model: MaskedModel,
    tokens_T: Tensor,
    *,
    num_passes: int,
    generator: torch.Generator,
    free_T: Tensor | None = None,
    max_rows: int = 64,
) -> float:
    """Estimate the evidence lower bound of ``log p(y)`` under a masked model as an any-order (diffusion) model.

    The bound is the mean over the number of masked positions l, uniform in 1 .. F, and over the sets S of l positions,
    of ``F / l * sum_{t in S} log p(y_t | y without S)``: the mean over all orders of the log-probability of writing y
    token by token in that order. The estimate is unbiased. Two techniques reduce its variance:

    - *Strata.* Pass i of N has l / F in ``[((i - 1) / N)^1.5, (i / N)^1.5)``, all with one random offset: few masks
      vary the most, and get more passes.
    - *Sampling without replacement.* From few masks to many, each pass masks the positions that were masked least often
      before, with ties broken at random, so that a position is masked again only when all others have been.

    Args:
        model: a model in evaluation mode.
        tokens_T: int64.
        num_passes: number N of masked copies that the model reads. With 2 F of them, the variance is about a quarter of
            that of as many independent passes; with few, about half (``python -m reproductions any-order-bound``).
        generator: random generator, on the CPU.
        free_T: bool, positions of y; the others are never masked. By default all are free.
        max_rows: copies per call of the model; their scores (K, V) are held.

    Returns:
        The bound, in nats.

    Raises:
        InputError: there are no passes, or no free positions.

    Source: Nie et al. (LLaDA, 2025), equation 6, the bound and the plain estimate; Hoogeboom et al. (ICLR 2022),
    any-order models; Kingma et al. (NeurIPS 2021), one offset for all strata. Not implemented: models whose scores also
    depend on the mask ratio.

    Example:
        >>> from seqwise.models import MaskedLSTM
        >>> model = MaskedLSTM(vocab_size=5, embedding_size=4, hidden_size=8, feedforward_size=8).eval()
        >>> draws = torch.Generator().manual_seed(0)
        >>> any_order_bound(model, torch.tensor([1, 4, 2]), num_passes=6, generator=draws) < 0
        True
    """
    if num_passes < 1:
        raise InputError(f"num_passes must be at least 1, got {num_passes}")
    tokens_T = tokens_T.cpu()
    free_F = torch.arange(len(tokens_T)) if free_T is None else free_T.cpu().nonzero().flatten()
    if not len(free_F):
        raise InputError("no position is free")
    count = len(free_F)
    edges_N1 = (torch.arange(num_passes + 1, dtype=torch.float64) / num_passes) ** 1.5
    weights_N = edges_N1.diff()
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    ratios_N = edges_N1[:-1] + offset * weights_N
    lengths_N = 1 + (ratios_N * count).long().clamp(max=count - 1)
    masked_NT = torch.zeros(num_passes, len(tokens_T), dtype=torch.bool)
    masked_NT[:, free_F] = _least_masked(lengths_N, count, generator)
    total = 0.0
    for first in range(0, num_passes, checked_rows(max_rows)):
        part = slice(first, first + max_rows)
        rows_K, places_K = masked_NT[part].nonzero(as_tuple=True)
        tokens_NT = tokens_T.expand(len(masked_NT[part]), -1)
        logits_KV = model.masked_logits(tokens_NT, masked_NT[part])
        tokens_K = moved(tokens_T[places_K], logits_KV.device)
        log_probs_K = logits_KV.gather(-1, tokens_K[:, None]).squeeze(-1) - log_partition(logits_KV)
        scale_K = (weights_N[part] * count / lengths_N[part])[rows_K]
        total += float((scale_K * log_probs_K.cpu().double()).sum())
    return total


def _least_masked(lengths_N: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw a set of positions of each length, (N, F): those in the fewest sets before, with ties broken at random."""
    masked_NF = torch.zeros(len(lengths_N), count, dtype=torch.bool)
    times_F = torch.zeros(count)
    for masked_F, length in zip(masked_NF, lengths_N.tolist(), strict=True):
        masked_F[(times_F + torch.rand(count, generator=generator)).argsort()[:length]] = True
        times_F += masked_F
    return masked_NF
