"""The candidates of one step: every extension of every live slot by one token, with its score.

Shapes: B batch, J slots, V vocabulary, C tokens that a language allows after a slot, W = C or V, H features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from seqwise import tree
from seqwise.devices import at_least_float32, reading_is_free
from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.models.heads import log_partition
from seqwise.names import NormalizedOver, ScoreName
from seqwise.search.ending import SlotTerms, finish, finish_where, open_shares, slot_terms
from seqwise.search.language import Allowed
from seqwise.search.large_vocabulary.blocks import best_of_many
from seqwise.search.operators import finite, hard_top_k
from seqwise.search.selection import TokenValues

# J x V from which it pays not to expand the candidates; below, launching operations dominates.
MANY = 4096
# The same for B x J x V on a GPU, whose passes are fast and which needs few launches to stay busy.
MANY_ON_A_DEVICE = 2**25
# V over the number of allowed tokens below which all V are scored: looking up a row of the head costs about eight times
# as much as a row of a product.
WIDE = 8


@dataclass(frozen=True)
class Score:
    """Score that a token adds to a hypothesis: ``f(h, w) - c log Z(h) - m + b d(w)``.

    Args:
        log_partition_weight: c; 1 gives the local (log-softmax) score, 0 the raw or global one.
        cost_weight: b; 1 in cost-augmented search, which finds hypotheses that are both probable and wrong.
        constant: m, in nats; see :func:`shifted`.
        over: tokens that Z sums over: the vocabulary, or those that a language allows after the prefix
            (:data:`renormalized`).

    Source: Goyal et al. (NAACL 2019), section 2 (local and global), Goyal et al. (AAAI 2018), section 2.5 (augmented).

    Example:
        >>> logits = torch.tensor([0.0, 0.0])
        >>> local(logits), global_(logits)
        (tensor([-0.6931, -0.6931]), tensor([0., 0.]))
    """

    log_partition_weight: float
    cost_weight: float = 0.0
    constant: float = 0.0
    over: NormalizedOver = "vocabulary"

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn unnormalised scores (..., V) into the scores that tokens add to a hypothesis, without cost."""
        added = logits
        if self.log_partition_weight != 0:
            # If a model excludes every token, log Z is minus infinity and the softmax is NaN.
            added = finite(logits).log_softmax(-1).masked_fill(logits == -torch.inf, -torch.inf)
        if self.log_partition_weight not in (0.0, 1.0):
            added = (1 - self.log_partition_weight) * logits + self.log_partition_weight * added
        return added if self.constant == 0 else added - self.constant


local = Score(log_partition_weight=1.0)
"""The locally normalised score ``f - log Z``: log-softmax."""

global_ = Score(log_partition_weight=0.0)
"""The raw score f; a model trained through search with it is globally normalised."""

renormalized = Score(log_partition_weight=1.0, over="allowed")
"""The locally normalised score with Z summed over the allowed tokens only; without a language, ``local``."""


def as_score(score: Score | ScoreName) -> Score:
    """Return the given score, or the one named "local", "global" or "renormalized".

    Raises:
        InputError: no score has that name.

    Example:
        >>> as_score("global") == global_, as_score(local) == local
        (True, True)
    """
    if isinstance(score, Score):
        return score
    named = dict(zip(get_args(ScoreName), (local, global_, renormalized), strict=True))
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
    """Raw score minus a constant per token, ``f - m``, so that outputs of different lengths can be compared.

    If all outputs have the same length, the order is that of the raw score. Otherwise, each token adds its log Z to a
    raw score: long outputs win if log Z is positive on average, short ones if it is negative. With m = mean log Z, a
    token adds its log-probability on average, and the differences of log Z between prefixes are kept. Hypotheses that
    have ended lose nothing more.

    Args:
        constant: m, in nats per token: the mean of log Z over the gold tokens of development data, end tokens
            included.

    Raises:
        InputError: m is not finite.

    Example:
        >>> shifted(2.0)(torch.tensor([5.0, 2.0])), shifted(0.0) == global_
        (tensor([3., 0.]), True)
    """
    if not math.isfinite(constant):
        raise InputError(f"the constant subtracted from each token's score must be finite, got {constant}")
    return Score(log_partition_weight=0.0, constant=constant)


