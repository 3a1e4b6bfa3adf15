"""Candidates with some taken out, and the search that takes gold out once a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import ManyModels
from seqwise.search import (
    Candidates,
    HardTopK,
    SoftSelection,
    SoftTopK,
    global_,
)
from seqwise.search.gold import _gold_first, never_lost, no_rivals, out_of_beam, unroll_with_gold


def test_excluded_candidates_score_minus_infinity_and_no_others() -> None:
    scores_BJV = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    everything = Candidates.of_scores(scores_BJV)
    some = everything.without(torch.tensor([[1], [6]]))
    fewer = some.without(torch.tensor([[4, 11], [0, 6]]))
    wanted_BN = scores_BJV.detach().flatten(1).clone()
    for places in ([[1], [6]], [[4, 11], [0, 6]]):
        for b, row in enumerate(places):
            wanted_BN[b, row] = -torch.inf
        found_BJV = (some if len(places[0]) == 1 else fewer).scores_BJV
        assert torch.equal(found_BJV.flatten(1), wanted_BN)
    assert torch.equal(fewer.all_scores_BJW, scores_BJV)
    assert everything.scores_BJV is everything.all_scores_BJW
    (gradient,) = torch.autograd.grad(fewer.scores_BJV[fewer.scores_BJV > -torch.inf].sum(), scores_BJV)
    assert torch.equal(gradient.flatten(1), (wanted_BN > -torch.inf).double())


def test_gold_is_put_before_mixtures_of_few_tokens() -> None:
    """In a language, gold has its own column; the result is that of mixtures over all tokens."""
    ids_BX, weights_BKX = torch.tensor([[3, 0], [1, 4]]), torch.rand(2, 2, 2).softmax(-1)
    full_BKV = torch.zeros(2, 2, 5).scatter_(2, ids_BX[:, None].expand(-1, 2, -1), weights_BKX)
    scores_BK, tokens_BK = torch.zeros(2, 3), torch.tensor([[2, 3, 0], [4, 1, 1]])
    parents_BK, before_BKJ = torch.zeros(2, 3, dtype=torch.long), torch.rand(2, 2, 2).softmax(-1)
    few, full = (
        _gold_first(
            SoftSelection(scores_BK[:, 1:], parents_BK[:, 1:], tokens_BK[:, 1:], before_BKJ, weights, ids),
            scores_BK, parents_BK, tokens_BK,
        )
        for weights, ids in ((weights_BKX, ids_BX), (full_BKV, None))
    )  # fmt: skip
    embedding_VD = torch.randn(5, 3)
    torch.testing.assert_close(few.embed(embedding_VD), full.embed(embedding_VD))
    assert torch.equal(few.embed(embedding_VD)[:, 0], embedding_VD[tokens_BK[:, 0]])
    for token in range(5):
        torch.testing.assert_close(few.token_mass(token), full.token_mass(token))


def test_an_excluded_candidate_is_chosen_by_no_selector() -> None:
    scores_BJV = torch.randn(30, 2, 3, dtype=torch.float64)
    best_B1 = scores_BJV.flatten(1).argmax(-1, keepdim=True)
    some = Candidates.of_scores(scores_BJV).without(best_B1)
    hard = HardTopK(5)(some, None, None)[0]
    assert (hard.parents_BK * 3 + hard.tokens_BK != best_B1).all()
    assert (hard.scores_BK > -torch.inf).all()
    one_slot = Candidates.of_scores(scores_BJV[:, :1])
    best_B1 = scores_BJV[:, 0].argmax(-1, keepdim=True)
    soft = SoftTopK(2, 1.0)(one_slot.without(best_B1), None, None)[0]
    assert (soft.token_weights_BKX.gather(2, best_B1[:, None].expand(-1, 2, 1)) == 0).all()


@pytest.mark.parametrize("rivals", [HardTopK(2), SoftTopK(2, 1.0), no_rivals], ids=["hard", "soft", "none"])
@pytest.mark.parametrize("lost", [out_of_beam(2), never_lost], ids=["restarts", "stays"])
@pytest.mark.parametrize("end", [None, 0])
def test_gold_is_taken_out_once_and_the_head_runs_once_a_step(rivals: Any, lost: Any, end: int | None) -> None:
    """What a step tells is the gold prefix's score, and every other candidate's, gold's own place at minus infinity."""

    class Counting(ManyModels):
        calls = 0

        def head(self, features: Tensor) -> Tensor:
            self.calls += 1
            return super().head(features)

    model = Counting(5, num_tokens=4, end=end, seed=0)
    gold_BT = torch.tensor([[1, 2, 3], [3, 1, 0], [2, 0, 0], [1, 1, 1], [2, 3, 1]])
    num_steps_B = torch.tensor([3, 3, 2, 1, 3])
    steps = unroll_with_gold(model, None, gold_BT, num_steps_B=num_steps_B, rivals=rivals, lost=lost, score=global_)
    before_BJ, num_taken = torch.zeros(5, 1, dtype=torch.float64), 0
    for number, step in enumerate(steps):
        assert model.calls == number + 1
        assert step.others_BN.shape == (5, before_BJ.shape[1] * 4)
        gold_B1 = gold_BT[:, number, None]
        assert (step.others_BN.gather(1, gold_B1) == -torch.inf).all()
        live_B = step.active_B
        torch.testing.assert_close(step.beam.scores_BK[live_B, 0], step.gold_B1[live_B, 0])
        if end is None:
            assert ((step.others_BN == -torch.inf).sum(1) == 1 + 4 * (before_BJ == -torch.inf).sum(1))[live_B].all()
        before_BJ, num_taken = step.beam.scores_BK, num_taken + 1
    assert num_taken == 3
