"""The one loop: hard and relaxed beams against loops and enumeration, gradients, limits, the batch left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import oracles
from oracles import Case, ManyModels, tagger_case, translation_case
from seqwise import InputError
from seqwise.data import EncodedExample, collate
from seqwise.models import EncoderDecoder, Tagger
from seqwise.objectives import direct_loss, gold_scores, hamming_cost, hinge_loss
from seqwise.objectives.objective import search_targets
from seqwise.search import (
    Beam,
    Candidates,
    HardSelection,
    HardTopK,
    Score,
    SoftArgmax,
    SoftTopK,
    backtrace,
    beam_search,
    cost_augmented,
    global_,
    interpolated,
    local,
    peaked_softmax,
    unroll,
)
from seqwise.search.beam import HELD

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
SCORES = {"local": local, "global": global_, "interpolated": interpolated(0.3)}


def a_case(name: str, seed: int) -> Case:
    return tagger_case(seed, bidirectional=seed % 2 == 0) if name == "tagger" else translation_case(seed)


def gold_and_steps(case: Case) -> tuple[Tensor, Tensor]:
    return search_targets(case.batch, case.model.end)


def live(values: Tensor) -> list[float]:
    return [value for value in values.tolist() if value != -math.inf]


# ---------------------------------------------------------------------------------------- against loops


@pytest.mark.thorough
@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
def test_the_relaxed_beam_equals_algorithm_3(model_name: str, score_name: str) -> None:
    """Scores, costs, finished mass, fed embeddings, history, and both losses, on ragged batches."""
    score, draw, num_slots, num_clear = SCORES[score_name], np.random.default_rng(0), 0, 0
    for seed in range(6):
        case = a_case(model_name, seed)
        k, alpha = int(draw.integers(1, 6)), float(10 ** draw.uniform(-0.7, 1.3))
        gold_BT, num_steps_B = gold_and_steps(case)
        label_weights = draw.uniform(0.5, 2.0, case.vocabulary_size)
        cost = hamming_cost(gold_BT, case.vocabulary_size, torch.from_numpy(label_weights))
        for used in (score, cost_augmented(score)):
            context = case.model.encode(case.batch)
            selector = SoftTopK(k, alpha)
            beam = beam_search(case.model, context, selector, num_steps=num_steps_B, score=used, cost=cost)
            tokens_BKT = backtrace(beam)
            direct, hinge = [], []
            for b, oracle in enumerate(case.oracles):
                gold, steps = gold_BT[b].tolist(), int(num_steps_B[b])
                slots = oracles.soft_beam(
                    oracle,
                    k=k,
                    alpha=alpha,
                    num_steps=steps,
                    log_partition_weight=score.log_partition_weight,
                    cost_weight=used.cost_weight,
                    cost=oracles.hamming(gold, case.vocabulary_size, label_weights.tolist()),
                )
                alive = [slot for slot in slots if slot.score > -math.inf]
                assert live(beam.scores_BK[b]) == pytest.approx([slot.score for slot in alive], abs=1e-10, rel=1e-10)
                for r, slot in enumerate(alive):
                    assert float(beam.costs_BK[b, r]) == pytest.approx(slot.cost, abs=1e-10)
                    assert float(beam.finished_BK[b, r]) == pytest.approx(slot.finished, abs=1e-10)
                    # Mixing draws finished slots together, until their order is a matter of rounding.
                    num_slots, num_clear = num_slots + 1, num_clear + (slot.clearance > 1e-9)
                    if slot.clearance > 1e-9:
                        assert tuple(tokens_BKT[b, r, :steps].tolist()) == slot.tokens
                    assert (tokens_BKT[b, r, steps:] == HELD).all()
                    if steps == int(num_steps_B.max()):
                        np.testing.assert_allclose(oracles.numbers(beam.inputs_BKD[b, r]), slot.fed, atol=1e-10)
                        for found, expected in zip(beam.state, slot.state, strict=True):
                            np.testing.assert_allclose(oracles.numbers(found[b, r]), expected, atol=1e-10)
                scores = [slot.score for slot in slots]
                direct.append(oracles.direct_loss(scores, [slot.cost for slot in slots], alpha))
                written = case.examples[b].target_ids
                reference = oracles.gold_score(oracle, written, log_partition_weight=score.log_partition_weight)
                hinge.append(oracles.hinge_loss(scores, reference, alpha))
            assert float(direct_loss(beam, alpha)) == pytest.approx(np.mean(direct), abs=1e-10)
            logits_BTV = case.model.head(case.model.teacher_forced(context, case.batch.targets_BT))
            gold_B = gold_scores(logits_BTV, case.batch.targets_BT, score)
            assert float(hinge_loss(beam, gold_B, alpha)) == pytest.approx(np.mean(hinge), abs=1e-10)
    assert num_clear > 0.9 * num_slots


@pytest.mark.thorough
@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
def test_the_hard_beam_equals_algorithm_1(model_name: str, score_name: str) -> None:
    score, draw = SCORES[score_name], np.random.default_rng(1)
    for seed in range(10, 20):
        case = a_case(model_name, seed)
        k = int(draw.integers(1, 8))
        gold_BT, num_steps_B = gold_and_steps(case)
        cost = hamming_cost(gold_BT, case.vocabulary_size)
        for used in (score, cost_augmented(score)):
            beam = beam_search(
                case.model, case.model.encode(case.batch), HardTopK(k), num_steps=num_steps_B, score=used, cost=cost
            )
            tokens_BKT = backtrace(beam)
            for b, oracle in enumerate(case.oracles):
                steps = int(num_steps_B[b])
                kept = oracles.hard_beam(
                    oracle,
                    k=k,
                    num_steps=steps,
                    log_partition_weight=score.log_partition_weight,
                    cost_weight=used.cost_weight,
                    cost=oracles.hamming(gold_BT[b].tolist(), case.vocabulary_size),
                )
                assert live(beam.scores_BK[b]) == pytest.approx([h.score for h in kept], abs=1e-10)
                for r, hypothesis in enumerate(kept):
                    assert tuple(tokens_BKT[b, r, :steps].tolist()) == hypothesis.tokens
                    assert float(beam.costs_BK[b, r]) == pytest.approx(hypothesis.cost, abs=1e-10)
                    assert bool(beam.finished_BK[b, r]) == hypothesis.finished


def test_a_full_beam_is_exhaustive_search() -> None:
    """K = V^T on taggers: every output, in the order of its score."""
    for seed, score in itertools.product(range(5), (local, global_)):
        case = tagger_case(seed, target_size=3, lengths=(4, 2))
        beam = beam_search(
            case.model, case.model.encode(case.batch), HardTopK(81), num_steps=case.batch.target_lengths_B, score=score
        )
        tokens_BKT = backtrace(beam)
        for b, oracle in enumerate(case.oracles):
            steps = len(case.examples[b].target_ids)
            expected = {
                tokens: oracles.gold_score(oracle, tokens, log_partition_weight=score.log_partition_weight)
                for tokens in oracles.all_outputs(oracle, steps)
            }
            assert len(expected) == 3**steps
            num_live = len(live(beam.scores_BK[b]))
            found = [tuple(tokens[:steps]) for tokens in tokens_BKT[b, :num_live].tolist()]
            assert dict(zip(found, live(beam.scores_BK[b]), strict=True)) == pytest.approx(expected, abs=1e-10)
            assert found == sorted(expected, key=lambda tokens: -expected[tokens])
        if score is local:
            torch.testing.assert_close(beam.scores_BK.logsumexp(-1), torch.zeros(2).double(), **TOLERANCE)


def test_a_full_beam_with_an_end_token_is_exhaustive_search() -> None:
    """Every output that ends within four tokens, and every one that does not."""
    for seed in range(5):
        case = translation_case(seed, target_size=3, lengths=(3, 2))
        beam = beam_search(case.model, case.model.encode(case.batch), HardTopK(100), num_steps=4)
        tokens_BKT = backtrace(beam)
        for b, oracle in enumerate(case.oracles):
            expected = {tokens: oracles.gold_score(oracle, tokens) for tokens in oracles.all_outputs(oracle, 4)}
            found = {}
            for r, score in enumerate(live(beam.scores_BK[b])):
                tokens = tokens_BKT[b, r].tolist()
                if case.model.end in tokens:
                    cut = tokens.index(case.model.end) + 1
                    assert set(tokens[cut:]) <= {case.model.end}
                    tokens = tokens[:cut]
                found[tuple(tokens)] = score
            assert len(found) == len(live(beam.scores_BK[b])) == 1 + 2 + 4 + 8 + 16
            assert found == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(beam.scores_BK.logsumexp(-1), torch.zeros(2).double(), **TOLERANCE)


def test_the_beam_forced_along_gold_scores_what_teacher_forcing_does() -> None:
    for name, seed, score in itertools.product(("tagger", "encoder-decoder"), range(4), SCORES.values()):
        case = a_case(name, seed)
        gold_BT, num_steps_B = gold_and_steps(case)

        def gold(candidates: Candidates, carry: Any, generator: Any, gold_BT: Tensor = gold_BT) -> Any:
            tokens_B1 = gold_BT[:, candidates.step, None].clamp(min=0)
            scores_B1 = candidates.scores_BJV[:, 0].gather(1, tokens_B1)
            return HardSelection(scores_B1, torch.zeros_like(tokens_B1), tokens_B1), carry

        context = case.model.encode(case.batch)
        cost = hamming_cost(gold_BT, case.vocabulary_size)
        beam = beam_search(case.model, context, gold, num_steps=num_steps_B, score=score, cost=cost)
        logits_BTV = case.model.head(case.model.teacher_forced(context, case.batch.targets_BT))
        torch.testing.assert_close(
            beam.scores_BK[:, 0], gold_scores(logits_BTV, case.batch.targets_BT, score), **TOLERANCE
        )
        assert (beam.costs_BK == 0).all()


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["direct", "hinge"])
@pytest.mark.parametrize("score_name", ["local", "global"])
@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
@pytest.mark.parametrize(("alpha", "scale"), [(1.5, 0.8), (100.0, 0.25)])
def test_gradients_of_both_losses_are_those_of_finite_differences(
    model_name: str, score_name: str, kind: str, alpha: float, scale: float
) -> None:
    """At alpha = 100 small weights keep candidates close: nothing is one-hot."""
    make, score = tagger_case if model_name == "tagger" else translation_case, SCORES[score_name]
    case = make(3, target_size=3, lengths=(3, 1), scale=scale)

    def loss(model: Any, batch: Any, values: Any) -> Tensor:
        gold_BT, num_steps_B = search_targets(batch, model.end)
        context, cost = model.encode(batch), hamming_cost(gold_BT, case.vocabulary_size)
        used = score if kind == "direct" else cost_augmented(score)
        beam = beam_search(model, context, SoftTopK(3, alpha), num_steps=num_steps_B, score=used, cost=cost)
        if kind == "direct":
            return direct_loss(beam, alpha)
        logits_BTV = model.head(model.teacher_forced(context, batch.targets_BT))
        return hinge_loss(beam, gold_scores(logits_BTV, batch.targets_BT, score), alpha)

    oracles.require_gradients(case, loss, rel=1e-4, abs=1e-5)


class ScoreTable:
    """A step model whose scores are a leaf, (B, T, V) plus (B, T, V, V) by the token fed, and which feeds one-hots."""

    def __init__(self, first_BTV: Tensor, after_BTVV: Tensor, end: int | None) -> None:
        self.first_BTV, self.after_BTVV, self.end = first_BTV, after_BTVV, end
        self.embedding_VD = torch.eye(first_BTV.shape[-1], dtype=torch.float64)

    def start(self, context: Any) -> tuple[Tensor, Tensor]:
        zeros_B1V = torch.zeros(self.first_BTV.shape[0], 1, self.first_BTV.shape[-1], dtype=torch.float64)
        return zeros_B1V, zeros_B1V

    def step(self, inputs_BJD: Tensor, state: Tensor, context: Any, step: int) -> tuple[Tensor, Tensor]:
        state = 0.5 * state + inputs_BJD
        return self.first_BTV[:, step, None] + state @ self.after_BTVV[:, step], state

    def head(self, features: Tensor) -> Tensor:
        return features


@pytest.mark.thorough
@pytest.mark.parametrize("end", [None, 1])
@pytest.mark.parametrize("kind", ["direct", "hinge"])
def test_gradcheck_of_every_single_score(kind: str, end: int | None) -> None:
    """Entry by entry, at alpha = 100 and scores a tenth apart, where detached maxima would be plainly wrong."""
    generator = torch.Generator().manual_seed(4)
    first = (0.1 * torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    after = (0.1 * torch.randn(2, 3, 3, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    gold_BT = torch.tensor([[0, 2, 1], [2, 1, 1]])
    cost = hamming_cost(gold_BT, 3)

    def of(first_BTV: Tensor, after_BTVV: Tensor) -> Tensor:
        model = ScoreTable(first_BTV, after_BTVV, end)
        score = local if kind == "direct" else cost_augmented(global_)
        # A cost of a tenth: the candidates stay as close as the scores made them.
        beam = beam_search(
            model, None, SoftTopK(3, 100.0), num_steps=3, score=score, cost=lambda step: 0.1 * cost(step).double()
        )
        return direct_loss(beam, 10.0) if kind == "direct" else hinge_loss(beam, torch.full((2,), -1.0).double(), 10.0)

    gradients = torch.autograd.grad(of(first, after), (first, after))
    assert min(float(gradient.abs().max()) for gradient in gradients) > 1e-3
    assert torch.autograd.gradcheck(of, (first, after), eps=1e-7, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
def test_a_common_shift_of_all_candidates_changes_no_loss(model_name: str) -> None:
    """Sum over a step's candidates of dL/ds~: 0 for the direct loss, 1/B or 0 for the hinge (its gold score stays)."""
    for seed in range(5):
        case = a_case(model_name, seed)
        gold_BT, _ = gold_and_steps(case)
        steps = []
        # The same number of steps for all, so that no row waits; the taggers' padded positions do no harm here.
        for step in unroll(
            case.model,
            case.model.encode(case.batch),
            SoftTopK(3, 2.0),
            num_steps=3,
            score=global_,
            cost=hamming_cost(gold_BT, case.vocabulary_size),
            end=case.model.end,
        ):
            step.candidates.scores_BJV.retain_grad()
            steps.append(step)
        direct_loss(steps[-1].beam, 2.0).backward(retain_graph=True)
        for step in steps:
            gradient_BJV = step.candidates.scores_BJV.grad
            torch.testing.assert_close(gradient_BJV.sum((1, 2)), torch.zeros(3).double(), **TOLERANCE)
            assert gradient_BJV.abs().max() > 1e-6
            step.candidates.scores_BJV.grad = None
        reference_B = torch.tensor([-1e3, 1e3, -1e3], dtype=torch.float64)  # a margin in the first and last row only
        hinge_loss(steps[-1].beam, reference_B, 2.0).backward()
        for step in steps:
            shift_B = step.candidates.scores_BJV.grad.sum((1, 2))
            torch.testing.assert_close(shift_B, torch.tensor([1 / 3, 0.0, 1 / 3]).double(), atol=1e-7, rtol=0)


