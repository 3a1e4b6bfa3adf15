"""Chains over problems: those of a group go as each alone, groups fit, and what has no room is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from seqwise.data.batches import FREE
from seqwise.errors import InputError
from seqwise.models import ConditionalMaskedTransformer, MaskedLSTM
from seqwise.sampling import (
    ChainSettings,
    ParallelTempering,
    Trace,
    contains,
    local_energy,
    sample_chains,
    table_model,
)
from seqwise.sampling import problems as problems_module
from seqwise.sampling.chains import tally
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.problems import ChainProblem, ChainRunner, Tokenizations, run_problems, samples_of
from seqwise.sampling.refinement import refine
from seqwise.sampling.state import evaluate

MODEL = table_model(num_positions=3, vocab_size=3, seed=2)


def lstm() -> MaskedLSTM:
    """A model of sequences of any length."""
    torch.manual_seed(4)
    return MaskedLSTM(vocab_size=3, embedding_size=4, hidden_size=5, feedforward_size=6).double().eval()


def test_problems_do_not_depend_on_each_other() -> None:
    """Chains are told apart by their numbers; of replicas one is kept, with the passes of all."""
    model, settings = lstm(), ChainSettings(kernel=ParallelTempering(temperatures=(1.0, 2.0, 4.0)))
    problems = [
        ChainProblem((FREE, 1, FREE), num_chains=2),
        ChainProblem((FREE,) * 2, num_chains=1, first_chain=5),
        ChainProblem((FREE,) * 3, num_chains=3, first_chain=2),
        ChainProblem((0, FREE, FREE, FREE), num_chains=2, first_chain=6),
    ]
    heard: list[tuple[int, int]] = []
    together = run_problems(
        model, problems, settings, num_sweeps=6, seed=3, progress=lambda state, _: heard.append(state.tokens_BT.shape)
    )
    for problem, trace in zip(problems, together, strict=True):
        (alone,) = run_problems(model, [problem], settings, num_sweeps=6, seed=3)
        assert torch.equal(alone.tokens_SBT, trace.tokens_SBT) and torch.equal(alone.passes_SB, trace.passes_SB)
        assert trace.energy_SB.shape == (6, problem.num_chains)
        runner = ChainRunner(model, settings, seed=3)
        every = sample_chains(runner.kernel, runner.start([problem]), 6, seed=3)
        assert torch.equal(trace.tokens_SBT, every.tokens_SBT[:, ::3])
        assert torch.equal(trace.passes_SB, every.passes_SB.view(6, -1, 3).sum(2))
    assert bool((together[0].tokens_SBT[..., 1] == 1).all()) and bool((together[3].tokens_SBT[..., 0] == 0).all())
    assert run_problems(model, [], settings, num_sweeps=6) == []
    assert heard == [(3, 2)] * 6 + [(15, 3)] * 6 + [(6, 4)] * 6  # each sweep of each group, replicas included


def test_a_problem_has_its_own_source() -> None:
    """Of sources of different lengths, with two chains of two replicas each."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "feedforward_size": 8}
    model = ConditionalMaskedTransformer(source_size=6, vocab_size=3, max_length=4, **sizes).double().eval()
    settings = ChainSettings(kernel=ParallelTempering(temperatures=(1.0, 2.0)))
    sources = [(1, 2, 3, 4), (5,)]
    problems = [ChainProblem((FREE,) * 3, source, 2, 2 * number) for number, source in enumerate(sources)]
    runner = ChainRunner(model, settings, starts="greedy")
    state = runner.start(problems)
    for row, number in enumerate([0, 0, 0, 0, 1, 1, 1, 1]):
        context = model.encode(torch.tensor([sources[number]]), torch.tensor([len(sources[number])]))
        tokens_1T = state.tokens_BT[row : row + 1]
        energy = float(evaluate(local_energy(model), tokens_1T, context).energy_B)
        assert float(state.energy_B[row]) == pytest.approx(energy, abs=1e-9)
        greedy_1T, _ = refine(
            model, torch.zeros(1, 3).long(), torch.ones(1, 3).bool(), num_iterations=1, context=context
        )
        assert torch.equal(tokens_1T, greedy_1T)
    assert float((state.energy_B[0] - state.energy_B[-1]).abs()) > 0.01
    moved = runner.advance(state, 4)[1]
    for number, problem in enumerate(problems):
        alone = runner.advance(runner.start([problem]), 4)[1]
        torch.testing.assert_close(moved.energy_B[4 * number : 4 * number + 4], alone.energy_B)


