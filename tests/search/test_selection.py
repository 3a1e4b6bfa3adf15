"""The operators and selections: against loops, against finite differences, hard against soft, noise against its law."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import oracles
from seqwise import InputError, beam_search, hamming_cost
from seqwise.data import EncodedExample, collate
from seqwise.models import EncoderDecoder
from seqwise.search import (
    Candidates,
    Gumbel,
    HardSelection,
    HardTopK,
    SoftArgmax,
    SoftSelection,
    SoftTopK,
    global_,
    hard_top_k,
    mean_squared_gap,
    peaked_softmax,
    soft_top_k,
)
from seqwise.search.operators import AlphaUnit, of_scores, weights_and_gaps
from seqwise.search.selectors import Form, Selector, expanded, summed

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
EXACT = Context(prec=60)


def random_scores(draw: np.random.Generator) -> Tensor:
    size = draw.integers(1, 4), draw.integers(1, 5), draw.integers(1, 7)
    scores_BJV = torch.from_numpy(draw.normal(0, 1, size))
    if draw.random() < 0.5:  # dead slots and forbidden tokens
        scores_BJV[torch.from_numpy(draw.random(size) < 0.4)] = -torch.inf
    return scores_BJV


# ---------------------------------------------------------------------------------------- against loops


def test_peaked_softmax_equals_the_loop() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        scores = random_scores(draw)
        alpha = float(10 ** draw.uniform(-2, 3))
        rows = [[oracles.peaked_softmax(row, alpha) for row in table] for table in scores.tolist()]
        expected = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(peaked_softmax(scores, alpha), expected, **TOLERANCE)
        along_columns = peaked_softmax(scores.transpose(1, 2), alpha, dim=1)
        torch.testing.assert_close(along_columns, expected.transpose(1, 2), **TOLERANCE)


def test_soft_top_k_equals_the_loop() -> None:
    draw = np.random.default_rng(1)
    for _ in range(200):
        scores_BJV = random_scores(draw)
        k = int(draw.integers(1, scores_BJV[0].numel() + 1))
        alpha = float(10 ** draw.uniform(-2, 3))
        expected = [oracles.soft_top_k(table, k, alpha) for table in scores_BJV.tolist()]
        weights_BKJV = soft_top_k(scores_BJV, k, alpha)
        torch.testing.assert_close(weights_BKJV, torch.tensor(expected, dtype=torch.float64), **TOLERANCE)
        live = (scores_BJV.flatten(1) > -torch.inf).sum(1)
        expected_sums = (torch.arange(k) < live[:, None]).double()
        torch.testing.assert_close(weights_BKJV.sum((2, 3)), expected_sums)


def exact_soft_top_k(scores_N: list[float], k: int, alpha: float) -> list[list[float]]:
    """By rational exponents and exponentials of 60 digits."""
    live = sorted((Fraction(score) for score in scores_N if score > -math.inf), reverse=True)
    rows = []
    for maximum in live[:k]:
        weights = []
        for score in scores_N:
            power = Fraction(alpha) * (Fraction(score) - maximum) ** 2 if score > -math.inf else Fraction(10**9)
            weights.append(0.0 if power > 10**4 else float((-Decimal(power.numerator) / power.denominator).exp(EXACT)))
        rows.append([weight / math.fsum(weights) for weight in weights])
    return rows + [[0.0] * len(scores_N)] * (k - len(rows))


@pytest.mark.parametrize("alpha", [1e-300, 1e-37, 1e-5, 1.0, 1e10, 1e37, 1e300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_soft_top_k_is_exact_at_every_alpha_and_scale(dtype: torch.dtype, alpha: float) -> None:
    draw = np.random.default_rng(7)
    for scale in (1e-3, 1.0, 30.0, 1e4):
        for offset in (0.0, -100.0, -2e4):
            scores_BJV = offset + scale * random_scores(draw)[:1].to(dtype)
            k = int(draw.integers(1, scores_BJV[0].numel() + 1))
            exact_KN = torch.tensor(exact_soft_top_k(scores_BJV.flatten().tolist(), k, alpha), dtype=torch.float64)
            found_KN = soft_top_k(scores_BJV, k, alpha)[0].flatten(1)
            tolerance = max(1e-3 if dtype != torch.float64 else 1e-9, 2 * torch.finfo(dtype).eps)
            torch.testing.assert_close(found_KN.double(), exact_KN, atol=tolerance, rtol=0)
            assert (found_KN[:, scores_BJV.flatten() == -torch.inf] == 0).all()
            scores_N = scores_BJV.flatten()
            gaps_N = min(alpha, 1e290) * (scores_N.double() - scores_N.max().double())
            if (scores_N > -torch.inf).any():
                found_N = peaked_softmax(scores_N, alpha).double()
                torch.testing.assert_close(found_N, gaps_N.softmax(0), atol=tolerance, rtol=0)


def test_hard_top_k_equals_sorting() -> None:
    draw = np.random.default_rng(2)
    for _ in range(100):
        scores_BJV = torch.from_numpy(draw.normal(0, 1, (2, draw.integers(1, 5), draw.integers(1, 7))))
        k = int(draw.integers(1, scores_BJV[0].numel() + 1))
        values_BK, parents_BK, tokens_BK = hard_top_k(scores_BJV, k)
        for b, table in enumerate(scores_BJV.tolist()):
            ranked = sorted(((score, j, w) for j, row in enumerate(table) for w, score in enumerate(row)), reverse=True)
            found = list(zip(values_BK[b].tolist(), parents_BK[b].tolist(), tokens_BK[b].tolist(), strict=True))
            assert found == ranked[:k]


@pytest.mark.parametrize("selector", [SoftTopK(3, 2.0), SoftArgmax(1.5)], ids=["SoftTopK", "SoftArgmax"])
def test_a_soft_selection_equals_its_definition(selector: SoftTopK | SoftArgmax) -> None:
    """Scores, back-pointers, token weights, state, embedding, cost and token mass, each summed by loops."""
    draw = np.random.default_rng(3)
    for _ in range(30):
        J, V = int(draw.integers(1, 4)), int(draw.integers(3, 6))
        scores_BJV = torch.from_numpy(draw.normal(0, 1, (2, J, V)))
        state_BJH, embedding_VD, values_BV = torch.randn(2, J, 3).double(), torch.randn(V, 2).double(), torch.rand(2, V)
        selection = selector(Candidates.of_scores(scores_BJV), None, None)[0]
        for b, table in enumerate(scores_BJV.tolist()):
            if isinstance(selector, SoftTopK):
                weights = oracles.soft_top_k(table, 3, 2.0)
            else:
                flat = oracles.peaked_softmax([score for row in table for score in row], 1.5)
                weights = [[flat[j * V : (j + 1) * V] for j in range(J)]]
            for r, p in enumerate(weights):
                back = [sum(p[i]) for i in range(J)]
                words = [sum(p[i][w] for i in range(J)) for w in range(V)]
                score = sum(p[i][w] * table[i][w] for i in range(J) for w in range(V))
                state = sum(back[i] * state_BJH[b, i] for i in range(J))
                fed = sum(words[w] * embedding_VD[w] for w in range(V))
                cost = sum(words[w] * float(values_BV[b, w]) for w in range(V))
                assert float(selection.scores_BK[b, r]) == pytest.approx(score, abs=1e-10)
                torch.testing.assert_close(selection.follow(state_BJH)[b, r], state, **TOLERANCE)
                torch.testing.assert_close(selection.embed(embedding_VD)[b, r], fed, **TOLERANCE)
                assert float(selection.expect(values_BV)[b, r]) == pytest.approx(cost, abs=1e-10)
                assert float(selection.token_mass(1)[b, r]) == pytest.approx(words[1], abs=1e-10)


def test_centring_keeps_float32_noise_from_growing() -> None:
    """At scores near -300 and a gap of a hundredth, float32 still sees the gap in the mixture's score."""
    scores_BJV = torch.tensor([[[-300.0, -300.01, -310.0]]])
    exact = SoftTopK(2, 50.0)(Candidates.of_scores(scores_BJV.double()), None, None)[0].scores_BK
    found = SoftTopK(2, 50.0)(Candidates.of_scores(scores_BJV), None, None)[0].scores_BK
    torch.testing.assert_close(found.double(), exact, atol=4e-5, rtol=0)


