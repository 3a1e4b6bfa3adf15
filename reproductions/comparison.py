"""Tables over several seeds: decoders chosen on development data, controls, paired tests, and claims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reproductions.outcome import HEADINGS, Outcome
from reproductions.report import Claim, Curve, Result, Table
from reproductions.systems import Cell
from reproductions.values import interval_text, values_by_seed, values_of
from reproductions.verdicts import decide, difference_result, interval_result
from seqwise.evaluation.metrics import Comparison, Sums, seed_differences
from seqwise.evaluation.signature import Signature

MARGIN = 0.005  # half a point


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    key: str  # the folder of its systems below that of the seed
    name: str  # as the table prints it
    # the paper's numbers by decoder and part, as in ``{("beam", "test"): 82.42}``
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)


def rows_of(names: Mapping[str, str], published: Mapping[str, Mapping[str, float]] | None = None) -> list[Row]:
    """Make rows by key and name, with the papers' test results by key and decoder."""
    numbers = published or {}
    return [
        Row(key, name, {(decoder, "test"): number for decoder, number in numbers.get(key, {}).items()})
        for key, name in names.items()
    ]


LEARNING_RATE = "learning rate"
"""Measure under which a table lists the learning rates chosen on development data."""


@dataclass(frozen=True)
class Measured:
    """A row with its measurements by decoder, one for each seed."""

    row: Row
    dev: Mapping[str, list[Sums]]
    test: Mapping[str, list[Sums]]
    chosen: str  # the decoder that is best on the development data, in the mean over seeds
    train_seconds: float  # CPU time of all stages, with those of the systems that it starts from; mean over seeds
    mean_log_partition: float  # on the test data, in nats; mean over seeds
    signature: Signature  # of all seeds
    curves: tuple[Curve, ...] = ()  # development metric during training, for each seed
    runs: tuple[Path, ...] = ()  # the folder of each seed's run
    learning_rate: float | None = None  # of its own stage, if chosen on development data
    place_of_rate: str = ""  # among the rates tried: "lowest", "highest" or ""

    def percent(self, part: str, decoder: str) -> float:
        """Return the mean over seeds, in per cent."""
        return 100 * mean_value({"dev": self.dev, "test": self.test}[part][decoder])


def mean_value(measured: Sequence[Sums]) -> float:
    """Return the mean over seeds."""
    return sum(each.value for each in measured) / len(measured)


Count = Callable[[list[tuple[str, ...]]], Sums]
"""A measure of a system's outputs on one part of the data."""


def measure_rows(
    name: str, rows: Sequence[Row], cells: Mapping[str, Cell], seeds: Sequence[int], *, dev: Count, test: Count
) -> dict[str, Measured]:
    """Measure every decoder of every row on development and test data; cells are given by folder, ``seed-N/key``."""
    measured = {}
    for row in rows:
        runs = [cells[f"seed-{seed}/{row.key}"] for seed in seeds]
        decoders = [decoder for decoder in HEADINGS if decoder in runs[0].outputs]
        on_dev = {decoder: [dev(run.dev_outputs[decoder]) for run in runs] for decoder in decoders}
        measured[row.key] = Measured(
            row,
            on_dev,
            {decoder: [test(run.outputs[decoder]) for run in runs] for decoder in decoders},
            max(on_dev, key=lambda decoder: mean_value(on_dev[decoder])),
            sum(run.total_seconds for run in runs) / len(runs),
            sum(run.mean_log_partition for run in runs) / len(runs),
            signature_of_seeds([run.signature for run in runs], method=f"{name}: {row.name}"),
            tuple(replace(run.curve, system=row.name) for run in runs if run.curve),
            tuple(run.run for run in runs),
            runs[0].learning_rate,
            runs[0].place_of_rate,
        )
    return measured


def signature_of_seeds(signatures: Sequence[Signature], *, method: str) -> Signature:
    """Combine the signatures of a row's seeds; if machines, days or versions differ, all are listed.

    Example:
        >>> from seqwise.evaluation.signature import sign
        >>> here, there = (sign(f"row ({seed})", seeds=[seed], data="0" * 64) for seed in range(2))
        >>> row = signature_of_seeds([here, replace(there, machine="a toaster")], method="row")
        >>> row.seeds, row.machine.endswith("; a toaster")
        ((0, 1), True)
    """
    joined: dict[str, Any] = {
        key: "; ".join(dict.fromkeys(value for each in signatures if (value := getattr(each, key)) is not None)) or None
        for key in ("seqwise", "torch", "python", "machine", "date", "revision")
    }
    seeds = tuple(dict.fromkeys(seed for each in signatures for seed in each.seeds))
    return replace(signatures[0], method=method, seeds=seeds, **joined)


def best_on_dev(measured: Mapping[str, Measured], keys: Collection[str], *, decoder: str | None = None) -> Measured:
    """Return the best row on development data, by a decoder or by each row's own best."""
    return max((measured[key] for key in keys), key=lambda row: row.percent("dev", decoder or row.chosen))


# ---------------------------------------------------------------------------------------- claims


def examine(
    text: str, source: str, better: Measured, worse: Measured, *, decoders: tuple[str, str] | None = None
) -> Claim:
    """Test that one row is better than another, by default each with its chosen decoder."""
    ours, theirs = decoders or (better.chosen, worse.chosen)
    names = [
        f"{row.row.name} {row.percent('test', decoder):.1f} ({HEADINGS[decoder]})"
        for row, decoder in ((better, ours), (worse, theirs))
    ]
    return judge(text, source, better.test[ours], worse.test[theirs], prefix=f"{names[0]} against {names[1]}: ")


