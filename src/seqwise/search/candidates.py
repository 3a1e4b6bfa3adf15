"""The candidates of one step: every way to lengthen every live slot by one token, and what each would score.

Shapes: B batch, J slots, V vocabulary, H features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.names import ScoreName
from seqwise.search.ending import SlotTerms, finish, open_shares, slot_terms
from seqwise.search.large_vocabulary.blocks import best_of_many
from seqwise.search.operators import finite, hard_top_k
from seqwise.search.selection import Asked

# J x V from which on it pays not to expand the candidates: below, the time goes into starting operations.
MANY = 4096


@dataclass(frozen=True)
class Score:
    """Score that a token adds to a hypothesis: ``f(h, w) - c log Z(h) - m + b d(w)``.

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
    """Return a score itself, or the one that "local" or "global" names.

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
        raise InputError(f"no score is called {score!r}", hint=f"choose one of {', '.join(named)}")
    return named[score]


def interpolated(log_partition_weight: float) -> Score:
    """Score ``f - c log Z``, between the global one (c = 0) and the local one (c = 1).

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
    """Raw score less a constant for each token, ``f - m``, so that outputs of different lengths can be compared.

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
    """Add the cost of each token to a score, as the hinge loss searches (Goyal et al. 2018, section 2.5).

    Example:
        >>> cost_augmented(local).cost_weight
        1.0
    """
    return replace(as_score(score), cost_weight=1.0)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """J slots x V tokens, not yet expanded: a selection that needs less than all of them asks for less.

    Args:
        prefix_scores_BJ: score of each slot so far; minus infinity marks a dead slot.
        features_BJH: what the model's head reads.
        head: features to unnormalised scores.
        score: what a token adds.
        cost: of each token at this step, (B, V), or by slot (B, J, V), or None.
        cost_again: computes the same (B, V) again, so that it need not be kept for a backward pass; None where there is
            no cost, or one that depends on more than the step.
        finished_BJ: how much of each slot has ended, in [0, 1].
        end: id of the end token, or None where nothing ends early.
        step: how many tokens the slots have already written.
        excluded_BX: candidates that may not be chosen, each as slot x V + token, int64; None excludes nothing.
        embedding_VD: the embedding of each token, of which the search feeds those that are chosen; None outside of a
            search.
    """

    prefix_scores_BJ: Tensor
    features_BJH: Tensor
    head: Callable[[Tensor], Tensor]
    score: Score
    cost: Tensor | None = None
    cost_again: Callable[[], Tensor] | None = None
    finished_BJ: Tensor
    end: int | None = None
    step: int = 0
    excluded_BX: Tensor | None = None
    embedding_VD: Tensor | None = None

    @staticmethod
    def of_scores(added_BJV: Tensor, *, prefix_scores_BJ: Tensor | None = None) -> Candidates:
        """Make candidates of given scores: what each token adds to each slot, whose own scores are 0 by default.

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
        """Scores of some of the candidates, named by slot and token: (B, K), with their gradients."""
        return self.scores_BJV.flatten(1).gather(1, parents_BK * self.scores_BJV.shape[-1] + tokens_BK)

    @cached_property
    def logits_BJV(self) -> Tensor:
        """Unnormalised scores of the model, at least float32."""
        return self._logits()

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
        """Scores that a selection chooses by: ``s~[i, w]``, minus infinity where a candidate is excluded."""
        if self.excluded_BX is None:
            return self.all_scores_BJV
        scores_BN = self.all_scores_BJV.flatten(1).scatter(1, self.excluded_BX, -torch.inf)
        return scores_BN.view_as(self.all_scores_BJV)

    def top_k(self, k: int, matrices: Matrices | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k best, or all where there are fewer; expand all of them only where that is quicker.

        Args:
            k: how many.
            matrices: of the search, if these are one of its steps.

        Returns:
            ``scores_BK`` in descending order, with gradients where they are asked for, ``parents_BK``, ``tokens_BK``.

        Example:
            >>> Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0, 0.0]]])).top_k(2)[2]
            tensor([[0, 2]])
        """
        # Scores that are differentiated or hold a cost are needed as they are.
        expand = torch.is_grad_enabled() or self.augmented or not self.many or 2 * (k + self.num_excluded) > MANY
        if expand:
            return hard_top_k(self.scores_BJV, min(k, self.scores_BJV.shape[1:].numel()))
        linear = None if matrices is None else matrices.of_head(self.head, self.features_BJH.shape[-1])
        return best_of_many(
            self._logits() if linear is None else linear.scores(self.features_BJH),
            self.slot_terms(),
            k,
            log_partition_weight=self.score.log_partition_weight,
            constant=self.score.constant,
            end=self.end,
            excluded_BX=self.excluded_BX,
        )

    @property
    def many(self) -> bool:
        """Whether it pays not to expand them, and nobody has done it already."""
        if self.embedding_VD is None or "logits_BJV" in self.__dict__:
            return False
        return self.prefix_scores_BJ[:1].numel() * len(self.embedding_VD) >= MANY

    @property
    def num_excluded(self) -> int:
        """Number of candidates that may not be chosen."""
        return 0 if self.excluded_BX is None else self.excluded_BX.shape[1]

    @property
    def augmented(self) -> bool:
        """Whether the scores hold a cost."""
        return self.cost is not None and self.score.cost_weight != 0

    @property
    def asked(self) -> Asked:
        """Questions that the search will ask of a selection of these; for the candidates of a search only."""
        assert self.embedding_VD is not None
        return Asked(self.embedding_VD, self.cost, self.end)

    def slot_terms(self) -> SlotTerms:
        """Terms of the scores of all candidates, without expanding them."""
        constant, end = self.score.constant, self.end
        return slot_terms(self.prefix_scores_BJ, self.finished_BJ, constant=constant, end=end)

    def open_shares(self, parents_BM: Tensor, tokens_BM: Tensor) -> Tensor:
        """Factor by which having ended lowers the odds of some candidates: 1 where a slot has not ended."""
        return open_shares(self.finished_BJ, parents_BM, tokens_BM, end=self.end)

    def of_inputs(self, inputs_I: Tensor) -> Candidates:
        """Select the candidates of some of the inputs, in the given order."""
        cost_again = self.cost_again
        return replace(
            self,
            prefix_scores_BJ=self.prefix_scores_BJ[inputs_I],
            features_BJH=self.features_BJH[inputs_I],
            finished_BJ=self.finished_BJ[inputs_I],
            cost=None if self.cost is None else self.cost[inputs_I],
            cost_again=None if cost_again is None else lambda: cost_again()[inputs_I],
            excluded_BX=None if self.excluded_BX is None else self.excluded_BX[inputs_I],
        )

    def without(self, excluded_BX: Tensor) -> Candidates:
        """Exclude candidates, each named by slot x V + token.

        Nothing is expanded here, and what this instance has expanded is not shared: expand one of the two.
        """
        if self.excluded_BX is not None:
            excluded_BX = torch.cat([self.excluded_BX, excluded_BX], dim=1)
        return replace(self, excluded_BX=excluded_BX)

    def _logits(self) -> Tensor:
        """Unnormalised scores, float32 at least: a gap of 0.1 at score -50 is lost in bfloat16."""
        logits_BJV = self.head(self.features_BJH)
        return logits_BJV.float() if logits_BJV.dtype in (torch.float16, torch.bfloat16) else logits_BJV
