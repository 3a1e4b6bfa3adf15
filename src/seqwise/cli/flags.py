"""Arguments shared by several commands, and flags for the fields of a configuration."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.completion import choice_of, run_folders
from seqwise.cli.console import print_device, require_at_least_one
from seqwise.cli.layout import Command
from seqwise.errors import InputError
from seqwise.names import DECODER_NAMES
from seqwise.training.processes import local_device

if TYPE_CHECKING:
    from seqwise.runs.run import OutputRun

_TRUTHS = ("yes", "no", "true", "false", "on", "off")  # those of YAML


def folder_argument(text: str, metavar: str = "RUN") -> Any:
    """Return the argument of a folder with a run or a model, which shells complete."""
    return typer.Argument(metavar=metavar, autocompletion=run_folders, help=text)


RunFolder = Annotated[str, folder_argument("run folder, or the name of a run on the hub")]
MaskedRunFolder = Annotated[
    str,
    folder_argument(
        "output folder of masked-model train, or a Hugging Face masked language model (a folder or a name on the hub)"
    ),
]
ScoredModel = Annotated[
    str,
    folder_argument(
        "output folder of masked-model train, or a Hugging Face masked, causal or encoder-decoder model (a folder or a"
        " name on the hub)",
        "MODEL",
    ),
]
GoldFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="data with gold outputs, in the format of the training data")
]
ResumableOutput = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="write to FILE; after an interruption, the same command resumes"
    ),
]


# Viterbi keeps the best output for each last label, and the second best may end with the label of the best.
ONE_OUTPUT = ("greedy", "viterbi")
"""Decoders without a beam, which return one output."""


def decoder_option(default: str) -> Any:
    """Return the option of a decoder, with the default in its help."""
    return typer.Option(
        metavar="NAME",
        autocompletion=choice_of((*DECODER_NAMES, "best")),
        help=f"{', '.join(DECODER_NAMES)} (for chains), or best (on the development data); by default {default}",
    )


def resolved_decoder(name: str | None, folder: Path, *, beam_size: int | None) -> str | None:
    """Return the name of a decoder, resolving "best" to the best one on development data; check its beam size."""
    from seqwise.runs.decoder_choice import best_decoder

    require_at_least_one("--beam-size", beam_size)
    resolved = best_decoder(folder) if name == "best" else name
    if resolved in ONE_OUTPUT and beam_size is not None:
        which = "decoder" if resolved == name else "best decoder,"
        raise InputError(f"--beam-size has no effect on the {which} {resolved}", hint="leave it out")
    return resolved


def load_predicting_run(name: str, *, language: str | None = None) -> tuple[Path, OutputRun]:
    """Load the run of a command on the command's device, to predict in a language; return its folder and the run."""
    from seqwise.runs import in_language, load_run
    from seqwise.runs.hub import run_folder

    folder = run_folder(name)
    run = load_run(folder, to="predict", device=local_device())
    print_device()  # only now, so that a folder that cannot be read is the only thing said
    return folder, run if language is None else in_language(run, language)


BeamSize = Annotated[int | None, typer.Option(metavar="N", help="beam size; by default as trained")]
Language = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PATTERN",
        help="restrict the outputs to bio (well-formed entities), a file with one output per line, a JSON schema "
        "(.json), a grammar (.lark, .gbnf), or a regular expression; by default as trained",
    ),
]
MetricsAsJson = Annotated[bool, typer.Option("--json", help="print only the contents of metrics.json")]


def command_with_flags(module: str, name: str) -> type[Command]:
    """Return the class of a command with a flag for each setting of a configuration, which is imported on use.

    Flags are text, read as in YAML, and are passed as ``**flags`` of the command; see ``given_flags``. Settings in the
    signature of the command keep their options.
    """

    class WithFlags(Command):
        has_flags = False

        def get_params(self, ctx: Any) -> Any:
            """Return the parameters, including those of the settings."""
            if not self.has_flags:
                self.has_flags = True
                application = typer.Typer(add_completion=False)
                function = inspect.unwrap(self.callback)  # type: ignore[arg-type]
                application.command()(_with_flags(function, getattr(importlib.import_module(module), name)))
                command = typer.main.get_command(application)
                self.params, self.callback = command.params, command.callback
            return super().get_params(ctx)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Parse a command line, in which a setting of yes or no may be given by its name alone."""
            from seqwise.configuration.flat import YES_OR_NO

            names = {name for param in self.get_params(ctx) if param.metavar == YES_OR_NO for name in param.opts}
            return super().parse_args(ctx, _with_yes(args, names))

    return WithFlags


def _with_yes(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Add "yes" to each of these names that no value follows."""
    following = itertools.chain(arguments[1:], ("",))
    return [
        f"{argument}=yes" if argument in names and after.lower() not in _TRUTHS else argument
        for argument, after in zip(arguments, following, strict=False)
    ]


def without_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Hide ``**flags`` in the signature of a command."""
    _set_parameters(command, _own_parameters(command))
    return command


def _with_flags(command: Callable[..., None], kind: Any) -> Callable[..., None]:
    from seqwise.configuration.flat import flags_of

    def with_flags(**values: Any) -> None:
        command(**values)

    parameters = _own_parameters(command)
    own = {parameter.name for parameter in parameters}
    for flag in flags_of(kind):
        if flag.name in own:
            continue
        option = typer.Option(
            f"--{flag.name.replace('_', '-')}",
            metavar=flag.metavar,
            help=flag.text + (f" [{flag.default}]" if flag.default and flag.default[0] != "(" else ""),
            rich_help_panel=flag.panel,
            autocompletion=choice_of(flag.choices) if flag.choices else None,
        )
        annotation = Annotated[str | None, option]
        parameters.append(
            inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    _set_parameters(with_flags, parameters)
    return with_flags


def _own_parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def _set_parameters(command: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def given_flags(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the explicitly given flags."""
    from seqwise.configuration.written import FlagText

    return {name: FlagText(value) for name, value in flags.items() if value is not None}