# ---------------------------------------------------------------------------------------- gradients


def detached_soft_top_k(scores_BJV: Tensor, k: int, alpha: float) -> Tensor:
    """What soft_top_k must not be: the k maxima as constants."""
    maxima_BK = scores_BJV.detach().flatten(1).topk(k).values
    gaps_BKN = scores_BJV.flatten(1)[:, None] - maxima_BK[..., None]
    return (-alpha * gaps_BKN.square()).softmax(-1).unflatten(-1, scores_BJV.shape[1:])


def finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, width: float = 1e-6) -> Tensor:
    gradient = torch.zeros_like(at)
    for place in np.ndindex(*at.shape):
        above, below = at.clone(), at.clone()
        above[place] += width
        below[place] -= width
        gradient[place] = (function(above) - function(below)) / (2 * width)
    return gradient


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_the_gradient_flows_through_the_maxima(alpha: float) -> None:
    """At alpha = 100 and gaps of about a tenth; with the maxima detached the values agree but the gradient is wrong."""
    scores_BJV = 0.1 * torch.randn(2, 3, 4, dtype=torch.float64)
    coefficients = torch.randn(2, 3, 3, 4, dtype=torch.float64)
    expected = finite_differences(lambda s: (coefficients * soft_top_k(s, 3, alpha)).sum(), scores_BJV)

    def gradient(operator: Callable[[Tensor, int, float], Tensor]) -> Tensor:
        leaf = scores_BJV.clone().requires_grad_()
        (coefficients * operator(leaf, 3, alpha)).sum().backward()
        return leaf.grad

    torch.testing.assert_close(soft_top_k(scores_BJV, 3, alpha), detached_soft_top_k(scores_BJV, 3, alpha), **TOLERANCE)
    error = (gradient(soft_top_k) - expected).norm() / expected.norm()
    assert error < 1e-6
    assert (gradient(detached_soft_top_k) - expected).norm() / expected.norm() > 0.05


