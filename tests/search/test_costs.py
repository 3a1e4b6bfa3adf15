"""Costs that depend on the prefix: edit distance by enumeration, moved by hard and soft searches, and their limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from oracles import Case, ManyModels, levenshtein, tagger_case, translation_case, until_end
from seqwise import InputError
from seqwise.data import EncodedExample, collate
from seqwise.objectives import Objective, beam_crf_objective, hamming_cost, hinge_objective, relaxed_beam_objective
from seqwise.objectives.objective import mixed_objective, search_targets
from seqwise.objectives.risk import edit_distances
from seqwise.objectives.violations import beam_search_optimization_objective, hard_beam_hinge_objective
from seqwise.runs.settings import require_data, train_settings
from seqwise.search import (
    HardSelection,
    HardTopK,
    SoftTopK,
    backtrace,
    beam_search,
    cost_augmented,
    edit_distance_cost,
    global_,
    local,
    mean_squared_gap,
)

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

Tokens = tuple[int, ...]
CASES: dict[str, Callable[..., Case]] = {"tagger": tagger_case, "encoder-decoder": translation_case}
SCORES = {"local": local, "global": global_}
each_model = pytest.mark.parametrize("name", CASES)
each_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)


def outputs_of(num_tokens: int, num_steps: int, end: int | None) -> list[Tokens]:
    """All outputs, those that have ended continued by end tokens."""
    every = itertools.product(range(num_tokens), repeat=num_steps)
    return [y for y in every if end is None or all(w == end for w in y[len(until_end(y, end)) :])]


# ---------------------------------------------------------------------------------------- every output


def costs_along(cost: Any, outputs: Sequence[Tokens], rows: int) -> Tensor:
    """What each output pays at each step, (rows, outputs, steps): one slot for each, followed by hard selections."""
    tokens_BNT = torch.tensor(outputs).expand(rows, -1, -1)
    state, paid = cost.start(torch.zeros(rows, 1, dtype=torch.float64)), []
    for step in range(tokens_BNT.shape[2]):
        tokens_BN = tokens_BNT[..., step]
        parents_BN = torch.arange(len(outputs)).expand(rows, -1) if step else torch.zeros_like(tokens_BN)
        selection = HardSelection(torch.zeros(tokens_BN.shape, dtype=torch.float64), parents_BN, tokens_BN)
        paid.append(selection.expect(cost.step(state, step)))
        state = cost.advance(state, selection)
    return torch.stack(paid, dim=-1)


@pytest.mark.parametrize("end", [None, 0, 2])
def test_edit_costs_are_rises_of_what_can_be_reached(end: int | None) -> None:
    """For every output and prefix: the sum is the edit distance, each cost the rise of the best reachable distance."""
    golds: list[Tokens] = [(1, 1, 2), (2, 0, 1), (0, 0, 0), (1, 2, 1)] if end is None else []
    if end is not None:
        others = [w for w in range(3) if w != end]
        golds = [(*y, end) for length in range(4) for y in itertools.product(others, repeat=length)][:12]
    seen = set()
    for gold in golds:
        steps = len(gold) + (end is not None)
        outputs = outputs_of(3, steps, end)
        padded = torch.tensor([[*gold, *([-100 if end is None else end] * (6 - len(gold)))]])
        paid_NT = costs_along(edit_distance_cost(padded, 3, end=end), outputs, 1)[0]
        distances = {y: levenshtein(until_end(y, end), gold) for y in outputs}
        found = edit_distances(torch.tensor([outputs]), torch.tensor([gold]), end)[0]
        assert found.tolist() == list(distances.values())  # the measure of complete outputs means the same

        def reachable(prefix: Tokens, distances: dict[Tokens, int] = distances) -> int:
            return min(value for y, value in distances.items() if y[: len(prefix)] == prefix)

        assert reachable(()) == 0
        for y, paid in zip(outputs, paid_NT.tolist(), strict=True):
            assert sum(paid) == distances[y]
            rises = [reachable(y[: t + 1]) - reachable(y[:t]) for t in range(steps)]
            assert paid == rises
            seen |= {(w == end, rise) for w, rise in zip(y, rises, strict=True)}
    assert {(False, 0), (False, 1)} <= seen
    assert (False, 2) not in seen  # only ending can cost more than 1
    assert end is None or {(True, 0), (True, 1), (True, 3)} <= seen


def test_edit_costs_do_not_depend_on_the_batch() -> None:
    """Gold of several lengths, padded with anything, against each alone."""
    golds, outputs = [(1, 2, 1, 0), (0,), (2, 0), (2, 2, 0)], outputs_of(3, 5, 0)
    for pad in (0, -1, -100):
        together = torch.tensor([[*gold, *([pad] * (5 - len(gold)))] for gold in golds])
        paid_BNT = costs_along(edit_distance_cost(together, 3, end=0), outputs, len(golds))
        for row, gold in enumerate(golds):
            (alone_NT,) = costs_along(edit_distance_cost(torch.tensor([gold]), 3, end=0), outputs, 1)
            torch.testing.assert_close(paid_BNT[row], alone_NT, atol=0, rtol=0)


@pytest.mark.parametrize("outside", [3, 4, 9])
def test_gold_that_cannot_be_written_is_matched_by_no_token(outside: int) -> None:
    """As a token beyond the vocabulary of a model, the first one included."""
    outputs = outputs_of(3, 3, None)
    (paid_NT,) = costs_along(edit_distance_cost(torch.tensor([[1, outside, 2]]), 3), outputs, 1)
    wanted = [levenshtein(output, (1, outside, 2)) for output in outputs]
    assert paid_NT.sum(1).tolist() == wanted and min(wanted) == 1


def test_one_insertion_costs_one_where_hamming_charges_all_that_follows() -> None:
    gold, late = (1, 2, 1, 2, 1, 0), (2, 1, 2, 1, 2, 1, 0)
    paid_T = costs_along(edit_distance_cost(torch.tensor([[*gold, 0]]), 3, end=0), [late], 1)[0, 0]
    hamming = hamming_cost(torch.tensor([[*gold, 0]]), 3)
    assert paid_T.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert sum(float(hamming(step)[0, token]) for step, token in enumerate(late)) == 6


# ---------------------------------------------------------------------------------------- through searches


def edit_cost(case: Case) -> tuple[Any, Tensor, Tensor]:
    gold_BT, num_steps_B = search_targets(case.batch, case.model.end)
    return edit_distance_cost(gold_BT, case.vocabulary_size, end=case.model.end), gold_BT, num_steps_B


@pytest.mark.thorough
@each_model
@each_score
def test_a_hard_beam_ends_with_the_edit_distances_of_its_outputs(name: str, score: Any) -> None:
    """Ragged batches, plain and cost-augmented: costs follow the back-pointers."""
    distances = set()
    for seed, k in itertools.product(range(4), (1, 3, 7)):
        case = CASES[name](seed)
        cost, gold_BT, num_steps_B = edit_cost(case)
        for used in (score, cost_augmented(score)):
            context = case.model.encode(case.batch)
            beam = beam_search(case.model, context, HardTopK(k), num_steps=num_steps_B, score=used, cost=cost)
            tokens_BKT = backtrace(beam)
            for b, r in itertools.product(range(len(case.examples)), range(tokens_BKT.shape[1])):
                if beam.scores_BK[b, r] > -torch.inf:
                    gold = until_end([w for w in gold_BT[b].tolist() if w >= 0], case.model.end)
                    output = until_end([w for w in tokens_BKT[b, r].tolist() if w >= 0], case.model.end)
                    assert float(beam.costs_BK[b, r]) == levenshtein(output, gold)
                    distances.add(levenshtein(output, gold))
    assert len(distances) >= 3


@each_model
def test_a_full_cost_augmented_beam_finds_the_largest_score_plus_distance(name: str) -> None:
    """By enumeration: what the hinge searches for."""
    options: dict[str, Any] = {"target_size": 3} if name == "tagger" else {"target_size": 3, "lengths": (2, 3)}
    for seed in range(3):
        case = CASES[name](seed, **options)
        cost, gold_BT, num_steps_B = edit_cost(case)
        context = case.model.encode(case.batch)
        beam = beam_search(
            case.model, context, HardTopK(300), num_steps=num_steps_B, score=cost_augmented(global_), cost=cost
        )
        for b, oracle in enumerate(case.oracles):
            gold = until_end([w for w in gold_BT[b].tolist() if w >= 0], oracle.end)
            every = [
                oracles.gold_score(oracle, y, log_partition_weight=0.0) + levenshtein(y, gold)
                for y in oracles.all_outputs(oracle, int(num_steps_B[b]))
            ]
            assert float(beam.scores_BK[b].max()) == pytest.approx(max(every), abs=1e-10)


def row_after(row: Sequence[float], fits: Sequence[float]) -> list[float]:
    """One line of a Levenshtein table, cell by cell; ``fits[g]``: how well the new token matches gold token g."""
    after = [row[0] + 1]
    for g, fit in enumerate(fits):
        after.append(min(row[g + 1] + 1, row[g] + 1 - fit, after[g] + 1))
    return after


def soft_beam_with_edits(oracle: Any, gold: list[int], *, k: int, alpha: float, c: float, b: float) -> list[Any]:
    """Algorithm 3 with a row for each slot: costs and rows are mixed by back-pointers, then come the token weights."""
    first, start = oracle.start()
    num_tokens, num_steps = len(oracle.embeddings), len(gold) + (oracle.end is not None)

    def best(row: Sequence[float], done: int) -> float:
        short = [len(gold) - g - (num_steps - done) for g in range(len(gold) + 1)]
        return min(cell + (abs(s) if oracle.end is None else max(0, s)) for cell, s in zip(row, short, strict=True))

    slots: list[Any] = [(0.0, 0.0, 0.0, first, start, [float(g) for g in range(len(gold) + 1)])]
    for step in range(num_steps):
        table, states, costs = [], [], []
        for score, _, finished, fed, state, row in slots:
            logits, after = oracle.step(fed, state, step)
            added = oracles.added_scores(logits, log_partition_weight=c, finished=finished, end=oracle.end)
            own = []
            for w in range(num_tokens):
                after_row = row_after(row, [float(w == g) for g in gold])
                ends = w == oracle.end
                own.append(
                    (1 - finished) * (after_row[-1] - best(row, step))
                    if ends
                    else best(after_row, step + 1) - best(row, step)
                )
            table.append([score + added[w] + b * own[w] for w in range(num_tokens)])
            states.append(after)
            costs.append(own)
        grown = []
        for weights in oracles.soft_top_k(table, k, alpha):
            back = [sum(line) for line in weights]
            words = [sum(line[w] for line in weights) for w in range(num_tokens)]
            places = [(i, w) for i, w in itertools.product(range(len(table)), range(num_tokens)) if weights[i][w] > 0]
            cost = sum(back[i] * slots[i][1] for i in range(len(slots)))
            cost += sum(words[w] * sum(back[i] * costs[i][w] for i in range(len(slots))) for w in range(num_tokens))
            row = [sum(back[i] * slots[i][5][g] for i in range(len(slots))) for g in range(len(gold) + 1)]
            stays = sum(back[i] * slots[i][2] for i in range(len(slots)))
            after_row = row_after(row, [words[g] if g < num_tokens else 0.0 for g in gold])
            kept = [(1 - stays) * new + stays * old for new, old in zip(after_row, row, strict=True)]
            grown.append(
                (
                    sum(weights[i][w] * table[i][w] for i, w in places) if places else -math.inf,
                    cost,
                    0.0 if oracle.end is None else words[oracle.end],
                    sum((words[w] * oracle.embeddings[w] for w in range(num_tokens)), np.zeros_like(first)),
                    oracles.mixed(states, back),
                    kept,
                )
            )
        slots = grown
    return slots


@pytest.mark.thorough
@each_model
@each_score
def test_a_relaxed_beam_mixes_rows_and_costs(name: str, score: Any) -> None:
    c = score.log_partition_weight
    for seed, alpha in itertools.product(range(3), (0.3, 3.0)):
        case = CASES[name](seed)
        cost, gold_BT, num_steps_B = edit_cost(case)
        for used in (score, cost_augmented(score)):
            context = case.model.encode(case.batch)
            beam = beam_search(case.model, context, SoftTopK(3, alpha), num_steps=num_steps_B, score=used, cost=cost)
            for b, oracle in enumerate(case.oracles):
                gold = list(until_end([w for w in gold_BT[b].tolist() if w >= 0], oracle.end))
                slots = soft_beam_with_edits(oracle, gold, k=3, alpha=alpha, c=c, b=used.cost_weight)
                alive = [slot for slot in slots if slot[0] > -math.inf]
                live = beam.scores_BK[b] > -torch.inf
                assert beam.scores_BK[b][live].tolist() == pytest.approx([slot[0] for slot in alive], abs=1e-9)
                assert beam.costs_BK[b][live].tolist() == pytest.approx([slot[1] for slot in alive], abs=1e-9)


@each_model
def test_the_relaxed_cost_tends_to_the_edit_distance(name: str) -> None:
    for seed in range(3):
        case = CASES[name](seed)
        cost, _, num_steps_B = edit_cost(case)
        context = case.model.encode(case.batch)
        hard, soft = (
            beam_search(case.model, context, selector, num_steps=num_steps_B, score=local, cost=cost)
            for selector in (HardTopK(3), SoftTopK(3, 1e9))
        )
        torch.testing.assert_close(soft.costs_BK, hard.costs_BK, atol=1e-6, rtol=0)


@each_model
def test_a_gold_token_that_the_model_cannot_write_is_matched_by_none(name: str) -> None:
    """It is the first token of gold: a false match there would make room for later tokens to be left out."""
    for seed in range(3):
        case = CASES[name](seed)
        _, gold_BT, num_steps_B = edit_cost(case)
        first_B = gold_BT[:, 0]
        is_empty_B = torch.zeros_like(first_B).bool() if case.model.end is None else first_B == case.model.end
        gold_BT = torch.cat([first_B.where(is_empty_B, case.vocabulary_size)[:, None], gold_BT[:, 1:]], dim=1)
        cost = edit_distance_cost(gold_BT, vocab_size=case.vocabulary_size, end=case.model.end)
        beam = beam_search(
            case.model, case.model.encode(case.batch), SoftTopK(3, 0.7), num_steps=num_steps_B, score=local, cost=cost
        )
        for b, oracle in enumerate(case.oracles):
            gold = list(until_end([w for w in gold_BT[b].tolist() if w >= 0], oracle.end))
            slots = soft_beam_with_edits(oracle, gold, k=3, alpha=0.7, c=1.0, b=0.0)
            expected = [slot[1] for slot in slots if slot[0] > -math.inf]
            assert beam.costs_BK[b][beam.scores_BK[b] > -torch.inf].tolist() == pytest.approx(expected, abs=1e-9)


class SameForAllSlots:
    """A plain cost, spelt as one by slot."""

    def __init__(self, cost: Callable[[int], Tensor]) -> None:
        self.cost = cost

    def start(self, scores_B1: Tensor) -> Tensor:
        return scores_B1

    def step(self, state: Tensor, step: int) -> Tensor:
        cost_BV = self.cost(step)
        return cost_BV[:, None].expand(-1, state.shape[1], -1)

    def advance(self, state: Tensor, selection: Any) -> Tensor:
        return selection.follow(state)


@each_model
@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 1.5)], ids=["hard", "soft"])
def test_a_cost_that_is_the_same_for_all_slots_may_be_given_either_way(name: str, selector: Any) -> None:
    case = CASES[name](2)
    gold_BT, num_steps_B = search_targets(case.batch, case.model.end)
    plain = hamming_cost(gold_BT, case.vocabulary_size, torch.rand(case.vocabulary_size))
    beams = [
        beam_search(
            case.model, case.model.encode(case.batch), selector, num_steps=num_steps_B, score=cost_augmented(local),
            cost=cost,
        )
        for cost in (plain, SameForAllSlots(plain))
    ]  # fmt: skip
    torch.testing.assert_close(beams[0].costs_BK, beams[1].costs_BK, atol=1e-6, rtol=0)
    torch.testing.assert_close(beams[0].scores_BK, beams[1].scores_BK, atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------------------- objectives

MAKERS = {
    "direct": relaxed_beam_objective,
    "direct-by-gaps": partial(relaxed_beam_objective, unit=mean_squared_gap),
    "hinge": hinge_objective,
    "hard-hinge": hard_beam_hinge_objective,
    "optimization": beam_search_optimization_objective,
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def with_edits(make: Callable[..., Objective], end: int | None) -> Objective:
    return make(k=3, score=global_, cost=partial(edit_distance_cost, end=end))


@each_model
@each_maker
def test_objectives_with_edit_costs_do_not_mix_rows(name: str, make: Callable[..., Objective]) -> None:
    case = CASES[name](1, lengths=(3, 1, 5, 2))
    objective = with_edits(make, case.model.end)

    def total(examples: Sequence[EncodedExample]) -> Tensor:
        batch = collate(examples)
        return objective(case.model, batch, {"alpha": 1.3}) * batch.target_lengths_B.sum()

    alone = sum(total([example]) for example in case.examples)
    torch.testing.assert_close(total(case.examples), alone, atol=1e-10, rtol=0)


@each_model
@each_maker
def test_gradients_with_edit_costs_are_those_of_finite_differences(name: str, make: Callable[..., Objective]) -> None:
    case = CASES[name](6)
    oracles.require_gradients(case, with_edits(make, case.model.end), rel=1e-4, abs=1e-6)


def test_a_search_by_gaps_does_not_see_the_scale_of_raw_scores() -> None:
    """A model whose scores are 20 times as large takes the same soft choices; with a plain alpha it does not."""
    gold_BT = torch.randint(0, 4, (30, 5))
    cost = edit_distance_cost(gold_BT, 4)
    model = ManyModels(30, num_tokens=4, end=None, seed=3)
    costs = {}
    for unit, scale in itertools.product((mean_squared_gap, None), (1.0, 20.0)):
        selector = SoftTopK(3, 2.0) if unit is None else SoftTopK(3, 2.0, unit)
        original, model.output_BHV = model.output_BHV, scale * model.output_BHV
        costs[unit, scale] = beam_search(model, None, selector, num_steps=5, score=global_, cost=cost).costs_BK
        model.output_BHV = original
    torch.testing.assert_close(costs[mean_squared_gap, 1.0], costs[mean_squared_gap, 20.0], atol=1e-8, rtol=0)
    assert (costs[None, 1.0] - costs[None, 20.0]).abs().max() > 0.1


def test_mixed_objectives_are_weighted_sums() -> None:
    """Value and gradient; what has weight 0 is not computed."""
    case = translation_case(4)
    parts = [beam_crf_objective(k=3, score="global"), relaxed_beam_objective(k=3)]

    def never(model: Any, batch: Any, values: Any) -> Tensor:
        raise AssertionError("computed")

    parameters, values = list(case.model.parameters()), {"alpha": 1.3}
    mixed = mixed_objective([*parts, never], [2.0, 0.5, 0.0])(case.model, case.batch, values)
    losses = [part(case.model, case.batch, values) for part in parts]
    assert float(mixed) == pytest.approx(2.0 * float(losses[0]) + 0.5 * float(losses[1]), abs=1e-12)
    gradients = [torch.autograd.grad(loss, parameters, materialize_grads=True) for loss in (mixed, *losses)]
    for found, first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(found, 2.0 * first + 0.5 * second, atol=1e-12, rtol=0)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.5], [0.0, 0.0], [1.0, math.inf], [math.nan, 1.0]])
def test_bad_weights_of_a_mixture_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        mixed_objective([beam_crf_objective(k=3, score="global"), relaxed_beam_objective(k=3)], weights)


# ---------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"cost": "edit-distance", "objective": "beam-crf"},
        {"cost": "edit-distance", "objective": "cross-entropy"},
        {"direct_loss_weight": 0.5, "objective": "relaxed-beam"},
        {"direct_loss_weight": 0.5},
        {"cost": "edit-distance", "objective": "hinge", "wrong_label_costs": "O=2"},
        {"direct_loss_weight": -0.5, "objective": "beam-crf"},
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any]) -> None:
    (named, *_) = [name for name in ("cost", "direct_loss_weight") if name in settings]
    with pytest.raises(InputError, match=f"^{named}"):
        require_data(train_settings(train=Path("train.conll"), **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"cost": "edit-distance", "objective": "minimum-risk"},
        {"cost": "edit-distance", "objective": "beam-search-optimization"},
        {"alpha_unit": "gaps", "objective": "soft-dense-beam"},
        {"cost": "edit-distance", "alpha_unit": "gaps", "direct_loss_weight": 0.5, "objective": "beam-crf"},
        {"wrong_label_costs": "O=2", "direct_loss_weight": 0.5, "objective": "dense-beam"},
    ],
)
def test_a_setting_that_has_an_effect_is_accepted(settings: dict[str, Any]) -> None:
    require_data(train_settings(train=Path("train.conll"), **settings))
