"""Tables of samplers: measures of their states, energies, novelty and acceptance, and claims about them.

States are chosen in three ways, and all are reported. *Samples*: every state after the burn-in of 7 sweeps, pooled for
the corpus measure, as the thesis averages over epochs. *Last*: the last state of each chain. *Lowest*: the state of
each chain with the lowest energy that it samples from (E_local if it follows no energy).

Shapes: N sentences, C chains of each, S sweeps, K sums of the measure.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from reproductions import Setup
from reproductions.comparison import judge, judge_by_seed, signature_of_seeds
from reproductions.goyal_2021.sampler_cells import SamplerCell, SamplerSpec, run_samplers
from reproductions.goyal_2021.sampler_tasks import SamplerTask
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.verdicts import interval_result, student_result
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import Signature


def scale_of(unit: str) -> float:
    """Return the factor from a fraction to a unit, "%" or another."""
    return 100.0 if unit == "%" else 1.0


@dataclass(frozen=True)
class Quantity:
    """Number of a cell that can be resampled over sentences."""

    name: str  # as printed; "{measure}" stands for that of the task
    of: Callable[[SamplerCell], Sums | None]  # its sums; None if a cell has no such number
    unit: str = "%"  # "%", "nat" or "" for a bare number


def by_states(cell: SamplerCell, states: str) -> npt.NDArray[np.bool_] | None:
    """Return which states (N, C, S) are "samples", "last" or "lowest"; None if a sampler has none such."""
    energy_NCS = cell.numbers[f"{cell.spec.settings.energy}_NCS"]
    chosen_NCS = np.zeros(energy_NCS.shape, dtype=bool)
    if energy_NCS.shape[2] == 1 and not cell.spec.draws_chains:  # one output: there is nothing to choose
        return ~chosen_NCS if states == "last" else None
    if states == "last":
        chosen_NCS[:, :, -1] = True
        return chosen_NCS if cell.spec.draws_chains else None  # candidates have no order
    if states == "samples":
        chosen_NCS[:, :, cell.discard :] = True
    else:
        np.put_along_axis(chosen_NCS, energy_NCS.argmin(2)[:, :, None], True, 2)
    return chosen_NCS


def _measure(states: str, cell: SamplerCell) -> Sums | None:
    chosen_NCS = by_states(cell, states)
    if cell.combine is None or chosen_NCS is None:
        return None
    sums_NCSK = cell.numbers["sums_NCSK"].astype(np.float64)
    return Sums((sums_NCSK * chosen_NCS[..., None]).sum((1, 2)), cell.combine)


def _energy(states: str, cell: SamplerCell) -> Sums | None:
    chosen_NCS = by_states(cell, states)
    if chosen_NCS is None:
        return None
    return Counts((cell.numbers["local_NCS"] * chosen_NCS).sum((1, 2)), chosen_NCS.sum((1, 2)))


def _rate(name: str, cell: SamplerCell) -> Sums | None:
    if not cell.spec.draws_chains:
        return None
    counted = slice(cell.discard, None)
    above_N, below_N = (cell.numbers[f"{each}_NCS"][:, :, counted].sum((1, 2)) for each in (name, "proposals"))
    return Counts(above_N, below_N)


def _ess_per_pass(cell: SamplerCell) -> Sums | None:
    if "ess_N" not in cell.numbers or not np.isfinite(cell.numbers["ess_N"]).all():
        return None
    chains = cell.numbers["local_NCS"].shape[1]
    return Counts(1000 * cell.numbers["ess_N"], chains * cell.numbers["passes_N"])


def _agreement(cell: SamplerCell) -> Sums | None:
    several = "agree_N" in cell.numbers and cell.numbers["local_NCS"].shape[1] > 1
    return Counts(cell.numbers["agree_N"]) if several else None


QUANTITIES = {
    "samples": Quantity("{measure}, samples", partial(_measure, "samples")),
    "last": Quantity("{measure}, last state", partial(_measure, "last")),
    "lowest": Quantity("{measure}, lowest energy", partial(_measure, "lowest")),
    "energy": Quantity("E_local, samples", partial(_energy, "samples"), "nat"),
    "last energy": Quantity("E_local, last state", partial(_energy, "last"), "nat"),
    "lowest energy": Quantity("E_local, lowest energy", partial(_energy, "lowest"), "nat"),
    "novel": Quantity("novel", partial(_rate, "novel")),
    "acceptance": Quantity("acceptance", partial(_rate, "accepted")),
    "passes": Quantity("passes", lambda cell: Counts(cell.numbers["passes_N"]), ""),
    "ess": Quantity("ESS per 1,000 passes", _ess_per_pass, ""),
    "agree": Quantity("all chains end alike", _agreement),
}
"""Quantities by key; energies are in nats per sentence, passes are per chain (for all candidates)."""
MEASURES = ("samples", "last", "lowest")
"""The :data:`QUANTITIES` that are the measure of the task, by choice of states."""


@dataclass(frozen=True)
class SamplerRow:
    """Row of a table."""

    name: str
    spec: SamplerSpec
    # The thesis' numbers for German to English by keys of QUANTITIES: fractions, and energies of its set in thousands.
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Measured:
    """Row with its cells, one for each seed."""

    name: str
    task: SamplerTask
    cells: Sequence[SamplerCell]
    published: Mapping[str, float] = field(default_factory=dict)  # see SamplerRow; empty for other tasks
    chosen: str = ""  # one of MEASURES, chosen on development data; "" without a choice

    def sums(self, quantity: str) -> list[Sums] | None:
        """Return a quantity for each seed, or None if this row has none such."""
        return each_or_none([QUANTITIES[quantity].of(cell) for cell in self.cells])

    def value(self, quantity: str) -> float:
        """Return the mean over seeds, in the unit of the quantity; NaN if this row has none such."""
        sums = self.sums(quantity)
        if sums is None:
            return float("nan")
        return scale_of(QUANTITIES[quantity].unit) * statistics.fmean(each.value for each in sums)


def each_or_none(by_seed: Sequence[Sums | None]) -> list[Sums] | None:
    """Return the sums of each seed, or None if a seed has none."""
    sums = [each for each in by_seed if each is not None]
    return sums if len(sums) == len(by_seed) else None


def measure_samplers(
    task: SamplerTask, rows: Sequence[SamplerRow], setup: Setup, *, part: str = "test"
) -> dict[str, Measured]:
    """Run the samplers of some rows on "dev" or "test", or read them back; return rows by the keys of samplers."""
    cells = run_samplers(task, [(part, row.spec) for row in rows], setup.inside(task.name))
    is_published = task.name == "translation"
    return {
        row.spec.key: Measured(row.name, task, cells[part, row.spec.key], row.published if is_published else {})
        for row in rows
    }


# ------------------------------------------------------------------------------------------------- claims


def compare_rows(
    text: str, source: str, quantity: str, larger: Measured | Sequence[Measured], smaller: Measured | Sequence[Measured]
) -> list[Claim]:
    """Test that the first is larger than the second; the states of several rows are pooled."""
    sides = []
    for side in (larger, smaller):
        rows = [side] if isinstance(side, Measured) else list(side)
        name = "; ".join(row.name for row in rows) if len(rows) < 3 else f"{len(rows)} rows"
        by_row = [row.sums(quantity) for row in rows]
        if any(each is None for each in by_row):
            return []
        by_seed = zip(*(each for each in by_row if each is not None), strict=True)
        sides.append((name, [Sums(np.sum([each.columns_NC for each in of_rows], 0), of_rows[0].combine)
                             for of_rows in by_seed]))  # fmt: skip
    kind = QUANTITIES[quantity]
    return [compare_sides(rows[0].task, text, source, kind.name, kind.unit, *sides)]


def compare_sides(
    task: SamplerTask,
    text: str,
    source: str,
    label: str,
    unit: str,
    larger: tuple[str, Sequence[Sums]],
    smaller: tuple[str, Sequence[Sums]],
) -> Claim:
    """Test that the first of two named sides is larger, by a paired bootstrap over sentences and seeds.

    A task without a measure has no test sentences, so its test is a paired t-test over seeds. "{measure}" stands for
    the measure of the task.
    """
    digits, scale = 1 if unit == "%" else 2, scale_of(unit)
    ours, theirs = (
        f"{name} {scale * statistics.fmean(each.value for each in sums):.{digits}f}" for name, sums in (larger, smaller)
    )
    prefix = f"{label.format(measure=task.measure)}: {ours} against {theirs}: "
    text = text.format(measure=task.measure)
    if task.measure:
        return judge(text, source, larger[1], smaller[1], prefix=prefix, scale=scale)
    by_seed = ([scale * each.value for each in sums] for _, sums in (larger, smaller))
    return judge_seeds(text, source, *by_seed, prefix=prefix)


def judge_seeds(
    text: str, source: str, larger: Sequence[float], smaller: Sequence[float], *, prefix: str = ""
) -> Claim:
    """Test that the first is larger than the second, by a paired t-test over seeds; one seed decides nothing."""
    return judge_by_seed(text, source, larger, smaller, prefix=prefix, unit=", t-test over seeds", digits=2)


# ------------------------------------------------------------------------------------------------- tables


def sampler_outcome(
    name: str,
    title: str,
    task: SamplerTask,
    measured: Mapping[str, Measured],
    claims: Sequence[Claim],
    setup: Setup,
    *,
    note: str = "",
    more: Sequence[Result] = (),
) -> Outcome:
    """Make a table of every quantity of every row with its interval and the thesis' number, and of the claims."""
    results = [result for row in measured.values() for result in _results_of(name, row)] + list(more)
    title = f"{title}, {task.title}"
    first = next(iter(measured.values()))
    notes = [about(task, setup.scale, first.cells), note]
    table = Table(title, tuple(results), note=" ".join(each for each in notes if each), claims=tuple(claims))
    runs = setup.folder / task.name
    model = shlex.quote(str(runs / f"seed-{first.cells[0].signature.seeds[0]}" / "model"))
    hints = () if task.measure else (f"seqwise sample {model} --count 5",)
    return Outcome(f"{name}-{task.name}", table, {"runs": runs}, hints=hints)


