"""Results of a reproduction: a table for the eye, the same numbers with signatures for the record, and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import rich.box
import rich.table
from rich.text import Text

from reproductions.systems import Cell
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.report import Result, Table
from seqwise.evaluation.verdicts import interval_result

HEADINGS = {
    "greedy": "greedy", "beam": "beam", "interpolated-beam": "half-raw beam", "raw-beam": "raw beam",
    "soft-beam": "soft beam",
}  # fmt: skip
"""Decoders of the tables and their columns; the half-raw beam adds up ``f - log Z / 2``."""


def _short(decoder: str) -> str:
    """The first word of a decoder's heading: columns are narrow."""
    return HEADINGS[decoder].replace("-", " ").split()[0]


@dataclass(frozen=True)
class Measure:
    """One number of a decoder: its name, how it is counted, and how it is printed."""

    name: str  # with its direction understood, such as "words right"
    count: Callable[[list[tuple[str, ...]]], Counts]  # per-example counts of a system's outputs
    unit: str = "%"  # "%" or "" for a bare ratio

    def scaled(self, number: float) -> float:
        """The number in the measure's unit."""
        return 100 * number if self.unit == "%" else number

    def text(self, result: Result) -> str:
        """The number, and for percentages half the width of its interval."""
        if self.unit != "%" or result.low is None or result.high is None:
            return f"{result.value:.2f}"
        return f"{result.value:.1f}±{(result.high - result.low) / 2:.1f}"


@dataclass(frozen=True)
class Outcome:
    """What a reproduction found."""

    name: str  # file name of the saved results, without ending
    table: Table  # every number with its interval and signature
    picture: rich.table.Table  # the same as a grid for the terminal
    lesson: str  # what it teaches, in a sentence or two made from the numbers
    files: Mapping[str, Path]  # what else was written (figures, runs), by what it is
    hints: tuple[str, ...] = ()  # commands to try next


def build_outcome(
    name: str,
    title: str,
    cells: Mapping[str, Cell],
    measures: Sequence[Measure],
    *,
    lesson: str,
    files: Mapping[str, Path],
    hints: tuple[str, ...] = (),
    groups: Mapping[str, str] | None = None,
    comparisons: Sequence[Result] = (),
    dev: Mapping[str, Mapping[str, Sums]] | None = None,
) -> Outcome:
    """Measure every decoder of every cell, with bootstrap 95% intervals."""
    results: list[Result] = []
    grid = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    grid.add_column("system", overflow="fold")
    decoders = [decoder for decoder in HEADINGS if all(decoder in cell.outputs for cell in cells.values())]
    for heading in (*(_short(decoder) for decoder in decoders), "sec", "log Z"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for key, cell in cells.items():
        signature = replace(cell.signature, method=f"{name}: {cell.system}")
        if groups and key in groups:
            grid.add_section()
            grid.add_row(Text(groups[key], style="bold"))
        row = []
        on_dev = {} if dev is None else {decoder: sums.value for decoder, sums in dev[key].items()}
        chosen = max(on_dev, key=on_dev.__getitem__, default="")
        for decoder in decoders:
            heading, lines = HEADINGS[decoder], Text()
            if decoder in on_dev:
                value = measures[0].scaled(on_dev[decoder])
                name_on_dev = f"{heading}: {measures[0].name}, dev"
                results.append(Result(cell.system, name_on_dev, value, signature, unit=measures[0].unit))
            for measure in measures:
                results.append(
                    interval_result(
                        cell.system,
                        f"{heading}: {measure.name}",
                        measure.count(cell.outputs[decoder]),
                        signature,
                        unit=measure.unit,
                        note="chosen on dev" if decoder == chosen and measure is measures[0] else "",
                    )
                )
                style = "dim" if lines else "bold" if decoder == chosen else ""
                lines.append("\n" * bool(lines) + measure.text(results[-1]), style)
            row.append(lines)
        results.append(Result(cell.system, "training seconds", cell.train_seconds, signature, unit="s"))
        results.append(Result(cell.system, "mean log Z", cell.mean_log_partition, signature, unit="nat"))
        grid.add_row(cell.system, *row, f"{cell.train_seconds:.0f}", f"{cell.mean_log_partition:.2f}")
    order = ", then ".join(f"{measure.name} ({measure.unit or 'ratio'})" for measure in measures)
    grid.caption = (
        f"each cell: {order}; ± half of a bootstrap 95% interval; sec: CPU time of its own stage, without that of the "
        "system it starts from"
    )
    if dev is not None:
        grid.caption += "; bold: the decoder chosen on dev; half: beam over f - log Z / 2"
    grid.caption_justify = "left"
    return Outcome(name, Table(title, (*results, *comparisons), lesson), grid, lesson, files, hints)
