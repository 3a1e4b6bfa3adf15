"""Losses that keep gold beside the beam: against searches written out in Python, by enumeration, at their limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from oracles import Case, HardHypothesis, levenshtein, log_sum_exp, tagger_case, translation_case, until_end
from parameters import quick
from seqwise import InputError
from seqwise.data import collate
from seqwise.objectives import (
    Objective,
    beam_crf_objective,
    cross_entropy_objective,
    hamming_cost,
    minimum_risk_objective,
    softmax_margin_objective,
)
from seqwise.objectives.beam_likelihood import (
    beam_crf_loss,
    dense_beam_loss,
    dense_beam_objective,
    negative_log_share,
    soft_dense_beam_objective,
)
from seqwise.objectives.objective import search_targets
from seqwise.objectives.rescoring import beam_outputs, output_scores
from seqwise.objectives.risk import edit_distances, expected_cost, hamming_distances
from seqwise.objectives.violations import (
    beam_search_optimization_loss,
    beam_search_optimization_objective,
    early_update_loss,
    early_update_objective,
    hard_beam_hinge_objective,
    perceptron_violation,
)
from seqwise.search import HardTopK, global_, interpolated, local
from seqwise.search.commits import as_commit_rule
from seqwise.search.gold import never_lost, out_of_beam, unroll_with_gold

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

CASES = {"tagger": tagger_case, "encoder-decoder": translation_case}
SCORES = {"local": local, "global": global_, "between": interpolated(0.5)}
each_model = pytest.mark.parametrize("name", CASES)
each_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
each_size = pytest.mark.parametrize("k", [1, 2, 3, 5])


def rows(case: Case) -> Iterator[tuple[Any, list[int]]]:
    """The oracle of each input, and its gold output continued as search_targets does."""
    for oracle, example in zip(case.oracles, case.examples, strict=True):
        yield oracle, [*example.target_ids, *([] if oracle.end is None else [oracle.end])]


def per_token(case: Case, of_row: Callable[[Any, list[int]], float]) -> float:
    """The sum over the inputs, by the number of gold tokens."""
    total = sum(of_row(oracle, gold) for oracle, gold in rows(case))
    return total / sum(len(example.target_ids) for example in case.examples)


def is_gold(hypothesis: HardHypothesis, gold: Sequence[int]) -> bool:
    return list(hypothesis.tokens) == list(gold[: len(hypothesis.tokens)])


def with_and_without_gold(
    grown: Sequence[HardHypothesis], gold: Sequence[int]
) -> tuple[HardHypothesis, list[HardHypothesis]]:
    """The gold prefix, of which there is exactly one, and its rivals, best first."""
    (kept,) = [hypothesis for hypothesis in grown if is_gold(hypothesis, gold)]
    return kept, [hypothesis for hypothesis in grown if not is_gold(hypothesis, gold)]


# ---------------------------------------------------------------------------------------- the losses, written out


def dense_by_loop(oracle: Any, gold: list[int], k: int, c: float) -> tuple[float, int]:
    """Sum over the steps of logsumexp(candidates) - gold; restart from gold when it is not among the k best."""
    beam, total, restarts = oracles.empty_beam(oracle), 0.0, 0
    for step in range(len(gold)):
        grown = oracles.extensions(oracle, beam, step, log_partition_weight=c)
        kept, _ = with_and_without_gold(grown, gold)
        total += log_sum_exp([hypothesis.score for hypothesis in grown]) - kept.score
        beam = grown[:k]
        if not any(is_gold(hypothesis, gold) for hypothesis in beam):
            beam, restarts = [kept], restarts + 1
    return total, restarts


def restored_dense_by_loop(oracle: Any, gold: list[int], k: int, c: float) -> float:
    """The same when gold is put back in place of the worst."""
    beam, total = oracles.empty_beam(oracle), 0.0
    for step in range(len(gold)):
        grown = oracles.extensions(oracle, beam, step, log_partition_weight=c)
        kept, others = with_and_without_gold(grown, gold)
        total += log_sum_exp([hypothesis.score for hypothesis in grown]) - kept.score
        beam = [kept, *others[: k - 1]]
    return total


def early_update_by_loop(oracle: Any, gold: list[int], k: int, c: float, likelihood: bool) -> tuple[float, int]:
    """Search until gold is lost; loss of that beam with gold, and the step."""
    beam = oracles.empty_beam(oracle)
    for step in range(len(gold)):
        grown = oracles.extensions(oracle, beam, step, log_partition_weight=c)
        kept, _ = with_and_without_gold(grown, gold)
        beam = grown[:k]
        if step == len(gold) - 1 or not any(is_gold(hypothesis, gold) for hypothesis in beam):
            scores = [hypothesis.score for hypothesis in beam if not is_gold(hypothesis, gold)] + [kept.score]
            return (log_sum_exp(scores) if likelihood else max(scores)) - kept.score, step
    raise AssertionError("an empty gold output")


def optimization_by_loop(oracle: Any, gold: list[int], k: int, c: float, num_tokens: int) -> tuple[float, int]:
    """Hinge between gold and its k-th rival (the first at the end), times Hamming; restart after a violation."""
    beam, total, violations = oracles.empty_beam(oracle), 0.0, 0
    cost = oracles.hamming(gold, num_tokens)
    for step in range(len(gold)):
        grown = oracles.extensions(oracle, beam, step, log_partition_weight=c, cost=cost)
        kept, others = with_and_without_gold(grown, gold)
        rank = 1 if step == len(gold) - 1 else k
        beam = [kept, *others[:k]]
        if len(others) >= rank and 1 + others[rank - 1].score > kept.score:
            wrong = sum(a != b for a, b in zip(others[rank - 1].tokens, gold, strict=False))
            total += wrong * (1 + others[rank - 1].score - kept.score)
            beam, violations = [kept], violations + 1
    return total, violations


def soft_dense_by_loop(oracle: Any, gold: list[int], k: int, alpha: float, c: float) -> float:
    """Mixtures beside a hard gold slot: gold's cell of the table is taken out before Algorithm 2 chooses the rivals."""
    first, start = oracle.start()
    slots = [(0.0, 0.0, first, start)]  # score, finished mass, fed, state; gold first
    num_tokens, total = len(oracle.embeddings), 0.0
    for step, token in enumerate(gold):
        table, states = [], []
        for score, finished, fed, state in slots:
            logits, after = oracle.step(fed, state, step)
            added = oracles.added_scores(logits, log_partition_weight=c, finished=finished, end=oracle.end)
            table.append([score + value for value in added])
            states.append(after)
        reached = table[0][token]
        total += log_sum_exp([value for row in table for value in row]) - reached
        table[0][token] = -math.inf
        slots = [(reached, float(token == oracle.end), oracle.embeddings[token], states[0])]
        count = min(k - 1, len(table) * num_tokens)
        for weights in oracles.soft_top_k(table, count, alpha) if count else []:
            if not any(any(row) for row in weights):
                slots.append((-math.inf, 0.0, np.zeros_like(first), states[0]))
                continue
            places = [(i, w) for i in range(len(table)) for w in range(num_tokens) if weights[i][w] > 0]
            words = [sum(row[w] for row in weights) for w in range(num_tokens)]
            score = sum(weights[i][w] * table[i][w] for i, w in places)
            fed = sum(words[w] * oracle.embeddings[w] for w in range(num_tokens))
            mixed = oracles.mixed(states, [sum(row) for row in weights])
            slots.append((score, 0.0 if oracle.end is None else words[oracle.end], fed, mixed))
    return total


