"""Exact search: the k best outputs of a locally normalised model, with a certificate that no other scores higher.

If every token adds at most 0, the score of a prefix is an upper bound for all outputs that begin with it. Prefixes are
expanded best first; those that score no higher than the k-th best output so far are skipped.

Shapes: B batch, J prefixes expanded together, K outputs, Q open prefixes of one length, R prefixes expanded so far, C
children kept, T steps, W tokens that may follow a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise import tree
from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.models.protocols import StepModel, require_evaluation_mode
from seqwise.names import ScoreName
from seqwise.search.beam import HELD, longest_search
from seqwise.search.candidates import Candidates, Score, as_score, local
from seqwise.search.language import Language, allowed_after, language_of, never_written, require_first_token
from seqwise.search.operators import hard_top_k
from seqwise.search.selection import HardSelection


@dataclass(frozen=True)
class BestOutputs:
    """The k best outputs of each input that a search found, and an upper bound on the score of all others.

    Attributes:
        tokens_BKT: int64, best first; with the end token, and :data:`~seqwise.search.beam.HELD` after it.
        scores_BK: minus infinity for missing outputs.
        bounds_B: no other output scores higher. Returned ones that do not score lower are therefore the best of all,
            even if the search was cut short.
        expansions_B: number of prefixes that the model expanded.
    """

    tokens_BKT: Tensor
    scores_BK: Tensor
    bounds_B: Tensor
    expansions_B: Tensor

    @property
    def certified_B(self) -> Tensor:
        """Whether these are the k best outputs, bool: no other scores higher than the last one."""
        return self.scores_BK[:, -1] >= self.bounds_B


@torch.no_grad()
def best_first(
    model: StepModel,
    context: Any,
    k: int,
    *,
    num_steps: int | Tensor,
    language: Language | None = None,
    score: Score | ScoreName = local,
    at_once: int = 16,
    most_expansions: int = 1000,
) -> BestOutputs:
    """Find the k best outputs exactly, by best-first search.

    With ``s(y_1..t) = sum_i log p(y_i | y_1..i-1)``, every continuation z has ``s(y z) <= s(y)``. The search expands
    prefixes that score higher than the k-th best output so far, until there are none. Any search with this bound must
    expand each prefix that scores higher than the k-th best output of all.

    A model step takes prefixes of one length, so lengths take turns, from short to long, and each step expands the best
    ``at_once`` prefixes of a length. The first round is a beam search with that many slots, which tends to find the
    best outputs; once they are found, only necessary prefixes are expanded.

    Args:
        model: a step model, in evaluation mode.
        context: what ``model.encode`` returned for the sources.
        k: number of outputs.
        num_steps: largest number of tokens, or the exact number for a model without end token; int or int64 (B,). As in
            a beam search, an output that has not ended by then counts as one.
        language: set of outputs to choose from; by default the model's own, or all outputs if it has none.
        score: local or renormalized, also by name; raw scores give no bound.
        at_once: number of prefixes of each input to expand in one model step.
        most_expansions: number of prefixes of each input after which the search is cut short. Time and memory are
            proportional to it, as a decoder state is kept for each prefix.

    Returns:
        The ranked outputs, like those of a sufficiently large beam; ``certified_B`` tells which inputs were not cut
        short. Results do not depend on the rest of the batch.

    Raises:
        InputError: an argument is out of range, the score is not a log-probability, the model is in training mode, or
            the language has no output of this length, or none that the model can write.

    Source: Meister, Vieira and Cotterell (TACL 2020) for the order and the stopping rule; Stahlberg and Byrne (EMNLP
    2019) for the lower bound from complete outputs. Alternating lengths are new here.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import HardTopK, backtrace, beam_search
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> context = model.encode(collate([EncodedExample((1, 2, 3), ())]))
        >>> found = best_first(model, context, 2, num_steps=3)
        >>> every = beam_search(model, context, HardTopK(27), num_steps=3)
        >>> found.certified_B, torch.equal(found.tokens_BKT, backtrace(every)[:, :2])
        (tensor([True]), True)
    """
    score = as_score(score)
    _require_valid(score, k=k, at_once=at_once, most_expansions=most_expansions)
    require_evaluation_mode(model)
    limit = longest_search(num_steps)
    inputs_B1D, state = model.start(context)
    batch_size, device = len(inputs_B1D), inputs_B1D.device
    steps_B = torch.as_tensor(num_steps, device=device).expand(batch_size)
    scores_B1 = inputs_B1D.new_zeros(batch_size, 1, dtype=torch.promote_types(inputs_B1D.dtype, torch.float32))
    zeros_B1 = torch.zeros_like(scores_B1, dtype=torch.long)
    language = language_of(model) if language is None else language
    nodes_B1 = zeros_B1 if language is None else language.start(batch_size, device)
    if language is not None and limit > 0:
        require_first_token(allowed_after(language, nodes_B1, steps_B), steps_B)

    # An input without steps has one output, the empty one; every other input has one open prefix.
    is_over_B1 = (steps_B == 0)[:, None]
    best_BK = torch.where(is_over_B1, scores_B1, -torch.inf)
    best = _Outputs(F.pad(best_BK, (0, k - 1), value=-torch.inf), zeros_B1.new_full((batch_size, k, limit), HELD))
    first = _States()
    rows_B1 = first.add((state, zeros_B1.new_zeros(batch_size, 1, 0)), torch.ones_like(is_over_B1))
    open_prefixes = [_Open(scores_B1.masked_fill(is_over_B1, -torch.inf), rows_B1, zeros_B1, nodes_B1)]  # by length
    parents = [first]  # of the open prefixes, by length
    expansions_B, matrices = torch.zeros_like(steps_B), Matrices()
    has_expanded = limit > 0 and batch_size > 0
    while has_expanded:
        has_expanded = False
        for length in range(limit):
            if length == len(open_prefixes):
                break
            room_B1 = (most_expansions - expansions_B)[:, None]
            taken, open_prefixes[length] = open_prefixes[length].take(
                at_once, above_B1=best.scores_BK[:, -1:], room_B1=room_B1
            )
            live_BJ = taken.scores_BQ > -torch.inf
            if not bool(live_BJ.any()):
                continue
            has_expanded, expansions_B = True, expansions_B + live_BJ.sum(1)

            state, prefixes_BJT = parents[length].get(taken.rows_BQ)
            fed_BJD = inputs_B1D
            if length > 0:
                fed_BJD = F.embedding(taken.tokens_BQ, model.embedding_VD)
                prefixes_BJT = torch.cat([prefixes_BJT, taken.tokens_BQ[..., None]], 2)
            features_BJH, state = model.step(fed_BJD, state, context, length)
            candidates = Candidates(
                prefix_scores_BJ=taken.scores_BQ,
                features_BJH=features_BJH,
                head=model.head,
                score=score,
                finished_BJ=torch.zeros_like(taken.scores_BQ),
                end=model.end,
                step=length,
                embedding_VD=model.embedding_VD,
            )
            if language is not None:
                candidates = candidates.within(allowed_after(language, taken.nodes_BQ, steps_B - length), matrices)
            is_complete_BJW = _ends(candidates) | (steps_B == length + 1)[:, None, None]

            complete = _best_of(candidates, is_complete_BJW, k)
            outputs_BKT = torch.cat([tree.gather(prefixes_BJT, complete.parents_BK), complete.tokens_BK[..., None]], 2)
            outputs_BKT = F.pad(outputs_BKT, (0, limit - length - 1), value=HELD)
            best = best.joined(_Outputs(complete.scores_BK, outputs_BKT), k)
            if length + 1 == limit:
                continue

            # A child dropped here could not be expanded within the limit, and scores no higher than those kept.
            kept = _best_of(candidates, ~is_complete_BJW, most_expansions + 1)
            if length + 1 == len(parents):
                parents.append(_States())
            rows_BJ = parents[length + 1].add((state, prefixes_BJT), live_BJ)
            nodes_BK = kept.tokens_BK
            if language is not None:
                nodes_BK = language.advance(taken.nodes_BQ, kept.parents_BK, kept.tokens_BK)
            children = _Open(kept.scores_BK, rows_BJ.gather(1, kept.parents_BK), kept.tokens_BK, nodes_BK)
            if length + 1 == len(open_prefixes):
                open_prefixes.append(children)
            else:
                children = open_prefixes[length + 1].joined(children)
            open_prefixes[length + 1] = children.best(most_expansions + 1, above_B1=best.scores_BK[:, -1:])
    bounds_B = best.scores_BK[:, -1]
    for prefixes in open_prefixes:
        bounds_B = torch.maximum(bounds_B, prefixes.scores_BQ.amax(1))
    if language is not None and bool((torch.maximum(bounds_B, best.scores_BK[:, 0]) == -torch.inf).any()):
        raise never_written()
    tokens_BKT = best.tokens_BKT.masked_fill((best.scores_BK == -torch.inf)[..., None], HELD)
    return BestOutputs(tokens_BKT, best.scores_BK, bounds_B, expansions_B)


def _require_valid(score: Score, *, k: int, at_once: int, most_expansions: int) -> None:
    numbers = {
        "number of outputs k": k,
        "number of prefixes expanded at once": at_once,
        "largest number of expansions": most_expansions,
    }
    for name, number in numbers.items():
        if number < 1:
            raise InputError(f"the {name} must be at least 1, got {number}")
    if (score.log_partition_weight, score.cost_weight, score.constant) != (1, 0, 0):
        raise InputError(
            "best-first search needs a score that is at most 0 for every token, and this one may be higher",
            hint="use local or renormalized",
        )


def _ends(candidates: Candidates) -> Tensor:
    """Whether each candidate is the end token, (B, J, W) or broadcastable to it."""
    if candidates.end is None:
        return torch.zeros(1, 1, 1, dtype=torch.bool, device=candidates.prefix_scores_BJ.device)
    if candidates.allowed_BJC is not None:
        return candidates.allowed_BJC == candidates.end
    width = candidates.scores_BJW.shape[-1]
    return (torch.arange(width, device=candidates.prefix_scores_BJ.device) == candidates.end)[None, None]


def _best_of(candidates: Candidates, kept_BJW: Tensor, k: int) -> HardSelection:
    """Return the k best candidates, or all if there are fewer; minus infinity replaces the others."""
    scores_BJW = candidates.scores_BJW.masked_fill(~kept_BJW, -torch.inf)
    scores_BK, parents_BK, columns_BK = hard_top_k(scores_BJW, min(k, scores_BJW[0].numel()))
    return HardSelection(scores_BK, parents_BK, candidates.tokens_at(parents_BK, columns_BK))


class _Outputs(NamedTuple):
    """Complete outputs, best first."""

    scores_BK: Tensor
    tokens_BKT: Tensor

    def joined(self, others: _Outputs, k: int) -> _Outputs:
        scores_BK, order_BK = torch.cat([self.scores_BK, others.scores_BK], 1).topk(k)
        return _Outputs(scores_BK, tree.gather(torch.cat([self.tokens_BKT, others.tokens_BKT], 1), order_BK))


class _Open(NamedTuple):
    """Open prefixes of one length, not ordered: scores, rows of their parents, last tokens and nodes.

    A score of minus infinity marks an unused entry.
    """

    scores_BQ: Tensor
    rows_BQ: Tensor
    tokens_BQ: Tensor
    nodes_BQ: Tensor

    def take(self, count: int, *, above_B1: Tensor, room_B1: Tensor) -> tuple[_Open, _Open]:
        """Split off the best prefixes that score above a threshold, as many as fit; return them and the rest."""
        scores_BJ, places_BJ = self.scores_BQ.topk(min(count, self.scores_BQ.shape[1]))
        taken_BJ = (scores_BJ > above_B1) & (torch.arange(scores_BJ.shape[1], device=scores_BJ.device) < room_B1)
        left_BJ = scores_BJ.masked_fill(taken_BJ, -torch.inf)
        rest = self._replace(scores_BQ=self.scores_BQ.scatter(1, places_BJ, left_BJ))
        num_slots = int(taken_BJ.sum(1).max())
        scores_BJ = scores_BJ.masked_fill(~taken_BJ, -torch.inf)[:, :num_slots]
        return self._at(places_BJ[:, :num_slots])._replace(scores_BQ=scores_BJ), rest

    def joined(self, others: _Open) -> _Open:
        """Return the union."""
        return _Open(*(torch.cat(pair, 1) for pair in zip(self, others, strict=True)))

    def best(self, count: int, *, above_B1: Tensor) -> _Open:
        """Return the best prefixes that score above a threshold, and possibly some others."""
        num_above = int((self.scores_BQ > above_B1).sum(1).max())
        return self._at(self.scores_BQ.topk(max(1, min(num_above, count))).indices)

    def _at(self, places_BJ: Tensor) -> _Open:
        return _Open(*(leaf.gather(1, places_BJ) for leaf in self))


class _States:
    """Decoder states and tokens of expanded prefixes of one length, in rows of a growing buffer."""

    def __init__(self) -> None:
        self._leaves: Any = None
        self._size = self._room = 0

    def add(self, state: Any, live_BJ: Tensor) -> Tensor:
        """Add the live ones of some slots, (B, J, ...), and return their rows, (B, J)."""
        # Slots whose pasts share a cache are copied into separate tensors.
        state = tree.map(lambda leaf: leaf if isinstance(leaf, Tensor) else leaf.dense(), state)
        new = tree.map(lambda leaf: leaf[live_BJ][None], state)
        first, count = self._size, int(live_BJ.sum())
        self._size += count
        if first == 0:
            self._leaves, self._room = new, count
        else:
            if self._size > self._room:  # doubled, so that all copies together cost no more than what is written
                more = max(count, self._room)
                self._room += more
                self._leaves = tree.map(
                    lambda leaf: torch.cat([leaf, leaf.new_empty(1, more, *leaf.shape[2:])], 1), self._leaves
                )
            tree.map(lambda leaf, added: leaf[:, first : self._size].copy_(added), self._leaves, new)
        rows_BJ = torch.zeros_like(live_BJ, dtype=torch.long)
        rows_BJ[live_BJ] = torch.arange(first, self._size, device=live_BJ.device)
        return rows_BJ

    def get(self, rows_BJ: Tensor) -> Any:
        """Return states by their rows: (B, J, ...)."""
        states = tree.gather(self._leaves, rows_BJ.reshape(1, -1))
        return tree.map(lambda leaf: leaf[0].unflatten(0, rows_BJ.shape), states)
