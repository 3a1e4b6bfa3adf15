"""Write docs/results.md from results/*.json: every table, its claims, and the command that makes it again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from seqwise.evaluation.report import Result, Table, load_table
from seqwise.evaluation.signature import signature_line
from seqwise.evaluation.verdicts import recompute

ROOT = Path(__file__).resolve().parent.parent

# In the order of the page: file, and the reproduction that writes it.
PAGES = {
    "table-3.1-ner": "table-3.1",
    "table-3.1-translation": "table-3.1",
    "table-3.2": "table-3.2",
    "table-4.1": "table-4.1",
    "table-4.2": "table-4.2",
    **{f"table-5.1-supertags{corpus}": "table-5.1" for corpus in ("", "-ewt", "-erg")},
    "table-5.1-translation": "table-5.1",
    **{
        f"table-{number}-{corpus}-{direction}": f"table-{number}"
        for number in ("5.2", "5.3")
        for corpus in ("pmb", "ewt", "erg")
        for direction in ("uni", "bi")
    },
    "table-5.4": "table-5.4",
    "table-5.5": "table-5.5",
    "table-5.6": "table-5.6",
    "transformer-translation-transformer": "transformer-translation",
    "transformer-translation-marian": "transformer-translation",
    "raw-scores": "raw-scores",
    "andreas-klein-1": "andreas-klein-1",
    "andreas-klein-2": "andreas-klein-2",
    "figure-1": "figure-1",
    "search-objectives-pmb": "search-objectives",
    "search-objectives-ner": "search-objectives",
    "search-objectives-stress": "search-objectives",
    "improvements-pmb": "improvements",
    "improvements-ner": "improvements",
    "improvements-g2p": "improvements",
    "table-6.1": "table-6.1",
    "table-6.1-phonemes": "table-6.1",
    "figure-6.1": "figure-6.1",
    **{
        f"{kind}-{number}-{task}": f"{kind}-{number}"
        for kind, number, tasks in (
            *(("table", number, ("translation", "g2p", "phonemes")) for number in ("6.2", "6.3", "6.4", "6.5")),
            ("table", "6.6", ("translation", "translation-ro", "g2p")),
            *(("figure", number, ("translation", "g2p", "phonemes")) for number in ("6.2", "6.3", "6.4")),
        )
        for task in tasks
    },
    "proteins": "proteins",
    "figure-3.1": "figure-3.1",
    "label-bias-toy": "label-bias-toy",
    "stress": "stress",
    "g2p": "g2p",
}

# Results that other pages show.
ELSEWHERE = ("reliability", "soak")
# What the papers have and no reproduction makes.
NOT_REPRODUCED = {"figure-6.1-phonemes": "Figure 6.1 on phoneme sequences"}
TRAINED = ("table-3.1-ner", "table-3.1-translation", "table-3.2", "table-4.1", "table-4.2")

HEAD = """\
# Results

Made by `python -m reproductions.make_results_page` from the files in `results/`; do not edit.

The papers' corpora cannot be had openly, so ours are others, and smaller: **directions and sizes of differences can be
compared with the papers', absolute numbers cannot.** Tables over several seeds give the mean; ± is half of a bootstrap
95% interval over examples and seeds, which understates the seeds' part where there are only three. In those tables the
decoder of each system is chosen on development data (bold). A claim **holds** if the difference has its sign with
p < 0.05 in a paired bootstrap over examples and seeds, is **reversed** if the opposite is so, and otherwise was
**not seen**; it was **not tested** where no test would say anything. p-values are not corrected for the number of
claims. (Table and Figure 6.1 are exact, so that only seeds vary: t-tests over seeds.) Theorems, and what a figure
draws, are checked where they stand and are not counted as claims. What the papers lack is in every table of Chapters 3
to 5: cross-entropy trained longer, and beams over scores that are not normalised ("raw") or half normalised
("half-raw", f − log Z / 2).

Training seconds are on one busy core. Where the column says "all stages" they count from new weights on; elsewhere they
are of a system's last stage alone. In Tables 3.1 to 4.2 the searches and feedings had {shortest:.0%} to {longest:.0%}
of the time of the longer cross-entropy. The translators of Table 3.1 had minutes of training on 27,473 short pairs and
are far from converged: what more training gives is more there than anywhere else.

Tables 3.1 (named entities) to 4.2 and the search-aware objectives have been made twice, from new weights both times and
at two revisions; they came out the same to every digit but for the seconds. The numbers here are those of the second
time, when each table was written by its command in one run.

