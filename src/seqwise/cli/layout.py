"""How ``--help`` is laid out: options in groups, and a list of commands that is not cut."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command whose options stand in groups.

    An option with a ``rich_help_panel`` begins the group of that name, which holds up to the next one that has one.
    """

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
    """A group of commands that says of each command all of its first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands])
