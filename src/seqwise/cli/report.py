"""``seqwise report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqwise.cli.console import bar_for_each_part, print_device, progress_bars, require_at_least_one
from seqwise.cli.flags import folder_argument


def report(
    runs: Annotated[list[Path], folder_argument("output folders of train, masked-model train or sample", "RUN...")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="page to write; an older report is replaced")
    ] = Path("report.html"),
    file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="data to evaluate on, in the format of the training data; may be repeated, one for each RUN that reads"
            " data",
        ),
    ] = None,
    examples: Annotated[int, typer.Option(metavar="N", help="number of examples (or inputs of samples) to show")] = 2,
    example: Annotated[
        list[int] | None, typer.Option(metavar="N", help="show the N-th example instead; may be repeated")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="update the page during training; it reloads itself")] = False,
) -> None:
    """Compare runs on one HTML page: results with intervals, curves, errors, beam lattices, chains.

    The page works offline. Without --file, taggers and transducers are evaluated on their development data. Runs on the
    same data are compared with the first one.
    """
    from seqwise.pages.report import ReportOptions, watch_report, write_report

    require_at_least_one("--examples", examples)
    for place in example or ():
        require_at_least_one("--example", place)
    print_device()
    options = ReportOptions(tuple(file or ()), examples, tuple(example or ()))
    with progress_bars() as progress:
        (watch_report if watch else write_report)(runs, output, options, on_progress=bar_for_each_part(progress))
    print(f"the report is in {output}")
