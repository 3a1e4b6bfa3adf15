"""Write docs/mutants.md from results/mutants.json: how many small changes to the code the tests detect."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reproductions.grids import markdown_grid
from seqwise.evaluation.signature import Signature, signature_line

ROOT = Path(__file__).resolve().parent.parent

HEAD = """\
# Mutants

`make mutants` writes this page; do not edit it. A mutant is the code with one small change: another operator, number or
argument. A sample of all mutants of search, objectives and sampling, drawn with a fixed seed, is tested by the tests
that run the changed function, and by mypy if no test fails. A mutant that neither detects has survived: either the
change has no effect (an equivalent mutant), for the reason given, or something is not tested. Tests have been written
for earlier survivors of this sample, so fewer mutants of another sample would be detected; `--seed` of
`scripts/run_mutants.py` draws one. Files and lines are those of the revision in the signature at the end.
"""


def page(result: dict[str, Any]) -> str:
    """Return the page."""
    statuses = list(result["counts"])
    rows = [
        (room, f"{sum(counts.values())}", *(f"{counts.get(status, 0)}" for status in statuses))
        for room, counts in result["by_room"].items()
    ]
    rows.append(("all", f"{result['sampled']}", *(f"{count}" for count in result["counts"].values())))
    survivors = [
        (
            f"`{mutant['file'].removeprefix('src/seqwise/')}:{mutant['line']}`",
            *(f"`{text}`" if text else "" for text in (mutant["before"], mutant["after"])),
            mutant["reason"] or f"**{mutant['status']}**",
        )
        for mutant in result["survivors"]
    ]
    signature = Signature(**{**result["signature"], "seeds": tuple(result["signature"]["seeds"]), "training": ()})
    parts = [
        HEAD,
        f"{result['sampled']} of {result['mutants']:,} mutants were tested; {_detected(result):.1%} of those with an"
        " effect were detected.\n",
        markdown_grid(("module", "mutants", *statuses), rows),
        "## Survivors\n",
        markdown_grid(("line", "code", "mutant", "reason"), survivors),
        f"`{signature_line(signature)}`\n",
    ]
    return "\n".join(parts)


def _detected(result: dict[str, Any]) -> float:
    counts = result["counts"]
    detected: int = sum(counts.get(status, 0) for status in ("killed", "timed out", "refused by mypy"))
    return detected / (result["sampled"] - counts.get("changes nothing", 0))


if __name__ == "__main__":
    target = ROOT / "docs" / "mutants.md"
    target.write_text(page(json.loads((ROOT / "results" / "mutants.json").read_text("utf-8"))), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
