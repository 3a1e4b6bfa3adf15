"""The command line in this process, for tests: ``conftest.py`` makes the fixture ``seqwise`` of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import typer

from seqwise import cli


class Ended(NamedTuple):
    """How a command ended: its exit code and what it said."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON objects that a command has printed, one a line."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def complaint(self) -> str:
        """The one line on standard error of a refused command, without output, but for the first line of a training."""
        assert self.code == 2, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("seqwise: "), (self.out, self.err)
        assert self.out == "" or self.out.startswith("train  "), self.out
        return lines[0].removeprefix("seqwise: ")


Command = Callable[..., Ended]


def exit_code(*arguments: object, application: typer.Typer | None = None, name: str = "seqwise") -> int:
    """Run one command line: that of seqwise, or another application's."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        cli.run(cli.app if application is None else application, name)
    return int(ended.value.code or 0)


def run_main(*arguments: object) -> None:
    """For fixtures of a module, which cannot capture what is said: a command that must succeed."""
    assert exit_code(*arguments) == 0