def about(task: SamplerTask, scale: str, cells: Sequence[SamplerCell]) -> str:
    """Describe the amount of sampling, the models, and the measure."""
    size, part = task.sizes[scale], task.part("test", scale)
    perplexity = statistics.fmean(cell.model["pseudo_perplexity"] for cell in cells)
    seconds = statistics.fmean(cell.model["training seconds"] for cell in cells)
    length = "the likeliest length" if task.measure else "the lengths of test sequences"
    limit = "" if size.longest is None else f" of at most {size.longest} source tokens"
    lines = [
        f"{len(part.examples):,} test sentences{limit}, {size.chains} chains of {size.sweeps} sweeps each, all from the"
        f" greedy fill at {length}; {len(cells)} models (pseudo-perplexity {perplexity:.1f} on dev, {seconds:.0f} CPU"
        " seconds each). Samples: all sweeps after the burn-in. Energies: nats per sentence; the thesis prints"
        " thousands, summed over its whole set.",
    ]
    if task.note is not None:
        lines.append(f"BLEU: {task.note(part.references)}.")
    return " ".join(lines)


def _results_of(table: str, row: Measured) -> list[Result]:
    """Return every quantity that a row has, with intervals of the same kind as the tests of :func:`compare_sides`."""
    signature = signature_of_seeds([cell.signature for cell in row.cells], method=f"{table}: {row.name}")
    results = []
    for key, quantity in QUANTITIES.items():
        sums = row.sums(key)
        if sums is None:
            continue
        published = row.published.get(key)
        results.append(
            sampled_result(
                row.task,
                row.name,
                quantity.name.format(measure=row.task.measure),
                sums,
                signature,
                published=None if published is None else scale_of(quantity.unit) * published,
                unit=quantity.unit,
                note="chosen on dev" if key == row.chosen else "",
            )
        )
    for name, number, unit in (
        ("R-hat of the energy, median", _median_r_hat(row.cells), ""),
        (f"{row.task.measure}, standard deviation over chains", _chain_deviation(row.cells), "%"),
        ("CPU seconds", statistics.fmean(cell.seconds for cell in row.cells), "s"),
    ):
        if number is not None:
            results.append(Result(row.name, name, number, signature, unit=unit))
    return results