@pytest.mark.parametrize("k", [1, 3, 6])
def test_soft_selections_pass_gradcheck(k: int) -> None:
    scores_BJV = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    state_BJH = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    embedding_VD = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    for selector in (SoftTopK(k, 3.0), SoftArgmax(3.0)):

        def everything(scores: Tensor, state: Tensor, embedding: Tensor, selector: SoftTopK = selector) -> tuple:
            selection = selector(Candidates.of_scores(scores), None, None)[0]
            return (
                selection.scores_BK,
                selection.follow(state),
                selection.embed(embedding),
                selection.expect(scores[:, 0]),
                selection.token_mass(1),
            )

        assert torch.autograd.gradcheck(everything, (scores_BJV, state_BJH, embedding_VD))


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dead_candidates_give_no_nan(alpha: float, dtype: torch.dtype) -> None:
    """A dead slot, forbidden tokens, fewer live candidates than k, and a row in which nothing lives."""
    scores_BJV = torch.randn(4, 2, 3, dtype=dtype)
    scores_BJV[0, 1] = -torch.inf
    scores_BJV[1, :, 1] = -torch.inf
    scores_BJV[2] = -torch.inf
    scores_BJV[2, 0, 2] = 0.5
    scores_BJV[3] = -torch.inf
    for selector in (SoftTopK(4, alpha), SoftArgmax(alpha), HardTopK(4)):
        leaf = scores_BJV.clone().requires_grad_()
        selection = selector(Candidates.of_scores(leaf), None, None)[0]
        state, embedding_VD = torch.randn(4, 2, 3, dtype=dtype), torch.randn(3, 2, dtype=dtype)
        parts = [selection.follow(state), selection.embed(embedding_VD), selection.expect(torch.rand(4, 3).to(dtype))]
        live_BK = selection.scores_BK > -torch.inf
        assert live_BK.sum(1).tolist() == [min(n, live_BK.shape[1]) for n in (3, 4, 1, 0)]
        loss = sum(part.sum() for part in parts) + selection.scores_BK[live_BK].sum() + selection.token_mass(1).sum()
        assert torch.isfinite(loss)
        if loss.requires_grad:
            loss.backward()
            assert torch.isfinite(leaf.grad).all()
            assert (leaf.grad[scores_BJV == -torch.inf] == 0).all()


@pytest.mark.parametrize("score", [-2e4, -1e9])
def test_excluded_is_worse_than_any_score(score: float) -> None:
    scores_BJV = torch.full((1, 2, 3), -torch.inf)
    scores_BJV[0, 1, 2] = score
    for selector in (SoftTopK(2, 1e-3), SoftArgmax(1e-3)):
        selection = selector(Candidates.of_scores(scores_BJV), None, None)[0]
        assert isinstance(selection, SoftSelection)
        assert selection.scores_BK[0, 0] == score
        assert selection.token_weights_BKX[0, 0].tolist() == [0.0, 0.0, 1.0]


def test_a_row_without_candidates_weighs_nothing() -> None:
    scores = torch.full((2, 3), -torch.inf, dtype=torch.float64, requires_grad=True)
    weights = peaked_softmax(scores, 2.0)
    (weights * torch.randn(2, 3)).sum().backward()
    assert (weights == 0).all()
    assert (scores.grad == 0).all()
    assert peaked_softmax(torch.zeros(2, 0), 2.0).shape == (2, 0)
    table_BJV = torch.full((1, 2, 3), -torch.inf, dtype=torch.float64, requires_grad=True)
    weights_BKJV = soft_top_k(table_BJV, 2, 2.0)
    (weights_BKJV * torch.randn(1, 2, 2, 3)).sum().backward()
    assert (weights_BKJV == 0).all()
    assert (table_BJV.grad == 0).all()


# ---------------------------------------------------------------------------------------- hard and soft


