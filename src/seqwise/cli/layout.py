"""Layout of ``--help``: options in groups, full descriptions of commands, and no slow imports."""

from __future__ import annotations

import copy
import os
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from seqwise.errors import InputError
from seqwise.names import VISIBLE_GPUS
from seqwise.training.processes import DEVICE, ONE_GPU

WITHOUT_MODEL = ("debug-data", "card", "push")
"""Commands that run no model."""

TEXT_OR_FILE = "TEXT|FILE"
"""Placeholder of an argument that is one text, or a file of them."""

# Options that limit memory, the most effective first.
_SIZES = ("max_rows", "max_tokens", "batch_size", "beam_size", "examples")


class _LazyConverter:
    """Converter of values that imports pydantic only when there is a value to convert."""

    def __init__(self, param: Any) -> None:
        self.convert = param.get_runtime_param

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Convert a value for the command."""
        if value is None and (param.multiple or param.nargs == -1):
            return ()
        return value if value is None or ctx.resilient_parsing else self.convert().coerce(value, param=param, ctx=ctx)


def _prepare(command: Any, ctx: Any) -> None:
    for param in command.get_params(ctx):
        if hasattr(param, "get_runtime_param"):  # since typer 0.29
            param.get_runtime_param = partial(_LazyConverter, copy.copy(param))


class Command(TyperCommand):
    """Command with groups of options, and ``--device``; an option with a ``rich_help_panel`` starts a group."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, and the device of commands that run a model."""
        if self.name not in WITHOUT_MODEL and all(param.name != "device" for param in self.params):
            # Before the first option that starts a group.
            grouped = [place for place, param in enumerate(self.params) if getattr(param, "rich_help_panel", None)]
            self.params.insert(grouped[0] if grouped else len(self.params), _device_option())
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if the device is out of memory, the error names a setting to lower."""
        try:
            return super().invoke(ctx)
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":  # by name, to avoid importing torch
                raise
            names = [param.name for param in self.get_params(ctx)]
            size = next((f"a smaller --{name.replace('_', '-')}" for name in _SIZES if name in names), "--device cpu")
            raise InputError("the device is out of memory", hint=f"give {size}") from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line."""
        _prepare(self, ctx)
        ctx.allow_extra_args = takes_text = any(param.metavar == TEXT_OR_FILE for param in self.params)
        rest: list[str] = super().parse_args(ctx, args)
        if takes_text and rest:
            hint = "quote a text that contains spaces; several texts go into a file, one per line"
            raise InputError(f"{rest[0]!r} follows the text, and the command takes one text", hint=hint)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        title, groups = "Options", dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            record: tuple[str, str] | None = param.get_help_record(ctx)
            if param.param_type_name == "argument":
                group = "Arguments"
            elif param.name == "help" and len(groups.keys() - {"Arguments"}) > 1:
                group = "Other"
            else:
                group = title = getattr(param, "rich_help_panel", None) or title
            if record is not None:
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _choose_device(ctx: typer.Context, name: str | None) -> str | None:
    """Set the environment variables of the device, which workers inherit, until the command ends."""
    if name is None or ctx.resilient_parsing:
        return name
    before = {key: os.environ.get(key) for key in (DEVICE, ONE_GPU, VISIBLE_GPUS)}
    ctx.call_on_close(partial(_restore, before))
    kind, _, number = name.partition(":")
    visible = [gpu for gpu in os.environ.get(VISIBLE_GPUS, "").split(",") if gpu]
    if kind == "cuda" and number.isdigit() and (not visible or int(number) < len(visible)):
        # The Hugging Face Trainer always takes the first visible GPU.
        os.environ[VISIBLE_GPUS] = visible[int(number)] if visible else number
        os.environ[ONE_GPU], name = name, kind
    os.environ[DEVICE] = name
    return name


def _with_device(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=_choose_device,
            help="where the model runs: auto (an accelerator if there is one), cpu, cuda, cuda:N or mps [auto]",
        ),
    ] = None,
) -> None:
    """Declare the option that all commands share."""


def _device_option() -> Any:
    application = typer.Typer(add_completion=False)
    application.command()(_with_device)
    option: Any = typer.main.get_command(application).params[0]
    option.expose_value = False
    return option


def _restore(before: dict[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


class Group(TyperGroup):
    """Group of commands, listed with their full first sentences."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line."""
        _prepare(self, ctx)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands])