# ---------------------------------------------------------------------------------------- limits


def gaps_of_hard_search(model: ManyModels, k: int, num_steps: int, score: Score) -> tuple[Beam, Tensor]:
    """The hard beam, and for each row the smallest gap between consecutive ones of the k + 1 best, over all steps."""
    smallest_B, beam = torch.full((model.count,), math.inf, dtype=torch.float64), None
    for step in unroll(model, None, HardTopK(k), num_steps=num_steps, score=score, end=model.end, cost=model.cost):
        flat_BN = step.candidates.scores_BJV.flatten(1)
        best = flat_BN.topk(min(k + 1, flat_BN.shape[1])).values
        gaps = (best[:, :-1] - best[:, 1:]).nan_to_num(nan=math.inf)  # two dead candidates are no tie
        smallest_B, beam = torch.minimum(smallest_B, gaps.amin(1)), step.beam
    return beam, smallest_B


@pytest.mark.parametrize("score_name", ["local", "global"])
@pytest.mark.parametrize("end", [None, 0])
def test_soft_search_tends_to_hard_search_on_a_thousand_models(end: int | None, score_name: str) -> None:
    """Where the k + 1 best candidates of every step lie at least 0.002 apart: more than nine models of ten."""
    model = ManyModels(1000, num_tokens=5, end=end, seed=11)
    gold_BT = torch.randint(5, (1000, 4))
    model.cost = hamming_cost(gold_BT, 5, torch.rand(5, dtype=torch.float64) + 0.5)
    score = SCORES[score_name]
    hard, gap_B = gaps_of_hard_search(model, 3, 4, score)
    clear = gap_B > 0.002
    assert clear.double().mean() > 0.9
    live_BK = (hard.scores_BK > -torch.inf) & clear[:, None]
    errors = []
    for alpha in (1e1, 1e3, 1e5, 1e8):
        soft = beam_search(model, None, SoftTopK(3, alpha), num_steps=4, score=score, cost=model.cost)
        pairs = [(soft.scores_BK, hard.scores_BK), (soft.costs_BK, hard.costs_BK)]
        errors.append([float((a - b)[live_BK].abs().mean()) for a, b in pairs])
    assert errors[0][0] > 1e-3
    for smaller, larger in zip(errors[1:], errors[:-1], strict=True):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    assert torch.equal(soft.scores_BK[clear] == -torch.inf, hard.scores_BK[clear] == -torch.inf)
    torch.testing.assert_close(soft.scores_BK[live_BK], hard.scores_BK[live_BK], atol=1e-9, rtol=0)
    torch.testing.assert_close(soft.costs_BK[live_BK], hard.costs_BK[live_BK], atol=1e-9, rtol=0)
    torch.testing.assert_close(soft.finished_BK[live_BK], hard.finished_BK[live_BK], atol=1e-9, rtol=0)
    assert torch.equal(backtrace(soft)[live_BK], backtrace(hard)[live_BK])
    if end is not None:
        assert 0.1 < float(hard.finished_BK[live_BK].mean()) < 1