def test_one_hot_soft_equals_hard() -> None:
    """On every leaf of a nested state, and for everything else that follows a selection."""
    B, J, K, V = 3, 4, 5, 6
    scores_BK, parents_BK, tokens_BK = torch.randn(B, K).double(), torch.randint(J, (B, K)), torch.randint(V, (B, K))
    hard = HardSelection(scores_BK, parents_BK, tokens_BK)
    one_hot = F.one_hot(parents_BK, J).double(), F.one_hot(tokens_BK, V).double()
    soft = SoftSelection(scores_BK, parents_BK, tokens_BK, *one_hot)
    state = {
        "h": torch.randn(B, J).double(),
        "cache": [(torch.randn(B, J, 2, 3).double(), torch.randn(B, J, 7).double())],
    }
    hard_state, soft_state = hard.follow(state), soft.follow(state)
    assert torch.equal(hard_state["h"], soft_state["h"])
    for hard_leaf, soft_leaf in zip(hard_state["cache"][0], soft_state["cache"][0], strict=True):
        assert torch.equal(hard_leaf, soft_leaf)
    embedding_VD, values_BV = torch.randn(V, 2).double(), torch.rand(B, V).double()
    assert torch.equal(hard.embed(embedding_VD), soft.embed(embedding_VD))
    assert torch.equal(hard.expect(values_BV), soft.expect(values_BV))
    for token in range(V):
        assert torch.equal(hard.token_mass(token), soft.token_mass(token))


@pytest.mark.parametrize(
    "selector",
    [HardTopK(3), HardTopK(1, noise=Gumbel()), SoftTopK(3, 1.0), SoftTopK(3, 1.0, form=summed()), SoftArgmax(1.0)],
)
def test_a_batch_of_no_inputs_gives_no_slots(selector: Selector) -> None:
    selection = selector(Candidates.of_scores(torch.zeros(0, 2, 4)), None, torch.Generator())[0]
    k = 1 if selection.scores_BK.shape[1] == 1 else 3
    assert selection.scores_BK.shape == selection.parents_BK.shape == selection.tokens_BK.shape == (0, k)
    assert selection.follow(torch.zeros(0, 2, 5)).shape == (0, k, 5)
    assert selection.embed(torch.zeros(4, 6)).shape == (0, k, 6)


def test_forcing_a_token_leaves_the_scores() -> None:
    scores_BJV = torch.randn(4, 1, 5).double()
    mask_B, forced_B = torch.tensor([True, False, True, False]), torch.tensor([4, 4, 0, 0])
    embedding_VD = torch.randn(5, 2).double()
    for selector in (HardTopK(1), SoftArgmax(2.0), SoftTopK(1, 2.0)):
        chosen = selector(Candidates.of_scores(scores_BJV), None, None)[0]
        forced = chosen.forced(mask_B, forced_B)
        assert torch.equal(forced.scores_BK, chosen.scores_BK)
        expected = torch.where(mask_B[:, None], embedding_VD[forced_B], chosen.embed(embedding_VD)[:, 0])
        torch.testing.assert_close(forced.embed(embedding_VD)[:, 0], expected, **TOLERANCE)
        assert torch.equal(forced.tokens_BK[:, 0], torch.where(mask_B, forced_B, chosen.tokens_BK[:, 0]))


def test_forcing_a_token_of_a_mixture_of_few() -> None:
    """Even one that is not among them, as inside a language."""
    scores_BJV, allowed_BJC = torch.randn(3, 1, 6).double(), torch.tensor([[[0, 2, 5]], [[1, 3, -1]], [[4, 2, 0]]])
    embedding_VD = torch.randn(6, 2).double()
    mask_B, forced_B = torch.tensor([True, False, True]), torch.tensor([4, 5, 2])
    few = SoftTopK(1, 0.3)(Candidates.of_scores(scores_BJV).within(allowed_BJC), None, None)[0]
    forced = few.forced(mask_B, forced_B)
    assert isinstance(few, SoftSelection) and few.token_ids_BX is not None
    expected = torch.where(mask_B[:, None], embedding_VD[forced_B], few.embed(embedding_VD)[:, 0])
    torch.testing.assert_close(forced.embed(embedding_VD)[:, 0], expected, **TOLERANCE)
    assert torch.equal(forced.token_mass(4)[:, 0], torch.tensor([1.0, 0.0, 0.0]).double())


