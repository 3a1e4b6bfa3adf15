"""Ends of hypotheses: the scores of continuing a slot or keeping it, given its finished mass.

Shapes: B batch, J slots, V vocabulary, M some candidates of an input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Penalty for continuing a partly finished slot: the score of a continuation falls by this times F / (1 - F), with F the
# finished mass. Any value that is large compared with score differences will do; at F = 1, continuing is excluded.
CONTINUATION_PENALTY = 30.0


class SlotTerms(NamedTuple):
    """Terms that a slot adds to the scores of its tokens, (B, J) each, without cost and log Z.

    The end token adds ``opened_BJ (f - c log Z - m)`` to ``staying_BJ``; any other token adds ``f - c log Z`` to
    ``going_BJ``. Minus infinity excludes the choice.
    """

    going_BJ: Tensor
    staying_BJ: Tensor
    opened_BJ: Tensor

    def of_ending(self, added_BJ: Tensor) -> Tensor:
        """Compute the scores of the candidates that end, from the end token's score for an unfinished slot."""
        excluded_BJ = added_BJ == -torch.inf
        scores_BJ = self.staying_BJ + self.opened_BJ * added_BJ.masked_fill(excluded_BJ, 0.0)
        return scores_BJ.masked_fill(excluded_BJ & (self.opened_BJ > 0), -torch.inf)


def slot_terms(prefix_scores_BJ: Tensor, finished_BJ: Tensor, *, constant: float, end: int | None) -> SlotTerms:
    """Compute the terms that slots add to the scores of their candidates."""
    going_BJ = prefix_scores_BJ - constant
    if end is None:
        return SlotTerms(going_BJ, prefix_scores_BJ, torch.ones_like(going_BJ))
    penalty_BJ, closed_BJ = _continuation_penalty(finished_BJ)
    going_BJ = (going_BJ - penalty_BJ).masked_fill(closed_BJ, -torch.inf)
    return SlotTerms(going_BJ, prefix_scores_BJ, (1 - finished_BJ).masked_fill(closed_BJ, 0.0))


def open_shares(finished_BJ: Tensor, parents_BM: Tensor, tokens_BM: Tensor, *, end: int | None) -> Tensor:
    """Compute the factor by which finished mass lowers the odds of candidates, ``exp(-30 F / (1 - F))`` for continuing.

    It is 1 for the end token and without an end token, and 0 for continuing at F = 1. Shape (B, M), like the
    candidates.
    """
    if end is None:
        return torch.ones_like(tokens_BM, dtype=finished_BJ.dtype)
    penalty_BJ, closed_BJ = _continuation_penalty(finished_BJ)
    share_BM = (-penalty_BJ).exp().masked_fill(closed_BJ, 0.0).gather(1, parents_BM)
    return share_BM.masked_fill(tokens_BM == end, 1.0)


def finish(added_BJV: Tensor, finished_BJ: Tensor, end: int) -> Tensor:
    """Restrict finished slots to keeping their output, without a change of score.

    With finished mass F, the end token adds ``(1 - F) f(end)`` (at F = 1 it means "stay"), and any other token
    ``f - 30 F / (1 - F)``. For F in {0, 1}, this is exactly the bookkeeping of hard beam search; in between, it is
    continuous, so a relaxed search stays differentiable.

    Maps the scores that tokens add to an unfinished slot, (B, J, V), to those of this slot; minus infinity if a
    finished slot would continue.
    """
    is_end_V = torch.arange(added_BJV.shape[-1], device=added_BJV.device) == end
    return _finished(added_BJV, added_BJV[..., end : end + 1], is_end_V, finished_BJ[..., None])


def finish_where(added_BJC: Tensor, finished_BJ: Tensor, is_end_BJC: Tensor) -> Tensor:
    """Apply :func:`finish` to C columns, given a mask of those that are the end token: at most one of a slot."""
    column_BJ1 = is_end_BJC.to(torch.uint8).argmax(-1, keepdim=True)
    ending_BJ1 = added_BJC.gather(-1, column_BJ1.expand(*added_BJC.shape[:-1], 1))
    return _finished(added_BJC, ending_BJ1, is_end_BJC, finished_BJ[..., None])


def _finished(going: Tensor, ending: Tensor, is_end: Tensor, mass_BJ1: Tensor) -> Tensor:
    penalty_BJ1, closed_BJ1 = _continuation_penalty(mass_BJ1)
    going_on = torch.where(closed_BJ1, -torch.inf, going - penalty_BJ1)
    excluded = ending == -torch.inf
    # Replaced before the product, whose gradient with respect to the mass would otherwise be 0 * infinity.
    staying = (1 - mass_BJ1) * ending.masked_fill(excluded, 0.0)
    staying = staying.masked_fill(excluded, -torch.inf).masked_fill(closed_BJ1, 0.0)
    return torch.where(is_end, staying, going_on)


def _continuation_penalty(finished: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``30 F / (1 - F)``, and a mask where F is so close to 1 that continuing is excluded instead."""
    closed = finished >= 1 - 1e-6
    # Divide only where 1 - F is safely positive: autograd also computes the gradient of the branch not taken.
    return CONTINUATION_PENALTY * finished / torch.where(closed, torch.ones_like(finished), 1 - finished), closed