@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
def test_a_sharp_relaxed_beam_is_the_hard_beam_of_a_real_model(model_name: str) -> None:
    for seed in range(10):
        case = a_case(model_name, seed)
        _, num_steps_B = gold_and_steps(case)
        hard, soft = (
            beam_search(case.model, case.model.encode(case.batch), selector, num_steps=num_steps_B)
            for selector in (HardTopK(3), SoftTopK(3, 1e9))
        )
        alive = hard.scores_BK > -torch.inf
        torch.testing.assert_close(soft.scores_BK, hard.scores_BK, atol=1e-9, rtol=0)
        assert torch.equal(backtrace(soft)[alive], backtrace(hard)[alive])


@pytest.mark.thorough
def test_the_relaxed_loss_is_continuous_and_the_hard_one_is_not() -> None:
    """Along a line through parameter space, hypotheses ending or not on the way, for 200 models at once (figure 3.1).

    The steepest interval of each model is cut finer and finer: a slope disappears, a jump stays.
    """
    model = ManyModels(200, num_tokens=4, end=0, seed=5)
    middle, direction = model.output_BHV.clone(), torch.randn(200, 4, 4, dtype=torch.float64)
    cost = hamming_cost(torch.tensor([[1, 2, 0, 0]]).expand(200, -1), 4)

    def jumps(selector: Any) -> Tensor:
        low_B, width, rows_B = torch.full((200,), -0.2, dtype=torch.float64), 0.4, torch.arange(200)
        for _ in range(4):
            width, values = width / 50, []
            for piece in range(51):
                model.output_BHV = middle + (low_B + piece * width)[:, None, None] * direction
                beam = beam_search(model, None, selector, num_steps=4, cost=cost)
                values.append((peaked_softmax(beam.scores_BK, 5.0) * beam.costs_BK).sum(-1))
            steepest_B = torch.stack(values).diff(dim=0).abs().argmax(0)
            low_B = low_B + steepest_B * width
        return torch.stack(values).diff(dim=0).abs()[steepest_B, rows_B]

    assert jumps(SoftTopK(2, 2.0)).max() < 1e-3
    assert (jumps(HardTopK(2)) > 0.3).sum() >= 5


