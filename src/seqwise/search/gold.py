"""Search that never loses the gold output: its prefix keeps slot 0, and rivals compete for the other slots.

Losses that compare gold with its rivals during the search need the gold prefix at every step, on the beam or not. Here
gold is removed from the candidates and put into slot 0, and any selector chooses the rivals from the rest. So no rival
is the gold prefix, and no soft rival has any weight on it: gold counts once. Under a commit rule, a rival that
disagrees with a committed label dies; if gold disagrees, the beam restarts from gold.

Shapes: B batch, J and K slots before and after a step (gold in slot 0), V vocabulary, T target length, N = J V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.search.beam import Beam, search_steps
from seqwise.search.candidates import Candidates, Score, local
from seqwise.search.commits import CommitRule, Committing, OpenLabels
from seqwise.search.costs import Cost
from seqwise.search.language import language_of, require_members
from seqwise.search.operators import require_beam_size
from seqwise.search.selection import HardSelection, Selection, SoftSelection
from seqwise.search.selectors import Selector

Lost = Callable[[Tensor, Tensor], Tensor]
"""Rule for restarting from gold: maps the score of gold (B, 1) and all other candidates (B, N) to a mask (B,)."""


def out_of_beam(k: int, *, margin: float = 0.0) -> Lost:
    """Make the rule that gold is lost if at least k other candidates score more than ``s(gold) - margin``.

    With margin 0, these are the steps at which a beam of k drops gold (gold wins ties).
    """
    require_beam_size(k)
    if not 0 <= margin < float("inf"):
        raise InputError(f"the margin must be 0 or more, and finite, got {margin}")
    return lambda gold_B1, others_BN: (others_BN > gold_B1 - margin).sum(-1) >= k


def never_lost(gold_B1: Tensor, others_BN: Tensor) -> Tensor:
    """Never restart: gold keeps its slot whatever outscores it, and the rivals stay."""
    return torch.zeros_like(gold_B1[:, 0], dtype=torch.bool)


def no_rivals(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[HardSelection, Any]:
    """Select no rivals, so that gold is alone on the beam (step-by-step teacher forcing)."""
    scores_B0 = candidates.prefix_scores_BJ[:, :0]
    none_B0 = torch.zeros_like(scores_B0, dtype=torch.long)
    return HardSelection(scores_B0, none_B0, none_B0), carry


class BesideGold(NamedTuple):
    """Carry of ``KeepGold``: the scores of gold (B, 1) and all other candidates (B, N), and the rivals' carry."""

    gold_B1: Tensor
    others_BN: Tensor
    rivals: Any


@dataclass(frozen=True)
class KeepGold:
    """Selector that extends gold in slot 0 by the next gold token, and selects its rivals with another selector.

    Args:
        rivals: selects from all candidates but gold, for slots 1 and up: ``HardTopK(k - 1)``, ``SoftTopK(k - 1,
            alpha)``, :func:`no_rivals`.
        gold_BT: gold tokens; negative ones (padding) are followed as token 0, and never counted.
        lost: decides where the beam restarts from the gold prefix and the rivals die.

    A call returns a hard selection if that of the rivals is hard, else a soft one in which slot 0 is one-hot; its carry
    holds the scores of gold and all other candidates, and the rivals' carry.
    """

    rivals: Selector
    gold_BT: Tensor
    lost: Lost

    def __call__(
        self, candidates: Candidates, carry: BesideGold | None, generator: torch.Generator | None
    ) -> tuple[Selection, BesideGold]:
        """Select from one step's candidates; slot 0 is the gold prefix."""
        tokens_B1 = self.gold_BT[:, candidates.step, None].clamp(min=0)
        others = candidates.without(tokens_B1)  # in slot 0, the place of a candidate is its token
        gold_B1 = others.all_scores_BJW.flatten(1).gather(1, others.places(torch.zeros_like(tokens_B1), tokens_B1))
        others_BN = others.scores_BJW.flatten(1)
        lost_B1 = self.lost(gold_B1, others_BN)[:, None]
        rivals, rivals_carry = self.rivals(others, None if carry is None else carry.rivals, generator)
        scores_BK = torch.cat([gold_B1, rivals.scores_BK.masked_fill(lost_B1, -torch.inf)], dim=1)
        parents_BK = F.pad(rivals.parents_BK, (1, 0))
        tokens_BK = torch.cat([tokens_B1, rivals.tokens_BK], dim=1)
        selection: Selection
        if isinstance(rivals, HardSelection):
            selection = HardSelection(scores_BK, parents_BK, tokens_BK)
        elif isinstance(rivals, SoftSelection):
            selection = _gold_first(rivals, scores_BK, parents_BK, tokens_BK)
        else:
            raise InputError(f"gold cannot be kept with a {type(rivals).__name__}", hint="select hard or soft")
        return selection, BesideGold(gold_B1, others_BN, rivals_carry)


