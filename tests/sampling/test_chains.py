"""Chains: the same alone, in a batch and after an interruption; their histogram; and what diagnostics say of them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from seqwise import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import (
    ChainState,
    Info,
    Kernel,
    Trace,
    anneal_blocks,
    anywhere,
    boltzmann,
    burn_in,
    delayed_acceptance,
    diagnose_chains,
    diagnostics,
    exact_gibbs,
    gibbs,
    in_order,
    load_chains,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    mixture,
    parallel_tempering,
    raw_energy,
    replicas,
    sample_chains,
    save_chains,
    shuffled,
    start_chains,
    table_model,
    to_datatree,
)
from seqwise.sampling.combinators import by_sweep, coldest
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.diagnostics import effective_sample_size, split_r_hat, tail_effective_sample_size

MODEL = table_model(num_positions=4, vocab_size=3, seed=1)
ENERGY = local_energy(MODEL)
PROPOSAL = masked_conditionals(MODEL, temperature=1.5)
FREE_BT = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]).bool()
START_BT = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [2, 0, 1, 2], [2, 2, 2, 2], [0, 1, 2, 0]])


def state_with(energy: Any = ENERGY) -> ChainState:
    """Chains with different free positions, each with a context of its own."""
    context_B = torch.linspace(-1, 1, 5, dtype=torch.float64)
    return start_chains(energy, START_BT, free_BT=FREE_BT, context=context_B)


def kernels(model: MaskedModel) -> dict[str, Kernel]:
    energy, proposal = local_energy(model), masked_conditionals(model, temperature=1.5)
    return {
        "in order": metropolis_hastings(energy, proposal),
        "shuffled pairs": metropolis_hastings(energy, proposal, visits=shuffled(2)),
        "mixed blocks": metropolis_hastings(energy, proposal, visits=anywhere([1, 2, 4])),
        "delayed": delayed_acceptance(energy, proposal, window=0),
        "Gibbs": gibbs(proposal, visits=shuffled()),
        "exact Gibbs": exact_gibbs(energy),
        "annealed": anneal_blocks(lambda b: metropolis_hastings(energy, proposal, visits=in_order(b)), [4, 3, 2, 1]),
        "mixture": mixture(
            [metropolis_hastings(energy, proposal, visits=anywhere([1, 3])), exact_gibbs(energy)], [3, 1]
        ),
    }


KERNELS = kernels(MODEL)
# Flatter, so that chains forget their start within a few sweeps.
MILD = table_model(num_positions=4, vocab_size=3, seed=1, scale=0.4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(KERNELS))
def test_a_chain_does_not_depend_on_other_chains(name: str) -> None:
    state = state_with()
    together = sample_chains(KERNELS[name], state, 6, seed=3)
    for chain in range(len(state)):
        alone = sample_chains(KERNELS[name], state.take(torch.tensor([chain])), 6, seed=3)
        assert torch.equal(alone.tokens_SBT[:, 0], together.tokens_SBT[:, chain])
        assert torch.equal(alone.energy_SB[:, 0], together.energy_SB[:, chain])
        assert torch.equal(alone.passes_SB[:, 0], together.passes_SB[:, chain])
        assert torch.equal(alone.novel_SB[:, 0], together.novel_SB[:, chain])
    other = sample_chains(KERNELS[name], state, 6, seed=4)
    assert not torch.equal(other.tokens_SBT, together.tokens_SBT)
    renamed = sample_chains(KERNELS[name], replace(state, chain_B=state.chain_B + 9), 6, seed=3)
    assert not torch.equal(renamed.tokens_SBT, together.tokens_SBT)


@pytest.mark.parametrize("name", list(KERNELS))
def test_an_interrupted_run_ends_in_the_same_states(name: str, tmp_path: Path) -> None:
    state = state_with()
    whole = sample_chains(KERNELS[name], state, 9, seed=3)
    first = sample_chains(KERNELS[name], state, 4, seed=3)
    save_chains(tmp_path / "chains.safetensors", first.state)
    loaded = load_chains(tmp_path / "chains.safetensors", ENERGY, context=state.context)
    second = sample_chains(KERNELS[name], loaded, 5, seed=3)
    assert torch.equal(torch.cat([first.tokens_SBT, second.tokens_SBT]), whole.tokens_SBT)
    assert torch.equal(torch.cat([first.energy_SB, second.energy_SB]), whole.energy_SB)
    assert torch.equal(torch.cat([first.passes_SB, second.passes_SB]), whole.passes_SB)
    assert second.state.sweep == 9


def test_chains_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    state = state_with()
    path = tmp_path / "chains.safetensors"
    with pytest.raises(InputError, match="cannot be read"):
        load_chains(path, ENERGY)
    save_chains(path, state)
    with pytest.raises(InputError, match="energy of the first chain"):
        load_chains(path, raw_energy(MODEL), context=state.context)
    with pytest.raises(InputError, match="energy of the first chain"):
        load_chains(path, ENERGY)
    with pytest.raises(InputError, match="energy of the first chain"):
        load_chains(path, ENERGY + raw_energy(table_model(num_positions=4, vocab_size=3)), context=state.context)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        load_chains(path, ENERGY, context=state.context)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="does not hold chains"):
        load_chains(path, ENERGY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["chains.safetensors"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["in order", "mixed blocks", "exact Gibbs", "tempering"])
def test_the_histogram_of_many_chains_is_the_target(name: str) -> None:
    """4000 chains from one sequence, after some sweeps, by chi-square over all 81 sequences."""
    num_chains, energy, proposal = 4000, local_energy(MILD), masked_conditionals(MILD, temperature=1.5)
    state = start_chains(energy, torch.zeros(num_chains, 4).long())
    if name == "tempering":
        hot = parallel_tempering(lambda t_B: metropolis_hastings(energy, proposal, temperature=t_B), [1.0, 2.0])
        tokens_BT = coldest(sample_chains(hot, replicas(state, 2), 12).state, 2).tokens_BT
    else:
        tokens_BT = sample_chains(kernels(MILD)[name], state, 40 if name == "mixed blocks" else 12).state.tokens_BT
    every = every_sequence(3, 4)
    expected = boltzmann(start_chains(energy, every).energy_B) * num_chains
    powers = 3 ** torch.arange(3, -1, -1)
    counts = torch.bincount((tokens_BT * powers).sum(1), minlength=81).double()
    assert expected.min() > 5
    excess = (((counts - expected) ** 2 / expected).sum() - 80) / math.sqrt(2 * 80)
    assert excess < 4


def test_progress_is_called_after_every_sweep() -> None:
    heard: list[tuple[int, int]] = []

    def progress(state: ChainState, info: Info) -> None:
        heard.append((state.sweep, int(info.proposals_B.sum())))

    sample_chains(KERNELS["in order"], state_with(), 3, progress=progress)
    assert heard == [(sweep, int(FREE_BT.sum())) for sweep in (1, 2, 3)]


def test_no_sweeps_and_no_chains() -> None:
    none = sample_chains(KERNELS["in order"], state_with(), 0)
    assert none.tokens_SBT.shape == (0, 5, 4)
    assert len(none) == 0
    nobody = state_with().take(torch.zeros(0, dtype=torch.int64))
    for kernel in KERNELS.values():
        assert sample_chains(kernel, nobody, 2).tokens_SBT.shape == (2, 0, 4)
    with pytest.raises(InputError, match="at least 0"):
        sample_chains(KERNELS["in order"], state_with(), -1)


# -------------------------------------------------------------------------------------------------- diagnostics


def five_starts() -> ChainState:
    return start_chains(ENERGY, every_sequence(3, 4)[::20])


def good_chains(num_sweeps: int) -> Trace:
    """Five chains that mix well."""
    return sample_chains(exact_gibbs(local_energy(MILD)), five_starts(), num_sweeps)


def small_chains(num_sweeps: int) -> Trace:
    """Two chains of two positions."""
    target = local_energy(table_model(num_positions=2, vocab_size=3))
    return sample_chains(exact_gibbs(target), start_chains(target, torch.zeros(2, 2).long()), num_sweeps, seed=2)


def autoregressive(phi: float, num_sweeps: int, num_chains: int) -> Tensor:
    """Chains ``x_s = phi x_{s-1} + noise`` in equilibrium, whose ESS is ``n (1 - phi) / (1 + phi)``."""
    noise_SB = torch.randn(num_sweeps, num_chains, dtype=torch.float64)
    values = [noise_SB[0]]
    for noise_B in noise_SB[1:]:
        values.append(phi * values[-1] + math.sqrt(1 - phi**2) * noise_B)
    return torch.stack(values)


def test_r_hat_tells_chains_that_disagree_and_chains_that_drift() -> None:
    pytest.importorskip("arviz_stats")
    values_SB = autoregressive(0.3, 500, 4)
    apart = values_SB + torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert split_r_hat(apart) > 1.05
    drifting = values_SB + torch.linspace(0, 1.5, 500, dtype=torch.float64)[:, None]
    assert split_r_hat(drifting) > 1.05


@pytest.mark.parametrize("ess", [0.0, 0.5, 2.0, 400.0])
def test_the_advice_is_as_many_sweeps_as_such_an_ess_needs(ess: float) -> None:
    """``R-hat^2 - 1 = 4 / ESS``, and the ESS of S sweeps grows with S; without any there is no such number."""
    advice = diagnostics._advice(ess, num_sweeps=1000, num_chains=4, left_out=0)
    numbers = re.findall(r"[\d,]{2,}", advice)
    if ess in (0.0, 400.0):
        assert advice == "run longer" and diagnostics.MOST_R_HAT**2 > 1 + 4 / 400
        return
    needed = int(numbers[0].replace(",", ""))
    for share, enough in ((1.0, True), (0.85, False)):  # two digits, rounded upwards
        assert (1 + 4 / (ess * share * needed / 1000) <= diagnostics.MOST_R_HAT**2) is enough


def test_effective_sample_sizes_of_few_draws_are_unknown() -> None:
    """ArviZ gives a constant for 4 to 9 draws a chain, whatever they are."""
    pytest.importorskip("arviz_stats")
    apart = torch.arange(4.0)[None] * 100 + torch.randn(10, 4)
    for num_draws in range(4, 10):
        assert math.isnan(effective_sample_size(apart[:num_draws]))
        assert math.isnan(tail_effective_sample_size(apart[:num_draws]))
    assert 1 < effective_sample_size(apart) < 15 < 30 < effective_sample_size(torch.randn(10, 4))


def test_the_tail_is_judged_by_its_two_quantiles() -> None:
    """Against the indicators of the quantiles, whose mean's ESS is what is meant; the chains mix in the middle only."""
    stats = pytest.importorskip("arviz_stats.base").array_stats
    values_SB = autoregressive(0.2, 2000, 4) + 4 * (autoregressive(0.995, 2000, 4) > 1.5)
    each = []
    for share in (0.05, 0.95):
        below_SB = values_SB <= values_SB.flatten().quantile(share)
        each.append(float(stats.ess(below_SB.double().T.numpy(), chain_axis=0, draw_axis=1, method="mean")))
    assert tail_effective_sample_size(values_SB) == pytest.approx(min(each), rel=0.05)
    assert tail_effective_sample_size(values_SB) < effective_sample_size(values_SB) / 1.5