def beam_crf_by_loop(oracle: Any, gold: list[int], k: int, c: float) -> tuple[float, bool]:
    """Beam, gold added if absent, logsumexp of scores minus gold's."""
    found = oracles.hard_beam(oracle, k=k, num_steps=len(gold), log_partition_weight=c)
    scores = {hypothesis.tokens: hypothesis.score for hypothesis in found}
    present = tuple(gold) in scores
    reference = oracles.gold_score(oracle, gold if oracle.end is None else gold[:-1], log_partition_weight=c)
    scores[tuple(gold)] = reference
    return log_sum_exp(list(scores.values())) - reference, present


def committed_dense_by_loop(oracle: Any, gold: list[int], k: int, c: float, delay: int) -> tuple[float, int]:
    """The dense loss when the best slot's label so many steps back is final; restart from gold where it is not gold's.

    Returns the loss and the number of wrong commits.
    """
    beam, total, wrong = oracles.empty_beam(oracle), 0.0, 0
    for step in range(len(gold)):
        grown = oracles.extensions(oracle, beam, step, log_partition_weight=c)
        kept, _ = with_and_without_gold(grown, gold)
        total += log_sum_exp([hypothesis.score for hypothesis in grown]) - kept.score
        beam = grown[:k]
        if not any(is_gold(hypothesis, gold) for hypothesis in beam):
            beam = [kept]
        final = beam[0].tokens[: max(step + 1 - delay, 0)]
        beam = [hypothesis for hypothesis in beam if hypothesis.tokens[: len(final)] == final]
        if list(final) != gold[: len(final)]:
            beam, wrong = [kept], wrong + 1
    return total, wrong


def committed_crf_by_loop(oracle: Any, gold: list[int], k: int, c: float, delay: int) -> tuple[float, bool]:
    """Search that drops what disagrees with a commit, and ends at a wrong one; loss of what is left, whether it did."""
    beam, wrong = oracles.empty_beam(oracle), False
    for step in range(len(gold)):
        beam = oracles.extensions(oracle, beam, step, log_partition_weight=c)[:k]
        final = beam[0].tokens[: max(step + 1 - delay, 0)]
        beam = [hypothesis for hypothesis in beam if hypothesis.tokens[: len(final)] == final]
        wrong = list(final) != gold[: len(final)]
        if wrong:
            break
    reference = oracles.gold_score(oracle, gold[: len(beam[0].tokens)], log_partition_weight=c)
    others = [hypothesis.score for hypothesis in beam if not is_gold(hypothesis, gold)]
    return log_sum_exp([*others, reference]) - reference, wrong


# ---------------------------------------------------------------------------------------- equal to the loops


