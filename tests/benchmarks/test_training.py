"""The benchmark of training: JoeyNMT beside ``fit``, and results without it."""

from __future__ import annotations

import importlib
import json
import math
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Namespace(steps=7, batch=2, length=5, seed=0, rounds=2, threads=1)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY)
    return importlib.import_module("benchmarks.training")


def put_in_place(monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, theirs: Any) -> None:
    """Replace both systems: ``fit`` takes 2 and then 4 seconds; ``theirs`` is the run of JoeyNMT, or None."""
    seconds = iter([2.0, 4.0])
    monkeypatch.setattr(benchmark, "by_fit", lambda *_: benchmark.Run(next(seconds), [8.0, 5.0], 1000))
    train_there = None if theirs is None else lambda train: theirs
    monkeypatch.setattr(benchmark, "own_process", lambda make, options: nullcontext(train_there))
    monkeypatch.setattr(benchmark.metadata, "version", lambda name: "0.0")


def test_joeynmt_is_compared_by_round_and_shown(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, benchmark, benchmark.Run(6.0, [8.3, 4.7], 1008))
    found = benchmark.compare_peer(SMALL)
    assert found["ratio"] == pytest.approx((6 / 2 + 6 / 4) / 2)
    # Seven steps less five of warm-up, of ten tokens each.
    assert found["tokens_a_second"] == pytest.approx({"fit": 20 / 3, "joeynmt": 20 / 6})
    assert found["seconds_by_round"] == {"fit": [2.0, 4.0], "joeynmt": [6.0, 6.0]}
    result = json.loads((REPOSITORY / "results" / "benchmarks" / "amd" / "training.json").read_text("utf-8"))
    others, shown = benchmark.ratios(result | {"joeynmt": None}), benchmark.table(result | {"joeynmt": None})
    result |= {"joeynmt": json.loads(json.dumps(found))}
    (new,) = (ratio for ratio in benchmark.ratios(result) if ratio not in others)
    assert (new.value, new.target, new.missed) == (found["ratio"], "1.2", False) and "JoeyNMT" in new.label
    lines = [line for line in benchmark.table(result).splitlines() if line not in shown]
    assert "joeynmt 0.0" in lines[0] and "2.25 times" in lines[0]


@pytest.mark.parametrize(
    ("losses", "weights", "problem"),
    [([8.0, 5.0], 1020, "numbers of weights"), ([8.5, 5.0], 1000, "train alike"), ([8.0, 5.5], 1000, "train alike")],
)
def test_a_peer_that_trains_another_model_is_refused(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, losses: list[float], weights: int, problem: str
) -> None:
    put_in_place(monkeypatch, benchmark, benchmark.Run(6.0, losses, weights))
    with pytest.raises(SystemExit, match=problem):
        benchmark.compare_peer(SMALL)


def test_without_joeynmt_there_is_nothing_to_compare(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, benchmark, None)
    assert benchmark.compare_peer(SMALL) is None


@pytest.mark.thorough
def test_joeynmt_itself(benchmark: ModuleType) -> None:
    pytest.importorskip("joeynmt", reason="see benchmarks/README.md")
    found = benchmark.compare_peer(SMALL)
    assert found["ratio"] > 0 and found["peer"].startswith("joeynmt 2")
    assert found["weights"]["joeynmt"] == found["weights"]["fit"] - benchmark.SYMBOLS - benchmark.SIZES["hidden_size"]
    first, last = found["losses"]["joeynmt"]
    assert first == pytest.approx(math.log(benchmark.SYMBOLS), rel=0.03) and last < first
