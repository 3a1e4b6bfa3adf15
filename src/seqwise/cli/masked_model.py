"""``seqwise masked-model train``."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.examples import examples
from seqwise.cli.flags import MetricsAsJson, command_with_flags, given_flags, without_flags
from seqwise.cli.layout import Group
from seqwise.cli.training import train_and_print
from seqwise.names import count_of

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
    # Imported after the settings are checked, because it takes seconds.
    from seqwise.runs.masked_model_training import train_masked_model

    run = shlex.quote(str(output))
    sources = " FILE" if settings.conditional else ""
    train_and_print(
        partial(train_masked_model, train, output, settings, dev=dev),
        print_dev=_print_dev,
        hint=f"the model is in {output}; try: seqwise score {run} FILE, or seqwise sample {run}{sources}",
        as_json=as_json,
    )


masked_model.command(
    "train",
    cls=command_with_flags("seqwise.runs.masked_model_settings", "MASKED_SETTINGS"),
    epilog=examples("masked-model train"),
)(without_flags(train_command))


def _print_dev(dev: dict[str, Any]) -> None:
    unknown = f" ({dev['unknown_tokens']:,} unknown)" if dev["unknown_tokens"] else ""
    length = f", of the length {dev['length_cross_entropy']:.3f}" if "length_cross_entropy" in dev else ""
    counts = f"{count_of(dev['sequences'], 'sequence')} of {count_of(dev['tokens'], 'token')}{unknown}"
    print(
        f"development data, {counts}: pseudo-perplexity {dev['pseudo_perplexity']:.4g}; cross-entropy of masked tokens "
        f"{dev['masked_cross_entropy']:.3f} nats{length}"
    )
