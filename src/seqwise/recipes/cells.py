"""The folder of a cell: whose it is, and what it depends on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from seqwise.data.durable import holds_nothing, write_atomically
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
    if not holds_nothing(output) and not marker.exists():
        raise InputError("the folder is not of this recipe", path=output, mend="give another --output")
    if not (marker.exists() and marker.read_text("utf-8") == fingerprint):
        output.mkdir(parents=True, exist_ok=True)
        # The marker goes last, so that a folder which is only half empty is still known as ours.
        for path in output.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        write_atomically(marker, fingerprint)
