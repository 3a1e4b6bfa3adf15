"""Ends of hypotheses: scores and factors of all candidates against the definition for one of them."""

from __future__ import annotations

import math

import pytest
import torch

from seqwise.search.ending import finish, finish_where, open_shares, slot_terms

END = 2
MASSES_BJ = torch.tensor([[0.0, 0.25, 0.9], [1 - 1e-5, 1 - 1e-7, 1.0]], dtype=torch.float64)
ADDED_BJV = torch.tensor([-0.5, -math.inf, -1.5, 0.75], dtype=torch.float64).repeat(2, 3, 1)
ADDED_BJV[:, 1, END] = -math.inf
ADDED_BJV[1, 2, END] = -math.inf  # and the slot stays all the same


def added(score: float, mass: float, *, ends: bool) -> float:
    """What a token adds to a slot with some finished mass; so near to 1 counts as 1."""
    if mass >= 1 - 1e-6:
        return 0.0 if ends else -math.inf
    return (1 - mass) * score if ends else score - 30 * mass / (1 - mass)


def expected(b: int, j: int, token: int, *, lowered: float = 0.0) -> float:
    return added(float(ADDED_BJV[b, j, token]) - lowered, float(MASSES_BJ[b, j]), ends=token == END)


def places() -> list[tuple[int, int, int]]:
    return [(b, j, token) for b in range(2) for j in range(3) for token in range(4)]


def test_a_finished_slot_only_stays() -> None:
    finished_BJV = finish(ADDED_BJV, MASSES_BJ, END)
    for b, j, token in places():
        assert float(finished_BJV[b, j, token]) == pytest.approx(expected(b, j, token), rel=1e-9)


def test_columns_in_any_order_finish_alike() -> None:
    """Without an end token, or with one in another column for each slot."""
    tokens_BJC = torch.tensor([[[3, END, 0], [END, 1, 3], [0, 1, 3]], [[END, 0, 1], [1, 0, END], [0, END, 3]]])
    finished_BJC = finish_where(ADDED_BJV.gather(2, tokens_BJC), MASSES_BJ, tokens_BJC == END)
    for b, j, _ in places():
        wanted = [expected(b, j, token) for token in tokens_BJC[b, j].tolist()]
        assert finished_BJC[b, j].tolist() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.4])
def test_the_terms_of_a_slot_give_the_same_scores(constant: float) -> None:
    prefix_BJ = torch.tensor([[-2.0, 0.5, -0.25], [-1.0, 3.0, -4.0]], dtype=torch.float64)
    terms = slot_terms(prefix_BJ, MASSES_BJ, constant=constant, end=END)
    ending_BJ = terms.of_ending(ADDED_BJV[..., END] - constant)
    without_end = slot_terms(prefix_BJ, MASSES_BJ, constant=constant, end=None)
    for b, j, token in places():
        score, prefix = float(ADDED_BJV[b, j, token]), float(prefix_BJ[b, j])
        found = float(ending_BJ[b, j] if token == END else terms.going_BJ[b, j] + score)
        assert found == pytest.approx(prefix + expected(b, j, token, lowered=constant), rel=1e-9)
        plain = prefix + score - constant  # whatever the mass
        assert float(without_end.going_BJ[b, j] + score) == pytest.approx(plain)
        assert float(without_end.of_ending(ADDED_BJV[..., token] - constant)[b, j]) == pytest.approx(plain)


def test_open_shares_are_the_odds_of_going_on() -> None:
    parents_BM, tokens_BM = torch.tensor([[0, 1, 2, 2], [2, 1, 1, 0]]), torch.tensor([[0, 3, 1, END], [1, END, 0, 3]])
    shares_BM = open_shares(MASSES_BJ, parents_BM, tokens_BM, end=END)
    for b, m in ((b, m) for b in range(2) for m in range(4)):
        mass, ends = float(MASSES_BJ[b, parents_BM[b, m]]), int(tokens_BM[b, m]) == END
        assert float(shares_BM[b, m]) == (1.0 if ends else pytest.approx(math.exp(added(0.0, mass, ends=False))))
    without_end = open_shares(MASSES_BJ, parents_BM, tokens_BM, end=None)
    torch.testing.assert_close(without_end, torch.ones(2, 4, dtype=torch.float64))


def slope(score: float, mass: float, *, ends: bool) -> float:
    """Derivative with respect to the mass of what a token adds; 0 where the slot is closed or the end excluded."""
    if mass >= 1 - 1e-6 or (ends and score == -math.inf):
        return 0.0
    return -score if ends else -30 / (1 - mass) ** 2


def test_the_gradient_of_the_mass_is_finite_everywhere() -> None:
    masses_BJ = MASSES_BJ.clone().requires_grad_()
    is_end_BJV = (torch.arange(4) == END).expand_as(ADDED_BJV)
    terms = slot_terms(torch.zeros_like(masses_BJ), masses_BJ, constant=0.0, end=END)
    going_BJV = terms.going_BJ[..., None] + ADDED_BJV
    forms = {
        "all tokens": finish(ADDED_BJV, masses_BJ, END),
        "columns": finish_where(ADDED_BJV, masses_BJ, is_end_BJV),
        "terms": going_BJV.where(~is_end_BJV, terms.of_ending(ADDED_BJV[..., END])[..., None]),
    }
    for name, scores_BJV in forms.items():
        for token in range(4):
            (found_BJ,) = torch.autograd.grad(scores_BJV[..., token].sum(), masses_BJ, retain_graph=True)
            for b, j in ((b, j) for b in range(2) for j in range(3)):
                wanted = slope(float(ADDED_BJV[b, j, token]), float(MASSES_BJ[b, j]), ends=token == END)
                assert float(found_BJ[b, j]) == pytest.approx(wanted, rel=1e-9), name