Feature = Callable[[Tensor], Tensor]


@pytest.mark.thorough
def test_a_report_leaves_out_burn_in_and_counts_passes() -> None:
    pytest.importorskip("arviz_stats")
    kernel = KERNELS["in order"]
    state = five_starts()
    chains = sample_chains(kernel, state, 200)
    flags_S = torch.ones(200).bool()
    flags_S[:7] = False
    features: dict[str, Feature] = {"ones": lambda y: (y == 1).sum(-1)}
    report = diagnose_chains(replace(chains, invariant_S=flags_S, seconds=2.0), features=features)
    assert report.num_sweeps == 193
    proposals = 193 * 5 * 4
    assert report.acceptance == pytest.approx(int(chains.accepted_SB[7:].sum()) / proposals)
    assert report.novelty == pytest.approx(int(chains.novel_SB[7:].sum()) / proposals)
    assert report.mean_energy == pytest.approx(float(chains.energy_SB[7:].mean()))
    assert set(report.ess) == set(report.r_hat) == {"energy", "ones"}
    assert report.ess["energy"] == pytest.approx(effective_sample_size(chains.energy_SB[7:]))
    assert report.tail_ess["energy"] == pytest.approx(tail_effective_sample_size(chains.energy_SB[7:]))
    assert set(report.tail_ess) == {"energy", "ones"}
    assert report.ess_per_second == pytest.approx(report.ess["energy"] / 2)
    assert report.ess_per_pass == pytest.approx(report.ess["energy"] / int(chains.passes_SB.sum()))
    free = replace(chains, invariant_S=flags_S, seconds=0.0, passes_SB=torch.zeros_like(chains.passes_SB))
    assert math.isnan(diagnose_chains(free).ess_per_second) and math.isnan(diagnose_chains(free).ess_per_pass)
    assert diagnose_chains(chains, discard=20).num_sweeps == 180
    with pytest.raises(InputError, match="at least 4 counted sweeps"):
        diagnose_chains(chains, discard=198)


