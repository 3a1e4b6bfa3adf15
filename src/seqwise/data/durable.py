"""Atomic and durable writes: a file is complete or absent, and is on disk when a function returns."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from seqwise.errors import InputError

LOCK = ".seqwise.lock"
"""Lock file of an output folder; see ``sole_writer``."""

WINDOWS = os.name == "nt"

_PARTIAL = re.compile(r"\..+\.[0-9]+\.partial")


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file atomically, by a temporary file in its folder that is flushed and renamed."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(text.encode("utf-8"))
        rename_durably(partial, path)
    except UnicodeEncodeError as error:
        problem = f"{text[error.start]!r} cannot be encoded as UTF-8"
        raise InputError(problem, path=path, hint="drop the lone surrogate") from None
    except OSError as error:
        hint = "check free space and permissions"
        raise InputError(f"cannot be written ({error.strerror})", path=path, hint=hint) from None
    finally:
        with suppress(OSError):  # on a read-only file system, even for a missing file
            partial.unlink()


def rename_durably(partial: Path, final: Path) -> None:
    """Flush a file or folder, rename it, and flush its parent folder."""
    flush(partial)
    os.replace(partial, final)
    # Without this, a power cut could undo the renaming.
    flush(final.parent)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk; Windows has no call for a folder."""
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes writable handles only
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is missing or empty, except for its lock and partial files of :func:`write_atomically`."""
    return not folder.exists() or all(path.name == LOCK or _PARTIAL.fullmatch(path.name) for path in folder.iterdir())


def discard_partials(folder: Path) -> None:
    """Remove partial files of an interrupted :func:`write_atomically`."""
    for path in folder.iterdir():
        if _PARTIAL.fullmatch(path.name):
            path.unlink()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
