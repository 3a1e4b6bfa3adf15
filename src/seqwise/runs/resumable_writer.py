"""Resumable writing of the lines of a file, block by block.

Several processes share the blocks, each with its own file; their number may change between calls::

    FILE.partial      of the first process: a line with the claim; then, for each block, a line with its number, size
                      and checksum, and its lines
    FILE.partial-1    the same of the next process, and so on
    FILE              all lines in order, once they are complete
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from seqwise.data.durable import flush, rename_durably
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
    world_size,
)

T = TypeVar("T")


class _Block(NamedTuple):
    """Place of the lines of a block."""

    number: int
    part: Path
    start: int
    size: int


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
    count = -(-len(items) // block)
    mine = shard(from_main_process(lambda: _begin(path, {**claim, "block": str(block)}, count)))
    part = _part(path, rank())
    if not part.exists():
        problem = f"process {rank()} does not see the file that process 0 created for it"
        raise InputError(problem, path=part, hint="give an --output on a disk that all machines share")
    if on_begin is not None:
        on_begin(sum(len(items[number * block : (number + 1) * block]) for number in mine))
    for number in mine:
        _append(part, number, lines_of(items[number * block : (number + 1) * block]))
    wait_for_everyone()
    if is_main_process():
        _finish(path, count)
    wait_for_everyone()


def _part(path: Path, process: int) -> Path:
    return path.with_name(f"{path.name}.partial{f'-{process}' if process else ''}")


def _parts(path: Path) -> list[Path]:
    """List the existing parts of all processes."""
    name = re.compile(re.escape(path.name) + r"\.partial(-[0-9]+)?")
    return sorted(file for file in path.parent.iterdir() if name.fullmatch(file.name))


def _begin(path: Path, claim: Mapping[str, str], count: int) -> list[int]:
    """Create a part for every process, truncate incomplete blocks, and return the blocks that are left."""
    if path.exists() and not path.is_file():  # renaming would put a file in place of a device, such as /dev/null
        raise InputError("the output is a folder or a device", path=path, hint="name a file")
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(dict(claim), sort_keys=True).encode() + b"\n"
    complete = {block.number for part in _parts(path) for block in _kept(part, head, claim)}
    for process in range(world_size()):
        part = _part(path, process)
        with saving(part):
            if not part.exists() or part.stat().st_size == 0:
                part.write_bytes(head)
                flush(part)
    with saving(path):
        flush(path.parent)
    return [number for number in range(count) if number not in complete]


def _kept(part: Path, head: bytes, claim: Mapping[str, str]) -> list[_Block]:
    """Return the complete blocks of a part, and truncate it after them."""
    with saving(part), part.open("r+b") as stream:
        first_line = stream.readline()
        if not first_line.endswith(b"\n") and head.startswith(first_line.rstrip(b"\0")):  # killed within it
            stream.truncate(0)
            return []
        if first_line != head:
            problem = f"the file was started with {_first_difference(first_line, claim)}"
            raise InputError(problem, path=part, hint="remove it, or give another --output")
        end, blocks = stream.tell(), []
        for block in _blocks(stream, part):
            blocks.append(block)
            end = block.start + block.size
        stream.truncate(end)
    return blocks


def _blocks(stream: BinaryIO, part: Path) -> Iterator[_Block]:
    """Yield the blocks from here to the first damaged one."""
    while True:
        try:
            header: Any = json.loads(stream.readline())
            number, size, checksum = header["block"], header["bytes"], header["crc32"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        start = stream.tell()
        lines = stream.read(size)
        if len(lines) != size or zlib.crc32(lines) != checksum:
            return
        yield _Block(number, part, start, size)


def _append(part: Path, number: int, lines: Iterable[str]) -> None:
    """Append a block, synced to disk."""
    text = "".join(f"{line}\n" for line in lines).encode()
    header = json.dumps({"block": number, "bytes": len(text), "crc32": zlib.crc32(text)})
    with saving(part):
        with part.open("ab") as stream:
            stream.write(header.encode() + b"\n" + text)
        flush(part)


def _finish(path: Path, count: int) -> None:
    """Join all blocks in order, and then remove the parts."""
    parts = _parts(path)
    blocks: dict[int, _Block] = {}
    for part in parts:
        with saving(part), part.open("rb") as stream:
            stream.readline()
            blocks |= {block.number: block for block in _blocks(stream, part)}
    missing = next((number for number in range(count) if number not in blocks), None)
    if missing is not None:
        problem = f"block {missing} of {count} is missing from the parts"
        raise InputError(problem, path=path, hint="run the same command again, and no other with this --output")
    new = path.with_name(f".{path.name}.joined")  # the same in each call, so that a killed one leaves nothing behind
    with saving(path):
        try:
            with new.open("wb") as stream:
                for number in range(count):
                    block = blocks[number]
                    with block.part.open("rb") as lines:
                        lines.seek(block.start)
                        stream.write(lines.read(block.size))
            rename_durably(new, path)
        finally:
            new.unlink(missing_ok=True)
        for part in parts:
            part.unlink()


def _first_difference(first_line: bytes, claim: Mapping[str, str]) -> str:
    """Name the first part of a claim that differs from the claim in a first line."""
    try:
        saved = json.loads(first_line)
        return next(f"another {name}" for name, value in claim.items() if saved.get(name) != value)
    except (ValueError, AttributeError, StopIteration, RecursionError):
        return "something else"