@pytest.mark.parametrize("form", [summed, lambda: expanded], ids=["summed", "expanded"])
def test_a_few_allowed_tokens_are_weighed_by_alpha_however_they_are_summed(form: Callable[[], Form]) -> None:
    selector = SoftTopK(2, 0.5, form=form())
    scores_BJV, allowed_BJC = torch.randn(2, 1, 6).double(), torch.tensor([[[0, 2, 5]], [[1, 3, 4]]])
    some = Candidates.of_scores(scores_BJV).within(allowed_BJC)
    allowed_BC = scores_BJV[:, 0].gather(1, allowed_BJC[:, 0])
    found = selector(some, None, None)[0]
    for row, scores_C in enumerate(allowed_BC.tolist()):
        for rank, maximum in enumerate(sorted(scores_C, reverse=True)[:2]):
            weights = [math.exp(-0.5 * (score - maximum) ** 2) for score in scores_C]
            mixed = sum(weight * score for weight, score in zip(weights, scores_C, strict=True)) / sum(weights)
            assert float(found.scores_BK[row, rank]) == pytest.approx(mixed, abs=1e-12)
    by_gaps = replace(selector, unit=mean_squared_gap)
    scaled = replace(some, features_BJH=7.0 * scores_BJV)
    weights = [by_gaps(each, None, None)[0].token_weights_BKX for each in (some, scaled)]
    torch.testing.assert_close(*weights, **TOLERANCE)  # whose unit follows the scores


def test_exact_ties_share_their_mass() -> None:
    weights_BKJV = soft_top_k(torch.tensor([[[1.0, 1.0, -50.0]]]), 2, 10.0)
    torch.testing.assert_close(weights_BKJV[0, :, 0], torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]))


def test_shifting_all_scores_changes_no_weight() -> None:
    scores_BJV = torch.randn(3, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(soft_top_k(scores_BJV + 7.25, 3, 2.0), soft_top_k(scores_BJV, 3, 2.0), **TOLERANCE)
    leaf = scores_BJV.clone().requires_grad_()
    (soft_top_k(leaf, 3, 2.0) * torch.randn(3, 3, 2, 4)).sum().backward()
    torch.testing.assert_close(leaf.grad.sum((1, 2)), torch.zeros(3).double(), **TOLERANCE)
    assert leaf.grad.abs().max() > 1e-3


# ---------------------------------------------------------------------------------------- noise

NUM_DRAWS = 40_000


def noisy_candidates() -> tuple[Candidates, Tensor]:
    logits_V = torch.tensor([1.0, 0.0, -1.5, 0.3, -torch.inf], dtype=torch.float64)
    return Candidates.of_scores(logits_V.expand(NUM_DRAWS, 1, 5)), logits_V.softmax(-1)


def test_greedy_under_gumbel_noise_draws_from_the_softmax() -> None:
    candidates, probabilities_V = noisy_candidates()
    generator = torch.Generator().manual_seed(5)
    selection = HardTopK(1, noise=Gumbel())(candidates, None, generator)[0]
    counts_V = torch.bincount(selection.tokens_BK[:, 0], minlength=5).double()
    assert counts_V[4] == 0
    expected_V = NUM_DRAWS * probabilities_V
    chi_square = float(((counts_V - expected_V).square() / expected_V)[:4].sum())
    assert chi_square < 16.27  # 99.9 % of a chi-square with 3 degrees of freedom
    # The noise chooses; it is not part of the score.
    torch.testing.assert_close(selection.scores_BK, candidates.scores_BJV[:, 0].gather(1, selection.tokens_BK))


def test_the_soft_sample_tends_to_a_draw_from_the_softmax() -> None:
    candidates, probabilities_V = noisy_candidates()
    distances, certainty = [], []
    for alpha in (0.3, 3.0, 1000.0):
        selection = SoftArgmax(alpha, noise=Gumbel())(candidates, None, torch.Generator().manual_seed(6))[0]
        weights_BV = selection.token_weights_BKX[:, 0]
        distances.append(float((weights_BV.mean(0) - probabilities_V).abs().max()))
        certainty.append(float(weights_BV.amax(-1).mean()))
        torch.testing.assert_close(weights_BV.sum(-1), torch.ones(NUM_DRAWS).double())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 5 * 0.5 / math.sqrt(NUM_DRAWS)
    assert certainty[0] < certainty[1] < certainty[2]
    assert certainty[2] > 0.995


def test_gumbel_noise_has_the_moments_of_its_law_and_a_generator() -> None:
    noise = Gumbel()(torch.zeros(200_000, dtype=torch.float64), torch.Generator().manual_seed(7))
    standard_error = math.pi / math.sqrt(6 * 200_000)
    assert float(noise.mean()) == pytest.approx(0.5772156649, abs=5 * standard_error)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)
    again = Gumbel()(torch.zeros(200_000, dtype=torch.float64), torch.Generator().manual_seed(7))
    assert torch.equal(noise, again)
    assert not torch.equal(noise, Gumbel()(torch.zeros(200_000).double(), torch.Generator().manual_seed(8)))


# ---------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_alpha_must_be_positive_and_finite(alpha: float) -> None:
    scores_BJV = torch.zeros(1, 1, 3)
    for call in (
        lambda: peaked_softmax(scores_BJV, alpha),
        lambda: soft_top_k(scores_BJV, 1, alpha),
        lambda: SoftTopK(2, alpha),
        lambda: SoftArgmax(alpha),
    ):
        with pytest.raises(InputError, match="alpha"):
            call()


