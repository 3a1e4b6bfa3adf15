"""Table 6.1 of the thesis: likelihood, pseudolikelihood and MLM training of one masked model, on known distributions.

Every number is an expectation under the true distribution, by enumeration of all 5^5 sequences: there is no test set,
and no sampling error except that of the training data and the initial weights. Noise-contrastive estimation of the same
energy, future work in the thesis (chapter 7), is added to its objectives, with two noise distributions: masked models
trained to fill rows of masks from left to right, which makes an autoregressive model, and in any order. The phonemes of
the last row are in `reproductions.goyal_2021.phonemes`.

Shapes: N = V^T sequences.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reproductions import Setup
from reproductions.cells import CellJob, fingerprint_of, run_cells
from reproductions.comparison import judge_by_seed, signature_of_seeds
from reproductions.goyal_2021 import phonemes
from reproductions.goyal_2021.energy_training import (
    EnergyLoss,
    enumerated_logits,
    fit_enumerated,
    likelihood_loss,
    local_scores,
    masked_loss,
    new_model,
    pseudolikelihood_loss,
    raw_scores,
)
from reproductions.goyal_2021.enumerable import (
    Enumerable,
    empirical_weights,
    palindrome_entropy,
    palindromes,
    thesis_hmm,
)
from reproductions.goyal_2021.sequence_contrastive import NOISES, Orders, fit_contrasted, train_noise
from reproductions.outcome import Outcome, verdicts
from reproductions.report import Claim, Result, Table
from reproductions.tuning import RATES
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.data.readers import Example
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign

SOURCE = "Goyal's thesis (2021), Table 6.1"
NOT_IN_THESIS = "not in the thesis"
DISTRIBUTIONS = {
    "palindromes": palindromes,
    "HMM, low entropy": lambda: thesis_hmm("low"),
    "HMM, high entropy": lambda: thesis_hmm("high"),
}
"""Functions that make the distributions, by name."""
OBJECTIVES: Mapping[str, EnergyLoss] = {
    "LL": likelihood_loss,
    "PLL": pseudolikelihood_loss,
    "MLM": masked_loss,
}
CONTRASTED = tuple(f"NCE, {name}" for name in NOISES)
NLL = ("LL", "PLL", *CONTRASTED, "MLM, raw", "MLM, local", *(f"noise, {name}" for name in NOISES))
"""Measures that are cross-entropies, of E_raw unless named otherwise."""
BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {},
    "converged": {
        "steps": 1000,
        "patience": 60,
        "learning_rates": tuple(6e-3 * part for part in RATES),
    },
}
"""Training budget and learning rates of every objective, by scale."""
SECONDS, CONTRAST_SECONDS = "CPU seconds", "CPU seconds, NCE and its noises"
"""Measures of the time of one seed on one core: of the thesis' objectives, and of those that the thesis lacks."""


@dataclass(frozen=True)
class Row:
    """Row of the table."""

    name: str  # as printed
    distribution: str  # one of :data:`DISTRIBUTIONS`
    size: int  # number of sequences to draw
    published: Mapping[str, float] = field(default_factory=dict)  # the thesis' numbers by measure


def _published(*numbers: float) -> dict[str, float]:
    # The thesis' MLM column is compared with E_raw, as its text says.
    return dict(zip(("entropy", "LL", "PLL", "MLM, raw", "-PLL of PLL", "-MLM of MLM"), numbers, strict=True))


ROWS = (
    Row("p-1k", "palindromes", 1_000, _published(5.32, 6.74, 7.01, 7.71, 5.74, 5.87)),
    Row("p-10k", "palindromes", 10_000, _published(5.35, 6.21, 6.57, 7.23, 4.88, 5.28)),
    Row("h-1k", "HMM, low entropy", 1_000, _published(4.97, 5.07, 5.16, 6.01, 4.58, 4.46)),
    Row("h-10k", "HMM, low entropy", 10_000, _published(5.02, 5.03, 5.04, 5.94, 4.45, 4.49)),
    Row("h+-1k", "HMM, high entropy", 1_000, _published(6.45, 6.51, 6.53, 7.07, 6.27, 6.23)),
    Row("h+-10k", "HMM, high entropy", 10_000, _published(6.41, 6.42, 6.43, 6.88, 6.14, 6.13)),
)
"""Synthetic rows."""


