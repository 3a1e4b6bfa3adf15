"""Commit rules, which make labels final before a search ends, and the selector that applies them.

A rule reads the open labels of each slot and returns how many of them are final. Slots that disagree with final labels
are dropped, so committed labels are never retracted. Scores are rebased to the best slot, so they stay small for
sequences of any length.

Shapes: B batch, J and K slots before and after a step, T open labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqwise import tree
from seqwise.configuration.written import did_you_mean
from seqwise.devices import widest_float, worth_reading
from seqwise.errors import InputError
from seqwise.search.candidates import Candidates
from seqwise.search.selection import Selection
from seqwise.search.selectors import Selector

COMMITTED = -1
"""Label that marks committed positions in all slots."""

CommitRule = Callable[[Tensor, Tensor], Tensor]
"""Commit rule: maps the open labels of each slot, int64 (B, K, T), and slot scores (B, K), minus infinity for dead
slots, to the number of final labels at the start of the best slot, int64 (B,). Inputs with fewer open labels are padded
at the left with :data:`COMMITTED`, which may be counted or not."""


def agree(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
    """Commit the labels on which all live slots agree; no later token can change them.

    The output is that of the search without commits.

    Example:
        >>> agree(torch.tensor([[[4, 5, 6], [4, 5, 7]]]), torch.tensor([[0.0, -1.0]]))
        tensor([2])
    """
    return num_shared(labels_BKT, scores_BK, scores_BK > -torch.inf)


def margin(least: float) -> CommitRule:
    """Commit a label if all slots that differ from the best one there or earlier are behind it by a margin.

    A margin of 0 commits all labels of the best slot at once; a larger one waits until the other slots fall behind.

    Args:
        least: minimum lead, in units of the score; 0 or more.

    Raises:
        InputError: the margin is negative or not a number.

    Example:
        >>> labels_BKT = torch.tensor([[[4, 5, 6], [4, 7, 6], [8, 5, 6]]])
        >>> scores_BK = torch.tensor([[0.0, -1.0, -3.0]])
        >>> margin(2.0)(labels_BKT, scores_BK), margin(0.5)(labels_BKT, scores_BK)
        (tensor([1]), tensor([3]))
    """
    if not least >= 0:
        raise InputError(f"the margin of a commit must be 0 or more, got {least}")

    def rule(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
        return num_shared(labels_BKT, scores_BK, scores_BK.amax(1, keepdim=True) - scores_BK < least)

    return rule


def delay(labels: float) -> CommitRule:
    """Commit each label of the best slot after a fixed number of later labels.

    With a delay of 0, nothing is revised, and a hard beam becomes greedy search.

    Args:
        labels: number of later labels, 0 or more.

    Raises:
        InputError: the number is negative or not an integer.

    Example:
        >>> delay(1)(torch.tensor([[[4, 5, 6], [4, 7, 6]]]), torch.tensor([[0.0, -1.0]]))
        tensor([2])
    """
    if not (labels >= 0 and float(labels).is_integer()):
        raise InputError(f"the delay of a commit must be a whole number, 0 or more, got {labels}")

    def rule(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
        count = max(labels_BKT.shape[2] - int(labels), 0)
        return torch.full(labels_BKT.shape[:1], count, device=labels_BKT.device)

    return rule


def never(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
    """Commit nothing before the end, so that all labels stay open.

    Example:
        >>> never(torch.tensor([[[4, 5, 6]]]), torch.tensor([[0.0]]))
        tensor([0])
    """
    return torch.zeros(labels_BKT.shape[:1], dtype=torch.long, device=labels_BKT.device)


def any_of(*rules: CommitRule) -> CommitRule:
    """Commit the labels that at least one of several rules commits.

    Including a delay, as in "agree or delay(50)", bounds the number of open labels.

    Example:
        >>> labels_BKT = torch.tensor([[[4, 5, 6], [4, 7, 6]]])
        >>> any_of(agree, delay(0))(labels_BKT, torch.tensor([[0.0, -1.0]]))
        tensor([3])
    """

    def rule(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
        return reduce(torch.maximum, (each(labels_BKT, scores_BK) for each in rules))

    return rule


RULES: dict[str, CommitRule] = {"agree": agree, "never": never}
"""Commit rules by name."""

PARAMETRIC_RULES: dict[str, Callable[[float], CommitRule]] = {"margin": margin, "delay": delay}
"""Commit rules with a parameter, by name."""


def as_commit_rule(rule: CommitRule | str) -> CommitRule:
    """Return a rule, given itself or its name: "agree", "never", "margin(2)", "agree or delay(50)".

    Raises:
        InputError: the name is unknown, or its number is missing or out of range.

    Example:
        >>> as_commit_rule("agree") is agree
        True
    """
    if not isinstance(rule, str):
        return rule
    names = re.split(r"\s+or\s+", rule)
    return _named_rule(rule) if len(names) == 1 else any_of(*map(_named_rule, names))


def _named_rule(rule: str) -> CommitRule:
    match = re.fullmatch(r"\s*([\w-]*)\s*(?:\(([^()]*)\))?\s*", rule)
    name, number = match.groups() if match else (rule, None)
    if name in RULES and number is None:
        return RULES[name]
    if name not in PARAMETRIC_RULES:
        known = [*RULES, *(f"{known}(NUMBER)" for known in PARAMETRIC_RULES)]
        hint = f"leave the parentheses out: {name}" if name in RULES else did_you_mean(name, known)
        raise InputError(f"no commit rule is called {rule!r}", hint=hint)
    try:
        return PARAMETRIC_RULES[name](float(number or ""))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the commit rule {rule!r} needs a number", hint=f"write for example {name}(2)") from None


def num_shared(labels_BKT: Tensor, scores_BK: Tensor, rivals_BK: Tensor) -> Tensor:
    """Count the first labels that the best slot shares with all rivals in a mask: int64 (B,).

    Example:
        >>> labels_BKT = torch.tensor([[[4, 5, 6], [4, 7, 6], [8, 5, 6]]])
        >>> num_shared(labels_BKT, torch.tensor([[0.0, -1.0, -3.0]]), torch.tensor([[True, True, False]]))
        tensor([1])
    """
    differs_BKT = labels_BKT != best_labels(labels_BKT, scores_BK)[:, None]
    return ((differs_BKT & rivals_BK[..., None]).any(1).cumsum(1) == 0).sum(1)


def best_labels(labels_BKT: Tensor, scores_BK: Tensor) -> Tensor:
    """Return the open labels of the slot with the highest score, (B, T).

    Example:
        >>> best_labels(torch.tensor([[[4, 5], [4, 7]]]), torch.tensor([[-2.0, -1.0]]))
        tensor([[4, 7]])
    """
    return tree.gather(labels_BKT, scores_BK.argmax(1, keepdim=True)).squeeze(1)


class OpenLabels(NamedTuple):
    """Carry of :class:`Committing`: labels that may still change, and those that the last step committed.

    Attributes:
        labels_BKT: open labels of each slot, the last one at the right; :data:`COMMITTED` where an input has fewer.
        dropped_B: total subtracted from the scores of each input, to rebase them to the best slot; float64 where the
            device has it.
        committed_BT: labels that the last step committed, in the columns that were open then; :data:`COMMITTED`
            elsewhere.
        inner: carry of the inner selector.
    """

    labels_BKT: Tensor
    dropped_B: Tensor
    committed_BT: Tensor
    inner: Any = None

    @staticmethod
    def start(scores_BJ: Tensor) -> OpenLabels:
        """Return an empty carry for the slots of a new beam."""
        none_BJT = torch.zeros(*scores_BJ.shape, 0, dtype=torch.int32, device=scores_BJ.device)
        dropped_B = scores_BJ.new_zeros(len(scores_BJ), dtype=widest_float(scores_BJ.device))
        return OpenLabels(none_BJT, dropped_B, none_BJT[:, 0])


@dataclass(frozen=True)
class Committing:
    """Selector that selects with another one, commits by a rule, and drops slots that disagree with committed labels.

    Args:
        selector: hard or relaxed; relaxed slots count with their most probable labels.
        rule: decides which labels are final after each step.

    The carry is an :class:`OpenLabels`. For models without an end token.

    Example:
        >>> from seqwise.search import HardTopK
        >>> first = Candidates.of_scores(torch.tensor([[[0.0, -1.0]]]))
        >>> _, carry = Committing(HardTopK(2), margin(3.0))(first, None, None)
        >>> carry.labels_BKT.tolist()  # too close to each other
        [[[0], [1]]]
        >>> selection, carry = Committing(HardTopK(2), margin(0.5))(first, None, None)
        >>> carry.committed_BT.tolist(), selection.scores_BK, carry.labels_BKT.shape
        ([[0]], tensor([[0., -inf]]), torch.Size([1, 2, 0]))
    """

    selector: Selector
    rule: CommitRule

    def __call__(
        self, candidates: Candidates, carry: OpenLabels | None, generator: torch.Generator | None
    ) -> tuple[Selection, OpenLabels]:
        """Select from one step's candidates."""
        before = OpenLabels.start(candidates.prefix_scores_BJ) if carry is None else carry
        selection, inner = self.selector(candidates, before.inner, generator)
        followed_BKT = tree.gather(before.labels_BKT, selection.parents_BK)
        labels_BKT = torch.cat([followed_BKT, selection.tokens_BK[..., None].to(followed_BKT)], dim=-1)
        best_BT, scores_BK = best_labels(labels_BKT, selection.scores_BK), selection.scores_BK
        places_T = torch.arange(labels_BKT.shape[2], device=labels_BKT.device)
        final_BT = places_T < self.rule(labels_BKT, scores_BK)[:, None]
        committed_BT = best_BT.masked_fill(~final_BT, COMMITTED)
        disagrees_BK = ((labels_BKT != best_BT[:, None]) & final_BT[:, None]).any(-1)
        # Without a commit the scores stay as they are, bit for bit.
        commits_B1 = (committed_BT != COMMITTED).any(-1, keepdim=True)
        best_B1 = scores_BK.amax(1, keepdim=True)
        dropped_B1 = best_B1.masked_fill(~commits_B1 | (best_B1 == -torch.inf), 0.0)
        scores_BK = (scores_BK - dropped_B1).masked_fill(disagrees_BK, -torch.inf)
        # Columns without open labels are dropped only now and then, because the host waits for their number.
        num_closed = 0
        if worth_reading(scores_BK, labels_BKT.shape[2]):
            num_closed = int((final_BT | (best_BT == COMMITTED)).all(0).sum())
        open_BKT = labels_BKT[..., num_closed:].masked_fill_(final_BT[:, None, num_closed:], COMMITTED)
        dropped_B = before.dropped_B + dropped_B1[:, 0].to(before.dropped_B)
        kept: Any = replace(selection, scores_BK=scores_BK)  # type: ignore[type-var]
        return kept, OpenLabels(open_BKT, dropped_B, committed_BT, inner)
