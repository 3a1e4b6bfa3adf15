"""The pages docs/results/*.md, one per chapter, from results/*.json: settings, numbers and tested claims."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from reproductions.grids import markdown_grid, numbers_of
from reproductions.report import Claim, Curve, Table
from reproductions.result_files import CHAPTERS, ROOT, Chapter, Tables, file_stem, reproduction_of
from reproductions.result_settings import settings_line
from reproductions.tuning import PATIENCE
from reproductions.verdicts import SIGNIFICANT, holm

DOCS = ROOT / "docs"
MADE = "Made by `make figures` from the files in `results/`; do not edit.\n"

READ = """\
Each section has the settings, the numbers and the tested claims of one table or figure
([how to read them](../results.md#how-to-read-the-tables)).
"""

INDEX = f"""\
# Results

{MADE}
[What holds](what-holds.md) gives verdicts on ten ideas. These are the tables behind them, one page per chapter:

{{pages}}
## How to read the tables

The papers' corpora are not freely available; ours are smaller. Compare the direction and size of differences with the
papers, not absolute numbers.

- A number is a mean over seeds. ± is half the width of a bootstrap 95% interval over examples and seeds; with three
  seeds, it understates the variance between seeds.
- **Bold** marks the decoder chosen on development data. Numbers in parentheses are the papers'.
- "Raw beam" uses unnormalised scores f, "half-raw beam" f − log Z / 2.
- Training seconds are CPU time on one thread. "All stages" includes the earlier stages.
- On another processor, rounding alone moves the numbers of trained systems, by up to a point.
- "Minus best control" compares a row with the best row that has no entry in this column. Development data choose that
  row, and the decoder of each.
- An asterisk means p < 0.05.
- "(lowest)" or "(highest)" marks a learning rate at the end of the range tried; a better one may lie outside.
- Table 6.1 has the NLL, in nats per sequence, of energies trained by likelihood (LL), pseudolikelihood (PLL), noise
  contrast (NCE) or as an MLM. "-PLL of PLL" and "-MLM of MLM" are the trained losses themselves, "noise" is the NLL of
  NCE's noise, and "log Z off" the error of its log Z. Rows are palindromes (p) and hidden Markov models of low (h) and
  high (h+) entropy.

A claim **holds** if the difference has the claimed sign with p < 0.05, in a paired bootstrap over examples and seeds
(for exact numbers, a t-test over seeds). It is **reversed** if the opposite sign is significant, and **not seen**
otherwise. "Holds alone" and "reversed alone" mean that the result is no longer significant after Holm's correction for
the other tests of the table. **Not tested** means that no test applies. Theorems and figures are checked but are not
claims. A remark below a table applies to the tables after it as well.

A result file contains every interval and p-value, and the value of each example for each seed, from which
`python -m reproductions.recompute_results FILE` recomputes all intervals, p-values and verdicts and compares them.
"""

MEASURES = re.compile(r"word accuracy|BLEU|macro F1|accuracy")
NUMBERS = re.compile(r"[+-][\d.]+ \[-?[\d.]+, -?[\d.]+\]")

CURVES = """\
Development data during training: the best value so far of each system's last stage, averaged over seeds. A curve
ends in a dot, where the last of its seeds has its best checkpoint. Models with local scores are decoded by the beam
with local scores, models with global scores by the raw beam.
"""
"""Caption of a figure of curves."""


def _unstopped(curves: Iterable[Curve]) -> list[str]:
    """Name the systems with runs that ended after the largest number of epochs, before development data stopped them.

    Example:
        >>> from dataclasses import replace
        >>> rising = Curve("a", 0, "accuracy", 0.0, tuple((float(step), step / 10) for step in range(9)))
        >>> falling = replace(rising, seed=1, points=((1.0, 0.5), *((2.0 + step, 0.1) for step in range(6))))
        >>> _unstopped([rising, falling])
        ['Runs that reached the largest number of epochs before development data stopped them: a 1 of 2.\\n']
    """
    unstopped: dict[str, list[bool]] = {}
    for curve in curves:
        values = [curve.sign * value for _, value in curve.points]
        since_best = len(values) - 1 - values.index(max(values))
        unstopped.setdefault(curve.system, []).append(since_best < PATIENCE)
    counts = [f"{name} {sum(runs)} of {len(runs)}" for name, runs in unstopped.items() if any(runs)]
    line = "Runs that reached the largest number of epochs before development data stopped them"
    return [f"{line}: {'; '.join(counts)}.\n"] if counts else []


def index_page(tables: Tables) -> str:
    """Return docs/results.md, the index of the chapters."""
    lines = []
    for chapter in CHAPTERS:
        count = f"{sum(bool(tables[name]) for name in chapter.names)} of {len(chapter.names)} tables and figures"
        lines.append(f"- [{chapter.title}](results/{chapter.page}.md): {count}.")
    return INDEX.format(pages="\n".join(lines) + "\n")


def chapter_page(chapter: Chapter, tables: Tables) -> str:
    """Return the page of a chapter."""
    lines = [f"# {chapter.title}\n", MADE, READ]
    lines += _missing(chapter, tables)
    first_with: dict[str, str] = {}
    for heading, names in chapter.sections.items():
        lines += _section(heading, names, tables, first_with)
    return _once("\n".join(lines))


def _once(page: str) -> str:
    """Remove each sentence of a note that occurs earlier on the page."""
    seen: set[str] = set()
    blocks = []
    for block in page.split("\n\n"):
        if block[:1] in "|#*`!-":
            blocks.append(block)
            continue
        sentences = [each for each in re.split(r"(?<=\.) (?=[A-Z])", block) if each not in seen]
        seen.update(sentences)
        blocks += [" ".join(sentences)] if sentences else []
    return "\n\n".join(blocks)


def _command(name: str) -> str:
    """Return the command that makes a table."""
    return f"`python -m reproductions {reproduction_of(name)} --results results`"


def _missing(chapter: Chapter, tables: Tables) -> list[str]:
    """List the results that the page lacks."""
    missing = [f"- `results/{name}.json`: {_command(name)} makes it." for name in chapter.names if not tables[name]]
    return ["No results yet:\n", "\n".join(missing) + "\n"] if missing else []


def _files(names: Iterable[str], tables: Tables) -> Iterator[tuple[str, str, Table]]:
    """Yield the name, the scale and the table of each file; of each name the quick scale comes first."""
    for name in names:
        yield from ((name, scale, table) for scale, table in reversed(list(tables[name].items())))


def _section(heading: str, names: Sequence[str], tables: Tables, first_with: dict[str, str]) -> list[str]:
    """Return the tables below a heading, then the claims of all of them.

    ``first_with`` has the first file on the page by its settings; new settings are added.
    """
    (command,) = {_command(name) for name in names}
    lines = [f"## {heading}\n", f"{command}\n"]
    by_stem = {}
    for name, scale, table in _files(names, tables):
        stem = file_stem(name, scale)
        settings = settings_line(name, scale, {result.system for result in table.results})
        first = first_with.setdefault(settings, stem) if settings else stem
        lines += _numbers(stem, settings if first == stem else f"Settings as in `{first}`.", table, heading)
        by_stem[stem] = table
    for kinds in (("claim",), ("theorem", "figure")):
        lines += _claims(by_stem, kinds)
    return lines if by_stem else []


def _numbers(stem: str, settings: str, table: Table, heading: str) -> list[str]:
    """Return the settings, picture, numbers and note of one file."""
    title = table.title.removeprefix(heading).lstrip(":, ")
    seeds = max(len(result.signature.seeds) for result in table.results)
    revision = table.results[0].signature.revision
    origin = f"`{stem}`, {seeds} seed{'s' * (seeds > 1)}, revision {revision}"
    lines = [f"**{title[:1].upper()}{title[1:]}** ({origin}). {settings}".rstrip() + "\n"]
    picture = (DOCS / f"{stem}.png").exists()
    if picture:
        lines.append(f"![{table.title}](../{stem}.png)\n")
    if picture and table.curves:
        lines.append(CURVES)
        lines += _unstopped(table.curves)
    lines += _machines(table)
    if not (picture and stem.startswith("figure-")):
        lines.append(markdown_grid(*numbers_of(table)))
    if table.note:
        lines.append(table.note + "\n")
    return lines


def _machines(table: Table) -> list[str]:
    """Return a note if the times are from several processors."""
    machines = sorted({name for result in table.results for name in result.signature.machine.split("; ")})
    if len({name.rpartition(", ")[0] for name in machines}) < 2:
        return []
    return [f"Seconds are from several machines, which differ in speed: {'; '.join(machines)}.\n"]


def _claims(by_stem: Mapping[str, Table], kinds: Sequence[str]) -> list[str]:
    """Return a table of the claims below a heading, with a column for each of several tables."""
    # These claims are in the last column of their table.
    claims = {
        stem: [
            claim
            for claim in table.claims
            if claim.kind in kinds and not claim.text.endswith("beats the best control.")
        ]
        for stem, table in by_stem.items()
    }
    claims = {stem: in_file for stem, in_file in claims.items() if in_file}
    if not claims:
        return []
    title = "claim" if kinds == ("claim",) else "theorem or figure, checked"
    rows: dict[str, dict[str, str]] = {}
    for stem, in_file in claims.items():
        for claim, alone in zip(in_file, _hold_alone(in_file), strict=True):
            # Corpora have different measures.
            text = claim.text if len(claims) == 1 else MEASURES.sub("quality", claim.text)
            text += " †" * is_ours(claim)
            rows.setdefault(text, {})[stem] = _verdict(claim, " alone" * alone) + _evidence(claim)
    columns = ["evidence"] if len(claims) == 1 else _without_common_start(list(claims))
    lines = ([text, *(cells.get(stem, "") for stem in claims)] for text, cells in rows.items())
    every = [claim for in_file in claims.values() for claim in in_file]
    sources = list(dict.fromkeys(claim.source for claim in every if not is_ours(claim)))
    sources += ["† not in the papers"] * any(map(is_ours, every))
    return [markdown_grid((title, *columns), lines), f"Sources of the claims: {'; '.join(sources)}.\n"]


def is_ours(claim: Claim) -> bool:
    """Whether a claim is in none of the papers."""
    return claim.source == "here" or claim.source.startswith("not in the")


def _hold_alone(claims: Sequence[Claim]) -> list[bool]:
    """Whether each verdict is no longer significant after Holm's correction for the tests of all these claims."""
    tests = {place: p_value for place, claim in enumerate(claims) if (p_value := _p_value(claim)) is not None}
    adjusted = dict(zip(tests, holm(list(tests.values())), strict=True))
    return [adjusted.get(place, 0.0) >= SIGNIFICANT for place in range(len(claims))]


def _p_value(claim: Claim) -> float | None:
    """Return the p-value that decides a claim, the largest of several tests; None if an interval decides."""
    if claim.kind != "claim" or claim.rule not in ("better", "better everywhere"):
        return None
    return max(claim.numbers[3::4], default=None)


def _verdict(claim: Claim, alone: str) -> str:
    """Return the verdict of a claim; theorems and figures have none."""
    if claim.kind != "claim":
        return ""
    if claim.verdict not in ("holds", "reversed"):
        return f"{claim.verdict}: "
    return f"{claim.verdict}{alone}: " if alone else f"**{claim.verdict}**: "


def _evidence(claim: Claim) -> str:
    """Return the number with its interval if the claim itself says what it compares, else all of the evidence."""
    evidence = re.sub(r", (p [<=] [\d.]+|t-test over seeds|\d of \d seeds above)", "", claim.evidence)
    intervals = NUMBERS.findall(evidence)
    if len(intervals) == 1 and not claim.text.startswith("The best") and claim.verdict != "not tested":
        return str(intervals[0])
    return evidence


def _without_common_start(stems: Sequence[str]) -> list[str]:
    """Return names without the parts that all begin with."""
    parts = [stem.split("-") for stem in stems]
    shared = sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False)))
    return ["-".join(part[shared:]) or stem for part, stem in zip(parts, stems, strict=True)]