@pytest.mark.parametrize("k", [0, -1, 7])
def test_k_must_be_a_number_of_candidates(k: int) -> None:
    for call in (lambda: hard_top_k(torch.zeros(1, 2, 3), k), lambda: soft_top_k(torch.zeros(1, 2, 3), k, 1.0)):
        with pytest.raises(InputError, match=rf"6 \(2 slots x 3 tokens\), got {k}"):
            call()


def test_an_empty_beam_and_a_noisy_wide_one_are_refused() -> None:
    for call in (lambda: HardTopK(0), lambda: SoftTopK(0, 1.0)):
        with pytest.raises(InputError, match="at least 1"):
            call()
    with pytest.raises(InputError, match="k = 2"):
        HardTopK(2, noise=Gumbel())


# ---------------------------------------------------------------------------------------- alpha by gaps


def unit_of(best_BM: Tensor) -> Tensor:
    """The unit where nothing has ended."""
    return mean_squared_gap(best_BM, torch.ones_like(best_BM))


def test_the_unit_is_the_mean_squared_gap_of_the_best() -> None:
    """By a loop, with dead candidates, fewer than k + 1 of them, one, and none."""
    draw = np.random.default_rng(8)
    for _ in range(40):
        count = int(draw.integers(1, 6))
        best = np.sort(draw.normal(0, 3, (3, count)))[:, ::-1].copy()
        best[1, int(draw.integers(0, count)) :] = -np.inf
        for row, found in zip(best.tolist(), unit_of(torch.from_numpy(best)).tolist(), strict=True):
            alive = [value for value in row if value > -math.inf]
            squares = [(above - below) ** 2 for above, below in itertools.pairwise(alive)]
            assert found == pytest.approx(max(sum(squares) / len(squares), 1e-8) if squares else 1.0)


def test_with_the_unit_neighbours_are_alpha_apart_on_average() -> None:
    """Read back from the weights: -log of each survivor's share of its neighbour, relative to its own."""
    scores_BJV, k, alpha = 5 * torch.randn(20, 2, 5, dtype=torch.float64), 4, 1.7
    selector = SoftTopK(k, alpha, mean_squared_gap)
    best_BM, _, _ = hard_top_k(scores_BJV, k + 1)
    alpha_B11 = (alpha / unit_of(best_BM))[:, None, None]
    weights_BKN, _ = weights_and_gaps(scores_BJV.flatten(1), best_BM[:, :k], alpha_B11)
    places_BM = scores_BJV.flatten(1).topk(k + 1).indices
    total_B = 0.0
    for r in range(k):
        own_B, next_B = (weights_BKN[:, r].gather(1, places_BM[:, r + i, None])[:, 0] for i in (0, 1))
        total_B = total_B - (next_B / own_B).log()
    torch.testing.assert_close(total_B / k, torch.full((20,), alpha, dtype=torch.float64))
    selection = selector(Candidates.of_scores(scores_BJV), None, None)[0]
    torch.testing.assert_close(selection.token_weights_BKX, weights_BKN.unflatten(2, (2, 5)).sum(2))


def test_with_the_unit_scale_and_shift_of_scores_do_not_matter_and_the_batch_does_not() -> None:
    scores_BJV = torch.randn(4, 2, 5, dtype=torch.float64)
    scores_BJV[2, 1] = -torch.inf
    selector = SoftTopK(3, 2.0, mean_squared_gap)

    def weights(scores: Tensor) -> Tensor:
        return selector(Candidates.of_scores(scores), None, None)[0].token_weights_BKX

    expected = weights(scores_BJV)
    torch.testing.assert_close(weights(100 * scores_BJV - 7), expected, atol=1e-9, rtol=0)
    for row in range(4):
        torch.testing.assert_close(weights(scores_BJV[row : row + 1])[0], expected[row], atol=1e-12, rtol=0)
    plain = SoftTopK(3, 2.0)(Candidates.of_scores(100 * scores_BJV), None, None)[0].token_weights_BKX
    assert (plain - expected).abs().max() > 0.05


@pytest.mark.parametrize("k", [1, 3, 6])
def test_with_the_unit_large_alpha_is_hard_and_small_alpha_is_even(k: int) -> None:
    scores_BJV = torch.randn(50, 2, 3, dtype=torch.float64)
    candidates = Candidates.of_scores(scores_BJV)
    hard = HardTopK(k)(candidates, None, None)[0]
    soft = SoftTopK(k, 1e9, mean_squared_gap)(candidates, None, None)[0]
    embedding_VD = torch.eye(3, dtype=torch.float64)
    clear_B = -scores_BJV.flatten(1).sort(descending=True).values.diff(dim=1).amax(1) > 1e-2
    torch.testing.assert_close(soft.embed(embedding_VD)[clear_B], hard.embed(embedding_VD)[clear_B])
    even = SoftTopK(k, 1e-14, mean_squared_gap)(candidates, None, None)[0].token_weights_BKX
    torch.testing.assert_close(even, torch.full_like(even, 1 / 3), atol=1e-6, rtol=0)


