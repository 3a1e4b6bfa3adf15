"""``python -m reproductions NAME``."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import out, progress_bars
from seqwise.cli.examples import shown
from seqwise.errors import InputError

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False)
"""The command line of the reproductions: one command."""


@app.command(
    epilog=shown(
        "python -m reproductions demo",
        "python -m reproductions table-4.1 --results results",
        "python -m reproductions label-bias-toy --seed 1 --json",
    )
)
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="table or figure: label-bias-toy, stress, demo (both), g2p, figure-1, figure-3.1, table-6.1, "
            "figure-6.1, masked-diffusion-audit, constrained-sampling; with the corpora in SEQWISE_DATA: table-3.1, "
            "-3.2, -4.1, -4.2, -5.1 to -5.6, -6.2 to -6.6, figure-6.2 to -6.4, large-alpha, wider-beams, "
            "search-objectives, improvements, raw-scores, frontier, andreas-klein-1, andreas-klein-2, proteins, "
            "transformer-translation, training-inside, defaults, any-order-bound",
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", show_default=False, help="folder of the runs and figures [runs]"
        ),
    ] = Path("runs"),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="folder of the results, NAME.json or NAME-SCALE.json; by default beside the runs",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON instead of tables")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, show_default=False, help="seed of data, weights, batches and noise [0]")
    ] = 0,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="number of seeds of a table; by default that of the scale")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE",
            help="scale of a table: cpu (an hour on two cores, 3 seeds), gpu (the papers' sizes, 5 seeds) or, for "
            "some, converged (tuned and stopped on development data, 3 or 5 seeds, hours) [cpu]",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE", show_default=False, help="make this one of several tables, for example table-6.2-g2p"
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            show_default=False,
            help="number of systems trained in parallel, each in a process with one thread; 0: in this process [2]",
        ),
    ] = 2,
) -> None:
    """Train the systems of a table or figure from scratch, and print it.

    After an interruption, the same command resumes.
    """
    from reproductions import run_reproduction
    from reproductions import workers as jobs
    from reproductions.grids import terminal_grids
    from reproductions.report import save_table
    from reproductions.result_files import file_stem
    from seqwise.evaluation.signature import signature_line

    jobs.WORKERS = workers
    folder = (results or output / what / "results").resolve()
    if results is not None:  # before hours of training
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made ({error.strerror})", path=results, hint="name a folder") from None
    options: dict[str, Any] = {"seed": seed, "num_seeds": seeds, "scale": scale, "only": only}
    outcomes = run_reproduction(what, output, progress=progress_bars, **options)
    for outcome in outcomes:
        path = folder / f"{file_stem(outcome.name, scale)}.json"
        save_table(outcome.table, path)
        if as_json:
            print(path.read_text("utf-8"), end="")
            continue
        signature = signature_line(dataclasses.replace(outcome.table.results[0].signature, method=outcome.name))
        parts = terminal_grids(outcome.table, out().width)
        out().print(*parts, f"\n{outcome.lesson}\n", sep="\n", highlight=False, markup=False)
        out().print(signature, style="dim", highlight=False, markup=False)
        for name, file in {**outcome.files, "results": path}.items():
            print(f"{name}: {os.path.relpath(file)}")
        if outcome.hints:
            print("\nNow try:", *(f"  {_callable_command(hint)}" for hint in outcome.hints), sep="\n")


def _callable_command(command: str) -> str:
    """Return a command that works in this shell: `make demo` runs a seqwise that is not on the PATH."""
    if shutil.which("seqwise") or not command.startswith("seqwise "):
        return command
    script = os.path.relpath(Path(sys.executable).with_name("seqwise"))
    return f"{shlex.quote(script)} {command.removeprefix('seqwise ')}"
