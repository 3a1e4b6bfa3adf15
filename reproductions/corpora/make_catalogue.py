"""Write catalogue.json: size and SHA-256 of every file of the corpora that SEQWISE_DATA names."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from reproductions.corpora.catalogue import CORPORA, measure_file
from reproductions.corpora.readers import corpus

ROOT = Path(__file__).resolve().parent
NOT_DATA = "README.md"


def table() -> str:
    """The whole file; every corpus has to be there."""
    files = {
        name: {
            path.name: asdict(measure_file(path)) for path in sorted(corpus(name).iterdir()) if path.name != NOT_DATA
        }
        for name in sorted(CORPORA)
    }
    return json.dumps(files, indent=1) + "\n"


if __name__ == "__main__":
    target = ROOT / "catalogue.json"
    target.write_text(table(), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
