"""Commits against enumeration of the slots and a beam of Python loops; the loop in pieces against the whole search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import oracles
from oracles import tagger_case
from seqwise import InputError
from seqwise.data import EncodedExample, collate
from seqwise.search import (
    CommitRule,
    Committing,
    HardTopK,
    Selection,
    Selector,
    SoftTopK,
    agree,
    backtrace,
    beam_search,
    delay,
    global_,
    interpolated,
    local,
    margin,
    never,
    unroll,
)
from seqwise.search.candidates import Candidates
from seqwise.search.commits import COMMITTED, any_of, as_commit_rule, best_labels

SCORES = {"local": local, "global": global_, "interpolated": interpolated(0.5)}

# Of labels and scores of the slots, by a loop over how many labels could be final.
Slots = Sequence[tuple[tuple[int, ...], float]]
ENUMERATED: dict[str, tuple[CommitRule, Callable[[Slots, int], bool]]] = {
    "agree": (agree, lambda slots, n: len({labels[:n] for labels, _ in slots}) == 1),
    "agree or delay(3)": (
        any_of(agree, delay(3)),
        lambda slots, n: len({labels[:n] for labels, _ in slots}) == 1 or n + 3 <= len(slots[0][0]),
    ),
    "never": (never, lambda slots, n: n == 0),
    **{
        f"delay({d})": (delay(d), lambda slots, n, d=d: n == 0 or n + d <= len(slots[0][0]))  # type: ignore[misc]
        for d in (0, 1, 3, 9)
    },
    **{
        f"margin({m})": (  # type: ignore[dict-item]
            margin(m),
            lambda slots, n, m=m: all(
                max(score for _, score in slots) - score >= m
                for labels, score in slots
                if labels[:n] != max(slots, key=lambda slot: slot[1])[0][:n]
            ),
        )
        for m in (0.0, 0.5, 2.0, math.inf)
    },
}


def most(slots: Slots, may_commit: Callable[[Slots, int], bool]) -> int:
    """Largest number of first labels that a rule allows to commit."""
    return max(n for n in range(len(slots[0][0]) + 1) if n == 0 or may_commit(slots, n))


@pytest.mark.parametrize("name", ENUMERATED)
def test_a_rule_commits_what_enumeration_of_the_slots_allows(name: str) -> None:
    """Dead slots do not count, nor do columns that others of the batch still have open."""
    rule, may_commit = ENUMERATED[name]
    draw, counts = np.random.default_rng(0), set()
    for _ in range(300):
        num_inputs, num_slots, width = draw.integers(1, 4), draw.integers(1, 5), draw.integers(1, 6)
        open_labels = draw.integers(1, width + 1, num_inputs)
        labels = draw.integers(0, 2, (num_inputs, num_slots, width))
        scores = draw.permuted(np.arange(num_slots) * -0.4, axis=0)[None].repeat(num_inputs, 0)
        scores[:, 1:][draw.random((num_inputs, num_slots - 1)) < 0.3] = -math.inf
        for row, length in zip(labels, open_labels, strict=True):
            row[:, : width - length] = COMMITTED
        found = rule(torch.from_numpy(labels), torch.from_numpy(scores)).tolist()
        for b, length in enumerate(open_labels):
            slots = [
                (tuple(labels[b, k, width - length :].tolist()), scores[b, k])
                for k in range(num_slots)
                if scores[b, k] > -math.inf
            ]
            expected = most(slots, may_commit)
            assert max(found[b] - (width - length), 0) == expected
            counts.add(expected)
    assert len(counts) > (1 if name not in ("never", "delay(9)") else 0)


def committed_beam(
    model: Any, *, k: int, num_steps: int, log_partition_weight: float, may_commit: Callable[[Slots, int], bool]
) -> tuple[list[tuple[int, ...]], list[oracles.HardHypothesis]]:
    """Beam search that drops what disagrees with a commit: what was final after each step, and the last beam."""
    beam, final, history = oracles.empty_beam(model), 0, []
    for step in range(num_steps):
        beam = oracles.extensions(model, beam, step, log_partition_weight=log_partition_weight)[:k]
        final += most([(slot.tokens[final:], slot.score) for slot in beam], may_commit)
        prefix = beam[0].tokens[:final]
        beam = [slot for slot in beam if slot.tokens[:final] == prefix]
        history.append(prefix)
    return history, beam


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("name", ENUMERATED)
def test_a_committing_beam_is_the_beam_of_loops(name: str, score_name: str) -> None:
    """After every step, for each input of a batch: the final labels, and the scores before they were rebased."""
    rule, may_commit = ENUMERATED[name]
    for seed in range(3):
        case, k, num_steps = tagger_case(seed, lengths=(7, 7), bidirectional=False, scale=1.5), 3 + seed, 7
        context = case.model.encode(case.batch)
        steps = unroll(
            case.model,
            context,
            Committing(HardTopK(k), rule),
            num_steps=num_steps,
            score=SCORES[score_name],
        )
        final: list[tuple[int, ...]] = [(), ()]
        steps_B: list[list[tuple[int, ...]]] = [[], []]
        for step in steps:
            for b, labels in enumerate(step.carry.committed_BT.tolist()):
                final[b] += tuple(label for label in labels if label != COMMITTED)
                steps_B[b].append(final[b])
                if any(label != COMMITTED for label in labels):
                    assert float(step.beam.scores_BK[b].max()) == 0.0  # rebased, so that they stay small
        for b, oracle in enumerate(case.oracles):
            history, slots = committed_beam(
                oracle,
                k=k,
                num_steps=num_steps,
                log_partition_weight=SCORES[score_name].log_partition_weight,
                may_commit=may_commit,
            )
            assert steps_B[b] == history
            scores = step.beam.scores_BK[b] + step.carry.dropped_B[b]
            live = scores > -math.inf
            assert scores[live].tolist() == pytest.approx([slot.score for slot in slots], abs=1e-10)
            open_labels = [tuple(x for x in row if x != COMMITTED) for row in step.carry.labels_BKT[b][live].tolist()]
            assert open_labels == [slot.tokens[len(history[-1]) :] for slot in slots]


@pytest.mark.parametrize("selector", [HardTopK(4), SoftTopK(4, 50.0)], ids=["hard", "relaxed"])
def test_what_all_slots_agree_on_is_committed_without_effect(selector: Selector) -> None:
    case = tagger_case(1, lengths=(12, 12, 12), bidirectional=False, scale=2.0)
    context = case.model.encode(case.batch)
    whole = beam_search(case.model, context, selector, num_steps=12, score="global")
    final: list[list[int]] = [[], [], []]
    early = 0
    for step in unroll(case.model, context, Committing(selector, agree), num_steps=12, score="global"):
        for labels, row in zip(final, step.carry.committed_BT.tolist(), strict=True):
            labels += [label for label in row if label != COMMITTED]
        early = early or sum(map(len, final))
    torch.testing.assert_close(step.beam.scores_BK + step.carry.dropped_B[:, None], whole.scores_BK, atol=1e-10, rtol=0)
    assert early and any(len(labels) < 12 for labels in final)
    last_BT = best_labels(step.carry.labels_BKT, step.beam.scores_BK).tolist()
    # Slots of a relaxed beam may share a mixed state, and then a score: any of the best will do.
    best_BK = whole.scores_BK > whole.scores_BK.amax(-1, keepdim=True) - 1e-9
    for labels, rest, slots_KT, best_K in zip(final, last_BT, backtrace(whole), best_BK, strict=True):
        assert [*labels, *(label for label in rest if label != COMMITTED)] in slots_KT[best_K].tolist()


@pytest.mark.parametrize("rule", [margin(0.3), delay(1), delay(0)], ids=["margin", "delay", "at once"])
@pytest.mark.parametrize("selector", [HardTopK(4), SoftTopK(4, 50.0)], ids=["hard", "relaxed"])
def test_what_was_committed_is_the_beginning_of_all_live_slots(selector: Selector, rule: CommitRule) -> None:
    case = tagger_case(2, lengths=(9, 9), bidirectional=False)
    final: list[list[int]] = [[], []]
    for step in unroll(case.model, case.model.encode(case.batch), Committing(selector, rule), num_steps=9):
        for labels, row in zip(final, step.carry.committed_BT.tolist(), strict=True):
            labels += [label for label in row if label != COMMITTED]
        for b, k in itertools.product(range(2), range(step.beam.scores_BK.shape[1])):
            if step.beam.scores_BK[b, k] > -math.inf:
                assert backtrace(step.beam)[b, k, : len(final[b])].tolist() == final[b]
    assert min(map(len, final)) > 3


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 2.0)], ids=["hard", "relaxed"])
def test_a_search_can_be_continued_from_a_beam(selector: Selector) -> None:
    """Sources that are read and searched in pieces against the whole search: all slots, with their history."""
    case = tagger_case(4, lengths=(8, 8), bidirectional=False)
    whole = beam_search(case.model, case.model.encode(case.batch), selector, num_steps=8)
    beam = past = carry = None
    for start, end in ((0, 1), (1, 5), (5, 8)):
        pieces = [EncodedExample(example.source_ids[start:end], ()) for example in case.examples]
        context, past = case.model.read(collate(pieces), past)
        for step in unroll(case.model, context, selector, num_steps=end - start, carry=carry, beam=beam):
            beam, carry = step.beam, step.carry
    assert beam is not None
    torch.testing.assert_close(beam.scores_BK, whole.scores_BK, atol=1e-10, rtol=0)
    assert torch.equal(backtrace(beam), backtrace(whole))
    with pytest.raises(InputError, match="continues from a beam takes no cost"):
        next(unroll(case.model, context, selector, num_steps=1, beam=beam, cost=lambda step: torch.zeros(2, 4)))


def test_the_selector_that_commits_carries_what_the_inner_one_does() -> None:
    def counted(candidates: Candidates, steps: int | None, generator: torch.Generator | None) -> tuple[Selection, int]:
        return HardTopK(2)(candidates, None, generator)[0], (steps or 0) + 1

    case = tagger_case(0, bidirectional=False)
    steps = unroll(case.model, case.model.encode(case.batch), Committing(counted, agree), num_steps=4)
    assert [step.carry.inner for step in steps] == [1, 2, 3, 4]


@pytest.mark.parametrize("rule", [agree, margin(0.0), delay(0), never], ids=["agree", "margin", "delay", "never"])
def test_an_input_without_live_slots_stays_without_them(rule: CommitRule) -> None:
    """Its scores are not rebased, while another input of the batch goes on."""
    scores_BJV = torch.tensor([[[-math.inf, -math.inf]], [[-3.0, -5.0]]])
    selection, carry = Committing(HardTopK(2), rule)(Candidates.of_scores(scores_BJV), None, None)
    assert selection.scores_BK[0].tolist() == [-math.inf, -math.inf]
    assert carry.dropped_B[0] == 0.0
    assert (selection.scores_BK[1].max() + carry.dropped_B[1]) == -3.0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("agre", "no commit rule is called 'agre'; did you mean 'agree'?"),
        ("agree(2)", "no commit rule is called 'agree(2)'; leave the parentheses out: agree"),
        ("margin", "the commit rule 'margin' needs a number; write for example margin(2)"),
        ("delay(two)", "the commit rule 'delay(two)' needs a number; write for example delay(2)"),
        ("delay(1.5)", "the delay of a commit must be a whole number, 0 or more, got 1.5"),
        ("margin(-1)", "the margin of a commit must be 0 or more, got -1.0"),
        ("margin(nan)", "the margin of a commit must be 0 or more, got nan"),
        ("delay(inf)", "the delay of a commit must be a whole number, 0 or more, got inf"),
        ("", "no commit rule is called ''; known are agree, delay(NUMBER), margin(NUMBER), never"),
        ("agree or often", "no commit rule is called 'often'; known are agree, delay(NUMBER), margin(NUMBER), never"),
        ("margin(1", "no commit rule is called 'margin(1'; did you mean 'margin(NUMBER)'?"),
    ],
)
def test_a_rule_that_does_not_exist_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        as_commit_rule(name)
    assert str(refused.value) == problem


def test_rules_by_name() -> None:
    labels_BKT, scores_BK = torch.tensor([[[1, 2, 3], [1, 2, 4]]]), torch.tensor([[0.0, -1.0]])
    for name, count in {
        "agree": 2,
        "never": 0,
        "delay(1)": 2,
        " margin( 1 ) ": 3,
        "margin(1.5)": 2,
        "never or agree": 2,
    }.items():
        assert as_commit_rule(name)(labels_BKT, scores_BK).tolist() == [count]
    assert as_commit_rule(never) is never
