"""Costs and losses against NumPy, their definitions on hand-made beams, and the objectives that training minimises."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import oracles
from oracles import Case, tagger_case, translation_case
from seqwise import InputError
from seqwise.models.heads import log_partition
from seqwise.objectives import (
    CrossEntropy,
    beam_crf_objective,
    cross_entropy,
    cross_entropy_objective,
    direct_loss,
    gold_scores,
    hamming_cost,
    hinge_loss,
    hinge_objective,
    minimum_risk_objective,
    relaxed_beam_objective,
    self_normalized_cross_entropy,
)
from seqwise.objectives.beam_likelihood import dense_beam_objective, soft_dense_beam_objective
from seqwise.objectives.objective import Mean, SumOfMeans, search_targets, teacher_forced_logits
from seqwise.objectives.scheduled_sampling import scheduled_sampling_objective
from seqwise.objectives.self_normalization import self_normalized_objective
from seqwise.objectives.violations import (
    beam_search_optimization_objective,
    early_update_objective,
    hard_beam_hinge_objective,
)
from seqwise.search import Beam, HardTopK, beam_search, global_, interpolated, local

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
CASES = {"tagger": tagger_case, "encoder-decoder": translation_case}


def beam_of(scores_BK: Tensor, costs_BK: Tensor) -> Beam:
    return Beam(scores_BK, costs_BK, torch.zeros_like(scores_BK), scores_BK[..., None], None)


def ragged_logits(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits_BTV = 2 * torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    targets_BT = torch.randint(4, (3, 5), generator=generator)
    targets_BT[0, 3:] = -100
    targets_BT[2, :] = -1
    return logits_BTV, targets_BT


# ---------------------------------------------------------------------------------------- costs


def test_hamming_cost_equals_the_loop() -> None:
    gold_BT = torch.tensor([[2, 0, -100], [1, -1, 3], [4, 3, 9]])  # 4 and 9 are none of the tokens
    weights_V = torch.tensor([2.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    for weights in (None, weights_V):
        cost = hamming_cost(gold_BT, 4, weights)
        for step in range(5):
            expected = [
                oracles.hamming(gold, 4, None if weights is None else weights.tolist())(step)
                for gold in gold_BT.tolist()
            ]
            assert cost(step).tolist() == expected


def test_weights_of_a_cost_may_be_learnt_and_must_fit() -> None:
    gold_BT = torch.tensor([[2], [1], [-1]])
    weights_V = torch.tensor([2.0, 1.0, 0.5, 3.0], requires_grad=True)
    hamming_cost(gold_BT, 4, weights_V)(0).sum().backward()
    assert weights_V.grad is not None and weights_V.grad.tolist() == [2.0, 1.0, 1.0, 2.0]
    assert torch.equal(hamming_cost(gold_BT, 4, torch.tensor(2.0))(0), 2 * hamming_cost(gold_BT, 4)(0))
    with pytest.raises(RuntimeError):
        hamming_cost(gold_BT, 4, torch.ones(6))


# ---------------------------------------------------------------------------------------- losses of a beam


def test_a_sum_of_means_passes_its_arguments_on() -> None:
    def means(model: Any, batch: Any, values: Any) -> list[Mean]:
        return [Mean(torch.tensor(float(values["weight"] * len(model))), None), Mean(torch.tensor(float(batch)), None)]

    assert SumOfMeans(means)("abc", 5, {"weight": 2}) == 11


def test_losses_equal_their_definitions() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        B, K, alpha = int(draw.integers(1, 4)), int(draw.integers(1, 5)), float(10 ** draw.uniform(-1, 3))
        scores = draw.normal(0, 2, (B, K))
        scores[draw.random((B, K)) < 0.2] = -np.inf
        scores[:, 0] = draw.normal(0, 2, B)
        costs, gold = draw.uniform(0, 3, (B, K)), draw.normal(0, 2, B)
        beam = beam_of(torch.from_numpy(scores), torch.from_numpy(costs))
        rows = list(zip(scores.tolist(), costs.tolist(), gold.tolist(), strict=True))
        direct = np.mean([oracles.direct_loss(s, d, alpha) for s, d, _ in rows])
        hinge = np.mean([oracles.hinge_loss(s, g, alpha) for s, _, g in rows])
        assert float(direct_loss(beam, alpha)) == pytest.approx(direct, abs=1e-10)
        assert float(hinge_loss(beam, torch.from_numpy(gold), alpha)) == pytest.approx(hinge, abs=1e-10)


def test_gradients_of_the_losses_of_a_beam() -> None:
    scores_BK = torch.tensor([[0.3, -0.2, -torch.inf], [1.0, 1.5, 0.2]], dtype=torch.float64, requires_grad=True)
    costs_BK = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    loss = direct_loss(beam_of(scores_BK, costs_BK), 2.0) + hinge_loss(
        beam_of(scores_BK, costs_BK), torch.tensor([-1.0, 5.0]).double(), 2.0
    )
    loss.backward()
    assert torch.isfinite(scores_BK.grad).all()
    assert scores_BK.grad[0, 2] == 0
    finite = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, d: direct_loss(beam_of(s, d), 2.0), (finite, costs_BK))
    gold_B = torch.full((2,), -5.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, g: hinge_loss(beam_of(s, costs_BK), g, 2.0), (finite, gold_B))


@pytest.mark.parametrize("alpha", [0.0, -2.0, math.nan, math.inf])
def test_losses_refuse_a_bad_alpha(alpha: float) -> None:
    beam = beam_of(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(InputError, match="alpha"):
        direct_loss(beam, alpha)
    with pytest.raises(InputError, match="alpha"):
        hinge_loss(beam, torch.zeros(1), alpha)


# ---------------------------------------------------------------------------------------- likelihood


def test_cross_entropy_equals_torch_and_ignores_negative_targets() -> None:
    for seed in range(10):
        logits_BTV, targets_BT = ragged_logits(seed)
        logits_BTV.requires_grad_()
        expected = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.clamp(min=-1).flatten(), ignore_index=-1)
        found = cross_entropy(logits_BTV, targets_BT)
        torch.testing.assert_close(found, expected, **TOLERANCE)
        (expected_gradient,) = torch.autograd.grad(expected, logits_BTV)
        (gradient,) = torch.autograd.grad(found, logits_BTV)
        torch.testing.assert_close(gradient, expected_gradient, **TOLERANCE)


@pytest.mark.parametrize("case", [tagger_case(3), translation_case(5)], ids=["labels", "outputs with an end"])
def test_smoothed_cross_entropy_is_that_of_torch_over_all_tokens_and_without_padding(case: Case) -> None:
    batch = case.batch
    assert (batch.targets_BT < 0).any()
    logits_BTV = teacher_forced_logits(case.model, case.model.encode(batch), batch)
    gold_N = batch.targets_BT[batch.targets_BT >= 0]
    logits_NV = logits_BTV[batch.targets_BT >= 0]
    losses = {}
    for smoothing in (0.0, 0.1, 0.9):
        losses[smoothing] = CrossEntropy(label_smoothing=smoothing).build()(case.model, batch, {})
        torch.testing.assert_close(losses[smoothing], F.cross_entropy(logits_NV, gold_N, label_smoothing=smoothing))
        mixture_NV = (1 - smoothing) * F.one_hot(gold_N, logits_NV.shape[-1]) + smoothing / logits_NV.shape[-1]
        torch.testing.assert_close(losses[smoothing], -(mixture_NV * logits_NV.log_softmax(-1)).sum(-1).mean())
    assert losses[0.0] == cross_entropy(logits_BTV, batch.targets_BT) and losses[0.0] != losses[0.1]


def test_labels_are_smoothed_over_possible_tokens_only() -> None:
    logits_NV = torch.tensor([[0.0, -math.inf, -math.inf], [1.0, 2.0, -math.inf]], requires_grad=True)
    loss = cross_entropy(logits_NV, torch.tensor([0, 1]), label_smoothing=0.2)
    # The first is forced. Of the second, 0.2 is spread over two tokens, of probabilities 1 / (1 + e) and e / (1 + e).
    assert loss.item() == pytest.approx((math.log(1 + math.e) - 0.9) / 2)
    loss.backward()
    share = math.e / (1 + math.e)
    expected = torch.tensor([[0.0, 0.0, 0.0], [1 - share - 0.1, share - 0.9, 0.0]]) / 2
    torch.testing.assert_close(logits_NV.grad, expected)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_label_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(InputError, match="label_smoothing must be at least 0 and below 1"):
        cross_entropy_objective(label_smoothing=smoothing)


def test_cross_entropy_of_no_targets_is_zero() -> None:
    logits_BTV = torch.randn(2, 3, 4, requires_grad=True)
    loss = cross_entropy(logits_BTV, torch.full((2, 3), -100))
    loss.backward()
    assert float(loss) == 0
    assert (logits_BTV.grad == 0).all()


def test_gold_scores_equal_the_loop() -> None:
    for score in (local, global_, interpolated(0.4)):
        logits_BTV, targets_BT = ragged_logits(1)
        found_B = gold_scores(logits_BTV, targets_BT, score)
        for b, targets in enumerate(targets_BT.tolist()):
            expected = sum(
                oracles.added_scores(row, log_partition_weight=score.log_partition_weight)[target]
                for row, target in zip(logits_BTV[b].tolist(), targets, strict=True)
                if target >= 0
            )
            assert float(found_B[b]) == pytest.approx(expected, abs=1e-10)


# ---------------------------------------------------------------------------------------- self-normalisation


def self_normalized(logits: Tensor, targets: Tensor, weight: float) -> float:
    rows = [
        (oracles.log_sum_exp(row), row[target])
        for row, target in zip(logits.flatten(0, -2).tolist(), targets.flatten().tolist(), strict=True)
        if target >= 0
    ]
    return sum(z - gold + weight * z * z for z, gold in rows) / len(rows)


def test_self_normalized_cross_entropy_equals_numpy() -> None:
    for seed, weight in enumerate((0.0, 0.1, 1.0, 3.0)):
        logits_BTV, targets_BT = ragged_logits(seed)
        found = self_normalized_cross_entropy(logits_BTV, targets_BT, weight)
        assert float(found) == pytest.approx(self_normalized(logits_BTV, targets_BT, weight), abs=1e-10)
    logits_BTV.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: self_normalized_cross_entropy(s, targets_BT, 0.5), (logits_BTV,))


def test_one_log_softmax_gives_both_terms_and_their_gradients() -> None:
    """Without padding nothing is copied; a gold token that is ruled out costs everything, and leaves log Z alone."""
    logits_NV = torch.randn(7, 5, dtype=torch.float64).mul_(3).requires_grad_()
    targets_N = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    found = self_normalized_cross_entropy(logits_NV, targets_N, 0.3)
    assert float(found) == pytest.approx(self_normalized(logits_NV, targets_N, 0.3), abs=1e-12)
    assert torch.autograd.gradcheck(lambda s: self_normalized_cross_entropy(s, targets_N, 0.3), (logits_NV,))

    def sampled(scores_NV: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return self_normalized_cross_entropy(scores_NV, targets_N, 0.3, 0.5, generator=generator)

    assert torch.autograd.gradcheck(sampled, (logits_NV,))
    half = logits_NV.detach().bfloat16().requires_grad_()
    loss = self_normalized_cross_entropy(half, targets_N, 0.3)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(self_normalized(half.double(), targets_N, 0.3), abs=1e-5)
    (gradient_NV,) = torch.autograd.grad(loss, half)
    assert gradient_NV.dtype == torch.bfloat16
    # Sums over many positions: one of a hundred terms is lost in half precision.
    many_1TV = torch.randn(1, 200, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    gold_1T = torch.zeros(1, 200, dtype=torch.long)
    for measure in (cross_entropy, partial(gold_scores, score=local), partial(gold_scores, score=global_)):
        assert torch.equal(measure(many_1TV, gold_1T), measure(many_1TV.float(), gold_1T))
    assert torch.equal(log_partition(many_1TV), log_partition(many_1TV.float()))
    excluded_NV = logits_NV.detach().clone()
    excluded_NV[1, 4] = -torch.inf
    assert float(self_normalized_cross_entropy(excluded_NV, targets_N, 0.3)) == torch.inf


def test_a_fraction_is_unbiased() -> None:
    logits_BTV, targets_BT = ragged_logits(5)
    generator = torch.Generator().manual_seed(0)
    draws = np.array(
        [
            float(self_normalized_cross_entropy(logits_BTV, targets_BT, 0.7, 0.3, generator=generator))
            for _ in range(4000)
        ]
    )
    error = draws.std() / math.sqrt(len(draws))
    assert error > 0
    assert abs(draws.mean() - self_normalized(logits_BTV, targets_BT, 0.7)) < 5 * error


@pytest.mark.parametrize(
    ("fraction", "count", "expected"),
    [(0.1, 10, 1), (0.1, 11, 2), (0.5, 5, 3), (1e-9, 7, 1), (1.0, 7, 7), (0.99, 7, 7), (0.07, 100, 7), (0.55, 100, 55)],
)
def test_the_subset_has_ceil_of_gamma_n_targets(fraction: float, count: int, expected: int) -> None:
    """Counted by the targets whose gradient is not that of cross-entropy alone."""
    logits = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(count, dtype=torch.long)
    plain = torch.autograd.grad(cross_entropy(logits, targets), logits)[0]
    found = torch.autograd.grad(self_normalized_cross_entropy(logits, targets, 1.0, fraction), logits)[0]
    assert int(((found - plain).abs().amax(-1) > 1e-12).sum()) == expected


def test_every_target_may_be_drawn_and_the_generator_decides() -> None:
    logits, targets = torch.randn(6, 3, dtype=torch.float64), torch.zeros(6, dtype=torch.long)

    def loss(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return float(self_normalized_cross_entropy(logits, targets, 1.0, 0.1, generator=generator))

    assert loss(3) == loss(3)
    assert len({round(loss(seed), 12) for seed in range(100)}) == 6


def test_bad_arguments_of_self_normalisation_are_refused() -> None:
    logits, targets = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(InputError, match="weight"):
        self_normalized_cross_entropy(logits, targets, -0.1)
    for fraction in (0.0, -0.5, 1.5, math.nan):
        with pytest.raises(InputError, match="fraction"):
            self_normalized_cross_entropy(logits, targets, 1.0, fraction)
    assert float(self_normalized_cross_entropy(logits, targets - 100, 1.0)) == 0.0


# ---------------------------------------------------------------------------------------- objectives


def test_search_targets_continue_gold_by_the_end_token() -> None:
    case = translation_case(0, end=3)
    gold_BT, num_steps_B = search_targets(case.batch, 3)
    for b, example in enumerate(case.examples):
        length = len(example.target_ids)
        assert gold_BT[b].tolist() == [*example.target_ids] + [3] * (gold_BT.shape[1] - length)
        assert int(num_steps_B[b]) == length + 1
    tags = tagger_case(0)
    gold_BT, num_steps_B = search_targets(tags.batch, None)
    assert torch.equal(gold_BT, tags.batch.targets_BT)
    assert torch.equal(num_steps_B, tags.batch.target_lengths_B)


@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@pytest.mark.parametrize("name", CASES)
def test_search_objectives_equal_the_loop(name: str, score: Any) -> None:
    """Direct and hinge loss per token over a ragged batch, plus a share of cross-entropy."""
    for seed in range(3):
        case = CASES[name](seed)
        direct, hinge, likelihood = 0.0, 0.0, 0.0
        for oracle, example in zip(case.oracles, case.examples, strict=True):
            gold = list(example.target_ids)
            steps = len(gold) if oracle.end is None else len(gold) + 1
            cost = oracles.hamming(gold if oracle.end is None else [*gold, oracle.end], case.vocabulary_size)
            options = {"k": 3, "alpha": 1.7, "num_steps": steps, "cost": cost}
            c = score.log_partition_weight
            slots = oracles.soft_beam(oracle, log_partition_weight=c, **options)
            direct += oracles.direct_loss([slot.score for slot in slots], [slot.cost for slot in slots], 1.7)
            slots = oracles.soft_beam(oracle, log_partition_weight=c, cost_weight=1.0, **options)
            reference = oracles.gold_score(oracle, gold, log_partition_weight=c)
            hinge += oracles.hinge_loss([slot.score for slot in slots], reference, 1.7)
            likelihood -= oracles.gold_score(oracle, gold)
        num_tokens = sum(len(example.target_ids) for example in case.examples)
        for make, total in ((relaxed_beam_objective, direct), (hinge_objective, hinge)):
            for share in (0.0, 0.5):
                objective = make(k=3, score=score, cross_entropy_weight=share)
                found = objective(case.model, case.batch, {"alpha": 1.7})
                assert float(found) == pytest.approx((total + share * likelihood) / num_tokens, abs=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_likelihood_objectives_equal_the_loop(name: str) -> None:
    case = CASES[name](1)
    logits = [
        row
        for oracle, example in zip(case.oracles, case.examples, strict=True)
        for row in oracles.forced_logits(oracle, example.target_ids)
    ]
    targets = [token for example in case.examples for token in example.target_ids]
    table, gold = torch.tensor(logits, dtype=torch.float64), torch.tensor(targets)
    found = cross_entropy_objective()(case.model, case.batch, {})
    assert float(found) == pytest.approx(self_normalized(table, gold, 0.0), abs=1e-10)
    found = self_normalized_objective(weight=0.3)(case.model, case.batch, {})
    assert float(found) == pytest.approx(self_normalized(table, gold, 0.3), abs=1e-10)
    for feeding in ("greedy", "sample", "soft-greedy", "soft-sample"):
        found = scheduled_sampling_objective(feeding)(case.model, case.batch, {"gold_probability": 1.0, "alpha": 2.0})
        assert float(found) == pytest.approx(self_normalized(table, gold, 0.0), abs=1e-10)


@pytest.mark.parametrize("feeding", ["greedy", "sample"])
def test_hard_feedings_need_no_alpha(feeding: str) -> None:
    """As the docstring says: alpha is a schedule of the soft ones."""
    case = tagger_case(2)
    assert torch.isfinite(scheduled_sampling_objective(feeding)(case.model, case.batch, {"gold_probability": 0.5}))


def test_an_unknown_feeding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'gredy'.*soft-sample"):
        scheduled_sampling_objective("gredy")


# ---------------------------------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("objective", "schedule"),
    [
        (relaxed_beam_objective(k=2), "alpha"),
        (hinge_objective(k=2), "alpha"),
        (soft_dense_beam_objective(k=2, score="global"), "alpha"),
        (scheduled_sampling_objective("greedy"), "gold_probability"),
        (scheduled_sampling_objective("soft-greedy"), "alpha"),
    ],
)
def test_a_schedule_that_is_missing_is_named_with_the_objective(objective: Any, schedule: str) -> None:
    case = tagger_case(0)
    values = {"alpha": 0.5, "gold_probability": 0.5}
    assert objective(case.model, case.batch, values).isfinite()
    del values[schedule]
    with pytest.raises(InputError, match=rf"_objective reads the schedule {schedule}, which is missing"):
        objective(case.model, case.batch, values)


@pytest.mark.parametrize(
    "objective",
    [
        relaxed_beam_objective,
        hinge_objective,
        soft_dense_beam_objective,
        beam_crf_objective,
        dense_beam_objective,
        early_update_objective,
        beam_search_optimization_objective,
        hard_beam_hinge_objective,
        minimum_risk_objective,
    ],
)
def test_scores_may_be_named(objective: Any) -> None:
    case, values = tagger_case(0), {"alpha": 2.0}
    losses = {}
    for name, score in (("local", local), ("global", global_)):
        losses[name] = objective(k=2, score=name)(case.model, case.batch, values)
        assert torch.equal(losses[name], objective(k=2, score=score)(case.model, case.batch, values))
    assert objective is minimum_risk_objective or losses["local"] != losses["global"]
    with pytest.raises(InputError, match="no score is called 'globl'; choose one of local, global"):
        objective(k=2, score="globl")


def test_a_search_takes_the_name_of_a_score() -> None:
    case = tagger_case(0)
    context, steps = case.model.encode(case.batch), case.batch.source_lengths_B
    for name, score in (("local", local), ("global", global_)):
        named = beam_search(case.model, context, HardTopK(3), num_steps=steps, score=name)
        assert torch.equal(
            named.scores_BK, beam_search(case.model, context, HardTopK(3), num_steps=steps, score=score).scores_BK
        )