@pytest.mark.thorough
@each_model
@each_score
@each_size
def test_dense_beam_loss_equals_the_loop(name: str, score: Any, k: int) -> None:
    restarts = 0
    for seed in range(4):
        case = CASES[name](seed)
        found = float(dense_beam_objective(k=k, score=score)(case.model, case.batch, {}))
        c = score.log_partition_weight
        assert found == pytest.approx(per_token(case, lambda o, g, c=c: dense_by_loop(o, g, k, c)[0]), abs=1e-10)
        restarts += sum(dense_by_loop(oracle, gold, k, c)[1] for oracle, gold in rows(case))
    assert restarts > 0 or k == 5


@pytest.mark.thorough
@each_model
@each_score
@pytest.mark.parametrize("likelihood", [False, True], ids=["perceptron", "likelihood"])
@each_size
def test_early_update_equals_the_loop(name: str, score: Any, likelihood: bool, k: int) -> None:
    violation = negative_log_share if likelihood else perceptron_violation
    c, stops = score.log_partition_weight, []
    for seed in range(4):
        case = CASES[name](seed)
        found = early_update_objective(k=k, score=score, violation=violation)(case.model, case.batch, {})
        wanted = per_token(case, lambda o, g: early_update_by_loop(o, g, k, c, likelihood)[0])
        assert float(found) == pytest.approx(wanted, abs=1e-10)
        stops += [early_update_by_loop(o, g, k, c, likelihood)[1] < len(g) - 1 for o, g in rows(case)]
    assert not all(stops)
    assert any(stops) or k == 5


@pytest.mark.thorough
@each_model
@each_score
@each_size
def test_beam_search_optimization_equals_the_loop(name: str, score: Any, k: int) -> None:
    c, violations = score.log_partition_weight, 0
    for seed in range(4):
        case = CASES[name](seed)
        found = float(beam_search_optimization_objective(k=k, score=score)(case.model, case.batch, {}))
        size = case.vocabulary_size
        wanted = per_token(case, lambda o, g, size=size: optimization_by_loop(o, g, k, c, size)[0])
        assert found == pytest.approx(wanted, abs=1e-10)
        violations += sum(optimization_by_loop(o, g, k, c, size)[1] for o, g in rows(case))
    assert violations > 0


@pytest.mark.thorough
@each_model
@each_score
@each_size
def test_soft_dense_beam_loss_equals_the_loop(name: str, score: Any, k: int) -> None:
    c = score.log_partition_weight
    for seed, alpha in itertools.product(range(2), (0.3, 2.0)):
        case = CASES[name](seed)
        found = float(soft_dense_beam_objective(k=k, score=score)(case.model, case.batch, {"alpha": alpha}))
        wanted = per_token(case, lambda o, g, alpha=alpha: soft_dense_by_loop(o, g, k, alpha, c))
        assert found == pytest.approx(wanted, abs=1e-10)


@pytest.mark.thorough
@each_model
@each_score
@each_size
def test_beam_crf_equals_the_loop(name: str, score: Any, k: int) -> None:
    c, present = score.log_partition_weight, []
    for seed in range(6):
        case = CASES[name](seed)
        found = float(beam_crf_objective(k=k, score=score)(case.model, case.batch, {}))
        wanted = per_token(case, lambda o, g: beam_crf_by_loop(o, g, k, c)[0])
        assert found == pytest.approx(wanted, abs=1e-10)
        present += [beam_crf_by_loop(o, g, k, c)[1] for o, g in rows(case)]
    assert False in present  # both ways: gold added to the beam, and found by it (by a beam of one, hardly ever)
    assert True in present or k == 1


@each_score
@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize(
    ("objective", "by_loop"),
    [(dense_beam_objective, committed_dense_by_loop), (beam_crf_objective, committed_crf_by_loop)],
    ids=["dense", "beam-crf"],
)
def test_a_loss_of_the_search_of_a_stream_equals_the_loop(
    objective: Callable[..., Objective], by_loop: Any, delay: int, k: int, score: Any
) -> None:
    """Both ways: gold in time for all labels, and not."""
    wrong: list[bool] = []
    for seed in range(6):
        case = tagger_case(seed, lengths=(6, 1, 4), target_size=2, bidirectional=False)
        loops = [by_loop(oracle, gold, k, score.log_partition_weight, delay) for oracle, gold in rows(case)]
        found = objective(k=k, score=score, commit_delay=delay)(case.model, case.batch, {})
        assert float(found) == pytest.approx(sum(loss for loss, _ in loops) / 11, abs=1e-10)
        wrong += [bool(count) for _, count in loops]
    # A dense beam of gold alone disagrees with none of its commits.
    assert {*wrong} == ({False, True} if k > 1 or objective is beam_crf_objective else {False})


