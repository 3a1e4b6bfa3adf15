"""Write docs/reliability.md from results/reliability.json and soak.json: what was tried, and what held each time."""

from __future__ import annotations

import sys
from pathlib import Path

from reproductions.markdown import grid
from reproductions.report import Table, load_table
from seqwise.evaluation.signature import signature_line

ROOT = Path(__file__).resolve().parent.parent

# In the order of the page: the file of tests, and what it is about.
PARTS = {
    "killed_training": "Training that is killed, and disks that fail",
    "killed_commands": "Other commands that are killed",
    "damaged_checkpoints": "Damaged checkpoints",
    "hostile_folders": "Folders from strangers",
    "hostile_files": "Files and configurations from anywhere",
    "numbers": "Numbers at the edge",
    "invariance": "What results do not depend on",
    "statistics": "Samples and the target that they were asked from",
    "load": "Long work and large files",
    "set_up": "Setting up",
}

HEAD = """\
# Reliability

Made by `make reliability` and `make soak` from what the tests in `tests/reliability/` found; do not edit. Each row held
in every one of its cases, or this page would not have been written. "Killed" is SIGKILL, half of the time with
everything lost that had not been flushed to the disk; "resumed without a hand" means that the same command was run
again, and nothing else done.
`make test-all` runs most of them, with fewer cases; `make test-slow` the rest.
"""


def page(*tables: Table) -> str:
    """The whole page."""
    parts = [HEAD]
    results = [result for table in tables for result in table.results]
    for file, title in PARTS.items():
        rows = [result for result in results if result.measure == file]
        if rows:
            lines = ((row.system, f"{row.value:,.0f}", row.note) for row in rows)
            parts.append(f"## {title}\n\n" + grid(("what", "cases", "what held in each"), lines))
    signatures = dict.fromkeys(f"`{signature_line(result.signature)}`\n" for result in results)
    return "\n".join([*parts, *signatures])


if __name__ == "__main__":
    target = ROOT / "docs" / "reliability.md"
    files = (ROOT / "results" / name for name in ("reliability.json", "soak.json"))
    target.write_text(page(*(load_table(file) for file in files if file.exists())), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
