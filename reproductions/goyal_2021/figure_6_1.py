"""Figure 6.1 of the thesis: a masked model trained on much data, projected onto an energy with little.

The MLM has read 100,000 sequences. An energy is then trained on n others: by KL projection of the MLM's conditionals
onto the true conditionals of E_raw, by the same with pseudolikelihood added, or by pseudolikelihood alone. The first
two start from the MLM's weights; to tell the target from the start, pseudolikelihood does so too (a control that the
thesis does not have), as well as from new weights. All numbers are exact, as in `reproductions.goyal_2021.table_6_1`.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
import rich.table
import torch

from reproductions.by_seed import judge_by_seed, one_thread
from reproductions.figures import interval_bars
from reproductions.goyal_2021.energy_training import (
    EnergyLoss,
    enumerated_logits,
    fit_enumerated,
    likelihood_loss,
    local_scores,
    masked_loss,
    projection_loss,
    pseudolikelihood_loss,
)
from reproductions.goyal_2021.enumerable import Enumerable
from reproductions.goyal_2021.table_6_1 import (
    DISTRIBUTIONS,
    new_model,
    sign_distribution,
    train_and_dev,
)
from reproductions.outcome import Outcome
from reproductions.workers import ProgressFactory
from seqwise.evaluation.report import Claim, Result, Table
from seqwise.evaluation.verdicts import student_result
from seqwise.models.masked import MaskedLSTM

SOURCE = "Goyal's thesis (2021), Figure 6.1"
SHOWN = ("palindromes", "HMM, low entropy")
SIZES = (100, 300, 1_000, 3_000, 10_000)
"""How many sequences the methods see."""
MLM_SIZE = 100_000
METHODS = ("KL", "KL + PLL", "PLL", "PLL from the MLM's weights")
"""As the thesis has them, and the control."""
NEAR = 0.1  # nats from the entropy


@dataclass(frozen=True)
class Curves:
    """What one distribution gave; every list has a number for each seed, in nats per sequence."""

    name: str  # one of the distributions
    entropy: float  # of it
    mlm: Mapping[str, list[float]]  # NLL of the MLM that the others start from, by reading, "raw" and "local"
    by_method: Mapping[tuple[str, int], list[float]]  # NLL (of E_raw) by method and number of sequences


def measure(
    distribution: Enumerable, sizes: Sequence[int], *, seed: int, mlm_size: int = MLM_SIZE
) -> tuple[dict[str, float], dict[tuple[str, int], float]]:
    """Train an MLM on much data, and each method on each amount of other data; NLL against the truth."""
    length = distribution.length
    # Far from the seeds of the small data, which are to be others.
    train_N, dev_N = train_and_dev(distribution, mlm_size, seed=1_000_000 + seed)
    mlm = new_model(distribution.vocab_size, seed=seed)
    fit_enumerated(mlm, masked_loss, length=length, train_N=train_N, dev_N=dev_N)
    with torch.no_grad():
        teacher_TCV = enumerated_logits(mlm, length)
    read = {
        "raw": likelihood_loss(teacher_TCV.double(), distribution.probs_N).item(),
        "local": likelihood_loss(teacher_TCV.double(), distribution.probs_N, scores=local_scores).item(),
    }
    found = {}
    for size in sizes:
        train_N, dev_N = train_and_dev(distribution, size, seed=seed)
        for method in METHODS:
            model, loss = _start(method, mlm, distribution, seed)
            fit_enumerated(model, loss, length=length, train_N=train_N, dev_N=dev_N)
            with torch.no_grad():
                logits_TCV = enumerated_logits(model, length).double()
            found[method, size] = likelihood_loss(logits_TCV, distribution.probs_N).item()
    return read, found


def _start(method: str, mlm: MaskedLSTM, distribution: Enumerable, seed: int) -> tuple[MaskedLSTM, EnergyLoss]:
    """The weights that a method starts from, and what it minimises."""
    if method == "PLL":
        return new_model(distribution.vocab_size, seed=seed), pseudolikelihood_loss
    model = copy.deepcopy(mlm)
    if method == "PLL from the MLM's weights":
        return model, pseudolikelihood_loss
    with torch.no_grad():
        teacher_TCV = enumerated_logits(mlm, distribution.length)
    return model, projection_loss(teacher_TCV, pseudolikelihood_weight=float(method == "KL + PLL"))


def reproduce(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> list[Outcome]:
    """Train 4 methods on 5 amounts of 2 kinds of data with each seed; draw NLL against size.

    Source: Goyal's thesis (2021), Figure 6.1. Not implemented: its panel of phonemes.
    """
    every = []
    with progress() as bars, one_thread():
        task = bars.add_task("data and seeds", total=len(SHOWN) * len(seeds), note="")
        for name in SHOWN:
            distribution = DISTRIBUTIONS[name]()
            runs = []
            for seed in seeds:
                bars.update(task, note=f"{name}, seed {seed}")
                runs.append(measure(distribution, SIZES, seed=seed))
                bars.advance(task)
            every.append(
                Curves(
                    name,
                    distribution.entropy,
                    {reading: [read[reading] for read, _ in runs] for reading in ("raw", "local")},
                    {key: [found[key] for _, found in runs] for key in runs[0][1]},
                )
            )
    title = "Figure 6.1: NLL by number of sequences, with and without KL projection of a masked model"
    claims = [claim for curves in every for claim in examine(curves)]
    results = [result for curves in every for result in _results(curves, seeds)]
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    table = Table(title, tuple(results), claims=tuple(claims))
    figure = folder / "figure-6.1.png"
    draw(table, figure)
    return [Outcome("figure-6.1", table, _grid(title, every), lesson, {"figure": figure})]


def examine(curves: Curves) -> list[Claim]:
    """The thesis' statements on one distribution, put to the numbers; means over sizes are paired by seed."""
    sizes = sorted({size for _, size in curves.by_method})
    least, most = sizes[0], sizes[-1]

    def mean(method: str) -> list[float]:
        return [
            statistics.fmean(numbers)
            for numbers in zip(*(curves.by_method[method, size] for size in sizes), strict=True)
        ]

    def compare(text: str, worse: str, better: str, source: str = SOURCE) -> Claim:
        above = sum(
            statistics.fmean(curves.by_method[worse, size]) > statistics.fmean(curves.by_method[better, size])
            for size in sizes
        )
        said = f"{worse} minus {better}, mean of {len(sizes)} sizes ({above} above 0): "
        return judge_by_seed(f"{curves.name}: {text}", source, mean(worse), mean(better), said=said)

    def gain(size: int) -> list[float]:
        both = zip(curves.by_method["PLL", size], curves.by_method["KL", size], strict=True)
        return [one - other for one, other in both]

    def beats_mlm(reading: str, source: str) -> Claim:
        worst = max(METHODS, key=lambda method: statistics.fmean(curves.by_method[method, least]))
        return judge_by_seed(
            f"{curves.name}: every method does better than the MLM alone (E_{reading}).", source,
            curves.mlm[reading], curves.by_method[worst, least],
            said=f"MLM minus the worst, {worst} on {least:,}: ",
        )  # fmt: skip

    return [
        compare("KL projection does better than pseudolikelihood from new weights.", "PLL", "KL"),
        compare("So does KL projection with pseudolikelihood.", "PLL", "KL + PLL"),
        judge_by_seed(
            f"{curves.name}: the less data, the more KL projection gains.", SOURCE, gain(least), gain(most),
            said=f"PLL minus KL on {least:,} minus the same on {most:,}: ",
        ),
        beats_mlm("raw", SOURCE),
        beats_mlm("local", "not in the thesis"),
        compare("It is the target and not the start: KL does better than pseudolikelihood from the same weights.",
                METHODS[3], "KL", "not in the thesis"),
        compare("KL alone does better than with pseudolikelihood.", "KL + PLL", "KL", "not in the thesis"),
        judge_by_seed(
            f"{curves.name}: with {least:,} sequences KL comes within {NEAR} nat of the entropy.", "not in the thesis",
            [curves.entropy + NEAR] * len(curves.by_method["KL", least]), curves.by_method["KL", least],
            said=f"entropy plus {NEAR} minus KL on {least:,}: ",
        ),
    ]  # fmt: skip


