"""The two bounds: they hold on random problems, are attained or worth something somewhere, and one is misprinted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from reproductions.andreas_klein_2015.normalizable_set import nearest_normalized, normalizable_curve
from reproductions.andreas_klein_2015.normalization_theory import (
    approximate_normalization_bound,
    generalization_bound,
    printed_generalization_bound,
)
from seqwise import InputError

Floats = npt.NDArray[np.float64]


def absolute_log_partitions(inputs: Floats, weights: Floats) -> Floats:
    """|log Z|: inputs (N, D) and weights (..., K, D) to (..., N)."""
    return np.abs(np.log(np.exp(np.einsum("nd,...kd->...nk", inputs, weights)).sum(-1)))


# ---------------------------------------------------------------------------------------- theorem 1


@pytest.mark.thorough
def test_theorem_1_holds_on_random_problems() -> None:
    draw = np.random.default_rng(0)
    ratios = []
    while len(ratios) < 50:
        K, D = int(draw.integers(1, 5)), int(draw.integers(1, 5))
        weights = draw.normal(0, 10 ** draw.uniform(-1, 1), (K, D))
        inputs = draw.normal(0, 2, (20, D))
        risk = absolute_log_partitions(inputs, weights).mean()
        try:
            found = nearest_normalized(torch.from_numpy(inputs), torch.from_numpy(weights))
        except InputError:  # normalised nowhere
            continue
        bound = approximate_normalization_bound(
            num_features=D, weight_bound=float(np.abs(weights).max()), mean_distance=found.distances_N.mean().item()
        )
        assert risk <= bound * (1 + 1e-9)
        ratios.append(risk / bound)
    assert 0.05 < min(ratios) < 0.5
    assert max(ratios) > 0.9


def test_theorem_1_is_attained_by_one_class_with_weights_of_one_size() -> None:
    weights = torch.tensor([[0.7, -0.7, 0.7]], dtype=torch.float64)
    inputs = torch.randn(100, 3, dtype=torch.float64)
    distance = nearest_normalized(inputs, weights).distances_N.mean().item()
    bound = approximate_normalization_bound(num_features=3, weight_bound=0.7, mean_distance=distance)
    assert absolute_log_partitions(inputs.numpy(), weights.numpy()).mean() == pytest.approx(bound)


def test_theorem_1_says_something_about_inputs_near_the_set() -> None:
    """Points of Figure 1's curve, moved by .05 at most: far below what holds of any inputs of that size."""
    weights = torch.tensor([[-1.0, 1.0], [-1.0, -2.0]], dtype=torch.float64)
    curve = normalizable_curve(weights, extent=2.0)
    inputs = curve + 0.1 * (torch.rand(curve.shape, generator=torch.Generator().manual_seed(0)).double() - 0.5)
    distance = nearest_normalized(inputs, weights).distances_N.mean().item()
    bound = approximate_normalization_bound(num_features=2, weight_bound=2.0, mean_distance=distance)
    risk = absolute_log_partitions(inputs.numpy(), weights.numpy()).mean()
    trivial = math.log(2) + 2 * 2.0 * inputs.abs().max().item()
    assert 0 < risk <= bound < 0.1 * trivial


# ---------------------------------------------------------------------------------------- theorem 2


def uniform_deviations(*, bound: float, num_examples: int, num_samples: int, seed: int) -> Floats:
    """``sup |L^ - L|`` over a fine grid of two weights in [-bound, bound], for each sample of inputs -1, .5 and 1."""
    draw = np.random.default_rng(seed)
    support, probabilities = np.array([-1.0, 0.5, 1.0]), np.array([0.2, 0.5, 0.3])
    values = np.linspace(-bound, bound, 41)
    weights = np.array(list(itertools.product(values, values)))[..., None]
    losses = absolute_log_partitions(support[:, None], weights)
    shares = draw.multinomial(num_examples, probabilities, num_samples) / num_examples
    return np.abs((shares - probabilities) @ losses.T).max(-1)


@pytest.mark.parametrize("bound", [0.1, 1.0, 5.0])
def test_theorem_2_holds_for_all_weights_at_once(bound: float) -> None:
    for seed, num_examples in enumerate((1, 10, 1000)):
        limit = generalization_bound(
            num_features=1, num_classes=2, weight_bound=bound, radius=1.0, num_examples=num_examples, delta=0.05
        )
        deviations = uniform_deviations(bound=bound, num_examples=num_examples, num_samples=500, seed=seed)
        assert deviations.max() > 0
        assert (deviations <= limit).mean() >= 0.95


