"""The candidates of one step: every way to lengthen every live slot by one token, and what each would score.

Shapes: B batch, J slots, V vocabulary, H features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.names import ScoreName
from seqwise.search.operators import finite

if TYPE_CHECKING:
    from seqwise.search.kernels.deferral import DeferredGradients

__all__ = [
    "MANY",
    "Candidates",
    "Score",
    "Shared",
    "SlotTerms",
    "as_score",
    "cost_augmented",
    "global_",
    "in_full_precision",
    "interpolated",
    "local",
    "shifted",
]

# How strongly a partly finished slot is kept from going on: the score of "go on" falls by this times F / (1 - F), with
# F its finished mass. Any value that is large beside differences of scores will do; at F = 1 "go on" is excluded.
CONTINUATION_PENALTY = 30.0
# J x V from which on it pays not to expand the candidates: below, the time goes into starting operations.
MANY = 4096


@dataclass(frozen=True)
class Score:
    """What a token adds to the score of a hypothesis: ``f(h, w) - c log Z(h) - m + b d(w)``.

    Args:
        log_partition_weight: c; 1 is the local (log-softmax) score, 0 the raw or global one.
        cost_weight: b; 1 in cost-augmented search, which looks for hypotheses that are both likely and wrong.
        constant: m, in nats; see :func:`shifted`.

    Source: Goyal et al. (NAACL 2019), section 2 (local and global), Goyal et al. (AAAI 2018), section 2.5 (augmented).

    Example:
        >>> logits = torch.tensor([0.0, 0.0])
        >>> local(logits), global_(logits)
        (tensor([-0.6931, -0.6931]), tensor([0., 0.]))
    """

    log_partition_weight: float
    cost_weight: float = 0.0
    constant: float = 0.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn unnormalised scores (..., V) into what is added up along a hypothesis, cost left aside."""
        added = logits
        if self.log_partition_weight != 0:
            # Where a model excludes every token, log Z is minus infinity and its softmax no number.
            added = finite(logits).log_softmax(-1).masked_fill(logits == -torch.inf, -torch.inf)
        if self.log_partition_weight not in (0.0, 1.0):
            added = (1 - self.log_partition_weight) * logits + self.log_partition_weight * added
        return added if self.constant == 0 else added - self.constant


local = Score(log_partition_weight=1.0)
"""The locally normalised score ``f - log Z``: log-softmax."""

global_ = Score(log_partition_weight=0.0)
"""The raw score f; a model trained through search with it is globally normalised."""


def as_score(score: Score | ScoreName) -> Score:
    """A score itself, or the one that "local" or "global" names.

    Raises:
        InputError: there is no score of that name.

    Example:
        >>> as_score("global") == global_, as_score(local) == local
        (True, True)
    """
    if isinstance(score, Score):
        return score
    named = dict(zip(get_args(ScoreName), (local, global_), strict=True))
    if score not in named:
        raise InputError(f"no score is called {score!r}", mend=f"choose one of {', '.join(named)}")
    return named[score]


def interpolated(log_partition_weight: float) -> Score:
    """The score ``f - c log Z``, between the global one (c = 0) and the local one (c = 1).

    Args:
        log_partition_weight: c, in [0, 1].

    Raises:
        InputError: c is outside [0, 1].

    Example:
        >>> interpolated(1.0) == local
        True
    """
    if not 0 <= log_partition_weight <= 1:
        raise InputError(f"the weight of log Z must lie between 0 and 1, got {log_partition_weight}")
    return Score(log_partition_weight)


def shifted(constant: float) -> Score:
    """The raw score less one constant a token, ``f - m``: what outputs of different lengths can be compared by.

    Where every output has the same length this orders them as the raw score does. Where lengths differ, every further
    token adds its share of log Z to a raw score, so that long outputs win where log Z is above 0 on average, and short
    ones where it is below. With m = mean log Z the average token adds no more than its log-probability, and what log Z
    says of how well a prefix fits is kept. A hypothesis that has ended loses nothing more.

    Args:
        constant: m, in nats a token; the mean of log Z over the gold tokens of development data (end token counted).

    Raises:
        InputError: the constant is not finite.

    Example:
        >>> shifted(2.0)(torch.tensor([5.0, 2.0])), shifted(0.0) == global_
        (tensor([3., 0.]), True)
    """
    if not math.isfinite(constant):
        raise InputError(f"the constant taken off each token must be finite, got {constant}")
    return Score(log_partition_weight=0.0, constant=constant)


def cost_augmented(score: Score | ScoreName) -> Score:
    """The same score with the cost of each token added, as the hinge loss searches (Goyal et al. 2018, section 2.5).

    Example:
        >>> cost_augmented(local).cost_weight
        1.0
    """
    return replace(as_score(score), cost_weight=1.0)


