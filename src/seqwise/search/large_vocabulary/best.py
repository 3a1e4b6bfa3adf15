"""The k best of J x V candidates without giving each of them its score: for searches that nothing differentiates.

Shapes: B batch, J slots, V vocabulary, K slots after, N best candidates, X excluded ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqwise.search.ending import SlotTerms
from seqwise.search.large_vocabulary.certificate import best_candidates, block_maxima
from seqwise.search.large_vocabulary.normalizers import maxima_and_log_partitions


@torch.no_grad()
def best_of_many(
    logits_BJV: Tensor,
    terms: SlotTerms,
    k: int,
    *,
    log_partition_weight: float = 0.0,
    constant: float = 0.0,
    end: int | None = None,
    excluded_BX: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Result of :func:`~seqwise.search.operators.hard_top_k`, up to rounding, in half the passes over B x J x V.

    What a slot adds is the same for all of its tokens but the end, so the maxima of blocks of unnormalised scores are
    found first, and only the blocks that can hold one of the best are looked into.

    Args:
        logits_BJV: f.
        terms: what each slot adds.
        k: how many; with the number of slots and of excluded candidates, at most J V.
        log_partition_weight, constant: c and m of the score, which holds no cost.
        end: id of the end token, or None.
        excluded_BX: a few candidates that may not be chosen, each as slot x V + token.

    Returns:
        ``scores_BK`` in descending order, ``parents_BK`` and ``tokens_BK``.

    Example:
        >>> zeros_BJ, ones_BJ = torch.zeros(1, 1), torch.ones(1, 1)
        >>> best_of_many(torch.tensor([[[3.0, 1.0, 2.0, 0.0]]]), SlotTerms(zeros_BJ, zeros_BJ, ones_BJ), 2)[2]
        tensor([[0, 2]])
    """
    batch_size, num_slots, vocabulary_size = logits_BJV.shape
    full_BJM, log_partition_BJ = maxima_and_log_partitions(logits_BJV, normalized=log_partition_weight != 0)
    partition_BJ = log_partition_weight * log_partition_BJ
    everyone_B, none_BE = torch.arange(batch_size, device=logits_BJV.device), logits_BJV.new_empty(batch_size, 0)
    blocks = block_maxima(logits_BJV, terms.going_BJ - partition_BJ, none_BE, full_BJM=full_BJM)
    # So many more as may have to be taken away again: the end of each slot, which scores by another rule, and excluded.
    spare = (0 if end is None else num_slots) + (0 if excluded_BX is None else excluded_BX.shape[1])
    scores_BN, slots_BN, tokens_BN = best_candidates(blocks, everyone_B, k + spare)
    if end is not None:
        ending_BJ = terms.of_ending(logits_BJV[..., end] - partition_BJ - constant)
        slots_BJ = torch.arange(num_slots, device=slots_BN.device).expand(batch_size, -1)
        scores_BN = torch.cat([scores_BN.masked_fill(tokens_BN == end, -torch.inf), ending_BJ], dim=1)
        slots_BN = torch.cat([slots_BN, slots_BJ], dim=1)
        tokens_BN = torch.cat([tokens_BN, torch.full_like(slots_BJ, end)], dim=1)
    if excluded_BX is not None:
        flat_BN1 = (slots_BN * vocabulary_size + tokens_BN)[..., None]
        scores_BN = scores_BN.masked_fill((flat_BN1 == excluded_BX[:, None]).any(-1), -torch.inf)
    scores_BK, chosen_BK = scores_BN.topk(k)
    return scores_BK, slots_BN.gather(1, chosen_BK), tokens_BN.gather(1, chosen_BK)
