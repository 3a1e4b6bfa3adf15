"""Beam search over large vocabularies chooses what it would choose of all candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqwise.data import EncodedExample, collate
from seqwise.decoding import Decoder, decode
from seqwise.models import EncoderDecoder
from seqwise.models.deferred_linear import Matrices
from seqwise.search import (
    Automaton,
    Candidates,
    HardTopK,
    Score,
    cost_augmented,
    global_,
    interpolated,
    local,
    renormalized,
    shifted,
)
from seqwise.search import candidates as module
from seqwise.search.ending import SlotTerms
from seqwise.search.language import Allowed
from seqwise.search.large_vocabulary.blocks import best_of_many
from seqwise.search.operators import hard_top_k

BATCH, SLOTS = 3, 4


def candidates(
    size: int, score: Score = local, *, end: int | None = 5, finished: Tensor | None = None, num_slots: int = SLOTS
) -> Candidates:
    """Features are the scores themselves, float64, no two alike."""
    logits_BJV = 3 * torch.randn(BATCH, num_slots, size, dtype=torch.float64)
    zeros_BJ = torch.zeros(BATCH, num_slots, dtype=torch.float64)
    return Candidates(
        prefix_scores_BJ=3 * torch.randn_like(zeros_BJ),
        features_BJH=logits_BJV,
        head=nn.Identity(),
        score=score,
        cost=None,
        finished_BJ=zeros_BJ if finished is None else finished,
        end=end,
        step=1,
        embedding_VD=torch.zeros(size, 2),
    )


def without_expanding(given: Candidates, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k best by blocks, for any number of candidates."""
    return best_of_many(
        given.features_BJH,
        given.slot_terms(),
        k,
        log_partition_weight=given.score.log_partition_weight,
        constant=given.score.constant,
        end=given.end,
        excluded_BX=given.excluded_BX,
    )


def require_the_same(given: Candidates, k: int) -> None:
    """Scores to rounding, and the very candidates wherever they live."""
    before_BJH = given.features_BJH.clone()
    scores_BK, parents_BK, tokens_BK = without_expanding(given, k)
    assert torch.equal(given.features_BJH, before_BJH), "what the head returned may be the model's own"
    wanted_BK, wanted_parents_BK, wanted_tokens_BK = hard_top_k(given.scores_BJV, k)
    torch.testing.assert_close(scores_BK, wanted_BK, rtol=0, atol=1e-12)
    live_BK = wanted_BK > -torch.inf
    assert live_BK[:, 0].all()
    assert torch.equal(parents_BK[live_BK], wanted_parents_BK[live_BK])
    assert torch.equal(tokens_BK[live_BK], wanted_tokens_BK[live_BK])
    assert ((tokens_BK >= 0) & (tokens_BK < given.scores_BJV.shape[2])).all(), "no slot may hold what is no token"


@pytest.mark.parametrize("score", [local, global_, interpolated(0.3), shifted(2.5)], ids=["1", "0", "0.3", "shifted"])
@pytest.mark.parametrize("size", [9, 64, 65, 200, 1000])
@pytest.mark.parametrize("end", [None, 0, -1])
def test_the_best_are_those_of_all(size: int, score: Score, end: int | None) -> None:
    for k in (1, SLOTS, 12):
        require_the_same(candidates(size, score, end=end if end is None else end % size), k)
    require_the_same(candidates(size, score, num_slots=1), 4)


@pytest.mark.parametrize("score", [local, global_, shifted(2.5)], ids=["local", "global", "shifted"])
def test_finished_and_dead_slots(score: Score) -> None:
    finished_BJ = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
    given = candidates(150, score, finished=finished_BJ)
    require_the_same(given, SLOTS)
    dead_BJ = torch.tensor([[False, True, False, True], [False, False, True, True], [False, True, True, True]])
    require_the_same(replace(given, prefix_scores_BJ=given.prefix_scores_BJ.masked_fill(dead_BJ, -torch.inf)), SLOTS)


@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
def test_excluded_tokens(score: Score) -> None:
    """A forced token, an end that may not come yet, and slots from which nothing can follow."""
    given = candidates(150, score)
    logits_BJV = given.features_BJH
    logits_BJV[0, :, torch.arange(150) != 7] = -torch.inf
    logits_BJV[1, :, 5] = -torch.inf
    logits_BJV[2, :3] = -torch.inf
    require_the_same(given, SLOTS)


@pytest.mark.parametrize("end", [None, 5])
def test_excluded_candidates(end: int | None) -> None:
    """The best of all, tokens of every slot, a slot's end, and one twice."""
    given = candidates(150, end=end)
    _, parents_BK, tokens_BK = hard_top_k(given.scores_BJV, 6)
    ends_BJ = 150 * torch.arange(SLOTS).expand(BATCH, -1) + 5
    excluded_BX = torch.cat([150 * parents_BK + tokens_BK, ends_BJ - 1, ends_BJ[:, :2], ends_BJ[:, :1]], dim=1)
    fresh = replace(given)  # nothing is expanded yet
    require_the_same(fresh.without(excluded_BX), SLOTS)
    require_the_same(replace(fresh, finished_BJ=torch.ones_like(fresh.finished_BJ)).without(ends_BJ[:, :2]), 2)


