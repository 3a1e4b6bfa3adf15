"""Outcome of a reproduction: a table of signed numbers, other files, and a sentence on the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reproductions.report import Claim, Result, Table
from reproductions.systems import Cell
from reproductions.verdicts import interval_result
from seqwise.evaluation.metrics import Counts, Sums

HEADINGS = {
    "greedy": "greedy", "beam": "beam", "renormalized-beam": "renormalised beam", "interpolated-beam": "half-raw beam",
    "raw-beam": "raw beam", "soft-beam": "soft beam",
}  # fmt: skip
"""Headings of the decoders' columns in tables; the half-raw beam scores tokens by ``f - log Z / 2``."""
DECODERS = tuple(name for name in HEADINGS if name != "renormalized-beam")
"""Decoders of every model; the renormalised beam needs a language."""


@dataclass(frozen=True)
class Outcome:
    """Results of a reproduction."""

    name: str  # file name of the saved results, without ending
    table: Table  # every number with its interval and signature
    files: Mapping[str, Path] = field(default_factory=dict)  # other output, by kind: "figure", "runs"
    lesson: str = ""  # a sentence on the numbers; by default the verdicts on the claims
    hints: tuple[str, ...] = ()  # commands to try next

    def __post_init__(self) -> None:
        object.__setattr__(self, "lesson", self.lesson or verdicts(self.table.claims))


def verdicts(claims: Iterable[Claim]) -> str:
    """Format claims with their verdicts and evidence, a line each."""
    return "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)


@dataclass(frozen=True)
class Measure:
    """Measure of a decoder's outputs."""

    name: str  # such as "word accuracy"
    count: Callable[[list[tuple[str, ...]]], Counts]
    unit: str = "%"  # "" for a bare ratio

    def scaled(self, number: float) -> float:
        """Convert a number into the measure's unit."""
        return 100 * number if self.unit == "%" else number


def build_outcome(
    name: str,
    title: str,
    cells: Mapping[str, Cell],
    measures: Sequence[Measure],
    *,
    lesson: str,
    files: Mapping[str, Path],
    hints: tuple[str, ...] = (),
    comparisons: Sequence[Result] = (),
    dev: Mapping[str, Mapping[str, Sums]] | None = None,
) -> Outcome:
    """Measure every decoder of the systems of one seed, with bootstrap 95% intervals.

    ``dev`` has the first measure on development data by cell and decoder; with it, each cell's best decoder is marked.
    """
    results: list[Result] = []
    decoders = [decoder for decoder in HEADINGS if all(decoder in cell.outputs for cell in cells.values())]
    for key, cell in cells.items():
        signature = replace(cell.signature, method=f"{name}: {cell.system}")
        on_dev = {} if dev is None else {decoder: sums.value for decoder, sums in dev[key].items()}
        chosen = max(on_dev, key=on_dev.__getitem__, default="")
        for decoder in decoders:
            heading = HEADINGS[decoder]
            if decoder in on_dev:
                value = measures[0].scaled(on_dev[decoder])
                name_on_dev = f"{heading}: {measures[0].name}, dev"
                results.append(Result(cell.system, name_on_dev, value, signature, unit=measures[0].unit))
            for measure in measures:
                each = interval_result(
                    cell.system,
                    f"{heading}: {measure.name}",
                    measure.count(cell.outputs[decoder]),
                    signature,
                    unit=measure.unit,
                    note="chosen on dev" if decoder == chosen and measure is measures[0] else "",
                )
                results.append(each)
        results.append(Result(cell.system, "training seconds", cell.train_seconds, signature, unit="s"))
        results.append(Result(cell.system, "mean log Z", cell.mean_log_partition, signature, unit="nat"))
    return Outcome(name, Table(title, (*results, *comparisons), lesson), files, lesson, hints)
