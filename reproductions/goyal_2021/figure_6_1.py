"""Figure 6.1 of the thesis: a masked model trained on much data, projected onto an energy with little.

The MLM is trained on 100,000 sequences. An energy is then trained on n others: by KL projection of the MLM's
conditionals onto the true conditionals of E_raw, by the same with pseudolikelihood added, or by pseudolikelihood alone.
The first two start from the MLM's weights. To separate the effects of target and start, pseudolikelihood starts both
from new weights and from the MLM's (a control that the thesis lacks). All numbers are exact, as in
`reproductions.goyal_2021.table_6_1`. The panel of phoneme sequences is in
`reproductions.goyal_2021.figure_6_1_phonemes`.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from reproductions import Setup
from reproductions.cells import measure_by_seed
from reproductions.comparison import judge_by_seed
from reproductions.figures import BLUE, GREY, ORANGE, RED, SKY, interval_bars, legend_below, panels
from reproductions.goyal_2021.energy_training import (
    EnergyLoss,
    enumerated_logits,
    fit_enumerated,
    likelihood_loss,
    local_scores,
    masked_loss,
    new_model,
    projection_loss,
    pseudolikelihood_loss,
)
from reproductions.goyal_2021.enumerable import Enumerable
from reproductions.goyal_2021.table_6_1 import (
    DISTRIBUTIONS,
    sign_distribution,
    train_and_dev,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.evaluation.signature import Signature
from seqwise.models.masked import MaskedLSTM

SOURCE = "Goyal's thesis (2021), Figure 6.1"
SHOWN = ("palindromes", "HMM, low entropy")
SIZES = (100, 300, 1_000, 3_000, 10_000)
"""Numbers of training sequences of the methods."""
MLM_SIZE = 100_000
METHODS = ("KL", "KL + PLL", "PLL", "PLL from the MLM's weights")
"""Methods of the thesis, and the control."""
NEAR = 0.1  # nats from the entropy


Loss = TypeVar("Loss")
Run = tuple[dict[str, float], dict[tuple[str, int], float]]
"""NLL of one seed: of the MLM by reading, and of E_raw by method and number of sequences."""


@dataclass(frozen=True)
class Curves:
    """NLL on one distribution; every list has a number for each seed, in nats per sequence."""

    name: str  # of the data
    entropy: float | None  # of the distribution, if it is known
    mlm_size: int  # number of training sequences of the MLM
    mlm: Mapping[str, list[float]]  # NLL of the MLM that the others start from, by reading, "raw" and "local"
    by_method: Mapping[tuple[str, int], list[float]]  # NLL (of E_raw) by method and number of sequences

    @classmethod
    def of(cls, name: str, runs: Sequence[Run], *, entropy: float | None, mlm_size: int) -> Curves:
        """Combine the measurements of several seeds."""
        mlm = {reading: [read[reading] for read, _ in runs] for reading in ("raw", "local")}
        by_method = {key: [found[key] for _, found in runs] for key in runs[0][1]}
        return cls(name, entropy, mlm_size, mlm, by_method)


def measure(distribution: Enumerable, sizes: Sequence[int], *, seed: int, mlm_size: int = MLM_SIZE) -> Run:
    """Train an MLM on much data, and each method on each amount of other data; return NLL on the true distribution."""
    length = distribution.length
    # Not a seed of the small data, which must be different.
    train_N, dev_N = train_and_dev(distribution, mlm_size, seed=1_000_000 + seed)
    mlm = new_model(distribution.vocab_size, seed=seed)
    fit_enumerated(mlm, masked_loss, length=length, train_N=train_N, dev_N=dev_N)
    with torch.no_grad():
        teacher_TCV = enumerated_logits(mlm, length)
    read = {
        "raw": likelihood_loss(teacher_TCV.double(), distribution.probs_N).item(),
        "local": likelihood_loss(teacher_TCV.double(), distribution.probs_N, scores=local_scores).item(),
    }
    new, project = partial(new_model, distribution.vocab_size, seed=seed), partial(projection_loss, teacher_TCV)
    likelihood: EnergyLoss = pseudolikelihood_loss
    found = {}
    for size in sizes:
        train_N, dev_N = train_and_dev(distribution, size, seed=seed)
        for method in METHODS:
            model, loss = start(method, mlm, new, likelihood, project)
            fit_enumerated(model, loss, length=length, train_N=train_N, dev_N=dev_N)
            with torch.no_grad():
                logits_TCV = enumerated_logits(model, length).double()
            found[method, size] = likelihood_loss(logits_TCV, distribution.probs_N).item()
    return read, found


def start(
    method: str, mlm: MaskedLSTM, new: Callable[[], MaskedLSTM], pseudolikelihood: Loss, project: Callable[..., Loss]
) -> tuple[MaskedLSTM, Loss]:
    """Return a model with the weights that a method starts from, and the loss that it minimises.

    ``new`` makes new weights, and ``project`` the projection of the MLM, with a weight of the pseudolikelihood.
    """
    model = new() if method == "PLL" else copy.deepcopy(mlm)
    if method.startswith("PLL"):
        return model, pseudolikelihood
    return model, project(pseudolikelihood_weight=float(method == "KL + PLL"))


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train 4 methods on 5 amounts of 2 kinds of data with each seed; draw NLL against size.

    The panel of phonemes follows if there is a CMU dictionary.

    Source: Goyal's thesis (2021), Figure 6.1.
    """
    from reproductions.goyal_2021 import figure_6_1_phonemes

    def measured(name: str, seed: int, report: Report) -> Run:
        return measure(DISTRIBUTIONS[name](), SIZES, seed=seed)

    every = []
    for name, runs in measure_by_seed(SHOWN, measured, setup).items():
        distribution = DISTRIBUTIONS[name]()
        signature = sign_distribution(f"figure-6.1: {name}", distribution, seeds=setup.seeds)
        every.append((Curves.of(name, runs, entropy=distribution.entropy, mlm_size=MLM_SIZE), signature))
    title = "Figure 6.1: NLL by number of sequences, with and without KL projection of a masked model"
    yield make_outcome("figure-6.1", title, every, setup.folder)
    outcome = figure_6_1_phonemes.reproduce(setup)
    if outcome is not None:
        yield outcome


