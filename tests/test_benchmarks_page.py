"""All benchmarks by one command, and the page of what they found."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.__main__")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_every_benchmark_is_run_and_has_its_question(benchmarks: ModuleType) -> None:
    shared = {"__init__", "__main__", "command", "timing"}
    assert set(benchmarks.BENCHMARKS) == {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - shared
    listed = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name in benchmarks.BENCHMARKS:
        said = inspect.getdoc(importlib.import_module(f"benchmarks.{name}"))
        assert said is not None and said.partition("\n\n")[0].endswith("?"), name
        assert f"| `{name}` |" in listed


def test_the_page_is_that_of_the_committed_results(benchmarks: ModuleType, tmp_path: Path) -> None:
    if not benchmarks.PAGE.exists():
        assert not benchmarks.RESULTS.exists()
        pytest.skip("no benchmark has been committed")
    benchmarks.write_page(benchmarks.RESULTS, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text("utf-8") == benchmarks.PAGE.read_text("utf-8"), (
        "run `python -m benchmarks page`"
    )


def test_what_was_asked_for_runs_in_turn_and_what_is_quick_is_not_kept(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[list[str]] = []

    def measured(arguments: list[str]) -> None:
        called.append(arguments)
        path = Path(arguments[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ratio": 2.5}), "utf-8")

    def fake(name: str) -> Any:
        module = SimpleNamespace(main=measured, table=lambda result: f"{result['ratio']} times\n")
        module.__doc__ = f"How fast is {name}?\n\nLike this.\n"
        return module

    monkeypatch.setattr(benchmarks.importlib, "import_module", lambda name: fake(name.removeprefix("benchmarks.")))
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(benchmarks, "PAGE", tmp_path / "page.md")
    benchmarks.main(["run", "--quick", "sampler"])
    assert called[0][:-2] == benchmarks.BENCHMARKS["sampler"][1]
    assert not (tmp_path / "results").exists() and not (tmp_path / "page.md").exists()
    benchmarks.main(["run", "sampler", "relaxed_beam"])
    assert [arguments[:-2] for arguments in called[1:]] == [
        benchmarks.BENCHMARKS[name][0] for name in ("sampler", "relaxed_beam")
    ]
    page = (tmp_path / "page.md").read_text("utf-8")
    assert page.index("## How fast is relaxed_beam?") < page.index("## How fast is sampler?")
    assert "Like this." in page and page.count("```text\n2.5 times\n```") == 2


def test_what_is_no_benchmark_is_refused(benchmarks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        benchmarks.main(["run", "sampler", "walker"])
    assert error.value.code == 2
    assert "walker is no benchmark; there are relaxed_beam" in capsys.readouterr().err
