"""Results of a reproduction: a table for the eye, the same numbers with signatures for the record, and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import rich.box
import rich.table
from rich.console import RenderableType
from rich.text import Text

from reproductions.report import Claim, Result, Table
from reproductions.systems import Cell
from reproductions.verdicts import interval_result
from seqwise.evaluation.metrics import Counts, Sums

HEADINGS = {
    "greedy": "greedy", "beam": "beam", "interpolated-beam": "half-raw beam", "raw-beam": "raw beam",
    "soft-beam": "soft beam",
}  # fmt: skip
"""Decoders of the tables and their columns; the half-raw beam adds up ``f - log Z / 2``."""


@dataclass(frozen=True)
class Outcome:
    """Results of a reproduction."""

    name: str  # file name of the saved results, without ending
    table: Table  # every number with its interval and signature
    picture: rich.table.Table  # the same as a grid for the terminal
    files: Mapping[str, Path] = field(default_factory=dict)  # what else was written (figures, runs), by what it is
    lesson: str = ""  # what it teaches, made from the numbers; by default the verdicts on its claims
    hints: tuple[str, ...] = ()  # commands to try next

    def __post_init__(self) -> None:
        object.__setattr__(self, "lesson", self.lesson or verdicts(self.table.claims))


def verdicts(claims: Iterable[Claim]) -> str:
    """Print claims, a line each, with what became of them."""
    return "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)


def grid(
    title: str,
    headings: Iterable[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    caption: str = "",
    first: str = "system",
) -> rich.table.Table:
    """Lay out a table for the terminal: a first column of names, and numbers under each heading."""
    table = rich.table.Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0, 0, 1),
    )
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def short_headings(decoders: Iterable[str]) -> list[str]:
    """Return the first word of each decoder's heading: columns are narrow."""
    return [HEADINGS[decoder].replace("-", " ").split()[0] for decoder in decoders]


def beside_published(text: str, published: float | None, style: str = "", digits: int = 1) -> Text:
    """Print our number, and below it in brackets the paper's."""
    cell = Text(text, style)
    return cell if published is None else cell.append(f"\n({published:.{digits}f})", "not bold dim")


@dataclass(frozen=True)
class Measure:
    """A measure of a decoder's outputs: how it is counted, and how it is printed."""

    name: str  # with its direction understood, such as "word accuracy"
    count: Callable[[list[tuple[str, ...]]], Counts]
    unit: str = "%"  # "" for a bare ratio

    def scaled(self, number: float) -> float:
        """Convert a number into the measure's unit."""
        return 100 * number if self.unit == "%" else number

    def text(self, result: Result) -> str:
        """Print a number, and for percentages half the width of its interval."""
        if self.unit != "%" or result.low is None or result.high is None:
            return f"{result.value:.2f}"
        return f"{result.value:.1f}±{(result.high - result.low) / 2:.1f}"


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
    """Measure every decoder of the systems of one seed, with bootstrap 95% intervals.

    The first measure is printed with its interval. ``groups`` are headings above the rows of these keys. With ``dev``,
    the first measure on development data by cell and decoder, the best decoder of each cell is marked.
    """
    results: list[Result] = []
    decoders = [decoder for decoder in HEADINGS if all(decoder in cell.outputs for cell in cells.values())]
    order = ", then ".join(f"{measure.name} ({measure.unit or 'ratio'})" for measure in measures)
    caption = (
        f"each cell: {order}; ± half of a bootstrap 95% interval; sec: CPU time of its own stage, without that of the "
        "system it starts from"
    )
    if dev is not None:
        caption += "; bold: the decoder chosen on dev; half: beam over f - log Z / 2"
    picture = grid(title, [*short_headings(decoders), "sec", "log Z"], caption=caption)
    for key, cell in cells.items():
        signature = replace(cell.signature, method=f"{name}: {cell.system}")
        if groups and key in groups:
            picture.add_section()
            picture.add_row(Text(groups[key], style="bold"))
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
                result = interval_result(
                    cell.system,
                    f"{heading}: {measure.name}",
                    measure.count(cell.outputs[decoder]),
                    signature,
                    unit=measure.unit,
                    note="chosen on dev" if decoder == chosen and measure is measures[0] else "",
                )
                results.append(result)
                style = "dim" if lines else "bold" if decoder == chosen else ""
                lines.append("\n" * bool(lines) + measure.text(result), style)
            row.append(lines)
        results.append(Result(cell.system, "training seconds", cell.train_seconds, signature, unit="s"))
        results.append(Result(cell.system, "mean log Z", cell.mean_log_partition, signature, unit="nat"))
        picture.add_row(cell.system, *row, f"{cell.train_seconds:.0f}", f"{cell.mean_log_partition:.2f}")
    return Outcome(name, Table(title, (*results, *comparisons), lesson), picture, files, lesson, hints)
