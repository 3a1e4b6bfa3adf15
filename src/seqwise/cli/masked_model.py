"""``seqwise masked-model train``."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import (
    bar_for_each_part,
    bar_for_each_stage,
    command_device,
    last_losses,
    print_filled,
    print_summary,
    print_warnings,
    progress_bars,
)
from seqwise.cli.examples import examples
from seqwise.cli.flags import MetricsAsJson, command_with_flags, given_flags, without_flags
from seqwise.cli.layout import Group

masked_model = typer.Typer(cls=Group, rich_markup_mode=None, epilog=examples("masked-model"))


@masked_model.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Train masked models of sequences, or of pairs of source and sequence, for seqwise score and seqwise sample."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def train_command(
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="sequences in the given --format, plain or gzipped")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="folder to create or to continue")],
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="development data for early stopping")] = None,
    as_json: MetricsAsJson = False,
    **flags: str | None,
) -> None:
    """Train a masked model, which predicts each token from the others.

    After an interruption, the same command resumes.
    """
    from seqwise.runs.masked_model_settings import load_masked_flags

    settings = load_masked_flags(given_flags(flags))
    # The rest takes seconds to import, and wrong settings need none of it.
    from seqwise.runs.masked_model_training import train_masked_model

    command_device()
    with progress_bars() as bars:
        advance, trained_stages = bar_for_each_part(bars), set[str]()
        show = bar_for_each_stage(advance)

        def on_progress(step: Any) -> None:
            trained_stages.add("training")
            show("training", step)

        metrics = train_masked_model(
            train,
            output,
            settings,
            dev=dev,
            on_start=None if as_json else print_summary,
            on_progress=on_progress,
            on_measured=partial(advance, "development data"),
        )
    print_warnings(metrics)
    if as_json:
        print(json.dumps(metrics))
        return
    _print_metrics(metrics, settings, trained_now=bool(trained_stages))
    if "diverged" in metrics.get("warnings", {}):
        return
    run = shlex.quote(str(output))
    sources = " FILE" if settings.conditional else ""
    print(f"the model is in {output}; try: seqwise score {run} FILE, or seqwise sample {run}{sources}")


masked_model.command(
    "train",
    cls=command_with_flags("seqwise.runs.masked_model_settings", "MASKED_SETTINGS"),
    epilog=examples("masked-model train"),
)(without_flags(train_command))


def _print_metrics(metrics: dict[str, Any], settings: Any, *, trained_now: bool) -> None:
    steps = f"{'' if trained_now else 'already trained for '}{metrics['steps']:,} steps"
    print(
        f"{metrics['sequences']:,} sequences of {metrics['tokens']:,} tokens, a vocabulary of "
        f"{metrics['vocabulary']:,}; {steps}, mean of the last losses {metrics['mean_loss']:.3f}"
    )
    if "best" in metrics:
        best, ended = metrics["best"], "stopped early, at" if metrics["stopped_early"] else "ended with"
        print(
            f"best after epoch {best['epoch']:.3g}, step {best['step']:,} (cross-entropy of masked tokens "
            f"{best['masked_cross_entropy']:.3f} on the evaluated sample); {ended} step {metrics['steps']:,}"
        )
    print_filled(*last_losses(metrics))
    if "dev" not in metrics:
        return
    dev = metrics["dev"]
    unknown = f" ({dev['unknown_tokens']:,} unknown)" if dev["unknown_tokens"] else ""
    length = f", of the length {dev['length_cross_entropy']:.3f}" if settings.conditional else ""
    print(
        f"development data, {dev['sequences']:,} sequences of {dev['tokens']:,} tokens{unknown}: pseudo-perplexity "
        f"{dev['pseudo_perplexity']:.4g}; cross-entropy of masked tokens {dev['masked_cross_entropy']:.3f} nats{length}"
    )
