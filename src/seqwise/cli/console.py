"""Output of the commands: consoles, progress bars, tables and warnings."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from seqwise.errors import InputError
from seqwise.names import interval_texts, measure_heading, measure_text
from seqwise.training.processes import local_device, world_size

if TYPE_CHECKING:  # rich is imported on use, because --help and completion do not need it
    from rich.console import Console
    from rich.progress import Progress

    from seqwise.evaluation.metrics import Comparison, Estimate, Sums


@cache
def out() -> Console:
    """Return the console for results."""
    from rich.console import Console

    return Console()


@cache
def err() -> Console:
    """Return the console for progress."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show progress bars on standard error, or, without a terminal, a line every half minute."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    from seqwise.cli.line_progress import LineProgress, TimeLeftColumn

    if not err().is_terminal:
        yield LineProgress(every=30)
        return
    wide = err().width >= 100
    name = TextColumn("{task.description:<24}" if wide else "{task.description}")
    bar = BarColumn(bar_width=30 if wide else 10, table_column=Column(no_wrap=True))
    done, left = (kind(table_column=Column(no_wrap=True)) for kind in (MofNCompleteColumn, TimeLeftColumn))
    # If the line is too long, the note is truncated.
    note = TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with Progress(name, bar, done, left, note, console=err(), expand=True) as progress:
        yield progress


def bar_for_each_part(progress: Progress) -> Callable[..., None]:
    """Return a function that shows a bar for each successive part.

    Its arguments are the part, the number of items done, the total and, as keywords, further fields of the bar. A new
    part ends the previous one, even if that is incomplete.
    """
    bars: dict[str, Any] = {}
    done_before = 0

    def advance(part: str, done: int, total: int, **fields: Any) -> None:
        nonlocal done_before
        if part not in bars:
            if bars:
                progress.update(list(bars.values())[-1], total=done_before, seconds_left=0, earliest_end=0)
            bars[part] = progress.add_task(part, total=total, note="")
        progress.update(bars[part], completed=done, **fields)
        done_before = done

    return advance


def bar_for_each_stage(
    advance: Callable[..., None], stages: Sequence[str], *, begun: set[str]
) -> Callable[[str, Any], None]:
    """Return a function that shows a bar for each stage, from its :class:`~seqwise.training.trainer.Progress`.

    The time left is that of the stage, so each bar shows the stage's number among ``stages``. Stages that are trained
    are added to ``begun``.
    """

    def on_progress(stage: str, step: Any) -> None:
        if stage not in begun and step.step > 1:
            print(f"{stage}: resumed after step {step.step - 1:,} of {step.steps:,}", file=sys.stderr)
        begun.add(stage)
        title, value = next(iter(step.measured.items()), ("", 0.0))
        note = f"loss {step.loss:.3f}" + (f", {title.replace('_', ' ')} {measure_text(title, value)}" if title else "")
        number = f"{stages.index(stage) + 1}/{len(stages)} " if len(stages) > 1 else ""
        times = {"seconds_left": step.seconds_left, "earliest_end": step.earliest_end}
        advance(f"{number}{stage}", step.step, step.steps, note=note, **times)

    return on_progress


def estimate_of(sums: Sums) -> dict[str, float | None]:
    """Return a measure and its interval, which is None for too few examples."""
    from seqwise.evaluation.metrics import estimated

    return fields_of(estimated(sums))


def fields_of(estimate: Estimate | Comparison) -> dict[str, float | None]:
    """Return the fields of an estimate by name; None where they are not numbers."""
    return {name: None if math.isnan(value) else value for name, value in estimate._asdict().items()}


def shown_estimate(title: str, sums: Sums) -> tuple[str, str]:
    """Format a measure and its interval in brackets, which is empty for too few examples."""
    from seqwise.evaluation.metrics import estimated

    return interval_texts(title, estimated(sums))


def estimates_of(rows: Mapping[str, Mapping[str, Sums]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return measures and their intervals by decoder and title; see :func:`estimate_of`."""
    return {name: {title: estimate_of(sums) for title, sums in row.items()} for name, row in rows.items()}


def print_estimates(rows: Mapping[str, Mapping[str, Sums]]) -> None:
    """Print measures with their intervals by decoder and title."""
    cells = {name: {title: shown_estimate(title, sums) for title, sums in row.items()} for name, row in rows.items()}
    print_measures(cells)


def print_measures(rows: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """Print values and optional intervals by decoder and title, on two lines if the terminal is narrow."""
    import rich.box
    from rich.table import Table

    titles = {title: measure_heading(title) for title in next(iter(rows.values()))}
    on_one_line = {name: {title: " ".join(cell).rstrip() for title, cell in row.items()} for name, row in rows.items()}
    width = max(map(len, rows)) + sum(
        2 + max(len(heading), *(len(row[title]) for row in on_one_line.values())) for title, heading in titles.items()
    )
    separator = " " if width <= out().width else "\n"
    gap = 1 if separator == " " else 0  # in addition to that of the box: five columns of 100.0 [100.0, 100.0] fit in 80
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("decoder", no_wrap=True, min_width=max(map(len, rows)))  # complete names, as they are typed
    for heading in titles.values():
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, *(separator.join(filter(None, cell)) for cell in row.values()))
    out().print(table)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> None:
    """Print a table with columns of names, then columns of numbers."""
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place >= names else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # a token may look like markup
    out().print(table)


def print_summary(summary: Any) -> None:
    """Print the summary of a training run that begins."""
    from seqwise.runs.training_summary import summary_lines

    for line in summary_lines(summary):
        print(line, flush=True)


def print_filled(*lines: str, indent: int = 2, file: TextIO | None = None) -> None:
    """Print lines, wrapped at 80 columns with indented continuations; by default to standard output."""
    for line in lines:
        print(textwrap.fill(line, 80, subsequent_indent=" " * indent, break_on_hyphens=False), file=file)


def print_device() -> None:
    """Print the device of the command on standard error."""
    print(f"running on {local_device()}", file=sys.stderr)


def require_at_least_one(flag: str, value: int | None) -> None:
    """Raise an InputError if a flag's number is below 1."""
    if value is not None and value < 1:
        raise InputError(f"{flag} must be at least 1, got {value}")


def require_files(output: Path | None, source: str | None) -> None:
    """Raise an InputError if the output is the source, or several processes share standard input or output.

    The source may be a text or a file, or "-" for standard input; None for the output is standard output.
    """
    if output is not None and source is not None and _same_file(output, source):
        raise InputError("the output would replace the input", path=output, hint="give another --output")
    if world_size() > 1 and output is None:
        raise InputError(f"{world_size()} processes cannot print their lines in order", hint="give an --output")
    if world_size() > 1 and source == "-":
        raise InputError(f"{world_size()} processes cannot share standard input", hint="give a file")


def _same_file(output: Path, source: str) -> bool:
    try:
        return os.path.samefile(output, source)
    except OSError:  # one of them does not exist, or the source is a text, too long for a file name
        return False