def test_one_chain_has_no_r_hat_and_two_have_one() -> None:
    pytest.importorskip("arviz_stats")
    kernel = exact_gibbs(local_energy(MILD))
    for count in (1, 2):
        chains = sample_chains(kernel, start_chains(ENERGY, every_sequence(3, 4)[:count]), 60)
        assert any("needs at least two chains" in line for line in diagnose_chains(chains).warnings) == (count == 1)


@pytest.mark.parametrize("num_sweeps", [9, 10])
def test_the_fewest_draws_that_tell_how_many_are_needed(num_sweeps: int) -> None:
    pytest.importorskip("arviz_stats")
    good = good_chains(num_sweeps)
    apart = replace(good, energy_SB=good.energy_SB + 50 * torch.arange(5))
    (warning,) = [line for line in diagnose_chains(apart).warnings if "R-hat of energy" in line]
    assert ("fewer do not show" in warning) == (num_sweeps < 10)


def test_traces_can_be_concatenated() -> None:
    state = five_starts()
    kernel = metropolis_hastings(ENERGY, PROPOSAL)
    first = sample_chains(kernel, state, 3, seed=1)
    later = sample_chains(kernel, first.state, 2, seed=1)
    both = replace(first, seconds=1.5) + replace(later, seconds=0.25)
    assert len(both) == 5 and both.seconds == 1.75 and both.state is later.state
    assert torch.equal(both.tokens_SBT, torch.cat([first.tokens_SBT, later.tokens_SBT]))
    assert torch.equal(both.energy_SB, torch.cat([first.energy_SB, later.energy_SB]))