Statement = tuple[str, str, str]
"""A claim, and the keys of the systems that it says are better and worse."""


def examine_all(
    measured: Mapping[str, Measured],
    source: str,
    *statements: Statement,
    decoder_of: Callable[[str], str] | None = None,
) -> list[Claim]:
    """Test statements of one source; ``decoder_of`` maps the key of a system to its decoder."""
    return [
        examine(
            text,
            source,
            measured[better],
            measured[worse],
            decoders=None if decoder_of is None else (decoder_of(better), decoder_of(worse)),
        )
        for text, better, worse in statements
    ]


def judge(
    text: str, source: str, larger: Sequence[Sums], smaller: Sequence[Sums], *, prefix: str = "", scale: float = 100.0
) -> Claim:
    """Test that the first is larger than the second, by a paired bootstrap over examples and seeds.

    It holds if the difference is above 0 with p < 0.05, and is reversed if it is below. The evidence begins with the
    prefix; its numbers are multiplied by the scale.
    """
    return _decided("better", text, source, larger, smaller, prefix, scale)


def no_worse(
    text: str, source: str, first: Sequence[Sums], second: Sequence[Sums], *, prefix: str = "", margin: float = MARGIN
) -> Claim:
    """Test for non-inferiority: that the first is worse than the second by at most a margin.

    The 95% interval decides, because a difference that is not significant need not be small.
    """
    return _decided(f"no worse by {margin:g}", text, source, first, second, prefix, 100.0)


def judge_by_seed(
    text: str,
    source: str,
    larger: Sequence[float],
    smaller: Sequence[float],
    *,
    prefix: str = "",
    unit: str = " nats",
    digits: int = 3,
) -> Claim:
    """Test that the first is larger than the second, by a paired t-test over seeds, for numbers exact for each seed.

    It holds if Student's 95% interval of the mean difference lies above 0, and is reversed if it lies below.
    """
    values = (values_by_seed(larger), values_by_seed(smaller))
    verdict, numbers = decide("by seed", *values)
    evidence = f"{prefix}{numbers[0]:+.{digits}f}, one seed, no interval"
    if len(numbers) > 1:
        above = sum(ours > theirs for ours, theirs in zip(larger, smaller, strict=True))
        evidence = f"{prefix}{interval_text(numbers, digits=digits)}{unit}, {above} of {len(larger)} seeds above"
    return Claim(text, source, verdict, evidence, rule="by seed", values=values, numbers=numbers)


def _decided(
    rule: str, text: str, source: str, first: Sequence[Sums], second: Sequence[Sums], prefix: str, scale: float
) -> Claim:
    values = (values_of(first), values_of(second))
    verdict, numbers = decide(rule, *values)
    evidence = f"{prefix}{evidence_of(numbers, first, second, scale)}"
    return Claim(text, source, verdict, evidence, rule=rule, values=values, numbers=numbers)


def evidence_of(numbers: Sequence[float], first: Sequence[Sums], second: Sequence[Sums], scale: float) -> str:
    """Format the numbers of a paired bootstrap, with the number of seeds at which the first is larger."""
    test = Comparison(*numbers)
    p = "p < 0.001" if test.p_value < 0.001 else f"p = {test.p_value:.3f}"
    interval = interval_text(test[:3], digits=1 if scale == 100 else 2, scale=scale)
    return f"{interval}, {p}, {seeds_above(first, second)} seeds above"


def seeds_above(first: Sequence[Sums], second: Sequence[Sums]) -> str:
    """Count the seeds at which the first is larger, as "2 of 3"."""
    differences = seed_differences(first, second)
    return f"{sum(difference > 0 for difference in differences)} of {len(differences)}"


# ---------------------------------------------------------------------------------------- tables


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
    """Make the table: every number with its interval, each row against the best control, and the claims."""
    control = best_on_dev(measured, [key for key in controls if key in measured])
    decoders = list(control.dev)
    results: list[Result] = []
    for key, row in measured.items():
        for decoder in decoders:
            results += _results_of(row, decoder, f"{HEADINGS[decoder]}: {measure}")
        results.append(Result(row.row.name, "training seconds, all stages", row.train_seconds, row.signature, unit="s"))
        results.append(Result(row.row.name, "mean log Z", row.mean_log_partition, row.signature, unit="nat"))
        if row.learning_rate is not None:
            rate = row.learning_rate, row.signature
            results.append(Result(row.row.name, LEARNING_RATE, *rate, unit="", note=row.place_of_rate))
        if key not in controls:
            results.append(_against(row, control, measure))
    curves = tuple(curve for row in measured.values() for curve in row.curves)
    return Outcome(name, Table(title, tuple(results), claims=tuple(claims), curves=curves), files)


def _results_of(row: Measured, decoder: str, measure: str) -> list[Result]:
    name, note = row.row.name, "chosen on dev" if decoder == row.chosen else ""
    dev, test = (row.row.published.get((decoder, part)) for part in ("dev", "test"))
    return [
        Result(name, f"{measure}, dev", row.percent("dev", decoder), row.signature, published=dev),
        interval_result(name, measure, row.test[decoder], row.signature, published=test, note=note),
    ]


def _against(row: Measured, control: Measured, measure: str) -> Result:
    return difference_result(
        row.row.name,
        f"{measure} minus best control",
        row.test[row.chosen],
        control.test[control.chosen],
        row.signature,
        note=f"{HEADINGS[row.chosen]} against {control.row.name} ({HEADINGS[control.chosen]}), both chosen on dev",
    )