# ---------------------------------------------------------------------------------------- no NaN


class Constrained(ManyModels):
    """A head that forbids tokens: all of them from time to time where ``forbidden`` says so."""

    def __init__(self, forbidden: Callable[[Tensor], Tensor], end: int | None) -> None:
        super().__init__(6, num_tokens=4, end=end, seed=2)
        self.forbidden = forbidden
        self.embedding_VD.requires_grad_()
        self.output_BHV.requires_grad_()

    def head(self, features: Tensor) -> Tensor:
        logits = super().head(features)
        return logits.masked_fill(self.forbidden(logits), -torch.inf)


def only(*tokens: int) -> Callable[[Tensor], Tensor]:
    """Forbid these tokens."""
    return lambda logits: (torch.arange(logits.shape[-1])[:, None] == torch.tensor(tokens)).any(1).expand_as(logits)


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("alpha", [0.5, 1e4])
@pytest.mark.parametrize(
    ("forbidden", "end"),
    [
        pytest.param(only(2), None, id="one forbidden"),
        pytest.param(only(0, 1, 2), None, id="one allowed"),
        pytest.param(only(2), 1, id="one forbidden, with end"),
        pytest.param(only(1), 1, id="end forbidden"),
        pytest.param(only(0, 2, 3), 1, id="only end allowed"),
        pytest.param(lambda logits: logits > 0.5, None, id="high scores forbidden"),
        pytest.param(lambda logits: logits > 0.5, 1, id="high scores forbidden, with end"),
        pytest.param(lambda logits: (logits.detach()[..., :1] > 0).expand_as(logits), None, id="dead ends"),
        pytest.param(lambda logits: (logits.detach()[..., :1] > 0).expand_as(logits), 1, id="dead ends, with end"),
        pytest.param(only(0, 1, 2, 3), None, id="everything forbidden"),
    ],
)
def test_a_constrained_head_gives_no_nan(
    forbidden: Callable[[Tensor], Tensor], end: int | None, alpha: float, score_name: str
) -> None:
    """Values and gradients stay finite with dead slots, and no forbidden token carries any weight."""
    model = Constrained(forbidden, end)
    cost = hamming_cost(torch.randint(4, (6, 4)), 4)
    for selector in (SoftTopK(5, alpha), HardTopK(5)):
        last = None
        for last in unroll(
            model, None, selector, num_steps=4, score=cost_augmented(SCORES[score_name]), cost=cost, end=end
        ):
            scores_BJV = last.candidates.scores_BJV
            assert not scores_BJV.isnan().any()
        beam = last.beam
        assert not beam.scores_BK.isnan().any()
        assert torch.isfinite(beam.costs_BK).all()
        loss = direct_loss(beam, alpha) + hinge_loss(beam, torch.full((6,), -50.0).double(), alpha)
        assert torch.isfinite(loss)
        # With nothing alive there may be nothing to differentiate; what there is has to be finite.
        for gradient in torch.autograd.grad(
            loss + 0 * model.output_BHV.sum(), (model.embedding_VD, model.output_BHV), allow_unused=True
        ):
            assert gradient is None or torch.isfinite(gradient).all()


