"""Devices of commands: each runs on an accelerator with the results of the CPU; missing and full devices."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import accelerator
from command_line import Command, Ended, exit_code, run_main
from seqwise import runs
from seqwise.training.processes import DEVICE, ONE_GPU, local_device

COMMANDS: dict[str, list[str]] = {
    "predict": ["{tagger}", "the big dog runs", "--json"],
    "evaluate": ["{tagger}", "{data}"],
    "stream": ["{tagger}", "{tokens}"],
    "diagnose": ["{tagger}", "{data}", "--json"],
    "report": ["{tagger}", "--file", "{data}", "--output", "{page}"],
    "score": ["{masked}", "{lines}"],
    "sample": ["{masked}", "--length=3", "--sweeps=4", "--chains=2"],
}

MASKED = ["--model=lstm", "--hidden-size=8", "--embedding-size=8", "--epochs=2"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("devices")
    names = ("tagger", "masked", "data", "tokens", "lines", "page")
    files = {name: folder / name for name in names} | {"page": folder / "report.html"}
    sentences = ["the dog runs", "a big cat sees the dog", "the cat sees a dog", "big dog runs", "a cat runs"] * 3
    files["lines"].write_text("\n".join(sentences) + "\n")
    files["tokens"].write_text("the\ndog\nruns\n\n")
    labels = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "big": "ADJ", "runs": "VERB", "sees": "VERB"}
    columns = ("".join(f"{word}\t{labels[word]}\n" for word in line.split()) for line in sentences)
    files["data"].write_text("\n".join(columns))
    sizes = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3", "--label-embedding-size=4"]
    tagger = ["--objective=beam-crf", "--encoder=left-to-right", "--epochs=4", "--warm-start-epochs=4"]
    run_main("train", "--train", files["data"], "--output", files["tagger"], *sizes, *tagger)
    run_main("masked-model", "train", files["lines"], *MASKED, "--output", files["masked"])
    return files


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_the_accelerator(
    name: str, seqwise: Command, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [argument.format(**files) for argument in COMMANDS[name]]
    expected = seqwise(name, *arguments, "--device", "cpu")
    written = files["page"].read_text() if name == "report" else ""
    with accelerator.device(float64=False):
        found = Ended(exit_code(name, *arguments), *capsys.readouterr())
    assert found.code == expected.code == 0, (found.err, expected.err)
    assert expected.err.splitlines()[0] == "running on cpu"
    assert found.err.splitlines()[0].startswith(f"running on {accelerator.NAME}")
    assert _rounded(found.out) == _rounded(expected.out)
    if name == "report":
        assert len(files["page"].read_text()) == pytest.approx(len(written), rel=0.01)


@pytest.mark.thorough
def test_chains_go_on_where_the_model_is(seqwise: Command, files: dict[str, Path], tmp_path: Path) -> None:
    sample = ["sample", files["masked"], "--length=3", "--chains=2", "--output", tmp_path / "samples"]
    with accelerator.device(float64=False):
        begun, longer = (seqwise(*sample, f"--sweeps={sweeps}") for sweeps in (4, 8))
    assert begun.code == longer.code == 0, (begun.err, longer.err)


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]) + 0.0:.2f}", text)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gpu", "unknown device 'gpu'; choose auto, cpu"),
        ("mps", "this machine has no device 'mps'"),
        pytest.param(
            "cuda:3",
            "this machine has no device 'cuda:3'; choose auto, cpu or a GPU that nvidia-smi -L lists",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs"),
        ),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_is_not_there(
    command: str, name: str, problem: str, seqwise: Command, files: dict[str, Path]
) -> None:
    arguments = [argument.format(**files) for argument in COMMANDS[command]]
    assert problem in seqwise(command, *arguments, "--device", name).complaint
    assert not {DEVICE, ONE_GPU, "CUDA_VISIBLE_DEVICES"} & {*os.environ}


@pytest.mark.parametrize("command", ["train", "masked-model", "tune"])
def test_training_says_where_it_runs(
    command: str, seqwise: Command, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "tune":
        pytest.importorskip("optuna")
    settings, run = tmp_path / "settings.yaml", tmp_path / "run"
    settings.write_text(f"train: {files['data']}\ndev: {files['data']}\nhidden_size: 4\nepochs: 1\n")
    arguments: dict[str, list[object]] = {
        "train": ["--config", settings],
        "masked-model": ["train", files["lines"], *MASKED],
        "tune": [settings, "--trials=1"],
    }
    refused = seqwise(command, *arguments[command], "--output", run, "--device", "mps")
    assert refused.complaint.startswith("this machine has no device 'mps'")
    assert not run.exists()
    assert exit_code(command, *arguments[command], "--output", run) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"running on {local_device()}"


def test_one_of_several_gpus(seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer takes the first that is visible."""
    seen: list[Any] = []
    monkeypatch.setattr("seqwise.cli.flags.local_device", lambda: seen.append(dict(os.environ)) or torch.device("cpu"))
    for visible, chosen in ((None, "2"), ("4,5,6", "6")):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        seqwise("predict", "nowhere", "text", "--device", "cuda:2")
        assert (seen[-1]["CUDA_VISIBLE_DEVICES"], seen[-1][DEVICE]) == (chosen, "cuda")
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_a_full_device_says_what_to_make_smaller(
    seqwise: Command, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(runs, "predict", full)
    refused = seqwise("predict", files["tagger"], "the dog")
    assert refused.complaint == "the device is out of memory; give a smaller --beam-size"