`python scripts/recompute_results.py` computes every interval, p-value and verdict of a file again from what each
example adds, which the file has for each system, decoder and training seed. Files made before this was kept say so.
"""


def page(folder: Path) -> str:
    """The whole page."""
    tables = load_tables(folder)
    claims = [
        (f"**{claim.verdict}**", claim.text, claim.source, table.title)
        for table in tables.values()
        for claim in table.claims
        if claim.kind == "claim"
    ]
    shares = [share for name in TRAINED if name in tables for share in _shares_of_time(tables[name])] or [1.0]
    parts = [HEAD.format(shortest=min(shares), longest=max(shares)), _missing(tables)]
    if claims:
        titles = ("verdict", "claim", "made in", "table")
        parts.append("## The claims at a glance\n\n" + grid(titles, claims))
    for name, table in tables.items():
        parts.append(_section(name, table))
    return "\n".join(parts)


def load_tables(folder: Path) -> dict[str, Table]:
    """The results that the page shows, in its order.

    Raises:
        SystemExit: the folder has results that no page shows.
    """
    unshown = {path.stem for path in folder.glob("*.json")} - {*PAGES, *ELSEWHERE}
    if unshown:
        raise SystemExit(
            f"no page shows {', '.join(sorted(unshown))}; add them to PAGES in reproductions/make_results_page.py"
        )
    return {name: load_table(folder / f"{name}.json") for name in PAGES if (folder / f"{name}.json").exists()}


def _missing(tables: Mapping[str, Table]) -> str:
    """What should be on the page and is not."""
    lines = [
        f"- `results/{name}.json`: `python -m reproductions {reproduction}` makes it."
        for name, reproduction in PAGES.items()
        if name not in tables
    ]
    lines += [f"- {title}: not reproduced yet." for name, title in NOT_REPRODUCED.items() if name not in tables]
    return "Not made yet, and so not on this page:\n\n" + "\n".join(lines) + "\n"


def _shares_of_time(table: Table) -> list[float]:
    """The training time of each row after the common start, as a share of that of the longer cross-entropy."""
    seconds = {one.system: one.value for one in table.results if one.measure == "training seconds, all stages"}
    start, longer = seconds.pop("cross-entropy", 0.0), seconds.pop("cross-entropy, longer", 1.0)
    return [(each - start) / (longer - start) for each in seconds.values()]


def _section(name: str, table: Table) -> str:
    command = f"python -m reproductions {PAGES[name]} --results results"
    lines = [f"## {table.title}\n", f"`{command}` writes `results/{name}.json`.\n"]
    if (ROOT / "docs" / f"{name}.png").exists():
        lines.append(f"![{table.title}]({name}.png)\n")
    lines.append(_numbers(table))
    for heading, claims in (
        ("claim", [claim for claim in table.claims if claim.kind == "claim"]),
        ("theorem or figure, checked", [claim for claim in table.claims if claim.kind != "claim"]),
    ):
        if claims:
            rows = ((f"**{claim.verdict}**", claim.text, claim.evidence, claim.source) for claim in claims)
            lines.append(grid(("verdict", heading, "evidence (test)", "made in"), rows))
    if any(problem == "no values" for _, problem in recompute(table)):
        lines.append("The file lacks what each example adds: its intervals and p-values cannot be computed again.\n")
    if table.note:
        lines.append(table.note + "\n")
    # Rows differ in method alone, or in when they were made.
    signatures = dict.fromkeys(signature_line(replace(result.signature, method=name)) for result in table.results)
    lines += [f"`{line}`\n" for line in signatures]
    return "\n".join(lines)


def _numbers(table: Table) -> str:
    """Systems down, decoders across; what was measured on dev, and further measures, stay in the JSON."""
    measure = table.results[0].measure.partition(": ")[2].removesuffix(", dev")
    others = {f": {name}" for name in _measures(table) if name != measure}
    on_test = {result.measure for result in table.results}
    shown = [
        result
        for result in table.results
        if not result.measure.endswith(tuple(others)) and not _is_beside_test(result.measure, on_test)
    ]
    measures = list(dict.fromkeys(result.measure for result in shown))
    found = {(result.system, result.measure): result for result in shown}
    rows = (
        [system, *(_cell(found.get((system, measure))) for measure in measures)]
        for system in dict.fromkeys(result.system for result in shown)
    )
    titles = [title.removesuffix(f": {measure}").removeprefix(f"{measure} ") for title in measures]
    return (f"{measure[:1].upper()}{measure[1:]}, %:\n\n" if measure else "") + grid(("", *titles), rows)


def _is_beside_test(measure: str, measures: set[str]) -> bool:
    """Whether this is on dev what another one is on test."""
    return measure.endswith(", dev") and measure.removesuffix(", dev") in measures


def _measures(table: Table) -> list[str]:
    """What is measured of each decoder, such as "words right"."""
    names = (result.measure.partition(": ")[2].removesuffix(", dev") for result in table.results)
    return list(dict.fromkeys(name for name in names if name and " minus " not in name))


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    form = {"%": ".1f", "s": ".0f", "nat": ".2f"}.get(result.unit, ".3g")
    text = f"{result.value:{form}}"
    if result.p_value is not None:
        p = "p < 0.001" if result.p_value < 0.001 else f"p = {result.p_value:.3f}"
        return f"{result.value:+.1f} [{result.low:.1f}, {result.high:.1f}], {p}"
    if result.low is not None and result.high is not None:
        text += f" ± {(result.high - result.low) / 2:{form}}"
    if result.note == "chosen on dev":
        text = f"**{text}**"
    return text if result.published is None else f"{text} (paper {result.published:.2f})"


def grid(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    target = ROOT / "docs" / "results.md"
    target.write_text(page(ROOT / "results"), encoding="utf-8")
    print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
