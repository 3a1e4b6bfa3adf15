"""Benchmarks on a device: each computes there, and its clock waits for the device."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import accelerator
from benchmarks import __main__ as benchmarks
from benchmarks import command

SMALL: dict[str, list[str]] = {
    "relaxed_beam": [],
    "beam_decoding": ["--shapes", "tiny Marian", "tiny T5"],
    "pseudo_likelihood": ["--texts", "2", "--shapes", "4 layers of 256", "--long", "12", "--dtypes", "float32"],
    "self_normalization": ["--positions", "16", "--vocabulary", "50", "--hidden", "8"],
    "sampler": ["--chains", "3", "--literal", "1", "--length", "4", "--training-steps", "2", "--hidden", "8"],
    "long_outputs": ["--steps", "4", "6", "--hidden", "16", "--layers", "1"],
    "streaming": ["--streams", "2", "--steps", "6", "--hidden", "8", "--labels", "5"],
}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Devices that were waited for."""
    found: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: found.append(torch.device(device)))
    return found


def test_an_output_that_cannot_be_made_is_known_before_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    parser = command.make_parser("what", None, rounds=1, seed="nothing")
    with pytest.raises(SystemExit):
        command.run(parser, None, None, ["--output", str(tmp_path / "file" / "x.json")])  # type: ignore[arg-type]
    assert "file: cannot be made (File exists)" in capsys.readouterr().err.replace("\n", " ")


def test_every_benchmark_of_a_device_is_tried() -> None:
    assert set(SMALL) == set(benchmarks.ON_A_DEVICE)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.thorough) for name in SMALL])
def test_work_is_done_on_the_device(
    name: str, waits: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark: Any = importlib.import_module(f"benchmarks.{name}")
    for shared in ("products_a_second", "peak_bytes", "saved_bytes"):  # of a real device only
        if hasattr(benchmark, shared):
            monkeypatch.setattr(benchmark, shared, lambda *_, **__: 1e9)
    if name == "relaxed_beam":
        size = benchmark.Size(5000, 8, 2, 2, 2, {"local": 1.0})
        monkeypatch.setattr(benchmark, "GPU_SIZES", (size,))
    if name == "sampler":
        monkeypatch.setattr(benchmark, "phonemes", lambda length: torch.randint(39, (9, length)))
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # in which the pretended device makes no tensors
    path = tmp_path / "found.json"
    with accelerator.device() as copies:
        benchmark.main([*SMALL[name], "--rounds", "1", "--device", accelerator.NAME, "--output", str(path)])
        assert copies
    assert waits and {device.type for device in waits} == {accelerator.NAME}
    assert benchmark.table(json.loads(path.read_text("utf-8")))
