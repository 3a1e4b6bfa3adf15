"""Crash-safe checkpoints with a manifest, written last, that holds the size and SHA-256 of each file.

A crash, a power failure or a full disk may occur between any two writes. So the files of a checkpoint are written to a
temporary folder and flushed; then the manifest, without which a folder is ignored; then the folder gets its name by one
rename, and its parent folder is flushed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seqwise.data.durable import flush, rename_durably, sha256_of_file
from seqwise.errors import InputError, first_line

UNFINISHED = "unfinished"
"""Folder, next to the checkpoints, in which the next one is written."""

MANIFEST = "manifest.json"
"""File of a sealed folder with the size and SHA-256 of every other file."""

KEPT = 2
"""Number of checkpoints to keep."""

MEASUREMENTS = "measurements.jsonl"
"""Log of measurements, next to the checkpoints and the training log."""

_FOLDER = re.compile(r"checkpoint-([0-9]+)")
_log = logging.getLogger(__name__)


def seal(folder: Path) -> None:
    """Seal a complete folder: flush its files to disk, then write ``manifest.json`` atomically.

    The manifest lists every file and replaces an older one; links are refused. The files get the read permissions of
    the manifest, because safetensors makes them readable for their owner only.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("a")
        >>> seal(folder); verify(folder)
    """
    # An old manifest goes first, so that the folder does not look complete after a crash.
    (folder / MANIFEST).unlink(missing_ok=True)
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.is_symlink():
            raise InputError("a link cannot be sealed: its target may change", path=path, hint="copy the file")
        flush(path)
        files[path.relative_to(folder).as_posix()] = {"sha256": sha256_of_file(path), "size": path.stat().st_size}
    if not files:
        raise InputError("there is no file to seal", path=folder)
    partial = folder / f".{MANIFEST}.part"
    partial.write_text(json.dumps({"version": 1, "files": files}, indent=1, sort_keys=True), encoding="utf-8")
    mode = partial.stat().st_mode
    for name in files:
        (folder / name).chmod((folder / name).stat().st_mode | mode)
    for inner in sorted({path.parent for path in folder.rglob("*")}):
        flush(inner)
    rename_durably(partial, folder / MANIFEST)
    flush(folder.parent)


def publish(partial: Path, final: Path) -> None:
    """Seal a folder and rename it: after a crash at any moment, the final folder is complete or missing.

    The folder must be in the file system of ``final``; an existing ``final`` is removed.
    """
    seal(partial)
    if os.path.lexists(final):
        _remove(final)
    rename_durably(partial, final)


@contextmanager
def publishing(final: Path) -> Iterator[Path]:
    """Provide a folder to write to, and publish it under its name at the end.

    Example:
        >>> import tempfile
        >>> with publishing(Path(tempfile.mkdtemp()) / "model") as partial:
        ...     partial.mkdir()
        ...     _ = (partial / "weights").write_text("w")
        >>> verify(partial.parent / "model"); partial.exists()
        False
    """
    partial = final.with_name(f"{final.name}.partial")
    if os.path.lexists(partial):
        _remove(partial)
    with saving(final):
        yield partial
        publish(partial, final)


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Report failed writes in one line: a full or broken disk, or missing permission.

    The message names the folder if the writing library does not name the file.

    Example:
        >>> with saving(Path("run/model")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        seqwise.errors.InputError: run/model: cannot be written (No space left on device); check free space and \
permissions, then run the same command again
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:  # the last two are torch.save's and save_file's
        reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        path = (error.filename if isinstance(error, OSError) else None) or folder
        hint = "check free space and permissions, then run the same command again"
        raise InputError(f"cannot be written ({reason})", path=path, hint=hint) from error


def verify(folder: Path) -> None:
    """Check every file of a sealed folder against its manifest; raise if one is missing, differs or is a link.

    Files added after sealing are ignored.
    """
    for name, entry in _read_manifest(folder).items():
        # A link, or a linked folder, could lead to any file of the machine.
        if (folder / name).resolve() != folder.resolve() / name:
            raise InputError("a link, which is not followed", path=folder / name, hint="use another copy")
        _verify_file(folder / name, entry)


def checkpoint_step(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint folder, None for any other folder."""
    match = _FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


