"""The losses that spare most positions the vocabulary: values, all draws of H, exact optima, and what is touched."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import Case, forced_logits, log_sum_exp, tagger_case, translation_case
from recording import LargestTensor
from seqwise import InputError
from seqwise.objectives import (
    sampled_self_normalized_cross_entropy,
    self_normalization,
    self_normalized_cross_entropy,
    unnormalized_likelihood_loss,
)
from seqwise.objectives.self_normalization import log_partition_objective

LOSSES = {"unnormalised": unnormalized_likelihood_loss, "sampled": sampled_self_normalized_cross_entropy}
IGNORED = -100


def problem(seed: int, *, num_positions: int = 5, num_features: int = 2, vocabulary: int = 4) -> list[Tensor]:
    """Features (with two ignored positions among them), weights, biases, targets."""
    generator = torch.Generator().manual_seed(seed)
    features_TH = torch.randn(num_positions + 2, num_features, generator=generator, dtype=torch.float64)
    weight_VH = torch.randn(vocabulary, num_features, generator=generator, dtype=torch.float64)
    bias_V = torch.randn(vocabulary, generator=generator, dtype=torch.float64)
    targets_T = torch.randint(vocabulary, (num_positions + 2,), generator=generator)
    targets_T[1], targets_T[-1] = IGNORED, -1
    return [features_TH, weight_VH, bias_V, targets_T]


def scores_of(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> list[tuple[float, float]]:
    """Gold score and log Z of each position with a target, in plain Python."""
    found = []
    for h, target in zip(features.tolist(), targets.tolist(), strict=True):
        if target < 0:
            continue
        row = [
            sum(a * b for a, b in zip(w, h, strict=True)) + (0.0 if bias is None else bias[token].item())
            for token, w in enumerate(weight.tolist())
        ]
        found.append((row[target], math.log(sum(math.exp(score) for score in row))))
    return found


def every_draw(monkeypatch: pytest.MonkeyPatch, loss: Callable[[], Tensor], count: int, size: int) -> list[Tensor]:
    """The loss for every H of this size out of ``count`` positions, each with its own graph."""
    losses = []
    for chosen in itertools.combinations(range(count), size):
        monkeypatch.setattr(self_normalization, "_drawn", lambda *_, chosen=chosen: torch.tensor(chosen))
        losses.append(loss())
    return losses


# ---------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("with_bias", [True, False])
def test_values_equal_plain_python(with_bias: bool) -> None:
    for seed, weight in enumerate((0.0, 0.3, 2.0)):
        features, head, bias, targets = problem(seed)
        used = bias if with_bias else None
        rows = scores_of(features, head, used, targets)
        raw = sum(-gold + weight * z * z for gold, z in rows) / len(rows)
        local = sum(z - gold + weight * z * z for gold, z in rows) / len(rows)
        options: dict[str, Any] = {"weight": weight, "fraction": 1.0}
        assert unnormalized_likelihood_loss(features, head, used, targets, **options).item() == pytest.approx(raw)
        found = sampled_self_normalized_cross_entropy(features, head, used, targets, **options)
        assert found.item() == pytest.approx(local)


def test_the_scaling_is_that_of_the_published_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gamma n is whole, -n times the loss is ``sum f(y) - (alpha / gamma) sum_H (log Z)^2``."""
    features, head, bias, targets = problem(1, num_positions=6)
    rows = scores_of(features, head, bias, targets)
    alpha, gamma = 0.7, 1 / 3
    losses = every_draw(
        monkeypatch,
        lambda: unnormalized_likelihood_loss(features, head, bias, targets, weight=alpha, fraction=gamma),
        6,
        2,
    )
    for chosen, loss in zip(itertools.combinations(range(6), 2), losses, strict=True):
        printed = sum(gold for gold, _ in rows) - alpha / gamma * sum(rows[place][1] ** 2 for place in chosen)
        assert loss.item() == pytest.approx(-printed / 6)