def make_outcome(name: str, title: str, every: Sequence[tuple[Curves, Signature]], folder: Path) -> Outcome:
    """Make the table of some curves, its claims, and the figure in a folder."""
    claims = [claim for curves, _ in every for claim in examine(curves)]
    results = [result for curves, signature in every for result in _results(curves, signature)]
    table = Table(title, tuple(results), claims=tuple(claims))
    figure = folder / f"{name}.png"
    draw(table, figure)
    return Outcome(name, table, {"figure": figure})


def examine(curves: Curves) -> list[Claim]:
    """Test the thesis' claims on one distribution; means over sizes are paired by seed."""
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
        prefix = f"{worse} minus {better}, mean of {len(sizes)} sizes ({above} above 0): "
        return judge_by_seed(f"{curves.name}: {text}", source, mean(worse), mean(better), prefix=prefix)

    def gain(size: int) -> list[float]:
        both = zip(curves.by_method["PLL", size], curves.by_method["KL", size], strict=True)
        return [high - low for high, low in both]

    def beats_mlm(reading: str, source: str) -> Claim:
        worst = max(METHODS, key=lambda method: statistics.fmean(curves.by_method[method, least]))
        return judge_by_seed(
            f"{curves.name}: every method does better than the MLM alone (E_{reading}).", source,
            curves.mlm[reading], curves.by_method[worst, least],
            prefix=f"MLM minus the worst, {worst} on {least:,}: ",
        )  # fmt: skip

    claims = [
        compare("KL projection does better than pseudolikelihood from new weights.", "PLL", "KL"),
        compare("So does KL projection with pseudolikelihood.", "PLL", "KL + PLL"),
        judge_by_seed(
            f"{curves.name}: the less data, the more KL projection gains.", SOURCE, gain(least), gain(most),
            prefix=f"PLL minus KL on {least:,} minus the same on {most:,}: ",
        ),
        beats_mlm("raw", SOURCE),
        beats_mlm("local", "not in the thesis"),
        compare("It is the target and not the start: KL does better than pseudolikelihood from the same weights.",
                METHODS[3], "KL", "not in the thesis"),
        compare("KL alone does better than with pseudolikelihood.", "KL + PLL", "KL", "not in the thesis"),
    ]  # fmt: skip
    if curves.entropy is not None:
        text = f"{curves.name}: with {least:,} sequences KL comes within {NEAR} nat of the entropy."
        bound, reached = [curves.entropy + NEAR] * len(curves.by_method["KL", least]), curves.by_method["KL", least]
        prefix = f"entropy plus {NEAR} minus KL on {least:,}: "
        claims.append(judge_by_seed(text, "not in the thesis", bound, reached, prefix=prefix))
    return claims


