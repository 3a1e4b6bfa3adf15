"""Traces of chains on disk, from which an interrupted call resumes.

::

    FOLDER/settings.json              the settings, and checksums of run and problems
    FOLDER/chains/0000.jsonl          of the first chains: a line for each sweep, with energies, counts, printed tokens;
                                      the first line names their problems, from 1, and the ranks of their lengths
    FOLDER/chains/0000.safetensors    states of these chains; lines of later sweeps are written again
    FOLDER/samples.jsonl              printed samples of all chains that have ended; block by block of problems

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqwise.configuration.flat import flat_values
from seqwise.data.durable import discard_partials, flush, holds_nothing, write_atomically
from seqwise.errors import InputError
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.runs.trainer_options import changed_setting_error
from seqwise.sampling.chains import PER_CHAIN, Trace
from seqwise.sampling.problems import ChainProblem
from seqwise.training.checkpoints import saving

_SETTINGS, _SAMPLES = "settings.json", "samples.jsonl"
_MAY_DIFFER = ("sweeps", "save_every")
_COLUMNS = tuple(name.split("_")[0] for name in (*PER_CHAIN, "invariant_S"))
_OTHERS = {"model": "another model", "problems": "other problems"}


def require_disk(folder: Path, num_bytes: int, *, what: str) -> None:
    """Raise an InputError if the disk of a folder, which may not exist yet, lacks the free bytes."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if num_bytes > free:
        needed, left = (f"{size / 1e9:,.0f}" if size > 1e10 else f"{size / 1e9:.3g}" for size in (num_bytes, free))
        problem = f"{what} would take at least {needed} GB, and {left} GB are free"
        raise InputError(problem, path=folder, hint="use fewer inputs, chains or sweeps, or free some space")


def claim(folder: Path, settings: SampleSettings, fingerprints: Mapping[str, str]) -> None:
    """Write the settings of a sampling run to its folder; refuse a folder with others, except for more sweeps."""
    hint = "give another --output, or remove this folder to start again"
    # The model first, because the defaults depend on it; the problems last, because they depend on length and seed.
    now = {"model": fingerprints["model"], "kernel": None, **flat_values(settings), **fingerprints}
    path = folder / _SETTINGS
    if path.exists():
        then = _started_with(path, [*fingerprints, "kernel"])
        if then is None:  # without the hint to remove the folder, which holds something else
            raise InputError("the folder holds no samples", path=folder, hint="give another --output")
        for name, value in now.items():
            if name in fingerprints and value != then[name]:
                raise InputError(f"the samples were started with {_OTHERS[name]}", path=folder, hint=hint)
            if name not in _MAY_DIFFER and value != then.get(name):
                before, after = ("the default" if setting is None else setting for setting in (then.get(name), value))
                raise changed_setting_error(folder, name, before, after, what="the samples were")
    elif not holds_nothing(folder):
        raise InputError("the folder is not empty and holds no samples", path=folder, hint="give another --output")
    discard_partials(folder)
    # First, because a call that resumes recognises its folder by the settings.
    write_atomically(path, json.dumps(now, indent=1, sort_keys=True) + "\n")
    (folder / "chains").mkdir(exist_ok=True)


def _started_with(path: Path, names: Sequence[str]) -> dict[str, Any] | None:
    """Read the settings that a sampling run was started with; None from another kind of file."""
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and set(names) <= set(settings) else None


def append_sweeps(path: Path, trace: Trace, problems: Sequence[ChainProblem], *, first: int) -> None:
    """Append a line for each sweep of some problems, synced to disk; ``first`` is the number of earlier sweeps."""
    with path.open("a", encoding="utf-8") as stream:
        columns = [getattr(trace, name).tolist() for name in (*PER_CHAIN, "invariant_S")]
        for place, values in enumerate(zip(*columns, strict=True), start=1):
            record = {"sweep": first + place, **dict(zip(_COLUMNS, values, strict=True))}
            if record["sweep"] == 1:
                record["problems"] = [(problem.problem + 1, problem.rank) for problem in problems]
            if place in trace.tokens:
                record["tokens"] = trace.tokens[place].tolist()
            stream.write(json.dumps(record) + "\n")
    flush(path)
    if first == 0:
        flush(path.parent)  # for the new name


def keep_samples(folder: Path, lines: Iterable[str], *, begin: int) -> int:
    """Write the lines of a block to the file of samples, from byte ``begin``, synced to disk; return the end."""
    path, text = folder / _SAMPLES, "".join(f"{line}\n" for line in lines).encode()
    with saving(path):
        with path.open("r+b" if begin else "wb") as stream:
            stream.seek(begin)
            stream.write(text)
            stream.truncate()
        flush(path)
        if begin == 0:
            flush(folder)  # for the new name
    return begin + len(text)


def read_trace(path: Path, *, num_sweeps: int, num_chains: int) -> Trace:
    """Read the lines of a number of sweeps, and truncate the file after them."""
    try:
        with path.open("rb+") as stream:
            lines = [stream.readline() for _ in range(num_sweeps)]
            stream.truncate(stream.tell())
        return trace_of([json.loads(line) for line in lines], num_chains=num_chains)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        raise InputError("the file is damaged", path=path, hint="remove the folder and start again") from None


def trace_of(records: Sequence[Mapping[str, Any]], *, num_chains: int) -> Trace:
    """Make the trace of chains from records of ``append_sweeps``."""
    if [record["sweep"] for record in records] != list(range(1, len(records) + 1)):
        raise ValueError("the sweeps do not follow each other")

    def column(name: str, dtype: torch.dtype, *chains: int) -> Tensor:
        return torch.tensor([record[name] for record in records], dtype=dtype).reshape(len(records), *chains)

    return Trace(
        column("energy", torch.float64, num_chains),
        column("proposals", torch.int64, num_chains),
        column("accepted", torch.int64, num_chains),
        column("novel", torch.int64, num_chains),
        column("passes", torch.int64, num_chains),
        column("invariant", torch.bool),
        {record["sweep"]: torch.tensor(record["tokens"]) for record in records if "tokens" in record},
    )