def test_the_end_of_every_slot_may_be_the_best() -> None:
    given = candidates(150)
    given.features_BJH[..., 5] += 20.0
    _, _, tokens_BK = without_expanding(given, SLOTS)
    assert (tokens_BK == 5).all()
    require_the_same(given, SLOTS)
    # Half finished, an end adds half of what it says: none is among the best although they say the most.
    half_BJ = torch.full((BATCH, SLOTS), 0.5, dtype=torch.float64)
    half = candidates(150, global_, finished=half_BJ)
    half.features_BJH.add_(600.0)[..., 5] += 20.0
    assert (without_expanding(half, SLOTS)[2] != 5).all()
    require_the_same(half, SLOTS)


# ------------------------------------------------------------------------------------------------------ in a language


def allowed_rows(size: int, case: int, num_rows: int) -> Allowed:
    """Four in five tokens in any order; half have unused places."""
    rows_UC = torch.stack([torch.randperm(size)[: 4 * size // 5] for _ in range(num_rows)])
    if case % 2:
        rows_UC = rows_UC.masked_fill(torch.rand(rows_UC.shape) < 0.1, -1)
    return Allowed(rows_UC, (BATCH, SLOTS), torch.randint(num_rows, (BATCH * SLOTS,)))


SCORES_INSIDE = {"local": local, "global": global_, "renormalized": renormalized, "shifted": shifted(2.5)}


@pytest.mark.parametrize("score", SCORES_INSIDE.values(), ids=SCORES_INSIDE)
@pytest.mark.parametrize("num_rows", [1, 2, BATCH * SLOTS])
@pytest.mark.parametrize("end", [None, 5])
def test_the_best_of_many_allowed_tokens(score: Score, num_rows: int, end: int | None, taken: list[int]) -> None:
    """The oracle sums over tokens slot by slot; ends are far better than other tokens, or excluded."""
    finished_BJ = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    for case in range(20):
        given = candidates(1500, score, end=end, finished=finished_BJ if end is not None and case % 2 else None)
        if end is not None:
            given.features_BJH[..., end] += 20.0 if case % 3 else -torch.inf
        if case % 5 == 0:
            given.features_BJH[0, 3] = -torch.inf
        allowed = allowed_rows(1500, case, num_rows)
        allowed_BJC = allowed.spread(allowed.rows_UC)
        if end is not None and num_rows > 2:  # after an end, only the end is allowed
            ended_BJ1 = (given.finished_BJ == 1)[..., None]
            only_the_end_C = torch.full_like(allowed_BJC[0, 0], -1).index_fill(0, torch.tensor([case]), end)
            allowed_BJC = torch.where(ended_BJ1, only_the_end_C, allowed_BJC)
            allowed = Allowed.of(allowed_BJC)
        dead_BJ = torch.rand(BATCH, SLOTS) < 0.2 * (torch.arange(SLOTS) > 2)
        given = replace(given, prefix_scores_BJ=given.prefix_scores_BJ.masked_fill(dead_BJ, -torch.inf))
        before_BJH = given.features_BJH.clone()
        with torch.no_grad():
            taken.clear()
            scores_BK, parents_BK, tokens_BK = given.within(allowed, Matrices()).top_k(case + 1)
            assert taken == [case + 1]
        assert torch.equal(given.features_BJH, before_BJH), "what the head returned may be the model's own"
        wanted_BK, wanted_parents_BK, wanted_tokens_BK = hard_top_k(scores_inside(given, allowed_BJC), case + 1)
        torch.testing.assert_close(scores_BK, wanted_BK, rtol=0, atol=1e-12)
        live_BK = wanted_BK > -torch.inf
        assert torch.equal(parents_BK[live_BK], wanted_parents_BK[live_BK])
        assert torch.equal(tokens_BK[live_BK], wanted_tokens_BK[live_BK])
        assert ((tokens_BK >= 0) & (tokens_BK < 1500)).all()


def scores_inside(given: Candidates, allowed_BJC: Tensor) -> Tensor:
    """Scores of all tokens, slot by slot, minus infinity for those that are not allowed."""
    logits_BJV, score = given.features_BJH, given.score
    scores_BJV = torch.full_like(logits_BJV, -torch.inf)
    for row, slot in itertools.product(range(BATCH), range(SLOTS)):
        tokens = [token for token in allowed_BJC[row, slot].tolist() if token >= 0]
        logits_V, prefix = logits_BJV[row, slot], given.prefix_scores_BJ[row, slot]
        summed = logits_V[tokens] if score.over == "allowed" else logits_V
        shift = score.log_partition_weight * summed.exp().sum().log() + score.constant
        if given.finished_BJ[row, slot] == 1:
            scores_BJV[row, slot, [token for token in tokens if token == given.end]] = prefix
        elif (summed > -torch.inf).any():
            scores_BJV[row, slot, tokens] = prefix + logits_V[tokens] - shift
    return scores_BJV


@pytest.mark.parametrize("in_cache", [1, 400, 10**6], ids=["row by row", "in parts", "at once"])
def test_other_tokens_are_masked_in_parts_that_fit_the_cache(in_cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqwise.search.language.IN_CACHE", in_cache)
    logits_BJV, allowed = torch.randn(BATCH, SLOTS, 80), allowed_rows(80, 1, 3)
    masked_BJV = allowed.mask_(logits_BJV.clone())
    for logits_V, masked_V, tokens_C in zip(
        *(values.flatten(0, 1) for values in (logits_BJV, masked_BJV, allowed.spread(allowed.rows_UC))), strict=True
    ):
        tokens = tokens_C[tokens_C >= 0]
        assert torch.equal(masked_V, torch.full_like(logits_V, -torch.inf).index_copy(0, tokens, logits_V[tokens]))


# ------------------------------------------------------------------------------------------------ when blocks are used


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    calls: list[int] = []

    def count(logits_BJV: Tensor, terms: SlotTerms, k: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(k)
        return best_of_many(logits_BJV, terms, k, **options)

    monkeypatch.setattr(module, "best_of_many", count)
    yield calls


def test_which_candidates_are_searched_by_blocks(taken: list[int]) -> None:
    def choose(given: Candidates, k: int = SLOTS) -> int:
        taken.clear()
        HardTopK(k)(given, None, None)
        return len(taken)

    with torch.no_grad():
        assert choose(candidates(1024)) == 1
        assert choose(candidates(1023)) == 0
        assert choose(candidates(1024), 2049) == 0
        nothing_BX = torch.zeros(BATCH, 2048, dtype=torch.long)
        assert choose(candidates(2048).without(nothing_BX[:, : 2048 - SLOTS])) == 1
        assert choose(candidates(2048).without(nothing_BX)) == 0
        assert choose(replace(candidates(2048), embedding_VD=None)) == 0
        costly = replace(candidates(2048), cost=torch.ones(BATCH, 2048, dtype=torch.float64))
        assert choose(costly) == 1
        assert choose(replace(costly, score=cost_augmented(local))) == 0
        expanded = candidates(2048)
        assert expanded.scores_BJV.shape == (BATCH, SLOTS, 2048)
        assert choose(expanded) == 0
        some = Allowed(torch.arange(257)[None], (BATCH, SLOTS), torch.zeros(BATCH * SLOTS, dtype=torch.long))
        assert choose(candidates(2048).within(some)) == 1
        assert choose(candidates(2048).within(some._replace(rows_UC=some.rows_UC[:, 1:]))) == 0
        assert choose(candidates(1023).within(some)) == 0
        assert choose(candidates(2048).within(some), 2049) == 0
        assert choose(replace(costly, score=cost_augmented(local)).within(some)) == 0
        expanded = candidates(2048).within(some)
        assert expanded.scores_BJW.shape == (BATCH, SLOTS, 257)
        assert choose(expanded) == 0
    assert choose(candidates(2048)) == 0, "a graph may be made, through the scores of what is chosen"


@pytest.mark.parametrize("languages", ["none", "two states", "allowed only"])
def test_outputs_are_the_same(languages: str, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = EncoderDecoder(source_size=9, target_size=3000, embedding_size=4, hidden_size=16, end=2).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(6)
    batch = collate([EncodedExample((1, 2, 3), ()), EncodedExample((4,), ())])

    if languages != "none":
        automaton = two_states(3000, end=2)
        model.language = automaton if languages == "two states" else AllowedOnly(automaton)

    def outputs(score: Score) -> list[list[tuple[int, ...]]]:
        found = decode(model, model.encode(batch), Decoder(HardTopK(5), score), num_steps=9, n_best=5)
        return [[one.tokens for one in best] for best in found]

    for score in (local, global_):
        taken.clear()
        quick = outputs(score)
        assert len(taken) == 8, "every step but the first, which has fewer candidates"
        with monkeypatch.context() as without:
            without.setattr("seqwise.search.candidates.MANY", 10**9)
            assert outputs(score) == quick
        assert len(taken) == 8


def two_states(size: int, *, end: int) -> Automaton:
    """Each state allows half of the tokens, some lead to the other state, and all outputs may end."""
    tokens, arcs = torch.arange(size), [torch.tensor([[0, end, 2], [1, end, 2], [2, end, 2]])]
    for state in range(2):
        some = tokens[(tokens % 2 == state) & (tokens != end)]
        arcs.append(torch.stack([torch.full_like(some, state), some, some // 2 % 2], dim=1))
    return Automaton(torch.cat(arcs), torch.tensor([False, False, True]))


class AllowedOnly:
    """Language that has only what the protocol requires, made from an automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self.start, self.allowed, self.advance = automaton.start, automaton.allowed, automaton.advance