def test_with_the_unit_the_gradient_is_the_derivative() -> None:
    """Also of what the unit depends on: held constant, it would be wrong."""
    scores_BJV = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    for k in (1, 3, 6):

        def everything(scores: Tensor, k: int = k) -> tuple[Tensor, ...]:
            selection = SoftTopK(k, 1.5, mean_squared_gap)(Candidates.of_scores(scores), None, None)[0]
            return selection.scores_BK, selection.token_weights_BKX, selection.parent_weights_BKJ

        assert torch.autograd.gradcheck(everything, (scores_BJV,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_the_unit_ties_and_dead_candidates_give_no_nan(dtype: torch.dtype) -> None:
    """All tied, nearly tied, one alive, none alive."""
    scores_BJV = torch.zeros(4, 2, 3, dtype=dtype)
    scores_BJV[1] += 1e-7 * torch.arange(6).view(2, 3)
    scores_BJV[2] = -torch.inf
    scores_BJV[2, 0, 1] = 0.3
    scores_BJV[3] = -torch.inf
    leaf = scores_BJV.requires_grad_()
    selection = SoftTopK(3, 5.0, mean_squared_gap)(Candidates.of_scores(leaf), None, None)[0]
    live_BK = selection.scores_BK > -torch.inf
    assert live_BK.sum(1).tolist() == [3, 3, 1, 0]
    (selection.scores_BK[live_BK].sum() + selection.token_weights_BKX.square().sum()).backward()
    assert bool(torch.isfinite(leaf.grad).all())
    assert bool(torch.isfinite(selection.token_weights_BKX).all())
    torch.testing.assert_close(selection.token_weights_BKX[0], torch.full((3, 3), 1 / 3, dtype=dtype))


def ending_candidates(scores_BJV: Tensor, finished_BJ: Tensor, lead: float = 0.0) -> Candidates:
    """Slots that have ended in part, each by some lead before the next; token 0 ends."""
    prefixes_BJ = -lead * torch.arange(finished_BJ.shape[1]).expand_as(finished_BJ)
    return Candidates(
        prefix_scores_BJ=prefixes_BJ,
        features_BJH=scores_BJV,
        head=lambda features: features,
        score=global_,
        cost=None,
        finished_BJ=finished_BJ,
        end=0,
        step=1,
    )


@pytest.mark.parametrize("mass", [0.5, 0.99, 1 - 1e-5])
def test_with_the_unit_slots_that_are_about_to_end_stay_apart(mass: float) -> None:
    """The best of what is kept from going on scores hundreds less than what ends: no measure of how far those are."""
    finished_BJ = torch.full((1, 3), mass, dtype=torch.float64)
    scores_BJV = torch.zeros(1, 3, 4, dtype=torch.float64)
    scores_BJV[0, :, 0] = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64) / (1 - mass)  # ending adds (1 - F) f
    scores_BJV = scores_BJV.requires_grad_()
    selection = SoftTopK(3, 8.0, mean_squared_gap)(ending_candidates(scores_BJV, finished_BJ), None, None)[0]
    # As if those that go on were not there: gaps of 1 and 1.
    weights_3 = [math.exp(-8.0 * gap**2) for gap in (0, 1, 2)]
    first = [weight / sum(weights_3) for weight in weights_3]
    assert selection.parent_weights_BKJ[0, 0].tolist() == pytest.approx(first, abs=1e-6)
    selection.scores_BK.sum().backward()
    assert scores_BJV.grad is not None and bool(torch.isfinite(scores_BJV.grad).all())


def test_with_the_unit_nothing_jumps_as_a_slot_ends() -> None:
    scores_BJV = torch.randn(6, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for k in (1, 3):
        selector = SoftTopK(k, 2.0, mean_squared_gap)
        nearly, wholly = (
            selector(
                ending_candidates(scores_BJV, torch.full((6, 3), mass, dtype=torch.float64), lead=1.0), None, None
            )[0]
            for mass in (1 - 2e-6, 1.0)
        )
        torch.testing.assert_close(nearly.parent_weights_BKJ, wholly.parent_weights_BKJ, atol=1e-4, rtol=0)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_with_the_unit_the_gradient_of_what_has_ended_in_part_is_the_derivative(k: int) -> None:
    draw = torch.Generator().manual_seed(k)
    scores_BJV = torch.randn(2, 2, 3, dtype=torch.float64, generator=draw, requires_grad=True)
    finished_BJ = (0.02 + 0.1 * torch.rand(2, 2, dtype=torch.float64, generator=draw)).requires_grad_()

    def everything(scores: Tensor, finished: Tensor) -> tuple[Tensor, ...]:
        selection = SoftTopK(k, 1.5, mean_squared_gap)(ending_candidates(scores, finished), None, None)[0]
        return selection.scores_BK, selection.token_weights_BKX, selection.parent_weights_BKJ

    assert torch.autograd.gradcheck(everything, (scores_BJV, finished_BJ))


# ---------------------------------------------------------------------------------------- by slot, and several tokens


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 2.0), SoftArgmax(1.5)], ids=["hard", "soft", "argmax"])
def test_quantities_by_slot_and_masses_of_several_tokens(selector: Any) -> None:
    """By loops over the marginals: ``sum_w a_r[w] sum_i b_r[i] values[i, w]``, and ``a_r`` at each of the tokens."""
    scores_BJV, values_BJV = torch.randn(4, 3, 5).double(), torch.randn(4, 3, 5).double()
    tokens_BG = torch.randint(0, 5, (4, 6))
    selection = selector(Candidates.of_scores(scores_BJV), None, None)[0]
    words_BKV = selection.embed(torch.eye(5, dtype=torch.float64))
    back_BKJ = selection.follow(torch.eye(3, dtype=torch.float64).expand(4, 3, 3))
    found, masses = selection.expect(values_BJV), selection.token_masses(tokens_BG)
    for b, r in np.ndindex(*found.shape):
        wanted = sum(
            float(words_BKV[b, r, w]) * float(back_BKJ[b, r, i]) * float(values_BJV[b, i, w])
            for i, w in itertools.product(range(3), range(5))
        )
        assert float(found[b, r]) == pytest.approx(wanted, abs=1e-10)
        assert masses[b, r].tolist() == [float(words_BKV[b, r, int(token)]) for token in tokens_BG[b]]
        assert float(selection.token_mass(2)[b, r]) == float(words_BKV[b, r, 2])


