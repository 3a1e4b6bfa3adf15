"""Lines of a file that is written for long: kept block by block, so that who was killed goes on where it was.

::

    FILE.partial    a line that says what is being written, then the lines so far
    FILE            all lines, once they are all there
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from seqwise.data.durable import flush, rename_durably
from seqwise.errors import InputError
from seqwise.training.checkpoints import saving

__all__ = ["finish_lines", "keep_lines", "resume_lines"]


def resume_lines(path: Path, claim: Mapping[str, str], *, block: int) -> list[str]:
    """What is kept of a file that was begun: its whole blocks; the rest is cut off, and will be written anew.

    Args:
        path: the file that is to come of it.
        claim: what the lines depend on, by name.
        block: how many lines are kept at a time.

    Returns:
        The lines, without their ends.

    Raises:
        InputError: what was begun depends on something else, or is damaged.

    Example:
        >>> file = getfixture("tmp_path") / "scores.jsonl"
        >>> resume_lines(file, {"model": "a"}, block=2)
        []
        >>> keep_lines(file, ["1", "2"]); keep_lines(file, ["3"])
        >>> resume_lines(file, {"model": "a"}, block=2)
        ['1', '2']
    """
    partial, mend = _partial(path), "remove it, or give another --output"
    head = json.dumps(dict(claim), sort_keys=True).encode() + b"\n"
    with saving(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
    with saving(partial), partial.open("a+b") as stream:
        stream.seek(0)
        found = stream.readline()
        if not found.endswith(b"\n"):  # nothing yet, or killed within its first line
            stream.truncate(0)
            stream.write(head)
            stream.flush()
            flush(partial)
            flush(partial.parent)
            return []
        if found != head:
            raise InputError(f"the file was begun with {_other(found, claim)}", path=partial, mend=mend)
        lines, whole = [], stream.tell()
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            if number % block == 0:
                whole = stream.tell()
        stream.truncate(whole)
    try:
        return [line.decode().removesuffix("\n") for line in lines[: len(lines) // block * block]]
    except UnicodeDecodeError:
        raise InputError("the file is damaged", path=partial, mend=mend) from None


def keep_lines(path: Path, lines: Iterable[str]) -> None:
    """Add a block of lines to what is kept; it is on the disk when this returns."""
    partial = _partial(path)
    with saving(partial), partial.open("ab") as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
        stream.flush()
        os.fsync(stream.fileno())


def finish_lines(path: Path) -> None:
    """Make the file of the lines that are kept; it is whole or not there."""
    partial, new = _partial(path), path.with_name(f"{path.name}.new")
    with saving(path):
        with partial.open("rb") as kept, new.open("wb") as stream:
            kept.readline()
            shutil.copyfileobj(kept, stream)
        rename_durably(new, path)
        partial.unlink()


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _other(found: bytes, claim: Mapping[str, str]) -> str:
    """What differs, by name."""
    try:
        begun = json.loads(found)
        return next(f"another {name}" for name, value in claim.items() if begun.get(name) != value)
    except (ValueError, AttributeError, StopIteration, RecursionError):
        return "something else"
