"""What is said of samplers: measures of their states, energies, novelty and acceptance, and claims about them.

Three choices of the states that are measured, all of them reported. *Samples*: every state after the burn-in of 7
sweeps, as the thesis averages over epochs; the corpus measure is of all of them pooled. *Last*: the last state of each
chain. *Lowest*: of each chain the state of the lowest energy, of that which it samples from (E_local for what follows
no energy).

Shapes: N sentences, C chains of each, S sweeps, K what a state adds to the sums of the measure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reproductions.by_seed import judge_by_seed
from reproductions.comparison import judge
from reproductions.goyal_2021.sampler_cells import SamplerCell, SamplerSpec, run_samplers
from reproductions.goyal_2021.sampler_tasks import SamplerTask
from reproductions.workers import ProgressFactory
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.report import Claim

States = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Quantity:
    """A number of a cell, with sentences to draw again."""

    name: str  # as printed; "{measure}" stands for that of the task
    # a cell to the sums that it is made of, or None where it has no such number
    of: Callable[[SamplerCell], Sums | None]
    unit: str = "%"  # "%", "nat" or "" for a bare number
    heading: str = ""  # of its column in the terminal; "" for none

    @property
    def scale(self) -> float:
        """From a fraction to the unit."""
        return 100.0 if self.unit == "%" else 1.0


def by_states(cell: SamplerCell, states: str) -> States | None:
    """Which states (N, C, S) are meant by "samples", "last" or "lowest"; None where a sampler has none such."""
    energy_NCS = cell.numbers[f"{cell.spec.settings.energy}_NCS"]
    chosen_NCS = np.zeros(energy_NCS.shape, dtype=bool)
    if energy_NCS.shape[2] == 1 and not cell.spec.draws_chains:  # one output: there is nothing to choose
        return ~chosen_NCS if states == "last" else None
    if states == "last":
        chosen_NCS[:, :, -1] = True
        return chosen_NCS if cell.spec.draws_chains else None  # candidates come in no order
    if states == "samples":
        chosen_NCS[:, :, cell.discard :] = True
    else:
        np.put_along_axis(chosen_NCS, energy_NCS.argmin(2)[:, :, None], True, 2)
    return chosen_NCS


def _measure(states: str) -> Callable[[SamplerCell], Sums | None]:
    def of(cell: SamplerCell) -> Sums | None:
        chosen_NCS = by_states(cell, states)
        if cell.combine is None or chosen_NCS is None:
            return None
        sums_NCSK = cell.numbers["sums_NCSK"].astype(np.float64)
        return Sums((sums_NCSK * chosen_NCS[..., None]).sum((1, 2)), cell.combine)

    return of


def _energy(states: str) -> Callable[[SamplerCell], Sums | None]:
    def of(cell: SamplerCell) -> Sums | None:
        chosen_NCS = by_states(cell, states)
        if chosen_NCS is None:
            return None
        return Counts((cell.numbers["local_NCS"] * chosen_NCS).sum((1, 2)), chosen_NCS.sum((1, 2)))

    return of


def _rate(name: str) -> Callable[[SamplerCell], Sums | None]:
    def of(cell: SamplerCell) -> Sums | None:
        if not cell.spec.draws_chains:
            return None
        counted = slice(cell.discard, None)
        above_N, below_N = (cell.numbers[f"{each}_NCS"][:, :, counted].sum((1, 2)) for each in (name, "proposals"))
        return Counts(above_N, below_N)

    return of


def _ess_per_pass(cell: SamplerCell) -> Sums | None:
    if "ess_N" not in cell.numbers or not np.isfinite(cell.numbers["ess_N"]).all():
        return None
    chains = cell.numbers["local_NCS"].shape[1]
    return Counts(1000 * cell.numbers["ess_N"], chains * cell.numbers["passes_N"])


def _agreement(cell: SamplerCell) -> Sums | None:
    return (
        Counts(cell.numbers["agree_N"])
        if "agree_N" in cell.numbers and cell.numbers["local_NCS"].shape[1] > 1
        else None
    )


QUANTITIES = {
    "samples": Quantity("{measure}, samples", _measure("samples"), heading="samples"),
    "last": Quantity("{measure}, last state", _measure("last"), heading="last"),
    "lowest": Quantity("{measure}, lowest energy", _measure("lowest"), heading="lowest"),
    "energy": Quantity("E_local, samples", _energy("samples"), "nat", "E_local"),
    "last energy": Quantity("E_local, last state", _energy("last"), "nat", "(last)"),
    "lowest energy": Quantity("E_local, lowest energy", _energy("lowest"), "nat"),
    "novel": Quantity("novel", _rate("novel"), heading="novel"),
    "acceptance": Quantity("acceptance", _rate("accepted"), heading="accept"),
    "passes": Quantity("passes", lambda cell: Counts(cell.numbers["passes_N"]), "", "passes"),
    "ess": Quantity("ESS per 1,000 passes", _ess_per_pass, ""),
    "agree": Quantity("all chains end alike", _agreement),
}
"""By key; the energies are nats a sentence, passes are of one chain (of all candidates)."""
MEASURES = ("samples", "last", "lowest")
"""Those of :data:`QUANTITIES` that are the measure of the task, each of other states."""


@dataclass(frozen=True)
class SamplerRow:
    """A row of a table."""

    name: str  # as printed
    spec: SamplerSpec  # the sampler
    # the thesis' numbers for German to English, by keys of :data:`QUANTITIES`, as fractions; energies in thousands, of
    # the thesis' whole set
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Measured:
    """A row with its cells, one for each seed."""

    name: str  # as printed
    task: SamplerTask  # what was sampled
    cells: Sequence[SamplerCell]  # one for each seed
    published: Mapping[str, float] = field(default_factory=dict)  # see :class:`SamplerRow`; empty for other tasks
    chosen: str = ""  # which of the measures was chosen on development data; "" where there was no choice

    def sums(self, quantity: str) -> list[Sums] | None:
        """A quantity of each seed, or None where this row has none such."""
        found = [QUANTITIES[quantity].of(cell) for cell in self.cells]
        return None if any(each is None for each in found) else [each for each in found if each is not None]

    def value(self, quantity: str) -> float:
        """The mean over seeds, in the unit; not a number where this row has none such."""
        found = self.sums(quantity)
        return float("nan") if found is None else QUANTITIES[quantity].scale * statistics.fmean(s.value for s in found)


def measure_samplers(
    task: SamplerTask,
    rows: Sequence[SamplerRow],
    folder: Path,
    *,
    seeds: Sequence[int],
    scale: str,
    progress: ProgressFactory,
    part: str = "test",
) -> dict[str, Measured]:
    """Run the samplers of some rows, or read them back."""
    wanted = [(part, row.spec) for row in rows]
    cells = run_samplers(task, wanted, folder / task.name, seeds=seeds, scale=scale, progress=progress)
    is_theirs = task.name == "translation"
    return {
        row.spec.key: Measured(row.name, task, cells[part, row.spec.key], row.published if is_theirs else {})
        for row in rows
    }


# ------------------------------------------------------------------------------------------------- claims


def compare_rows(
    text: str, source: str, quantity: str, larger: Measured | Sequence[Measured], smaller: Measured | Sequence[Measured]
) -> list[Claim]:
    """Put "the first is larger than the second" to a test; of several rows together, their states are pooled."""
    both = [[one] if isinstance(one, Measured) else list(one) for one in (larger, smaller)]
    task, kind = both[0][0].task, QUANTITIES[quantity]
    pooled = []
    for rows in both:
        found = [row.sums(quantity) for row in rows]
        if any(each is None for each in found):
            return []
        by_seed = zip(*(each for each in found if each is not None), strict=True)
        pooled.append([Sums(np.sum([s.columns_NC for s in some], 0), some[0].combine) for some in by_seed])
    names = ["; ".join(row.name for row in rows) if len(rows) < 3 else f"{len(rows)} rows" for rows in both]
    means = [kind.scale * statistics.fmean(each.value for each in some) for some in pooled]
    name, digits = kind.name.format(measure=task.measure), 1 if kind.unit == "%" else 2
    said = f"{name}: {names[0]} {means[0]:.{digits}f} against {names[1]} {means[1]:.{digits}f}: "
    return [judge_sums(task, text.format(measure=task.measure), source, *pooled, said=said, scale=kind.scale)]


def judge_sums(
    task: SamplerTask,
    text: str,
    source: str,
    larger: Sequence[Sums],
    smaller: Sequence[Sums],
    *,
    said: str = "",
    scale: float = 100.0,
) -> Claim:
    """Put "the first is larger than the second" to a paired bootstrap over sentences and seeds.

    Where a task has no test sentences but draws of the model alone (no measure), to a paired t-test over seeds.
    """
    if task.measure:
        return judge(text, source, larger, smaller, said=said, scale=scale)
    return judge_seeds(
        text, source, [scale * one.value for one in larger], [scale * one.value for one in smaller], said=said
    )


def judge_seeds(text: str, source: str, larger: Sequence[float], smaller: Sequence[float], *, said: str = "") -> Claim:
    """Put "the first is larger than the second" to a paired t-test over seeds; of one seed, nothing is said."""
    return judge_by_seed(text, source, larger, smaller, said=said, unit=", t-test over seeds", digits=2)
