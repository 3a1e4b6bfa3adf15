"""Figures of reproductions, drawn with matplotlib from saved tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproductions.outcome import HEADINGS
from seqwise.evaluation.report import Result, Table

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = {
    "greedy": "#999999", "beam": "#56B4E9", "interpolated-beam": "#009E73", "raw-beam": "#D55E00",
    "soft-beam": "#E69F00",
}  # fmt: skip

# Of systems, in the order of the rows; black last, because it stands out.
SYSTEM_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#999999", "#F0E442", "#000000")


def interval_bars(results: Sequence[Result]) -> list[list[float]]:
    """How far below and above their values the intervals of results end, as matplotlib takes error bars."""
    below = [0.0 if one.low is None else one.value - one.low for one in results]
    above = [0.0 if one.high is None else one.high - one.value for one in results]
    return [below, above]


def draw_by_decoder(table: Table, measure: str, path: Path, *, title: str) -> None:
    """One group of points for each system, one point with its 95% interval for each decoder; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {(result.system, result.measure): result for result in table.results}
    names = list(dict.fromkeys(result.system for result in table.results))
    figure, axes = pyplot.subplots(figsize=(9, 0.62 * len(names) + 1.4), layout="constrained")
    shown = {key: heading for key, heading in HEADINGS.items() if (names[0], f"{heading}: {measure}") in found}
    headings = shown or HEADINGS
    for place, (decoder, heading) in enumerate(headings.items()):
        shift = 0.16 * (place - (len(headings) - 1) / 2)
        results = [found[name, f"{heading}: {measure}"] for name in names]
        how = {"color": COLOURS[decoder], "label": heading}
        rows = [row + shift for row in range(len(names))]
        axes.errorbar(
            [one.value for one in results], rows, xerr=interval_bars(results), fmt="o", ms=5, capsize=2, **how
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower center", frameon=False, ncols=len(headings))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_curves(table: Table, path: Path) -> None:
    """The development metric of every run against CPU seconds, a colour a system, a dot at the best; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(curve.system for curve in table.curves))
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for curve in table.curves:
        place = names.index(curve.system)
        colour = SYSTEM_COLOURS[place % len(SYSTEM_COLOURS)]
        seconds = [curve.start + after for after, _ in curve.points]
        metric = [value for _, value in curve.points]
        label = curve.system if curve.seed == min(one.seed for one in table.curves) else None
        axes.plot(seconds, metric, color=colour, linewidth=1, alpha=0.7, label=label)
        best = max(range(len(metric)), key=metric.__getitem__)
        axes.plot(seconds[best], metric[best], "o", color=colour, markersize=4)
    highest = max(value for curve in table.curves for _, value in curve.points)
    plateau = min(max(value for _, value in curve.points) for curve in table.curves)
    # What is far below where the worst run ends is the first minute of training, the same for all.
    axes.set_ylim(plateau - 1.5 * (highest - plateau + 0.005), highest + 0.15 * (highest - plateau + 0.005))
    axes.set(xlabel="CPU seconds, stages before included", ylabel=f"{table.curves[0].measure}, development data")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(table.title, loc="left", fontsize=10)
    figure.legend(loc="outside lower center", frameon=False, ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
