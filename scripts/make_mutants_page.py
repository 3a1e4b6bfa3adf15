"""Write docs/mutants.md from results/mutants.json: how many small changes of the code the tests notice."""

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
argument. A sample of all mutants of search, objectives and sampling, drawn with a fixed seed, is run through the tests
that reach the changed function, and through mypy if no test fails. A mutant that neither catches has survived: either
the change makes no difference (an equivalent mutant), for the reason given, or something is not tested. Tests have
been written for what runs of this sample let through, so that of other mutants fewer would be caught; `--seed` of
`scripts/run_mutants.py` draws others. Files and lines are those of the revision in the signature at the end.
"""


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    statuses = list(result["counts"])
    rows = [
        (room, f"{sum(counts.values())}", *(f"{counts.get(status, 0)}" for status in statuses))
        for room, counts in result["by_room"].items()
    ]
    rows.append(("all", f"{result['sampled']}", *(f"{count}" for count in result["counts"].values())))
    survivors = [
        (
            f"`{mutant['file'].removeprefix('src/seqwise/')}:{mutant['line']}`",
            *map(_code, _change(mutant)),
            mutant["reason"] or f"**{mutant['status']}**",
        )
        for mutant in result["survivors"]
    ]
    signature = Signature(**{**result["signature"], "seeds": tuple(result["signature"]["seeds"]), "training": ()})
    parts = [
        HEAD,
        f"{result['sampled']} of {result['mutants']:,} mutants were tested; {_caught(result):.1%} of those that make a"
        " difference were caught.\n",
        markdown_grid(("module", "mutants", *statuses), rows),
        "## Survivors\n",
        markdown_grid(("line", "code", "mutant", "reason"), survivors),
        f"`{signature_line(signature)}`\n",
    ]
    return "\n".join(parts)


def _caught(result: dict[str, Any]) -> float:
    counts = result["counts"]
    caught: int = sum(counts.get(status, 0) for status in ("killed", "timed out", "refused by mypy"))
    return caught / (result["sampled"] - counts.get("changes nothing", 0))


def _change(mutant: dict[str, Any]) -> tuple[str, str]:
    return mutant["before"], mutant["after"]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    target = ROOT / "docs" / "mutants.md"
    target.write_text(page(json.loads((ROOT / "results" / "mutants.json").read_text("utf-8"))), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
