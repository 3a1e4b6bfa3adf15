"""Files that tests write for runs, and read from the folders that runs leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqwise.data import Example, write_columns

__all__ = ["columns_file", "contents", "json_lines", "weights"]


def columns_file(path: Path, examples: Sequence[Example]) -> Path:
    """Write sentences and their labels, and return the path."""
    write_columns(path, examples)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in each file below a folder, by its path from there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file that has one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights(run: Path) -> bytes:
    """Return the file of the weights of a run."""
    return (run / "model" / "model.safetensors").read_bytes()