def test_a_commit_of_everything_at_once_leaves_cross_entropy() -> None:
    """With a delay of 0, the dense beam is gold alone, whatever k and the scores."""
    case = tagger_case(0, lengths=(5, 1, 3), bidirectional=False)
    expected = cross_entropy_objective()(case.model, case.batch, {})
    for k, score in itertools.product((1, 4), SCORES.values()):
        found = dense_beam_objective(k=k, score=score, commit_delay=0)(case.model, case.batch, {})
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("objective", [dense_beam_objective, beam_crf_objective])
def test_a_delay_as_long_as_the_input_has_no_effect(objective: Callable[..., Objective]) -> None:
    """Bit for bit, value and gradients; one step less has one."""
    differs = False
    for seed in range(6):
        case = tagger_case(seed, lengths=(5, 1, 3), bidirectional=False)
        parameters = list(case.model.parameters())
        losses = [objective(k=3, commit_delay=delay)(case.model, case.batch, {}) for delay in (None, 5, 9, 4)]
        gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
        for loss, gradient in zip(losses[1:3], gradients[1:3], strict=True):
            assert torch.equal(loss, losses[0])
            assert all(map(torch.equal, gradient, gradients[0]))
        differs |= not torch.equal(losses[3], losses[0])
    # What is dropped after the last step is no candidate of any.
    assert differs == (objective is beam_crf_objective)


@pytest.mark.thorough
@each_model
@each_score
@each_size
def test_hard_beam_hinge_equals_the_loop(name: str, score: Any, k: int) -> None:
    c = score.log_partition_weight
    for seed in range(4):
        case = CASES[name](seed)

        def hinge(oracle: Any, gold: list[int], size: int = case.vocabulary_size) -> float:
            options = {"k": k, "num_steps": len(gold), "cost": oracles.hamming(gold, size)}
            best = oracles.hard_beam(oracle, log_partition_weight=c, cost_weight=1.0, **options)[0].score
            real = gold if oracle.end is None else gold[:-1]
            return max(0.0, best - oracles.gold_score(oracle, real, log_partition_weight=c))

        found = float(hard_beam_hinge_objective(k=k, score=score)(case.model, case.batch, {}))
        assert found == pytest.approx(per_token(case, hinge), abs=1e-10)


@pytest.mark.thorough
@each_model
@each_score
@pytest.mark.parametrize("k", [2, 5])
def test_minimum_risk_equals_the_loop(name: str, score: Any, k: int) -> None:
    c = score.log_partition_weight
    for seed, alpha in itertools.product(range(3), (1.0, 0.3)):
        case = CASES[name](seed)

        def risk(oracle: Any, gold: list[int], edits: bool, alpha: float = alpha) -> float:
            found = oracles.hard_beam(oracle, k=k, num_steps=len(gold), log_partition_weight=c)
            costs = [
                levenshtein(until_end(hypothesis.tokens, oracle.end), until_end(gold, oracle.end))
                if edits
                else sum(a != b for a, b in zip(hypothesis.tokens, gold, strict=True))
                for hypothesis in found
            ]
            return oracles.direct_loss([hypothesis.score for hypothesis in found], costs, alpha)

        for cost, edits in ((hamming_distances, False), (edit_distances, True)):
            loss = minimum_risk_objective(k=k, score=score, cost=cost)(case.model, case.batch, {"alpha": alpha})
            wanted = per_token(case, lambda o, g, edits=edits: risk(o, g, edits))
            assert float(loss) == pytest.approx(wanted, abs=1e-10)


@each_model
@each_score
@pytest.mark.parametrize("k", [2, 5])
def test_softmax_margin_equals_the_loop(name: str, score: Any, k: int) -> None:
    c = score.log_partition_weight
    for seed in range(3):
        case = CASES[name](seed)

        def margin(oracle: Any, gold: list[int], edits: bool) -> float:
            right = until_end(gold, oracle.end)
            gold_score = oracles.gold_score(oracle, right, log_partition_weight=c)
            augmented = [gold_score]
            for hypothesis in oracles.hard_beam(oracle, k=k, num_steps=len(gold), log_partition_weight=c):
                output = until_end(hypothesis.tokens, oracle.end)
                if output != right:
                    wrong = sum(a != b for a, b in zip(hypothesis.tokens, gold, strict=True))
                    augmented.append(hypothesis.score + (levenshtein(output, right) if edits else wrong))
            return math.log(sum(math.exp(each - gold_score) for each in augmented))

        for cost, edits in ((hamming_distances, False), (edit_distances, True)):
            loss = softmax_margin_objective(k=k, score=score, cost=cost)(case.model, case.batch, {})
            expected = per_token(case, lambda o, g, edits=edits: margin(o, g, edits))
            assert float(loss) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("end", [None, 0])
def test_edit_distances_equal_the_definition(end: int | None) -> None:
    draw = np.random.default_rng(0)
    for _ in range(40):
        outputs = draw.integers(0, 3, (2, 3, draw.integers(1, 5)))
        gold = draw.integers(0, 3, (2, draw.integers(1, 5)))
        outputs[0, :, draw.integers(1, 5) :] = -1
        gold[1, draw.integers(1, 5) :] = -100
        found = edit_distances(torch.from_numpy(outputs), torch.from_numpy(gold), end)
        for b, r in itertools.product(range(2), range(3)):
            a = [token for token in outputs[b, r].tolist() if token >= 0]
            reference = [token for token in gold[b].tolist() if token >= 0]
            assert found[b, r] == levenshtein(until_end(a, end), until_end(reference, end))


# ---------------------------------------------------------------------------------------- exact limits


