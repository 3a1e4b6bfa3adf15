"""``seqwise masked-model train``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from seqwise.cli.console import progress_bars

if TYPE_CHECKING:
    from seqwise.runs.masked_model_settings import MaskedModelSettings

__all__ = ["masked_model"]

EXAMPLES = """\b
Examples:
  seqwise masked-model train sentences.txt --dev dev.txt --output runs/mlm
  seqwise masked-model train proteins.fasta.gz --format fasta --output runs/proteins
  seqwise masked-model train de-en.tsv --format pairs --units subwords \\
      --source-units subwords --output runs/de-en-mlm
  seqwise score runs/mlm sentences.txt"""

masked_model = typer.Typer(rich_markup_mode=None, epilog=EXAMPLES)
"""The group of commands."""


@masked_model.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Masked models: train them on sequences, or on pairs of source and sequence; seqwise score and sample use them."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@masked_model.command("train", epilog=EXAMPLES)
def train_command(
    context: typer.Context,
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="sequences, plain or gzip, in the --format")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="the folder to make or to continue")],
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="measure the model on it at the end")] = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="sequences (one a line), fasta, or pairs (source, tab, sequence: a conditional model)"
        ),
    ] = "sequences",
    units: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="what a sequence is made of: words, characters or subwords; by default words, in FASTA characters",
        ),
    ] = None,
    source_units: Annotated[str, typer.Option(metavar="NAME", help="pairs: the same for sources")] = "words",
    subword_vocabulary: Annotated[
        int, typer.Option(metavar="N", help="subwords: how many to learn at most, for each side")
    ] = 8000,
    minimum_count: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="rarer tokens are the unknown symbol; 1: there is none; by default 2, for characters 1",
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="transformer or lstm")] = "transformer",
    hidden_size: Annotated[int, typer.Option(metavar="N", help="of embeddings and layers; of each LSTM")] = 128,
    num_layers: Annotated[int, typer.Option(metavar="N", help="transformer; pairs: for each side")] = 2,
    num_heads: Annotated[int, typer.Option(metavar="N", help="transformer: of each attention")] = 4,
    feedforward_size: Annotated[int, typer.Option(metavar="N", help="hidden size of feed-forward networks")] = 512,
    embedding_size: Annotated[int, typer.Option(metavar="N", help="lstm: size of embeddings")] = 64,
    dropout: Annotated[float, typer.Option(metavar="X", help="transformer: dropout rate")] = 0.1,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="pairs: longest sequence; by default that of TRAIN")
    ] = None,
    masking: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="uniform (between one and all tokens), one, or a number: the probability of each token",
        ),
    ] = "uniform",
    epochs: Annotated[float, typer.Option(metavar="X", help="how often each sequence is seen")] = 20.0,
    batch_size: Annotated[int, typer.Option(metavar="N", help="sequences of a step")] = 64,
    learning_rate: Annotated[float, typer.Option(metavar="X", help="the highest; it falls linearly to 0")] = 1e-3,
    warmup: Annotated[float, typer.Option(metavar="X", help="part of the steps in which it rises to that")] = 0.05,
    seed: Annotated[int, typer.Option(metavar="N", help="of weights, batches, masks and dropout")] = 0,
    save_every: Annotated[int, typer.Option(metavar="N", help="steps between checkpoints")] = 500,
) -> None:
    """Train a masked model, which scores each token given all others.

    Run the same command again to continue after an interruption.
    """
    from seqwise.runs.masked_model_settings import MaskedModelSettings, require_read
    from seqwise.runs.masked_model_training import train_masked_model

    settings = MaskedModelSettings(
        # The settings say what is wrong with a name that is none of theirs.
        format=cast(Any, format),
        units=cast(Any, units or ("characters" if format == "fasta" else "words")),
        source_units=cast(Any, source_units),
        subword_vocabulary=subword_vocabulary,
        minimum_count=minimum_count,
        model=cast(Any, model),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        feedforward_size=feedforward_size,
        embedding_size=embedding_size,
        dropout=dropout,
        max_length=max_length,
        masking=masking,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup=warmup,
        seed=seed,
        save_every=save_every,
    )
    sources = {name: context.get_parameter_source(name) for name in context.params}
    # Which kind of source it is depends on the version of click that typer goes with; their names do not.
    require_read(settings, [name for name, source in sources.items() if source and source.name == "COMMANDLINE"])
    with progress_bars() as bars:
        training = bars.add_task("training", total=None, note="")
        measuring: list[Any] = []

        def on_progress(step: Any) -> None:
            bars.update(training, completed=step.step, total=step.steps, note=f"loss {step.loss:.3f}")

        def on_measured(done: int, total: int) -> None:
            if not measuring:
                measuring.append(bars.add_task("development data", total=total, note=""))
            bars.update(measuring[0], completed=done)

        metrics = train_masked_model(train, output, settings, dev=dev, on_progress=on_progress, on_measured=on_measured)
    _print_metrics(metrics, settings)
    run = shlex.quote(str(output))
    given = " FILE" if settings.conditional else ""
    print(f"the model is in {output}; try: seqwise score {run} FILE, or seqwise sample {run}{given}")


def _print_metrics(metrics: dict[str, Any], settings: MaskedModelSettings) -> None:
    print(
        f"{metrics['sequences']:,} sequences of {metrics['tokens']:,} tokens, a vocabulary of "
        f"{metrics['vocabulary']:,}; {metrics['steps']:,} steps, loss of the last ones {metrics['mean_loss']:.3f}"
    )
    if "dev" not in metrics:
        return
    dev = metrics["dev"]
    unknown = f" ({dev['unknown_tokens']:,} unknown)" if dev["unknown_tokens"] else ""
    length = f", of the length {dev['length_cross_entropy']:.3f}" if settings.conditional else ""
    print(
        f"development data, {dev['sequences']:,} sequences of {dev['tokens']:,} tokens{unknown}: pseudo-perplexity "
        f"{dev['pseudo_perplexity']:.4g}; cross-entropy of masked tokens {dev['masked_cross_entropy']:.3f} nats{length}"
    )