@pytest.mark.thorough
def test_diagnostics_warn_of_bad_chains() -> None:
    pytest.importorskip("arviz_stats")
    state = five_starts()
    degenerate = diagnose_chains(sample_chains(gibbs(PROPOSAL), state, 50))
    assert degenerate.num_sweeps == 50
    assert "follow no energy" in degenerate.warnings[0]
    good = good_chains(400)
    assert diagnose_chains(good).warnings == ()
    stuck = replace(good, energy_SB=good.energy_SB + torch.arange(5))
    assert any("R-hat of energy is" in line for line in diagnose_chains(stuck).warnings)
    same = replace(good, energy_SB=torch.ones_like(good.energy_SB))
    assert any("is constant over" in line for line in diagnose_chains(same).warnings)


def test_constant_features_have_no_effective_sample_size() -> None:
    """A feature of chains that move; and all of chains that stand still, wherever each does."""
    pytest.importorskip("arviz_stats")
    good = good_chains(50)
    features: dict[str, Feature] = {"first": lambda y: y[..., 0].double(), "one": lambda y: torch.ones(y.shape[:2])}
    moving = diagnose_chains(good, features=features)
    still = replace(good, energy_SB=torch.arange(5.0).expand(50, -1), novel_SB=torch.zeros_like(good.novel_SB))
    standing = diagnose_chains(still, features=features)
    for sizes in (moving.ess, moving.tail_ess):
        assert {name: math.isnan(size) for name, size in sizes.items()} == {
            "energy": False,
            "first": False,
            "one": True,
        }
    for sizes in (standing.ess, standing.tail_ess):
        assert all(map(math.isnan, sizes.values())) and len(sizes) == 3


