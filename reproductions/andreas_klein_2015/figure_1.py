"""Figure 1 of Andreas and Klein (2015): a normalisable set, and both theorems checked on points near it.

The model has two features and two classes, theta = {[-1, 1], [-1, -2]}; ``{x: Z(x; theta) = 1}`` is a smooth curve.
Shapes: N inputs, P points of the curve, 2 features, K = 2 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import rich.box
import rich.table
import torch
from torch import Tensor

from reproductions.andreas_klein_2015.normalizable_set import nearest_normalized, normalizable_curve
from reproductions.andreas_klein_2015.normalization_theory import (
    approximate_normalization_bound,
    generalization_bound,
    printed_generalization_bound,
)
from reproductions.outcome import Outcome
from reproductions.workers import ProgressFactory
from seqwise.data.readers import Example
from seqwise.evaluation.report import Claim, Result, Table
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
    """Inputs drawn round the curve, and what Theorem 1 says of them."""

    radius: float  # half the side of the square, round a point of the curve, that each input is drawn from
    inputs_N2: Tensor  # the inputs
    distance: float  # D, their mean distance to the set (largest difference of a feature)
    risk: float  # the mean |log Z|
    bound: float  # on it, d B D
    worst: float  # the largest ratio of |log Z| to d B times the distance of one input


@dataclass(frozen=True)
class Sample:
    """Samples of one size, and what Theorem 2 says of them."""

    size: int  # n, of each sample
    largest: float  # the largest ``|mean_i |log Z(x_i)| - E|log Z||`` of all samples
    bound: float  # that holds for all but a share delta of samples
    printed: float  # the bound as printed


def log_partitions(inputs_N2: Tensor) -> Tensor:
    """log Z of inputs, (N,)."""
    return (inputs_N2 @ THETA_K2.T).logsumexp(-1)


def cloud(curve_P2: Tensor, radius: float, *, generator: torch.Generator, count: int) -> Cloud:
    """Draw inputs round random points of a curve, and measure them."""
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


def reproduce(folder: Path, *, seed: int, progress: ProgressFactory) -> list[Outcome]:
    """Draw the set with points round it, and check its shape and both theorems on them.

    Source: Andreas and Klein (NAACL 2015), Figure 1, Theorems 1 and 2. Not implemented: other weights.
    """
    generator = torch.Generator().manual_seed(seed)
    with progress() as bars:
        task = bars.add_task("clouds", total=len(RADII) + 1, note="")
        curve_P2 = normalizable_curve(THETA_K2, extent=EXTENT, num_points=POINTS)
        clouds = []
        for radius in RADII:
            clouds.append(cloud(curve_P2, radius, generator=generator, count=INPUTS))
            bars.advance(task)
        drawn = samples(clouds[-1].inputs_N2, generator=generator)
        bars.advance(task)
    figure = folder / "figure-1.png"
    draw(curve_P2, clouds, drawn, figure)
    claims = examine(curve_P2, clouds, drawn)
    title = "Figure 1: the inputs at which a log-linear model is normalised"
    results = _results(curve_P2, clouds, drawn, seed)
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    table = Table(title, tuple(results), claims=tuple(claims))
    return [Outcome("figure-1", table, _grid(title, results), lesson, {"figure": figure})]


def examine(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample]) -> list[Claim]:
    """The paper's statements, put to the points."""
    largest = float(log_partitions(curve_P2).abs().max())
    highest = float((curve_P2 @ THETA_K2.T).max())
    bends = _bends(curve_P2)
    worst = max(one.worst for one in clouds)
    tightest = max(one.risk / one.bound for one in clouds)
    beyond = max(one.largest / one.bound for one in drawn)
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
               f"{max(one.largest / one.printed for one in drawn):.3f})"),
    ]  # fmt: skip


def _claim(text: str, source: str, holds: bool, evidence: str) -> Claim:
    kind = "theorem" if "Theorem" in source else "figure"
    return Claim(text, source, "holds" if holds else "reversed", evidence, kind=kind)


