"""Task costs, which a search adds up along its hypotheses.

A plain cost depends only on the step. A cost that depends on the prefix carries a state, which follows the selections
like a decoder state: gathered by hard back-pointers, mixed by soft ones, then extended by the new tokens.

Shapes: B batch, J and K slots before and after a step, V vocabulary, G gold tokens, H gold tokens as choices of the
next token, P = G + 1 places between and around gold tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from seqwise.search.selection import Selection


class PrefixCost(Protocol):
    """Cost of each token that depends on the prefix."""

    def start(self, scores_B1: Tensor) -> Any:
        """Return the state of empty prefixes: leaves (B, 1, ...), with the type and device of the scores."""
        ...

    def step(self, state: Any, step: int) -> Tensor:
        """Compute the cost of each token for each slot, (B, J, V), or (B, V) if all slots have the same."""
        ...

    def advance(self, state: Any, selection: Selection) -> Any:
        """Compute the state of the new slots, (B, K, ...), from that of the old ones."""
        ...


Cost = Callable[[int], Tensor] | PrefixCost
"""Cost of each token at a step: ``cost(step)`` of shape (B, V), or a :class:`PrefixCost` by slot."""


def prefix_cost(cost: Cost) -> PrefixCost:
    """Convert any cost to one that may depend on the prefix."""
    return _Plain(cost) if callable(cost) else cost


@dataclass(frozen=True)
class _Plain:
    """Cost without a state."""

    cost: Callable[[int], Tensor]

    def start(self, scores_B1: Tensor) -> Any:
        return ()

    def step(self, state: Any, step: int) -> Tensor:
        return self.cost(step)

    def advance(self, state: Any, selection: Selection) -> Any:
        return ()


# ---------------------------------------------------------------------------------------- edit distance


def edit_distance_cost(gold_BT: Tensor, vocab_size: int, *, end: int | None = None) -> PrefixCost:
    """Make the edit-distance cost: the increase of the smallest Levenshtein distance to gold that is still reachable.

    ``d(w | y_1..t) = Q_{t+1}(y_1..t w) - Q_t(y_1..t)``, where ``Q_t(y) = min_g [row_y[g] + lack_t(g)]``: row_y[g] is
    the edit distance between the prefix y and the first g gold tokens, and lack_t(g) the number of other gold tokens
    that the remaining steps cannot write (without an end token: or cannot avoid). A token costs 0 if it starts one of
    the best completions, else 1, and ending costs the number of gold tokens that are left out. So one insertion costs
    just 1, whereas the Hamming cost charges every position that it shifts.

    The costs of a hypothesis add up exactly to its edit distance: the end token counts as a token of both outputs,
    later tokens cost nothing, and an output that has not ended at the last step incurs that cost there. A relaxed
    search mixes rows, matches and hence costs, which tend to the exact ones as the search tends to the hard one.

    Args:
        gold_BT: int64 gold tokens; negative ones and those after the first end token are ignored, and tokens outside
            the vocabulary match nothing.
        vocab_size: V.
        end: id of the end token, or None if outputs are as long as gold.

    Returns:
        A cost for ``beam_search(..., cost=...)`` over as many steps as gold has tokens, plus one with an end token, as
        ``search_targets`` returns. After fewer steps, the costs sum to the smallest distance that is still reachable.

    Source: Wagner and Fischer (1974) for the rows; Sabour, Chan and Norouzi (ICLR 2019), section 3, for the smallest
    reachable distance, there as a target and without a limit on the steps. Not implemented: other weights of insertion,
    deletion and substitution. A step takes O(B J G^2) time and memory.

    Example:
        >>> cost = edit_distance_cost(torch.tensor([[2, 1, 0]]), 3, end=0)  # gold: 2 1, then the end
        >>> cost.step(cost.start(torch.zeros(1, 1)), 0)  # ending at once leaves two tokens out
        tensor([[[2., 1., 0.]]])
    """
    left_out_BT = gold_BT < 0
    if end is not None:
        is_end_BT = (gold_BT == end).long()
        left_out_BT = left_out_BT | (is_end_BT.cumsum(1) - is_end_BT > 0)
    return _EditDistance(gold_BT.masked_fill(left_out_BT, -1), vocab_size, end)


@dataclass(frozen=True)
class _EditDistance:
    """Edit-distance cost; its state is the Levenshtein row (B, J, P) and the finished mass (B, J) of each slot."""

    gold_BG: Tensor
    vocab_size: int
    end: int | None

    def start(self, scores_B1: Tensor) -> tuple[Tensor, Tensor]:
        places_P = torch.arange(self.gold_BG.shape[1] + 1, device=scores_B1.device, dtype=scores_B1.dtype)
        return places_P.expand(len(self.gold_BG), 1, -1), torch.zeros_like(scores_B1)

    def step(self, state: tuple[Tensor, Tensor], step: int) -> Tensor:
        rows_BJP, finished_BJ = state
        now_BJ = self._reachable(rows_BJP, step)
        # All tokens that are not in gold lead to the same row, and each distinct gold token leads to a row of its own.
        other_BJ = self._reachable(levenshtein_row(rows_BJP, torch.zeros_like(rows_BJP[..., 1:])), step + 1)
        same_BHG = (self.gold_BG[:, :, None] == self.gold_BG[:, None]).to(rows_BJP.dtype)
        matched_BJHP = levenshtein_row(rows_BJP[:, :, None], same_BHG[:, None])
        saved_BJH = self._reachable(matched_BJHP, step + 1) - other_BJ[..., None]
        # A token that occurs twice in gold counts once.
        unwritable_BH = (self.gold_BG < 0) | (self.gold_BG >= self.vocab_size)
        again_BH = (same_BHG.tril(-1) > 0).any(-1) | unwritable_BH
        tokens_BJH = self.gold_BG.clamp(0, self.vocab_size - 1)[:, None].expand_as(saved_BJH)
        saved_BJV = rows_BJP.new_zeros(*now_BJ.shape, self.vocab_size)
        saved_BJV = saved_BJV.scatter_add(2, tokens_BJH, saved_BJH.masked_fill(again_BH[:, None], 0.0))
        costs_BJV = (other_BJ - now_BJ)[..., None] + saved_BJV
        if self.end is None:
            return costs_BJV
        ended_BJP = levenshtein_row(rows_BJP, (self.gold_BG == self.end).to(rows_BJP.dtype)[:, None])
        ending_BJ = (1 - finished_BJ) * (self._distance(ended_BJP) - now_BJ)
        is_end_V = torch.arange(self.vocab_size, device=rows_BJP.device) == self.end
        return torch.where(is_end_V, ending_BJ[..., None], costs_BJV)

    def advance(self, state: tuple[Tensor, Tensor], selection: Selection) -> tuple[Tensor, Tensor]:
        rows_BKP, finished_BK = selection.follow(state)
        # Places after the end of gold get the mass of token 0, and are never read: a row depends only on its left part.
        masses_BKG = selection.token_masses(self.gold_BG.clamp(0, self.vocab_size - 1))
        written_BKP = levenshtein_row(rows_BKP, masses_BKG.masked_fill((self.gold_BG >= self.vocab_size)[:, None], 0))
        if self.end is None:
            return written_BKP, finished_BK
        stays_BK1 = finished_BK[..., None]
        return (1 - stays_BK1) * written_BKP + stays_BK1 * rows_BKP, selection.token_mass(self.end)

    def _reachable(self, rows: Tensor, steps_done: int) -> Tensor:
        """Return the smallest distance that an unfinished prefix can still reach: (B, J, ..., P) to (B, J, ...)."""
        lengths_B1 = (self.gold_BG >= 0).sum(1, keepdim=True)
        steps_left_B1 = (lengths_B1 + (self.end is not None) - steps_done).clamp(min=0)
        lack_BP = lengths_B1 - torch.arange(rows.shape[-1], device=rows.device) - steps_left_B1
        lack_BP = lack_BP.abs() if self.end is None else lack_BP.clamp(min=0)
        beyond_BP = torch.arange(rows.shape[-1], device=rows.device) > lengths_B1
        return (rows + _spread(lack_BP.to(rows.dtype).masked_fill(beyond_BP, torch.inf), rows)).amin(-1)

    def _distance(self, rows_BJP: Tensor) -> Tensor:
        """Return the distance of outputs that end here: the entry after the last gold token."""
        lengths_B11 = (self.gold_BG >= 0).sum(1)[:, None, None]
        return rows_BJP.gather(2, lengths_B11.expand(-1, rows_BJP.shape[1], 1)).squeeze(-1)


def levenshtein_row(rows: Tensor, matches: Tensor) -> Tensor:
    """Extend a Levenshtein table by the row of one more token.

    ``new[0] = old[0] + 1`` and ``new[g] = min(old[g] + 1, old[g - 1] + 1 - m[g], new[g - 1] + 1)``: the new token is
    deleted, is matched with gold token g or replaced by it, or gold token g is inserted after it.

    Rows (..., P) hold the distance between the prefix and the first g gold tokens, for g = 0, ..., G; the row of the
    empty prefix is ``0, 1, ..., G``. Matches m (..., G), of the type of the rows, hold the share of the new token that
    is gold token g.

    Source: Wagner and Fischer (1974). Not implemented: other weights of the three edits.

    Example:
        >>> levenshtein_row(torch.arange(4), torch.tensor([0, 1, 0]))  # gold 5 6 7, and 6 is written
        tensor([1, 1, 1, 2])
    """
    stepped = torch.minimum(rows[..., 1:] + 1, rows[..., :-1] + 1 - matches)
    first = (rows[..., :1] + 1).expand(*stepped.shape[:-1], 1)
    places_P = torch.arange(rows.shape[-1], device=rows.device, dtype=rows.dtype)
    # Insertions run along the row: the cheapest place to the left plus the distance from it.
    return (torch.cat([first, stepped], dim=-1) - places_P).cummin(-1).values + places_P


def _spread(values_BP: Tensor, like: Tensor) -> Tensor:
    """Reshape (B, P) to (B, 1, ..., P), for adding to ``like``."""
    return values_BP.view(len(values_BP), *([1] * (like.dim() - 2)), values_BP.shape[1])
