"""Grids of numbers in Markdown and for the terminal, with a row for each system and a column for each measure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import rich.box
import rich.table
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from reproductions.comparison import LEARNING_RATE
from reproductions.report import Result, Table
from reproductions.values import interval_text
from reproductions.verdicts import SIGNIFICANT

# Diagnostics of the samplers, which only the files have.
HIDDEN = (
    "passes", "ESS per 1,000 passes", "all chains end alike", "R-hat of the energy, median", "E_local, last state",
    "E_local, lowest energy", "CPU seconds, NCE and its noises",
)  # fmt: skip
HIDDEN_ENDS = (", standard deviation over chains",)
CAPTION = (
    "± half of a 95% interval; bold: chosen on development data; in brackets the paper's number; an asterisk means p < "
    "0.05. The saved results, also printed with --json, have every interval and measure."
)
LONGEST_NAME, LONGEST_TITLE = 32, 14  # characters of a system and a measure in a terminal before they are wrapped
GAP = 2  # between two columns


def markdown_grid(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a table in Markdown, with a line break at its end."""
    titles = list(titles)
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (titles, *rows))
    return "\n".join([head, "|" + "---|" * len(titles), *body]) + "\n"


def terminal_grids(table: Table, width: int) -> Iterator[RenderableType]:
    """Yield the title of a table, its grid, split into parts that fit the width, and a caption."""
    titles, rows = numbers_of(table)
    titles = ["\n".join(textwrap.wrap(title, LONGEST_TITLE, break_long_words=False)) for title in titles]
    columns = zip(titles, *rows, strict=True)
    first, *others = (max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns)
    room = width - min(first, LONGEST_NAME)
    parts: list[list[int]] = [[]]
    for place, needed in enumerate(others, start=1):
        if parts[-1] and sum(others[each - 1] + GAP for each in parts[-1]) + needed + GAP > room:
            parts.append([])
        parts[-1].append(place)
    yield Text(table.title, style="bold")
    for places in parts:
        part = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
        part.add_column(Text(titles[0]), overflow="fold", max_width=LONGEST_NAME)
        for place in places:
            part.add_column(Text(titles[place]), justify="right", no_wrap=True)
        for row in rows:
            part.add_row(Text(row[0]), *(_styled(row[place]) for place in places))
        yield part
    yield Text(CAPTION, style="dim")


def _styled(cell: str) -> Text:
    return Text(cell.replace("**", ""), style="bold" if "**" in cell else "")


def numbers_of(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of a table, without measures on dev, secondary measures and diagnostics.

    Results of decoders chosen on development data stand between double asterisks.
    """
    measure = table.results[0].measure.partition(": ")[2].removesuffix(", dev")
    endings = {f": {name}" for name in _measures(table) if name != measure}
    everywhere = {result.measure for result in table.results}
    on_dev_too = {f"{name}, dev" for name in everywhere}
    shown = [
        result
        for result in table.results
        if not result.measure.endswith((*endings, *HIDDEN_ENDS)) and result.measure not in {*HIDDEN, *on_dev_too}
    ]
    measures = list(dict.fromkeys(result.measure for result in shown))
    cells = {(result.system, result.measure): result for result in shown}
    chosen = [result for result in shown if result.note == "chosen on dev"]
    # A grid has only the intervals that decide; the file has all.
    decisive = chosen or [result for result in shown if result.measure == measures[0] or result.published is not None]
    rows = [
        [system, *(_cell(cells.get((system, each)), decisive) for each in measures)]
        for system in dict.fromkeys(result.system for result in shown)
    ]
    titles = [title.removesuffix(f": {measure}").removeprefix(f"{measure} ") for title in measures]
    titles = [title.replace("training seconds, all stages", "seconds, all stages") for title in titles]
    return [f"{measure}, %" if measure else "", *titles], rows


def _measures(table: Table) -> list[str]:
    """Return the measures of each decoder, such as "word accuracy"."""
    names = (result.measure.partition(": ")[2].removesuffix(", dev") for result in table.results)
    return list(dict.fromkeys(name for name in names if name and " minus " not in name))


def _cell(result: Result | None, decisive: Sequence[Result]) -> str:
    if result is None:
        return ""
    form = {"%": ".1f", "s": ".0f", "nat": ".2f"}.get(result.unit, ".3g")
    text = f"{result.value:{form}}"
    if result.p_value is not None and result.low is not None and result.high is not None:
        text = interval_text((result.value, result.low, result.high))
        return f"{text}*" if result.p_value < SIGNIFICANT else text
    if result.low is not None and result.high is not None and result in decisive:
        text += f" ± {(result.high - result.low) / 2:{form}}"
    if result.note == "chosen on dev":
        text = f"**{text}**"
    if result.measure == LEARNING_RATE and result.note:
        text += f" ({result.note})"
    return text if result.published is None else f"{text} ({result.published:.4g})"
