"""docs/reliability.md is the page of results/reliability.json and soak.json, and has all files of these tests."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from reproductions.report import load_table

ROOT = Path(__file__).parent.parent.parent
FIGURES = ROOT / "results" / "reliability.json"
SOAK = ROOT / "results" / "soak.json"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("make_reliability_page")


def promising(file: Path) -> int:
    """How many calls of ``promise`` a file of tests has."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return sum(isinstance(call.func, ast.Name) and call.func.id == "promise" for call in calls)


def test_each_file_of_tests_has_its_place_on_the_page(script: ModuleType) -> None:
    files = {file.stem.removeprefix("test_") for file in Path(__file__).parent.glob("test_*.py") if promising(file)}
    assert files == set(script.PARTS)


@pytest.mark.skipif(not FIGURES.exists(), reason="results/reliability.json has not been made: make reliability")
def test_the_page_is_that_of_the_figures(script: ModuleType) -> None:
    table = load_table(FIGURES)
    tables = [table, load_table(SOAK)] if SOAK.exists() else [table]
    assert (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8") == script.page(*tables)
    assert {result.measure for result in table.results} == set(script.PARTS)
