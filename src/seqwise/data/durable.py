"""Files and folders that are whole or not there, and on the disk when a function returns."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from seqwise.errors import InputError

LOCK = ".seqwise.lock"
"""In an output folder while something is written to it: see ``sole_writer``."""

_PARTIAL = re.compile(r"\..+\.[0-9]+\.partial")


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file whole or not at all: a temporary file beside it, flushed to disk, then renamed over it.

    Raises:
        InputError: the folder is missing or not writable, or the text holds a lone surrogate; the old file stays.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> write_atomically(file, "one line\\n")
        >>> [f.name for f in file.parent.iterdir()]
        ['a.txt']
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(text.encode("utf-8"))
        rename_durably(partial, path)
    except UnicodeEncodeError as error:
        problem = f"{text[error.start]!r} has no UTF-8 form"
        raise InputError(problem, path=path, hint="drop the lone surrogate") from None
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", path=path, hint="name a writable folder") from None
    finally:
        partial.unlink(missing_ok=True)


def rename_durably(partial: Path, final: Path) -> None:
    """Flush a file, give it its final name, and flush the folder that holds the name.

    Args:
        partial: a file, or a folder whose files are on the disk already.
        final: in the same file system; a file there is replaced, and so is an empty folder.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "new").write_text("new")
        >>> rename_durably(folder / "new", folder / "old")
        >>> (folder / "old").read_text()
        'new'
    """
    flush(partial)
    os.replace(partial, final)
    # Without this the file is safe and its name is not: after a power cut the old one may be back.
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the list of names of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is missing, empty, or has only its lock and what a killed :func:`write_atomically` left.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / ".settings.json.123.partial").write_text("{")
        >>> holds_nothing(folder), holds_nothing(folder / "none")
        (True, True)
    """
    return not folder.exists() or all(path.name == LOCK or _PARTIAL.fullmatch(path.name) for path in folder.iterdir())


def discard_partials(folder: Path) -> None:
    """Remove what a killed :func:`write_atomically` left in a folder that nobody else writes to."""
    for path in folder.iterdir():
        if _PARTIAL.fullmatch(path.name):
            path.unlink()


def sha256_of_file(path: Path) -> str:
    """The sum of a file's bytes, in hexadecimal.

    Raises:
        OSError: it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> _ = file.write_bytes(b"abc")
        >>> sha256_of_file(file)[:8]
        'ba7816bf'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