@each_model
@each_score
def test_a_beam_of_everything_gives_the_exact_likelihood(name: str, score: Any) -> None:
    """K >= V^T: normalised over every output; with complete outputs, and with early update, which never comes early."""
    options: dict[str, Any] = {"target_size": 3} if name == "tagger" else {"target_size": 3, "lengths": (2, 3)}
    for seed in range(2):
        case = CASES[name](seed, **options)
        c = score.log_partition_weight

        def exact(oracle: Any, gold: list[int], c: float = c) -> float:
            every = [
                oracles.gold_score(oracle, tokens, log_partition_weight=c)
                for tokens in oracles.all_outputs(oracle, len(gold))
            ]
            real = gold if oracle.end is None else gold[:-1]
            return log_sum_exp(every) - oracles.gold_score(oracle, real, log_partition_weight=c)

        wanted = per_token(case, exact)
        for objective in (
            beam_crf_objective(k=200, score=score),
            early_update_objective(k=200, score=score, violation=negative_log_share),
        ):
            assert float(objective(case.model, case.batch, {})) == pytest.approx(wanted, abs=1e-9)


@each_model
@each_score
def test_a_dense_beam_of_everything_gives_the_exact_likelihood_of_every_prefix(name: str, score: Any) -> None:
    """Nothing is pruned: at step t, gold's prefix among all prefixes of t tokens, each ended output among them once.

    On local scores these sum to one, so that what is left is -log p of each gold prefix, and with an end token -log p
    of the whole output twice: at its end, and at the step by which it has to have ended.
    """
    options: dict[str, Any] = {"target_size": 3} if name == "tagger" else {"target_size": 3, "lengths": (2, 3)}
    for seed in range(2):
        case = CASES[name](seed, **options)
        c = score.log_partition_weight

        def prefix_score(oracle: Any, tokens: Sequence[int], c: float = c) -> float:
            """What follows the end adds nothing."""
            return oracles.gold_score(oracle, until_end(tokens, oracle.end), log_partition_weight=c)

        def exact(oracle: Any, gold: list[int]) -> float:
            losses = []
            for t in range(1, len(gold) + 1):
                every = [prefix_score(oracle, tokens) for tokens in oracles.all_outputs(oracle, t)]
                losses.append(log_sum_exp(every) - prefix_score(oracle, gold[:t]))
            if score == local:
                real = [*range(1, len(until_end(gold, oracle.end)) + 1)]
                own = [-prefix_score(oracle, gold[:t]) for t in (real if oracle.end is None else [*real, real[-1]])]
                assert losses == pytest.approx(own, abs=1e-9)
            return sum(losses)

        wanted = per_token(case, exact)
        for objective, values, tolerance in (
            (dense_beam_objective(k=200, score=score), {}, 1e-9),
            (soft_dense_beam_objective(k=200, score=score), {"alpha": 1e14}, 1e-4),
        ):
            assert float(objective(case.model, case.batch, values)) == pytest.approx(wanted, abs=tolerance)


@each_score
def test_gold_may_leave_the_beam_after_its_end(score: Any) -> None:
    """A model that goes on and on: gold has ended, and what has not ended outscores it at the step that is left."""
    late = 0
    for seed, k in itertools.product(range(4), (1, 2, 3)):
        case = translation_case(seed, lengths=(3, 2, 4))
        with torch.no_grad():
            for oracle in case.oracles:
                oracle.bias = oracle.bias + 2.0 * (np.arange(4) != oracle.end)
            case.model.head.bias += 2.0 * (torch.arange(4) != case.model.end)
        c = score.log_partition_weight
        wanted = per_token(case, lambda o, g, k=k, c=c: dense_by_loop(o, g, k, c)[0])
        found = dense_beam_objective(k=k, score=score)(case.model, case.batch, {})
        assert float(found) == pytest.approx(wanted, abs=1e-10)
        wanted = per_token(case, lambda o, g, k=k, c=c: beam_crf_by_loop(o, g, k, c)[0])
        found = beam_crf_objective(k=k, score=score)(case.model, case.batch, {})
        assert float(found) == pytest.approx(wanted, abs=1e-10)
        for oracle, gold in rows(case):
            without_last = dense_by_loop(oracle, gold[:-1], k, c)[1]
            late += dense_by_loop(oracle, gold, k, c)[1] - without_last
    assert late > 0


@each_model
def test_gold_alone_on_local_scores_is_cross_entropy(name: str) -> None:
    """Dense loss at k = 1, value and gradient."""
    for seed in range(3):
        case = CASES[name](seed)
        parameters = list(case.model.parameters())
        expected = cross_entropy_objective()(case.model, case.batch, {})
        wanted = torch.autograd.grad(expected, parameters)
        for objective in (dense_beam_objective(k=1, score=local), soft_dense_beam_objective(k=1, score=local)):
            loss = objective(case.model, case.batch, {"alpha": 1.0})
            torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
            for found, other in zip(torch.autograd.grad(loss, parameters), wanted, strict=True):
                torch.testing.assert_close(found, other, atol=1e-12, rtol=0)


