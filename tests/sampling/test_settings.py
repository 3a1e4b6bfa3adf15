"""Named kernels: each leaves its target invariant, and accepts exactly the options that it reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from recording import RecordedRows
from seqwise.configuration import configure
from seqwise.configuration.flat import flags_of, flat_values
from seqwise.data.batches import FREE
from seqwise.errors import InputError
from seqwise.sampling import (
    ChainSettings,
    DelayedAcceptance,
    Gibbs,
    MetropolisHastings,
    boltzmann,
    delayed_acceptance,
    exact_gibbs,
    examine,
    gibbs,
    in_order,
    local_energy,
    low_confidence_remasking,
    mask_predict,
    masked_conditionals,
    metropolis_hastings,
    parallel_tempering,
    random_unmasking,
    remasking_diffusion,
    sample_chains,
    start_chains,
    table_model,
    threshold_decoding,
    transition_matrix,
    unmasking_law,
)
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.options import MOST_SWEEPS
from seqwise.sampling.problems import ChainProblem, ChainRunner
from seqwise.sampling.proposals import VISITS, Visits
from seqwise.sampling.state import Kernel
from seqwise.sampling.unmasking import Unmasking

MODEL = table_model(num_positions=3, vocab_size=3, seed=2)
COLD = masked_conditionals(MODEL, temperature=0.4)
NAMES = [
    "metropolis-hastings", "delayed-acceptance", "exact-gibbs", "gibbs", "low-confidence-remasking", "mask-predict",
    "parallel-tempering", "random-unmasking", "remdm", "threshold-decoding",
]  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "metropolis-hastings": {"blocks": (2,), "visits": "shuffled", "temperature": 0.7, "proposal_temperature": 2.0},
    "delayed-acceptance": {"window": 0, "temperature": 1.5, "nucleus": 0.9, "full_share": 0.2},
    "exact-gibbs": {"temperature": 0.7, "visits": "anywhere"},
}

NEEDED: dict[str, dict[str, Any]] = {"parallel-tempering": {"temperatures": (1.0, 2.0)}}


def settings_of(name: str, **options: Any) -> ChainSettings:
    return configure(ChainSettings, kernel=name, **{**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("energy", ["local", "raw"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_named_kernel_leaves_its_enumerated_target_as_it_is(name: str, energy: str) -> None:
    """And not another one, so that the temperature reaches the acceptance."""
    settings, model = settings_of(name, energy=energy), table_model(num_positions=2, vocab_size=3, seed=2)
    target = settings.build_energy(model)
    states = start_chains(target, every_sequence(3, 2))
    matrix = transition_matrix(settings.build_kernel(model, target), states)
    temperature: float = settings.kernel.temperature  # type: ignore[attr-defined]
    assert examine(matrix, boltzmann(states.energy_B / temperature)).holds(1e-10)
    assert examine(matrix, boltzmann(states.energy_B)).stationarity > 1e-3


@pytest.mark.parametrize(
    ("name", "options", "decoder"),
    [
        ("random-unmasking", {"iterations": 2}, random_unmasking(COLD, num_iterations=2)),
        ("low-confidence-remasking", {"iterations": 2}, low_confidence_remasking(COLD, num_iterations=2)),
        ("threshold-decoding", {"threshold": 0.7}, threshold_decoding(COLD, threshold=0.7)),
        ("remdm", {"iterations": 3, "remask": 0.6}, remasking_diffusion(COLD, num_iterations=3, remask=0.6)),
    ],
)
def test_a_named_decoder_has_the_law_of_the_one_with_its_options(
    name: str, options: dict[str, Any], decoder: Unmasking
) -> None:
    def law(**given: Any) -> Tensor:
        settings = settings_of(name, **given)
        kernel = settings.build_kernel(MODEL, settings.build_energy(MODEL))
        assert isinstance(kernel, Unmasking)
        return unmasking_law(kernel, 3).probs_N

    options = {**options, "proposal_temperature": 0.4}
    expected = unmasking_law(decoder, 3).probs_N
    torch.testing.assert_close(law(**options), expected, atol=1e-12, rtol=0)
    for option in options:  # each of them matters
        without = {other: value for other, value in options.items() if other != option}
        assert float((law(**without) - expected).abs().max()) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_are_not_allowed_are_not_proposed(name: str) -> None:
    settings = settings_of(name, **NEEDED.get(name, {}))
    target = settings.build_energy(MODEL)
    kernel = settings.build_kernel(MODEL, target, allowed_V=torch.tensor([True, False, True]))
    trace = sample_chains(kernel, start_chains(target, torch.zeros(8, 3, dtype=torch.long)), 10, seed=1)
    assert set(trace.tokens_SBT.unique().tolist()) == {0, 2}


@pytest.mark.parametrize("starts", ["dispersed", "greedy"])
@pytest.mark.parametrize("name", NAMES)
def test_the_memory_limit_holds_in_every_call_and_changes_nothing(
    name: str, starts: Literal["dispersed", "greedy"]
) -> None:
    traces = []
    for max_rows in (2, 64):
        model = RecordedRows(MODEL)
        settings = settings_of(name, max_rows=max_rows, **NEEDED.get(name, {}))
        runner = ChainRunner(model, settings, seed=5, starts=starts)
        traces.append(runner.advance(runner.start([ChainProblem((FREE,) * 3, num_chains=7)]), 2)[0])
        assert (max(model.rows) <= 2) == (max_rows == 2)
    assert torch.equal(traces[0].tokens_SBT, traces[1].tokens_SBT)


@pytest.mark.parametrize("visits", VISITS)
@pytest.mark.parametrize(
    "name", ["metropolis-hastings", "delayed-acceptance", "gibbs", "parallel-tempering", "exact-gibbs"]
)
def test_a_named_kernel_visits_as_it_is_told_to(name: str, visits: str) -> None:
    """With blocks of 3, 2 and 1 positions in successive sweeps: the chains are those of each kernel in turn."""
    blocks = (1, 1, 1) if name == "exact-gibbs" else (3, 2, 1)
    target, proposal = local_energy(MODEL), masked_conditionals(MODEL)
    made: dict[str, Callable[[Visits], Kernel]] = {
        "metropolis-hastings": lambda own: metropolis_hastings(target, proposal, visits=own),
        "delayed-acceptance": lambda own: delayed_acceptance(target, proposal, visits=own),
        "gibbs": lambda own: gibbs(proposal, visits=own),
        "parallel-tempering": lambda own: parallel_tempering(
            lambda t_B: metropolis_hastings(target, proposal, visits=own, temperature=t_B), (1.0, 2.0)
        ),
        "exact-gibbs": lambda own: exact_gibbs(target, visits=own),
    }
    given = {"visits": visits, **NEEDED.get(name, {}), **({} if name == "exact-gibbs" else {"blocks": blocks})}
    named = configure(ChainSettings, kernel=name, **given).build_kernel(MODEL, target)
    state = start_chains(target, every_sequence(3, 3)[:26])
    found = sample_chains(named, state, 3, seed=2)
    for sweep, block in enumerate(blocks):
        own = sample_chains(made[name](VISITS[visits](block)), state, 1, seed=2)
        assert torch.equal(found.tokens[sweep + 1], own.tokens[1])
        assert torch.equal(found.proposals_SB[sweep], own.proposals_SB[0])
        state = own.state


@pytest.mark.parametrize("name", ["metropolis-hastings", "delayed-acceptance"])
def test_a_named_kernel_is_forced_and_annealed_by_sweep(name: str) -> None:
    """Two forced sweeps, then temperatures 0.5 and 0.25; only the last temperature counts."""
    target, proposal = local_energy(MODEL), masked_conditionals(MODEL, temperature=1.5)
    makers: dict[str, Callable[..., Kernel]] = {
        "metropolis-hastings": metropolis_hastings,
        "delayed-acceptance": delayed_acceptance,
    }
    settings = configure(
        ChainSettings, kernel=name, forced=2, temperature=0.25, anneal=0.25, blocks=(2, 1), proposal_temperature=1.5
    )
    state = start_chains(target, every_sequence(3, 3))
    found = sample_chains(settings.build_kernel(MODEL, target), state, 5, seed=2)
    kernels = [
        *(gibbs(proposal, visits=in_order(block)) for block in (2, 1)),
        *(makers[name](target, proposal, temperature=t) for t in (0.5, 0.25, 0.25)),
    ]
    for sweep, kernel in enumerate(kernels):
        own = sample_chains(kernel, state, 1, seed=2)
        assert torch.equal(found.tokens[sweep + 1], own.tokens[1])
        state = own.state
    assert found.invariant_S.tolist() == [False, False, False, True, True] and settings.burn_in == 3


@pytest.mark.parametrize(
    ("temperature", "anneal"), [(0.9, 0.1), (0.7, 0.1), (0.3, 0.1), (0.25, 0.5), (0.4, 0.7), (0.01, 0.01)]
)
def test_annealing_subtracts_as_long_as_it_stays_above_the_temperature(temperature: float, anneal: float) -> None:
    """Against exact decimals; at least as many sweeps warm up as are forced."""
    at, exact = Fraction(1), []
    while at > Fraction(str(temperature)):
        exact.append(float(at))
        at -= Fraction(str(anneal))
    kernel = MetropolisHastings(temperature=temperature, anneal=anneal)
    assert kernel.annealed == pytest.approx((*exact, temperature)) and kernel.annealed[-1] == temperature
    assert kernel.burn_in == len(exact)
    for forced in (len(exact) - 1, len(exact) + 1):
        kernel = MetropolisHastings(temperature=temperature, anneal=anneal, forced=forced)
        assert kernel.burn_in == max(forced, len(exact))


def test_annealing_goes_down_in_a_bounded_number_of_sweeps() -> None:
    for temperature in (1.0, 2.0):
        assert MetropolisHastings(temperature=temperature).annealed == (temperature,)
        with pytest.raises(InputError, match="anneal goes from temperature 1 down"):
            MetropolisHastings(temperature=temperature, anneal=0.1)
    assert MetropolisHastings(temperature=0.5, anneal=0.5 / MOST_SWEEPS).anneal is not None
    for anneal, sweeps in ((0.5 / (MOST_SWEEPS + 1), "1,000,001"), (1e-300, "5e[+]299")):
        with pytest.raises(InputError, match=f"it takes {sweeps} sweeps"):
            MetropolisHastings(temperature=0.5, anneal=anneal)


@pytest.mark.parametrize("kind", [MetropolisHastings, DelayedAcceptance, Gibbs])
def test_options_of_a_proposal_reach_it(kind: type[MetropolisHastings | DelayedAcceptance | Gibbs]) -> None:
    logits_NV = torch.randn(20, 3, dtype=torch.float64)
    allowed_V = torch.tensor([True, True, False])
    options = {"nucleus": 0.7, "full_share": 0.2, "proposal_temperature": 0.5}
    every = {"nucleus": 0.7, "full_share": 0.2, "temperature": 0.5}
    found_NV = kind(**options).proposal(MODEL, allowed_V).log_probs(logits_NV)
    assert torch.equal(found_NV, masked_conditionals(MODEL, allowed_V=allowed_V, **every).log_probs(logits_NV))
    for without in ({"full_share": 0.2}, {"nucleus": 0.7, "full_share": 0.2}, {"proposal_temperature": 0.5}):
        others = {name: value for name, value in options.items() if name not in without}
        assert not torch.equal(kind(**others).proposal(MODEL, allowed_V).log_probs(logits_NV), found_NV)
    assert not torch.equal(kind(**options).proposal(MODEL, None).log_probs(logits_NV), found_NV)
    with pytest.raises(InputError, match="full_share: the nucleus holds the whole distribution"):
        kind(full_share=0.2)


def test_the_largest_block_is_that_of_the_last_sweeps() -> None:
    assert MetropolisHastings(blocks=(3, 1, 2)).largest_block == 2
    assert settings_of("exact-gibbs").kernel.largest_block == settings_of("mask-predict").kernel.largest_block == 1


def test_mask_predict_has_the_given_number_of_iterations() -> None:
    target, state = local_energy(MODEL), start_chains(local_energy(MODEL), torch.zeros(1, 3).long())
    found = []
    for iterations in (1, 2, 3):
        kernel = settings_of("mask-predict", iterations=iterations).build_kernel(MODEL, target)
        trace = sample_chains(kernel, state, 1)
        expected = sample_chains(mask_predict(MODEL, num_iterations=iterations), state, 1)
        assert torch.equal(trace.tokens_SBT, expected.tokens_SBT) and torch.equal(trace.passes_SB, expected.passes_SB)
        found.append(int(trace.passes_SB))
    assert len(set(found)) == 3


def test_all_kernels_are_named_here() -> None:
    (flag,) = [flag for flag in flags_of(ChainSettings) if flag.name == "kernel"]
    assert sorted(flag.choices) == sorted(NAMES)


READ_BY = {
    "visits": {"metropolis-hastings", "delayed-acceptance", "exact-gibbs", "gibbs", "parallel-tempering"},
    "blocks": {"metropolis-hastings", "delayed-acceptance", "gibbs", "parallel-tempering"},
    "nucleus": {"metropolis-hastings", "delayed-acceptance", "gibbs", "parallel-tempering"},
    "temperature": {"metropolis-hastings", "delayed-acceptance", "exact-gibbs"},
    "anneal": {"metropolis-hastings", "delayed-acceptance", "exact-gibbs"},
    "forced": {"metropolis-hastings", "delayed-acceptance", "parallel-tempering"},
    "temperatures": {"parallel-tempering"},
    "window": {"delayed-acceptance"},
    "iterations": {"mask-predict", "low-confidence-remasking", "random-unmasking", "remdm"},
    "threshold": {"threshold-decoding"},
    "remask": {"remdm"},
    "proposal_temperature": {
        "metropolis-hastings", "delayed-acceptance", "gibbs", "low-confidence-remasking", "parallel-tempering",
        "random-unmasking", "remdm", "threshold-decoding",
    },
}  # fmt: skip
VALUES: dict[str, Any] = {
    "visits": "shuffled", "blocks": (2,), "nucleus": 0.5, "temperature": 0.5, "anneal": 0.1, "forced": 1,
    "temperatures": (1.0, 2.0), "window": 2, "iterations": 3, "threshold": 0.5, "remask": 0.5,
    "proposal_temperature": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("option", READ_BY)
def test_an_option_is_taken_where_it_is_read_and_refused_elsewhere(name: str, option: str) -> None:
    given = {"kernel": name, option: VALUES[option]}
    given |= {key: value for key, value in NEEDED.get(name, {}).items() if key != option}
    if option == "anneal":
        given["temperature"] = 0.5
    if name in READ_BY[option]:
        assert getattr(configure(ChainSettings, **given).kernel, option) == VALUES[option]
        return
    with pytest.raises(InputError, match="has no effect here; leave it out, or use kernel") as refused:
        configure(ChainSettings, **given)
    if option != "anneal":
        assert all(owner in str(refused.value) for owner in READ_BY[option])


@pytest.mark.parametrize("text", ["3;2", "1.5", "a", ",", "3,,2"])
def test_invalid_lists_of_numbers_are_refused(text: str) -> None:
    assert MetropolisHastings(blocks="3,2,1").blocks == (3, 2, 1) == MetropolisHastings(blocks=[3, 2, 1]).blocks
    with pytest.raises(InputError, match=r"blocks(\..)? must be an? (integer|list), got "):
        MetropolisHastings(blocks=text)


def test_settings_are_flat_as_json_has_them() -> None:
    settings = settings_of("metropolis-hastings", blocks=(3, 2, 1), contain=("a", "b"))
    flat = flat_values(settings)
    assert flat["blocks"] == [3, 2, 1] and flat["contain"] == ["a", "b"] and flat["kernel"] == "metropolis-hastings"
    assert json.loads(json.dumps(flat)) == flat
    assert configure(ChainSettings, **{name: value for name, value in flat.items() if value is not None}) == settings
