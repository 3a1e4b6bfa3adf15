"""A checkpoint with a cut, flipped or missing file is passed over, never loaded, and the file is named."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch, EncodedExample
from seqwise.errors import InputError
from seqwise.training.checkpoints import discard_incomplete, last_complete, load_model_file, publish, seal, verify
from seqwise.training.trainer import fit

TRAIN = [EncodedExample((i % 5, 1), (i % 3, 0)) for i in range(8)]


class Table(nn.Module):
    """The smallest model that can be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(5, 3)


def cross_entropy(model: Any, batch: Batch, values: dict[str, float]) -> Tensor:
    return nn.functional.cross_entropy(model.scores(batch.sources_BS).flatten(0, 1), batch.targets_BT.flatten())


def train(output: Path, **changes: Any) -> Table:
    torch.manual_seed(0)
    model = Table()
    settings: dict[str, Any] = {"steps": 4, "batch_size": 4, "learning_rate": 0.1, "seed": 0, "save_every": 2}
    fit(model, cross_entropy, TRAIN, output=output, **{**settings, **changes})
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder)
    return folder


@pytest.fixture
def checkpoints(trained: Path, tmp_path: Path) -> Path:
    """Two complete checkpoints, of the steps 2 and 4."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run" / "checkpoints"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def require_passed_over(checkpoints: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    assert last_complete(checkpoints) == checkpoints / "checkpoint-2"
    (record,) = caplog.records
    assert path.name in record.getMessage(), record.getMessage()


@pytest.mark.thorough
def test_cut_and_flipped_files_are_passed_over(
    checkpoints: Path, caplog: pytest.LogCaptureFixture, promise: Any
) -> None:
    caplog.set_level(logging.WARNING)
    draw, last = random.Random(0), checkpoints / "checkpoint-4"
    assert last_complete(checkpoints) == last
    contents = {path: path.read_bytes() for path in files(last)}
    assert len(contents) == 7
    for number in range(500):
        path = draw.choice(sorted(contents))
        damaged = bytearray(contents[path])
        if number < 200:
            del damaged[draw.randrange(len(damaged)) :]
        else:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        require_passed_over(checkpoints, path, caplog)
        path.write_bytes(contents[path])
    assert last_complete(checkpoints) == last
    promise(
        "a checkpoint file truncated (200) or with a flipped bit (300)",
        500,
        "detected, file named, previous checkpoint used",
    )


def test_a_checkpoint_that_lacks_a_file_is_passed_over(
    checkpoints: Path, caplog: pytest.LogCaptureFixture, promise: Any
) -> None:
    last = checkpoints / "checkpoint-4"
    found = [path for path in files(last) if path.name != "manifest.json"]
    for path in found:
        content = path.read_bytes()
        path.unlink()
        require_passed_over(checkpoints, path, caplog)
        path.write_bytes(content)
    assert last_complete(checkpoints) == last
    (last / "manifest.json").unlink()
    assert last_complete(checkpoints) == checkpoints / "checkpoint-2"
    promise("each file of a checkpoint deleted", len(found) + 1, "detected, previous checkpoint used")


def test_training_resumes_from_the_checkpoint_before_a_damaged_one(checkpoints: Path, trained: Path) -> None:
    (checkpoints / "checkpoint-4" / "optimizer.pt").write_bytes(b"")
    model = train(checkpoints.parent)
    assert torch.equal(model.scores.weight.cpu(), train(trained).scores.weight.cpu())
    assert last_complete(checkpoints) == checkpoints / "checkpoint-4"


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_sealed_checkpoint_without_its_state_is_refused(checkpoints: Path, name: str) -> None:
    """The Trainer would ignore the missing file silently, and train on with other numbers."""
    last = checkpoints / "checkpoint-2"
    shutil.rmtree(checkpoints / "checkpoint-4")
    (last / name).unlink()
    seal(last)
    with pytest.raises(InputError, match=f"{name}: the checkpoint lacks this file"):
        train(checkpoints.parent)


def test_the_state_of_another_step_is_refused(checkpoints: Path) -> None:
    shutil.copy(checkpoints / "checkpoint-4" / "trainer_state.json", checkpoints / "checkpoint-2")
    seal(checkpoints / "checkpoint-2")
    shutil.rmtree(checkpoints / "checkpoint-4")
    with pytest.raises(InputError, match=r"trainer_state\.json: the state is that of step 4"):
        train(checkpoints.parent)


@pytest.mark.parametrize("name", ["../secret", "inner/../../secret", "{root}/secret", "link", "folder/secret"])
def test_paths_that_leave_a_checkpoint_are_refused(checkpoints: Path, name: str, promise: Any) -> None:
    last = checkpoints / "checkpoint-4"
    outside = checkpoints / "outside"
    outside.mkdir()
    for secret in (outside / "secret", checkpoints / "secret"):
        secret.write_text("secret")
    (last / "link").symlink_to(outside / "secret")
    (last / "folder").symlink_to(outside)
    name = name.format(root=checkpoints)
    manifest = json.loads((last / "manifest.json").read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(b"secret").hexdigest(), "size": 6}
    (last / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"outside its folder|a link, which is not followed"):
        verify(last)
    assert last_complete(checkpoints) == checkpoints / "checkpoint-2"
    with pytest.raises(InputError, match="a link cannot be sealed"):
        seal(last)
    promise("manifests with links, ../ or absolute paths", 1, "refused")


def test_a_link_is_removed_and_its_target_is_kept(checkpoints: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "manifest.json").write_text("mine")
    for name in ("checkpoint-9", "unfinished"):
        (checkpoints / name).symlink_to(mine)
    discard_incomplete(checkpoints)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    (checkpoints / "new").mkdir()
    (checkpoints / "new" / "weights").write_text("w")
    (checkpoints / "checkpoint-6").symlink_to(mine)
    publish(checkpoints / "new", checkpoints / "checkpoint-6")
    assert last_complete(checkpoints) == checkpoints / "checkpoint-6"
    assert [path.name for path in mine.iterdir()] == ["manifest.json"]


def test_weights_that_were_never_sealed_are_not_loaded(checkpoints: Path) -> None:
    last = checkpoints / "checkpoint-4"
    shutil.copy(last / "model.safetensors", last / "other.safetensors")
    with pytest.raises(InputError, match=r"other\.safetensors: the file is not in manifest\.json"):
        load_model_file(last / "other.safetensors")
