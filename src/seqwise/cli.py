"""The command line: ``seqwise train | predict | evaluate | reproduce``.

Whatever the user can mend ends with one line on standard error and exit code 2.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import rich.box
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seqwise.errors import InputError

__all__ = ["app", "main"]

app = typer.Typer(
    name="seqwise",
    help="Neural sequence models that are trained, searched and sampled as whole sequences.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The typer application; ``main`` runs it with our manners about errors."""

# typer names only the descendants of what it raises for a wrong command line, and which click they are of depends on
# its version.
UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

out, err = Console(), Console(stderr=True)

TRAIN_EXAMPLES = """\b
Examples:
  seqwise train --task tag --train train.conll --dev dev.conll \\
      --objective relaxed-beam --score global --output runs/tagger
  seqwise train --task transduce --train pairs.tsv \\
      --source-units characters --objective cross-entropy --output runs/g2p
  seqwise train --config settings.yaml --seed 1 --output runs/seed1"""


def main() -> None:
    """Run the command line; the entry point of the ``seqwise`` script."""
    # A GPU-less machine need not be told so, nor a terminal be filled with what libraries say to developers.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader (head, less) has gone, which rich and typer turn into an exit; Python would complain once more
        # while closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (InputError, OSError, UsageError) as error:
        print(f"seqwise: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _one_line(error: Any) -> str:
    if isinstance(error, UsageError):
        command = error.ctx.command_path if getattr(error, "ctx", None) else "seqwise"
        message = " ".join(error.format_message().split()).removesuffix(".")
        return f"{message[:1].lower()}{message[1:]}; see {command} --help"
    if isinstance(error, OSError) and error.strerror:
        # Of the disk or of permissions: nothing that a traceback would explain.
        return str(InputError(error.strerror, path=error.filename, mend="see that there is room and permission"))
    return str(error)


def _version(asked: bool) -> None:
    if asked:
        from seqwise import __version__

        print(f"seqwise {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    """Neural sequence models that are trained, searched and sampled as whole sequences."""
    if context.invoked_subcommand is None:
        print(context.get_help())


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
    kinds = typing.get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        text = field.metadata["help"] + _choices(kinds[field.name], field.metadata["help"])
        default = "" if field.default in (None, Path()) else f" [{field.default}]"
        flag = typer.Option(
            f"--{field.name.replace('_', '-')}", metavar=_metavar(kinds[field.name]), help=text + default
        )
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, flag]
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _metavar(kind: Any) -> str:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    return {int: "N", float: "X", Path: "FILE", str: "SCHEDULE"}.get(members[0], "NAME")


def _choices(kind: Any, text: str) -> str:
    """The choices of a field, where its help does not name them all."""
    names = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    return "" if all(name in text for name in names) else f" ({', '.join(names)})"


def train(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="the run folder to make or to continue")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings in YAML: task: tag, ...; flags override")
    ] = None,
    **flags: str | None,
) -> None:
    """Train a model on your own files.

    Settings come from flags, then from the YAML file, then from the defaults in [brackets]. Run the same command again
    to continue after an interruption.
    """
    from seqwise.runs.settings import load_settings
    from seqwise.runs.training import train_run

    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings(config, given)
    with _progress() as progress:
        bars: dict[str, Any] = {}

        def advance(stage: str, step: Any) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=step.steps, note="")
            progress.update(bars[stage], completed=step.step, note=f"loss {step.loss:.3f}")

        metrics = train_run(settings, output, on_progress=advance)
    trained = metrics["training"]
    print(f"trained for {trained['steps']} steps; loss of the last ones {trained['mean_loss']:.3f}")
    if "dev" in metrics:
        _print_table(
            {
                name: [f"{value:.3f}" if "ratio" in title else f"{100 * value:.1f}" for title, value in values.items()]
                for name, values in metrics["dev"]["decoders"].items()
            },
            [_with_unit(title) for title in next(iter(metrics["dev"]["decoders"].values()))],
        )
        best = metrics["dev"]["best decoder"]
        print(f"best on the development data: {best} (mean log Z {metrics['dev']['mean log Z']:.2f})")
    print(f"the run is in {output}; try: seqwise predict {shlex.quote(str(output))} TEXT")


# The flags of Settings make the signature, so the command is registered only once they are there.
app.command(epilog=TRAIN_EXAMPLES)(_flags_from_settings(train))


def _print_table(rows: dict[str, list[str]], titles: list[str]) -> None:
    # Narrow enough for three measures with their intervals in 80 columns.
    table = Table("decoder", *titles, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    out.print(table)


def _with_unit(title: str) -> str:
    return title if "ratio" in title else f"{title}, %"


# ------------------------------------------------------------------------------------- predict, evaluate


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
BeamSize = Annotated[int | None, typer.Option(metavar="N", help="slots of the beam; by default as trained")]


@app.command()
def predict(
    run: RunFolder,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|FILE", help="one input, or a file with one input a line; standard input if left out or -"
        ),
    ] = None,
    *,
    decoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="greedy, beam, raw-beam or soft-beam; by default as trained"),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int | None,
        typer.Option(metavar="N", help="outputs for each input; by default up to 5 for one text, 1 for a file"),
    ] = None,
    length_normalization: Annotated[
        float, typer.Option(metavar="P", show_default=False, help="rank by score / length^P [0]")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, with scores")] = False,
) -> None:
    """Print the best outputs for one text, or for each line of a file.

    One text: ranked outputs with their scores. A file: a line for each of its lines, the input, a tab, the output.
    """
    from seqwise.runs import choose_decoder, load_run, require_enough_candidates
    from seqwise.runs import predict as predict_examples
    from seqwise.runs.inputs import input_units, inputs_of

    loaded = load_run(run)
    units = input_units(loaded.settings)
    examples = inputs_of(text, units=units)
    _require_at_least_one("--beam-size", beam_size)
    _require_at_least_one("--n-best", n_best)
    if not math.isfinite(length_normalization):
        raise InputError(f"--length-normalization must be finite, got {length_normalization}")
    if beam_size is not None:
        require_enough_candidates(loaded, examples, beam_size)
    chosen = choose_decoder(loaded.settings, decoder, beam_size=beam_size)
    slots = 1 if decoder == "greedy" else beam_size or loaded.settings.beam_size
    if n_best is not None and n_best > slots:
        mend = "choose another decoder" if decoder == "greedy" else f"add --beam-size {n_best}"
        raise InputError(f"--n-best {n_best} is more than the {slots} that the search keeps", mend=mend)
    one_text = not examples[0].path
    n_best = n_best or (5 if one_text else 1)
    # All of them, so that a mistake in the last line is found before the first output.
    loaded.encode(examples)
    to_characters = loaded.settings.task == "transduce" and loaded.settings.target_units == "characters"
    for start in range(0, len(examples), 1024):
        part = examples[start : start + 1024]
        found = predict_examples(loaded, part, chosen, n_best=n_best, length_normalization=length_normalization)
        for example, outputs in zip(part, found, strict=True):
            source = ("" if units == "characters" else " ").join(example.source)
            ranked = [(("" if to_characters else " ").join(one.tokens), round(one.score, 4)) for one in outputs]
            if as_json:
                objects = [{"output": output, "score": score} for output, score in ranked]
                print(json.dumps({"input": source, "outputs": objects}, ensure_ascii=False))
            elif one_text:
                for rank, (output, score) in enumerate(ranked, start=1):
                    print(f"{rank}  {score:>9.3f}  {output}")
            else:
                print("\t".join([source, *(output for output, _ in ranked)]))


def _require_at_least_one(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{flag} must be at least 1, got {value}")


@app.command()
def evaluate(
    run: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="data with the right answers, in the format of the training data")
    ],
    *,
    decoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="greedy, beam, raw-beam or soft-beam; by default all of them"),
    ] = None,
    beam_size: BeamSize = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
) -> None:
    """Measure a run on a file, with bootstrap 95% intervals."""
    from seqwise.decoding import DECODERS
    from seqwise.evaluation.metrics import bootstrap_interval
    from seqwise.runs import load_run, require_enough_candidates
    from seqwise.runs.measures import measure
    from seqwise.runs.training import read_examples

    loaded = load_run(run)
    examples = read_examples(loaded.settings, file)
    names = list(DECODERS) if decoder is None else [decoder]
    _require_at_least_one("--beam-size", beam_size)
    if beam_size is not None:
        require_enough_candidates(loaded, examples, beam_size)
    # Labels are measured on as text: a label that the run has never seen would only count as wrong.
    loaded.encode(examples)
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
    titles = [_with_unit(title) for title in next(iter(estimates.values()))]
    rows = {name: [_interval(*item) for item in by_title.items()] for name, by_title in estimates.items()}
    _print_table(rows, titles)
    print(f"{len(examples)} examples; in brackets bootstrap 95% intervals")


def _interval(title: str, estimate: dict[str, float]) -> str:
    factor, digits = (1.0, 3) if "ratio" in title else (100.0, 1)
    value, low, high = (f"{factor * estimate[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


# ------------------------------------------------------------------------------------------------- reproduce


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(metavar="RECIPE", help="label-bias-toy, stress, demo (both) or g2p")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", show_default=False, help="takes runs and figures [runs]")
    ] = Path("runs"),
    results: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="takes the results as JSON; by default beside the runs")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON instead of tables")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, show_default=False, help="of data, weights, batches and noise [0]")
    ] = 0,
) -> None:
    """Run a recipe end to end and print its table.

    Interrupted and run again, it continues where it was.
    """
    from seqwise.evaluation.report import save_table, signature_line
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
        signature = signature_line(dataclasses.replace(outcome.table.results[0].signature, method=outcome.name))
        out.print(outcome.picture, f"\n{outcome.lesson}\n", sep="\n", highlight=False, markup=False)
        out.print(signature, style="dim", highlight=False, markup=False)
        for name, file in {**outcome.files, "results": path}.items():
            print(f"{name}: {os.path.relpath(file)}")
        if outcome.hints:
            print("\nNow try:", *(f"  {_as_callable_here(hint)}" for hint in outcome.hints), sep="\n")


def _as_callable_here(command: str) -> str:
    """The command as it works in this shell: `make demo` runs a seqwise that is not on the PATH."""
    if shutil.which("seqwise") or not command.startswith("seqwise "):
        return command
    return f"{shlex.quote(os.path.relpath(sys.argv[0]))} {command.removeprefix('seqwise ')}"


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress bars on standard error; silent where that is not a terminal."""
    name, note = TextColumn("{task.description:<24}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        yield progress
