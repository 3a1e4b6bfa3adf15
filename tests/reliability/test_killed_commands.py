"""A command that is killed at any write and called again leaves the files of an undisturbed one."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reliability.faults import Fault, command, run
from reproductions.report import load_table
from run_folders import contents
from seqwise.data.readers import Example
from seqwise.runs.loading import save_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.masked_model_training import new_masked_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are injected by means of Linux")

LETTERS = "abcd"


@dataclass(frozen=True)
class Work:
    """A command to be killed.

    Args:
        function: runs it in the child.
        arguments: all but the output.
        output: the name of its output in the watched folder.
        left: what has to be the same in the end, of the watched folder.
    """

    function: Callable[..., int]
    arguments: list[object]
    output: str
    left: Callable[[Path], Any]

    def __call__(self, root: Path, fault: Fault | None = None) -> Any:
        return run(self.function, *self.arguments, f"--output={root / self.output}", root=root, fault=fault)


def weights(output: str) -> Callable[[Path], tuple[bytes, list[str]]]:
    """The weights, and which checkpoints are kept."""

    def left(root: Path) -> tuple[bytes, list[str]]:
        kept = sorted(path.name for path in (root / output / "checkpoints").iterdir())
        return (root / output / "model" / "model.safetensors").read_bytes(), kept

    return left


def numbers(root: Path) -> Any:
    """Of a reproduction, its numbers but for those of the clock, and its weights."""
    table = load_table(root / "runs" / "label-bias-toy" / "results" / "label-bias-toy.json")
    found = [(one.system, one.measure, one.value) for one in table.results if one.measure != "training seconds"]
    return found, {path.parent.parent.name: path.read_bytes() for path in root.rglob("model/model.safetensors")}


def sequences(path: Path, count: int) -> Path:
    draw = random.Random(0)
    path.write_text("".join(" ".join(draw.choices(LETTERS, k=1 + number % 4)) + "\n" for number in range(count)))
    return path


def masked_run(folder: Path) -> Path:
    settings = masked_settings(model="lstm", hidden_size=4, embedding_size=4, minimum_count=1)
    made = new_masked_run([Example((), tuple(LETTERS))], settings)
    save_run(replace(made, codec=replace(made.codec, lengths={3: 1})), folder / "masked")
    return folder / "masked"


def score_by_fours(*arguments: object) -> int:
    from seqwise.runs import scoring

    scoring.BLOCK = 4
    return command(*arguments)


def reproduce_small(*arguments: object) -> int:
    """The reproduction of the toy with few sequences, all in this process."""
    from reproductions.beyond import label_bias_toy as reproduction
    from reproductions.command import app
    from reproductions.systems import Data
    from seqwise.data.synthetic import label_bias_toy

    systems = reproduction.systems

    def few(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        return Data(*(label_bias_toy(count, length=4, flip=0.1, generator=generator) for count in (60, 8)))

    def small(seed: int) -> Any:
        sizes = {"batch_size": 20, "hidden_size": 8, "embedding_size": 4, "save_every": 1}
        return [replace(one, settings=one.settings.with_changes(**sizes)) for one in systems(seed)]

    reproduction.load_data, reproduction.systems = few, small
    return command(*arguments, application=app)


def language_model(*arguments: object) -> int:
    """The commands of log-linear language models."""
    from reproductions.andreas_klein_2015.command import app

    return command(*arguments, application=app)


def works(folder: Path) -> dict[str, Work]:
    text = sequences(folder / "text.txt", 18)
    chains = ["--sweeps=6", "--save-every=2", "--every=2", "--chains=2"]
    sizes = ["--hidden-size=4", "--embedding-size=4", "--minimum-count=1"]
    masked = ["masked-model", "train", text, "--model=lstm", "--epochs=2", "--save-every=3", "--batch-size=6", *sizes]
    return {
        "seqwise sample": Work(command, ["sample", masked_run(folder), "a _ _", *chains], "samples", contents),
        "seqwise score": Work(score_by_fours, ["score", folder / "masked", text], "scores.jsonl", contents),
        "seqwise masked-model train": Work(command, masked, "masked", weights("masked")),
        "andreas_klein_2015 train": Work(
            language_model, ["train", text, "--minimum-count=1", "--save-every=2", "--batch-size=8"],
            "lm", weights("lm"),
        ),
        "python -m reproductions": Work(reproduce_small, ["label-bias-toy", "--workers=0"], "runs", numbers),
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return tmp_path_factory.mktemp("works")


def kill_and_resume(work: Work, folder: Path, count: int) -> tuple[int, int]:
    """Kill it at so many of its events, each in a new folder; return how many ended the same, and of how many."""
    whole = work(folder / "whole")
    assert whole.code == 0, whole.err
    expected, same = work.left(folder / "whole"), 0
    places = sorted({len(whole.events) * number // count for number in range(count)})
    for number, place in enumerate(places):
        root = folder / f"killed-{place}"
        killed = work(root, Fault(whole.events[place], ("kill", "power")[number % 2]))
        assert killed.code == -9, (whole.events[place], killed)
        again = work(root)
        assert again.code == 0, (whole.events[place], again.err)
        same += work.left(root) == expected
    return same, len(places)


FEW = {"seqwise sample": 9, "seqwise score": 9, "python -m reproductions": 3}
MANY = {
    "seqwise sample": 30,
    "seqwise score": 30,
    "python -m reproductions": 20,
    "seqwise masked-model train": 20,
    "andreas_klein_2015 train": 20,
}
KILLS = [pytest.param(*each, marks=pytest.mark.thorough) for each in FEW.items()]
KILLS += [pytest.param(*each, marks=pytest.mark.slow) for each in MANY.items()]


@pytest.mark.parametrize(("name", "kills"), KILLS)
def test_a_killed_command_is_resumed_to_the_same_files(
    name: str, kills: int, folder: Path, tmp_path: Path, promise: Any
) -> None:
    same, of = kill_and_resume(works(folder)[name], tmp_path, kills)
    assert same == of
    promise(f"{name} killed at a write", same, "resumed by the same command to the same files")


def test_scores_kept_in_a_file_are_those_that_are_printed(folder: Path, tmp_path: Path, seqwise: Any) -> None:
    work = works(folder)["seqwise score"]
    printed = seqwise(*work.arguments)
    kept = seqwise(*work.arguments, "--output", tmp_path / "scores.jsonl")
    assert (tmp_path / "scores.jsonl").read_text() == printed.out and len(printed.records) == 18
    assert kept.out == "" and kept.err == printed.err


def test_a_file_of_scores_that_was_begun_otherwise_is_refused(folder: Path, tmp_path: Path, seqwise: Any) -> None:
    work, output = works(folder)["seqwise score"], tmp_path / "scores.jsonl"
    partial = tmp_path / "scores.jsonl.partial"
    partial.mkdir()
    for found, said in (
        (json.dumps({"model": "other"}) + "\n", "started with another model"),
        ("{}\n", "started with another model"),
        ("no JSON\n", "started with something else"),
        ("[]\n", "started with something else"),
    ):
        (partial / "claim.json").write_text(found)
        complaint = seqwise(*work.arguments, "--output", output).complaint
        assert said in complaint and complaint.startswith(str(partial)) and not output.exists()
        assert (partial / "claim.json").read_text() == found