def test_fewer_candidates_than_slots() -> None:
    """V = 2 and k = 7: 2, 4, 7 slots; with an end token some of them stay dead."""
    for end in (None, 0):
        model = ManyModels(20, num_tokens=2, end=end, seed=1)
        sizes = []
        for step in unroll(model, None, SoftTopK(7, 1.0), num_steps=4, end=end):
            sizes.append(step.beam.scores_BK.shape[1])
        assert sizes == [2, 4, 7, 7]
        hard = beam_search(model, None, HardTopK(7), num_steps=4)
        alive = (hard.scores_BK > -torch.inf).sum(1)
        assert (alive == (7 if end is None else 5)).all()  # ended after 0, 1, 2, 3 tokens, or never


# ---------------------------------------------------------------------------------------- the batch


def alone(case: Case, b: int) -> Any:
    return collate([case.examples[b]])


def rebatched(case: Case, draw: np.random.Generator) -> tuple[Any, list[int]]:
    """The same examples in another order, with a longer stranger among them."""
    order = draw.permutation(len(case.examples)).tolist()
    stranger = EncodedExample((1, 2, 3, 4, 0, 1, 2), (0, 2, 0, 3, 0, 2, 1))
    examples = [case.examples[b] for b in order]
    place = int(draw.integers(0, len(examples) + 1))
    examples.insert(place, stranger)
    rows = [0] * len(order)
    for row, b in enumerate(order):
        rows[b] = row if row < place else row + 1
    return collate(examples), rows


