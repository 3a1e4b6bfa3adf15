"""What tests of reproductions share: setups without progress bars, tables saved and read back, grids as printed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console

from reproductions import Setup
from reproductions.grids import terminal_grids
from reproductions.outcome import Outcome
from reproductions.report import Table, load_table, save_table


class Unseen(dict[str, Any]):
    """Measures on test data that a reproduction must not look at."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(f"looked at {key} on test")


@contextlib.contextmanager
def no_progress() -> Iterator[rich.progress.Progress]:
    with rich.progress.Progress(disable=True) as bars:
        yield bars


def setup(folder: Path, *seeds: int) -> Setup:
    """The quick scale, by default with one seed."""
    return Setup(folder, seeds or (0,), no_progress)


def read_back(outcome: Outcome, folder: Path) -> Table:
    """The table, which is the same when it has been saved and read."""
    path = folder / f"{outcome.name}.json"
    save_table(outcome.table, path)
    table = load_table(path)
    assert table == outcome.table
    return table


def printed(table: Table, *, width: int = 80) -> str:
    """The grid in a terminal."""
    console = Console(width=width, file=io.StringIO())
    console.print(*terminal_grids(table, width), sep="\n", highlight=False, markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text
