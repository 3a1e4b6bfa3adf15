"""The folder of a cell: whose it is, and what it depends on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from seqwise.data.readers import write_atomically
from seqwise.errors import InputError

__all__ = ["claim_folder", "fingerprint_of"]


def fingerprint_of(*parts: str) -> str:
    """One number for all that a cell depends on.

    Example:
        >>> len(fingerprint_of("settings", "data"))
        64
    """
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def claim_folder(output: Path, fingerprint: str) -> None:
    """What has been begun of the same cell is continued; what is of another (other settings, other data) is removed.

    Raises:
        InputError: the folder holds something that no cell has left.
    """
    marker = output / "fingerprint"
    if output.exists() and any(output.iterdir()) and not marker.exists():
        raise InputError("the folder is not of this recipe", path=output, mend="give another --output")
    if not (marker.exists() and marker.read_text("utf-8") == fingerprint):
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        write_atomically(marker, fingerprint)
