"""Where a log-linear model is normalised: membership, emptiness, distances by brute force and duality, the curve."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from reproductions.andreas_klein_2015 import normalizable_set
from reproductions.andreas_klein_2015.normalizable_set import nearest_normalized, normalizable_curve
from seqwise import InputError

Floats = npt.NDArray[np.float64]
FIGURE_1 = torch.tensor([[-1.0, 1.0], [-1.0, -2.0]], dtype=torch.float64)


def log_partition(point: Floats, weights: Floats) -> float:
    return float(np.log(np.exp(weights @ point).sum()))


def is_empty(weights: Tensor) -> bool:
    """Whether no input has Z = 1, by a search for a direction along which every score falls."""
    return normalizable_set._falling_direction(weights.double()) is None


def problems(seed: int, count: int, num_features: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Random inputs and weights of a model that is normalised somewhere."""
    draw = np.random.default_rng(seed)
    found: list[tuple[Tensor, Tensor]] = []
    while len(found) < count:
        D = num_features or int(draw.integers(1, 5))
        weights = draw.normal(0, 10 ** draw.uniform(-1, 1), (int(draw.integers(2, 6)), D)) - draw.normal(0, 1, D)
        inputs = draw.normal(0, 3, (12, D)) / 10 ** draw.uniform(-1, 1)
        if not is_empty(torch.from_numpy(weights)):
            found.append((torch.from_numpy(inputs), torch.from_numpy(weights)))
    return found


# ---------------------------------------------------------------------------------------- emptiness


@pytest.mark.thorough
def test_emptiness_equals_the_largest_angle_between_neighbours() -> None:
    """In the plane, 0 is in the convex hull exactly if no two neighbouring directions are more than pi apart."""
    draw = np.random.default_rng(1)
    seen = []
    for _ in range(150):
        weights = draw.normal(0, 1, (int(draw.integers(2, 6)), 2)) + draw.normal(0, 0.7, 2)
        angles = np.sort(np.arctan2(weights[:, 1], weights[:, 0]))
        widest = np.max(np.diff(np.append(angles, angles[0] + 2 * math.pi)))
        seen.append(bool(widest <= math.pi))
        assert is_empty(torch.from_numpy(weights)) == seen[-1]
    assert 30 < sum(seen) < 120


@pytest.mark.thorough
def test_emptiness_in_more_dimensions_and_at_the_edges() -> None:
    draw = np.random.default_rng(2)
    for D in (1, 3, 6):
        for _ in range(10):
            weights = draw.normal(0, 5, (4, D))
            mixture = draw.dirichlet(np.ones(4)) @ weights
            assert is_empty(torch.from_numpy(np.vstack([weights, -draw.uniform(0.1, 2) * mixture])))
            falls = draw.normal(0, 1, D)
            weights -= np.outer(np.maximum(weights @ falls + 0.1, 0) / (falls @ falls), falls)
            assert not is_empty(torch.from_numpy(weights))
    assert is_empty(torch.zeros(2, 3))
    assert not is_empty(torch.ones(4, 3))  # four classes alike: a hyperplane
    for scale in (1e-9, 1e9):  # not the mean, but only (0, -1) and what is near it, lowers both scores
        assert not is_empty(scale * torch.tensor([[10.0, 1.0], [-1.0, 1.0]]))
        assert is_empty(scale * torch.tensor([[10.0, 1.0], [-1.0, 1.0], [0.0, -1.0]]))


# ---------------------------------------------------------------------------------------- distance


def test_one_class_is_a_hyperplane() -> None:
    inputs, weights = torch.randn(50, 3, dtype=torch.float64), torch.tensor([[2.0, 0.0, -1.5]], dtype=torch.float64)
    found = nearest_normalized(inputs, weights)
    expected = (inputs @ weights[0]).abs() / 3.5
    torch.testing.assert_close(found.distances_N, expected, atol=1e-12, rtol=1e-12)
    assert ((found.points_ND @ weights[0]).abs() <= 1e-12).all()
    everywhere = nearest_normalized(inputs, torch.zeros(1, 3))
    assert torch.equal(everywhere.points_ND, inputs)
    assert not everywhere.distances_N.any()


