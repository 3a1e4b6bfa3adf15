"""Cells, the cached results of single systems: their records, fingerprints, folders and training seconds."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from reproductions import Setup
from reproductions.workers import Job, ProgressFactory, Report, one_thread, run_jobs
from seqwise.data.durable import holds_nothing, write_atomically
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import sha256_of_examples
from seqwise.training.lock import next_writer
from seqwise.training.trainer import Progress

SECONDS = "train_seconds.json"

Name = TypeVar("Name", bound=Hashable)
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class CellJob:
    """Computation of a cell, whose result is stored as a record."""

    name: str  # unique; it is printed
    path: Path  # of the record
    fingerprint: Callable[[], str]  # of everything that it depends on; called once the cell in ``after`` exists
    make: Callable[[Report], Mapping[str, Any]]  # returns the record; a module-level function, or a partial of one
    after: str | None = None  # name of the cell that must exist before
    folder: Path | None = None  # other output, if it has a folder of its own


def run_cells(cells: Sequence[CellJob], *, progress: ProgressFactory) -> list[dict[str, Any]]:
    """Return the records of cells; missing ones are made in worker processes."""
    done: set[str] = set()
    for cell in cells:  # in order, because a cell depends on the one that it comes after
        if (cell.after is None or cell.after in done) and read_cell(cell.path, cell.fingerprint()) is not None:
            done.add(cell.name)
    missing = [cell for cell in cells if cell.name not in done]
    jobs = [Job(cell.name, partial(make_cell, cell, before=_written(cell.path)), cell.after) for cell in missing]
    run_jobs(jobs, progress=progress)
    return [json.loads(cell.path.read_text("utf-8")) for cell in cells]


def make_cell(cell: CellJob, report: Report, *, before: int | None = None) -> None:
    """Make a cell in a worker process; if another command is making it, wait for that instead.

    Args:
        cell: the cell.
        report: called with the progress.
        before: modification time of the outdated record; None if there was no record.
    """
    fingerprint = cell.fingerprint()
    with next_writer(lock_of(cell)):
        if _written(cell.path) != before and read_cell(cell.path, fingerprint) is not None:
            return
        if cell.folder is not None:
            claim_folder(cell.folder, fingerprint)
        write_cell(cell.path, fingerprint, cell.make(report))


def _written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def lock_of(cell: CellJob) -> Path:
    """Return the folder that is locked while a cell is made; the cell's own folder is locked by training."""
    made = cell.folder or cell.path
    return made.parent / f".{made.name}"


def measure_by_seed(
    names: Iterable[Name], measure: Callable[[Name, int, Report], Measured], setup: Setup
) -> dict[Name, list[Measured]]:
    """Call ``measure`` for every name and seed, in this process on one thread; return lists over seeds by name."""
    found: dict[Name, list[Measured]] = {name: [] for name in names}
    with setup.progress() as bars, one_thread():
        whole = bars.add_task("all", total=len(found) * len(setup.seeds), note="")
        task = bars.add_task("", total=None, note="")

        def report(done: int, count: int, note: str) -> None:
            bars.update(task, completed=done, total=count, note=note)

        for seed in setup.seeds:  # seed by seed, so that an interrupted table has complete seeds
            for name, by_seed in found.items():
                bars.update(task, description=f"{name}, seed {seed}", completed=0, total=None, note="")
                by_seed.append(measure(name, seed, report))
                bars.advance(whole)
    return found


def fingerprint_of(*parts: str) -> str:
    """Return the SHA-256 of everything that a cell depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def trained_on(examples: Iterable[Example], sources: Iterable[str]) -> tuple[str, ...]:
    """Describe training data for `seqwise.evaluation.signature.Signature.training`."""
    return (f"examples {sha256_of_examples(examples)}", *sources)


def read_cell(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """Read the record of a finished cell; None if there is none, or it is of other settings or data."""
    record: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return record if record.get("fingerprint") == fingerprint else None


def read_or_make(path: Path, fingerprint: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a cell; a missing one is made and written."""
    if read_cell(path, fingerprint) is None:
        write_cell(path, fingerprint, make())
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record


def write_cell(path: Path, fingerprint: str, record: Mapping[str, Any]) -> None:
    """Write the record of a cell atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"fingerprint": fingerprint, **record}))


def claim_folder(output: Path, fingerprint: str) -> None:
    """Prepare the folder of a cell: keep the files of the same cell, remove those of other settings or data."""
    marker = output / "fingerprint"
    if not holds_nothing(output) and not marker.exists():
        raise InputError("the folder does not belong to this reproduction", path=output, hint="give another --output")
    if not (marker.exists() and marker.read_text("utf-8") == fingerprint):
        output.mkdir(parents=True, exist_ok=True)
        # The marker is replaced last, so that a half-emptied folder is still recognised as ours.
        for path in output.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        write_atomically(marker, fingerprint)


def timed(output: Path, report: Report, *, every: int = 0) -> Callable[[Progress], None]:
    """Return a callback for training that measures CPU time from now on, and reports progress every 20 steps.

    After an interruption, time is measured from the checkpoint on; the steps before are assumed to have been as fast.
    It is written after the last step and after multiples of ``every``, at which training may stop early.
    """
    began, first = time.process_time(), 0

    def on_progress(progress: Progress) -> None:
        nonlocal first
        step, steps = progress.step, progress.steps
        first = first or step
        if step == steps or (every and step % every == 0):
            write_atomically(output / SECONDS, json.dumps((time.process_time() - began) * step / (step + 1 - first)))
        if step == steps or step % 20 == 0:
            report(step, steps + 1, f"loss {progress.loss:.3f}")

    return on_progress


def train_seconds(output: Path) -> float:
    """Return the CPU time of a finished training run, on one thread."""
    return float(json.loads((output / SECONDS).read_text("utf-8")))
