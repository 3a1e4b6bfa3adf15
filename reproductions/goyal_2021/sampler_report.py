"""Tables of samplers: every quantity of every row with its interval, the thesis' numbers, and the claims."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import rich.box
import rich.table
from rich.text import Text

from reproductions.goyal_2021.sampler_cells import SamplerCell
from reproductions.goyal_2021.sampler_tasks import SamplerTask
from reproductions.goyal_2021.samplers import MEASURES, QUANTITIES, Measured
from reproductions.outcome import Outcome
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.report import Claim, Result, Table
from seqwise.evaluation.signature import Signature
from seqwise.evaluation.verdicts import interval_result, student_result


def sampler_outcome(
    name: str,
    title: str,
    task: SamplerTask,
    measured: Mapping[str, Measured],
    claims: Sequence[Claim],
    *,
    scale: str,
    folder: Path,
    note: str = "",
    more: Sequence[Result] = (),
) -> Outcome:
    """The table: every quantity of every row with its interval, the thesis' numbers beside them, and the claims."""
    results = [result for one in measured.values() for result in results_of(name, one)]
    title = f"{title}, {task.title}"
    first = next(iter(measured.values()))
    notes = [about(task, scale, first.cells), note]
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    results += more
    table = Table(title, tuple(results), note=" ".join(each for each in notes if each), claims=tuple(claims))
    picture = _grid(title, task, results)
    runs = folder / task.name
    model = shlex.quote(str(runs / f"seed-{first.cells[0].signature.seeds[0]}" / "model"))
    hints = () if task.measure else (f"seqwise sample {model} --count 5",)
    return Outcome(f"{name}-{task.name}", table, picture, lesson, {"runs": runs}, hints)


def about(task: SamplerTask, scale: str, cells: Sequence[SamplerCell]) -> str:
    """What the numbers are of: how much was sampled, the models, the measure."""
    size, part = task.sizes[scale], task.part("test", scale)
    perplexity = statistics.fmean(cell.model["pseudo_perplexity"] for cell in cells)
    seconds = statistics.fmean(cell.model["training seconds"] for cell in cells)
    length = "the likeliest length" if task.measure else "the lengths of test sequences"
    limit = "" if size.longest is None else f" of at most {size.longest} source tokens"
    lines = [
        f"{len(part.examples):,} test sentences{limit}, {size.chains} chains of {size.sweeps} sweeps each, all from the"
        f" greedy fill at {length}; {len(cells)} models (pseudo-perplexity {perplexity:.1f} on dev, {seconds:.0f} CPU"
        " seconds each). Samples: all sweeps after the burn-in. Energies: nats a sentence; the thesis prints thousands"
        " of its whole set.",
    ]
    if task.note is not None:
        lines.append(f"BLEU: {task.note(part.references)}.")
    return " ".join(lines)


def results_of(table: str, one: Measured) -> list[Result]:
    """Every quantity that a row has; intervals as :func:`~reproductions.goyal_2021.samplers.judge_sums` tests."""
    seeds = [seed for cell in one.cells for seed in cell.signature.seeds]
    signature = replace(one.cells[0].signature, method=f"{table}: {one.name}", seeds=tuple(seeds))
    results = []
    for key, quantity in QUANTITIES.items():
        found = one.sums(key)
        if found is None:
            continue
        published = one.published.get(key)
        results.append(
            sampled_result(
                one.task,
                one.name,
                quantity.name.format(measure=one.task.measure),
                found,
                signature,
                published=None if published is None else quantity.scale * published,
                unit=quantity.unit,
                note="chosen on dev" if key == one.chosen else "",
            )
        )
    for name, numbers, unit in (
        ("R-hat of the energy, median", _median_r_hat(one.cells), ""),
        (f"{one.task.measure}, standard deviation over chains", _chain_deviation(one.cells), "%"),
        ("CPU seconds", statistics.fmean(cell.seconds for cell in one.cells), "s"),
    ):
        if numbers is not None:
            results.append(Result(one.name, name, numbers, signature, unit=unit))
    return results


def sampled_result(
    task: SamplerTask, system: str, measure: str, by_seed: Sequence[Sums], signature: Signature, *, unit: str = "%",
    published: float | None = None, note: str = "",
) -> Result:  # fmt: skip
    """The mean over seeds with its 95% interval: a bootstrap, or of a task without a measure Student's."""
    if task.measure:
        return interval_result(system, measure, by_seed, signature, unit=unit, published=published, note=note)
    numbers = [(100.0 if unit == "%" else 1.0) * one.value for one in by_seed]
    return student_result(system, measure, numbers, signature, unit=unit, published=published, note=note)


def _median_r_hat(cells: Sequence[SamplerCell]) -> float | None:
    r_hat = np.concatenate([cell.numbers.get("r_hat_N", np.array([])) for cell in cells])
    r_hat = r_hat[np.isfinite(r_hat)]
    return float(np.median(r_hat)) if len(r_hat) else None


def _chain_deviation(cells: Sequence[SamplerCell]) -> float | None:
    """Of the measure of the last states, one corpus for each chain; mean over seeds."""
    if cells[0].combine is None or not cells[0].spec.draws_chains or cells[0].numbers["local_NCS"].shape[1] < 2:
        return None
    deviations = []
    for cell in cells:
        sums_CK = cell.numbers["sums_NCSK"][:, :, -1].astype(np.float64).sum(0)
        assert cell.combine is not None
        deviations.append(statistics.stdev(100 * float(value) for value in cell.combine(sums_CK)))
    return statistics.fmean(deviations)


def _grid(title: str, task: SamplerTask, results: Sequence[Result]) -> rich.table.Table:
    grid = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    shown = [key for key, quantity in QUANTITIES.items() if quantity.heading and (task.measure or key not in MEASURES)]
    grid.add_column("sampler", overflow="fold")
    for key in shown:
        grid.add_column(QUANTITIES[key].heading, justify="right", no_wrap=True)
    found = {(result.system, result.measure): result for result in results}
    for name in dict.fromkeys(result.system for result in results):
        cells = (found.get((name, QUANTITIES[key].name.format(measure=task.measure))) for key in shown)
        grid.add_row(name, *map(_cell, cells))
    measured = f"{task.measure} of samples, last states and those of the lowest energy; " if task.measure else ""
    grid.caption = (
        f"{measured}E_local: nats a sentence, of samples and of last states; novel, accept: % of proposals; passes: of "
        "one chain; in brackets the thesis' (energies: thousands, of its whole set); bold: chosen on dev"
    )
    grid.caption_justify = "left"
    return grid


def _cell(result: Result | None) -> Text:
    if result is None:
        return Text("")
    digits = 0 if result.measure == "passes" else 1
    cell = Text(f"{result.value:.{digits}f}", "bold" if result.note else "")
    return cell if result.published is None else cell.append(f"\n({result.published:.1f})", "not bold dim")
