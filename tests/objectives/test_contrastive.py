"""Noise-contrastive estimation: all draws of noise, the optimum, and the limit of much noise, by exact expectations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from oracles import Case, forced_logits, tagger_case, translation_case
from recording import LargestTensor
from seqwise import InputError
from seqwise.objectives.contrastive import (
    noise_contrastive_loss,
    noise_contrastive_objective,
    noise_log_probs,
    sampled_noise_contrastive_loss,
    smoothed_noise,
)

LOG_NOISE = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
# Six targets of one context: p = (1/2, 1/3, 1/6).
TARGETS = torch.tensor([0, 0, 0, 1, 1, 2])
TRUE = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64)


def scores(seed: int, vocabulary: int = 3) -> Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_noise_contrastive_loss(
    scores_NV: Tensor, targets_N: Tensor, log_noise_V: Tensor, *, num_noise: int
) -> Tensor:
    """Mean of ``noise_contrastive_loss`` over all draws of noise, (N, V) and (N,) to a scalar::

    mean_t [ -log sigmoid(f(y_t) - log K q(y_t)) - K sum_w q(w) log sigmoid(log K q(w) - f(w)) ]
    """
    drawn = log_noise_V > -torch.inf  # tokens that are never drawn count for nothing; left in, 0 * inf would be NaN
    shifted_V = log_noise_V + math.log(num_noise)
    gold_loss_N = F.softplus(shifted_V[targets_N] - scores_NV.gather(-1, targets_N[:, None])[:, 0])
    noise_loss_N = (shifted_V[drawn].exp() * F.softplus((scores_NV - shifted_V)[:, drawn])).sum(-1)
    return (gold_loss_N + noise_loss_N).mean()


def expected_loss(scores_V: Tensor, num_noise: int, log_noise_V: Tensor = LOG_NOISE) -> Tensor:
    return expected_noise_contrastive_loss(scores_V.expand(len(TARGETS), -1), TARGETS, log_noise_V, num_noise=num_noise)


def one_example(gold: int, noise: tuple[int, ...], scores: list[float], noise_probs: list[float]) -> float:
    """Minus the log-probability that a logistic classifier labels gold and noise rightly, in plain Python."""

    def genuine(token: int) -> float:
        model = math.exp(scores[token])
        return model / (model + len(noise) * noise_probs[token])

    return -math.log(genuine(gold)) - sum(math.log(1 - genuine(token)) for token in noise)


# ---------------------------------------------------------------------------------------- values


def test_the_loss_equals_plain_python() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        N, K = int(draw.integers(1, 5)), int(draw.integers(1, 6))
        table, noise_probs = draw.normal(0, 2, (N, 3)), draw.dirichlet(np.ones(3))
        gold, noise = draw.integers(3, size=N), draw.integers(3, size=(N, K))
        expected = np.mean([one_example(gold[n], tuple(noise[n]), table[n].tolist(), noise_probs) for n in range(N)])
        found = noise_contrastive_loss(
            torch.from_numpy(table[np.arange(N), gold]),
            torch.from_numpy(np.log(noise_probs[gold])),
            torch.from_numpy(np.take_along_axis(table, noise, 1)),
            torch.from_numpy(np.log(noise_probs[noise])),
        )
        assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("num_noise", [1, 2, 3])
def test_the_expected_loss_is_the_mean_over_every_draw_of_noise(num_noise: int) -> None:
    table_NV = torch.stack([scores(0), scores(1)])
    targets = torch.tensor([2, 0])
    noise_probs = LOG_NOISE.exp().tolist()
    total = 0.0
    for row, gold in zip(table_NV.tolist(), targets.tolist(), strict=True):
        for noise in itertools.product(range(3), repeat=num_noise):
            probability = math.prod(noise_probs[token] for token in noise)
            total += probability * one_example(gold, noise, row, noise_probs) / 2
    found = expected_noise_contrastive_loss(table_NV, targets, LOG_NOISE, num_noise=num_noise)
    assert found.item() == pytest.approx(total, abs=1e-12)


@pytest.mark.thorough
def test_the_sampled_loss_has_that_mean_and_its_gradient() -> None:
    """4,000 draws; each component within five standard errors. One target is ignored."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    head, bias = torch.randn(3, 2, generator=generator, dtype=torch.float64), scores(4)
    targets = torch.tensor([2, -100, 0])
    head.requires_grad_()
    values, gradients = [], []
    for _ in range(4000):
        loss = sampled_noise_contrastive_loss(
            features, head, bias, targets, LOG_NOISE, num_noise=2, generator=generator
        )
        values.append(loss.item())
        gradients.append(torch.autograd.grad(loss, head)[0])
    scores_NV, counted = features @ head.T + bias, targets >= 0
    expected = expected_noise_contrastive_loss(scores_NV[counted], targets[counted], LOG_NOISE, num_noise=2)
    error = np.std(values) / math.sqrt(len(values))
    assert error > 0
    assert abs(np.mean(values) - expected.item()) < 5 * error
    drawn = torch.stack(gradients)
    errors = drawn.std(0) / math.sqrt(len(values))
    assert ((drawn.mean(0) - torch.autograd.grad(expected, head)[0]).abs() < 5 * errors).all()