@pytest.mark.thorough
@pytest.mark.parametrize("model_name", ["tagger", "encoder-decoder"])
def test_results_do_not_depend_on_the_batch(model_name: str) -> None:
    """Encoder outputs, hard and soft scores and costs, and the direct loss of each example, to 1e-10, 60 cases."""
    draw = np.random.default_rng(7)
    for seed in range(60):
        case = a_case(model_name, 100 + seed)
        model, score = case.model, list(SCORES.values())[seed % 3]
        other, rows = rebatched(case, draw)
        batches = [(case.batch, list(range(len(rows)))), (other, rows)]
        b = seed % len(rows)
        batches.append((alone(case, b), [0 if i == b else -1 for i in range(len(rows))]))
        for selector in (HardTopK(3), SoftTopK(3, 2.0)):
            results = []
            for batch, places in batches:
                context = model.encode(batch)
                gold_BT, num_steps_B = search_targets(batch, model.end)
                cost = hamming_cost(gold_BT, case.vocabulary_size)
                beam = beam_search(model, context, selector, num_steps=num_steps_B, score=score, cost=cost)
                by_example = {}
                for i, row in enumerate(places):
                    if row >= 0:
                        one = Beam(
                            beam.scores_BK[row, None], beam.costs_BK[row, None], beam.finished_BK, beam.scores_BK, 0
                        )
                        by_example[i] = (
                            context.memory_BSM[row, : len(case.examples[i].source_ids)],
                            beam.scores_BK[row][beam.scores_BK[row] > -torch.inf],
                            beam.costs_BK[row][beam.scores_BK[row] > -torch.inf],
                            direct_loss(one, 2.0),
                        )
                results.append(by_example)
            for by_example in results[1:]:
                for i, parts in by_example.items():
                    for found, expected in zip(parts, results[0][i], strict=True):
                        torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 2.0)], ids=["hard", "soft"])
