"""Stochastic beam search against enumeration: the law of the draw, of its noise, and of the estimates made from it."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, getcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import oracles
from oracles import Case, ManyModels, tagger_case, translation_case
from seqwise import InputError
from seqwise.objectives import hamming_cost
from seqwise.search import (
    Beam,
    Candidates,
    Gumbel,
    HardSelection,
    HardTopK,
    StochasticBeam,
    StochasticTopK,
    backtrace,
    beam_search,
    hard_top_k,
    importance_weights,
    normalized_importance_weights,
    stochastic_beam_search,
)
from seqwise.search.beam import HELD
from seqwise.search.stochastic import conditional_gumbels

NUM_DRAWS = 20_000
# How many steps are searched, and a model: 9 outputs of two labels; 15 that end within three tokens or go on.
CASES = {
    "tagger": (2, tagger_case(0, target_size=3, lengths=(2,), scale=0.7)),
    "encoder-decoder": (3, translation_case(0, target_size=3, lengths=(3,), scale=0.7)),
}
each_model = pytest.mark.parametrize("name", CASES)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def repeated(case: Case, count: int = NUM_DRAWS) -> Any:
    """The context of one source, many times over: each row of the batch is one draw."""
    context = case.model.encode(case.batch)
    return type(context)(*(leaf.expand(count, *leaf.shape[1:]) for leaf in context))


def exact(name: str) -> dict[tuple[int, ...], float]:
    """Every output's probability, by the oracle."""
    num_steps, case = CASES[name]
    (oracle,) = case.oracles
    return {tokens: math.exp(oracles.gold_score(oracle, tokens)) for tokens in oracles.all_outputs(oracle, num_steps)}


def outputs_of(beam: Beam, end: int | None) -> list[list[tuple[int, ...]]]:
    """What each live slot wrote, up to the end token and with it."""
    written = []
    for scores, row in zip(beam.scores_BK.tolist(), backtrace(beam).tolist(), strict=True):
        live = [tokens for score, tokens in zip(scores, row, strict=True) if score > -math.inf]
        written.append([oracles.until_end(tokens, end) for tokens in live])
    return written


@functools.cache
def draws(name: str, k: int) -> tuple[StochasticBeam, list[list[tuple[int, ...]]]]:
    num_steps, case = CASES[name]
    with torch.no_grad():
        drawn = stochastic_beam_search(case.model, repeated(case), k=k, num_steps=num_steps, generator=seeded(1))
    return drawn, outputs_of(drawn.beam, case.model.end)


# ---------------------------------------------------------------------------------------- the law of the draw


def excess_chi_square(found: Sequence[tuple[Any, ...]], probabilities: dict[tuple[Any, ...], float]) -> float:
    """Standard deviations by which the chi-square of ordered draws exceeds its mean; rare cells are counted as one."""
    expected: Counter[Any] = Counter()
    observed: Counter[Any] = Counter()
    counts = Counter(found)
    assert set(counts) <= set(probabilities)
    for cell, probability in probabilities.items():
        pooled = cell if len(found) * probability >= 5 else "rare"
        expected[pooled] += len(found) * probability
        observed[pooled] += counts[cell]
    statistic = sum((observed[cell] - mean) ** 2 / mean for cell, mean in expected.items())
    freedom = len(expected) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def without_replacement(probabilities: dict[Any, float], k: int) -> dict[tuple[Any, ...], float]:
    """p(y_1) p(y_2) / (1 - p(y_1)) ... for each ordered choice of k outputs."""
    result = {}
    for chosen in itertools.permutations(probabilities, k):
        remaining, probability = 1.0, 1.0
        for output in chosen:
            probability *= probabilities[output] / remaining
            remaining -= probabilities[output]
        result[chosen] = probability
    return result


def fresh_noise(k: int) -> Any:
    """The wrong way: Gumbel noise drawn anew at every step, not given the noise of the step before."""

    def selector(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> Any:
        scores_BJV = candidates.scores_BJV
        size = min(k, scores_BJV[0].numel())
        _, parents_BK, tokens_BK = hard_top_k(Gumbel()(scores_BJV, generator), size)
        flat_BK = parents_BK * scores_BJV.shape[-1] + tokens_BK
        return HardSelection(scores_BJV.flatten(1).gather(1, flat_BK), parents_BK, tokens_BK), carry

    return selector


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "k"), [("tagger", 1), ("tagger", 2), ("tagger", 3), ("encoder-decoder", 2)])
def test_the_ordered_outputs_are_drawn_without_replacement(name: str, k: int) -> None:
    """Chi-square over all ordered choices."""
    probabilities = exact(name)
    assert sum(probabilities.values()) == pytest.approx(1)
    wanted = without_replacement(probabilities, k)
    assert sum(wanted.values()) == pytest.approx(1)
    _, outputs = draws(name, k)
    assert excess_chi_square([tuple(row) for row in outputs], wanted) < 4


