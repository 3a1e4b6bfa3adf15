"""Figure 1 of Andreas and Klein (2015): a normalisable set, and both theorems checked on points near it.

The model has two features and two classes, theta = {[-1, 1], [-1, -2]}; ``{x: Z(x; theta) = 1}`` is a smooth curve.
Shapes: N inputs, P points of the curve, 2 features, K = 2 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from reproductions import Setup
from reproductions.andreas_klein_2015.normalizable_set import nearest_normalized, normalizable_curve
from reproductions.andreas_klein_2015.normalization_theory import (
    approximate_normalization_bound,
    generalization_bound,
    printed_generalization_bound,
)
from reproductions.figures import BLUE, GREY, ORANGE, RED, SKY, panels
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from seqwise.data.readers import Example
from seqwise.evaluation.signature import sha256_of_examples, sign

THETA_K2 = torch.tensor([[-1.0, 1.0], [-1.0, -2.0]], dtype=torch.float64)
"""The weight vectors of the published figure."""

EXTENT, POINTS, INPUTS = 4.0, 401, 2_000
RADII = (0.05, 0.2, 0.8)
SIZES = (10, 100, 1_000)
TRIALS, DELTA = 200, 0.05
SOURCE = "Andreas and Klein (2015), Figure 1"


@dataclass(frozen=True, eq=False)
class Cloud:
    """Inputs drawn around the curve, with the numbers of Theorem 1."""

    radius: float  # half the side of the square around a point of the curve from which an input is drawn
    inputs_N2: Tensor
    distance: float  # D, their mean distance to the set (largest difference of a feature)
    risk: float  # the mean |log Z|
    bound: float  # d B D, on the risk
    worst: float  # the largest ratio of |log Z| to d B times the distance of one input


@dataclass(frozen=True)
class Sample:
    """Samples of one size, with the numbers of Theorem 2."""

    size: int  # n, of each sample
    largest: float  # the largest ``|mean_i |log Z(x_i)| - E|log Z||`` of all samples
    bound: float  # that holds for all but a share delta of samples
    printed: float  # the bound as printed


def log_partitions(inputs_N2: Tensor) -> Tensor:
    """Return log Z of inputs, (N,)."""
    return (inputs_N2 @ THETA_K2.T).logsumexp(-1)


def cloud(curve_P2: Tensor, radius: float, *, generator: torch.Generator, count: int) -> Cloud:
    """Draw inputs around random points of a curve, and measure them."""
    places = torch.randint(len(curve_P2), (count,), generator=generator)
    moves_N2 = radius * (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1)
    inputs_N2 = curve_P2[places] + moves_N2
    distances_N = nearest_normalized(inputs_N2, THETA_K2).distances_N
    risks_N = log_partitions(inputs_N2).abs()
    largest = float(THETA_K2.abs().max())
    bound = approximate_normalization_bound(
        num_features=2, weight_bound=largest, mean_distance=float(distances_N.mean())
    )
    # An input on the set has distance 0 up to rounding, and log Z 0 as well.
    ratios_N = risks_N / (2 * largest * distances_N.clamp(min=1e-9))
    return Cloud(radius, inputs_N2, float(distances_N.mean()), float(risks_N.mean()), bound, float(ratios_N.max()))


def samples(inputs_N2: Tensor, *, generator: torch.Generator, sizes: Sequence[int] = SIZES) -> list[Sample]:
    """Draw samples from a population of inputs, and compare their risks with that of the population."""
    risks_N = log_partitions(inputs_N2).abs()
    expected, found = risks_N.mean(), []
    for size in sizes:
        places = torch.randint(len(risks_N), (TRIALS, size), generator=generator)
        largest = float((risks_N[places].mean(dim=1) - expected).abs().max())
        radius, most = float(inputs_N2.abs().max()), float(THETA_K2.abs().max())
        how = {"num_features": 2, "num_classes": 2, "num_examples": size}
        bounds = [
            bound(**how, weight_bound=most, radius=radius, delta=DELTA)
            for bound in (generalization_bound, printed_generalization_bound)
        ]
        found.append(Sample(size, largest, *bounds))
    return found


def reproduce(setup: Setup) -> list[Outcome]:
    """Draw the set with points around it, and check its shape and both theorems on them.

    Source: Andreas and Klein (NAACL 2015), Figure 1, Theorems 1 and 2. Not implemented: other weights.
    """
    generator = torch.Generator().manual_seed(setup.seed)
    curve_P2 = normalizable_curve(THETA_K2, extent=EXTENT, num_points=POINTS)
    clouds = [cloud(curve_P2, radius, generator=generator, count=INPUTS) for radius in RADII]
    drawn = samples(clouds[-1].inputs_N2, generator=generator)
    figure = setup.folder / "figure-1.png"
    draw(curve_P2, clouds, drawn, figure)
    title = "Figure 1: the inputs at which a log-linear model is normalised"
    results = _results(curve_P2, clouds, drawn, setup.seed)
    table = Table(title, tuple(results), claims=tuple(examine(curve_P2, clouds, drawn)))
    return [Outcome("figure-1", table, {"figure": figure})]


def examine(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample]) -> list[Claim]:
    """Check the paper's statements on the points."""
    largest = float(log_partitions(curve_P2).abs().max())
    highest = float((curve_P2 @ THETA_K2.T).max())
    bends = _bends(curve_P2)
    worst = max(each.worst for each in clouds)
    tightest = max(each.risk / each.bound for each in clouds)
    beyond = max(each.largest / each.bound for each in drawn)
    return [
        _claim("The set is a smooth curve that bounds a convex region.", SOURCE,
               largest < 1e-9 and min(bends) > 0,
               f"|log Z| at most {largest:.1g} at {len(curve_P2)} points, where the curve always bends the same way"),
        _claim("It is bounded on either side by the hyperplanes normal to the weight vectors.", SOURCE,
               highest < 0, f"every score is below 0, the highest {highest:.1g}: neither line is reached"),
        _claim("Theorem 1: inputs D-close to the set are dBD-approximately normalised.", "section 3, Theorem 1",
               worst <= 1 and tightest <= 1,
               f"mean |log Z| is at most {tightest:.2f} of dBD in {len(clouds)} clouds, and |log Z| at most "
               f"{worst:.2f} of dB times the distance at every input"),
        _claim("Theorem 2 bounds what a sample says of unseen inputs.", "section 4, Theorem 2",
               beyond <= 1,
               f"largest deviation of {TRIALS} samples of each size at most {beyond:.3f} of the bound (as printed: "
               f"{max(each.largest / each.printed for each in drawn):.3f})"),
    ]  # fmt: skip