def _restarting(committing: Committing) -> Selector:
    """Commit labels; if gold, in slot 0, disagrees with them, continue with gold alone."""

    def select(
        candidates: Candidates, carry: OpenLabels | None, generator: torch.Generator | None
    ) -> tuple[Selection, OpenLabels]:
        selection, after = committing(candidates, carry, generator)
        lost_B1 = selection.scores_BK[:, :1] == -torch.inf
        # Its own score is minus infinity; a constant added to all scores has no effect, so gold alone may start from 0.
        alone_1K = torch.full_like(selection.scores_BK[:1], -torch.inf)
        alone_1K[:, 0] = 0.0
        kept: Any = replace(selection, scores_BK=torch.where(lost_B1, alone_1K, selection.scores_BK))  # type: ignore[type-var]
        return kept, after

    return select


class GoldStep(NamedTuple):
    """One step of a search that keeps gold.

    Attributes:
        gold_B1: score of the gold prefix, including this step's token.
        others_BN: score of every other candidate; minus infinity at gold and for dead slots.
        beam: beam after the step, with gold in slot 0, then the rivals; commits rebase scores to the best slot.
        active_B: whether the input's gold output has this step.
        last_B: whether this is the input's last step.
    """

    gold_B1: Tensor
    others_BN: Tensor
    beam: Beam
    active_B: Tensor
    last_B: Tensor


def unroll_with_gold(
    model: StepModel,
    context: Any,
    gold_BT: Tensor,
    *,
    num_steps_B: Tensor,
    rivals: Selector,
    lost: Lost,
    score: Score | ScoreName = local,
    cost: Cost | None = None,
    commit: CommitRule | None = None,
) -> Iterator[GoldStep]:
    """Search with gold on the beam, yielding steps with gradients; arguments are those of ``KeepGold`` and the loop.

    ``commit`` makes labels final during the search, like :class:`~seqwise.search.commits.Committing`. If there is an
    end token, gold is continued by it up to the number of steps. Exclude inactive rows from any loss.
    """
    language = language_of(model)
    if language is not None:
        require_members(language, gold_BT)
    selector: Selector = KeepGold(rivals, gold_BT, lost)
    if commit is not None:
        selector = _restarting(Committing(selector, commit))
    steps = search_steps(model, context, selector, num_steps=num_steps_B, score=score, cost=cost)
    for number, step in enumerate(steps):
        beside: BesideGold = step.carry if commit is None else step.carry.inner
        yield GoldStep(beside.gold_B1, beside.others_BN, step.beam, num_steps_B > number, num_steps_B == number + 1)


def _gold_first(rivals: SoftSelection, scores_BK: Tensor, parents_BK: Tensor, tokens_BK: Tensor) -> SoftSelection:
    """Put gold, one-hot, before the mixtures of its rivals."""
    zero_B1, gold_B1 = torch.zeros_like(tokens_BK[:, :1]), tokens_BK[:, :1]
    parent_weights_BKJ = _one_hot_first(zero_B1, rivals.parent_weights_BKJ)
    ids_BX, weights_BKX = rivals.token_ids_BX, rivals.token_weights_BKX
    if ids_BX is None:
        return SoftSelection(scores_BK, parents_BK, tokens_BK, parent_weights_BKJ, _one_hot_first(gold_B1, weights_BKX))
    # Gold gets a column after those of the rivals, which have no weight there.
    weights_BKX = _one_hot_first(zero_B1 + ids_BX.shape[1], F.pad(weights_BKX, (0, 1)))
    ids_BX = torch.cat([ids_BX, gold_B1], dim=1)
    return SoftSelection(scores_BK, parents_BK, tokens_BK, parent_weights_BKJ, weights_BKX, ids_BX)


def _one_hot_first(index_B1: Tensor, weights_BKW: Tensor) -> Tensor:
    one_hot_B1W = F.one_hot(index_B1, weights_BKW.shape[-1]).to(weights_BKW.dtype)
    return torch.cat([one_hot_B1W, weights_BKW], dim=1)