@each_model
def test_noise_drawn_anew_at_every_step_is_another_law(name: str) -> None:
    """The same test finds out the wrong way."""
    num_steps, case = CASES[name]
    with torch.no_grad():
        beam = beam_search(case.model, repeated(case), fresh_noise(2), num_steps=num_steps, generator=seeded(1))
    outputs = outputs_of(beam, case.model.end)
    assert excess_chi_square([tuple(row) for row in outputs], without_replacement(exact(name), 2)) > 40


def kolmogorov_smirnov(values: Tensor) -> float:
    """sqrt(n) times the largest distance between the values' distribution and that of Exp(1)."""
    law = 1 - torch.exp(-values.sort().values)
    steps = torch.arange(len(values) + 1, dtype=torch.float64) / len(values)
    return float(torch.maximum(steps[1:] - law, law - steps[:-1]).max()) * math.sqrt(len(values))


@each_model
def test_noisy_values_and_threshold_are_arrivals_of_a_race(name: str) -> None:
    """exp(-value) is the time at which an output arrives, at a rate of its probability: the first after Exp(1), each
    next one after Exp(1) over the rate of what has not yet arrived, and the threshold is the first one not drawn.

    So the largest value is a standard Gumbel variable, and the threshold the value of a (k+1)-th draw.
    """
    probabilities, k = exact(name), 5
    drawn, outputs = draws(name, k)
    assert (drawn.perturbed_BK.diff(dim=1) < 0).all()
    arrivals = torch.exp(-torch.cat([drawn.perturbed_BK, drawn.threshold_B[:, None]], dim=1))
    waits = torch.cat([arrivals[:, :1], arrivals.diff(dim=1)], dim=1)
    rates = torch.tensor([[1 - sum(probabilities[y] for y in row[:r]) for r in range(k + 1)] for row in outputs])
    for r in range(k + 1):
        # 1.95 is the 99.9 % point of the Kolmogorov distribution.
        assert kolmogorov_smirnov((waits[:, r] * rates[:, r]).double()) < 1.95, r


@each_model
def test_log_probabilities_are_the_models(name: str) -> None:
    probabilities = exact(name)
    drawn, outputs = draws(name, 2)
    for row, scores in zip(outputs[:100], drawn.beam.scores_BK[:100].tolist(), strict=True):
        assert scores == pytest.approx([math.log(probabilities[tokens]) for tokens in row], abs=1e-10)


# ---------------------------------------------------------------------------------------- the noise


