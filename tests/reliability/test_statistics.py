"""Samplers have the distribution that was asked for: exact transitions, real draws, and calibrated ranks.

Shapes: B chains, N states, L draws, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling.test_chains import autoregressive
from seqwise.sampling import (
    ChainState,
    Draws,
    Energy,
    Info,
    Kernel,
    SeededDraws,
    anneal_blocks,
    anywhere,
    boltzmann,
    cycle,
    delayed_acceptance,
    exact_gibbs,
    examine,
    gibbs,
    kernels,
    local_energy,
    mask_predict,
    masked_conditionals,
    metropolis_hastings,
    mixture,
    parallel_tempering,
    repeat,
    sample_chains,
    sequence_energy,
    shuffled,
    start_chains,
    table_model,
    transition_matrix,
)
from seqwise.sampling.combinators import coldest
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.diagnostics import effective_sample_size, split_r_hat

LADDER = [1.0, 1.6]


@dataclass(frozen=True)
class Case:
    """A kernel, and what is promised of it.

    Args:
        model: whose local energies are the target.
        kernel: one transition.
        temperature: of its target.
        reversible: whether detailed balance holds, not stationarity alone.
        replicas: chains that make one state.
        rounds: transitions that visit every position about twice.
    """

    model: Any
    kernel: Kernel
    temperature: float = 1.0
    reversible: bool = False
    replicas: int = 1
    rounds: int = 12


def cases(model: Any, energy: Energy) -> dict[str, Case]:
    """Every kernel that promises a target, in all its ways of visiting."""
    proposal, hot = masked_conditionals(model), masked_conditionals(model, temperature=1.5)
    foreign = table_model(num_positions=model.table.shape[0], vocab_size=model.vocab_size, seed=9, scale=0.5)
    one = metropolis_hastings(energy, proposal, visits=anywhere())
    conditional = exact_gibbs(energy, visits=anywhere())

    def tempered(temperature_B: Tensor) -> Kernel:
        return metropolis_hastings(energy, hot, temperature=temperature_B, visits=anywhere())

    return {
        "metropolis_hastings": Case(model, one, reversible=True),
        "metropolis_hastings in order": Case(model, metropolis_hastings(energy, proposal), rounds=2),
        "metropolis_hastings, shuffled": Case(model, metropolis_hastings(energy, hot, visits=shuffled()), rounds=2),
        "metropolis_hastings, pairs": Case(
            model, metropolis_hastings(energy, hot, visits=anywhere([1, 2]), temperature=0.8), 0.8, reversible=True
        ),
        "metropolis_hastings, nucleus": Case(
            model,
            metropolis_hastings(energy, masked_conditionals(model, nucleus=0.6, full_share=0.2), visits=anywhere()),
            reversible=True,
            rounds=24,
        ),
        "metropolis_hastings, another model": Case(
            model, metropolis_hastings(energy, masked_conditionals(foreign), visits=anywhere()), reversible=True
        ),
        "delayed_acceptance": Case(
            model, delayed_acceptance(energy, hot, window=0, visits=anywhere()), reversible=True
        ),
        "exact_gibbs": Case(model, conditional, reversible=True),
        "exact_gibbs in order": Case(model, exact_gibbs(energy, temperature=1.3), 1.3, rounds=2),
        "cycle": Case(model, cycle(one, conditional)),
        "repeat": Case(model, repeat(one, 2), reversible=True),
        "mixture": Case(model, mixture([one, conditional], [1, 2]), reversible=True),
        "anneal_blocks": Case(
            model,
            anneal_blocks(lambda size: metropolis_hastings(energy, hot, visits=anywhere([size])), [2, 1]),
            reversible=True,
        ),
        "parallel_tempering": Case(model, parallel_tempering(tempered, LADDER), replicas=2),
    }


SMALL = table_model(num_positions=2, vocab_size=3, seed=1)
# Two replicas make as many states as there are pairs.
TINY = table_model(num_positions=2, vocab_size=2, seed=4, scale=2.0)
SMALL_CASES = cases(SMALL, local_energy(SMALL)) | {
    "parallel_tempering": cases(TINY, local_energy(TINY))["parallel_tempering"]
}


def together(states: ChainState, replicas: int) -> ChainState:
    """Every way in which so many replicas can stand, next to each other."""
    rows = torch.cartesian_prod(*[torch.arange(len(states))] * replicas).flatten()
    return replace(states.take(rows), chain_B=torch.arange(len(rows)))


def listed(case: Case) -> tuple[ChainState, Tensor]:
    """All states of a case, and the target."""
    single = start_chains(local_energy(case.model), every_sequence(case.model.vocab_size, case.model.table.shape[0]))
    if case.replicas == 1:
        return single, boltzmann(single.energy_B, case.temperature)
    states = together(single, case.replicas)
    return states, boltzmann(
        (states.energy_B.view(-1, case.replicas) / torch.tensor(LADDER, dtype=torch.float64)).sum(1)
    )


def enumerated(case: Case, states: ChainState) -> Tensor:
    return transition_matrix(case.kernel, states, chains_per_state=case.replicas)


@cache
def exactly(case: Case) -> Tensor:
    return enumerated(case, listed(case)[0])


# -------------------------------------------------------------------------------------------- exact transitions


def test_every_kernel_with_a_target_has_a_case() -> None:
    of_no_target = {"gibbs", "mask_predict"}
    made = {
        name
        for name, function in vars(kernels).items()
        if getattr(function, "__annotations__", {}).get("return") == "Kernel"
    }
    single = {name for name in made if name[0] != "_"} - of_no_target
    assert {name.split(",")[0].split(" ")[0] for name in SMALL_CASES} >= single
    state = start_chains(local_energy(SMALL), torch.zeros(1, 2).long())
    for kernel in (gibbs(masked_conditionals(SMALL)), mask_predict(SMALL, num_iterations=1)):
        assert not kernel(SeededDraws(0, state.chain_B, sweep=0), state)[1].invariant


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SMALL_CASES))
def test_a_kernel_keeps_its_target(name: str, promise: Any) -> None:
    case = SMALL_CASES[name]
    report = examine(exactly(case), listed(case)[1])
    assert report.stationarity < 1e-10 and report.irreducible
    if case.reversible:
        assert report.detailed_balance < 1e-10
        promise("kernels in detailed balance with their target, all transitions enumerated", 1, "to 1e-10")
    else:
        promise("kernels that leave their target invariant, all transitions enumerated", 1, "to 1e-10")


@contextmanager
def settled_otherwise(change: Callable[[Draws, ChainState, Any], tuple[Draws, Any]]) -> Iterator[None]:
    """Inside, kernels accept by other draws, or another proposal, than they should."""
    with pytest.MonkeyPatch.context() as patch:
        right = kernels.settle

        def wrong(draws: Draws, state: ChainState, proposed: Any, *rest: Any) -> Info:
            draws, proposed = change(draws, state, proposed)
            return right(draws, state, proposed, *rest)

        patch.setattr(kernels, "settle", wrong)
        yield


def without_ratio(draws: Draws, state: ChainState, proposed: Any) -> tuple[Draws, Any]:
    return draws, replace(proposed, log_ratio_B=torch.zeros_like(proposed.log_ratio_B))


@dataclass
class Lazy:
    """Draws that accept less often than they should."""

    draws: Draws
    log_share: Tensor | float = math.log(0.95)

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        return self.draws.categorical(log_weights_BV, live_B)

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        return self.draws.accepts(log_probs_B.clamp(max=0.0) + self.log_share, live_B)


def lazy_one_way(draws: Draws, state: ChainState, proposed: Any) -> tuple[Draws, Any]:
    rising_B = proposed.tokens_BT.sum(1) > state.tokens_BT.sum(1)
    return Lazy(draws, math.log(0.95) * rising_B.double()), proposed


JUDGED = [name for name in SMALL_CASES if name.startswith(("metropolis", "delayed"))]


@pytest.mark.parametrize("name", JUDGED)
def test_a_missing_hastings_ratio_is_detected(name: str) -> None:
    case = SMALL_CASES[name]
    states, target = listed(case)
    with settled_otherwise(without_ratio):
        report = examine(enumerated(case, states), target)
    assert report.stationarity > 1e-3


# ---------------------------------------------------------------------------------------------- real transitions

NUM_DRAWS = 40_000
MOST_ERRORS = 7


def places(tokens_BT: Tensor, vocab_size: int) -> Tensor:
    """The place of each sequence among all of them, in order."""
    return (tokens_BT * vocab_size ** torch.arange(tokens_BT.shape[1] - 1, -1, -1)).sum(1)


def largest_error(case: Case, draws_of: Callable[[SeededDraws], Draws]) -> float:
    """Of one transition from each of three states: how far a share lies from its probability, in standard errors."""
    states, _ = listed(case)
    count = len(states) // case.replicas
    chosen = [0, count // 2, count - 1]
    rows = torch.arange(len(states)).view(count, -1)[chosen].repeat_interleave(NUM_DRAWS, 0).flatten()
    start = replace(states.take(rows), chain_B=torch.arange(len(rows)))
    after = case.kernel(draws_of(SeededDraws(11, start.chain_B, sweep=0)), start)[0].tokens_BT
    place_M = places(after.view(len(rows) // case.replicas, -1), case.model.vocab_size)
    row_M = torch.arange(len(chosen)).repeat_interleave(NUM_DRAWS)
    found = torch.bincount(row_M * count + place_M, minlength=len(chosen) * count).view(-1, count) / NUM_DRAWS
    wanted = exactly(case)[chosen]
    # One draw more or less is no error of a state that is hardly ever reached.
    excess = ((found - wanted).abs() - 1 / NUM_DRAWS).clamp(min=0)
    assert not bool(found[wanted == 0].any())
    return float((excess / (wanted * (1 - wanted) / NUM_DRAWS).sqrt().clamp(min=1e-12)).max())


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SMALL_CASES))
def test_real_transitions_are_the_enumerated_ones(name: str, promise: Any) -> None:
    case = SMALL_CASES[name]
    assert largest_error(case, lambda draws: draws) < MOST_ERRORS
    # The same draws accept too seldom: as many are enough to see it.
    if name in JUDGED:
        assert largest_error(case, Lazy) > MOST_ERRORS
    promise(
        f"{NUM_DRAWS:,} transitions from each of three states of each kernel, against the enumerated probabilities",
        3,
        f"within {MOST_ERRORS} standard errors; accepting 5% too rarely is detected",
    )


# ------------------------------------------------------------------------------------------------ calibrated ranks

NUM_CHAINS, NUM_RIVALS = 60_000, 9
TARGET = table_model(num_positions=5, vocab_size=2, seed=3, scale=0.5)
ENERGY = local_energy(TARGET)
EVERY = start_chains(ENERGY, every_sequence(2, 5))
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "ones": lambda tokens_BT: tokens_BT.sum(1).double(),
    "first token": lambda tokens_BT: tokens_BT[:, 0].double(),
    "energy": lambda tokens_BT: EVERY.energy_B[places(tokens_BT, 2)],
}


def exact_draws(temperature: float, count: int, generator: torch.Generator) -> Tensor:
    """Places of sequences that are drawn from the target itself, of which all are known."""
    return torch.multinomial(boltzmann(EVERY.energy_B, temperature), count, replacement=True, generator=generator)


def exact_starts(case: Case, generator: torch.Generator) -> ChainState:
    temperatures = [case.temperature] if case.replicas == 1 else LADDER
    rows_BR = torch.stack([exact_draws(value, NUM_CHAINS, generator) for value in temperatures], 1)
    return replace(EVERY.take(rows_BR.flatten()), chain_B=torch.arange(rows_BR.numel()))


def uniformity(case: Case, *, seed: int = 5) -> dict[str, float]:
    """By feature, the p-value of uniform ranks: chains from exact draws, some sweeps later, among new exact draws.

    What leaves the target unchanged makes of an exact draw another one, however many sweeps are made, so that its rank
    among independent ones is uniform, ties broken at random (Talts et al. 2018, after Cook et al. 2006).
    """
    generator = torch.Generator().manual_seed(seed)
    state = exact_starts(case, generator)
    for sweep in range(case.rounds):
        state = case.kernel(SeededDraws(seed, state.chain_B, sweep=sweep), replace(state, sweep=sweep))[0]
    final_BT = coldest(state, case.replicas).tokens_BT
    rivals_BL = exact_draws(case.temperature, NUM_CHAINS * NUM_RIVALS, generator).view(NUM_CHAINS, -1)
    found = {}
    for name, feature in FEATURES.items():
        own_B1, rival_BL = feature(final_BT)[:, None], feature(EVERY.tokens_BT)[rivals_BL]
        tied_B = (rival_BL == own_B1).sum(1)
        random_B = (torch.rand(NUM_CHAINS, generator=generator, dtype=torch.float64) * (tied_B + 1)).long()
        counts = torch.bincount((rival_BL < own_B1).sum(1) + random_B, minlength=NUM_RIVALS + 1).double()
        wanted = NUM_CHAINS / (NUM_RIVALS + 1)
        statistic = ((counts - wanted) ** 2 / wanted).sum() / 2
        found[name] = float(torch.special.gammaincc(torch.tensor(NUM_RIVALS / 2, dtype=torch.float64), statistic))
    return found


CASES = cases(TARGET, ENERGY)
# One token costs 0.05 more than it should: where it is free, its probability is 5% too low.
DEAR = cases(TARGET, ENERGY + sequence_energy(lambda tokens_BT: 0.05 * tokens_BT.sum(1).double()))


QUICK = "metropolis_hastings in order"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_ranks_among_exact_draws_are_uniform(name: str, promise: Any) -> None:
    found = uniformity(CASES[name])
    assert min(found.values()) > 1e-3, found
    assert min(uniformity(DEAR[name]).values()) < 1e-6
    if name in JUDGED:
        with settled_otherwise(lazy_one_way):
            assert min(uniformity(CASES[name]).values()) < 1e-6
    promise(
        f"ranks of features of {NUM_CHAINS:,} exact draws after some sweeps, each among {NUM_RIVALS} new draws",
        len(found),
        "uniform by chi-square, p > 1e-3; with a token 5% too rare or accepted 5% too rarely, p < 1e-6",
    )


# ---------------------------------------------------------------------------------------------------- diagnostics


@pytest.mark.thorough
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_ess_of_autoregressive_chains(rho: float, promise: Any) -> None:
    pytest.importorskip("arviz_stats")
    num_runs, num_chains, num_sweeps = 10, 4, 30_000
    wanted = num_chains * num_sweeps * (1 - rho) / (1 + rho)
    for values_SB in autoregressive(rho, num_sweeps, num_runs * num_chains).split(num_chains, 1):
        assert effective_sample_size(values_SB) == pytest.approx(wanted, rel=0.15)
        assert split_r_hat(values_SB) < 1.01
    promise(
        "autoregressive chains with known ESS, rho 0, 0.5 and 0.9",
        num_runs,
        "within 15% of n (1 - rho) / (1 + rho), and R-hat below 1.01",
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("coupling", "met"), [(5.0, False), (0.3, True)])
def test_r_hat_of_chains_that_start_apart(coupling: float, met: bool, promise: Any) -> None:
    """Strongly coupled neighbours agree, so that a chain from zeros hardly ever gets to ones."""
    pytest.importorskip("arviz_stats")

    def disagreements(tokens_BT: Tensor) -> Tensor:
        return coupling * (tokens_BT[:, 1:] != tokens_BT[:, :-1]).sum(1).double()

    energy = sequence_energy(disagreements)
    kernel = exact_gibbs(energy, allowed_V=torch.ones(2, dtype=torch.bool))
    # Four chains a run, and all runs in one batch: numbers of their own make them independent.
    num_runs = 5
    starts = start_chains(energy, torch.tensor([[0] * 5, [0] * 5, [1] * 5, [1] * 5]).repeat(num_runs, 1))
    ones_SB = sample_chains(kernel, starts, 300).tokens_SBT[50 if met else 0 :].sum(2)
    for own_SB in ones_SB.split(4, 1):
        r_hat = split_r_hat(own_SB)
        assert r_hat < 1.01 if met else r_hat > 1.1
    how = "have met, after 50 sweeps" if met else "have not met"
    promise(f"chains from opposite starts that {how}", num_runs, "R-hat below 1.01" if met else "R-hat above 1.1")
