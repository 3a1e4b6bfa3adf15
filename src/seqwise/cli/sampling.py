"""``seqwise sample``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from seqwise.cli.completion import choice_of, run_folders
from seqwise.cli.console import err, progress_bars, require_files
from seqwise.errors import InputError
from seqwise.names import EnergyName, KernelName, VisitsName
from seqwise.training.processes import is_first

__all__ = ["sample"]

T = TypeVar("T", int, float)


def sample(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            autocompletion=run_folders,
            help="the --output of a masked-model train; or a masked language model of transformers: a folder, or a"
            " name on the hub",
        ),
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|FILE",
            help="sequences in which _ is to be filled in, or sources of a conditional model; - for standard input;"
            " left out: whole sequences are sampled",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="keep everything there, to go on from")
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=choice_of(get_args(KernelName)),
            rich_help_panel="Kernel",
            help=f"{', '.join(get_args(KernelName))}; mask-predict and gibbs follow no energy",
        ),
    ] = "metropolis-hastings",
    energy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=choice_of(get_args(EnergyName)),
            help="local or raw",
        ),
    ] = "local",
    window: Annotated[int, typer.Option(metavar="N", help="delayed-acceptance: how far the first look goes")] = 1,
    iterations: Annotated[int, typer.Option(metavar="N", help="mask-predict: refinements")] = 10,
    chains: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel="Chains", help="of each problem and length [5; mask-predict: 1]"),
    ] = None,
    sweeps: Annotated[int | None, typer.Option(metavar="N", help="of each chain [33; mask-predict: 1]")] = None,
    discard: Annotated[
        int | None, typer.Option(metavar="N", help="first sweeps that are not counted [7, at most half]")
    ] = None,
    every: Annotated[int | None, typer.Option(metavar="N", help="print each N-th sweep [the last one only]")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="print the sequence of the lowest energy per token of each problem")
    ] = False,
    blocks: Annotated[
        str,
        typer.Option(
            metavar="N,...",
            rich_help_panel="Proposals",
            help="positions masked together: sweep by sweep, the last one from then on",
        ),
    ] = "1",
    visits: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=choice_of(get_args(VisitsName)),
            help="in-order, shuffled, or anywhere: at random places, 1 to --blocks positions at a time",
        ),
    ] = "in-order",
    proposal_temperature: Annotated[float, typer.Option(metavar="X", help="greater than 1 is flatter")] = 1.0,
    nucleus: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="propose the likeliest tokens of that mass; below 1 chains get stuck without --full-share",
        ),
    ] = 1.0,
    full_share: Annotated[
        float, typer.Option(metavar="X", help="weight of all tokens beside the nucleus, so that chains can go anywhere")
    ] = 0.0,
    temperature: Annotated[
        float,
        typer.Option(metavar="X", rich_help_panel="Temperature", help="of the target; below 1 nearer to its modes"),
    ] = 1.0,
    anneal: Annotated[
        float | None, typer.Option(metavar="X", help="from 1 to --temperature, X less each sweep (burn-in)")
    ] = None,
    forced: Annotated[int, typer.Option(metavar="N", help="accept all in the first N sweeps (burn-in)")] = 0,
    temperatures: Annotated[
        str, typer.Option(metavar="X,...", help="parallel-tempering: the wanted one first [none]", show_default=False)
    ] = "",
    contain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHRASE",
            rich_help_panel="Constraints",
            help="whole words that must occur, however subwords spell them (tokens where these are characters or"
            " residues); may be repeated; --visits anywhere --blocks N lets a phrase of N tokens move",
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="PHRASE", help="the same of words that must not occur")
    ] = None,
    penalty: Annotated[
        float | None, typer.Option(metavar="X", help="nats for each phrase that breaks it [infinity: hard]")
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            metavar="N|N-N",
            rich_help_panel="Sequences",
            help="without FILE: of the sequences [as in training]; for sources: bounds of outputs",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(metavar="N", help="without FILE: how many problems, a length for each; at most a million")
    ] = 1,
    length_beam: Annotated[int, typer.Option(metavar="N", help="for sources: how many likely lengths to try")] = 1,
    free: Annotated[
        str,
        typer.Option(metavar="TOKEN", help="what is to be filled in; of models of transformers a mask token is too"),
    ] = "_",
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel="Run", help="of all random numbers")] = 0,
    save_every: Annotated[int, typer.Option(metavar="N", help="sweeps between savings")] = 10,
    max_rows: Annotated[int, typer.Option(metavar="N", help="masked sequences at once; fewer need less memory")] = 1024,
) -> None:
    """Sample from a masked model taken as an energy: whole sequences, what is free in given ones, or translations.

    Prints a JSON object for each sequence, numbers counted from 1; what to think of the chains goes to standard error.
    A long file is taken some thousand lines at a time, so that it needs no more memory than a short one. With --output,
    run the same command again to continue after an interruption, or with more --sweeps to go on; and torchrun may start
    several processes, which share the chains. It runs on the processor.
    """
    from seqwise.runs.pretrained import load_sequence_run
    from seqwise.runs.sampling_problems import read_problems
    from seqwise.runs.sampling_settings import SampleSettings

    # oneDNN keeps what it has compiled for each of the last 1,024 shapes, and of chains that move nearly every call has
    # a shape of its own: memory would grow for the first half million of lines.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    require_files(output, file)
    settings = SampleSettings(
        # The settings say what is wrong with a name that is none of theirs.
        kernel=cast(Any, kernel),
        energy=cast(Any, energy),
        chains=chains,
        sweeps=sweeps,
        discard=discard,
        every=every,
        best=best,
        blocks=_listed("--blocks", blocks, int),
        visits=cast(Any, visits),
        proposal_temperature=proposal_temperature,
        nucleus=nucleus,
        full_share=full_share,
        window=window,
        temperature=temperature,
        anneal=anneal,
        forced=forced,
        temperatures=_listed("--temperatures", temperatures, float),
        iterations=iterations,
        contain=tuple(contain or ()),
        without=tuple(without or ()),
        penalty=penalty,
        length=length,
        count=count,
        length_beam=length_beam,
        free=free,
        seed=seed,
        save_every=save_every,
        max_rows=max_rows,
    )
    loaded = load_sequence_run(run)
    _print_samples(loaded, read_problems(loaded, file, settings), settings, output)


def _print_samples(run: Any, problems: Any, settings: Any, output: Path | None) -> None:
    from seqwise.runs.sampling import sample_in_blocks
    from seqwise.runs.sampling_problems import unusual
    from seqwise.runs.sampling_report import SampleReport

    for line in unusual(run, problems):
        print(f"seqwise: {line}", file=sys.stderr)
    report = SampleReport(settings)
    with progress_bars() as bars:
        task = bars.add_task("sampling", total=None, note="the first sweep")
        before: int | None = None  # what was done when the command was run the last time
        start = time.monotonic()

        def on_sweep(step: Any) -> None:
            nonlocal before
            before = step.done - step.added if before is None else before
            pace = (time.monotonic() - start) / (step.done - before)
            note = f"accepted {step.acceptance:.0%}, new {step.novelty:.0%}, energy {step.mean_energy:.4g}"
            bars.start()  # again, where lines have been printed
            bars.update(task, completed=step.done, total=step.total, note=note, pace=pace)

        try:
            for block in sample_in_blocks(run, problems, settings, output=output, on_sweep=on_sweep):
                if err().is_terminal:  # a bar takes hold of standard output
                    bars.stop()
                for line in block.lines:
                    print(line)
                report.add(block.groups)
        except KeyboardInterrupt:
            if output is not None:
                print("stopped; run the same command again to continue", file=sys.stderr)
            raise
    if is_first():
        for line in report.lines():
            print(line, file=sys.stderr)


def _listed(flag: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """Numbers between commas."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{flag}: {text!r} is no list of {what}", mend="separate them with commas: 3,2,1") from None
