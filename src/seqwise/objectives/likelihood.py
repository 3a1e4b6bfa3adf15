"""Likelihood of the gold output under teacher forcing. Shapes: B batch, T target length, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.data.batches import IGNORE
from seqwise.devices import at_least_float32
from seqwise.names import ScoreName
from seqwise.search.candidates import Score, as_score


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Compute the mean negative log-probability of the targets, ``mean_t (log Z_t - f(h_t, y_t))``, in nats per token.

    With label smoothing e, the target is a mixture of the gold token and the uniform distribution over all V tokens,
    end token included: ``mean_t ((1 - e) (log Z_t - f(h_t, y_t)) + e / V sum_w (log Z_t - f(h_t, w)))``. Tokens whose
    score is minus infinity are left out of the sum and of V, so that a forced token costs nothing.

    Args:
        logits: unnormalised scores, (..., V).
        targets: int64 of the leading shape; negative entries are ignored.
        label_smoothing: e, in [0, 1).

    Returns:
        A scalar; 0 when every target is ignored.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))
        tensor(1.3863)

    Source: Szegedy et al. (CVPR 2016), section 7, for label smoothing.
    """
    counted = targets >= 0
    ignored = targets.masked_fill(~counted, IGNORE).flatten()
    logits_NV = at_least_float32(logits.reshape(-1, logits.shape[-1]))
    if not label_smoothing:
        total = F.cross_entropy(logits_NV, ignored, ignore_index=IGNORE, reduction="sum")
    else:
        log_probs_NV = logits_NV.log_softmax(-1)
        is_possible_NV = log_probs_NV > -torch.inf
        mean_N = log_probs_NV.masked_fill(~is_possible_NV, 0.0).sum(-1) / is_possible_NV.sum(-1)
        total = (1 - label_smoothing) * F.nll_loss(log_probs_NV, ignored, ignore_index=IGNORE, reduction="sum")
        total = total - label_smoothing * mean_N.masked_fill(ignored < 0, 0.0).sum()
    return total / counted.sum().clamp(min=1)


def gold_scores(logits_BTV: Tensor, targets_BT: Tensor, score: Score | ScoreName) -> Tensor:
    """Compute the score of each gold output: ``s(y*) = sum_t score(f(h_t, .))[y*_t]``.

    Args:
        logits_BTV: unnormalised scores along the gold output (teacher forcing).
        targets_BT: int64; negative entries are ignored.
        score: local, global or interpolated. No cost is added, as the gold output has none.

    Returns:
        (B,).

    Example:
        >>> import torch
        >>> from seqwise.search import global_
        >>> gold_scores(torch.ones(1, 2, 4), torch.tensor([[3, -100]]), global_)
        tensor([1.])
    """
    score, tokens_BT1 = as_score(score), targets_BT.clamp(min=0).unsqueeze(-1)
    if score.log_partition_weight == 0:  # without a normaliser, the scores of other tokens are not needed
        gold_BT = score(at_least_float32(logits_BTV.gather(-1, tokens_BT1))).squeeze(-1)
    else:
        gold_BT = score(at_least_float32(logits_BTV)).gather(-1, tokens_BT1).squeeze(-1)
    return gold_BT.masked_fill(targets_BT < 0, 0.0).sum(-1)