def _claim(text: str, source: str, holds: bool, evidence: str) -> Claim:
    kind = "theorem" if "Theorem" in source else "figure"
    return Claim(text, source, "holds" if holds else "reversed", evidence, kind=kind)


def _bends(curve_P2: Tensor) -> list[float]:
    """Return the turn of the curve at each inner point, positive if in the direction of the first."""
    steps_P2 = curve_P2.diff(dim=0)
    turns = steps_P2[:-1, 0] * steps_P2[1:, 1] - steps_P2[:-1, 1] * steps_P2[1:, 0]
    return (turns * turns[0].sign()).tolist()


def _results(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample], seed: int) -> list[Result]:
    points = [Example(tuple(f"{value:.6g}" for value in each.inputs_N2.flatten().tolist()), ()) for each in clouds]
    signature = sign("figure-1", seeds=[seed], data=sha256_of_examples(points))

    def result(system: str, measure: str, value: float, unit: str = "nat") -> Result:
        return Result(system, measure, value, replace(signature, method=f"figure-1: {system}"), unit=unit)

    results = [result("curve", "largest |log Z|", float(log_partitions(curve_P2).abs().max()))]
    for each in clouds:
        name = f"within {each.radius:g}"
        results += [
            result(name, "mean distance D", each.distance, ""),
            result(name, "mean |log Z|", each.risk),
            result(name, "bound d B D", each.bound),
        ]
    for sample in drawn:
        name = f"{sample.size:,} inputs"
        results += [
            result(name, "largest deviation", sample.largest),
            result(name, "bound of Theorem 2", sample.bound),
            result(name, "the bound as printed", sample.printed),
        ]
    return results


def draw(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample], path: Path) -> None:
    """Draw the set with its two lines; |log Z| against distance with Theorem 1; deviations with Theorem 2."""
    with panels(path, 3, figsize=(12, 4)) as (_, (left, middle, right)):
        left.plot(*curve_P2.T.tolist(), color=BLUE, lw=2, label="Z(x) = 1")
        for (first, second), colour in zip(THETA_K2.tolist(), (ORANGE, RED), strict=True):
            # Points at right angles to the weight vector.
            ends = [(-EXTENT * second, EXTENT * first), (EXTENT * second, -EXTENT * first)]
            name = f"normal to [{first:g}, {second:g}]"
            left.plot(*zip(*ends, strict=True), color=colour, lw=1, ls="--", label=name)
        left.set(xlim=(-0.5, EXTENT), ylim=(-EXTENT / 2, EXTENT), xlabel="x", ylabel="y", aspect="equal")
        left.set_title("The normalisable set", loc="left")
        for each, colour in zip(clouds, (BLUE, SKY, GREY), strict=False):
            some_N2 = each.inputs_N2[:300]
            distances_N = nearest_normalized(some_N2, THETA_K2).distances_N
            risks_N, name = log_partitions(some_N2).abs(), f"within {each.radius:g}"
            middle.plot(distances_N.tolist(), risks_N.tolist(), ".", ms=3, color=colour, label=name)
        end, slope = middle.get_xlim()[1], 2 * float(THETA_K2.abs().max())
        middle.plot([0, end], [0, slope * end], color="black", lw=1, label="d B times distance")
        middle.set(xlabel="distance to the set", ylabel="|log Z| (nats)")
        middle.set_title("Theorem 1", loc="left")
        sizes = [sample.size for sample in drawn]
        largest = [sample.largest for sample in drawn]
        right.loglog(sizes, largest, "o-", color=BLUE, label=f"largest of {TRIALS} samples")
        right.loglog(sizes, [sample.bound for sample in drawn], "s--", color="black", label="bound")
        right.loglog(sizes, [sample.printed for sample in drawn], "^:", color=RED, label="bound as printed")
        right.set(xlabel="inputs in a sample", ylabel="deviation of mean |log Z| (nats)")
        right.set_title("Theorem 2", loc="left")
        for axes in (left, middle, right):
            axes.legend(frameon=False, fontsize=8)
            axes.grid(alpha=0.25)
