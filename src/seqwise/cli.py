"""The command line: ``seqwise train | predict | evaluate | reproduce``.

Whatever the user can mend ends with one line on standard error and exit code 2.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seqwise.errors import InputError

__all__ = ["app", "main"]

app = typer.Typer(
    name="seqwise",
    help="Neural sequence models that are trained, searched and sampled as whole sequences.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The typer application; ``main`` runs it with our manners about errors."""

out, err = Console(), Console(stderr=True)

TRAIN_EXAMPLES = """\b
Examples:
  seqwise train --task tag --train train.conll --dev dev.conll --output runs/tagger
  seqwise train --task transduce --train pairs.tsv --source-units characters \\
      --objective cross-entropy --output runs/g2p
  seqwise train --config settings.yaml --seed 1 --output runs/seed1"""


def main() -> None:
    """Run the command line; the entry point of the ``seqwise`` script."""
    # A GPU-less machine need not be told so, nor a terminal be filled with what libraries say to developers.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        status = app(standalone_mode=False)
    except InputError as error:
        print(f"seqwise: {error}", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        print(f"seqwise: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more while closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)


# ------------------------------------------------------------------------------------------------- train


def _flags_from_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each field of Settings, so that flags, YAML keys and defaults cannot drift apart.

    Flags are taken as text and read by the same code as YAML, with the same messages.
    """
    from seqwise.runs.settings import Settings

    parameters = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    for field in dataclasses.fields(Settings):
        default = "" if field.default in (None, Path()) else f"  [default: {field.default}]"
        flag = typer.Option(f"--{field.name.replace('_', '-')}", help=field.metadata["help"] + default)
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, flag]
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def train(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the run folder to make or to continue")],
    config: Annotated[Path | None, typer.Option("--config", help="a YAML file of settings; flags override it")] = None,
    **flags: str | None,
) -> None:
    """Train a model on your own files; run the same command again to continue after an interruption."""
    from seqwise.runs.settings import Settings
    from seqwise.runs.training import train_run
    from seqwise.training.configuration import load_configuration

    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_configuration(Settings, config, given)
    with _progress() as progress:
        bars: dict[str, Any] = {}

        def advance(stage: str, step: Any) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=step.steps, note="")
            progress.update(bars[stage], completed=step.step, note=f"loss {step.loss:.3f}")

        metrics = train_run(settings, output, on_progress=advance)
    if "dev" in metrics:
        out.print(_decoder_table(metrics["dev"]["decoders"]))
        best = metrics["dev"]["best decoder"]
        out.print(f"best on the development data: {best} (mean log Z {metrics['dev']['mean log Z']:.2f})")
    out.print(f"the run is in {output}; try: seqwise predict {output} TEXT", soft_wrap=True, highlight=False)


# The flags of Settings make the signature, so the command is registered only once they are there.
app.command(epilog=TRAIN_EXAMPLES)(_flags_from_settings(train))


def _decoder_table(by_decoder: dict[str, dict[str, float]]) -> Table:
    titles = list(next(iter(by_decoder.values())))
    table = Table("decoder", *titles)
    for name, values in by_decoder.items():
        table.add_row(
            name, *(f"{values[title]:.3f}" if "ratio" in title else f"{100 * values[title]:.1f}%" for title in titles)
        )
    return table


# ------------------------------------------------------------------------------------- predict, evaluate


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    text: Annotated[
        str | None, typer.Argument(help="one input, or a file with one input a line; standard input if left out")
    ] = None,
    *,
    decoder: Annotated[
        str | None, typer.Option(help="greedy, beam, raw-beam or soft-beam; by default as trained")
    ] = None,
    beam_size: Annotated[int | None, typer.Option(help="slots of the beam; by default as trained")] = None,
    n_best: Annotated[
        int | None, typer.Option(help="outputs for each input; by default 5 for one text, 1 for a file")
    ] = None,
    length_normalization: Annotated[float, typer.Option(help="rank by score / length^p")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """Print ranked outputs with their scores: seqwise predict RUN "F AH T AA G R AH F IY"."""
    from seqwise.data.readers import Example, read_inputs
    from seqwise.runs import choose_decoder, load_run
    from seqwise.runs import predict as predict_examples

    loaded = load_run(run)
    units = "words" if loaded.settings.task == "tag" else loaded.settings.source_units
    path = Path("/dev/stdin") if text is None else Path(text)
    is_file = text is None or _is_file(path)
    if is_file:
        examples = read_inputs(path, units=units)
    else:
        assert text is not None
        tokens = tuple(text.split()) if units == "words" else tuple(text)
        if not tokens:
            raise InputError("the input is empty", mend="give some text, or a file")
        examples = [Example(source=tokens, target=())]
    n_best = n_best if n_best is not None else (1 if is_file else 5)
    for name, value in (("--beam-size", beam_size), ("--n-best", n_best)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    _require_enough_outputs(loaded, examples, beam_size)
    chosen = choose_decoder(loaded.settings, decoder, beam_size=beam_size)
    separator = "" if loaded.settings.task == "transduce" and loaded.settings.target_units == "characters" else " "
    source_separator = "" if units == "characters" else " "
    for start in range(0, len(examples), 1024):
        part = examples[start : start + 1024]
        found = predict_examples(loaded, part, chosen, n_best=n_best, length_normalization=length_normalization)
        for example, outputs in zip(part, found, strict=True):
            source = source_separator.join(example.source)
            ranked = [{"output": separator.join(one.tokens), "score": round(one.score, 4)} for one in outputs]
            if as_json:
                print(json.dumps({"input": source, "outputs": ranked}, ensure_ascii=False))
            elif is_file:
                print("\t".join([source, *(str(one["output"]) for one in ranked)]))
            else:
                for rank, one in enumerate(ranked, start=1):
                    print(f"{rank}  {one['score']:>9.3f}  {one['output']}")


def _is_file(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text longer than a file name may be
        return False


def _require_enough_outputs(run: Any, examples: list[Any], beam_size: int | None) -> None:
    """A beam asked for by hand must not be larger than the set of possible outputs."""
    from seqwise.decoding import step_limit

    steps = max(step_limit(len(example.source), run.model.end) for example in examples)
    labels = len(run.target_vocabulary)
    if beam_size is not None and labels > 1 and steps * math.log(labels) < math.log(beam_size):
        raise InputError(
            f"a beam of {beam_size} is larger than the number of candidates, {labels}^{steps} = {labels**steps}",
            mend=f"use --beam-size {labels**steps} or less",
        )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    file: Annotated[Path, typer.Argument(help="data with the right answers, in the format the run was trained on")],
    *,
    decoder: Annotated[str | None, typer.Option(help="one decoder only; by default all four")] = None,
    beam_size: Annotated[int | None, typer.Option(help="slots of the beam; by default as trained")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
) -> None:
    """Measure a run on a file, with bootstrap 95% intervals."""
    from seqwise.decoding import DECODERS
    from seqwise.evaluation.metrics import bootstrap_interval
    from seqwise.runs import load_run
    from seqwise.runs.measures import measure
    from seqwise.runs.training import read_examples

    loaded = load_run(run)
    examples = read_examples(loaded.settings, file)
    names = list(DECODERS) if decoder is None else [decoder]
    if beam_size is not None and beam_size < 1:
        raise InputError(f"--beam-size must be at least 1, got {beam_size}")
    estimates = {
        name: {
            title: bootstrap_interval(counts)._asdict()
            for title, counts in measure(loaded, examples, name, beam_size=beam_size).items()
        }
        for name in names
    }
    if as_json:
        print(json.dumps(estimates, indent=1))
        return
    table = Table("decoder", *next(iter(estimates.values())))
    for name, by_title in estimates.items():
        table.add_row(name, *(_interval(title, value) for title, value in by_title.items()))
    out.print(table)


def _interval(title: str, estimate: dict[str, float]) -> str:
    factor, digits = (1.0, 3) if "ratio" in title else (100.0, 1)
    value, low, high = (f"{factor * estimate[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


# ------------------------------------------------------------------------------------------------- reproduce


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="label-bias-toy, stress, demo (both of these) or g2p")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="where runs and figures go")] = Path("runs"),
    results: Annotated[Path | None, typer.Option(help="where results/*.json go; by default beside the runs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON instead of tables")] = False,
    seed: Annotated[int, typer.Option(help="seed of data, weights, batches and noise")] = 0,
) -> None:
    """Run a recipe end to end and print its table; interrupted, it continues where it was."""
    from seqwise.evaluation.report import save_table
    from seqwise.recipes import RECIPES, load_recipe
    from seqwise.training.configuration import did_you_mean

    if what not in RECIPES:
        raise InputError(f"there is no recipe {what!r}", mend=did_you_mean(what, RECIPES))
    folder = (results or output / what / "results").resolve()
    for outcome in load_recipe(what)(output / what, seed=seed, progress=_progress):
        path = folder / f"{outcome.name}.json"
        folder.mkdir(parents=True, exist_ok=True)
        save_table(outcome.table, path)
        if as_json:
            print(path.read_text("utf-8"), end="")
            continue
        out.print(outcome.picture, "", outcome.lesson, "", highlight=False)
        for name, file in {**outcome.files, "results": path}.items():
            out.print(f"{name}: {os.path.relpath(file)}", soft_wrap=True, highlight=False)
        if outcome.hints:
            out.print("\nNow try:", *(f"  {hint}" for hint in outcome.hints), sep="\n", soft_wrap=True, highlight=False)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress bars on standard error; silent where that is not a terminal."""
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        yield progress
