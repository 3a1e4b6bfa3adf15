"""Best-first search against the enumeration of all outputs, and what its certificate claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from parameters import quick
from seqwise import InputError, best_first
from seqwise.data import collate
from seqwise.decoding import hypotheses
from seqwise.models import EncoderDecoder
from seqwise.search import (
    BestOutputs,
    HardTopK,
    beam_search,
    cost_augmented,
    global_,
    interpolated,
    local,
    renormalized,
    shifted,
    transitions,
    trie,
)
from seqwise.search.exact import _Open, _States

Ids = tuple[int, ...]
SCORES = {"masked": local, "renormalized": renormalized}


def cases(seed: int) -> list[oracles.Case]:
    return [
        oracles.tagger_case(seed, target_size=3, lengths=(3, 1, 4)),
        oracles.translation_case(seed, target_size=4, lengths=(2, 4, 1)),
        oracles.transformer_case(seed, target_size=4, lengths=(2, 4, 1)),
    ]


def steps_of(case: oracles.Case) -> list[int]:
    if case.model.end is None:
        return [len(example.source_ids) for example in case.examples]
    return [3, 5, 2][: len(case.examples)]


def written(row: list[int]) -> Ids:
    return tuple(token for token in row if token >= 0)


def all_logits(oracle: Any, num_steps: int) -> dict[Ids, list[float]]:
    """Logits after every prefix that is not an output."""
    fed, state = oracle.start()
    found: dict[Ids, list[float]] = {}
    waiting = [((), fed, state)] if num_steps else []
    while waiting:
        prefix, fed, state = waiting.pop()
        found[prefix], state = oracle.step(fed, state, len(prefix))
        if len(prefix) + 1 < num_steps:
            words = [word for word in range(len(oracle.embeddings)) if word != oracle.end]
            waiting += [((*prefix, word), oracle.embeddings[word], state) for word in words]
    return found


def enumerated(
    oracle: Any, num_steps: int, *, whole: Collection[Ids] | None = None, over: str = "vocabulary"
) -> list[tuple[float, Ids]]:
    """Score and tokens of every output, best first; end token included, scored in loops over floats."""
    if whole is None:
        outputs = list(oracles.all_outputs(oracle, num_steps))
    else:  # in time: with an end token in at most so many steps, without one in exactly so many
        outputs = [y for y in whole if (len(y) <= num_steps if oracle.end is not None else len(y) == num_steps)]
    scored, logits_after = [], all_logits(oracle, num_steps)
    for output in outputs:
        score = 0.0
        for step in range(len(output)):
            logits = logits_after[output[:step]]
            kept: Collection[int] = range(len(logits))
            if over == "allowed" and whole is not None:
                kept = {y[step] for y in outputs if y[:step] == output[:step]}
            score += logits[output[step]] - oracles.log_sum_exp([logits[token] for token in kept])
        scored.append((score, output))
    return sorted(scored, key=lambda pair: -pair[0])


def some_outputs(draw: np.random.Generator, case: oracles.Case, *, share: float = 0.2) -> list[Ids]:
    """Some of the outputs without end token, of every length that the test needs."""
    end, size = case.model.end, case.vocabulary_size
    tokens = [token for token in range(size) if token != end]
    found: list[Ids] = []
    for length in range(1, 5):
        every = list(itertools.product(tokens, repeat=length))
        found += [output for output in every if draw.random() < share or output == every[0]]
    return found


def ended(outputs: Collection[Ids], end: int | None) -> list[Ids]:
    return [output if end is None else (*output, end) for output in outputs]


def require_equal(found: BestOutputs, row: int, expected: list[tuple[float, Ids]], k: int) -> None:
    count = min(k, len(expected))
    assert [written(tokens) for tokens in found.tokens_BKT[row].tolist()] == [
        *(output for _, output in expected[:count]),
        *[()] * (k - count),
    ]
    scores = torch.tensor([score for score, _ in expected[:count]], dtype=torch.float64)
    torch.testing.assert_close(found.scores_BK[row, :count], scores, atol=1e-10, rtol=0)
    assert bool((found.scores_BK[row, count:] == -torch.inf).all())
    assert bool(found.certified_B[row])


# ---------------------------------------------------------------------------------------- against enumeration


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_all_outputs(seed: int, k: int) -> None:
    for case, at_once in zip(cases(seed), (1, 3, 16), strict=True):
        steps, context = steps_of(case), case.model.encode(case.batch)
        found = best_first(case.model, context, k, num_steps=torch.tensor(steps), at_once=at_once)
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            require_equal(found, row, enumerated(oracle, num_steps), k)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("seed", quick(range(3), 0))
def test_outputs_of_a_trie(seed: int, k: int, name: str) -> None:
    draw = np.random.default_rng(seed)
    for case, at_once in zip(cases(seed), (2, 16, 1), strict=True):
        end, steps = case.model.end, steps_of(case)
        outputs = some_outputs(draw, case)
        case.model.language = trie(outputs, end=end)
        found = best_first(
            case.model,
            case.model.encode(case.batch),
            k,
            num_steps=torch.tensor(steps),
            score=name if name == "renormalized" else "local",  # type: ignore[arg-type]
            at_once=at_once,
        )
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            over = "allowed" if name == "renormalized" else "vocabulary"
            require_equal(found, row, enumerated(oracle, num_steps, whole=ended(outputs, end), over=over), k)


def test_a_given_language_replaces_that_of_the_model() -> None:
    case = oracles.translation_case(0)
    context = case.model.encode(case.batch)
    case.model.language = trie([(0, 0)], end=1)
    found = best_first(case.model, context, 2, num_steps=4, language=trie([(2, 3), (3,)], end=1))
    assert {written(row) for row in found.tokens_BKT[0].tolist()} == {(2, 3, 1), (3, 1)}


def test_scores_and_outputs_are_those_of_a_beam_that_holds_everything() -> None:
    for case in cases(4):
        steps, context = torch.tensor(steps_of(case)), case.model.encode(case.batch)
        for score in (local, renormalized):
            case.model.language = transitions(torch.ones(*[case.vocabulary_size] * 2).bool(), end=case.model.end)
            beam = beam_search(case.model, context, HardTopK(500), num_steps=steps, score=score)
            found = best_first(case.model, context, 4, num_steps=steps, score=score)
            ranked = hypotheses(beam, end=case.model.end, n_best=4)
            for wide, exact in zip(ranked, hypotheses(found, end=case.model.end, n_best=4), strict=True):
                assert [one.tokens for one in wide] == [one.tokens for one in exact]
                assert [one.finished for one in wide] == [one.finished for one in exact]
                assert [one.score for one in wide] == pytest.approx([one.score for one in exact], abs=1e-12)


def test_results_do_not_depend_on_the_batch() -> None:
    for case in cases(1):
        steps = steps_of(case)
        together = best_first(case.model, case.model.encode(case.batch), 3, num_steps=torch.tensor(steps), at_once=2)
        for row, num_steps in enumerate(steps):
            alone = collate([case.examples[row]])
            found = best_first(case.model, case.model.encode(alone), 3, num_steps=num_steps, at_once=2)
            torch.testing.assert_close(found.scores_BK[0], together.scores_BK[row])
            assert torch.equal(found.tokens_BKT[0], together.tokens_BKT[row, :, :num_steps])
            assert int(found.expansions_B) == int(together.expansions_B[row])


def test_few_allowed_tokens_of_many() -> None:
    model = EncoderDecoder(source_size=5, target_size=5000, end=0, embedding_size=8, hidden_size=8).eval()
    draw = np.random.default_rng(0)
    outputs = {tuple(draw.integers(1, 5000, length).tolist()) for length in draw.integers(1, 5, 40)}
    context = model.encode(oracles.translation_case(0).batch)
    for score in (local, renormalized):
        model.language = trie(outputs, end=0)
        found = best_first(model, context, 40, num_steps=6, score=score)
        assert {written(row)[:-1] for row in found.tokens_BKT[0].tolist()} == outputs
        beam = beam_search(model, context, HardTopK(200), num_steps=6, score=score)
        torch.testing.assert_close(found.scores_BK, beam.scores_BK[:, :40], atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------- special cases


def test_ties_and_excluded_tokens() -> None:
    case = oracles.translation_case(0, target_size=3)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
        case.model.head.bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))  # token 2 is never written
    found = best_first(case.model, case.model.encode(case.batch), 6, num_steps=4)
    # Every step has two tokens of probability 1/2: outputs of 1, 2, 3, 4 tokens with the end, and one without.
    expected = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625, 0.0], dtype=torch.float64).log()
    torch.testing.assert_close(found.scores_BK, expected.expand(len(case.examples), -1))
    rows = [written(row) for row in found.tokens_BKT[0].tolist()]
    assert rows[:3] == [(1,), (0, 1), (0, 0, 1)]
    assert set(rows[3:5]) == {(0, 0, 0, 1), (0, 0, 0, 0)} and rows[5] == ()
    assert found.certified_B.tolist() == [True] * len(case.examples)


def test_tied_outputs_are_distinct() -> None:
    case = oracles.tagger_case(0, target_size=2, lengths=(3, 2))
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    found = best_first(case.model, case.model.encode(case.batch), 4, num_steps=torch.tensor([3, 2]), at_once=2)
    torch.testing.assert_close(found.scores_BK.exp(), torch.tensor([[0.125] * 4, [0.25] * 4]).double())
    assert [len({written(row) for row in rows}) for rows in found.tokens_BKT.tolist()] == [4, 4]
    assert found.certified_B.tolist() == [True, True]


def test_inputs_without_steps_have_the_empty_output() -> None:
    case = oracles.translation_case(0)
    found = best_first(case.model, case.model.encode(case.batch), 2, num_steps=torch.tensor([0, 2, 0]))
    assert found.scores_BK[[0, 2]].tolist() == [[0.0, -math.inf]] * 2
    assert found.expansions_B[[0, 2]].tolist() == [0, 0] and found.certified_B.tolist() == [True] * 3
    assert [one.tokens for one in hypotheses(found, end=1)[0]] == [()]
    none = best_first(case.model, case.model.encode(case.batch), 2, num_steps=0)
    assert none.tokens_BKT.shape == (3, 2, 0)
    assert none.scores_BK.tolist() == [[0.0, -math.inf]] * 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"k": 0}, "number of outputs k"),
        ({"at_once": 0}, "expanded at once"),
        ({"most_expansions": 0}, "expansions must be at least 1"),
        ({"num_steps": -1}, "must not be negative"),
        ({"score": "global"}, "at most 0"),
        ({"score": global_}, "at most 0"),
        ({"score": shifted(9.0)}, "at most 0"),
        ({"score": interpolated(0.5)}, "at most 0"),
        ({"score": cost_augmented(local)}, "at most 0"),
        ({"score": "best"}, "no score is called"),
        ({"language": trie([(2, 3, 2, 3)], end=1)}, "no output that a search of 3 steps"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, Any], says: str) -> None:
    case = oracles.translation_case(0)
    arguments: dict[str, Any] = {"k": 1, "num_steps": 3, **change}
    with pytest.raises(InputError, match=says):
        best_first(case.model, case.model.encode(case.batch), arguments.pop("k"), **arguments)


def test_a_language_of_which_the_model_can_write_nothing_is_refused() -> None:
    case = oracles.translation_case(0)
    with torch.no_grad():
        case.model.head.bias[2] = -torch.inf
    with pytest.raises(InputError, match="every output of the language has probability 0"):
        best_first(case.model, case.model.encode(case.batch), 1, num_steps=3, language=trie([(2,)], end=case.model.end))


def test_a_model_in_training_mode_is_refused() -> None:
    case = oracles.translation_case(0)
    with pytest.raises(InputError, match="in training mode"):
        best_first(case.model.train(), case.model.encode(case.batch), 1, num_steps=3)


# ---------------------------------------------------------------------------------------- certificate and budget


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_bounds_hold_when_a_search_is_cut_short(seed: int, most: int, k: int, at_once: int) -> None:
    for case in cases(seed)[:2]:
        steps = steps_of(case)
        found = best_first(
            case.model,
            case.model.encode(case.batch),
            k,
            num_steps=torch.tensor(steps),
            at_once=at_once,
            most_expansions=most,
        )
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            every = enumerated(oracle, num_steps)
            outputs = {output for _, output in every}
            returned = {written(tokens) for tokens in found.tokens_BKT[row].tolist()} & outputs
            bound, last = float(found.bounds_B[row]), float(found.scores_BK[row, -1])
            assert int(found.expansions_B[row]) <= most
            assert all(score <= bound + 1e-12 for score, output in every if output not in returned)
            assert bool(found.certified_B[row]) == (last >= bound)
            # Certain are those that reach the bound, certified or not.
            certain = int((found.scores_BK[row] >= bound).sum())
            live = min(certain, len(every))
            assert [written(tokens) for tokens in found.tokens_BKT[row, :live].tolist()] == [y for _, y in every[:live]]


def test_a_search_that_is_cut_short_says_so() -> None:
    case = oracles.tagger_case(2, target_size=4, lengths=(4,), scale=0.1)
    context, (best, *_) = case.model.encode(case.batch), enumerated(case.oracles[0], 4)
    bounds = []
    for most in (1, 4, 16, 64, 100):
        found = best_first(case.model, context, 1, num_steps=4, most_expansions=most, at_once=1)
        assert bool(found.certified_B) == (most == 100)
        assert float(found.bounds_B) >= best[0] - 1e-12
        bounds.append(float(found.bounds_B))
    assert bounds == sorted(bounds, reverse=True)
    one = best_first(case.model, context, 1, num_steps=4, most_expansions=1)
    assert one.scores_BK.tolist() == [[-math.inf]] and written(one.tokens_BKT[0, 0].tolist()) == ()


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("seed", quick(range(4), 0))
def test_no_more_prefixes_are_expanded_than_necessary(seed: int, at_once: int) -> None:
    """At least every prefix better than the k-th output; at most those and the ones that a beam expands to find it."""
    for case, k in itertools.product(cases(seed), (1, 3)):
        steps, context = steps_of(case), case.model.encode(case.batch)
        found = best_first(case.model, context, k, num_steps=torch.tensor(steps), at_once=at_once)
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            every = enumerated(oracle, num_steps)
            last = every[k - 1][0] if len(every) >= k else -math.inf
            needed = sum(score > last for score in prefix_scores(oracle, num_steps))
            assert needed <= int(found.expansions_B[row])
            beam = oracles.hard_beam(oracle, k=at_once, num_steps=num_steps)
            if at_once >= k and {oracles.until_end(one.tokens, oracle.end) for one in beam} >= {
                y for _, y in every[:k]
            }:
                assert int(found.expansions_B[row]) <= needed + at_once * num_steps


def prefix_scores(oracle: Any, num_steps: int) -> list[float]:
    """Scores of every prefix that is not an output."""
    logits_after = all_logits(oracle, num_steps)
    return [
        sum(
            logits_after[prefix[:step]][token] - oracles.log_sum_exp(logits_after[prefix[:step]])
            for step, token in enumerate(prefix)
        )
        for prefix in logits_after
    ]


def test_a_model_step_takes_no_more_slots_than_prefixes_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in cases(3):
        context, step, num_slots = case.model.encode(collate(case.examples[:1])), case.model.step, list[int]()

        def watched(inputs_BJD: torch.Tensor, *rest: Any, step: Any = step, counts: list[int] = num_slots) -> Any:
            counts.append(inputs_BJD.shape[1])
            return step(inputs_BJD, *rest)

        monkeypatch.setattr(case.model, "step", watched)
        found = best_first(case.model, context, 2, num_steps=3, at_once=4)
        assert [sum(num_slots)] == found.expansions_B.tolist()


def test_states_are_found_by_their_rows_in_a_buffer_that_doubles() -> None:
    opened, kept, sizes = _States(), list[int](), set[int]()
    for number in range(40):
        states_BJ3 = torch.tensor([[[3 * number], [3 * number + 1]], [[3 * number + 2], [-1]]]).expand(-1, -1, 3)
        live_BJ = torch.tensor([[True, number % 3 == 0], [number % 2 == 0, False]])
        rows_BJ = opened.add(states_BJ3, live_BJ)
        kept += states_BJ3[live_BJ][:, 0].tolist()
        assert torch.equal(opened.get(rows_BJ)[live_BJ], states_BJ3[live_BJ])
        sizes.add(opened._leaves.shape[1])
    every_1J = torch.arange(len(kept))[None]
    assert opened.get(every_1J)[0].tolist() == [[number] * 3 for number in kept]
    assert max(sizes) <= 2 * len(kept) and len(sizes) <= 8  # room is made few times


def test_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = EncoderDecoder(source_size=5, target_size=300, end=0, embedding_size=4, hidden_size=4).eval()
    kept: list[int] = []
    best: Callable[..., _Open] = _Open.best

    def watched(self: _Open, count: int, *, above_B1: torch.Tensor) -> _Open:
        after = best(self, count, above_B1=above_B1)
        kept.append(after.scores_BQ.shape[1])
        return after

    monkeypatch.setattr(_Open, "best", watched)
    context = model.encode(oracles.translation_case(0).batch)
    found = best_first(model, context, 2, num_steps=8, most_expansions=50, at_once=4)
    assert len(kept) > 5 and max(kept) <= 51
    assert not found.certified_B.any() and found.expansions_B.tolist() == [50] * 3
