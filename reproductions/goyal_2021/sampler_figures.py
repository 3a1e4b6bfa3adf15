"""Figures 6.2 to 6.4: energy, measure, acceptance and novelty of samplers by epoch (sweep), from the tables' cells.

Epoch 0 is the start, the greedy fill. Shapes: N sentences, C chains of each, S sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from reproductions import Setup
from reproductions.comparison import signature_of_seeds
from reproductions.figures import BLUE, GREEN, RED, legend_below, panels
from reproductions.goyal_2021.sampler_cells import SamplerCell
from reproductions.goyal_2021.sampler_tables import GIBBS, LOCAL, RAW, TABLES, every_task
from reproductions.goyal_2021.sampler_tasks import SamplerTask
from reproductions.goyal_2021.samplers import (
    Measured,
    SamplerRow,
    about,
    compare_sides,
    each_or_none,
    measure_samplers,
    sampled_result,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from seqwise.evaluation.metrics import Counts, Sums

UNITS = {"energy": ("E_local", "nat"), "measure": ("{measure}", "%"), "acceptance": ("acceptance", "%"),
         "novel": ("novel", "%")}  # fmt: skip
STYLES = ((BLUE, "o"), (RED, "s"), (GREEN, "^"))

Rows = Mapping[str, Measured]


@dataclass(frozen=True)
class SamplerFigure:
    """Figure with its samplers, panels, and the thesis' claims about it."""

    number: str
    title: str  # without the task
    rows: Sequence[SamplerRow]  # one line each, with the names of the legend
    panels: Sequence[str]  # of "energy", "measure", "acceptance", "novel"
    claims: Callable[[Rows], list[Claim]]  # of the measured rows by key


def at_epochs(cell: SamplerCell, panel: str, epochs: Sequence[int]) -> Sums | None:
    """Return a panel's number with the states or proposals of some epochs pooled; None if there is none."""
    numbers, parts = cell.numbers, []
    chains = numbers["local_NCS"].shape[1]
    for epoch in epochs:
        if panel == "measure":
            if cell.combine is None:
                return None
            # All chains have the same start.
            parts.append(
                numbers["sums_NCSK"][:, :, epoch - 1].astype(np.float64).sum(1)
                if epoch
                else chains * numbers["start_sums_NK"].astype(np.float64)
            )
        elif panel == "energy":
            total_N = numbers["local_NCS"][:, :, epoch - 1].sum(1) if epoch else chains * numbers["start_local_N"]
            parts.append(np.stack([total_N, np.full(len(total_N), chains)], 1))
        elif epoch:
            name = {"acceptance": "accepted", "novel": "novel"}[panel]
            parts.append(np.stack([numbers[f"{each}_NCS"][:, :, epoch - 1].sum(1) for each in (name, "proposals")], 1))
    if not parts:
        return None
    total = np.sum(parts, 0)
    return Sums(total, cell.combine) if panel == "measure" and cell.combine else Counts(total[:, 0], total[:, 1])


def shown_epochs(sweeps: int) -> list[int]:
    """Return the epochs to save and draw: all up to 7, every third one after, and the last."""
    return [epoch for epoch in range(sweeps + 1) if epoch <= 7 or epoch % 3 == 1 or epoch == sweeps]


def run_figure(figure: SamplerFigure, task: SamplerTask, setup: Setup) -> Outcome:
    """Make one figure on one task; samplers that the tables share with it are read back."""
    measured = measure_samplers(task, figure.rows, setup)
    name = f"figure-{figure.number}-{task.name}"
    title = f"Figure {figure.number}: {figure.title}, {task.title}"
    results = [
        result
        for epoch in shown_epochs(task.sizes[setup.scale].sweeps)
        for panel in figure.panels
        for row in measured.values()
        for result in _results(name, row, panel, epoch)
    ]
    note = about(task, setup.scale, next(iter(measured.values())).cells)
    table = Table(title, tuple(results), note=note, claims=tuple(figure.claims(measured)))
    runs = setup.folder / task.name
    path = runs / f"{name}.png"
    draw(table, path)
    return Outcome(name, table, {"figure": path, "runs": runs})


def _results(name: str, row: Measured, panel: str, epoch: int) -> list[Result]:
    by_seed = each_or_none([at_epochs(cell, panel, [epoch]) for cell in row.cells])
    if by_seed is None:
        return []
    label, unit = UNITS[panel]
    signature = signature_of_seeds([cell.signature for cell in row.cells], method=name)
    measure = f"{label.format(measure=row.task.measure)} of {row.name}"
    return [sampled_result(row.task, f"epoch {epoch}", measure, by_seed, signature, unit=unit)]


def draw(table: Table, path: Path) -> None:
    """Draw a panel for each measure with a line for each sampler, with 95% intervals as bands."""
    series: dict[str, dict[str, list[Result]]] = {}
    for result in table.results:
        panel, _, line = result.measure.partition(" of ")
        series.setdefault(panel, {}).setdefault(line, []).append(result)
    lines = list(dict.fromkeys(line for panel in series.values() for line in panel))
    styles = dict(zip(lines, STYLES, strict=False))
    with panels(path, len(series), figsize=(4.6 * len(series), 3.9)) as (figure, row):
        for axes, (panel, by_line) in zip(row, series.items(), strict=True):
            for line, results in by_line.items():
                colour, marker = styles[line]
                epochs = [int(result.system.removeprefix("epoch ")) for result in results]
                axes.plot(epochs, [result.value for result in results], color=colour, marker=marker, ms=4, label=line)
                if all(result.low is not None for result in results):
                    ends = [[result.low for result in results], [result.high for result in results]]
                    axes.fill_between(epochs, *ends, color=colour, alpha=0.15, lw=0)
            unit = next(iter(by_line.values()))[0].unit
            axes.set(xlabel="epoch", ylabel=f"{panel} ({'nats per sentence' if unit == 'nat' else unit})")
            axes.grid(alpha=0.25)
        legend_below(figure)


