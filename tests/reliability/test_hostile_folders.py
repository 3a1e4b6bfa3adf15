"""Folders from strangers: nothing in them is ever executed, and what cannot be read as data is refused in one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from reliability.test_damaged_checkpoints import files, train
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.runs.loading import new_run, save_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.settings import train_settings
from seqwise.training.checkpoints import seal


class Trap:
    """What a pickle runs when it is read."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.sprung),)


def as_archive(trap: Trap) -> bytes:
    """As torch writes it."""
    stream = io.BytesIO()
    torch.save({"state": trap}, stream)
    return stream.getvalue()


PICKLES: dict[str, Callable[[Trap], bytes]] = {
    "pickle": lambda trap: pickle.dumps(trap, protocol=2),
    "archive": as_archive,
}


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    found = Trap(tmp_path / "sprung")
    pickle.loads(pickle.dumps(found))  # it does work
    found.sprung.rmdir()
    yield found
    assert not found.sprung.exists(), "it was executed"


@pytest.mark.parametrize("how", PICKLES)
def test_pickles_in_a_checkpoint_are_never_executed(how: str, trap: Trap, tmp_path: Path, promise: Any) -> None:
    train(tmp_path / "run", steps=2)
    last = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    names = [path.name for path in files(last) if path.name != "manifest.json"]
    shutil.copytree(last, tmp_path / "good")
    for name in names:
        (last / name).write_bytes(PICKLES[how](trap))
        seal(last)
        with pytest.raises(InputError) as error:
            train(tmp_path / "run", steps=2, save_every=1) if name not in STATES else continued(tmp_path / "run", last)
        assert name in str(error.value) or error.value.path == last, (name, str(error.value))
        shutil.rmtree(last)
        shutil.copytree(tmp_path / "good", last)
    promise(f"a malicious {how} in place of each file of a checkpoint", len(names), "refused, never executed")


STATES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
"""Files that are only read if training continues."""


def continued(output: Path, last: Path) -> None:
    """A checkpoint of step 2 of 4, as a stranger may make one: its settings and its schedule say so."""
    settings = json.loads((last / "settings.json").read_text())
    (last / "settings.json").write_text(json.dumps({**settings, "steps": 4}))
    seal(last)
    train(output, steps=4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin", "optimizer.bin", "adapter_model.bin"])
def test_pickles_beside_a_checkpoint_s_files_are_never_executed(name: str, trap: Trap, tmp_path: Path) -> None:
    train(tmp_path / "run", steps=2)
    last = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    (last / name).write_bytes(as_archive(trap))
    seal(last)
    continued(tmp_path / "run", last)


def make_run(folder: Path) -> Path:
    settings = train_settings(task="tag", embedding_size=4, hidden_size=4, minimum_count=1, objective="cross-entropy")
    save_run(new_run([Example(("a", "b"), ("A", "B"))], settings), folder)
    return folder


def make_masked(folder: Path) -> Path:
    settings = masked_settings(model="lstm", hidden_size=4, embedding_size=4, minimum_count=1)
    save_run(new_masked_run([Example((), ("a", "b"))], settings), folder)
    return folder


RUNS: dict[str, tuple[Callable[[Path], Path], list[list[str]]]] = {
    "run": (make_run, [["predict", "{folder}", "a b"]]),
    "masked-model run": (make_masked, [["score", "{folder}", "{text}"], ["sample", "{folder}", "a _", "--sweeps=2"]]),
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("how", PICKLES)
def test_pickles_in_a_run_are_never_executed(
    kind: str, how: str, trap: Trap, tmp_path: Path, seqwise: Command, promise: Any
) -> None:
    make, commands = RUNS[kind]
    folder, read, refused = make(tmp_path / "run"), 0, 0
    (tmp_path / "text").write_text("a b\n")
    fill = {"folder": folder, "text": tmp_path / "text"}
    for line in commands:
        assert seqwise(*(part.format(**fill) for part in line)).code == 0
    for path in files(folder):
        content, manifest = path.read_bytes(), (folder / "model" / "manifest.json").read_bytes()
        path.write_bytes(PICKLES[how](trap))
        if path.name != "manifest.json":
            seal(folder / "model")
        for line in commands:
            ended = seqwise(*(part.format(**fill) for part in line))
            read += ended.code != 0
            refused += ended.code != 0 and str(folder) in ended.complaint
        path.write_bytes(content)
        (folder / "model" / "manifest.json").write_bytes(manifest)
    assert refused == read >= 4 * len(commands)
    promise(f"a malicious {how} in place of each file of a {kind}", refused, "refused, never executed")


def spring(sprung: Path) -> str:
    return f"import os\nos.mkdir({str(sprung)!r})\n"


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
def test_code_in_a_model_folder_is_never_executed(
    place: str, trap: Trap, tmp_path: Path, seqwise: Command, promise: Any
) -> None:
    from pretrained import bert, saved, word_tokenizer

    folder = saved(tmp_path / "bert", bert(), word_tokenizer())
    (tmp_path / "text").write_text("the dog\n")
    (tmp_path / "pairs").write_text("the\tdog\n")
    for name in ("modeling", "tokenization", "configuration", "__init__"):
        (folder / f"{name}.py").write_text(spring(trap.sprung))
    content = json.loads((folder / place).read_text())
    kinds = {"AutoConfig": "configuration.C", "AutoTokenizer": ["tokenization.T", "tokenization.T"]}
    kinds |= {f"AutoModelFor{kind}": "modeling.M" for kind in ("MaskedLM", "Seq2SeqLM", "CausalLM")}
    (folder / place).write_text(json.dumps({**content, "auto_map": kinds}))
    commands = [
        ["score", folder, tmp_path / "text"],
        ["sample", folder, "the [MASK]", "--sweeps=2"],
        ["train", f"--model={folder}", f"--train={tmp_path / 'pairs'}", f"--output={tmp_path / 'out'}"],
    ]
    for line in commands:
        complaint = seqwise(*line).complaint
        assert "its own code (auto_map), which is never run" in complaint, complaint
    promise(f"a model folder whose {place} refers to its own code", len(commands), "refused, never executed")