def cost_augmented(score: Score | ScoreName) -> Score:
    """Add the cost of each token to a score, for the search of a hinge loss (Goyal et al. 2018, section 2.5).

    Example:
        >>> cost_augmented(local).cost_weight
        1.0
    """
    return replace(as_score(score), cost_weight=1.0)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """J slots x V tokens, expanded only on demand: many selections need less than all scores.

    Args:
        prefix_scores_BJ: score of each slot so far; minus infinity marks a dead slot.
        features_BJH: inputs of the model's head.
        head: function from features to unnormalised scores.
        score: score that a token adds.
        cost: cost of each token at this step, (B, V) or per slot (B, J, V), or None.
        recompute_cost: function that computes the same (B, V), so that it need not be saved for the backward pass; None
            without a cost, or if the cost depends on more than the step.
        finished_BJ: finished mass of each slot, in [0, 1].
        end: id of the end token, or None.
        step: number of tokens that the slots have already.
        excluded_BX: candidates that may not be chosen, each as slot x V + token, int64; None excludes nothing.
        allowed: tokens that may follow each slot; None allows all.
        matrices: matrices of the search, for products with some rows of a linear head; None without a language.
        embedding_VD: embedding of each token, from which the search feeds the chosen ones; None outside a search.

    With ``allowed``, scores have one column for each of its C tokens, in the same order, in place of V columns.
    """

    prefix_scores_BJ: Tensor
    features_BJH: Tensor
    head: Callable[[Tensor], Tensor]
    score: Score
    cost: Tensor | None = None
    recompute_cost: Callable[[], Tensor] | None = None
    finished_BJ: Tensor
    end: int | None = None
    step: int = 0
    excluded_BX: Tensor | None = None
    allowed: Allowed | None = None
    matrices: Matrices | None = None
    embedding_VD: Tensor | None = None

    @staticmethod
    def of_scores(added_BJV: Tensor, *, prefix_scores_BJ: Tensor | None = None) -> Candidates:
        """Make candidates from the score that each token adds to each slot; slots have score 0 by default.

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

    def places(self, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """Return the indices, among the J x W candidates, of given slots and allowed tokens."""
        if self.allowed_BJC is None:
            return parents_BK * self.scores_BJW.shape[-1] + tokens_BK
        allowed_BKC = tree.gather(self.allowed_BJC, parents_BK)
        columns_BK = (allowed_BKC == tokens_BK[..., None]).to(torch.uint8).argmax(-1)
        return parents_BK * allowed_BKC.shape[-1] + columns_BK

    def tokens_at(self, parents_BK: Tensor, columns_BK: Tensor) -> Tensor:
        """Return the tokens of given slots and columns of the scores."""
        if self.allowed_BJC is None:
            return columns_BK
        inputs_B1 = torch.arange(len(parents_BK), device=parents_BK.device)[:, None]
        return self.allowed_BJC[inputs_B1, parents_BK, columns_BK].clamp(min=0)

    @cached_property
    def allowed_BJC(self) -> Tensor | None:
        """Tokens that may follow each slot, int64, -1 in unused places; None if all may."""
        return None if self.allowed is None else self.allowed.spread(self.allowed.rows_UC)

    @cached_property
    def logits_BJV(self) -> Tensor:
        """Unnormalised scores of the model, at least float32."""
        return self._logits(None if torch.is_grad_enabled() else self.matrices)

    @cached_property
    def all_scores_BJW(self) -> Tensor:
        """``s~[i, w]``, the score of slot i extended by w (thesis, Algorithms 1 and 3, line 5)."""
        allowed = self.allowed
        if allowed is None:
            added_BJW = self.score(self.logits_BJV)
            if self.end is not None:
                added_BJW = finish(added_BJW, self.finished_BJ, self.end)
        else:
            added_BJW = self._added_by(allowed)
            if self.end is not None:
                added_BJW = finish_where(added_BJW, self.finished_BJ, allowed.spread(allowed.rows_UC == self.end))
        if self.cost is not None and self.augmented:
            cost_BJW = self.cost if self.cost.dim() == 3 else self.cost[:, None]
            if allowed is not None:
                tokens_BJC = allowed.spread(allowed.rows_UC.clamp(min=0))
                cost_BJW = cost_BJW.expand(-1, tokens_BJC.shape[1], -1).gather(2, tokens_BJC)
            added_BJW = added_BJW + self.score.cost_weight * cost_BJW
        return self.prefix_scores_BJ[..., None] + added_BJW

    @cached_property
    def scores_BJW(self) -> Tensor:
        """Scores by which a selection chooses: ``s~[i, w]``, minus infinity for excluded candidates."""
        if self.excluded_BX is None:
            return self.all_scores_BJW
        if self.allowed_BJC is None:
            scores_BN = self.all_scores_BJW.flatten(1).scatter(1, self.excluded_BX, -torch.inf)
            return scores_BN.view_as(self.all_scores_BJW)
        slots_B11X = (self.excluded_BX // self.vocabulary_size)[:, None, None]
        tokens_B11X = (self.excluded_BX % self.vocabulary_size)[:, None, None]
        slots_J11 = torch.arange(self.allowed_BJC.shape[1], device=slots_B11X.device)[:, None, None]
        excluded_BJCX = (self.allowed_BJC[..., None] == tokens_B11X) & (slots_J11 == slots_B11X)
        return self.all_scores_BJW.masked_fill(excluded_BJCX.any(-1), -torch.inf)

    @property
    def scores_BJV(self) -> Tensor:
        """Scores of all V tokens, minus infinity for candidates that are excluded or not allowed."""
        if self.allowed_BJC is None:
            return self.scores_BJW
        is_token_BJC, tokens_BJC = self.allowed_BJC >= 0, self.allowed_BJC.clamp(min=0)
        none_BJV = self.scores_BJW.new_full((*tokens_BJC.shape[:2], self.vocabulary_size), -torch.inf)
        # Unused places, which are mapped to token 0, add a minus infinity to its maximum.
        scores_BJC = self.scores_BJW.masked_fill(~is_token_BJC, -torch.inf)
        return none_BJV.scatter_reduce(2, tokens_BJC, scores_BJC, "amax")

    def _added_by(self, allowed: Allowed) -> Tensor:
        """Compute the scores that allowed tokens add to an unfinished slot, without cost: (B, J, C)."""
        weight, tokens_BJC = self.score.log_partition_weight, allowed.spread(allowed.rows_UC.clamp(min=0))
        over_all = weight != 0 and self.score.over == "vocabulary"
        if over_all:
            is_kept = torch.is_grad_enabled() or "logits_BJV" in self.__dict__
            # Without gradients, they are not kept, so that the next step reuses their memory.
            logits_BJV = self.logits_BJV if is_kept else self._logits(self.matrices)
            logits_BJC = logits_BJV.gather(2, tokens_BJC)
        else:
            logits_BJC = self._logits_of(tokens_BJC)
        is_unused_UC = allowed.rows_UC < 0
        if not reading_is_free(is_unused_UC) or bool(is_unused_UC.any()):
            logits_BJC = torch.where(allowed.spread(is_unused_UC), -torch.inf, logits_BJC)
        added_BJC = logits_BJC if self.score.constant == 0 else logits_BJC - self.score.constant
        if weight == 0:
            return added_BJC
        logits_BJW = logits_BJV if over_all else logits_BJC
        if torch.is_grad_enabled():  # finite first: else the gradient is NaN where all tokens are excluded
            return added_BJC - weight * finite(logits_BJW).logsumexp(-1, keepdim=True)
        return added_BJC - weight * finite(log_partition(logits_BJW))[..., None]

    def _logits_of(self, tokens_BJC: Tensor) -> Tensor:
        """Logits of some tokens, from their rows of a linear head unless computing all is cheaper or already done."""
        linear = None
        if not torch.is_grad_enabled() and self.matrices is not None and "logits_BJV" not in self.__dict__:
            linear = self.matrices.of_head(self.head, self.features_BJH.shape[-1])
        if linear is None or WIDE * tokens_BJC.shape[-1] > len(linear.weight_VD):
            return self.logits_BJV.gather(2, tokens_BJC)
        logits_BJC = torch.einsum("bjch,bjh->bjc", linear.weight_VD[tokens_BJC], self.features_BJH)
        if linear.bias_V is not None:
            logits_BJC = logits_BJC + linear.bias_V[tokens_BJC]
        return at_least_float32(logits_BJC)

    def top_k(self, k: int, matrices: Matrices | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k best candidates, or all if there are fewer; expand all of them only if that is faster.

        Args:
            k: number of candidates.
            matrices: matrices of the search that these candidates belong to, if any.

        Returns:
            ``scores_BK`` in descending order, with gradients if enabled, ``parents_BK`` and ``tokens_BK``.

        Example:
            >>> Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0, 0.0]]])).top_k(2)[2]
            tensor([[0, 2]])
        """
        # Gradients and cost-augmented scores need the expanded form.
        must_expand = torch.is_grad_enabled() or self.augmented
        if must_expand or not self.many or self._few_for_a_device or 2 * (k + self.num_excluded) > MANY:
            scores_BK, parents_BK, columns_BK = hard_top_k(self.scores_BJW, min(k, self.scores_BJW.shape[1:].numel()))
            return scores_BK, parents_BK, self.tokens_at(parents_BK, columns_BK)
        logits_BJV, log_partition_BJ, terms = self._logits(matrices), None, self.slot_terms()
        if self.allowed is not None:
            if self.score.over == "vocabulary" and self.score.log_partition_weight != 0:
                log_partition_BJ = log_partition(logits_BJV)
            # What the head returned may be the model's own.
            is_new = matrices is not None and matrices.of_head(self.head, self.features_BJH.shape[-1]) is not None
            logits_BJV = self.allowed.mask_(logits_BJV if is_new else logits_BJV.clone())
            if self.end is not None:  # else a finished slot would stay in a language that does not allow its end
                ends_U1 = (self.allowed.rows_UC == self.end).any(-1, keepdim=True)
                staying_BJ = terms.staying_BJ.masked_fill(~self.allowed.spread(ends_U1)[..., 0], -torch.inf)
                terms = terms._replace(staying_BJ=staying_BJ)
        return best_of_many(
            logits_BJV,
            terms,
            k,
            log_partition_weight=self.score.log_partition_weight,
            log_partition_BJ=log_partition_BJ,
            constant=self.score.constant,
            end=self.end,
            excluded_BX=self.excluded_BX,
        )

    @property
    def many(self) -> bool:
        """Whether there are so many candidates, not yet expanded, that it pays not to expand them."""
        if self.embedding_VD is None or not self.__dict__.keys().isdisjoint(("logits_BJV", "all_scores_BJW")):
            return False
        vocabulary_size = len(self.embedding_VD)
        if self.allowed is not None and WIDE * self.allowed.rows_UC.shape[1] <= vocabulary_size:
            return False
        return self.prefix_scores_BJ[:1].numel() * vocabulary_size >= MANY

    @property
    def _few_for_a_device(self) -> bool:
        if reading_is_free(self.prefix_scores_BJ):
            return False
        return self.prefix_scores_BJ.numel() * self.vocabulary_size < MANY_ON_A_DEVICE

    @property
    def log_allowed_mass_BJ(self) -> Tensor:
        """Log of the probability that each slot's local distribution gives to its allowed tokens.

        It is 0 without a language, and for hypotheses that have ended.

        Example:
            >>> candidates = Candidates.of_scores(torch.zeros(1, 1, 4)).within(torch.tensor([[[2, 1, -1]]]))
            >>> candidates.log_allowed_mass_BJ.exp()
            tensor([[0.5000]])
        """
        if self.allowed_BJC is None:
            return torch.zeros_like(self.prefix_scores_BJ)
        logits_BJC = self.logits_BJV.gather(2, self.allowed_BJC.clamp(min=0))
        allowed_BJ = finite(logits_BJC.masked_fill(self.allowed_BJC < 0, -torch.inf)).logsumexp(-1)
        mass_BJ = allowed_BJ - log_partition(finite(self.logits_BJV))
        return mass_BJ.masked_fill(self.finished_BJ == 1, 0.0)

    @property
    def vocabulary_size(self) -> int:
        """Vocabulary size of the model."""
        return self.logits_BJV.shape[-1] if self.embedding_VD is None else len(self.embedding_VD)

    @property
    def num_excluded(self) -> int:
        """Number of candidates that may not be chosen."""
        return 0 if self.excluded_BX is None else self.excluded_BX.shape[1]

    @property
    def augmented(self) -> bool:
        """Whether the scores contain a cost."""
        return self.cost is not None and self.score.cost_weight != 0

    @property
    def token_values(self) -> TokenValues:
        """Values that the search sums over the selected tokens; for candidates of a search only."""
        assert self.embedding_VD is not None
        return TokenValues(self.embedding_VD, self.cost, self.end)

    def slot_terms(self) -> SlotTerms:
        """Terms of the scores of all candidates, without expanding them."""
        constant, end = self.score.constant, self.end
        return slot_terms(self.prefix_scores_BJ, self.finished_BJ, constant=constant, end=end)

    def open_shares(self, parents_BM: Tensor, tokens_BM: Tensor) -> Tensor:
        """Factor by which finished mass lowers the odds of some candidates: 1 if the slot has not ended."""
        return open_shares(self.finished_BJ, parents_BM, tokens_BM, end=self.end)

    def of_inputs(self, inputs_I: Tensor) -> Candidates:
        """Select the candidates of some of the inputs, in the given order."""
        recompute_cost = self.recompute_cost
        return replace(
            self,
            prefix_scores_BJ=self.prefix_scores_BJ[inputs_I],
            features_BJH=self.features_BJH[inputs_I],
            finished_BJ=self.finished_BJ[inputs_I],
            cost=None if self.cost is None else self.cost[inputs_I],
            recompute_cost=None if recompute_cost is None else lambda: recompute_cost()[inputs_I],
            excluded_BX=None if self.excluded_BX is None else self.excluded_BX[inputs_I],
            allowed=None if self.allowed_BJC is None else Allowed.of(self.allowed_BJC[inputs_I]),
        )

    def without(self, excluded_BX: Tensor) -> Candidates:
        """Exclude candidates, each given as slot x V + token.

        Scores that this instance has expanded are not shared with the new one: expand only one of the two.
        """
        if self.excluded_BX is not None:
            excluded_BX = torch.cat([self.excluded_BX, excluded_BX], dim=1)
        return replace(self, excluded_BX=excluded_BX)

    def within(self, allowed: Allowed | Tensor, matrices: Matrices | None = None) -> Candidates:
        """Keep the candidates whose tokens are allowed, (B, J, C) or their rows; scores are computed from these alone.

        Example:
            >>> every = Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0]]]))
            >>> allowed = every.within(torch.tensor([[[2, 1, -1]]]))
            >>> allowed.scores_BJW, allowed.top_k(1)[2]
            (tensor([[[2., 1., -inf]]]), tensor([[2]]))
        """
        rows = Allowed.of(allowed) if isinstance(allowed, Tensor) else allowed
        return replace(self, allowed=rows, matrices=matrices)

    def _logits(self, matrices: Matrices | None = None) -> Tensor:
        linear = None if matrices is None else matrices.of_head(self.head, self.features_BJH.shape[-1])
        return at_least_float32(self.head(self.features_BJH)) if linear is None else linear.scores(self.features_BJH)
