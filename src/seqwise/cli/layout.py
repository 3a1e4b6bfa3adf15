"""Layout of ``--help``: options in groups, full descriptions of commands, and no slow imports."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class _AsGiven:
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
            param.get_runtime_param = partial(_AsGiven, copy.copy(param))


class Command(TyperCommand):
    """Command with groups of options; an option with a ``rich_help_panel`` starts a group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line."""
        _prepare(self, ctx)
        return super().parse_args(ctx, args)

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