def test_inputs_of_length_zero_and_one_wait_unchanged(selector: Any) -> None:
    model = ManyModels(4, num_tokens=4, end=None, seed=3)
    model.output_BHV.requires_grad_()
    num_steps_B = torch.tensor([0, 1, 3, 2])
    cost = hamming_cost(torch.full((4, 3), 2), 4)
    beam = beam_search(model, None, selector, num_steps=num_steps_B, cost=cost)
    assert beam.scores_BK[0].tolist() == [0.0, -math.inf, -math.inf]
    assert beam.costs_BK[0].tolist() == [0.0, 0.0, 0.0]
    assert (backtrace(beam)[0] == HELD).all()
    assert (backtrace(beam)[1, :, 1:] == HELD).all()
    for steps, row in ((1, 1), (2, 3), (3, 2)):
        whole = beam_search(model, None, selector, num_steps=steps, cost=cost)
        torch.testing.assert_close(beam.scores_BK[row], whole.scores_BK[row], **TOLERANCE)
        torch.testing.assert_close(beam.costs_BK[row], whole.costs_BK[row], **TOLERANCE)
        assert torch.equal(backtrace(beam)[row, :, :steps], backtrace(whole)[row])
    direct_loss(beam, 1.0).backward()
    assert torch.isfinite(model.output_BHV.grad).all()
    assert (model.output_BHV.grad[0] == 0).all()


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(2, 1.0)], ids=["hard", "soft"])
@pytest.mark.parametrize("num_steps", [0, torch.zeros(3, dtype=torch.long)], ids=["number", "tensor"])
def test_a_search_of_no_steps_is_the_empty_hypothesis(num_steps: int | Tensor, selector: Any) -> None:
    case = tagger_case(0)
    for dtype, score_dtype in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        model = case.model.to(dtype)
        beam = beam_search(model, model.encode(case.batch), selector, num_steps=num_steps)
        assert beam.scores_BK.tolist() == [[0.0]] * 3 and beam.scores_BK.dtype == score_dtype
        assert backtrace(beam).shape == (3, 1, 0) and backtrace(beam).dtype == torch.int64
        assert float(direct_loss(beam, 1.0)) == 0


# ---------------------------------------------------------------------------------------- the rest


@pytest.mark.thorough
def test_finished_hypotheses_never_change_score() -> None:
    """Once ended, an output keeps its score and its cost-free stay, however much longer the search goes on."""
    for seed in range(20):
        case = translation_case(seed)
        context, kept = case.model.encode(case.batch), {}
        for num_steps in range(1, 9):
            beam = beam_search(case.model, context, HardTopK(4), num_steps=num_steps)
            for b, outputs in enumerate(backtrace(beam).tolist()):
                for r, tokens in enumerate(outputs):
                    if beam.finished_BK[b, r] == 1 and beam.scores_BK[b, r] > -torch.inf:
                        key = b, tuple(tokens[: tokens.index(case.model.end) + 1])
                        score = float(beam.scores_BK[b, r])
                        assert kept.setdefault(key, score) == score
        assert kept