def conditioned_exactly(noisy: Sequence[float], maximum: float) -> list[float]:
    """-log(exp(-T) - exp(-Z) + exp(-g)), in 120 digits."""
    getcontext().prec = 120
    largest, wanted = Decimal(max(noisy)), Decimal(maximum)
    return [
        -math.inf if g == -math.inf else float(-((-wanted).exp() - (-largest).exp() + (-Decimal(g)).exp()).ln())
        for g in noisy
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_with_a_given_maximum(dtype: torch.dtype) -> None:
    """Against the defining formula in many digits, with maxima far from where free noise would have put them."""
    log_probs = torch.randn(30, 5, dtype=torch.float64, generator=seeded(0)).mul(6).log_softmax(-1).to(dtype)
    log_probs[torch.rand(30, 5, generator=seeded(1)) < 0.2] = -torch.inf
    log_probs[:, 0] = -1.0
    maxima = torch.linspace(-60, 60, 30, dtype=dtype)
    found = conditional_gumbels(log_probs, maxima, seeded(2))
    assert torch.equal(found.amax(-1), maxima)
    assert torch.equal(found == -torch.inf, log_probs == -torch.inf)
    noisy = Gumbel()(log_probs, seeded(2))
    for row, maximum, expected in zip(found.tolist(), maxima.tolist(), noisy.tolist(), strict=True):
        wanted = conditioned_exactly(expected, maximum)
        # A maximum far above leaves the others' noise at the mercy of Z - g, of which float32 knows seven digits.
        assert row == pytest.approx(wanted, rel=1e-12 if dtype == torch.float64 else 1e-5, abs=1e-5)


@pytest.mark.parametrize(("dtype", "far"), [(torch.float32, -200.0), (torch.float64, -2000.0)])
def test_an_entry_far_below_the_maximum_keeps_its_own_noise(dtype: torch.dtype, far: float) -> None:
    log_probs = torch.tensor([0.0, far], dtype=dtype).expand(50, 2)
    free = Gumbel()(log_probs, seeded(3))
    for maximum in (-5.0, 0.0, 5.0):
        found = conditional_gumbels(log_probs, torch.full((50,), maximum, dtype=dtype), seeded(3))
        torch.testing.assert_close(found[:, 1], free[:, 1])


def test_dead_slots_and_dead_ends_stay_dead_without_nan() -> None:
    log_probs = torch.tensor([[-1.0, -0.5], [-torch.inf, -0.5], [-torch.inf, -torch.inf], [-1.0, -0.5]])
    maxima = torch.tensor([0.3, 0.3, 0.3, -torch.inf])
    found = conditional_gumbels(log_probs, maxima, seeded(0))
    assert not found.isnan().any()
    assert found[:2].amax(-1).tolist() == maxima[:2].tolist()
    assert found[1].tolist() == [-math.inf, float(maxima[1])]
    assert (found[2:] == -torch.inf).all()


@each_model
def test_the_best_child_has_exactly_its_parents_value(name: str) -> None:
    """All prefixes are kept; the same noise is drawn up to a step and one step further."""
    num_steps, case = CASES[name]
    for steps in range(num_steps):
        before, after = (
            stochastic_beam_search(case.model, repeated(case, 50), k=1000, num_steps=number, generator=seeded(4))
            for number in (steps, steps + 1)
        )
        parents_BK = after.beam.parents[-1]
        best_BJ = torch.full_like(before.perturbed_BK, -torch.inf).scatter_reduce(
            1, parents_BK, after.perturbed_BK, "amax"
        )
        assert torch.equal(best_BJ, before.perturbed_BK)
        assert torch.equal(after.perturbed_BK[:, 0], before.perturbed_BK[:, 0])


def test_a_finished_output_keeps_its_value_or_is_below_the_threshold() -> None:
    _, case = CASES["encoder-decoder"]
    before, after = (
        stochastic_beam_search(case.model, repeated(case, 200), k=3, num_steps=number, generator=seeded(5))
        for number in (2, 6)
    )
    kept = dropped = 0
    for b, (early, late) in enumerate(
        zip(outputs_of(before.beam, case.model.end), outputs_of(after.beam, case.model.end), strict=True)
    ):
        values = dict(zip(late, after.perturbed_BK[b].tolist(), strict=True))
        for tokens, value in zip(early, before.perturbed_BK[b].tolist(), strict=True):
            if tokens[-1] == case.model.end:
                kept, dropped = kept + (tokens in values), dropped + (tokens not in values)
                assert values[tokens] == value if tokens in values else float(after.threshold_B[b]) >= value
    assert kept > 50
    assert dropped > 5


# ---------------------------------------------------------------------------------------- every output


@each_model
def test_a_beam_with_room_for_all_draws_every_output_once(name: str) -> None:
    """The threshold is then minus infinity, the weights are the probabilities, and any estimate is exact."""
    num_steps, case = CASES[name]
    probabilities = exact(name)
    for k in (len(probabilities), 1000):
        drawn = stochastic_beam_search(case.model, repeated(case, 20), k=k, num_steps=num_steps, generator=seeded(6))
        weights_BK = importance_weights(drawn)
        for b, row in enumerate(outputs_of(drawn.beam, case.model.end)):
            assert Counter(row) == Counter(probabilities.keys())
            assert weights_BK[b, : len(row)].tolist() == pytest.approx([probabilities[y] for y in row])
        assert (drawn.threshold_B == -torch.inf).all()
        dead_BK = drawn.beam.scores_BK == -torch.inf
        assert (drawn.perturbed_BK[dead_BK] == -torch.inf).all()
        assert (weights_BK[dead_BK] == 0).all()
        torch.testing.assert_close(normalized_importance_weights(drawn), weights_BK)


# ---------------------------------------------------------------------------------------- estimates


@each_model
@pytest.mark.parametrize("k", [2, 5])
def test_estimates_are_unbiased(name: str, k: int) -> None:
    """Of the total probability, and of a function of the output; with the smallest drawn value as threshold, not."""
    probabilities = exact(name)
    drawn, outputs = draws(name, k)
    values = {tokens: math.sin(7 * index) for index, tokens in enumerate(probabilities)}
    values_BK = torch.tensor([[values[tokens] for tokens in row] for row in outputs], dtype=torch.float64)
    truth = sum(probabilities[tokens] * values[tokens] for tokens in probabilities)

    def errors_in_deviations(estimates_B: Tensor, wanted: float) -> float:
        return abs(float(estimates_B.mean()) - wanted) / float(estimates_B.std() / math.sqrt(NUM_DRAWS))

    weights_BK = importance_weights(drawn)
    assert errors_in_deviations(weights_BK.sum(-1), 1.0) < 4
    assert errors_in_deviations((weights_BK * values_BK).sum(-1), truth) < 4
    wrong = importance_weights(StochasticBeam(drawn.beam, drawn.perturbed_BK, drawn.perturbed_BK[:, -1]))
    assert errors_in_deviations(wrong.sum(-1), 1.0) > 20


@each_model
def test_normalised_estimates_come_closer_with_k(name: str) -> None:
    probabilities = exact(name)
    values = {tokens: math.sin(7 * index) for index, tokens in enumerate(probabilities)}
    truth = sum(probabilities[tokens] * values[tokens] for tokens in probabilities)
    mean_squares = []
    for k in (1, 2, 5):
        drawn, outputs = draws(name, k)
        weights_BK, plain_BK = normalized_importance_weights(drawn), importance_weights(drawn)
        torch.testing.assert_close(weights_BK, plain_BK / plain_BK.sum(-1, keepdim=True))
        values_BK = torch.tensor([[values[tokens] for tokens in row] for row in outputs], dtype=torch.float64)
        mean_squares.append(float(((weights_BK * values_BK).sum(-1) - truth).square().mean()))
    variance = sum(probabilities[tokens] * (values[tokens] - truth) ** 2 for tokens in probabilities)
    assert mean_squares[0] == pytest.approx(variance, rel=0.05)  # one ordinary sample
    assert mean_squares[1] < 0.9 * variance / 2  # less than of two, and of five, with replacement
    assert mean_squares[2] < 0.6 * variance / 5


def test_the_gradient_of_an_estimate_is_unbiased() -> None:
    """Each row has weights of its own, so that there is a gradient, and a deviation, for each draw."""
    many, steps, k = ManyModels(1, num_tokens=3, end=0, seed=1, scale=0.8), 3, 3
    cost = hamming_cost(torch.tensor([[1, 2, 0]]), 3)
    many.output_BHV.requires_grad_()
    whole = beam_search(many, None, HardTopK(100), num_steps=steps, cost=cost)
    exact_risk = (whole.scores_BK.exp() * whole.costs_BK).sum()
    (wanted,) = torch.autograd.grad(exact_risk, many.output_BHV)
    assert wanted.abs().max() > 0.02
    many.count = NUM_DRAWS
    many.output_BHV = many.output_BHV.detach().repeat(NUM_DRAWS, 1, 1).requires_grad_()
    many.first_B1D = many.first_B1D.repeat(NUM_DRAWS, 1, 1)
    cost = hamming_cost(torch.tensor([[1, 2, 0]]).expand(NUM_DRAWS, -1), 3)
    drawn = stochastic_beam_search(many, None, k=k, num_steps=steps, cost=cost, generator=seeded(9))
    risk_B = (importance_weights(drawn) * drawn.beam.costs_BK).sum(-1)
    (found_BHV,) = torch.autograd.grad(risk_B.sum(), many.output_BHV)
    deviations = found_BHV.std(0) / math.sqrt(NUM_DRAWS)
    assert ((found_BHV.mean(0) - wanted[0]).abs() / deviations).max() < 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_very_unlikely_and_of_certain_outputs(dtype: torch.dtype) -> None:
    """p / (1 - exp(-exp(log p - kappa))) in many digits: log p down to -1000, where p and q underflow alike."""
    getcontext().prec = 500
    log_probs = torch.tensor([-1000.0, -100.0, -70.0, -50.0, -20.0, -5.0, -1.0, -1e-3, 0.0], dtype=dtype)
    for kappa in (-3.0, -0.5, 1.5):
        beam = Beam(log_probs[None], log_probs[None], log_probs[None], log_probs[None], None)
        drawn = StochasticBeam(beam, log_probs[None], torch.tensor([kappa], dtype=dtype))
        expected = []
        for log_prob in log_probs.tolist():
            rate = (Decimal(log_prob) - Decimal(kappa)).exp()
            expected.append(float(Decimal(log_prob).exp() / (1 - (-rate).exp())))
        found = importance_weights(drawn)[0].tolist()
        assert found == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-12)