@each_model
@each_score
def test_the_soft_dense_loss_tends_to_the_hard_one(name: str, score: Any) -> None:
    """Gold replaces the worst slot, which is another loss than restarting from gold."""
    gaps = []
    for seed in range(3):
        case = CASES[name](seed)
        found = float(soft_dense_beam_objective(k=3, score=score)(case.model, case.batch, {"alpha": 1e9}))
        c = score.log_partition_weight
        wanted = per_token(case, lambda o, g, c=c: restored_dense_by_loop(o, g, 3, c))
        assert found == pytest.approx(wanted, abs=1e-6)
        gold_BT, num_steps_B = search_targets(case.batch, case.model.end)
        hard_B = dense_beam_loss(
            case.model, case.model.encode(case.batch), gold_BT, num_steps_B=num_steps_B, rivals=HardTopK(2),
            lost=never_lost, score=score,
        )  # fmt: skip
        assert float(hard_B.sum() / case.batch.target_lengths_B.sum()) == pytest.approx(wanted, abs=1e-10)
        gaps.append(abs(wanted - per_token(case, lambda o, g, c=c: dense_by_loop(o, g, 3, c)[0])))
    assert max(gaps) > 1e-3


# ---------------------------------------------------------------------------------------- gold falls off on purpose


def worst_gold(seed: int, length: int = 4) -> Case:
    """A tagger whose gold token is the least likely at every step: no beam of 3 of 4 labels keeps it."""
    case = tagger_case(seed, lengths=(length,))
    (oracle,) = case.oracles
    gold: list[int] = []
    for _ in range(length):
        logits = oracles.forced_logits(oracle, [*gold, 0])[-1]
        gold.append(int(np.argmin(logits)))
    (example,) = case.examples
    examples = [type(example)(example.source_ids, tuple(gold))]
    return Case(case.model, examples, collate(examples), case.oracles)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_beam_that_loses_gold_at_every_step_is_gold_alone(k: int) -> None:
    """Restarting at every step leaves one slot: the dense loss is cross-entropy whatever k, and the slots show it."""
    case = worst_gold(0)
    expected = cross_entropy_objective()(case.model, case.batch, {})
    torch.testing.assert_close(dense_beam_objective(k=k, score=local)(case.model, case.batch, {}), expected)
    context = case.model.encode(case.batch)
    steps = unroll_with_gold(
        case.model, context, case.batch.targets_BT, num_steps_B=case.batch.target_lengths_B, rivals=HardTopK(3),
        lost=out_of_beam(k),
    )  # fmt: skip
    tokens = []
    for step in steps:
        assert (step.beam.scores_BK[:, 1:] == -torch.inf).all()
        torch.testing.assert_close(step.beam.scores_BK[:, :1], step.gold_B1)
        tokens.append(int(step.beam.tokens[-1][0, 0]))
        assert (step.beam.parents[-1][:, 0] == 0).all()
    assert tuple(tokens) == case.examples[0].target_ids


def test_early_update_stops_at_the_first_loss() -> None:
    """Gold lost at once: the loss is that of the first step, and nothing later has a gradient."""
    case = worst_gold(1)
    context = case.model.encode(case.batch)
    memory = context.memory_BSM.detach().requires_grad_()
    loss_B = early_update_loss(
        case.model, context._replace(memory_BSM=memory), case.batch.targets_BT,
        num_steps_B=case.batch.target_lengths_B, k=3, score="global",
    )  # fmt: skip
    logits = oracles.forced_logits(case.oracles[0], [0])[0]
    assert float(loss_B) == pytest.approx(max(logits) - min(logits))
    (gradient,) = torch.autograd.grad(loss_B.sum(), memory)
    assert gradient[:, 0].abs().sum() > 0
    assert (gradient[:, 1:] == 0).all()


def test_optimisation_restarts_after_each_violation() -> None:
    """Gold always last: at each step the k-th best of the three others, one token wrong, from gold alone."""
    case = worst_gold(2)
    wanted, forced = 0.0, oracles.forced_logits(case.oracles[0], case.examples[0].target_ids)
    for step, logits in enumerate(forced):
        ordered = sorted(logits, reverse=True)
        wanted += 1 + ordered[0 if step == len(forced) - 1 else 1] - ordered[-1]
    found = beam_search_optimization_objective(k=2, score="global")(case.model, case.batch, {})
    assert float(found) * len(forced) == pytest.approx(wanted)


def test_gold_wins_ties_and_the_margin_moves_the_line() -> None:
    gold_B1 = torch.tensor([[1.0], [1.0], [1.0]])
    others_BN = torch.tensor([[1.0, 1.0], [1.5, 0.0], [2.0, 1.5]])
    assert out_of_beam(1)(gold_B1, others_BN).tolist() == [False, True, True]
    assert out_of_beam(2)(gold_B1, others_BN).tolist() == [False, False, True]
    assert out_of_beam(2, margin=0.5)(gold_B1, others_BN).tolist() == [True, False, True]
    assert out_of_beam(2, margin=1.5)(gold_B1, others_BN).tolist() == [True, True, True]
    assert never_lost(gold_B1, others_BN).tolist() == [False] * 3


