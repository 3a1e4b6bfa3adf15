"""Resumable writing of the lines of a file, block by block.

Several processes share the blocks; their number may change between calls::

    FILE.partial/claim.json   what the lines depend on
    FILE.partial/17           the lines of a block, written atomically
    FILE                      all lines in order, once they are complete
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from seqwise.data.durable import flush, holds_nothing, rename_durably, write_atomically
from seqwise.errors import InputError
from seqwise.training.checkpoints import saving
from seqwise.training.processes import (
    NO_TIMEOUT,
    from_main_process,
    init_process_group,
    is_main_process,
    rank,
    shard,
    wait_for_everyone,
)

T = TypeVar("T")

CLAIM = "claim.json"


def write_in_blocks(
    path: Path,
    items: Sequence[T],
    lines_of: Callable[[Sequence[T]], Iterable[str]],
    *,
    claim: Mapping[str, str],
    block: int,
    on_begin: Callable[[int], None] | None = None,
) -> None:
    """Write the lines of items to a file, in all processes together, resuming an interrupted call.

    The lines of a block depend only on its items and the claim; a file with a different claim is refused.
    ``on_begin`` is called with the number of items of this process.
    """
    init_process_group(timeout=NO_TIMEOUT)
    if path.is_file() or not path.exists():  # neither a folder nor a device
        path = Path(os.path.realpath(path))  # of a link, the target is written
    parts = path.with_name(f"{path.name}.partial")
    count = -(-len(items) // block)
    mine = shard(from_main_process(lambda: _begin(path, parts, {**claim, "block": str(block)}, count)))
    if not (parts / CLAIM).exists():
        problem = f"process {rank()} does not see the folder that process 0 created"
        raise InputError(problem, path=parts, hint="give an --output on a disk that all machines share")
    if on_begin is not None:
        on_begin(sum(len(items[number * block : (number + 1) * block]) for number in mine))
    for number in mine:
        lines = lines_of(items[number * block : (number + 1) * block])
        write_atomically(parts / str(number), "".join(f"{line}\n" for line in lines))
    wait_for_everyone()
    if is_main_process():
        _finish(path, parts, count)
    wait_for_everyone()


def _begin(path: Path, parts: Path, claim: Mapping[str, str], count: int) -> list[int]:
    """Claim the folder of the blocks, and return the numbers of those that are left."""
    if path.exists() and not path.is_file():  # renaming would put a file in place of a device, such as /dev/null
        raise InputError("the output is a folder or a device", path=path, hint="name a file")
    if parts.exists() and not (parts.is_dir() and holds_nothing(parts)):
        different = _difference(parts / CLAIM, claim)
        if different is not None:
            hint = "remove it, or give another --output"
            raise InputError(f"the file was started with {different}", path=parts, hint=hint)
    with saving(parts):
        parts.mkdir(parents=True, exist_ok=True)
        flush(parts.parent)
    write_atomically(parts / CLAIM, json.dumps(claim, sort_keys=True))
    return _missing(parts, count)


def _missing(parts: Path, count: int) -> list[int]:
    """Return the numbers of the blocks that are not there, from a list of all: on a shared disk, it is up to date."""
    names = set(os.listdir(parts))
    return [number for number in range(count) if str(number) not in names]


def _difference(path: Path, claim: Mapping[str, str]) -> str | None:
    """Name the first part of a claim that differs from the one in a file; None if there is none."""
    try:
        saved = json.loads(path.read_bytes())
        return next((f"another {name}" for name, value in claim.items() if saved.get(name) != value), None)
    except (OSError, ValueError, AttributeError, RecursionError):
        return "something else"


def _finish(path: Path, parts: Path, count: int) -> None:
    """Join all blocks in order, and then remove their folder."""
    with saving(parts):
        missing = _missing(parts, count)
    if missing:
        raise InputError("the block is missing", path=parts / str(missing[0]), hint="run the same command again")
    new = path.with_name(f".{path.name}.joined")  # the same in each call, so that a killed one leaves nothing behind
    with saving(path):
        try:
            with new.open("wb") as stream:
                for number in range(count):
                    with (parts / str(number)).open("rb") as lines:
                        shutil.copyfileobj(lines, stream)
            rename_durably(new, path)
        finally:
            new.unlink(missing_ok=True)
    for number in range(count):  # before the claim, without which they would belong to nobody
        with suppress(OSError):
            (parts / str(number)).unlink()
    shutil.rmtree(parts, ignore_errors=True)