# ---------------------------------------------------------------------------------------- optimum and limit


@pytest.mark.parametrize("num_noise", [1, 4, 25])
def test_at_the_optimum_scores_are_log_probabilities(num_noise: int) -> None:
    """The gradient vanishes at log p (to the log of a normalised distribution, with no normaliser in the loss)."""
    for noise in (LOG_NOISE, torch.full((3,), 1 / 3, dtype=torch.float64).log(), TRUE.log()):
        for found_V in (TRUE.log(), scores(0)):
            found_V = found_V.clone().requires_grad_()
            optimizer = torch.optim.LBFGS(
                [found_V], max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
            )

            def closure(found_V: Tensor = found_V, noise: Tensor = noise) -> Tensor:
                found_V.grad = None
                loss = expected_loss(found_V, num_noise, noise)
                loss.backward()
                return loss.detach()

            closure()
            assert found_V.grad is not None
            at_optimum = bool(torch.equal(found_V.detach(), TRUE.log()))
            assert (found_V.grad.abs().max().item() < 1e-15) == at_optimum
            optimizer.step(closure)
            torch.testing.assert_close(found_V.detach(), TRUE.log(), atol=1e-6, rtol=0)


def gradient(scores_V: Tensor, num_noise: int) -> Tensor:
    scores_V = scores_V.clone().requires_grad_()
    return torch.autograd.grad(expected_loss(scores_V, num_noise), scores_V)[0]


def test_the_gradient_tends_to_that_of_maximum_likelihood_as_noise_grows() -> None:
    """For normalised scores softmax - p, for others exp f - p; the error falls as 1 / K."""
    for raw_V in (scores(2).log_softmax(-1), scores(2)):
        limit = raw_V.exp() - TRUE
        errors = [(gradient(raw_V, num_noise) - limit).abs().max().item() for num_noise in (10, 100, 1000, 10_000)]
        assert errors[0] > 0.005
        for before, after in itertools.pairwise(errors):
            assert after == pytest.approx(before / 10, rel=0.35)
    normalised_V = scores(2).log_softmax(-1)
    leaf = normalised_V.clone().requires_grad_()
    likelihood = -leaf.log_softmax(-1)[TARGETS].mean()
    torch.testing.assert_close(
        gradient(normalised_V, 10**6), torch.autograd.grad(likelihood, leaf)[0], atol=1e-5, rtol=0
    )


# ---------------------------------------------------------------------------------------- noise


def test_noise_is_proportional_to_powers_of_counts() -> None:
    counts = torch.tensor([4, 0, 16])
    assert noise_log_probs(counts).exp().tolist() == pytest.approx([0.2, 0, 0.8])
    assert noise_log_probs(counts.double()).dtype == torch.float64
    for bad in (torch.tensor([1.0, -1.0]), torch.zeros(3), torch.tensor([1.0, math.nan]), torch.tensor([math.inf])):
        with pytest.raises(InputError, match="counts"):
            noise_log_probs(bad)


def test_counts_of_frequent_tokens_are_exact() -> None:
    """Beyond 2**24, adding one to a number of 32 bits leaves it as it was."""
    rows = [torch.zeros(2**24, dtype=torch.long), *[torch.zeros(1, dtype=torch.long)] * 1000]
    expected = -math.log(2**24 + 1000 + 2)
    assert float(smoothed_noise(rows, 2)[1]) == pytest.approx(expected, abs=1e-5)


