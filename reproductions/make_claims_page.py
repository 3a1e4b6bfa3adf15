"""Write docs/claims.md from the claims in results/*.json: what each paper says, and what came of it here."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from reproductions.make_results_page import grid, load_tables
from seqwise.evaluation.report import VERDICTS, Claim, Table

ROOT = Path(__file__).resolve().parent.parent

# In the order of the page: heading, and what a source begins with.
PAPERS = {
    "Andreas and Klein, NAACL 2015": ("Andreas and Klein", "section 3, Theorem", "section 4, Theorem"),
    "Goyal, Neubig, Dyer and Berg-Kirkpatrick, AAAI 2018": ("AAAI 2018",),
    "Goyal, Dyer and Berg-Kirkpatrick, NAACL 2019": ("NAACL 2019",),
    "Goyal, thesis, 2021": ("thesis", "Goyal's thesis"),
    "In none of the papers": ("not in the", "here"),
}

HEAD = """\
# What the papers claim, and what we found

Made by `python -m reproductions.make_claims_page` from the claims in `results/`; do not edit.

A claim **holds** where the difference has its sign with p < 0.05, is **reversed** where the opposite is so, and
otherwise was **not seen**; it was **not tested** where no test would say anything. Theorems, and what a figure draws,
are checked and not counted. The corpora are smaller than the papers', and others; most tables have three or five seeds;
p-values are not corrected for the number of claims. So a claim that was not seen may well hold elsewhere. The numbers
behind a verdict, and the test, are in [the results](results.md), under the table that it links to. The last section has
what the papers leave out, the controls above all. What to make of it in practice: [how to choose](how-to-choose.md).
"""


def page(folder: Path) -> str:
    """The whole page."""
    tables = load_tables(folder)
    parts = [HEAD, _overview(tables)]
    for paper in PAPERS:
        found = _by_claim((table, claim) for table in tables.values() for claim in table.claims if _is_of(paper, claim))
        if found:
            rows = ((text, source, _verdicts(made)) for (text, source), made in found.items())
            parts.append(f"## {paper}\n\n{grid(('claim', 'made in', 'found'), rows)}")
    return "\n".join(parts)


def _is_of(paper: str, claim: Claim) -> bool:
    """Whether a claim is listed under a paper: the first that its source begins with."""
    fitting = (name for name, beginnings in PAPERS.items() if claim.source.startswith(beginnings))
    name = next(fitting, None)
    if name is None:
        raise ValueError(f"no heading for the source {claim.source!r}")
    return name == paper


def _by_claim(found: Iterable[tuple[Table, Claim]]) -> dict[tuple[str, str], list[tuple[Table, Claim]]]:
    """Claims with the same words and source, with the tables that have them."""
    groups: dict[tuple[str, str], list[tuple[Table, Claim]]] = {}
    for table, claim in found:
        groups.setdefault((claim.text, claim.source), []).append((table, claim))
    return groups


def _verdicts(made: Iterable[tuple[Table, Claim]]) -> str:
    return "; ".join(
        f"**{claim.verdict}**{'' if claim.kind == 'claim' else f' ({claim.kind}, checked)'} "
        f"([{table.title}](results.md#{slug(table.title)}))"
        for table, claim in made
    )


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _overview(tables: Mapping[str, Table]) -> str:
    claims = [claim for table in tables.values() for claim in table.claims if claim.kind == "claim"]
    rows = []
    for paper in PAPERS:
        counts = Counter(claim.verdict for claim in claims if _is_of(paper, claim))
        rows.append((paper, *(str(counts[verdict]) for verdict in VERDICTS)))
    return grid(("tests of claims", *VERDICTS), rows)


if __name__ == "__main__":
    target = ROOT / "docs" / "claims.md"
    target.write_text(page(ROOT / "results"), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