def _bends(curve_P2: Tensor) -> list[float]:
    """Which way the curve turns at each inner point, with the sign of the first."""
    steps_P2 = curve_P2.diff(dim=0)
    turns = steps_P2[:-1, 0] * steps_P2[1:, 1] - steps_P2[:-1, 1] * steps_P2[1:, 0]
    return (turns * turns[0].sign()).tolist()


def _results(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample], seed: int) -> list[Result]:
    points = [Example(tuple(f"{value:.6g}" for value in one.inputs_N2.flatten().tolist()), ()) for one in clouds]
    signature = sign("figure-1", seeds=[seed], data=sha256_of_examples(points))

    def result(system: str, measure: str, value: float, unit: str = "nat") -> Result:
        return Result(system, measure, value, replace(signature, method=f"figure-1: {system}"), unit=unit)

    results = [result("curve", "largest |log Z|", float(log_partitions(curve_P2).abs().max()))]
    for one in clouds:
        name = f"within {one.radius:g}"
        results += [
            result(name, "mean distance D", one.distance, ""),
            result(name, "mean |log Z|", one.risk),
            result(name, "bound d B D", one.bound),
        ]
    for sample in drawn:
        name = f"{sample.size:,} inputs"
        results += [
            result(name, "largest deviation", sample.largest),
            result(name, "bound of Theorem 2", sample.bound),
            result(name, "the bound as printed", sample.printed),
        ]
    return results


def _grid(title: str, results: Sequence[Result]) -> rich.table.Table:
    grid = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    grid.add_column("of", no_wrap=True)
    grid.add_column("measure")
    grid.add_column("value", justify="right", no_wrap=True)
    for result in results:
        grid.add_row(result.system, result.measure, f"{result.value:.3g}")
    grid.caption = "in nats, distances in the largest difference of a feature"
    grid.caption_justify = "left"
    return grid


def draw(curve_P2: Tensor, clouds: Sequence[Cloud], drawn: Sequence[Sample], path: Path) -> None:
    """The set with its two lines; |log Z| against distance with Theorem 1; deviations with Theorem 2; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 4), layout="constrained")
    left.plot(*curve_P2.T.tolist(), color="#0072B2", lw=2, label="Z(x) = 1")
    for (first, second), colour in zip(THETA_K2.tolist(), ("#E69F00", "#D55E00"), strict=True):
        # Points at right angles to the weight vector.
        ends = [(-EXTENT * second, EXTENT * first), (EXTENT * second, -EXTENT * first)]
        name = f"normal to [{first:g}, {second:g}]"
        left.plot(*zip(*ends, strict=True), color=colour, lw=1, ls="--", label=name)
    left.set(xlim=(-0.5, EXTENT), ylim=(-EXTENT / 2, EXTENT), xlabel="x", ylabel="y", aspect="equal")
    left.set_title("The normalisable set", loc="left")
    left.legend(frameon=False, fontsize=8)
    largest = float(THETA_K2.abs().max())
    for one, colour in zip(clouds, ("#0072B2", "#56B4E9", "#999999"), strict=False):
        some_N2 = one.inputs_N2[:300]
        distances_N = nearest_normalized(some_N2, THETA_K2).distances_N
        middle.plot(
            distances_N.tolist(), log_partitions(some_N2).abs().tolist(), ".", ms=3, color=colour,
            label=f"within {one.radius:g}",
        )  # fmt: skip
    ends_of = middle.get_xlim()[1]
    middle.plot([0, ends_of], [0, 2 * largest * ends_of], color="black", lw=1, label="d B times distance")
    middle.set(xlabel="distance to the set", ylabel="|log Z| (nats)")
    middle.set_title("Theorem 1", loc="left")
    middle.legend(frameon=False, fontsize=8)
    sizes = [one.size for one in drawn]
    right.loglog(sizes, [one.largest for one in drawn], "o-", color="#0072B2", label=f"largest of {TRIALS} samples")
    right.loglog(sizes, [one.bound for one in drawn], "s--", color="black", label="bound")
    right.loglog(sizes, [one.printed for one in drawn], "^:", color="#D55E00", label="bound as printed")
    right.set(xlabel="inputs in a sample", ylabel="deviation of mean |log Z| (nats)")
    right.set_title("Theorem 2", loc="left")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, middle, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