@dataclass(frozen=True)
class Cell:
    """Row of the table with its measurements, one for each seed, in nats per sequence."""

    row: Row
    entropy: float  # of the true distribution
    # NLL by objective and reading; the training objectives of PLL and MLM; NLL of the noise of NCE, and the error of
    # NCE's log Z; CPU seconds.
    by_measure: Mapping[str, list[float]]


def train_and_dev(distribution: Enumerable, size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Draw sequences, and return the shares of all V^T in four fifths for training and a fifth for early stopping."""
    drawn_BT = distribution.sample(size, generator=torch.Generator().manual_seed(seed))
    dev_size = size // 5
    train_N, dev_N = (
        empirical_weights(part_BT, distribution.vocab_size) for part_BT in (drawn_BT[dev_size:], drawn_BT[:dev_size])
    )
    return train_N.float(), dev_N.float()


def measure(distribution: Enumerable, size: int, *, seed: int, **budget: Any) -> dict[str, float]:
    """Train by each objective from the same weights and on the same data, and measure against the truth.

    ``budget`` is one of :data:`BUDGETS`, the same for all objectives.
    """
    began = time.process_time()
    train_N, dev_N = train_and_dev(distribution, size, seed=seed)
    found: dict[str, float] = {}
    for name, objective in OBJECTIVES.items():
        model = new_model(distribution.vocab_size, seed=seed)
        fit_enumerated(model, objective, length=distribution.length, train_N=train_N, dev_N=dev_N, **budget)
        with torch.no_grad():
            logits_TCV = enumerated_logits(model, distribution.length).double()
        raw = likelihood_loss(logits_TCV, distribution.probs_N).item()
        if name == "MLM":
            local = likelihood_loss(logits_TCV, distribution.probs_N, scores=local_scores).item()
            found |= {"MLM, raw": raw, "MLM, local": local}
        else:
            found[name] = raw
        if name != "LL":
            found[f"-{name} of {name}"] = objective(logits_TCV, distribution.probs_N).item()
    contrasts_began = time.process_time()
    for name, orders in NOISES.items():
        found |= _contrast(distribution, name, orders(distribution.length), train_N, dev_N, seed=seed, **budget)
    return found | {SECONDS: contrasts_began - began, CONTRAST_SECONDS: time.process_time() - contrasts_began}


def _contrast(
    distribution: Enumerable, name: str, orders: Orders, train_N: Tensor, dev_N: Tensor, *, seed: int, **budget: Any
) -> dict[str, float]:
    size, length = distribution.vocab_size, distribution.length
    log_noise_ON = train_noise(size, train_N, orders, length=length, seed=seed)
    model = new_model(size, seed=seed)
    log_partition = fit_contrasted(
        model, log_noise_ON, length=length, train_N=train_N, dev_N=dev_N, seed=seed, **budget
    )
    with torch.no_grad():
        logits_TCV = enumerated_logits(model, length).double()
    return {
        f"NCE, {name}": likelihood_loss(logits_TCV, distribution.probs_N).item(),
        f"noise, {name}": -(log_noise_ON.double() @ distribution.probs_N).mean().item(),
        f"log Z off, {name}": raw_scores(logits_TCV).logsumexp(0).item() - log_partition,
    }


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train 3 objectives and 2 contrasts on 6 data sets with each seed, and compare them with the true entropies.

    Only numbers are stored, in a cell for each data set and seed. The row of phonemes follows if there is a CMU
    dictionary: `reproductions.goyal_2021.phonemes`.

    Source: Goyal's thesis (2021), Table 6.1.
    """
    pairs = [(row, seed) for seed in setup.seeds for row in ROWS]  # seed by seed, so that complete seeds come first
    records = run_cells([_job(row, seed, setup) for row, seed in pairs], progress=setup.progress)
    cells, signatures = [], []
    for row in ROWS:
        own = [record for (other, _), record in zip(pairs, records, strict=True) if other is row]
        entropy, by_seed = DISTRIBUTIONS[row.distribution]().entropy, [record["measured"] for record in own]
        cells.append(Cell(row, entropy, {name: [run[name] for run in by_seed] for name in by_seed[0]}))
        signed = [Signature(**record["signature"]) for record in own]
        signatures.append(signature_of_seeds(signed, method=f"table-6.1: {row.name}"))
    title = "Table 6.1: training energies by likelihood, pseudolikelihood, contrast, and as a masked language model"
    claims = examine(cells)
    results = [result for each in zip(cells, signatures, strict=True) for result in _results(*each)]
    seconds, more = (sum(sum(cell.by_measure[name]) for cell in cells) for name in (SECONDS, CONTRAST_SECONDS))
    lesson = f"{seconds:.0f} CPU seconds, and {more:.0f} for noise-contrastive estimation, which the thesis lacks"
    table = Table(title, tuple(results), note=_entropy_note(), claims=tuple(claims))
    yield Outcome("table-6.1", table, lesson=f"{verdicts(claims)}\n{lesson}")
    lexicon = phonemes.find_lexicon()
    if lexicon is not None:
        yield phonemes.reproduce(lexicon, setup)


def _job(row: Row, seed: int, setup: Setup) -> CellJob:
    path = setup.folder / f"seed-{seed}" / f"{row.name}.json"
    which = (row, seed, setup.scale)
    return CellJob(f"{row.name}, seed {seed}", path, partial(_fingerprint, *which), partial(_record, *which))


def _record(row: Row, seed: int, scale: str, report: Report) -> dict[str, Any]:
    distribution = DISTRIBUTIONS[row.distribution]()
    measured = measure(distribution, row.size, seed=seed, **BUDGETS[scale])
    # Made here and stored with the numbers, so that a cell that is read back later is not signed as new.
    signature = sign_distribution(f"table-6.1: {row.name}", distribution, seeds=[seed])
    report(1, 1, "")
    return {"measured": measured, "signature": asdict(signature)}


def _fingerprint(row: Row, seed: int, scale: str) -> str:
    """Return a fingerprint of the data and of the training budget."""
    data = sign_distribution(row.name, DISTRIBUTIONS[row.distribution](), seeds=[seed]).data
    return fingerprint_of(json.dumps(BUDGETS[scale]), row.name, str(row.size), str(seed), data)


def examine(cells: Sequence[Cell]) -> list[Claim]:
    """Test the thesis' claims and ours."""
    every = {cell.row.name: cell for cell in cells}
    small, large = ([cell for name, cell in every.items() if name.endswith(size)] for size in ("-1k", "-10k"))

    def mean(chosen: Sequence[Cell], name: str) -> list[float]:
        """Return the mean over rows, by seed."""
        return [statistics.fmean(numbers) for numbers in zip(*(cell.by_measure[name] for cell in chosen), strict=True)]

    def gap(chosen: Sequence[Cell], worse: str, better: str) -> list[float]:
        return [high - low for high, low in zip(mean(chosen, worse), mean(chosen, better), strict=True)]

    def rows(worse: str, better: str) -> str:
        count = sum(statistics.fmean(gap([cell], worse, better)) > 0 for cell in cells)
        return f"{worse} minus {better}, mean of {len(cells)} rows ({count} above 0): "

    def compare(text: str, worse: str, better: str, source: str = f"{SOURCE}, section 6.2.2") -> Claim:
        return judge_by_seed(text, source, mean(cells, worse), mean(cells, better), prefix=rows(worse, better))

    def shrinks(text: str, worse: str, better: str) -> Claim:
        prefix, section = f"{worse} minus {better}, 1k minus 10k: ", f"{SOURCE}, section 6.2.3"
        return judge_by_seed(text, section, gap(small, worse, better), gap(large, worse, better), prefix=prefix)

    uniform = math.log(5**5)
    return [
        compare("Likelihood models the data better than pseudolikelihood.", "PLL", "LL"),
        compare("Pseudolikelihood models the data better than an MLM, read as E_raw.", "MLM, raw", "PLL"),
        compare("So it does where the MLM is read as E_local.", "MLM, local", "PLL", NOT_IN_THESIS),
        shrinks("With more data, pseudolikelihood comes near likelihood.", "PLL", "LL"),
        shrinks("With more data, the MLM comes nearer to pseudolikelihood (E_raw).", "MLM, raw", "PLL"),
        shrinks("With more data, the MLM comes nearer to pseudolikelihood (E_local).", "MLM, local", "PLL"),
        compare("E_raw of an MLM is not identified: E_local is the better reading.", "MLM, raw", "MLM, local",
                NOT_IN_THESIS),
        judge_by_seed(
            "On p-1k, E_raw of an MLM is worse than the uniform distribution.", NOT_IN_THESIS,
            mean([every["p-1k"]], "MLM, raw"), [uniform] * len(mean(cells, "LL")),
            prefix=f"MLM, raw, minus log 5^5 = {uniform:.2f}: ",
        ),
        Claim(
            "The true NLL of palindromes is 5.32 (p-1k) or 5.35 (p-10k).", f"{SOURCE}, column True", "reversed",
            _entropy_note(), kind="theorem",
        ),
        *(
            claim
            for name in NOISES
            for claim in (
                compare(f"Likelihood models the data better than noise-contrastive estimation ({name}).",
                        f"NCE, {name}", "LL", NOT_IN_THESIS),
                compare(f"Noise-contrastive estimation ({name}) models the data better than pseudolikelihood.",
                        "PLL", f"NCE, {name}", NOT_IN_THESIS),
                compare(f"It does better than the noise that it is contrasted with ({name}).",
                        f"noise, {name}", f"NCE, {name}", NOT_IN_THESIS),
            )
        ),
        compare("Masks filled in any order are better noise than an autoregressive model.",
                "NCE, left to right", "NCE, any order", NOT_IN_THESIS),
    ]  # fmt: skip


def _entropy_note() -> str:
    return (
        f"the entropy of the palindromes is {palindrome_entropy():.4f} nats in closed form, -0.8 log(0.8 / 125) - 0.2 "
        "log(0.2 / 3000), and no cross-entropy lies below it; the thesis prints 5.32, as a wrong sign of log 0.2 would"
    )


def sign_distribution(method: str, distribution: Enumerable, *, seeds: Sequence[int]) -> Signature:
    """Return a signature whose data are the probabilities of a distribution."""
    table = Example(tuple(f"{value:.6g}" for value in distribution.probs_N.tolist()), ())
    return sign(method, seeds=seeds, data=sha256_of_examples([table]))


def _results(cell: Cell, signature: Signature) -> list[Result]:
    row = cell.row

    def result(name: str, values: Sequence[float]) -> Result:
        unit = "s" if name in (SECONDS, CONTRAST_SECONDS) else "nat"
        return student_result(row.name, name, values, signature, published=row.published.get(name), unit=unit)

    note = _entropy_note() if row.distribution == "palindromes" else ""
    published = row.published.get("entropy")
    return [
        Result(row.name, "entropy", cell.entropy, signature, published=published, unit="nat", note=note),
        *(result(name, values) for name, values in cell.by_measure.items()),
    ]