def test_losses_are_zero_once_gold_leads_by_enough() -> None:
    """A model that is certain of gold: no perceptron, hinge or margin loss, and likelihoods near 0."""
    case = tagger_case(3, lengths=(3,), target_size=4)
    with torch.no_grad():
        case.model.head.weight.zero_()
        case.model.head.bias.copy_(torch.tensor([30.0, 0.0, 0.0, 0.0]))
    examples = [type(case.examples[0])(case.examples[0].source_ids, (0, 0, 0))]
    batch = collate(examples)
    for make in (early_update_objective, beam_search_optimization_objective, hard_beam_hinge_objective):
        assert float(make(k=2)(case.model, batch, {})) == 0.0
    for make in (beam_crf_objective, dense_beam_objective):
        assert 0 <= float(make(k=2)(case.model, batch, {})) < 1e-9
    assert 0 <= float(soft_dense_beam_objective(k=2, score="global")(case.model, batch, {"alpha": 1.0})) < 1e-9


# ---------------------------------------------------------------------------------------- rows, gradients, refusals

OBJECTIVES: dict[str, Objective] = {
    "beam-crf": beam_crf_objective(k=3, score="global"),
    "beam-crf-local": beam_crf_objective(k=3, score=local, cross_entropy_weight=0.2),
    "dense": dense_beam_objective(k=3, cross_entropy_weight=0.2, score="global"),
    "soft-dense": soft_dense_beam_objective(k=3, score="global"),
    "early-update": early_update_objective(k=2, score="global"),
    "early-update-likelihood": early_update_objective(k=2, violation=negative_log_share, score="global"),
    "optimization": beam_search_optimization_objective(k=2, score="global"),
    "hard-hinge": hard_beam_hinge_objective(k=3),
    "risk": minimum_risk_objective(k=3),
    "risk-edits": minimum_risk_objective(k=3, cost=edit_distances),
    "softmax-margin": softmax_margin_objective(k=3, cross_entropy_weight=0.2, score="global"),
}
COMMITTED: dict[str, Objective] = {
    "beam-crf": beam_crf_objective(k=3, commit_delay=1, score="global"),
    "dense": dense_beam_objective(k=3, commit_delay=1, score="global"),
}
each_objective = pytest.mark.parametrize(
    ("name", "objective"),
    [
        *(pytest.param(name, of, id=f"{name}-{kind}") for name in CASES for kind, of in OBJECTIVES.items()),
        *(pytest.param("tagger", of, id=f"tagger-{kind}-committed") for kind, of in COMMITTED.items()),
    ],
)


@pytest.mark.thorough
@each_objective
def test_no_row_depends_on_the_others(name: str, objective: Objective) -> None:
    """Over a ragged batch, loss times tokens is the sum over the inputs, each alone; gradients likewise."""
    lengths = (3, 1, 5, 2)
    for seed in range(2):
        case = CASES[name](seed, lengths=lengths)
        parameters = list(case.model.parameters())

        def total(examples: Sequence[Any], case: Case = case) -> tuple[Tensor, list[Tensor]]:
            batch = collate(examples)
            loss = objective(case.model, batch, {"alpha": 1.3}) * batch.target_lengths_B.sum()
            gradients = torch.autograd.grad(loss, list(case.model.parameters()), materialize_grads=True)
            return loss, list(gradients)

        together, together_gradients = total(case.examples)
        alone = [total([example]) for example in case.examples]
        torch.testing.assert_close(together, sum(loss for loss, _ in alone), atol=1e-10, rtol=0)
        for place in range(len(parameters)):
            summed = sum(gradients[place] for _, gradients in alone)
            torch.testing.assert_close(together_gradients[place], summed, atol=1e-10, rtol=0)


@each_objective
def test_gradients_are_those_of_finite_differences(name: str, objective: Objective) -> None:
    case = CASES[name](6)
    oracles.require_gradients(case, objective, rel=1e-5, abs=1e-7)


def test_gradcheck_of_the_losses_of_scores() -> None:
    gold_B1 = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    others_BN = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    live_BN = torch.rand(3, 5) > 0.2
    costs_BN = torch.rand(3, 5, dtype=torch.float64)
    for loss in (negative_log_share, perceptron_violation):
        assert torch.autograd.gradcheck(loss, (gold_B1, others_BN))
    assert torch.autograd.gradcheck(lambda s: expected_cost(s, costs_BN, live_BN, 1.5), (others_BN,))