def test_theorem_2_says_something_about_large_samples() -> None:
    """Against what |log Z| can vary by at all (log 2 + 1), and it falls as the root of the sample."""
    sizes = {"num_features": 1, "num_classes": 2, "weight_bound": 1.0, "radius": 1.0, "delta": 0.05}
    found = [generalization_bound(**sizes, num_examples=10**power) for power in (2, 4, 6)]
    assert found[1] < 0.04 * (math.log(2) + 1)
    for before, after in itertools.pairwise(found):
        assert 5 < before / after < 10
    # Within a factor of 10 of what happens: not empty words.
    observed = np.quantile(uniform_deviations(bound=1.0, num_examples=10_000, num_samples=500, seed=9), 0.95)
    assert observed < found[1] < 10 * observed


def test_the_grid_of_corollary_4_covers_all_weights_to_one_in_n() -> None:
    """``ceil(n d B R)`` evenly spaced values a weight: rounding to them moves |log Z| by at most 1 / n (lemma 3)."""
    draw = np.random.default_rng(4)
    worst = 0.0
    for _ in range(200):
        D, K, n = int(draw.integers(1, 4)), int(draw.integers(1, 4)), int(draw.integers(1, 30))
        bound, radius = draw.uniform(0.1, 3), draw.uniform(0.1, 3)
        cells = math.ceil(n * D * bound * radius)
        weights = draw.uniform(-bound, bound, (K, D))
        cell = np.minimum(np.floor((weights + bound) / (2 * bound) * cells), cells - 1)
        on_grid = -bound + (2 * cell + 1) * bound / cells
        inputs = radius * draw.choice([-1.0, 1.0], (50, D))
        moved = np.abs(absolute_log_partitions(inputs, weights) - absolute_log_partitions(inputs, on_grid)).max()
        assert moved <= 1 / n + 1e-12
        worst = max(worst, moved * n)
    assert worst > 0.8


def test_log_partitions_vary_by_no_more_than_the_bound_takes_them_to() -> None:
    """M = min(log k + d B R, 2 d B R), attained for inputs and weights of the extreme size, equal in every class."""
    for K, D, bound, radius in ((1, 2, 1.0, 3.0), (4, 1, 0.3, 1.0), (4, 2, 2.0, 1.0)):
        weights = np.full((K, D), bound)
        signs = np.linspace(-1, 1, 20_001)[:, None]
        values = absolute_log_partitions(radius * np.repeat(signs, D, axis=1), weights)
        variation = min(math.log(K) + D * bound * radius, 2 * D * bound * radius)
        assert values.max() - values.min() == pytest.approx(variation, rel=1e-3)
        # With one example and delta close to 1, what is left of the bound shows M.
        found = generalization_bound(
            num_features=D, num_classes=K, weight_bound=bound, radius=radius, num_examples=1, delta=0.5
        )
        cover = D * K * math.log(math.ceil(D * bound * radius))
        assert found == pytest.approx(2 + variation * math.sqrt((cover + math.log(4)) / 2), rel=1e-12)


def test_the_printed_bound_fails_where_log_partitions_are_large_and_this_one_does_not() -> None:
    """One class, one feature, inputs 0 or R evenly: for theta = B, ``|L^ - L| = B R |m / n - 1/2|`` with m binomial."""
    n, spread = 100, 1e4
    sizes = {"num_features": 1, "num_classes": 1, "weight_bound": 100.0, "radius": 100.0, "num_examples": n}
    printed = printed_generalization_bound(**sizes, delta=0.05)
    followed = generalization_bound(**sizes, delta=0.05)
    chances = [math.comb(n, m) / 2**n for m in range(n + 1)]
    beyond = {
        limit: sum(chance for m, chance in enumerate(chances) if spread * abs(m / n - 0.5) > limit)
        for limit in (printed, followed)
    }
    assert beyond[printed] > 0.9
    assert beyond[followed] < 0.05


def test_the_printed_bound_is_the_printed_formula() -> None:
    found = printed_generalization_bound(
        num_features=3, num_classes=2, weight_bound=0.5, radius=2.0, num_examples=50, delta=0.1
    )
    assert found == pytest.approx(2 * math.sqrt((6 * (math.log(3) + math.log(50)) + math.log(10)) / 100) + 2 / 50)


def test_bounds_of_nothing_are_finite() -> None:
    for bound in (generalization_bound, printed_generalization_bound):
        found = bound(num_features=1, num_classes=1, weight_bound=0.0, radius=1.0, num_examples=4, delta=0.1)
        assert found >= 0.5
        assert math.isfinite(found)