@pytest.mark.parametrize("max_rows", [100, 7])
def test_a_group_is_as_large_as_fits(monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    """Every problem counts as the largest, with two replicas of 1 to 3 chains; one that is too large is a group."""
    monkeypatch.setattr(problems_module, "MOST_SCORES", 60)
    settings = ChainSettings(kernel=ParallelTempering(temperatures=(1.0, 2.0)), max_rows=max_rows)
    for most_chains in (1, 3):
        lengths = [2, 5, 2, 1, 2, 20, 2, 5, 1, 20]
        problems = [
            ChainProblem((FREE,) * length, num_chains=1 + number % most_chains) for number, length in enumerate(lengths)
        ]
        groups = list(ChainRunner(lstm(), settings).groups(problems))
        assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
        assert [lengths[group[0]] for group in groups] == sorted(lengths[group[0]] for group in groups)

        def fits(length: int, count: int, most: int = most_chains) -> bool:
            rows = 2 * most * count
            return rows <= max_rows and rows * length * 3 <= 60

        for length in set(lengths):
            alike = [group for group in groups if lengths[group[0]] == length]
            assert all(lengths[place] == length for group in alike for place in group)
            assert all(len(group) == 1 or fits(length, len(group)) for group in alike)
            assert not any(fits(length, len(group) + 1) for group in alike[:-1])


def test_samples_are_numbered_by_chain_and_sweep() -> None:
    """Those of a second length follow those of the first."""
    problem = ChainProblem((FREE,) * 3, num_chains=2, problem=4, rank=1)
    (trace,) = run_problems(MODEL, [problem], ChainSettings(), num_sweeps=3)
    samples = samples_of(problem, trace, iter([1, 3]))
    assert [(sample.problem, sample.chain, sample.sweep) for sample in samples] == [
        (4, 2, 1), (4, 2, 3), (4, 3, 1), (4, 3, 3)
    ]  # fmt: skip
    energy_NB = evaluate(local_energy(MODEL), torch.tensor([sample.tokens for sample in samples])).energy_B
    assert [sample.energy for sample in samples] == pytest.approx(energy_NB.tolist(), abs=1e-12)
    assert [sample.tokens for sample in samples] == [
        tuple(trace.tokens[sweep][chain].tolist()) for chain in (0, 1) for sweep in (1, 3)
    ]


def test_chains_start_where_they_are_told_to() -> None:
    """From given sequences, or all from the greedy fill, or the first of each problem from there."""
    free = (FREE,) * 3
    given = [ChainProblem(free, num_chains=2, starts=[(0, 1, 2), (2, 2, 0)]), ChainProblem(free, starts=[(1, 1, 1)])]
    runner = ChainRunner(MODEL, ChainSettings())
    assert runner.start(given).tokens_BT.tolist() == [[0, 1, 2], [2, 2, 0], [1, 1, 1]]
    problems = [ChainProblem(free, num_chains=8, first_chain=first) for first in (0, 8)]
    greedy_BT = ChainRunner(MODEL, ChainSettings(), starts="greedy").start(problems).tokens_BT
    assert bool((greedy_BT == greedy_BT[0]).all())
    dispersed_BT = runner.start(problems).tokens_BT
    assert torch.equal(dispersed_BT[[0, 8]], greedy_BT[:2])
    other_BT = ChainRunner(MODEL, ChainSettings(), seed=1).start(problems).tokens_BT
    assert torch.equal(other_BT[0], dispersed_BT[0]) and not torch.equal(other_BT, dispersed_BT)
    allowed_V = torch.tensor([True, False, True])
    assert set(
        ChainRunner(MODEL, ChainSettings(), allowed_V=allowed_V).start(problems).tokens_BT.unique().tolist()
    ) == {0, 2}
    assert not torch.equal(dispersed_BT[:8], dispersed_BT[8:])
    assert all(len(part_BT.unique(dim=0)) > 3 for part_BT in dispersed_BT.split(8))


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


WAYS = {"wanted": ((1, 1, 1, 1), (2, 1)), "other": ((0,),)}


def runner_of(**options: Any) -> ChainRunner:
    settings = {name: options.pop(name) for name in ("contain", "without", "penalty") if name in options}
    return ChainRunner(MODEL, ChainSettings(**settings), phrase=lambda text: WAYS[text], **options)


def test_a_phrase_has_room_where_one_of_its_ways_can_be_written() -> None:
    """Against every way to fill what is free; a soft constraint needs no room."""
    hard, soft = runner_of(contain=("wanted",)), runner_of(contain=("wanted",), penalty=1.0)
    assert (hard.shortest, soft.shortest, runner_of(without=("wanted",)).shortest) == (2, 1, 1)
    assert runner_of(contain=("other", "wanted")).shortest == 2
    for tokens in itertools.product((FREE, 0, 1, 2), repeat=3):
        fills = itertools.product(*((0, 1, 2) if token == FREE else (token,) for token in tokens))
        has_room = bool(contains(2, 1)(torch.tensor(list(fills))).any())
        problem = ChainProblem(tokens, num_chains=2)
        soft.require_room(problem)
        if has_room:
            hard.require_room(problem)
            continue
        for start in (hard.require_room, lambda problem: hard.start([problem])):
            with pytest.raises(InputError, match="no sequence was found that contains 'wanted'"):
                start(problem)


@pytest.mark.parametrize(("tokens", "penalty"), [((FREE, FREE, 0), None), ((0, FREE, 1), None), ((FREE, 0, 2), 1.5)])
def test_a_phrase_is_written_where_there_is_room(tokens: tuple[int, ...], penalty: float | None) -> None:
    """Of two ways one fits: (2, 1) does over what is free or stands there already, (1, 1, 1, 1) nowhere."""
    state = runner_of(contain=("wanted",), penalty=penalty).start([ChainProblem(tokens, num_chains=2)])
    plain_B = evaluate(local_energy(MODEL), state.tokens_BT).energy_B
    assert contains(2, 1)(state.tokens_BT).tolist() == [penalty is None] * 2
    torch.testing.assert_close(state.energy_B, plain_B + (penalty or 0.0))


@pytest.mark.parametrize("allowed", [(0, 1), (1, 2)])
def test_a_problem_without_a_start_is_named_with_its_place_and_a_hint(allowed: tuple[int, ...]) -> None:
    allowed_V = torch.zeros(3, dtype=torch.bool).index_fill(0, torch.tensor(allowed), True)
    runner = runner_of(contain=("wanted",), without=("other",), allowed_V=allowed_V)
    with pytest.raises(InputError) as refused:
        runner.start([ChainProblem((2, 1, FREE)), ChainProblem((FREE, 0, FREE), path="gaps.txt", line=7)])
    error = refused.value
    assert (error.path, error.line) == ("gaps.txt", 7)
    assert "contains 'wanted' and does without 'other'" in error.problem and "of length" not in error.problem
    assert error.hint is not None and ("allow all tokens" in error.hint) == (2 not in allowed)
    assert "more positions free" in error.hint


def test_a_phrase_longer_than_a_free_sequence_is_refused_by_its_length() -> None:
    runner = ChainRunner(MODEL, ChainSettings(contain=("wanted",)), phrase=lambda _: ((1, 1, 1, 1),))
    with pytest.raises(InputError, match=r"no sequence of length 3 was found.*larger length"):
        runner.start([ChainProblem((FREE,) * 3)])


def test_phrases_need_units_and_their_setting_is_named() -> None:
    with pytest.raises(InputError, match=r"^without: phrases need the units"):
        ChainRunner(MODEL, ChainSettings(without=("wanted",)))

    def refuse(text: str) -> Tokenizations:
        raise InputError(f"no {text}", hint="leave it out")

    with pytest.raises(InputError, match=r"^contain: no wanted; leave it out$"):
        ChainRunner(MODEL, ChainSettings(contain=("wanted",)), phrase=refuse)


def test_phrases_are_tokens_where_nothing_is_spelled() -> None:
    """Of a required phrase one way is enough; each way of a forbidden one is a violation."""
    ways: dict[str, Tokenizations] = {"wanted": ((2, 1), (0, 0)), "unwanted": ((1, 1), (2,))}
    settings = ChainSettings(contain=("wanted",), without=("unwanted",), penalty=2.5)
    energy = ChainRunner(MODEL, settings, phrase=ways.__getitem__).energy
    every_BT, violated = every_sequence(3, 3), []
    for row in every_BT.tolist():
        pairs = [tuple(row[place : place + 2]) for place in (0, 1)]
        violated.append((not {(2, 1), (0, 0)} & set(pairs)) + ((1, 1) in pairs) + (2 in row))
    assert energy.of_sequences(every_BT).tolist() == [2.5 * number for number in violated]


@pytest.mark.parametrize("penalty", [None, 2.5])
def test_phrases_are_words_where_tokens_are_spelled(penalty: float | None) -> None:
    """The pieces "s" and "a" also make a word, and the piece "as" a part of one."""
    pieces = ["a", "s", " "]
    settings = ChainSettings(contain=("as",), without=("a",), penalty=penalty)
    ways: dict[str, Tokenizations] = {"as": ((0, 1),), "a": ((0,),)}
    spelled = ChainRunner(
        MODEL, settings, phrase=ways.__getitem__, spell=lambda ids: "".join(pieces[token] for token in ids)
    )
    every_BT = every_sequence(3, 3)
    violated = []
    for row in every_BT.tolist():
        words = "".join(pieces[token] for token in row).split()
        violated.append(("as" not in words) + ("a" in words))
    expected = [number * (penalty or torch.inf) if number else 0.0 for number in violated]
    assert spelled.energy.of_sequences(every_BT).tolist() == expected