@dataclass(frozen=True)
class Shared:
    """What all steps of one search have in common, for selections that never expand their candidates.

    Args:
        embedding_VD: the embedding of each token, as it will be fed.
        deferred: collects the gradients of the head and of the embedding over all steps.
        cost: the cost of each token at a step, (B, V), computed again where its gradient is needed; None where there is
            no cost or it depends on more than the step.
    """

    embedding_VD: Tensor
    deferred: DeferredGradients
    cost: Callable[[int], Tensor] | None = None


class SlotTerms(NamedTuple):
    """What a slot adds to the scores of its tokens, (B, J) each, cost and log Z aside.

    A token other than the end adds ``f - c log Z`` to ``going_BJ``; the end token ``opened_BJ (f - c log Z - m)`` to
    ``staying_BJ``. Minus infinity where it cannot be chosen.
    """

    going_BJ: Tensor
    staying_BJ: Tensor
    opened_BJ: Tensor


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """J slots x V tokens, not yet expanded: a selection that needs less than all of them asks for less.

    Args:
        prefix_scores_BJ: score of each slot so far; minus infinity marks a dead slot.
        features_BJH: what the model's head reads.
        head: features to unnormalised scores.
        score: what a token adds.
        cost: of each token at this step, (B, V), or by slot (B, J, V), or None.
        finished_BJ: how much of each slot has ended, in [0, 1].
        end: id of the end token, or None where nothing ends early.
        step: how many tokens the slots have already written.
        excluded_BX: candidates that may not be chosen, each as slot x V + token, int64; None excludes nothing.
        shared: of the search that these are a step of; None where there is none.
    """

    prefix_scores_BJ: Tensor
    features_BJH: Tensor
    head: Callable[[Tensor], Tensor]
    score: Score
    cost: Tensor | None = None
    finished_BJ: Tensor
    end: int | None = None
    step: int = 0
    excluded_BX: Tensor | None = None
    shared: Shared | None = None

    @staticmethod
    def of_scores(added_BJV: Tensor, *, prefix_scores_BJ: Tensor | None = None) -> Candidates:
        """The candidates of given scores: what each token adds to each slot, whose own scores are 0 by default.

        Example:
            >>> Candidates.of_scores(torch.tensor([[[1.0, 0.0]]]), prefix_scores_BJ=torch.tensor([[2.0]])).scores_BJV
            tensor([[[3., 2.]]])
        """
        zeros_BJ = torch.zeros_like(added_BJV[..., 0])
        return Candidates(
            prefix_scores_BJ=zeros_BJ if prefix_scores_BJ is None else prefix_scores_BJ,
            features_BJH=added_BJV,
            head=torch.nn.Identity(),
            score=global_,
            finished_BJ=zeros_BJ,
        )

    def scores_of(self, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """The scores of some of the candidates, named by slot and token: (B, K), with their gradients."""
        return self.scores_BJV.flatten(1).gather(1, parents_BK * self.scores_BJV.shape[-1] + tokens_BK)

    @cached_property
    def logits_BJV(self) -> Tensor:
        """The model's unnormalised scores, at least float32."""
        return in_full_precision(self.head(self.features_BJH))

    @cached_property
    def all_scores_BJV(self) -> Tensor:
        """``s~[i, w]``, the score of slot i lengthened by w (thesis, Algorithms 1 and 3, line 5)."""
        added_BJV = self.score(self.logits_BJV)
        if self.end is not None:
            added_BJV = finish(added_BJV, self.finished_BJ, self.end)
        if self.cost is not None and self.augmented:
            cost_BJV = self.cost if self.cost.dim() == 3 else self.cost[:, None]
            added_BJV = added_BJV + self.score.cost_weight * cost_BJV
        return self.prefix_scores_BJ[..., None] + added_BJV

    @cached_property
    def scores_BJV(self) -> Tensor:
        """What a selection chooses by: ``s~[i, w]``, minus infinity where a candidate is excluded."""
        if self.excluded_BX is None:
            return self.all_scores_BJV
        scores_BN = self.all_scores_BJV.flatten(1).scatter(1, self.excluded_BX, -torch.inf)
        return scores_BN.view_as(self.all_scores_BJV)

    @property
    def many(self) -> bool:
        """Whether it pays not to expand them, and nobody has done it already."""
        if self.shared is None or "logits_BJV" in self.__dict__:
            return False
        return self.prefix_scores_BJ[:1].numel() * len(self.shared.embedding_VD) >= MANY

    @property
    def num_excluded(self) -> int:
        """How many of them may not be chosen."""
        return 0 if self.excluded_BX is None else self.excluded_BX.shape[1]

    @property
    def augmented(self) -> bool:
        """Whether the scores hold a cost."""
        return self.cost is not None and self.score.cost_weight != 0

    def slot_terms(self) -> SlotTerms:
        """The scores of all candidates without the candidates: see :class:`SlotTerms`."""
        going_BJ = self.prefix_scores_BJ - self.score.constant
        if self.end is None:
            return SlotTerms(going_BJ, self.prefix_scores_BJ, torch.ones_like(going_BJ))
        penalty_BJ, closed_BJ = _continuation_penalty(self.finished_BJ)
        going_BJ = (going_BJ - penalty_BJ).masked_fill(closed_BJ, -torch.inf)
        return SlotTerms(going_BJ, self.prefix_scores_BJ, (1 - self.finished_BJ).masked_fill(closed_BJ, 0.0))

    def of_inputs(self, inputs_I: Tensor) -> Candidates:
        """The candidates of some of the inputs only, in the given order."""
        return replace(
            self,
            prefix_scores_BJ=self.prefix_scores_BJ[inputs_I],
            features_BJH=self.features_BJH[inputs_I],
            finished_BJ=self.finished_BJ[inputs_I],
            cost=None if self.cost is None else self.cost[inputs_I],
            excluded_BX=None if self.excluded_BX is None else self.excluded_BX[inputs_I],
            shared=None if self.shared is None else _of_inputs(self.shared, inputs_I),
        )

    def open_shares(self, parents_BM: Tensor, tokens_BM: Tensor) -> Tensor:
        """The factor by which having ended lowers the odds of some candidates, ``exp(-30 F / (1 - F))`` for going on.

        1 for the end token, and for all where nothing ends; 0 for going on at F = 1. Shape (B, M), as given.
        """
        if self.end is None:
            return torch.ones_like(tokens_BM, dtype=self.finished_BJ.dtype)
        penalty_BJ, closed_BJ = _continuation_penalty(self.finished_BJ)
        share_BM = (-penalty_BJ).exp().masked_fill(closed_BJ, 0.0).gather(1, parents_BM)
        return share_BM.masked_fill(tokens_BM == self.end, 1.0)

    def without(self, excluded_BX: Tensor) -> Candidates:
        """The same candidates but these, each named by slot x V + token.

        Nothing is expanded here, and what this instance has expanded is not shared: expand one of the two.
        """
        if self.excluded_BX is not None:
            excluded_BX = torch.cat([self.excluded_BX, excluded_BX], dim=1)
        return replace(self, excluded_BX=excluded_BX)


def in_full_precision(scores: Tensor) -> Tensor:
    """The same scores, float32 at least: a gap of 0.1 at score -50 is lost in bfloat16."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def _of_inputs(shared: Shared, inputs_I: Tensor) -> Shared:
    """The same search with the cost of some of the inputs."""
    cost = shared.cost
    return shared if cost is None else replace(shared, cost=lambda step: cost(step)[inputs_I])


def finish(added_BJV: Tensor, finished_BJ: Tensor, end: int) -> Tensor:
    """Let a finished slot stay as it is, at no change of score, and go nowhere else.

    With finished mass F, the end token adds ``(1 - F) f(end)`` (at F = 1 it means "stay"), and any other token
    ``f - 30 F / (1 - F)``. For F in {0, 1} this is exactly the bookkeeping of hard beam search; between, it is
    continuous, so a relaxed search stays differentiable.

    Args:
        added_BJV: what each token would add to an unfinished slot.
        finished_BJ: F, in [0, 1].
        end: id of the end token.

    Returns:
        What each token adds, (B, J, V); minus infinity where a finished slot would go on.
    """
    mass_BJ1 = finished_BJ[..., None]
    penalty_BJ1, closed_BJ1 = _continuation_penalty(mass_BJ1)
    going_on_BJV = (added_BJV - penalty_BJ1).masked_fill(closed_BJ1, -torch.inf)
    end_BJ1 = added_BJV[..., end : end + 1]
    excluded_BJ1 = end_BJ1 == -torch.inf
    # Replaced before the product, whose gradient with respect to the mass would otherwise be 0 * infinity.
    staying_BJ1 = (1 - mass_BJ1) * end_BJ1.masked_fill(excluded_BJ1, 0.0)
    staying_BJ1 = staying_BJ1.masked_fill(excluded_BJ1, -torch.inf).masked_fill(closed_BJ1, 0.0)
    is_end_V = torch.arange(added_BJV.shape[-1], device=added_BJV.device) == end
    return torch.where(is_end_V, staying_BJ1, going_on_BJV)


def _continuation_penalty(finished: Tensor) -> tuple[Tensor, Tensor]:
    """``30 F / (1 - F)``, and where F is so near to 1 that going on is excluded instead."""
    closed = finished >= 1 - 1e-6
    # Divided only where 1 - F is safely positive: the other branch of a `where` still has its gradient computed.
    return CONTINUATION_PENALTY * finished / torch.where(closed, torch.ones_like(finished), 1 - finished), closed
