"""Figures of reproductions, drawn with matplotlib from saved tables alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reproductions.outcome import HEADINGS
from reproductions.report import Curve, Result, Table
from seqwise.evaluation.metrics import Estimate

# Okabe and Ito's palette, which colour-blind readers can distinguish. Black is last, because it stands out.
BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY, YELLOW, BLACK = PALETTE = (
    "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#999999", "#F0E442", "#000000",
)  # fmt: skip
STYLES = ("-", "--", ":")
"""Styles of lines, the next for each repetition of the palette."""

COLOURS = {"greedy": GREY, "beam": SKY, "interpolated-beam": GREEN, "raw-beam": RED, "soft-beam": ORANGE}
"""Colours of decoders."""


@contextmanager
def panels(path: Path, columns: int = 1, *, dpi: int = 120, **options: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a matplotlib figure and its panels, side by side, then save it; a missing folder is made."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, columns, layout="constrained", squeeze=False, **options)
    yield figure, list(row[0])
    for axes in row[0]:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot.close(figure)


def legend_below(figure: Any, columns: int | None = None) -> None:
    """Draw a common legend of all panels below a figure, each label once; by default in one row."""
    shown = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in shown}
    columns = columns or len(handles)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False, ncols=columns)


def interval_bars(results: Sequence[Result | Estimate]) -> list[list[float]]:
    """Return the distances from values down and up to the ends of their intervals, as matplotlib takes error bars."""
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
        legend_below(figure)


def draw_curves(table: Table, path: Path) -> None:
    """Draw a curve for each system: the mean over its seeds of the best development metric so far, by CPU seconds."""
    names = list(dict.fromkeys(curve.system for curve in table.curves))
    with panels(path, figsize=(9, 5)) as (figure, (axes,)):
        ends = []
        for number, name in enumerate(names):
            seconds, metric = best_so_far([curve for curve in table.curves if curve.system == name])
            repeat, colour = number // len(PALETTE), PALETTE[number % len(PALETTE)]
            line = STYLES[repeat % len(STYLES)]
            axes.step(seconds, metric, line, where="post", color=colour, linewidth=1.4, label=name)
            axes.plot(seconds[-1], metric[-1], "o", color=colour, markersize=4)
            ends.append(metric[-1])
        best, worst = (max(ends), min(ends))[:: table.curves[0].sign]
        room = table.curves[0].sign * (abs(best - worst) + 0.005)
        # Values far from the worst final one belong to the start of training, which is the same for all.
        axes.set_ylim(*sorted((worst - 2 * room, best + 0.2 * room)))
        axes.set(xlabel="CPU seconds, stages before included", ylabel=f"{table.curves[0].measure}, development data")
        axes.grid(alpha=0.3)
        axes.set_title(table.title, loc="left", fontsize=10)
        legend_below(figure, 3)


def best_so_far(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Return the times of changes in the mean over runs of the best metric so far, and this mean.

    Times begin when every run has been evaluated. They include earlier stages, whose metric does not count.

    Example:
        >>> one = Curve("s", 0, "accuracy", 10.0, ((1, 0.5), (2, 0.25), (3, 1.0)))
        >>> best_so_far([one, Curve("s", 1, "accuracy", 10.0, ((2, 0.75),))])
        ([12.0, 13.0], [0.625, 0.875])
    """
    best = max if curves[0].sign > 0 else min
    runs = [[(curve.start + seconds, value) for seconds, value in curve.points] for curve in curves]
    begin = max(run[0][0] for run in runs)
    times: list[float] = []
    means: list[float] = []
    for time in sorted({begin, *(seconds for run in runs for seconds, _ in run if seconds > begin)}):
        mean = math.fsum(best(value for seconds, value in run if seconds <= time) for run in runs) / len(runs)
        if not means or mean != means[-1]:
            times.append(time)
            means.append(mean)
    return times, means
