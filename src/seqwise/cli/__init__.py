"""The command line: ``seqwise train | tune | debug-data | predict | evaluate | stream | score | sample | ...``.

Errors that the user can fix end with one line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from seqwise.cli.debug_data import debug_data
from seqwise.cli.diagnosis import diagnose
from seqwise.cli.examples import examples
from seqwise.cli.exploration import explore
from seqwise.cli.flags import command_with_flags, without_flags
from seqwise.cli.layout import Command, Group
from seqwise.cli.masked_model import masked_model
from seqwise.cli.prediction import evaluate, predict
from seqwise.cli.report import report
from seqwise.cli.sampling import sample
from seqwise.cli.scoring import score
from seqwise.cli.sharing import card, push
from seqwise.cli.streaming import stream
from seqwise.cli.training import train
from seqwise.cli.tuning import tune
from seqwise.errors import InputError, warn
from seqwise.training.processes import is_main_process, rank, silence_other_ranks, world_size

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="seqwise",
    cls=Group,
    help="Train, search and sample neural sequence models as whole sequences.",
    epilog=examples(""),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The typer application, which ``main`` runs."""

# Base class of typer's errors about the command line; its module depends on the version of typer.
UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

# Commands that torchrun may start; others would do all their work in each process.
IN_SEVERAL_PROCESSES = ("train", "tune", "masked-model", "predict", "evaluate", "score", "sample")
PATIENCE = 3  # seconds
INTERRUPTED = 128 + signal.SIGINT  # exit code, as in shells

with_flags = {
    train: command_with_flags("seqwise.runs.settings", "SETTINGS"),
    tune: command_with_flags("seqwise.runs.settings", "SETTINGS"),
    sample: command_with_flags("seqwise.runs.sampling_settings", "SampleSettings"),
    score: command_with_flags("seqwise.sampling.scoring_settings", "ScoringSettings"),
}
commands: list[Any] = [
    train,
    tune,
    debug_data,
    predict,
    evaluate,
    stream,
    score,
    sample,
    diagnose,
    card,
    push,
    report,
    explore,
]
for command in commands:
    app.command(cls=with_flags.get(command, Command), epilog=examples(command.__name__.replace("_", "-")))(
        without_flags(command)
    )
app.add_typer(masked_model, name="masked-model")


def main() -> None:
    """Run the command line, as ``seqwise.__main__`` does."""
    with _terminated_like_an_interrupt():
        run(app, "seqwise")


@contextmanager
def _terminated_like_an_interrupt() -> Iterator[None]:
    """Handle SIGTERM, which batch systems send, like Ctrl-C; a second one ends the process at once.

    Not with several processes: Python runs no handler while a process waits for the others.
    """
    if world_size() > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    process, terminated = os.getpid(), False

    def terminate(number: int, frame: object) -> None:
        nonlocal terminated
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:  # a forked worker, which inherits the handler
            os.kill(os.getpid(), number)
        terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except SystemExit as error:
        if terminated and error.code == INTERRUPTED:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def run(application: typer.Typer, name: str) -> None:
    """Run a typer application; print errors that the user can fix as one line on standard error.

    Args:
        application: its commands.
        name: name shown in its help.

    Raises:
        SystemExit: always, with 0, 2 for what the user can fix, or 130 after an interrupt.
    """
    # Warnings of Transformers, for instance about a missing GPU, are for developers.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with silence_other_ranks():
            status = application(prog_name=name, standalone_mode=False)
            if sys.stdout is not None:  # None if it was closed before the command began, as in some services
                sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader (head, less) has ended, which rich and typer turn into an exit. Without this, Python would report
        # an error on closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (InputError, OSError, UsageError) as error:
        if not is_main_process():
            # Most errors are the same in all processes: rank 0 prints its own, and torchrun ends the others.
            time.sleep(PATIENCE)
        warn(_one_line(error) + ("" if is_main_process() else f" (process {rank()})"))
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _one_line(error: Any) -> str:
    if isinstance(error, UsageError):
        command = error.ctx.command_path if getattr(error, "ctx", None) else "seqwise"
        message = " ".join(error.format_message().split()).removesuffix(".")
        return f"{message[:1].lower()}{message[1:]}; see {command} --help"
    if isinstance(error, OSError) and error.strerror:
        return str(InputError(error.strerror, path=error.filename, hint="check free space and permissions"))
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Train, search and sample neural sequence models as whole sequences."""
    if context.invoked_subcommand is None:
        print(context.get_help())
    elif world_size() > 1 and context.invoked_subcommand not in IN_SEVERAL_PROCESSES:
        problem = f"seqwise {context.invoked_subcommand} runs in one process, and there are {world_size()}"
        raise InputError(problem, hint="start it without torchrun")