@pytest.mark.thorough
def test_points_are_on_the_set_and_as_far_as_said() -> None:
    for inputs, weights in problems(0, 8):
        found = nearest_normalized(inputs, weights)
        for point, given, distance in zip(
            found.points_ND.numpy(), inputs.numpy(), found.distances_N.tolist(), strict=True
        ):
            assert log_partition(point, weights.numpy()) == pytest.approx(0, abs=1e-9)
            assert np.linalg.norm(point - given, ord=np.inf) == pytest.approx(distance, rel=1e-12, abs=1e-15)


@pytest.mark.thorough
def test_outside_the_distance_is_optimal_by_duality() -> None:
    """For every distribution p over classes, ``log Z >= p . scores + H(p)``, so no point of the set is nearer than
    ``(p . scores(x) + H(p)) / |theta' p|`` in the dual norm; with the p of the point found, that is its distance."""
    checked = 0
    for inputs, weights in problems(1, 15):
        found = nearest_normalized(inputs, weights)
        for given, point, distance in zip(
            inputs.numpy(), found.points_ND.numpy(), found.distances_N.tolist(), strict=True
        ):
            if log_partition(given, weights.numpy()) <= 0:
                continue
            p = np.exp(weights.numpy() @ point)
            p /= p.sum()
            entropy = -sum(share * math.log(share) for share in p if share > 0)
            slope = np.linalg.norm(p @ weights.numpy(), ord=1)
            assert distance == pytest.approx((p @ (weights.numpy() @ given) + entropy) / slope, rel=1e-6)
            checked += 1
    assert checked > 80


def crossing(given: Floats, direction: Floats, weights: Floats) -> float:
    """How far the set is along a direction from inside it, by bisection."""
    if (weights @ direction).max() <= 0:
        return math.inf
    low, high = 0.0, 1.0
    while log_partition(given + high * direction, weights) < 0:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if log_partition(given + middle * direction, weights) > 0 else (middle, high)
    return high


def inside(seed: int, count: int, num_features: int) -> list[tuple[Tensor, Tensor]]:
    """Random problems with those of the inputs (and more) at which log Z is negative."""
    found = []
    for inputs, weights in problems(seed, count, num_features):
        inputs = torch.cat([inputs, -0.5 * inputs, 3 * inputs])
        below = (inputs @ weights.T).logsumexp(-1) < 0
        found.append((inputs[below][:4], weights))
    return found


def test_inside_the_largest_difference_equals_that_of_the_best_corner() -> None:
    """A convex function is greatest at a corner of a cube: all 2^D of them are tried."""
    checked = 0
    for D in (1, 2, 3):
        for inputs, weights in inside(2, 6, D):
            found = nearest_normalized(inputs, weights)
            for given, distance in zip(inputs.numpy(), found.distances_N.tolist(), strict=True):
                corners = [np.array(corner) for corner in itertools.product((-1.0, 1.0), repeat=D)]
                expected = min(crossing(given, corner, weights.numpy()) for corner in corners)
                assert distance == pytest.approx(expected, rel=1e-9)
                checked += 1
    assert checked > 30


@pytest.mark.thorough
def test_in_the_plane_no_point_of_the_set_is_nearer() -> None:
    """Two classes: every point of the set has scores (log p, log (1 - p)), which the weights map back to the plane."""
    draw = np.random.default_rng(3)
    p = 1 / (1 + np.exp(-np.linspace(-40, 40, 40_001)))
    rest = 1 / (1 + np.exp(np.linspace(-40, 40, 40_001)))
    sides = [0, 0]
    for _ in range(15):
        weights = draw.normal(0, 1, (2, 2))
        curve = np.linalg.solve(weights, np.log(np.stack([p, rest]))).T
        inputs = draw.normal(0, 4, (8, 2))
        found = nearest_normalized(torch.from_numpy(inputs), torch.from_numpy(weights))
        for given, distance in zip(inputs, found.distances_N.tolist(), strict=True):
            # Where the nearest point lies beyond the grid the comparison would be unfair.
            gaps = np.linalg.norm(curve - given, ord=np.inf, axis=1)
            best = int(gaps.argmin())
            if not 0 < best < len(p) - 1:
                continue
            spacing = max(np.linalg.norm(curve[best] - curve[best + side], ord=np.inf) for side in (-1, 1))
            assert gaps[best] - spacing <= distance <= gaps[best] * (1 + 1e-9)
            sides[log_partition(given, weights) > 0] += 1
    assert min(sides) > 10