def test_half_precision_models_keep_their_scores_in_float32() -> None:
    case = tagger_case(0)
    model = case.model.bfloat16()
    for selector in (HardTopK(2), SoftTopK(2, 1.0), SoftArgmax(1.0)):
        beam = beam_search(
            model, model.encode(case.batch), selector, num_steps=2, cost=hamming_cost(torch.zeros(3, 2), 4)
        )
        assert beam.scores_BK.dtype == beam.costs_BK.dtype == torch.float32
        assert beam.inputs_BKD.dtype == beam.state[0].dtype == torch.bfloat16


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_score_excludes_what_the_model_excludes(weight: float) -> None:
    """One token, and every token: no gradient is NaN."""
    logits = torch.tensor([[0.5, -torch.inf, 1.0], [-torch.inf] * 3], requires_grad=True)
    added = interpolated(weight)(logits)
    assert torch.equal(added == -torch.inf, logits == -torch.inf)
    live = torch.tensor([0.5, 1.0])
    torch.testing.assert_close(added[0, [0, 2]], live - weight * live.logsumexp(0))
    added[0, [0, 2]].square().sum().backward()
    assert logits.grad is not None and bool(torch.isfinite(logits.grad).all())


def test_interpolated_scores_join_global_and_local() -> None:
    logits = torch.randn(3, 5).double()
    assert torch.equal(interpolated(0.0)(logits), global_(logits))
    torch.testing.assert_close(interpolated(1.0)(logits), F.log_softmax(logits, -1), **TOLERANCE)
    halfway = (global_(logits) + local(logits)) / 2
    torch.testing.assert_close(interpolated(0.5)(logits), halfway, **TOLERANCE)


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(2, 1.0)], ids=["hard", "soft"])
def test_a_number_of_steps_may_be_an_integer_of_numpy(selector: Any) -> None:
    case = tagger_case(0)
    context = case.model.encode(case.batch)
    ours, theirs = (beam_search(case.model, context, selector, num_steps=steps) for steps in (2, np.int64(2)))
    assert torch.equal(ours.scores_BK, theirs.scores_BK) and torch.equal(backtrace(ours), backtrace(theirs))


@pytest.mark.parametrize("num_steps", [-1, torch.tensor([2, -1, 0])])
def test_a_negative_number_of_steps_is_refused(num_steps: int | Tensor) -> None:
    case = tagger_case(0)
    with pytest.raises(InputError, match="-1"):
        beam_search(case.model, case.model.encode(case.batch), HardTopK(1), num_steps=num_steps)


def test_other_bad_arguments_are_refused() -> None:
    case = tagger_case(0)
    context = case.model.encode(case.batch)
    with pytest.raises(InputError, match="cost"):
        beam_search(case.model, context, HardTopK(1), num_steps=1, score=cost_augmented(local))
    for weight in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="log Z"):
            interpolated(weight)


def test_an_integer_in_the_state_is_named_by_the_soft_search_only() -> None:
    class Counting(ManyModels):
        def start(self, context: Any) -> tuple[Tensor, Any]:
            first, state = super().start(context)
            return first, {"h": state, "count": torch.zeros(state.shape[:2], dtype=torch.long)}

        def step(self, inputs_BJD: Tensor, state: Any, context: Any, step: int) -> tuple[Tensor, Any]:
            features, hidden = super().step(inputs_BJD, state["h"], context, step)
            return features, {"h": hidden, "count": state["count"] + 1}

    model = Counting(2, num_tokens=3, end=None, seed=0)
    assert (beam_search(model, None, HardTopK(2), num_steps=3).state["count"] == 3).all()
    with pytest.raises(InputError, match="'count'"):
        beam_search(model, None, SoftTopK(2, 1.0), num_steps=3)


def test_models_run_in_training_mode_with_dropout() -> None:
    """The relaxed search of a freshly made model gives finite gradients to every parameter that it uses."""
    models = [
        Tagger(source_size=5, target_size=4, embedding_size=4, hidden_size=6, label_embedding_size=3),
        EncoderDecoder(source_size=5, target_size=4, end=1, embedding_size=4, hidden_size=6),
    ]
    for model, case in zip(models, (tagger_case(0), translation_case(0)), strict=True):
        model.train()
        gold_BT, num_steps_B = search_targets(case.batch, model.end)
        beam = beam_search(
            model,
            model.encode(case.batch),
            SoftTopK(3, 1.0),
            num_steps=num_steps_B,
            cost=hamming_cost(gold_BT, 4),
        )
        direct_loss(beam, 1.0).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.abs().sum() > 0, name