@pytest.mark.parametrize("unit", [of_scores, mean_squared_gap])
@pytest.mark.parametrize("form", [expanded, summed(), summed(tolerance=-1.0)], ids=["expanded", "few", "all"])
def test_at_any_alpha_gradients_are_those_of_the_hard_search(unit: AlphaUnit, form: Form) -> None:
    """As far as a float of 32 bits reaches and beyond, where alpha over its unit has no number."""
    batch = collate([EncodedExample((1, 2, 3), (7, 9, 0)), EncodedExample((1, 2), (5, 0))])
    torch.manual_seed(0)
    model = EncoderDecoder(source_size=5, target_size=600, end=0, embedding_size=8, hidden_size=8).eval()

    def gradients(selector: SoftTopK | HardTopK) -> list[torch.Tensor]:
        model.zero_grad()
        cost = hamming_cost(batch.targets_BT, vocab_size=600)
        context, steps_B = model.encode(batch), batch.target_lengths_B
        beam = beam_search(model, context, selector, num_steps=steps_B, cost=cost, score=global_)
        (beam.scores_BK.sum() + (beam.scores_BK.softmax(1) * beam.costs_BK).sum()).backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]

    hard = gradients(HardTopK(3))
    assert max(gradient.abs().max() for gradient in hard) > 0.1
    for alpha in (1e20, 1e30, 1e38, 1e300):
        for soft, gradient in zip(gradients(SoftTopK(3, alpha, unit, form)), hard, strict=True):
            torch.testing.assert_close(soft, gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("alpha", [1e10, 1e20, 1e30, 1e38, 1e300])
@pytest.mark.parametrize("unit", [of_scores, mean_squared_gap])
def test_gradients_of_ties_and_excluded_candidates_are_those_of_float64(unit: AlphaUnit, alpha: float) -> None:
    """At an alpha that float64 has room for: beyond it, weights of distinct scores change no more."""
    weights_V = torch.arange(4.0, dtype=torch.float64)
    excluded = -math.inf
    for scores in ([1.0, 0.0, 2.5, -1.0], [1.0, 1.0, 0.0, -1.0], [2.0, 2.0, 2.0, 0.5], [1.0, 0.0, excluded, excluded]):
        found = []
        for dtype in (torch.float32, torch.float64):
            scores_BJV = torch.tensor([[scores]], dtype=dtype, requires_grad=True)
            reached = alpha if dtype == torch.float32 else min(alpha, 1e30)
            selection = expanded(Candidates.of_scores(scores_BJV), 2, reached, unit)
            value = selection.scores_BK.sum() + (selection.token_weights_BKX * weights_V.to(dtype)).sum()
            found.append(torch.autograd.grad(value, scores_BJV)[0].double())
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
