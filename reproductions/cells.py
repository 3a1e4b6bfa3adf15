"""Cells of a table, made once and then read back: their folders, records, fingerprints and training seconds."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from reproductions.workers import Report
from seqwise.data.durable import holds_nothing, write_atomically
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import sha256_of_examples
from seqwise.training.trainer import Progress

SECONDS = "train_seconds.json"


def fingerprint_of(*parts: str) -> str:
    """Return the SHA-256 of everything that a cell depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def trained_on(examples: Iterable[Example], sources: Iterable[str]) -> tuple[str, ...]:
    """Name training data as `seqwise.evaluation.signature.Signature.training` lists them."""
    return (f"examples {sha256_of_examples(examples)}", *sources)


def read_cell(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """Read the record of a finished cell; None where there is none, or that of other settings or data."""
    record: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return record if record.get("fingerprint") == fingerprint else None


def write_cell(path: Path, fingerprint: str, record: Mapping[str, Any]) -> None:
    """Write the record of a cell, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"fingerprint": fingerprint, **record}))


def claim_folder(output: Path, fingerprint: str) -> None:
    """Prepare the folder of a cell: the same cell is continued, another one (other settings, other data) is removed."""
    marker = output / "fingerprint"
    if not holds_nothing(output) and not marker.exists():
        raise InputError("the folder is not of this reproduction", path=output, hint="give another --output")
    if not (marker.exists() and marker.read_text("utf-8") == fingerprint):
        output.mkdir(parents=True, exist_ok=True)
        # The marker goes last, so that a folder which is only half empty is still known as ours.
        for path in output.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        write_atomically(marker, fingerprint)


def stopwatch(output: Path, *, every: int = 0) -> Callable[[int, int], None]:
    """Measure the CPU time of this process from now on; returns a function of the step and of how many there are.

    An interrupted training is measured from its checkpoint on, and what was before is taken to have been as fast. The
    last step, or each that is a multiple of ``every`` and may be the last, writes it down.
    """
    began, first = time.process_time(), 0

    def after(step: int, steps: int) -> None:
        nonlocal first
        first = first or step
        if step == steps or (every and step % every == 0):
            write_atomically(output / SECONDS, json.dumps((time.process_time() - began) * step / (step + 1 - first)))

    return after


def watched(output: Path, report: Report, *, every: int = 0) -> Callable[[Progress], None]:
    """Return what is called after each training step: the stopwatch of a folder, and a report every 20 steps."""
    watch = stopwatch(output, every=every)

    def on_progress(progress: Progress) -> None:
        watch(progress.step, progress.steps)
        if progress.step % 20 == 0 or progress.step == progress.steps:
            report(progress.step, progress.steps + 1, f"loss {progress.loss:.3f}")

    return on_progress


def train_seconds(output: Path) -> float:
    """CPU time of a finished training, on one thread."""
    return float(json.loads((output / SECONDS).read_text("utf-8")))