def test_tokens_that_are_never_noise_are_never_drawn_and_may_not_be_gold() -> None:
    log_noise = noise_log_probs(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    head = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    features = torch.randn(4, 2, dtype=torch.float64)
    targets = torch.tensor([0, 2, 0, 2])
    loss = sampled_noise_contrastive_loss(features, head, None, targets, log_noise, num_noise=50)
    assert torch.isfinite(loss)
    (found,) = torch.autograd.grad(loss, head)
    assert torch.isfinite(found).all()
    assert not found[1].any()
    with pytest.raises(InputError, match="gold token 1 "):
        sampled_noise_contrastive_loss(features, head, None, targets - 1, log_noise, num_noise=5)


# ---------------------------------------------------------------------------------------- what is touched, and edges


def test_only_the_rows_of_gold_and_noise_are_scored() -> None:
    V, N = 997, 40
    head = torch.randn(V, 2, requires_grad=True)
    features, targets = torch.randn(N, 2), torch.randint(V, (N,))
    log_noise = noise_log_probs(torch.ones(V))
    with LargestTensor() as seen:
        sampled_noise_contrastive_loss(features, head, torch.zeros(V), targets, log_noise, num_noise=3).backward()
    assert seen.numbers <= head.numel()
    with LargestTensor() as seen:
        expected_noise_contrastive_loss(features @ head.T, targets, log_noise, num_noise=3)
    assert seen.numbers >= N * V, "the recorder does not see what it should"


@pytest.mark.parametrize("case", [tagger_case(1), translation_case(1)], ids=["tagger", "translation"])
def test_the_objective_scores_gold_and_noise_with_the_whole_head(case: Case) -> None:
    """Against the scores of all tokens, biases included, at the same noise; padding draws none."""
    log_noise_V = noise_log_probs(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.manual_seed(7)
    found = noise_contrastive_objective(log_noise_V, num_noise=3)(case.model, case.batch, {})
    golds = [token for example in case.examples for token in example.target_ids]
    torch.manual_seed(7)
    noise = torch.multinomial(log_noise_V.double().exp(), 3 * len(golds), replacement=True).view(-1, 3).tolist()
    rows = [
        row
        for oracle, example in zip(case.oracles, case.examples, strict=True)
        for row in forced_logits(oracle, example.target_ids)
    ]
    probs = log_noise_V.double().exp().tolist()
    expected = [one_example(*one, probs) for one in zip(golds, map(tuple, noise), rows, strict=True)]
    assert found.item() == pytest.approx(np.mean(expected), abs=1e-9)


def test_the_generator_decides_and_without_targets_the_loss_is_zero() -> None:
    features, head, targets = torch.randn(5, 2), torch.randn(3, 2), torch.tensor([0, 1, 2, 0, 1])
    log_noise = LOG_NOISE.float()

    def loss(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return float(
            sampled_noise_contrastive_loss(features, head, None, targets, log_noise, num_noise=3, generator=generator)
        )

    assert loss(0) == loss(0)
    assert len({loss(seed) for seed in range(10)}) == 10
    none = torch.full((5,), -1)
    assert float(sampled_noise_contrastive_loss(features, head, None, none, log_noise, num_noise=3)) == 0
    assert float(noise_contrastive_loss(*(torch.zeros(shape) for shape in ((0,), (0,), (0, 2), (0, 2))))) == 0


def test_no_noise_is_refused() -> None:
    for call in (
        lambda: sampled_noise_contrastive_loss(
            torch.zeros(1, 2), torch.zeros(3, 2), None, torch.tensor([0]), LOG_NOISE, num_noise=0
        ),
        lambda: noise_contrastive_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1, 0), torch.zeros(1, 0)),
    ):
        with pytest.raises(InputError, match="noise"):
            call()


def test_extreme_scores_stay_finite() -> None:
    for raw in (1e4, -1e4):
        leaf = torch.full((3,), raw, requires_grad=True)
        noise_NK, log_noise = torch.arange(3).expand(6, -1), LOG_NOISE.float()
        loss = noise_contrastive_loss(leaf[TARGETS], log_noise[TARGETS], leaf[noise_NK], log_noise[noise_NK])
        loss.backward()
        assert torch.isfinite(loss)
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


def test_targets_heads_and_noise_that_do_not_fit_are_refused() -> None:
    features, head, targets = torch.zeros(2, 5), torch.zeros(3, 5), torch.tensor([0, 3])
    with pytest.raises(InputError, match="the target 3 is outside the vocabulary of 3"):
        sampled_noise_contrastive_loss(features, head, None, targets, LOG_NOISE, num_noise=2)
    with pytest.raises(InputError, match=r"targets of shape \(1,\) for features"):
        sampled_noise_contrastive_loss(features, head, None, targets[:1], LOG_NOISE, num_noise=2)
    with pytest.raises(InputError, match=r"a head of shape \(3, 4\) for features"):
        sampled_noise_contrastive_loss(features, head[:, 1:], None, targets[:1].expand(2), LOG_NOISE, num_noise=2)
    with pytest.raises(InputError, match=r"noise of shape \(2,\) for a vocabulary of 3"):
        sampled_noise_contrastive_loss(features, head, None, targets * 0, LOG_NOISE[:2], num_noise=2)
