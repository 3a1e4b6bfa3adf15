"""Learning rates of reproductions: chosen on development data alone, stage after stage, as often for each system."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproductions import tuning
from reproductions.systems import Cell, Data, System
from reproductions.tuning import Trial, tune, with_chosen_rate, with_rates
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import sign
from seqwise.runs import train_settings

START = train_settings(task="tag", objective="cross-entropy", learning_rate=0.1)
SEARCH = train_settings(task="tag", objective="relaxed-beam", learning_rate=0.01)
SYSTEMS = [System("start", "seed-0/start", START), System("search", "seed-0/search", SEARCH, "seed-0/start")]
BEST = {"seed-0/start": 0.04, "seed-0/search": 0.01}
SIGNATURE = sign("a cell", seeds=[0], data="")


class Outputs(dict[str, Any]):
    """Of the test data: whoever looks at them fails."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("test data were looked at")

    values = items = __iter__ = None  # type: ignore[assignment]


def quality(outputs: Sequence[tuple[str, ...]]) -> Sums:
    return Counts([len(outputs[0])])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[System]]:
    made: list[list[System]] = []

    def run_systems(systems: Sequence[System], *_: Any, **__: Any) -> dict[str, Cell]:
        made.append(list(systems))
        cells = {}
        for system in systems:
            best = BEST[system.folder.removeprefix("trials/").rpartition("/")[0]]
            good = 9 if system.settings.learning_rate == pytest.approx(best) else 5
            on_dev = {"greedy": [("x",) * 4], "beam": [("x",) * good]}
            cells[system.folder] = Cell(system.name, Path(), Outputs(), on_dev, 1.0, 1.0, 0.0, SIGNATURE)
        return cells

    monkeypatch.setattr(tuning, "run_systems", run_systems)
    return made


def test_a_stage_is_tuned_from_the_best_trial_of_the_one_before(calls: list[list[System]], tmp_path: Path) -> None:
    options: dict[str, Any] = {"decoders": ["greedy", "beam"], "progress": None, "record": tmp_path / "trials.json"}
    chosen = tune(SYSTEMS, lambda: Data([], []), quality, tmp_path, rates=(1.0, 0.4), **options)
    assert {name: trial.factor for name, trial in chosen.items()} == {"seed-0/start": 0.4, "seed-0/search": 1.0}
    assert chosen["seed-0/search"].system.folder == "trials/seed-0/search/1"
    first, second = calls
    assert [system.folder for system in first] == ["trials/seed-0/start/1", "trials/seed-0/start/2"]
    assert second[:2] == first and len(second) == 4
    assert {system.starts_from for system in second[2:]} == {"trials/seed-0/start/2"}
    assert [system.settings.learning_rate for system in second[2:]] == pytest.approx([0.01, 0.004])
    record = json.loads((tmp_path / "trials.json").read_text())
    assert record["seed-0/start"]["development"] == [5, 9]
    assert record["seed-0/start"]["learning_rates"][1] == record["seed-0/start"]["chosen"] == pytest.approx(0.04)


def test_chosen_rates_are_those_of_every_seed() -> None:
    systems = {"start": SYSTEMS[0], "search": SYSTEMS[1]}
    changed = with_rates(systems, {"search": 0.5})
    assert changed["start"] == SYSTEMS[0]
    assert changed["search"].settings == SEARCH.with_changes(learning_rate=0.005)


@pytest.mark.parametrize(("part", "place"), [(1.0, "highest"), (0.4, ""), (0.15, "lowest")])
def test_a_cell_knows_the_rate_that_was_chosen_and_whether_it_is_an_end_of_the_grid(part: float, place: str) -> None:
    cell = Cell("search", Path(), Outputs(), {}, 1.0, 1.0, 0.0, SIGNATURE)
    chosen = with_chosen_rate(cell, Trial(SYSTEMS[1], part), (1.0, 0.4, 0.15))
    assert (chosen.learning_rate, chosen.place_of_rate) == (0.01, place)
