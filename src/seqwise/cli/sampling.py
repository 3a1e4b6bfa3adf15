"""``seqwise sample``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import err, print_device, progress_bars, require_files
from seqwise.cli.flags import MaskedRunFolder, given_flags
from seqwise.cli.layout import TEXT_OR_FILE
from seqwise.errors import warn
from seqwise.training.processes import is_main_process, local_device


def sample(
    run: MaskedRunFolder,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar=TEXT_OR_FILE,
            help="sequences in which _ is filled in, or sources of a conditional model; - for standard input;"
            " without it, whole sequences are sampled",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="save chains and samples in FOLDER; after an interruption, the same command resumes",
        ),
    ] = None,
    contain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHRASE",
            rich_help_panel="Constraints",
            help="required phrase of whole words (for characters or residues, of tokens); may be repeated; --visits"
            " anywhere --blocks N lets a phrase of N tokens move",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PHRASE", rich_help_panel="Constraints", help="excluded phrase; may be repeated"),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            rich_help_panel="Chains",
            help="print only the sequence with the lowest energy per token of each input",
        ),
    ] = False,
    **flags: str | None,
) -> None:
    """Sample from a masked model, read as an energy: whole sequences, infilling, or translations.

    Prints one JSON object per chain, with the number of its input; diagnostics of the chains go to standard error. Long
    files are read in parts and need no more memory than short ones. With --output, the same command resumes after an
    interruption, or continues with more --sweeps, and torchrun may start several processes, which share the chains.
    """
    from seqwise.configuration import configure
    from seqwise.runs.sampling_settings import SampleSettings

    # oneDNN keeps compiled kernels for the last 1,024 shapes, and nearly every call of moving chains has a new shape,
    # so memory would grow over the first half million lines.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    require_files(output, file)
    given: dict[str, Any] = {**given_flags(flags), "best": best}
    given |= {name: phrases for name, phrases in (("contain", contain), ("without", without)) if phrases}
    settings = configure(SampleSettings, **given)
    # Imported after the settings are checked, because it takes seconds.
    from seqwise.runs.loading import load_run
    from seqwise.runs.sampling_problems import read_problems

    loaded = load_run(run, to="score", device=local_device())
    print_device()
    _print_samples(loaded, read_problems(loaded, file, settings), settings, output)


def _print_samples(run: Any, problems: Any, settings: Any, output: Path | None) -> None:
    from seqwise.runs.sampling import sample_in_blocks
    from seqwise.runs.sampling_problems import problem_warnings
    from seqwise.runs.sampling_report import SampleReport

    warn(*problem_warnings(run, problems))
    report = SampleReport(settings)
    with progress_bars() as bars:
        task = bars.add_task("sampling", total=None, note="the first sweep")
        before: int | None = None  # sweeps of an earlier call, which this one resumes
        start = time.monotonic()

        def on_sweep(step: Any) -> None:
            nonlocal before
            before = step.done - step.added if before is None else before
            pace = (time.monotonic() - start) / (step.done - before)
            note = f"accepted {step.acceptance:.0%}, new {step.novelty:.0%}, energy {step.mean_energy:.4g}"
            bars.start()  # has been stopped to print lines
            bars.update(task, completed=step.done, total=step.total, note=note, pace=pace)

        try:
            for block in sample_in_blocks(run, problems, settings, output=output, on_sweep=on_sweep):
                if err().is_terminal:  # a running bar captures standard output
                    bars.stop()
                for line in block.lines:
                    print(line)
                report.add(block.groups)
        except KeyboardInterrupt:
            if output is not None:
                print("stopped; run the same command again to continue", file=sys.stderr)
            raise
    if is_main_process():
        for line in report.lines():
            print(line, file=sys.stderr)
