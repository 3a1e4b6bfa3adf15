"""One flag of a command for each field of a dataclass of settings."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.completion import choice_of

__all__ = ["MetricsAsJson", "flags_from_settings", "given_flags"]

MetricsAsJson = Annotated[bool, typer.Option("--json", help="print what metrics.json holds, and nothing else")]
"""The flag of every command that trains."""


def flags_from_settings(command: Callable[..., None], settings: type) -> Callable[..., None]:
    """Give a command one flag for each field of a dataclass, so that flags, files and defaults cannot drift apart.

    Flags are taken as text, for ``load_configuration`` to read, which reads YAML with the same messages. The command
    has them all as its ``**flags``, of which :func:`given_flags` tells those that were given.
    """
    parameters = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    kinds = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        text = field.metadata["help"] + _choices(kinds[field.name], field.metadata["help"])
        default = "" if field.default in (None, Path(), "") else f" [{field.default}]"
        metavar = field.metadata.get("metavar") or _metavar(kinds[field.name])
        choices = field.metadata.get("choices") or _names(kinds[field.name])
        flag = typer.Option(
            f"--{field.name.replace('_', '-')}",
            metavar=metavar,
            help=text + default,
            rich_help_panel=field.metadata.get("panel"),
            autocompletion=choice_of(choices) if choices else None,
        )
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, flag]
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def given_flags(flags: Mapping[str, str | None]) -> dict[str, str]:
    """The flags of settings that the user wrote.

    Example:
        >>> given_flags({"steps": "10", "alpha": None})
        {'steps': '10'}
    """
    return {name: value for name, value in flags.items() if value is not None}


def _metavar(kind: Any) -> str:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    return {int: "N", float: "X", Path: "FILE", str: "SCHEDULE"}.get(members[0], "NAME")


def _names(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _choices(kind: Any, text: str) -> str:
    """The choices of a field, where its help does not name them all."""
    names = _names(kind)
    return "" if all(name in text for name in names) else f" ({', '.join(names)})"