# ---------------------------------------------------------------------------------------- the loop's promises


def test_inputs_that_need_fewer_steps_wait_unchanged() -> None:
    for end in (None, 0):
        model = ManyModels(4, num_tokens=4, end=end, seed=3)
        num_steps_B = torch.tensor([0, 1, 3, 2])
        drawn = stochastic_beam_search(model, None, k=6, num_steps=num_steps_B, generator=seeded(10))
        assert (backtrace(drawn.beam)[0] == HELD).all()
        assert float(drawn.threshold_B[0]) == -math.inf
        assert importance_weights(drawn)[0].tolist() == [1, 0, 0, 0, 0, 0]
        for steps, row in ((0, 0), (1, 1), (2, 3), (3, 2)):
            whole = stochastic_beam_search(model, None, k=6, num_steps=steps, generator=seeded(10))
            live = whole.perturbed_BK.shape[1]
            assert torch.equal(drawn.perturbed_BK[row, :live], whole.perturbed_BK[row])
            assert (drawn.perturbed_BK[row, live:] == -torch.inf).all()
            assert torch.equal(drawn.beam.scores_BK[row, :live], whole.beam.scores_BK[row])
            assert torch.equal(drawn.threshold_B[row], whole.threshold_B[row])
            assert torch.equal(backtrace(drawn.beam)[row, :live, :steps], backtrace(whole.beam)[row])