def sampled_result(
    task: SamplerTask, system: str, measure: str, by_seed: Sequence[Sums], signature: Signature, *, unit: str = "%",
    published: float | None = None, note: str = "",
) -> Result:  # fmt: skip
    """Return the mean over seeds with its 95% interval, by bootstrap, or Student's for a task without a measure."""
    if task.measure:
        return interval_result(system, measure, by_seed, signature, unit=unit, published=published, note=note)
    numbers = [scale_of(unit) * each.value for each in by_seed]
    return student_result(system, measure, numbers, signature, unit=unit, published=published, note=note)


def _median_r_hat(cells: Sequence[SamplerCell]) -> float | None:
    r_hat = np.concatenate([cell.numbers.get("r_hat_N", np.array([])) for cell in cells])
    r_hat = r_hat[np.isfinite(r_hat)]
    return float(np.median(r_hat)) if len(r_hat) else None


def _chain_deviation(cells: Sequence[SamplerCell]) -> float | None:
    """Return the standard deviation over chains of the measure of their last states, averaged over seeds."""
    if cells[0].combine is None or not cells[0].spec.draws_chains or cells[0].numbers["local_NCS"].shape[1] < 2:
        return None
    deviations = []
    for cell in cells:
        sums_CK = cell.numbers["sums_NCSK"][:, :, -1].astype(np.float64).sum(0)
        assert cell.combine is not None
        deviations.append(statistics.stdev(100 * float(value) for value in cell.combine(sums_CK)))
    return statistics.fmean(deviations)