def last_complete(folder: Path) -> Path | None:
    """Return the last checkpoint that matches its manifest, or None."""
    for checkpoint in reversed(_checkpoints(folder)):
        if (checkpoint / MANIFEST).exists():
            try:
                verify(checkpoint)
            except InputError as error:
                _log.warning("skipping a damaged checkpoint: %s", error)
            else:
                return checkpoint
    return None


def discard_incomplete(folder: Path) -> None:
    """Remove checkpoints after the last complete one, those without a manifest, and unfinished files."""
    last = last_complete(folder)
    reached = -1 if last is None else _step(last)
    for checkpoint in _checkpoints(folder):
        # Training writes the later ones again, into folders that must be empty.
        if _step(checkpoint) > reached or not (checkpoint / MANIFEST).exists():
            _remove(checkpoint)
    if os.path.lexists(folder / UNFINISHED):
        _remove(folder / UNFINISHED)


def keep_checkpoint(folder: Path, step: int, *, best: int | None = None) -> None:
    """Seal the checkpoint of a step and rename it into place; then remove older ones.

    The new one is in ``unfinished/checkpoint-<step>``; the checkpoint of step ``best`` is also kept.
    """
    name = f"checkpoint-{step}"
    publish(folder / UNFINISHED / name, folder / name)
    (folder / UNFINISHED).rmdir()
    prune(folder, best=best)


def prune(folder: Path, *, best: int | None = None) -> None:
    """Remove all sealed checkpoints but the newest two and that of step ``best``; ignore unsealed ones."""
    for checkpoint in [path for path in _checkpoints(folder) if (path / MANIFEST).exists()][:-KEPT]:
        if checkpoint_step(checkpoint) != best:
            _remove(checkpoint)


def load_model_file(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a safetensors file on the CPU, and check it against the manifest in its folder, if any."""
    if not path.exists():
        raise InputError("the file does not exist", path=path)
    if (path.parent / MANIFEST).exists():
        entry = _read_manifest(path.parent).get(path.name)
        if entry is None:
            raise InputError("the file is not in manifest.json", path=path, hint="use another copy of the folder")
        _verify_file(path, entry)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot be read as safetensors ({error})", path=path, hint="use another copy") from error


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.is_dir() and _FOLDER.fullmatch(p.name)), key=_step)


def _step(folder: Path) -> int:
    step = checkpoint_step(folder)
    assert step is not None
    return step


def _remove(checkpoint: Path) -> None:
    if not checkpoint.is_dir() or checkpoint.is_symlink():
        checkpoint.unlink()  # removes a link, not its target
        return
    # The manifest goes first: a removal cut short leaves an incomplete checkpoint, not a damaged one.
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["version"] != 1:
            raise ValueError(f"version {manifest['version']!r}")
        entries = manifest["files"].items()
        files = {str(name): {"sha256": str(f["sha256"]), "size": int(f["size"])} for name, f in entries}
    except FileNotFoundError as error:
        raise InputError("there is no manifest.json, the folder is incomplete", path=folder) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"the manifest cannot be read ({error})", path=path, hint="use another copy") from error
    for name in files:
        # A manifest may come from elsewhere, with its folder: it must not point outside.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InputError(f"the manifest names {name!r}, outside its folder", path=path)
    return files


def _verify_file(path: Path, entry: dict[str, Any]) -> None:
    if not path.is_file():
        raise InputError("the file is listed in manifest.json but missing", path=path, hint="use another copy")
    if path.stat().st_size != entry["size"] or sha256_of_file(path) != entry["sha256"]:
        raise InputError("the file differs from its checksum in manifest.json", path=path, hint="use another copy")
