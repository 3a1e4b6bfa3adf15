"""The k best of J x V candidates without giving each of them its score: for searches that nothing differentiates.

Shapes: B batch, J slots, V vocabulary, K slots after, N best candidates, X excluded ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqwise.search.candidates import MANY, Candidates, in_full_precision
from seqwise.search.kernels.certificate import best_candidates, block_maxima, row_maxima
from seqwise.search.kernels.partition import log_partition
from seqwise.search.kernels.scan import end_scores, fits_one_pass, in_one_pass
from seqwise.search.operators import hard_top_k

__all__ = ["best_of_many", "top_candidates"]


def top_candidates(candidates: Candidates, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the k best candidates, or all where there are fewer, expanding all of them only where that is quicker.

    Returns:
        ``scores_BK`` in descending order, with gradients where they are asked for, ``parents_BK`` and ``tokens_BK``.

    Example:
        >>> top_candidates(Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0, 0.0]]])), 2)[2]
        tensor([[0, 2]])
    """
    # Scores that are differentiated or hold a cost are needed as they are.
    followed = torch.is_grad_enabled() or candidates.augmented
    if candidates.many and not followed and 2 * (k + candidates.num_excluded) <= MANY:
        return best_of_many(candidates, k)
    scores_BJV = candidates.scores_BJV
    return hard_top_k(scores_BJV, min(k, scores_BJV.shape[1:].numel()))


@torch.no_grad()
def best_of_many(candidates: Candidates, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`~seqwise.search.operators.hard_top_k` finds, up to rounding, in half the passes over B x J x V.

    What a slot adds is the same for all of its tokens but the end, so the maxima of blocks of unnormalised scores are
    found first, and only the blocks that can hold one of the best are looked into.

    Args:
        candidates: without cost in their scores, which are not kept; few of them excluded, if any.
        k: how many; with the number of slots and of excluded candidates, at most J V.

    Returns:
        ``scores_BK`` in descending order, ``parents_BK`` and ``tokens_BK``.

    Example:
        >>> best_of_many(Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0, 0.0]]])), 2)[2]
        tensor([[0, 2]])
    """
    logits_BJV, terms = _logits(candidates), candidates.slot_terms()
    batch_size, num_slots, vocabulary_size = logits_BJV.shape
    full_BJM, partition_BJ = _scanned(logits_BJV, candidates.score.log_partition_weight)
    everyone_B, none_BE = torch.arange(batch_size, device=logits_BJV.device), logits_BJV.new_empty(batch_size, 0)
    blocks = block_maxima(logits_BJV, terms.going_BJ - partition_BJ, none_BE, full_BJM=full_BJM)
    end, excluded_BX = candidates.end, candidates.excluded_BX
    # So many more as may have to be taken away again: the end of each slot, which scores by another rule, and excluded.
    spare = (0 if end is None else num_slots) + (0 if excluded_BX is None else excluded_BX.shape[1])
    scores_BN, slots_BN, tokens_BN = best_candidates(blocks, everyone_B, k + spare)
    if end is not None:
        added_BJ = logits_BJV[..., end] - partition_BJ - candidates.score.constant
        slots_BJ = torch.arange(num_slots, device=slots_BN.device).expand(batch_size, -1)
        scores_BN = torch.cat([scores_BN.masked_fill(tokens_BN == end, -torch.inf), end_scores(terms, added_BJ)], dim=1)
        slots_BN = torch.cat([slots_BN, slots_BJ], dim=1)
        tokens_BN = torch.cat([tokens_BN, torch.full_like(slots_BJ, end)], dim=1)
    if excluded_BX is not None:
        flat_BN1 = (slots_BN * vocabulary_size + tokens_BN)[..., None]
        scores_BN = scores_BN.masked_fill((flat_BN1 == excluded_BX[:, None]).any(-1), -torch.inf)
    scores_BK, chosen_BK = scores_BN.topk(k)
    return scores_BK, slots_BN.gather(1, chosen_BK), tokens_BN.gather(1, chosen_BK)


def _logits(candidates: Candidates) -> Tensor:
    """All scores, by one product where the head is linear, its bias included."""
    head = None if candidates.shared is None else candidates.shared.deferred.of_head(candidates.head)
    if head is None:
        return in_full_precision(candidates.head(candidates.features_BJH))
    return head.scores(candidates.features_BJH)


def _scanned(logits_BJV: Tensor, weight: float) -> tuple[Tensor | None, Tensor]:
    """Maxima of full blocks, where they come with log Z, and ``c log Z``: 0 where it plays no part or is not finite."""
    if fits_one_pass(logits_BJV):
        full_BJM, log_partition_BJ = in_one_pass(logits_BJV)
        return full_BJM, weight * log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)
    if weight == 0:
        return None, torch.zeros_like(logits_BJV[..., 0])
    full_BJM, highest_BJ = row_maxima(logits_BJV)
    log_partition_BJ = log_partition(logits_BJV, highest_BJ)
    return full_BJM, weight * log_partition_BJ.masked_fill(log_partition_BJ == -torch.inf, 0.0)