def test_costs_follow_the_outputs() -> None:
    num_steps, case = CASES["encoder-decoder"]
    gold = [2, 0, 1]
    cost = hamming_cost(torch.tensor([gold]).expand(30, -1), 3)
    drawn = stochastic_beam_search(
        case.model, repeated(case, 30), k=4, num_steps=num_steps, cost=cost, generator=seeded(11)
    )
    for tokens, cost_K in zip(backtrace(drawn.beam).tolist(), drawn.beam.costs_BK.tolist(), strict=True):
        assert cost_K == [sum(a != b for a, b in zip(row, gold, strict=True)) for row in tokens]


def test_forbidden_tokens_are_never_drawn() -> None:
    class Forbidding(ManyModels):
        def head(self, features: Tensor) -> Tensor:
            return super().head(features).index_fill(-1, torch.tensor([2]), -torch.inf)

    for end in (None, 1):
        model = Forbidding(50, num_tokens=4, end=end, seed=2)
        drawn = stochastic_beam_search(model, None, k=9, num_steps=3, generator=seeded(12))
        assert not drawn.perturbed_BK.isnan().any()
        for row in outputs_of(drawn.beam, end):
            assert len(set(row)) == len(row) == 9
            assert all(2 not in tokens for tokens in row)


def test_the_generator_is_the_only_source_of_noise() -> None:
    num_steps, case = CASES["tagger"]
    state = torch.get_rng_state()
    first, again, other = (
        stochastic_beam_search(case.model, repeated(case, 5), k=3, num_steps=num_steps, generator=seeded(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.perturbed_BK, again.perturbed_BK)
    assert torch.equal(backtrace(first.beam), backtrace(again.beam))
    assert not torch.equal(first.perturbed_BK, other.perturbed_BK)


def test_one_selector_serves_many_searches() -> None:
    """``beam_search`` draws the same as ``stochastic_beam_search``, and the selector keeps no state."""
    num_steps, case = CASES["encoder-decoder"]
    context, selector = repeated(case, 5), StochasticTopK(3)

    def drawn(seed: int) -> Beam:
        return beam_search(case.model, context, selector, num_steps=num_steps, generator=seeded(seed))

    expected = stochastic_beam_search(case.model, context, k=3, num_steps=num_steps, generator=seeded(1)).beam
    drawn(2)
    beam = drawn(1)
    assert torch.equal(beam.scores_BK, expected.scores_BK)
    assert torch.equal(backtrace(beam), backtrace(expected))
    assert not torch.equal(backtrace(beam), backtrace(drawn(2)))


def test_half_precision_models_draw_in_float32() -> None:
    case = tagger_case(0)
    model = case.model.bfloat16()
    drawn = stochastic_beam_search(model, model.encode(case.batch), k=3, num_steps=2)
    assert drawn.perturbed_BK.dtype == drawn.threshold_B.dtype == importance_weights(drawn).dtype == torch.float32


def test_bad_arguments_are_refused() -> None:
    case = tagger_case(0)
    context = case.model.encode(case.batch)
    for k in (0, -2):
        with pytest.raises(InputError, match=f"k must be at least 1, got {k}"):
            stochastic_beam_search(case.model, context, k=k, num_steps=2)
    with pytest.raises(InputError, match="-1"):
        stochastic_beam_search(case.model, context, k=2, num_steps=-1)
