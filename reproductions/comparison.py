"""Tables over several seeds: decoders chosen on development data, controls, paired tests, and claims put to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import rich.box
import rich.table
from rich.text import Text

from reproductions.outcome import HEADINGS, Outcome
from reproductions.systems import Cell
from seqwise.evaluation.metrics import Comparison, Sums, seed_differences
from seqwise.evaluation.report import Claim, Curve, Result, Table
from seqwise.evaluation.signature import Signature
from seqwise.evaluation.values import values_of
from seqwise.evaluation.verdicts import SIGNIFICANT, decide, difference_result, interval_result

MARGIN = 0.005  # half a point


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    key: str  # the folder of its systems below that of the seed
    name: str  # as the table prints it
    # the paper's numbers by decoder and part, as in ``{("beam", "test"): 82.42}``
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A row with what was measured: by decoder, one measurement for each seed."""

    row: Row  # what it is
    # by decoder
    dev: Mapping[str, list[Sums]]
    test: Mapping[str, list[Sums]]
    chosen: str  # the decoder that is best on the development data, in the mean over seeds
    train_seconds: float  # CPU time of its stages, those of the systems that it starts from among them; mean over seeds
    mean_log_partition: float  # mean log Z on the test data, in nats, mean over seeds
    signature: Signature  # that of the first seed, with all seeds in it
    curves: tuple[Curve, ...] = ()  # the development metric while it was trained, of each seed

    def percent(self, part: str, decoder: str) -> float:
        """The mean over seeds, in per cent."""
        return 100 * _mean({"dev": self.dev, "test": self.test}[part][decoder])


Count = Callable[[list[tuple[str, ...]]], Sums]
"""A measure of a system's outputs on one part of the data."""


def measure_rows(
    name: str, rows: Sequence[Row], cells: Mapping[str, Cell], seeds: Sequence[int], *, dev: Count, test: Count
) -> dict[str, Measured]:
    """Measure every decoder of every row on both parts."""
    measured = {}
    for row in rows:
        runs = [cells[f"seed-{seed}/{row.key}"] for seed in seeds]
        decoders = [decoder for decoder in HEADINGS if decoder in runs[0].outputs]
        on_dev = {decoder: [dev(run.dev_outputs[decoder]) for run in runs] for decoder in decoders}
        measured[row.key] = Measured(
            row,
            on_dev,
            {decoder: [test(run.outputs[decoder]) for run in runs] for decoder in decoders},
            max(on_dev, key=lambda decoder: _mean(on_dev[decoder])),
            sum(run.total_seconds for run in runs) / len(runs),
            sum(run.mean_log_partition for run in runs) / len(runs),
            replace(runs[0].signature, method=f"{name}: {row.name}", seeds=tuple(seeds)),
            tuple(replace(run.curve, system=row.name) for run in runs if run.curve),
        )
    return measured


def best_on_dev(measured: Mapping[str, Measured], keys: Collection[str], *, decoder: str | None = None) -> Measured:
    """Of these rows, the one that does best on the development data, by a decoder or by each one's own best."""
    return max((measured[key] for key in keys), key=lambda one: one.percent("dev", decoder or one.chosen))


def examine(
    text: str, source: str, better: Measured, worse: Measured, *, decoders: tuple[str, str] | None = None
) -> Claim:
    """Put "this is better than that" to a paired test."""
    ours, theirs = decoders or (better.chosen, worse.chosen)
    names = [
        f"{one.row.name} {one.percent('test', decoder):.1f} ({HEADINGS[decoder]})"
        for one, decoder in ((better, ours), (worse, theirs))
    ]
    return judge(text, source, better.test[ours], worse.test[theirs], said=f"{names[0]} against {names[1]}: ")


def judge(
    text: str, source: str, better: Sequence[Sums], worse: Sequence[Sums], *, said: str = "", scale: float = 100.0
) -> Claim:
    """Put "the first is larger than the second" to a paired test over examples and seeds."""
    return _decided("better", text, source, better, worse, said, scale)


def no_worse(
    text: str,
    source: str,
    first: Sequence[Sums],
    second: Sequence[Sums],
    *,
    said: str = "",
    margin: float = MARGIN,
) -> Claim:
    """Put "the first is worse by no more than a margin, if at all" to a paired test: non-inferiority.

    That a difference is not significant is no evidence that there is none, so the 95% interval decides.
    """
    return _decided(f"no worse by {margin:g}", text, source, first, second, said, 100.0)