# ------------------------------------------------------------------------------------------------- claims


def _early_and_late(rows: Rows, key: str) -> tuple[range, range]:
    """Return the first and the last sixth of the epochs: 5 of 33."""
    sweeps = rows[key].cells[0].numbers["local_NCS"].shape[2]
    width = max(1, sweeps // 6)
    return range(1, width + 1), range(sweeps - width + 1, sweeps + 1)


def _compare(
    rows: Rows,
    text: str,
    source: str,
    panel: str,
    larger: tuple[str, Sequence[int]],
    smaller: tuple[str, Sequence[int]],
) -> list[Claim]:
    """Test that one sampler at some epochs is above another at others; return no claim without such numbers."""
    sides = []
    for key, epochs in (larger, smaller):
        by_seed = each_or_none([at_epochs(cell, panel, epochs) for cell in rows[key].cells])
        if by_seed is None:
            return []
        span = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {min(epochs)} to {max(epochs)}"
        sides.append((f"{rows[key].name}, {span},", by_seed))
    return [compare_sides(rows[larger[0]].task, text, source, *UNITS[panel], *sides)]


def _claims_6_2(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.6 and Figure 6.2"
    claims = []
    for key, name in (("local", "MH (local)"), ("raw", "MH (raw)")):
        _, late = _early_and_late(rows, key)
        half = (late[-1] + rows[key].cells[0].discard + 1) // 2
        before, after = range(rows[key].cells[0].discard + 1, half + 1), range(half + 1, late[-1] + 1)
        claims += [
            *_compare(rows, f"{name} lowers the energy.", source, "energy", (key, [0]), (key, late)),
            *_compare(rows, f"The energy of {name} goes on falling after the burn-in.", source, "energy",
                      (key, before), (key, after)),
            *_compare(rows, f"{name} improves on its start in {{measure}}.", source, "measure",
                      (key, late), (key, [0])),
        ]  # fmt: skip
    _, late = _early_and_late(rows, "gibbs")
    return [
        *claims,
        *_compare(rows, "Degenerate Gibbs raises the energy.", source, "energy", ("gibbs", late), ("gibbs", [0])),
        *_compare(rows, "Degenerate Gibbs falls behind its start in {measure}.", source, "measure",
                  ("gibbs", [0]), ("gibbs", late)),
        *_compare(rows, "In the end degenerate Gibbs has a higher energy than MH (local).", source, "energy",
                  ("gibbs", late), ("local", late)),
        *_compare(rows, "In the end MH (raw) has a lower E_local than degenerate Gibbs, too.", source, "energy",
                  ("gibbs", late), ("raw", late)),
    ]  # fmt: skip


def _claims_6_3(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.7.3 and Figure 6.3"
    claims = []
    for key in ("local-blocks", "raw-blocks"):
        early, late = _early_and_late(rows, key)
        name = f"MH ({key.partition('-')[0]})"
        claims += [
            *_compare(rows, f"{name} accepts more at first, with large blocks, than at the end.", source, "acceptance",
                      (key, early), (key, late)),
            *_compare(rows, f"{name} makes more novel transitions at first than at the end.", source, "novel",
                      (key, early), (key, late)),
        ]  # fmt: skip
    return claims


def _claims_6_4(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.8 and Figure 6.4"
    local, raw = "local-anneal0.02", "raw-anneal0.02"
    early, late = _early_and_late(rows, local)
    every = range(1, late[-1] + 1)
    return [
        *(
            claim
            for key, name in ((local, "local"), (raw, "raw"))
            for claim in (
                *_compare(rows, f"Annealing ({name}) leads to lower energies.", source, "energy",
                          (key, early), (key, late)),
                *_compare(rows, f"Annealing ({name}) helps in {{measure}}.", source, "measure",
                          (key, late), (key, early)),
                *_compare(rows, f"Annealing ({name}) lowers acceptance.", source, "acceptance",
                          (key, early), (key, late)),
            )
        ),
        *_compare(rows, "Annealed, raw accepts more than local, over all epochs.", source, "acceptance",
                  (raw, every), (local, every)),
        *_compare(rows, "Annealed, raw beats local in {measure}, over all epochs.", source, "measure",
                  (raw, every), (local, every)),
    ]  # fmt: skip


def _of_table(number: str, *keys: str) -> list[SamplerRow]:
    rows = {row.spec.key: row for row in TABLES[number].rows}
    return [rows[key] for key in keys]


FIGURES = {
    "6.2": SamplerFigure(
        "6.2",
        "energy by epoch",
        [SamplerRow("MH, local", LOCAL), SamplerRow("MH, raw", RAW), SamplerRow("degenerate Gibbs", GIBBS)],
        ("energy", "measure"),
        _claims_6_2,
    ),
    "6.3": SamplerFigure(
        "6.3",
        "acceptance by epoch, with annealed blocks",
        _of_table("6.4", "local-blocks", "raw-blocks", "gibbs-blocks"),
        ("acceptance", "novel"),
        _claims_6_3,
    ),
    "6.4": SamplerFigure(
        "6.4",
        "annealing towards modes, by epoch",
        _of_table("6.5", "local-anneal0.02", "raw-anneal0.02"),
        ("acceptance", "energy", "measure"),
        _claims_6_4,
    ),
}
"""Figures by number."""


figure_6_2, figure_6_3, figure_6_4 = (
    partial(every_task, f"figure-{number}", partial(run_figure, figure)) for number, figure in FIGURES.items()
)
