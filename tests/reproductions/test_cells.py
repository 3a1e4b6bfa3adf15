"""Cells are computed once, and again when what they depend on changes; seeds come one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from reproducing import no_progress, setup
from reproductions import workers
from reproductions.cells import (
    CellJob,
    claim_folder,
    lock_of,
    make_cell,
    measure_by_seed,
    read_cell,
    read_or_make,
    run_cells,
    write_cell,
)
from seqwise.training.lock import sole_writer


def test_a_cell_is_made_again_with_the_one_that_it_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, made = {"first": "1", "second": "1"}, list[str]()

    def make(name: str) -> dict[str, Any]:
        made.append(name)
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"left by {told[name]}").touch()
        return {"number": len(made)}

    def second_fingerprint() -> str:  # which knows what the first one left
        return told["second"] + (tmp_path / "first" / "fingerprint").read_text()

    first = CellJob(
        "first", tmp_path / "first" / "cell.json", lambda: told["first"], lambda report: make("first"),
        folder=tmp_path / "first",
    )  # fmt: skip
    second = CellJob(
        "second", tmp_path / "second.json", second_fingerprint, lambda report: make("second"), after="first"
    )

    def run() -> list[int]:
        return [record["number"] for record in run_cells([first, second], progress=no_progress)]

    assert run() == [1, 2] and made == ["first", "second"]
    assert run() == [1, 2] and len(made) == 2
    told["second"] = "2"
    assert run() == [1, 3] and made[2:] == ["second"]
    told["first"] = "2"
    assert run() == [4, 5] and made[3:] == ["first", "second"]
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["cell.json", "fingerprint", "left by 2"]
    assert (tmp_path / "second" / "left by 1").exists(), "no folder of its own, so nothing is removed"


def test_a_cell_that_another_command_makes_is_waited_for_and_not_made_twice(tmp_path: Path) -> None:
    made = list[str]()

    def make(report: workers.Report) -> dict[str, Any]:
        made.append("a cell")
        return {"number": 1}

    cell = CellJob("cell", tmp_path / "cell" / "cell.json", lambda: "told", make, folder=tmp_path / "cell")
    with ThreadPoolExecutor() as others:
        with sole_writer(lock_of(cell)):  # as the other command holds it
            waiting = others.submit(make_cell, cell, lambda *_: None)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            claim_folder(tmp_path / "cell", "told")
            write_cell(cell.path, "told", {"number": 7})
        waiting.result(timeout=10)
    assert made == [] and read_cell(cell.path, "told") == {"fingerprint": "told", "number": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]
    make_cell(cell, lambda *_: None, before=cell.path.stat().st_mtime_ns)  # its record was found outdated
    assert made == ["a cell"]


def test_what_is_measured_in_place_is_measured_seed_by_seed_on_one_thread(tmp_path: Path) -> None:
    order = []

    def measure(name: str, seed: int, report: workers.Report) -> tuple[str, int]:
        order.append((name, seed, torch.get_num_threads()))
        report(1, 2, "half")
        return name, seed

    found = measure_by_seed(["a", "b"], measure, setup(tmp_path, 3, 4))
    assert found == {"a": [("a", 3), ("a", 4)], "b": [("b", 3), ("b", 4)]}
    assert order == [("a", 3, 1), ("b", 3, 1), ("a", 4, 1), ("b", 4, 1)]


def test_a_record_is_made_once_for_each_fingerprint(tmp_path: Path) -> None:
    path, made = tmp_path / "new" / "cell.json", list[str]()

    def number(fingerprint: str) -> int:
        record = read_or_make(path, fingerprint, lambda: {"number": made.append(fingerprint) or len(made)})
        return int(record["number"])

    assert [number(each) for each in ("a", "a", "b", "a")] == [1, 1, 2, 3]
