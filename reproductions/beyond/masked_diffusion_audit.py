"""Decoders of masked diffusion models on spaces small enough to list: the exact law of each, and its error.

A masked model that has learnt to fill masks in any order defines a distribution, its any-order law. Decoders that
reveal several positions per pass, or the most confident one first, draw from another one; Gibbs sampling and
Metropolis-Hastings change a drawn sequence at one position per visit. Nothing is estimated: `unmasking_law` and
`transition_matrix` enumerate all random choices.

Shapes: N = V^T sequences in lexicographic order, C = (V + 1)^T sequences with masks, T positions, O orders, V
vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from reproductions import Setup
from reproductions.cells import measure_by_seed
from reproductions.comparison import judge_by_seed
from reproductions.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, interval_bars, legend_below, panels
from reproductions.goyal_2021.enumerable import Enumerable, empirical_weights, palindromes, thesis_hmm, total_variation
from reproductions.goyal_2021.sequence_contrastive import fill_log_probs, shuffled_orders, train_filler
from reproductions.goyal_2021.table_6_1 import sign_distribution
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import (
    anywhere,
    boltzmann,
    examine,
    gibbs,
    local_energy,
    low_confidence_remasking,
    masked_conditionals,
    metropolis_hastings,
    random_unmasking,
    remasking_diffusion,
    start_chains,
    table_model,
    threshold_decoding,
    transition_matrix,
    unmasking_law,
)
from seqwise.sampling.correctness import TableModel, every_sequence
from seqwise.sampling.proposals import Proposal
from seqwise.sampling.unmasking import Unmasking

LENGTH, SIZE = 4, 5
NUM_SEQUENCES, STEPS = 10_000, 1_000
"""Number of training sequences of a model, and its training steps."""
FEW = (1, 2, 4)  # iterations of decoders that keep what they reveal; with the last, one position each
MANY = (2, 4, 8, 16)  # iterations of diffusion
THRESHOLDS = (0.5, 0.7, 0.9, 1.0)
CAP = 0.1  # of remasking
VISITS = (1, 2, 4, 8, 16, 32, 64)
RANDOM, CONFIDENT, THRESHOLD = "random unmasking", "low-confidence remasking", "threshold decoding"
DIFFUSION, REMDM = "diffusion without remasking", f"ReMDM, cap {CAP:g}"
GIBBS, METROPOLIS, LOCAL = "Gibbs", "Metropolis-Hastings", "exp(-E_local)"
ANY_ORDER, DATA, PASSES = "to the any-order law", "to the data", "passes"
"""Measures: total variation to two laws, and passes of the model."""
MODELS: Mapping[str, Enumerable | None] = {
    "palindromes": palindromes(vocab_size=SIZE, length=LENGTH),
    "HMM": thesis_hmm("low", length=LENGTH),
    "random table": None,
}
"""Distributions of the training data by name; None for random scores without training."""

Found: TypeAlias = dict[tuple[str, str], float]
"""Numbers of one model, by system and measure."""


@dataclass(frozen=True)
class Audit:
    """Measurements of the models of one distribution, one for each seed."""

    name: str  # one of MODELS
    runs: Sequence[Found]
    checks: Sequence[Mapping[str, float]] = field(default_factory=tuple)  # of theorems, by seed

    def values(self, system: str, measured: str) -> list[float]:
        """Return a measure of a system, for each seed."""
        return [run[system, measured] for run in self.runs]


def tabulated(model: MaskedModel, length: int) -> TableModel:
    """Tabulate the scores of a masked model for all sequences with masks."""
    size = model.vocab_size
    tokens_CT = every_sequence(size + 1, length)  # token V stands for a mask
    masked_CT = tokens_CT == size
    table_TCV = torch.zeros(length, len(tokens_CT), size, dtype=torch.float64)
    rows_N = masked_CT.any(1).nonzero().flatten()
    with torch.no_grad():
        logits_MV = model.masked_logits(tokens_CT[rows_N].clamp(max=size - 1), masked_CT[rows_N])
    rows_M, places_M = masked_CT.nonzero(as_tuple=True)
    table_TCV[places_M, rows_M] = logits_MV.double()
    return TableModel(table_TCV)


def any_order_law(model: MaskedModel, length: int) -> Tensor:
    """Return the mean of ``q(y | order)`` over all T! orders, (N,)."""
    every_NT = every_sequence(model.vocab_size, length)
    orders_OT = torch.tensor(list(itertools.permutations(range(length))))
    with torch.no_grad():
        log_probs_ON = torch.stack(
            [fill_log_probs(model, every_NT, order_T.expand_as(every_NT)) for order_T in orders_OT]
        )
    return log_probs_ON.exp().mean(0)


def decoders(proposal: Proposal) -> dict[str, Unmasking]:
    """Return the decoders to audit, by name."""
    return {
        **{f"{RANDOM}, N = {n}": random_unmasking(proposal, num_iterations=n) for n in FEW},
        **{f"{CONFIDENT}, N = {n}": low_confidence_remasking(proposal, num_iterations=n) for n in FEW},
        **{f"{THRESHOLD}, {bar:g}": threshold_decoding(proposal, threshold=bar) for bar in THRESHOLDS},
        **{f"{DIFFUSION}, N = {n}": remasking_diffusion(proposal, num_iterations=n, remask=0.0) for n in MANY},
        **{f"{REMDM}, N = {n}": remasking_diffusion(proposal, num_iterations=n, remask=CAP) for n in MANY},
    }


def collision(num_iterations: int, length: int) -> float:
    """Return the probability that any two of T positions are revealed in the same of N iterations, each at random."""
    return 1 - math.prod(1 - place / num_iterations for place in range(length))


def new_model(distribution: Enumerable | None, seed: int) -> TableModel:
    """Train a masked model to fill masks in any order, or draw random scores, and return the table of scores."""
    if distribution is None:
        return table_model(num_positions=LENGTH, vocab_size=SIZE, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    train_N = empirical_weights(distribution.sample(NUM_SEQUENCES, generator=generator), SIZE).float()
    model = train_filler(
        SIZE, train_N, shuffled_orders(LENGTH), length=LENGTH, steps=STEPS, seed=seed, generator=generator
    )  # fmt: skip
    return tabulated(model.double(), LENGTH)


def measure(distribution: Enumerable | None, seed: int) -> tuple[Found, dict[str, float]]:
    """Compute the law of every decoder and chain of a model; return distances and passes, and checks of theorems."""
    model = new_model(distribution, seed)
    any_order_N = any_order_law(model, LENGTH)
    found: Found = {}

    def note(system: str, law_N: Tensor, passes: float | None) -> None:
        found[system, ANY_ORDER] = total_variation(law_N, any_order_N)
        if distribution is not None:
            found[system, DATA] = total_variation(law_N, distribution.probs_N)
        if passes is not None:
            found[system, PASSES] = passes

    proposal = masked_conditionals(model)
    laws = {name: unmasking_law(decoder, LENGTH) for name, decoder in decoders(proposal).items()}
    for name, law in laws.items():
        note(name, law.probs_N, law.passes)
    energy = local_energy(model)
    states = start_chains(energy, every_sequence(SIZE, LENGTH))
    target_N = boltzmann(states.energy_B)
    note(LOCAL, target_N, None)
    # exp(-E_t) is the probability that a redrawn position keeps its token.
    novel_N = 1 - states.energy_BT.neg().exp().mean(1)
    start_N = laws[f"{RANDOM}, N = 1"].probs_N
    kernels = {
        GIBBS: gibbs(proposal, visits=anywhere()),
        METROPOLIS: metropolis_hastings(energy, proposal, visits=anywhere()),
    }
    for name, kernel in kernels.items():
        matrix_NN = transition_matrix(kernel, states)
        law_N, passes = start_N, 1.0 + (LENGTH if name == METROPOLIS else 0)
        for visit in range(1, VISITS[-1] + 1):
            passes += float(law_N @ novel_N) * (LENGTH - 1) if name == METROPOLIS else 1
            law_N = law_N @ matrix_NN
            if visit in VISITS:
                note(f"{name}, {visit} visit{'s' * (visit > 1)}", law_N, passes)
    checks = {
        "stationarity": examine(matrix_NN, target_N).stationarity,
        "collisions": max(
            found[f"{DIFFUSION}, N = {n}", ANY_ORDER] / collision(n, LENGTH) for n in MANY if n >= LENGTH
        ),
    }
    return found, checks


def reproduce(setup: Setup) -> list[Outcome]:
    """Audit the decoders with models of two distributions and a table of random scores, for each seed.

    Source: Nie et al. (2025), Wu et al. (2025) and Wang et al. (2025) for the decoders; none of them has their laws.
    """

    def measured(name: str, seed: int, report: Report) -> tuple[Found, dict[str, float]]:
        return measure(MODELS[name], seed)

    audits = [
        Audit(name, [found for found, _ in runs], [checks for _, checks in runs])
        for name, runs in measure_by_seed(MODELS, measured, setup).items()
    ]
    title = "Masked diffusion decoders: total variation of their exact laws"
    claims = examine_audits(audits)
    table = Table(title, tuple(_results(audits, setup.seeds)), claims=tuple(claims))
    figure = setup.folder / "masked-diffusion-audit.png"
    draw(table, figure)
    return [Outcome("masked-diffusion-audit", table, {"figure": figure})]


# ------------------------------------------------------------------------------------------------- claims and table


def examine_audits(audits: Sequence[Audit]) -> list[Claim]:
    """Check the theorems and test the claims."""
    every = [audit.values for audit in audits]

    def distances(*systems: str) -> list[float]:
        return [number for values in every for system in systems for number in values(system, ANY_ORDER)]

    def theorem(text: str, evidence: str) -> Claim:
        return Claim(text, "here", "holds", evidence, kind="theorem")

    one_each, two_passes = FEW[-1], FEW[1]
    stationarity = max(check["stationarity"] for audit in audits for check in audit.checks)
    share = max(check["collisions"] for audit in audits for check in audit.checks)
    exact = distances(f"{RANDOM}, N = {one_each}")
    several = distances(f"{RANDOM}, N = 1", f"{RANDOM}, N = {two_passes}")
    drawn, seen = distances(f"{CONFIDENT}, N = {one_each}"), distances(f"{THRESHOLD}, 1")
    claims = [
        theorem(
            "One position at a time, in a uniformly random order, draws from the any-order law.",
            f"largest total variation of {len(exact)} models: {max(exact):.1g}",
        ),
        theorem("Several positions at a time do not.", f"smallest total variation: {min(several):.2g}"),
        theorem(
            "Low-confidence remasking does not, even one position at a time: the draws decide which of them stay.",
            f"smallest total variation: {min(drawn):.2g}",
        ),
        theorem(
            "Threshold decoding at 1 does not either, where conditionals belong to no joint: its order is not random.",
            f"from {min(seen):.2g} to {max(seen):.2g}",
        ),
        theorem(
            "Diffusion without remasking is no farther off than two positions fall into one iteration.",
            f"largest ratio of total variation to that probability: {share:.2f}",
        ),
        theorem(
            "Metropolis-Hastings leaves exp(-E_local) unchanged, which is not the any-order law.",
            f"moved by {stationarity:.1g}; total variation of the two laws at least {min(distances(LOCAL)):.2g}",
        ),
    ]  # fmt: skip
    return [*claims, *(claim for audit in audits for claim in _compare(audit))]


def _compare(audit: Audit) -> Iterator[Claim]:
    """Test which of two systems is nearer to a law."""
    one_each, most = f"N = {FEW[-1]}", f"N = {MANY[-1]}"
    pairs = [
        ("two passes", f"{CONFIDENT}, N = {FEW[1]}", f"{RANDOM}, N = {FEW[1]}"),
        ("one position a pass", f"{THRESHOLD}, 1", f"{CONFIDENT}, {one_each}"),
        (f"{MANY[-1]} iterations", f"{REMDM}, {most}", f"{DIFFUSION}, {most}"),
        (f"{MANY[-1]} visits or iterations", f"{GIBBS}, {MANY[-1]} visits", f"{DIFFUSION}, {most}"),
    ]
    for measured in (ANY_ORDER, DATA):
        for setting, closer, farther in pairs:
            if (closer, measured) in audit.runs[0]:
                closer_name, farther_name = (system.rpartition(", ")[0] for system in (closer, farther))
                yield judge_by_seed(
                    f"{audit.name}, {setting}: {closer_name} is nearer {measured} than {farther_name}.", "here",
                    audit.values(farther, measured), audit.values(closer, measured), unit="",
                )  # fmt: skip


def _results(audits: Sequence[Audit], seeds: Sequence[int]) -> Iterator[Result]:
    for audit in audits:
        distribution = MODELS[audit.name]
        if distribution is None:  # its data are the law of the table of the first seed
            law_N = any_order_law(new_model(None, seeds[0]), LENGTH)
            distribution = Enumerable(SIZE, LENGTH, law_N.log())
        signature = sign_distribution(f"masked-diffusion-audit: {audit.name}", distribution, seeds=seeds)
        for system, measured in audit.runs[0]:
            name, values = f"{audit.name}, {measured}", audit.values(system, measured)
            yield student_result(system, name, values, signature, unit="")


STYLES = {
    RANDOM: (BLUE, "o"), CONFIDENT: (RED, "s"), THRESHOLD: (ORANGE, "D"), DIFFUSION: (SKY, "v"), REMDM: (GREEN, "^"),
    GIBBS: (PINK, "P"), METROPOLIS: (BLACK, "X"),
}  # fmt: skip


def draw(table: Table, path: Path) -> None:
    """Draw total variation to the any-order law by passes, with a panel for each model and a curve for each decoder."""
    cells = {(result.system, result.measure): result for result in table.results}
    systems = list(dict.fromkeys(result.system for result in table.results))
    with panels(path, len(MODELS), figsize=(12, 4.4), sharey=True) as (figure, row):
        for axes, name in zip(row, MODELS, strict=True):
            for family, (colour, marker) in STYLES.items():
                curve = [system for system in systems if system.rpartition(", ")[0] == family]
                passes = [cells[system, f"{name}, {PASSES}"].value for system in curve]
                found = [cells[system, f"{name}, {ANY_ORDER}"] for system in curve]
                values = [each.value for each in found]
                style = {"color": colour, "marker": marker, "ms": 5, "capsize": 2, "lw": 1.3}
                axes.errorbar(passes, values, yerr=interval_bars(found), label=family, **style)
            level = cells[LOCAL, f"{name}, {ANY_ORDER}"].value
            axes.axhline(level, color=GREY, lw=1, ls="--", label="exp(−E_local)")
            axes.set(xscale="log", xlabel="passes of the model", title=name)
            axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
            axes.grid(alpha=0.25)
        row[0].set(ylabel="total variation to the any-order law", ylim=(0, None))
        legend_below(figure, 4)
