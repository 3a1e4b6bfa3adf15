"""Figures of recipes, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seqwise.evaluation.metrics import bootstrap_interval
from seqwise.recipes.outcome import HEADINGS, Measure
from seqwise.recipes.systems import Cell

__all__ = ["draw_by_decoder"]

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = {"greedy": "#999999", "beam": "#56B4E9", "raw-beam": "#D55E00", "soft-beam": "#E69F00"}


def draw_by_decoder(cells: Mapping[str, Cell], measure: Measure, path: Path, *, title: str) -> None:
    """One group of points for each system, one point with its 95% interval for each decoder; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.62 * len(cells) + 1.4), layout="constrained")
    names = [cell.system for cell in cells.values()]
    for shift, (decoder, heading) in zip((-0.24, -0.08, 0.08, 0.24), HEADINGS.items(), strict=True):
        estimates = [bootstrap_interval(measure.count(cell.outputs[decoder])) for cell in cells.values()]
        values = [measure.scaled(estimate.value) for estimate in estimates]
        errors = [
            [value - measure.scaled(estimate.low) for value, estimate in zip(values, estimates, strict=True)],
            [measure.scaled(estimate.high) - value for value, estimate in zip(values, estimates, strict=True)],
        ]
        rows = [row + shift for row in range(len(names))]
        axes.errorbar(values, rows, xerr=errors, fmt="o", ms=5, capsize=2, color=COLOURS[decoder], label=heading)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower center", frameon=False, ncols=len(HEADINGS))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