@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.5, 0.8, 1.0])
def test_both_losses_are_unbiased_over_all_draws(monkeypatch: pytest.MonkeyPatch, fraction: float) -> None:
    """Mean over every H of value and gradient equals those of the loss of all positions; 0.5 of 5 positions is 3."""
    size = {0.2: 1, 0.4: 2, 0.5: 3, 0.8: 4, 1.0: 5}[fraction]
    for seed in range(5):
        features, head, bias, targets = problem(seed)
        inputs = [tensor.requires_grad_() for tensor in (features, head, bias)]
        full = self_normalized_cross_entropy(features @ head.T + bias, targets, 0.6)
        log_partition_N = (features @ head.T + bias)[targets >= 0].logsumexp(-1)
        for loss, expected in (
            (sampled_self_normalized_cross_entropy, full),
            (unnormalized_likelihood_loss, full - log_partition_N.mean()),
        ):
            draws = every_draw(
                monkeypatch,
                lambda loss=loss, arguments=(features, head, bias, targets): loss(
                    *arguments, weight=0.6, fraction=fraction
                ),
                5,
                size,
            )
            mean = torch.stack(draws).mean()
            torch.testing.assert_close(mean, expected, atol=1e-12, rtol=1e-12)
            for found, wanted in zip(
                torch.autograd.grad(mean, inputs),
                torch.autograd.grad(expected, inputs, retain_graph=True),
                strict=True,
            ):
                torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOSSES)
def test_every_set_of_positions_is_drawn_equally_often(name: str) -> None:
    """Six pairs of four positions, told apart by the loss."""
    features, head, bias, targets = problem(3, num_positions=4)
    generator = torch.Generator().manual_seed(0)
    num_draws = 3000
    seen = Counter(
        round(LOSSES[name](features, head, bias, targets, weight=1.0, fraction=0.5, generator=generator).item(), 9)
        for _ in range(num_draws)
    )
    error = math.sqrt(num_draws * (1 / 6) * (5 / 6))
    assert len(seen) == 6
    assert all(abs(count - num_draws / 6) < 4.5 * error for count in seen.values())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("fraction", "count", "expected"), [(0.1, 11, 2), (1e-9, 7, 1), (0.07, 100, 7), (1.0, 7, 7)])
def test_the_head_scores_ceil_of_gamma_n_positions(
    monkeypatch: pytest.MonkeyPatch, name: str, fraction: float, count: int, expected: int
) -> None:
    scored: list[int] = []
    linear = self_normalization.F.linear

    def counting(input: Tensor, *arguments: Any) -> Tensor:
        scored.append(len(input))
        return linear(input, *arguments)

    monkeypatch.setattr(self_normalization.F, "linear", counting)
    features, head, bias, targets = problem(0, num_positions=count)
    LOSSES[name](features, head, bias, targets, weight=1.0, fraction=fraction)
    assert scored == [expected]