def _decided(
    rule: str, text: str, source: str, first: Sequence[Sums], second: Sequence[Sums], said: str, scale: float
) -> Claim:
    values = (values_of(first), values_of(second))
    verdict, numbers = decide(rule, *values)
    evidence = f"{said}{_difference(Comparison(*numbers), scale)}, {_seeds_above(first, second)}"
    return Claim(text, source, verdict, evidence, rule=rule, values=values, numbers=numbers)


def _seeds_above(first: Sequence[Sums], second: Sequence[Sums]) -> str:
    differences = seed_differences(first, second)
    return f"{sum(difference > 0 for difference in differences)} of {len(differences)} seeds above"


def compare(
    name: str,
    title: str,
    measured: Mapping[str, Measured],
    *,
    measure: str,
    controls: Collection[str],
    claims: Sequence[Claim],
    files: Mapping[str, Path],
) -> Outcome:
    """The table: every number with its interval, each row against the best control, and the claims."""
    control = best_on_dev(measured, controls)
    results: list[Result] = []
    grid = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    grid.add_column("system", overflow="fold")
    decoders = list(control.dev)
    for heading in (*(HEADINGS[decoder].split("-")[0].split()[0] for decoder in decoders), "to control"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for key, one in measured.items():
        for decoder in decoders:
            results += _results_of(one, decoder, f"{HEADINGS[decoder]}: {measure}")
        results.append(Result(one.row.name, "training seconds, all stages", one.train_seconds, one.signature, unit="s"))
        results.append(Result(one.row.name, "mean log Z", one.mean_log_partition, one.signature, unit="nat"))
        last = "the control" if one is control else "control" if key in controls else ""
        if key not in controls:
            against = _against(one, control, measure)
            results.append(against)
            last = f"{against.value:+.1f}" + ("*" if (against.p_value or 0.0) < SIGNIFICANT else " ")
        grid.add_row(one.row.name, *(_cell(one, decoder) for decoder in decoders), last)
    grid.caption = (
        f"{measure} on test, mean over seeds, in brackets the paper's; bold: the decoder chosen on dev; half: beam "
        "over f - log Z / 2; "
        f"to control: difference to {control.row.name} ({HEADINGS[control.chosen]}), * where p < 0.05"
    )
    grid.caption_justify = "left"
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    curves = tuple(curve for one in measured.values() for curve in one.curves)
    return Outcome(name, Table(title, tuple(results), claims=tuple(claims), curves=curves), grid, lesson, files)


def _cell(one: Measured, decoder: str) -> Text:
    """Our number, and below it the paper's, which is of another corpus."""
    cell = Text(f"{one.percent('test', decoder):.1f}", "bold" if decoder == one.chosen else "")
    published = one.row.published.get((decoder, "test"))
    return cell if published is None else cell.append(f"\n({published:.1f})", "not bold dim")


def _results_of(one: Measured, decoder: str, measure: str) -> list[Result]:
    note = "chosen on dev" if decoder == one.chosen else ""
    published = {part: one.row.published.get((decoder, part)) for part in ("dev", "test")}
    return [
        Result(one.row.name, f"{measure}, dev", one.percent("dev", decoder), one.signature, published=published["dev"]),
        interval_result(
            one.row.name, measure, one.test[decoder], one.signature, published=published["test"], note=note
        ),
    ]  # fmt: skip


def _against(one: Measured, control: Measured, measure: str) -> Result:
    return difference_result(
        one.row.name,
        f"{measure} minus best control",
        one.test[one.chosen],
        control.test[control.chosen],
        one.signature,
        note=f"{HEADINGS[one.chosen]} against {control.row.name} ({HEADINGS[control.chosen]}), both chosen on dev",
    )


def _difference(test: Comparison, scale: float = 100.0) -> str:
    p = "p < 0.001" if test.p_value < 0.001 else f"p = {test.p_value:.3f}"
    digits = 1 if scale == 100 else 2
    low, high = (f"{scale * end:.{digits}f}" for end in (test.low, test.high))
    return f"{scale * test.difference:+.{digits}f} [{low}, {high}], {p}"


def _mean(measured: Sequence[Sums]) -> float:
    return sum(one.value for one in measured) / len(measured)