def _results(curves: Curves, seeds: Sequence[int]) -> list[Result]:
    signature = sign_distribution(f"figure-6.1: {curves.name}", DISTRIBUTIONS[curves.name](), seeds=seeds)

    def result(measured: str, values: Sequence[float]) -> Result:
        return student_result(curves.name, measured, values, signature, unit="nat")

    return [
        Result(curves.name, "entropy", curves.entropy, signature, unit="nat"),
        *(result(f"MLM on {MLM_SIZE:,}, {reading}", values) for reading, values in curves.mlm.items()),
        *(result(f"{method}, {size:,}", values) for (method, size), values in curves.by_method.items()),
    ]


def _grid(title: str, every: Sequence[Curves]) -> rich.table.Table:
    grid = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    grid.add_column("data and method", overflow="fold")
    for size in SIZES:
        grid.add_column(f"{size:,}", justify="right", no_wrap=True)
    for curves in every:
        grid.add_section()
        read = ", ".join(f"{reading} {statistics.fmean(values):.3f}" for reading, values in curves.mlm.items())
        grid.add_row(f"{curves.name}: entropy {curves.entropy:.3f}; MLM {read}")
        for method in METHODS:
            numbers = (f"{statistics.fmean(curves.by_method[method, size]):.3f}" for size in SIZES)
            grid.add_row(f"  {method}", *numbers)
    grid.caption = f"NLL in nats per sequence, exact, mean over seeds; MLM: trained on {MLM_SIZE:,} sequences"
    grid.caption_justify = "left"
    return grid


