"""Write docs/reliability.md from results/reliability.json and results/soak.json."""

from __future__ import annotations

import sys
from pathlib import Path

from reproductions.grids import markdown_grid
from reproductions.report import Table, load_table
from seqwise.evaluation.signature import signature_line

ROOT = Path(__file__).resolve().parent.parent

# Files of tests with their headings, in the order of the page.
PARTS = {
    "killed_training": "Killed training runs and disk failures",
    "killed_commands": "Other killed commands",
    "damaged_checkpoints": "Damaged checkpoints",
    "hostile_folders": "Untrusted folders",
    "hostile_files": "Malformed files and settings",
    "numbers": "Extreme values",
    "invariance": "Invariance",
    "languages": "Outputs inside languages",
    "statistics": "Samplers and diagnostics",
    "load": "Long runs and large files",
    "set_up": "Installation",
}

HEAD = """\
# Reliability

`make reliability` and `make soak` write this page from the tests in `tests/reliability/`; do not edit it. Each row
held in all of its cases; otherwise the page is not written. *Killed* means SIGKILL; in half of the cases, data that had
not been flushed to disk are lost too. `make test-all` runs most of these tests with fewer cases, `make test-slow` the
others. A row holds for its revision of the code; the signatures at the end say when and where it was tested.
"""


def page(*tables: Table) -> str:
    """Return the page."""
    parts = [HEAD]
    results = [result for table in tables for result in table.results]
    for file, title in PARTS.items():
        rows = [result for result in results if result.measure == file]
        if rows:
            lines = ((row.system, f"{row.value:,.0f}", row.note, row.signature.revision or "") for row in rows)
            columns = ("test", "cases", "result in every case", "revision")
            parts.append(f"## {title}\n\n" + markdown_grid(columns, lines))
    signatures = dict.fromkeys(f"`{signature_line(result.signature)}`\n" for result in results)
    return "\n".join([*parts, *signatures])


if __name__ == "__main__":
    target = ROOT / "docs" / "reliability.md"
    files = (ROOT / "results" / name for name in ("reliability.json", "soak.json"))
    target.write_text(page(*(load_table(file) for file in files if file.exists())), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
