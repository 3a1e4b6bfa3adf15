"""Figures of what the tests promise: each test gives its own, and ``--write-figures PATH`` saves them all.

The option is known where this folder is named on the command line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproductions.report import Result, Table, save_table
from seqwise.evaluation.signature import sign

Promise = Callable[[str, int, str], None]
FIGURES = pytest.StashKey[dict[tuple[str, str], tuple[int, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-figures", metavar="PATH", default=None, help="write what these tests found as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = {}


@pytest.fixture
def promise(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Promise:
    """Say at the end of a test what was tried, in how many cases, and what held in each of them.

    The cases of several tests of one name are added up.
    """

    def said(name: str, cases: int, held: str) -> None:
        record_property("promise", f"{name}: {cases} of {cases} {held}")
        figures, place = request.config.stash[FIGURES], (request.path.stem.removeprefix("test_"), name)
        figures[place] = figures.get(place, (0, ""))[0] + cases, held

    return said


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--write-figures", default=None)
    # Figures of a session in which a test failed are none.
    if path is not None and exitstatus == pytest.ExitCode.OK:
        save_table(table(session.config.stash[FIGURES]), Path(path))


def table(figures: dict[tuple[str, str], tuple[int, str]]) -> Table:
    """The figures as results are kept, by file and name."""
    tests = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    shared: dict[str, Any] = {"signature": sign("tests/reliability", seeds=[0], data=hashlib.sha256(tests).hexdigest())}
    found = sorted(figures.items())
    results = [Result(name, file, cases, unit="cases", note=held, **shared) for (file, name), (cases, held) in found]
    return Table("Reliability", tuple(results))