@pytest.mark.parametrize("name", quick(CASES, "tagger"))
def test_gradcheck_of_the_beam_losses(name: str) -> None:
    """With respect to the head and the label embeddings, through the whole search."""
    case = CASES[name](7)
    context = [leaf.detach() for leaf in case.model.encode(case.batch)]
    context = type(case.model.encode(case.batch))(*context)
    gold_BT, num_steps_B = search_targets(case.batch, case.model.end)
    outputs_BKT, live_BK = beam_outputs(case.model, context, k=3, num_steps_B=num_steps_B, score=global_)
    options = {"num_steps_B": num_steps_B, "k": 2}
    cost = hamming_cost(gold_BT, case.vocabulary_size)
    losses: list[Callable[[], Tensor]] = [
        lambda: beam_crf_loss(case.model, context, gold_BT, outputs_BKT, live_BK, global_),
        *(
            lambda commit=commit: dense_beam_loss(  # type: ignore[misc]
                case.model,
                context,
                gold_BT,
                num_steps_B=num_steps_B,
                rivals=HardTopK(2),
                lost=out_of_beam(3),
                commit=commit,
                score="global",
            )
            for commit in (None, as_commit_rule("delay(0)"), as_commit_rule("delay(1)"))
        ),
        lambda: early_update_loss(case.model, context, gold_BT, **options),
        lambda: beam_search_optimization_loss(case.model, context, gold_BT, cost=cost, **options),
    ]
    for loss in losses:
        # gradcheck moves the parameters in place, so the closures see them.
        assert torch.autograd.gradcheck(
            lambda *_, loss=loss: loss(), (case.model.head.bias, case.model.embedding_VD), check_batched_grad=False
        )


@each_model
def test_output_scores_are_those_of_the_outputs(name: str) -> None:
    """Also for outputs that end early, whose tail counts for nothing, and that never end."""
    case = CASES[name](4)
    context = case.model.encode(case.batch)
    _, num_steps_B = search_targets(case.batch, case.model.end)
    outputs_BKT, live_BK = beam_outputs(case.model, context, k=6, num_steps_B=num_steps_B, score=local)
    scores_BK = output_scores(case.model, context, outputs_BKT, local)
    endings = set()
    for b, (oracle, gold) in enumerate(rows(case)):
        expected = oracles.hard_beam(oracle, k=6, num_steps=len(gold))
        assert int(live_BK[b].sum()) == len(expected)
        for r, hypothesis in enumerate(expected):
            assert tuple(outputs_BKT[b, r, : len(gold)].tolist()) == hypothesis.tokens
            assert (outputs_BKT[b, r, len(gold) :] < 0).all()
            assert float(scores_BK[b, r]) == pytest.approx(hypothesis.score, abs=1e-10)
            endings.add(hypothesis.finished)
    assert endings == ({False} if case.model.end is None else {False, True})


@pytest.mark.parametrize(
    "make",
    [
        beam_crf_objective,
        dense_beam_objective,
        soft_dense_beam_objective,
        early_update_objective,
        beam_search_optimization_objective,
        hard_beam_hinge_objective,
        minimum_risk_objective,
    ],
)
def test_a_beam_of_nothing_is_refused_when_the_objective_is_made(make: Callable[..., Objective]) -> None:
    for k in (0, -3):
        with pytest.raises(InputError, match=f"beam size k must be at least 1, got {k}"):
            make(k=k)


@pytest.mark.parametrize("make", [dense_beam_objective, beam_crf_objective])
def test_invalid_commit_delays_are_refused(make: Callable[..., Objective]) -> None:
    with pytest.raises(InputError, match="delay of a commit must be a whole number, 0 or more, got -1"):
        make(k=2, commit_delay=-1)
    case = translation_case(0)
    with pytest.raises(InputError, match="commit_delay: labels are committed only without an end token"):
        make(k=2, commit_delay=1)(case.model, case.batch, {})


def test_a_bad_margin_is_refused() -> None:
    for margin in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="margin"):
            beam_search_optimization_objective(k=2, margin=margin, score="global")


def test_gold_cannot_be_kept_beside_a_strange_selection() -> None:
    case = tagger_case(0)

    class Strange:
        scores_BK = torch.zeros(3, 1)
        parents_BK = tokens_BK = torch.zeros(3, 1, dtype=torch.long)

    rivals: Any = lambda candidates, carry, generator: (Strange(), carry)  # noqa: E731
    steps = unroll_with_gold(
        case.model, case.model.encode(case.batch), case.batch.targets_BT, num_steps_B=case.batch.target_lengths_B,
        rivals=rivals, lost=never_lost,
    )  # fmt: skip
    with pytest.raises(InputError, match="Strange"):
        next(iter(steps))


@pytest.mark.parametrize("context", ["a shared table", "an object"])
def test_sources_without_a_row_for_each_input_are_refused_where_rows_are_repeated(context: str) -> None:
    case = tagger_case(0)
    encode = case.model.encode
    extra = {"a shared table": torch.zeros(7, 3), "an object": object()}[context]
    case.model.encode = lambda batch: (encode(batch), extra, 3, None, "x")  # type: ignore[method-assign]
    unpacked = case.model.teacher_forced
    case.model.start = lambda context, start=case.model.start: start(context[0])  # type: ignore[method-assign]
    case.model.step = lambda x, s, context, t, step=case.model.step: step(x, s, context[0], t)  # type: ignore
    case.model.teacher_forced = lambda context, gold: unpacked(context[0], gold)  # type: ignore[method-assign]
    assert bool(dense_beam_objective(k=2)(case.model, case.batch, {}) > 0)
    what = "a tensor of shape \\[7, 3\\]" if context == "a shared table" else "an object of type object"
    for objective in (beam_crf_objective(k=2), minimum_risk_objective(k=2), softmax_margin_objective(k=2)):
        with pytest.raises(InputError, match=f"the encoded sources hold {what}, which has no row for each of the"):
            objective(case.model, case.batch, {})
