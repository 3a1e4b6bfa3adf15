"""Chains as the explorer advances them: the same as those of the library, pinned and adjusted while they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from explored import masked_run
from sampled import sample
from seqwise.configuration import configure
from seqwise.errors import InputError
from seqwise.pages.explorer.chain_views import energy_view, sequences_view, sweep_in_words
from seqwise.pages.explorer.chains import MOST_CHAINS, Watched, adjust, advance, pin, start
from seqwise.runs.sampling_problems import read_problems
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import SeededDraws, in_order, local_energy, masked_conditionals, metropolis_hastings
from seqwise.sampling.chains import tally
from seqwise.sampling.state import evaluate


def settings_of(**changes: Any) -> SampleSettings:
    return configure(SampleSettings, **{"chains": 3, "sweeps": 6, "discard": 0, "every": 1, "seed": 5, **changes})


SETTINGS = settings_of()


def advanced(watched: Watched, sweeps: int) -> Watched:
    for _ in range(sweeps):
        watched = advance(watched)
    return watched


def test_sweep_by_sweep_the_chains_are_those_of_sampling() -> None:
    run = masked_run()
    watched = advanced(start(run, "_ b _ _", SETTINGS), 6)
    samples = sample(run, read_problems(run, "_ b _ _", SETTINGS), SETTINGS).samples
    expected = {(one.chain, one.sweep): one for one in samples}
    for sweep, swept in enumerate(watched.done, start=1):
        for chain, tokens in enumerate(swept.tokens_SBT[0].tolist()):
            assert tuple(tokens) == expected[chain, sweep].tokens
            assert float(swept.energy_SB[0, chain]) == pytest.approx(expected[chain, sweep].energy)
    assert len(watched.done) == 6
    again_B = evaluate(local_energy(run.model), watched.state.tokens_BT).energy_B
    assert torch.allclose(watched.state.energy_B, again_B, atol=1e-5)


def test_watching_does_not_affect_other_watchers() -> None:
    first = advance(start(masked_run(), "_ _ _", SETTINGS))
    kept = first.state.tokens_BT.clone()
    one, other = advanced(first, 3), advanced(pin(first, [0, 1]), 3)
    assert torch.equal(first.state.tokens_BT, kept) and len(first.done) == 1
    assert torch.equal(advanced(first, 3).state.tokens_BT, one.state.tokens_BT)
    assert torch.equal(other.state.tokens_BT[:, :2], kept[:, :2])
    assert not torch.equal(one.state.tokens_BT[:, :2], kept[:, :2])


def test_pinned_positions_stay_until_they_are_freed() -> None:
    watched = advance(start(masked_run(), "_ b _ _", settings_of(proposal_temperature=3.0)))
    pinned = pin(watched, [0, 3])
    held = watched.state.tokens_BT[:, [0, 3]]
    later = advanced(pinned, 8)
    assert torch.equal(later.state.tokens_BT[:, [0, 3]], held)
    assert any(bool((swept.tokens_SBT[0, :, 2] != watched.state.tokens_BT[:, 2]).any()) for swept in later.done[1:])
    assert pin(pinned, [3, 0]) is pinned and later.since == 1
    freed = advanced(pin(later, []), 8)
    assert bool((freed.state.tokens_BT[:, [0, 3]] != held).any())
    assert (freed.state.tokens_BT[:, 1] == 1).all()  # what the problem fixes is not freed
    everything = advance(pin(watched, [0, 2, 3]))
    assert torch.equal(everything.state.tokens_BT, watched.state.tokens_BT)
    assert tally(everything.done[-1:]).proposals == 0
    assert "no proposals" in sweep_in_words(everything)
    assert "Every position is fixed: nothing can move." in sweep_in_words(everything)


def test_new_settings_hold_from_the_next_sweep_on() -> None:
    run = masked_run()
    watched = advanced(start(run, "_ _ _", SETTINGS), 2)
    changed = adjust(watched, settings_of(proposal_temperature=2.0, nucleus=0.9, blocks=(2,), temperature=0.5))
    assert torch.equal(changed.state.tokens_BT, watched.state.tokens_BT) and changed.since == 2
    allowed_V = run.codec.allowed_V if not bool(run.codec.allowed_V.all()) else None
    kernel = metropolis_hastings(
        local_energy(run.model, max_rows=SETTINGS.max_rows),
        masked_conditionals(run.model, temperature=2.0, nucleus=0.9, allowed_V=allowed_V),
        visits=in_order(2),
        temperature=0.5,
    )
    expected, _ = kernel(SeededDraws(5, watched.state.chain_B, sweep=2), watched.state)
    after = advance(changed)
    assert torch.equal(after.state.tokens_BT, expected.tokens_BT)
    assert not torch.equal(after.done[-1].proposals_SB, advance(watched).done[-1].proposals_SB)
    assert adjust(after, after.settings) is after


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy": "raw"}, "energy cannot change while chains run"),
        ({"chains": 2}, "num_chains cannot change while chains run"),
        ({"seed": 6}, "seed cannot change while chains run"),
        ({"kernel": "parallel-tempering", "temperatures": (1.0, 2.0)}, "no sweeps to watch"),
    ],
)
def test_what_cannot_change_while_chains_run_is_refused(change: dict[str, object], message: str) -> None:
    watched = start(masked_run(), "_ _", SETTINGS)
    with pytest.raises(InputError, match=message):
        adjust(watched, settings_of(**change))


@pytest.mark.parametrize(
    ("text", "chains", "message"),
    [
        ("", 2, "the input is empty"),
        ("a b", 2, "no position is free"),
        ("_ zebra", 2, None),  # the run has an unknown symbol, or refuses the word by its name
        ("_ " * 101, 2, "at most 100"),
        ("_ _", MOST_CHAINS + 1, "chains are too many to watch"),
        ("/etc/passwd _", 2, None),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_words(text: str, chains: int, message: str | None) -> None:
    with pytest.raises(InputError, match=message or "unknown|vocabulary|zebra|passwd"):
        start(masked_run(), text, SampleSettings(chains=chains))


def test_counts_are_sums_over_sweeps_and_chains() -> None:
    watched = advanced(start(masked_run(), "_ _ a _", SETTINGS), 3)
    counts = tally(watched.done)
    assert counts.proposals == 3 * 3 * 3  # sweeps, chains, free positions
    assert counts.accepted == sum(int(one.accepted_SB.sum()) for one in watched.done)
    assert counts.acceptance == counts.accepted / 27 and counts.novelty == counts.novel / 27
    said = sweep_in_words(watched)
    assert said.startswith("Sweep 3.") and f"{counts.acceptance:.0%} of 27 proposals accepted" in said
    assert "follow no energy" not in said
    assert "follow no energy" in sweep_in_words(advance(adjust(watched, settings_of(kernel="gibbs"))))


def test_changed_and_fixed_positions_are_marked() -> None:
    watched = start(masked_run(), "_ b _ _", SETTINGS)
    assert "changed" not in sequences_view(watched).replace("just changed", "")
    assert energy_view(watched) == ""
    watched = pin(advanced(watched, 3), [0])
    page = sequences_view(watched)
    before, now = watched.done[-2].tokens_SBT[0], watched.done[-1].tokens_SBT[0]
    assert page.count(", changed") == int((before != now).sum()) > 0
    assert page.count('class="token pinned') == 2 * 3
    curves = energy_view(watched)
    assert curves.count("<svg") == 2 and "chain 3: " in curves
    last = float(watched.state.energy_B[0])
    assert f"{last:.3g} at sweep 3" in curves
