"""Named kernels: each leaves its target as it is, and takes the options that it reads and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from seqwise.configuration import configure
from seqwise.configuration.flat import flags_of, flat_values
from seqwise.data.batches import FREE
from seqwise.errors import InputError
from seqwise.sampling import (
    ChainSettings,
    MetropolisHastings,
    ParallelTempering,
    Trace,
    boltzmann,
    contains,
    examine,
    low_confidence_remasking,
    masked_conditionals,
    random_unmasking,
    remasking_diffusion,
    sample_chains,
    start_chains,
    table_model,
    threshold_decoding,
    transition_matrix,
    unmasking_law,
)
from seqwise.sampling.chains import tally
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.problems import ChainProblem, ChainRunner, run_problems
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


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("exact-gibbs", "mask-predict")])
def test_what_is_not_allowed_is_not_proposed(name: str) -> None:
    settings = settings_of(name, **({"temperatures": (1.0, 2.0)} if name == "parallel-tempering" else {}))
    target = settings.build_energy(MODEL)
    kernel = settings.build_kernel(MODEL, target, allowed_V=torch.tensor([True, False, True]))
    trace = sample_chains(kernel, start_chains(target, torch.zeros(8, 3, dtype=torch.long)), 10, seed=1)
    assert set(trace.tokens_SBT.unique().tolist()) == {0, 2}


def test_forced_sweeps_accept_everything_and_do_not_count() -> None:
    settings = settings_of("metropolis-hastings", forced=2)
    target = settings.build_energy(MODEL)
    kernel = settings.build_kernel(MODEL, target)
    trace = sample_chains(kernel, start_chains(target, every_sequence(3, 3)), 5, seed=3)
    assert trace.invariant_S.tolist() == [False, False, True, True, True]
    assert torch.equal(trace.accepted_SB[:2], trace.proposals_SB[:2])
    assert int(trace.accepted_SB[2:].sum()) < int(trace.proposals_SB[2:].sum())


def test_there_are_no_other_names() -> None:
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
    if name == "parallel-tempering":
        given["temperatures"] = (1.0, 2.0)
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
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    assert MetropolisHastings(blocks="3,2,1").blocks == (3, 2, 1) == MetropolisHastings(blocks=[3, 2, 1]).blocks
    with pytest.raises(InputError, match=r"blocks(\..)? must be an? (integer|list), got "):
        MetropolisHastings(blocks=text)


def test_problems_of_any_lengths_come_to_what_each_comes_to_alone() -> None:
    """Chains are told apart by their numbers; of replicas one is kept, with the passes of all."""
    settings = ChainSettings(kernel=ParallelTempering(temperatures=(1.0, 2.0, 4.0)))
    fixed, free = (FREE, 1, FREE), (FREE,) * 3
    problems = [ChainProblem(fixed, num_chains=2), ChainProblem(free, num_chains=3, first_chain=2)]
    both = run_problems(MODEL, problems, settings, num_sweeps=6, seed=3)
    for problem, trace in zip(problems, both, strict=True):
        (alone,) = run_problems(MODEL, [problem], settings, num_sweeps=6, seed=3)
        assert torch.equal(alone.tokens_SBT, trace.tokens_SBT) and torch.equal(alone.passes_SB, trace.passes_SB)
        assert trace.energy_SB.shape == (6, problem.num_chains)
        runner = ChainRunner(MODEL, settings, seed=3)
        every = sample_chains(runner.kernel, runner.start([problem]), 6, seed=3)
        assert torch.equal(trace.tokens_SBT, every.tokens_SBT[:, ::3])
        assert torch.equal(trace.passes_SB, every.passes_SB.view(6, -1, 3).sum(2))
    assert bool((both[0].tokens_SBT[..., 1] == 1).all())


def test_traces_follow_each_other() -> None:
    runner = ChainRunner(MODEL, ChainSettings(), seed=1)
    state = runner.start([ChainProblem((FREE,) * 3, num_chains=4)])
    whole, _ = runner.advance(state, 7)
    first, between = runner.advance(state, 3)
    second, _ = runner.advance(between, 4)
    joined = Trace.none(state) + first.keep(lambda sweep: sweep == 2) + second
    assert torch.equal(joined.energy_SB, whole.energy_SB) and len(joined) == 7
    assert sorted(joined.tokens) == [2, 4, 5, 6, 7]
    assert all(torch.equal(tokens_BT, whole.tokens[sweep]) for sweep, tokens_BT in joined.tokens.items())
    assert tally([joined], sweeps=slice(2, None)).acceptance == int(whole.accepted_SB[2:].sum()) / int(
        whole.proposals_SB[2:].sum()
    )


@pytest.mark.parametrize(("tokens", "has_room"), [((FREE, FREE, 0), True), ((0, FREE, 1), True), ((FREE, 0, 2), False)])
def test_a_phrase_without_room_is_refused(tokens: tuple[int, ...], has_room: bool) -> None:
    """Of two ways one fits: (2, 1) does over what is free or stands there already, (1, 1, 1, 1) nowhere."""
    ways = {"wanted": [(1, 1, 1, 1), (2, 1)]}
    runner = ChainRunner(MODEL, ChainSettings(contain=("wanted",)), phrase=lambda text: ways[text])
    problem = ChainProblem(tokens, num_chains=2)
    if has_room:
        assert bool(contains(2, 1)(runner.start([problem]).tokens_BT).all())
        return
    with pytest.raises(InputError, match="no sequence was found that contains 'wanted'"):
        runner.start([problem])


def test_a_phrase_longer_than_a_free_sequence_is_refused_by_its_length() -> None:
    runner = ChainRunner(MODEL, ChainSettings(contain=("wanted",)), phrase=lambda _: [(1, 1, 1, 1)])
    with pytest.raises(InputError, match="no sequence of length 3 was found"):
        runner.start([ChainProblem((FREE,) * 3)])


def test_settings_are_flat_as_json_has_them() -> None:
    settings = settings_of("metropolis-hastings", blocks=(3, 2, 1), contain=("a", "b"))
    flat = flat_values(settings)
    assert flat["blocks"] == [3, 2, 1] and flat["contain"] == ["a", "b"] and flat["kernel"] == "metropolis-hastings"
    assert json.loads(json.dumps(flat)) == flat
    assert configure(ChainSettings, **{name: value for name, value in flat.items() if value is not None}) == settings
