"""Figures of reproductions, drawn with matplotlib from saved tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reproductions.outcome import HEADINGS
from reproductions.report import Result, Table

# Okabe and Ito's palette: told apart by colour-blind readers too. Black last, because it stands out.
BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY, YELLOW, BLACK = PALETTE = (
    "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#999999", "#F0E442", "#000000",
)  # fmt: skip
COLOURS = {"greedy": GREY, "beam": SKY, "interpolated-beam": GREEN, "raw-beam": RED, "soft-beam": ORANGE}
"""Of decoders."""


@contextmanager
def panels(path: Path, columns: int = 1, **options: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a matplotlib figure and its panels, side by side; save it as PNG in a folder that is made if need be."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, columns, layout="constrained", squeeze=False, **options)
    yield figure, list(row[0])
    for axes in row[0]:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def interval_bars(results: Sequence[Result]) -> list[list[float]]:
    """Return how far below and above their values the intervals of results end, as matplotlib takes error bars."""
    below = [0.0 if each.low is None else each.value - each.low for each in results]
    above = [0.0 if each.high is None else each.high - each.value for each in results]
    return [below, above]


def draw_by_decoder(table: Table, measure: str, path: Path, *, title: str) -> None:
    """Draw one group of points for each system, one point with its 95% interval for each decoder."""
    by_row = {(result.system, result.measure): result for result in table.results}
    names = list(dict.fromkeys(result.system for result in table.results))
    shown = {key: heading for key, heading in HEADINGS.items() if (names[0], f"{heading}: {measure}") in by_row}
    headings = shown or HEADINGS
    with panels(path, figsize=(9, 0.62 * len(names) + 1.4)) as (figure, (axes,)):
        for place, (decoder, heading) in enumerate(headings.items()):
            results = [by_row[name, f"{heading}: {measure}"] for name in names]
            rows = [row + 0.16 * (place - (len(headings) - 1) / 2) for row in range(len(names))]
            values, style = [each.value for each in results], {"fmt": "o", "ms": 5, "capsize": 2}
            axes.errorbar(values, rows, xerr=interval_bars(results), color=COLOURS[decoder], label=heading, **style)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(title, loc="left")
        figure.legend(loc="outside lower center", frameon=False, ncols=len(headings))


def draw_curves(table: Table, path: Path) -> None:
    """Draw the development metric of every run against CPU seconds, a colour a system, a dot at the best."""
    names = list(dict.fromkeys(curve.system for curve in table.curves))
    first_seed = min(curve.seed for curve in table.curves)
    with panels(path, figsize=(9, 5)) as (figure, (axes,)):
        for curve in table.curves:
            colour = PALETTE[names.index(curve.system) % len(PALETTE)]
            # A second stage begins where the stages before it ended.
            seconds = [curve.start + after for after, _ in curve.points]
            metric = [value for _, value in curve.points]
            label = curve.system if curve.seed == first_seed else None
            axes.plot(seconds, metric, color=colour, linewidth=1, alpha=0.7, label=label)
            best = max(range(len(metric)), key=metric.__getitem__)
            axes.plot(seconds[best], metric[best], "o", color=colour, markersize=4)
        highest = max(value for curve in table.curves for _, value in curve.points)
        plateau = min(max(value for _, value in curve.points) for curve in table.curves)
        # What is far below where the worst run ends is the first minute of training, the same for all.
        axes.set_ylim(plateau - 1.5 * (highest - plateau + 0.005), highest + 0.15 * (highest - plateau + 0.005))
        axes.set(xlabel="CPU seconds, stages before included", ylabel=f"{table.curves[0].measure}, development data")
        axes.grid(alpha=0.3)
        axes.set_title(table.title, loc="left", fontsize=10)
        figure.legend(loc="outside lower center", frameon=False, ncols=3)