def _results(curves: Curves, signature: Signature) -> list[Result]:
    def result(measured: str, values: Sequence[float]) -> Result:
        return student_result(curves.name, measured, values, signature, unit="nat")

    entropy = [] if curves.entropy is None else [Result(curves.name, "entropy", curves.entropy, signature, unit="nat")]
    return [
        *entropy,
        *(result(f"MLM on {curves.mlm_size:,}, {reading}", values) for reading, values in curves.mlm.items()),
        *(result(f"{method}, {size:,}", values) for (method, size), values in curves.by_method.items()),
    ]


def draw(table: Table, path: Path) -> None:
    """Draw a panel for each distribution with a line for each method, with Student's 95% intervals as bars."""
    by_system: dict[str, dict[str, Result]] = {}
    for result in table.results:
        by_system.setdefault(result.system, {})[result.measure] = result
    with panels(path, len(by_system), figsize=(5.5 * len(by_system), 4.2)) as (figure, row):
        for axes, (name, found) in zip(row, by_system.items(), strict=True):
            _draw_panel(axes, found)
            axes.set_title(name, loc="left")
        legend_below(figure, min(4, 2 * len(by_system)))


def _draw_panel(axes: Any, found: Mapping[str, Result]) -> None:
    """Draw NLL by size, with the entropy and the MLM as levels; results of one distribution by measure."""
    for method, colour, marker in zip(METHODS, (BLUE, SKY, RED, ORANGE), "os^v", strict=True):
        by_size = _by_size(found, method)
        means, bars = [result.value for result in by_size.values()], interval_bars(list(by_size.values()))
        style = {"color": colour, "marker": marker, "label": method, "ms": 5, "capsize": 2, "lw": 1.5}
        axes.errorbar(list(by_size), means, yerr=bars, **style)
    if "entropy" in found:
        axes.axhline(found["entropy"].value, color="black", lw=1, label="entropy")
    for reading, dashes in (("raw", ":"), ("local", "--")):
        (measure,) = (name for name in found if name.startswith("MLM on ") and name.endswith(f", {reading}"))
        label = f"{measure.removesuffix(reading)}E_{reading}"
        axes.axhline(found[measure].value, color=GREY, lw=1, ls=dashes, label=label)
    axes.set(xscale="log", xlabel="sequences", ylabel="NLL (nats per sequence)")
    axes.grid(alpha=0.25)


def _by_size(found: Mapping[str, Result], method: str) -> dict[int, Result]:
    """Return the results of a method by number of sequences, in ascending order."""
    parts = ((measure.rpartition(", "), result) for measure, result in found.items())
    sizes = {int(size.replace(",", "")): result for (name, _, size), result in parts if name == method}
    return dict(sorted(sizes.items()))