def draw(table: Table, path: Path) -> None:
    """One panel for each distribution, one line for each method, bars of Student's 95% intervals; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_system: dict[str, dict[str, Result]] = {}
    for result in table.results:
        by_system.setdefault(result.system, {})[result.measure] = result
    figure, panels = pyplot.subplots(
        1, len(by_system), figsize=(5.5 * len(by_system), 4.2), layout="constrained", squeeze=False
    )
    for axes, (name, found) in zip(panels[0], by_system.items(), strict=True):
        _draw_panel(axes, found)
        axes.set_title(name, loc="left")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_panel(axes: Any, found: Mapping[str, Result]) -> None:
    """NLL by size, with the entropy and the MLM as levels; results of one distribution by measure."""
    # Okabe and Ito's palette: told apart by colour-blind readers too.
    styles = zip(METHODS, ("#0072B2", "#56B4E9", "#D55E00", "#E69F00"), "os^v", strict=True)
    for method, colour, marker in styles:
        by_size = _by_size(found, method)
        means = [one.value for one in by_size.values()]
        how = {"color": colour, "marker": marker, "label": method}
        axes.errorbar(list(by_size), means, yerr=interval_bars(list(by_size.values())), ms=5, capsize=2, lw=1.5, **how)
    axes.axhline(found["entropy"].value, color="black", lw=1, label="entropy")
    for reading, dashes in (("raw", ":"), ("local", "--")):
        (measure,) = (name for name in found if name.startswith("MLM on ") and name.endswith(f", {reading}"))
        label = f"{measure.removesuffix(reading)}E_{reading}"
        axes.axhline(found[measure].value, color="#999999", lw=1, ls=dashes, label=label)
    axes.set(xscale="log", xlabel="sequences", ylabel="NLL (nats per sequence)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _by_size(found: Mapping[str, Result], method: str) -> dict[int, Result]:
    """What a method gives on each number of sequences, ascending."""
    parts = ((measure.rpartition(", "), result) for measure, result in found.items())
    sizes = {int(size.replace(",", "")): result for (name, _, size), result in parts if name == method}
    return dict(sorted(sizes.items()))