@pytest.mark.parametrize("num_still", [1, 5])
def test_the_warning_about_stuck_chains_names_a_remedy(num_still: int) -> None:
    """Accepted proposals that change nothing ask for bolder ones, rejected ones for more timid ones."""
    pytest.importorskip("arviz_stats")
    good = good_chains(50)
    energy_SB, novel_SB, accepted_SB = good.energy_SB.clone(), good.novel_SB.clone(), good.accepted_SB.clone()
    energy_SB[:, :num_still], novel_SB[:, :num_still] = torch.arange(num_still).double(), 0
    still = replace(good, energy_SB=energy_SB, novel_SB=novel_SB)
    who = "the chains do not move" if num_still == 5 else "1 of 5 chains did not move"
    bold = diagnose_chains(still, discard=10).warnings
    number = 40 * 4 * num_still
    assert bold[0].startswith(f"{who}: 0 of {number} proposals were rejected")
    assert "larger blocks" in bold[0] and "temperature" in bold[0]
    accepted_SB[:, :num_still] = 2  # of four each: half is not most
    assert "larger blocks" in diagnose_chains(replace(still, accepted_SB=accepted_SB), discard=10).warnings[0]
    accepted_SB[:, :num_still] = 0
    timid = diagnose_chains(replace(still, accepted_SB=accepted_SB), discard=10).warnings
    assert timid[0].startswith(f"{who}: {number} of {number} proposals were rejected")
    assert "smaller blocks" in timid[0] and "temperature" in timid[0]
    assert (len(timid) == 1) == (num_still == 5)  # that they disagree follows


@pytest.mark.thorough
@pytest.mark.parametrize("discard", [0, 200])
def test_the_warning_estimates_how_many_sweeps_are_needed(discard: int) -> None:
    """As ``R-hat^2 - 1 = chains / ESS``, an autocorrelation of 0.9 takes 1.9 / 0.1 / (1.01^2 - 1) = 945 sweeps.

    Those that are discarded come on top, and are said to.
    """
    pytest.importorskip("arviz_stats")
    chains = good_chains(400 + discard)
    energy_SB = torch.cat([torch.zeros(discard, 5), autoregressive(0.9, 400, 5)])
    (warning,) = diagnose_chains(replace(chains, energy_SB=energy_SB), discard=discard).warnings
    said = re.search(r"the chains disagree, run about ([\d,]+) sweeps( in total, including discarded ones)?$", warning)
    assert said is not None and bool(said[2]) == bool(discard)
    assert 945 / 2 < int(said[1].replace(",", "")) - discard < 945 * 2


