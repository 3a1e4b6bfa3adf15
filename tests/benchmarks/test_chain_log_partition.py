"""The benchmark of log Z of linear chains: its numbers, its check of the peer, and runs without the peer."""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ["--steps", "1", "3", "--labels", "2", "4", "--batch", "3", "--rounds", "3"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY)
    return importlib.import_module("benchmarks.chain_log_partition")


class EveryOutput:
    """In the place of pytorch-crf's CRF: log Z by a list of all outputs, it or its slope off by such a share."""

    error = slope_error = 0.0
    transitions: Tensor
    start_transitions: Tensor
    end_transitions: Tensor

    def __init__(self, num_tags: int) -> None:
        self.num_tags = num_tags

    def _compute_normalizer(self, scores_TBK: Tensor, mask_TB: Tensor) -> Tensor:
        assert scores_TBK.shape[:2] == mask_TB.shape and mask_TB.all()
        totals = []
        for labels in itertools.product(range(self.num_tags), repeat=len(scores_TBK)):
            total_B = sum(scores_TBK[step, :, label] for step, label in enumerate(labels))
            total_B = total_B + self.start_transitions[labels[0]] + self.end_transitions[labels[-1]]
            totals.append(total_B + sum(self.transitions[pair] for pair in itertools.pairwise(labels)))
        log_partition_B = torch.stack(totals).logsumexp(0) * (1 + self.error)
        return log_partition_B + self.slope_error * (log_partition_B - log_partition_B.detach())


def put_in_place(monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, **errors: float) -> None:
    crf = type("Off", (EveryOutput,), errors)
    monkeypatch.setitem(sys.modules, "torchcrf", SimpleNamespace(CRF=crf))  # type: ignore[arg-type]
    monkeypatch.setattr(benchmark.metadata, "version", lambda name: "0.0")


def run(benchmark: ModuleType, output: Path) -> dict[str, Any]:
    benchmark.main([*SMALL, "--output", str(output)])
    found: dict[str, Any] = json.loads(output.read_text())
    assert [(row["steps"], row["labels"]) for row in found["rows"]] == [(1, 2), (1, 4), (3, 2), (3, 4)]
    assert found["signature"]["method"].endswith("steps [1, 3], labels [2, 4], batch 3, spread 1.0")
    return found


def test_ratios_are_medians_by_round_of_what_was_compared(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(monkeypatch, benchmark)
    found = run(benchmark, tmp_path / "new" / "result.json")
    assert found["peer"] == "pytorch-crf 0.0"
    for row in found["rows"]:
        assert 0 <= row["largest_difference"] < 1e-5, "float32 and float32"
        for what in ("log Z", "with gradients"):
            ours, theirs = (row[what]["seconds_by_round"][name] for name in ("seqwise", "pytorch-crf"))
            assert len(ours) == len(theirs) == 3 and min(*ours, *theirs) > 0
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            assert row[what]["ratio"] == pytest.approx(ratio)
            assert row[what]["milliseconds"]["seqwise"] == pytest.approx(1000 * sorted(ours)[1])
    said = capsys.readouterr().out.splitlines()
    last = found["rows"][-1]["with gradients"]
    cells = (last["milliseconds"]["seqwise"], last["milliseconds"]["pytorch-crf"], last["ratio"])
    assert said[-3].split()[-3:] == [f"{cells[0]:.2f}", f"{cells[1]:.2f}", f"{cells[2]:.1f}"]
    assert said[-1] == found["signature_line"]


@pytest.mark.parametrize("error", ["error", "slope_error"])
def test_a_peer_with_other_results_is_not_timed(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str
) -> None:
    put_in_place(monkeypatch, benchmark, **{error: 0.25})
    with pytest.raises(SystemExit, match=r"seqwise and pytorch-crf differ by 0\.2:"):
        benchmark.main([*SMALL, "--output", str(tmp_path / "result.json")])
    assert not (tmp_path / "result.json").exists()


def test_gradients_are_compared_too(benchmark: ModuleType) -> None:
    """Two results with the same values; the gradients by the last labels differ by a quarter."""
    problem = benchmark.random_problem(2, 3, 4, spread=1.0, generator=torch.Generator().manual_seed(1))
    right = benchmark.with_gradients(benchmark.of_seqwise(problem), problem)
    assert [tensor.shape for tensor in right] == [(2,), (2, 3, 4), (4, 4), (4,), (4,)]
    wrong = (*right[:-1], 1.25 * right[-1])
    assert benchmark.largest_difference([wrong, right]) == pytest.approx(0.25)
    assert benchmark.largest_difference([right]) is None


def test_systems_take_turns_and_another_begins_each_time(benchmark: ModuleType) -> None:
    called: list[str] = []
    calls = {name: lambda name=name: called.append(name) for name in ("a", "b")}
    found = benchmark.time_in_turn(calls, 3)
    assert called == [*"aabb", *"bbaa", *"aabb"], "each timed call follows an untimed one of its own kind"
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_without_the_peer_seqwise_is_timed_alone(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchcrf", None)
    found = run(benchmark, tmp_path / "result.json")
    assert found["peer"] is None
    assert all(row["with gradients"]["ratio"] is None and row["largest_difference"] is None for row in found["rows"])
    assert "pytorch-crf is not installed, so seqwise was timed alone" in capsys.readouterr().out


def test_the_peer_itself(benchmark: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("torchcrf", reason="pip install pytorch-crf==0.7.2")
    found = run(benchmark, tmp_path / "result.json")
    assert found["peer"].startswith("pytorch-crf 0") and all(row["log Z"]["ratio"] > 0 for row in found["rows"])