def test_extreme_scales_and_inputs_on_the_set() -> None:
    curve = normalizable_curve(FIGURE_1, extent=3.0, num_points=7)
    assert (nearest_normalized(curve, FIGURE_1).distances_N < 1e-12).all()
    inputs = torch.tensor([[0.0, 0.0], [5.0, 1.0], [-3.0, 2.0]], dtype=torch.float64)
    expected = nearest_normalized(inputs, FIGURE_1).distances_N
    for scale in (1e-4, 1e4):
        found = nearest_normalized(inputs / scale, FIGURE_1 * scale).distances_N
        torch.testing.assert_close(found * scale, expected, atol=0, rtol=1e-6)
    nearby = curve + torch.tensor([1e-7, 0.0], dtype=torch.float64)
    found = nearest_normalized(nearby, FIGURE_1).distances_N
    assert (found <= 1e-7 * (1 + 1e-4)).all()
    assert (found > 1e-9).all()
    assert nearest_normalized(torch.zeros(0, 2), FIGURE_1).distances_N.shape == (0,)


# ---------------------------------------------------------------------------------------- the curve of Figure 1


@pytest.mark.parametrize(
    "weights",
    [
        FIGURE_1,
        torch.tensor([[-3.0, 1.0], [-1.0, -2.0], [-0.2, 0.5], [-1.0, 0.1]]),
        torch.tensor([[0.3, -0.7]]),
        torch.tensor([[0.5, 0.5], [0.5, 0.5]]),
    ],
    ids=["figure 1", "four classes", "one class", "two classes alike"],
)
def test_the_curve_is_on_the_set_in_order_and_convex(weights: Tensor) -> None:
    curve = normalizable_curve(weights, extent=6.0, num_points=101).numpy()
    assert curve.shape == (101, 2)
    for point in curve:
        assert log_partition(point, weights.double().numpy()) == pytest.approx(0, abs=1e-9)
    steps = np.diff(curve, axis=0)
    turns = steps[:-1, 0] * steps[1:, 1] - steps[:-1, 1] * steps[1:, 0]
    assert (turns * np.sign(turns.sum() or 1) > -1e-9).all(), "it bends one way only"
    assert (np.sum(steps[:-1] * steps[1:], axis=1) > 0).all(), "it never doubles back"


def test_figure_1_lies_between_the_hyperplanes_that_the_caption_names() -> None:
    """On the side of each where that score is negative, and ever nearer to them at the two ends."""
    scores = normalizable_curve(FIGURE_1, extent=30.0, num_points=301) @ FIGURE_1.T
    assert (scores < 1e-12).all()
    ends = scores[[0, -1]].amax(-1)
    assert (ends > -1e-9).all()
    assert {int(scores[0].argmax()), int(scores[-1].argmax())} == {0, 1}


# ---------------------------------------------------------------------------------------- refusals


def test_weights_without_a_set_are_refused() -> None:
    opposed = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    inputs = torch.zeros(1, 2)
    for call in (
        lambda: nearest_normalized(inputs, opposed),
        lambda: normalizable_curve(opposed, extent=1.0),
        lambda: normalizable_curve(torch.zeros(1, 2), extent=1.0),
    ):
        with pytest.raises(InputError, match="Z = 1"):
            call()


# ---------------------------------------------------------------------------------------- the interior-point method


def test_derivatives_of_the_barrier_equal_automatic_ones() -> None:
    """A wrong Hessian would only be slow, so results do not show it."""
    generator = torch.Generator().manual_seed(0)
    weights_KD = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    z_NE = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    z_NE[:, -1] = 1 + z_NE[:, :-1].norm(dim=-1)
    scores_NK = torch.randn(5, 4, generator=generator, dtype=torch.float64) - 8
    t_N = torch.rand(5, generator=generator, dtype=torch.float64)
    found = normalizable_set._barrier_derivatives(z_NE, scores_NK, weights_KD, t_N)
    for n in range(5):

        def value(z_E: Tensor, n: int = n) -> Tensor:
            return normalizable_set._barrier(z_E[None], scores_NK[n, None], weights_KD, t_N[n, None])[0]

        leaf_E = z_NE[n].clone().requires_grad_()
        torch.testing.assert_close(found[0][n], torch.autograd.grad(value(leaf_E), leaf_E)[0])
        torch.testing.assert_close(found[1][n], torch.autograd.functional.hessian(value, z_NE[n]))