def test_without_arviz_the_hint_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("arviz_stats", "arviz_stats.base"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'seqwise\[diagnostics\]'"):
        split_r_hat(torch.randn(10, 2))


def test_labelled_arrays_hold_the_draws_of_the_report() -> None:
    """Against ArviZ's own reading of them, by the names of their dimensions."""
    xarray = pytest.importorskip("xarray")
    stats = pytest.importorskip("arviz_stats.base").array_stats
    target = local_energy(table_model(num_positions=3, vocab_size=3))
    kernel = by_sweep([*[burn_in(exact_gibbs(target))] * 4, exact_gibbs(target)])
    chains = sample_chains(kernel, start_chains(target, torch.zeros(4, 3).long()), 60, seed=2)
    features: dict[str, Feature] = {"first": lambda y: y[..., 0].double()}
    tree, report = to_datatree(chains, discard=2, features=features), diagnose_chains(chains, features=features)
    assert isinstance(tree, xarray.DataTree)
    for name, values in tree.posterior.data_vars.items():
        assert values.dims == ("chain", "draw") and values.sizes["draw"] == report.num_sweeps == 56
        assert float(stats.ess(values.values, chain_axis=0, draw_axis=1)) == report.ess[name]
    energy, tokens = tree.posterior.energy.sel(chain=3, draw=5), tree.samples.tokens.sel(chain=3, draw=5)
    assert energy == chains.energy_SB[4, 3] and tokens.values.tolist() == chains.tokens[5][3].tolist()
    accepted = tree.sample_stats.accepted.sum() / tree.sample_stats.proposals.sum()
    assert float(accepted) == pytest.approx(report.acceptance)


def test_labelled_arrays_have_the_sequences_that_are_kept() -> None:
    pytest.importorskip("xarray")
    chains = small_chains(6)
    tree = to_datatree(chains.keep(lambda sweep: sweep % 2 == 0), discard=3)
    assert tree.samples.draw.values.tolist() == [4, 6] and tree.posterior.draw.values.tolist() == [4, 5, 6]
    assert tree.samples.tokens.sel(draw=6).values.tolist() == chains.state.tokens_BT.tolist()


@pytest.mark.parametrize("judge", [diagnose_chains, to_datatree])
def test_features_need_a_name_and_sequences_of_their_own(judge: Callable[..., Any]) -> None:
    """A feature called energy would replace the energy; one of every second sweep belongs to other draws."""
    pytest.importorskip("xarray")
    chains = small_chains(12)
    feature: Feature = lambda y: y[..., 0].double()  # noqa: E731
    with pytest.raises(InputError, match="a feature is called 'energy'"):
        judge(chains, features={"energy": feature})
    with pytest.raises(InputError, match="the sequences of all 10 counted sweeps; 5 are kept"):
        judge(chains.keep(lambda sweep: sweep % 2 == 0), discard=2, features={"first": feature})
    for shapeless, shape in ((lambda y: y, "[12, 2, 2]"), (lambda y: y[..., 0].sum(1), "[12]")):
        with pytest.raises(InputError, match=f"the feature 'first' has the shape {re.escape(shape)}, not that of"):
            judge(chains, features={"first": shapeless})


@pytest.mark.parametrize("judge", [diagnose_chains, to_datatree])
@pytest.mark.parametrize(("num_sweeps", "discard"), [(12, 12), (12, 30), (0, 0)])
def test_chains_without_a_counted_sweep_are_not_judged(
    judge: Callable[..., Any], num_sweeps: int, discard: int
) -> None:
    pytest.importorskip("xarray")
    chains = small_chains(num_sweeps)
    with pytest.raises(InputError, match=f"no sweep counts: {discard} of {num_sweeps} are left out .*discard fewer"):
        judge(chains, discard=discard)


def test_without_xarray_the_hint_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = small_chains(2)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match=r"labelled arrays need xarray; pip install 'seqwise\[diagnostics\]'"):
        to_datatree(chains)