@pytest.mark.parametrize("case", [tagger_case(2), translation_case(2)], ids=["tagger", "translation"])
def test_the_penalty_alone_is_the_mean_square_of_log_z_along_gold(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all positions, and of each draw of some of them."""
    squares = [
        log_sum_exp(row) ** 2
        for oracle, example in zip(case.oracles, case.examples, strict=True)
        for row in forced_logits(oracle, example.target_ids)
    ]
    assert float(log_partition_objective()(case.model, case.batch, {})) == pytest.approx(np.mean(squares))
    for fraction in (0.01, 0.3, 0.5):
        size = math.ceil(fraction * len(squares))
        monkeypatch.setattr(torch, "rand", lambda count, **_: torch.arange(count).flip(0).float())
        expected = np.mean(squares[len(squares) - size :])
        objective = log_partition_objective(fraction=fraction)
        assert float(objective(case.model, case.batch, {})) == pytest.approx(expected)


def test_the_penalty_alone_needs_a_fraction_and_is_zero_without_targets() -> None:
    for fraction in (0.0, -0.5, 1.5, math.nan):
        with pytest.raises(InputError, match="fraction"):
            log_partition_objective(fraction=fraction)
    case = tagger_case(2)
    nothing = replace(case.batch, targets_BT=torch.full_like(case.batch.targets_BT, IGNORED))
    loss = log_partition_objective()(case.model, nothing, {})
    loss.backward()
    assert loss.item() == 0 and not any(
        parameter.grad.any() for parameter in case.model.parameters() if parameter.grad is not None
    )


# ---------------------------------------------------------------------------------------- optima


def minimised(loss: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=300, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return float(value.detach())

    optimizer.step(closure)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_free_scores_end_at_the_true_distribution_and_log_partition_one_over_two_alpha(alpha: float) -> None:
    """Two contexts with targets 3:2:1 and 1:1:2; a one-hot context makes every score a parameter of its own."""
    contexts_N = torch.tensor([0] * 6 + [1] * 4)
    targets_N = torch.tensor([0, 0, 0, 1, 1, 2, 0, 1, 2, 2])
    features_NH = torch.eye(2, dtype=torch.float64)[contexts_N]
    head_VH = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for loss, log_partition in (
        (unnormalized_likelihood_loss, 1 / (2 * alpha)),
        (sampled_self_normalized_cross_entropy, 0.0),
    ):
        minimised(lambda loss=loss: loss(features_NH, head_VH, None, targets_N, weight=alpha, fraction=1.0), [head_VH])
        expected = torch.tensor([[3 / 6, 1 / 4], [2 / 6, 1 / 4], [1 / 6, 2 / 4]], dtype=torch.float64)
        torch.testing.assert_close(head_VH.detach().softmax(0), expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(
            head_VH.detach().logsumexp(0), torch.full((2,), log_partition, dtype=torch.float64), atol=1e-6, rtol=0
        )


@pytest.mark.thorough
def test_a_bias_alone_makes_the_mean_log_partition_one_over_two_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are not free (two features, six positions), and only two positions are normalised at a time."""
    features, head, bias, targets = problem(4, num_positions=6)
    parameters = [head.requires_grad_(), bias.requires_grad_()]
    alpha = 0.8

    def expected_loss() -> Tensor:
        def draw() -> Tensor:
            return unnormalized_likelihood_loss(features, head, bias, targets, weight=alpha, fraction=1 / 3)

        return torch.stack(every_draw(monkeypatch, draw, 6, 2)).mean()

    minimised(expected_loss, parameters)
    log_partition_N = (features @ head.T + bias)[targets >= 0].logsumexp(-1)
    assert log_partition_N.std() > 0.01, "the model can normalise everywhere: the test says too little"
    assert log_partition_N.mean().item() == pytest.approx(1 / (2 * alpha), abs=1e-6)


def test_the_loss_is_cross_entropy_with_the_square_completed() -> None:
    for seed, alpha in enumerate((0.2, 1.0, 5.0)):
        features, head, bias, targets = problem(seed)
        rows = scores_of(features, head, bias, targets)
        expected = sum(z - gold + alpha * (z - 0.5 / alpha) ** 2 - 0.25 / alpha for gold, z in rows) / len(rows)
        found = unnormalized_likelihood_loss(features, head, bias, targets, weight=alpha, fraction=1.0)
        assert found.item() == pytest.approx(expected)


def test_without_normalised_positions_the_loss_has_no_minimum() -> None:
    features, head, bias, targets = problem(0)
    rows = scores_of(features, head, bias, targets)
    for shift in (0.0, 10.0, 1000.0):
        found = unnormalized_likelihood_loss(features, head, bias + shift, targets, weight=1.0, fraction=0.0)
        assert found.item() == pytest.approx(-sum(gold for gold, _ in rows) / len(rows) - shift)


# ---------------------------------------------------------------------------------------- what is touched


@pytest.mark.parametrize("name", LOSSES)
def test_positions_outside_h_never_touch_the_vocabulary(name: str) -> None:
    """100 positions, V = 97, 2 of them normalised: nothing gets larger than the head, back pass included."""
    features, head, bias, targets = problem(0, num_positions=100, num_features=3, vocabulary=97)
    inputs = [tensor.requires_grad_() for tensor in (features, head, bias)]
    with LargestTensor() as seen:
        LOSSES[name](features, head, bias, targets, weight=1.0, fraction=0.02).backward()
    assert seen.numbers <= max(head.numel(), features.numel())
    assert all(tensor.grad is not None for tensor in inputs)
    with LargestTensor() as seen:
        self_normalized_cross_entropy(features @ head.T + bias, targets, 1.0, 0.02).backward()
    assert seen.numbers >= 100 * 97, "the recorder does not see what it should"


def test_outside_h_only_gold_rows_have_a_gradient() -> None:
    features, head, bias, targets = problem(0, num_positions=4, vocabulary=50)
    head.requires_grad_()
    unnormalized_likelihood_loss(features, head, bias, targets, weight=1.0, fraction=0.0).backward()
    assert head.grad is not None
    assert set(head.grad.abs().sum(-1).nonzero().flatten().tolist()) == set(targets[targets >= 0].tolist())


# ---------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("name", LOSSES)
def test_bad_arguments_are_refused_and_without_targets_the_loss_is_zero(name: str) -> None:
    features, head, bias, targets = problem(0)
    for weight in (-0.1, math.nan):
        with pytest.raises(InputError, match="weight"):
            LOSSES[name](features, head, bias, targets, weight=weight, fraction=0.5)
    for fraction in (-0.5, 1.5, math.nan):
        with pytest.raises(InputError, match="fraction"):
            LOSSES[name](features, head, bias, targets, weight=1.0, fraction=fraction)
    features.requires_grad_()
    loss = LOSSES[name](features, head, bias, torch.full_like(targets, -1), weight=1.0, fraction=0.5)
    loss.backward()
    assert loss.item() == 0
    assert features.grad is not None
    assert not features.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_what_does_not_fit_the_head_is_refused(name: str) -> None:
    features, head, bias, targets = problem(0)

    def loss(features: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor) -> None:
        LOSSES[name](features, head, bias, targets, weight=1.0, fraction=0.5)

    beyond = targets.clone()
    beyond[0] = 4
    with pytest.raises(InputError, match="the target 4 is outside the vocabulary of 4"):
        loss(features, head, bias, beyond)
    with pytest.raises(InputError, match=r"targets of shape \(6,\) for features of shape \(7, 2\)"):
        loss(features, head, bias, targets[1:])
    with pytest.raises(InputError, match=r"targets of shape \(7, 1\) for features"):
        loss(features, head, bias, targets[:, None])
    with pytest.raises(InputError, match=r"a head of shape \(4, 3\) for features of shape \(7, 2\)"):
        loss(features, torch.cat([head, head[:, :1]], dim=1), bias, targets)
    with pytest.raises(InputError, match=r"biases of shape \(3,\) for a head of shape \(4, 2\)"):
        loss(features, head, bias[1:], targets)


def test_targets_that_do_not_fit_the_logits_are_refused() -> None:
    logits_BTV = torch.zeros(2, 3, 4)
    with pytest.raises(InputError, match="the target 4 is outside the vocabulary of 4"):
        self_normalized_cross_entropy(logits_BTV, torch.full((2, 3), 4), 1.0)
    with pytest.raises(InputError, match=r"targets of shape \(3, 2\) for scores of shape \(2, 3, 4\)"):
        self_normalized_cross_entropy(logits_BTV, torch.zeros(3, 2, dtype=torch.long), 1.0)


def test_a_sampled_likelihood_needs_some_positions() -> None:
    with pytest.raises(InputError, match="fraction"):
        sampled_self_normalized_cross_entropy(*problem(0), weight=1.0, fraction=0.0)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right(name: str) -> None:
    features, head, bias, targets = problem(2)
    inputs = tuple(tensor.requires_grad_() for tensor in (features, head, bias))

    def loss(features: Tensor, head: Tensor, bias: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return LOSSES[name](features, head, bias, targets, weight=0.5, fraction=0.4, generator=generator)

    assert torch.autograd.gradcheck(loss, inputs)
