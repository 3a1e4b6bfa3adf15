"""Checkpoints count only when complete and undamaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from seqwise.errors import InputError
from seqwise.training.checkpoints import discard_incomplete, last_complete, load_model_file, prune, seal, verify


def make(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "inner").mkdir(parents=True)
    (checkpoint / "weights").write_bytes(bytes([step % 256]) * 100)
    (checkpoint / "inner" / "state").write_bytes(b"state")
    return checkpoint


def make_sealed(folder: Path, *steps: int) -> list[Path]:
    sealed = [make(folder, step) for step in steps]
    for checkpoint in sealed:
        seal(checkpoint)
    return sealed


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_manifest_has_the_permissions_of_the_weights(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
        seal(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_every_single_bit_flip_is_found_and_names_its_file(tmp_path: Path) -> None:
    (checkpoint,) = make_sealed(tmp_path, 5)
    verify(checkpoint)
    path = checkpoint / "weights"
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(InputError, match="differs") as error:
            verify(checkpoint)
        assert error.value.path == path
    path.write_bytes(whole)
    verify(checkpoint)


def test_missing_and_shortened_files_are_found(tmp_path: Path) -> None:
    (checkpoint,) = make_sealed(tmp_path, 5)
    (checkpoint / "weights").write_bytes(b"")
    with pytest.raises(InputError, match="weights: the file differs"):
        verify(checkpoint)
    (checkpoint / "weights").unlink()
    with pytest.raises(InputError, match=r"weights: the file is listed in manifest\.json but missing"):
        verify(checkpoint)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 2, "files": {}}', '{"version": 1}', '{"version": 1, "files": {"a": 1}}',
     "[" * 100_000, '{"version": 1, "files": {"../x": {"sha256": "", "size": 0}}}',
     '{"version": 1, "files": {"/etc/passwd": {"sha256": "", "size": 0}}}'],
)  # fmt: skip
def test_a_corrupt_manifest_is_an_input_error(tmp_path: Path, text: str) -> None:
    (checkpoint,) = make_sealed(tmp_path, 5)
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="manifest"):
        verify(checkpoint)
    assert last_complete(tmp_path) is None


def test_the_last_complete_one_is_by_number_and_skips_incomplete_and_damaged(tmp_path: Path) -> None:
    assert last_complete(tmp_path / "nowhere") is None
    make_sealed(tmp_path, 9, 10, 100)
    make(tmp_path, 200)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-100" / "weights").write_bytes(b"damaged")
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"
    discard_incomplete(tmp_path)
    assert names(tmp_path) == {"checkpoint-9", "checkpoint-10", "checkpoint-best"}


def test_prune_keeps_the_newest_sealed_and_never_counts_an_unsealed_one(tmp_path: Path) -> None:
    make_sealed(tmp_path, 8, 9, 10)
    make(tmp_path, 11)
    prune(tmp_path)
    assert names(tmp_path) == {"checkpoint-9", "checkpoint-10", "checkpoint-11"}
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"


def test_sealing_again_replaces_the_manifest_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (checkpoint,) = make_sealed(tmp_path, 5)
    (checkpoint / "weights").write_bytes(b"new")
    seal(checkpoint)
    verify(checkpoint)
    assert set(json.loads((checkpoint / "manifest.json").read_text())["files"]) == {"weights", "inner/state"}
    assert names(checkpoint) == {"weights", "inner", "manifest.json"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file"):
        seal(tmp_path / "empty")


def test_model_files_load_or_say_why_not(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0)}, path)
    assert torch.equal(load_model_file(path)["a"], torch.arange(6.0))
    seal(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1  # safetensors itself loads this without a word
    path.write_bytes(whole)
    with pytest.raises(InputError, match="differs"):
        load_model_file(path)
    (tmp_path / "manifest.json").unlink()
    for content in (b"", b"not safetensors at all", bytes(whole[:20]), b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            load_model_file(path)
