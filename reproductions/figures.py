"""Figures of reproductions, drawn with matplotlib from saved tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproductions.outcome import HEADINGS
from seqwise.evaluation.report import Result, Table

__all__ = ["draw_by_decoder", "interval_bars"]

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = {
    "greedy": "#999999", "beam": "#56B4E9", "interpolated-beam": "#009E73", "raw-beam": "#D55E00",
    "soft-beam": "#E69F00",
}  # fmt: skip


def interval_bars(results: Sequence[Result]) -> list[list[float]]:
    """How far below and above their values the intervals of results end, as matplotlib takes error bars.

    Args:
        results: in the order of the points; one without an interval has a bar of length 0.

    Returns:
        Two lists, the lower and the upper lengths, in the unit of the results.

    Example:
        >>> from seqwise.evaluation.signature import sign
        >>> signature = sign("greedy", seeds=[0], data="0" * 64)
        >>> interval_bars([Result("a", "right", 60.0, signature, 58.0, 63.0), Result("b", "right", 9.0, signature)])
        [[2.0, 0.0], [3.0, 0.0]]
    """
    below = [0.0 if one.low is None else one.value - one.low for one in results]
    above = [0.0 if one.high is None else one.high - one.value for one in results]
    return [below, above]


def draw_by_decoder(table: Table, measure: str, path: Path, *, title: str) -> None:
    """One group of points for each system, one point with its 95% interval for each decoder; saved as PNG.

    Args:
        table: as :func:`~reproductions.outcome.build_outcome` makes it, or as read back from JSON.
        measure: the name of the one to draw, such as "words right".
        path: of the picture; folders on the way are made.
        title: above the picture.

    Raises:
        KeyError: the table has a system without that measure for a decoder that the first system has.
    """
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
