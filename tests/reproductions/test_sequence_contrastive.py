"""Noise-contrastive estimation of sequences: sums written out one by one, consistency, noises that fill masks."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from reproductions.goyal_2021.energy_training import likelihood_loss
from reproductions.goyal_2021.sequence_contrastive import (
    estimated_log_partition,
    expected_sequence_contrastive_loss,
    fill_log_probs,
    left_to_right,
    shuffled_orders,
)
from seqwise.errors import InputError
from seqwise.models import MaskedLSTM, MaskedTransformer
from seqwise.sampling.correctness import every_sequence

V, T = 3, 2
N = V**T
SEQUENCES = list(itertools.product(range(V), repeat=T))


def random_log_probs(*shape: int) -> Tensor:
    return torch.randn(*shape, N, dtype=torch.float64).log_softmax(-1)


def small_model(length: int = T, *, which: type = MaskedLSTM) -> MaskedLSTM | MaskedTransformer:
    if which is MaskedTransformer:
        model = MaskedTransformer(
            vocab_size=V, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=8, dropout=0.0
        )
        return model.double().eval()
    model = MaskedLSTM(vocab_size=V, embedding_size=4, hidden_size=5, feedforward_size=6).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return model


def probability_of_data(score: float, log_noise: float, *, num_noise: int, log_partition: float) -> float:
    """Bayes: one of data and K of noise; the model stands for the density of the data."""
    data, noise = math.exp(score - log_partition), num_noise * math.exp(log_noise)
    return data / (data + noise)


def written_out(scores: Tensor, weights: Tensor, log_noise: Tensor, *, num_noise: int, log_partition: float) -> float:
    total = 0.0
    for score, weight, log_q in zip(scores.tolist(), weights.tolist(), log_noise.tolist(), strict=True):
        right = probability_of_data(score, log_q, num_noise=num_noise, log_partition=log_partition)
        total -= weight * math.log(right) + num_noise * math.exp(log_q) * math.log(1 - right)
    return total


# ------------------------------------------------------------------ values and gradients


@pytest.mark.parametrize("num_noise", [1, 4])
def test_the_loss_is_the_sum_written_out(num_noise: int) -> None:
    scores, weights, log_noise = torch.randn(N).double(), random_log_probs().exp(), random_log_probs(3)
    found = expected_sequence_contrastive_loss(scores, weights, log_noise, num_noise=num_noise, log_partition=0.7)
    expected = [
        written_out(scores, weights, one, num_noise=num_noise, log_partition=0.7) for one in log_noise
    ]  # the mean over three noises
    assert found.item() == pytest.approx(sum(expected) / 3, abs=1e-12)


def test_gradients() -> None:
    weights, log_noise = random_log_probs().exp(), random_log_probs(2)
    scores, log_partition = torch.randn(N).double().requires_grad_(), torch.tensor(0.3).double().requires_grad_()

    def expected(scores_N: Tensor, log_z: Tensor) -> Tensor:
        return expected_sequence_contrastive_loss(scores_N, weights, log_noise, num_noise=3, log_partition=log_z)

    assert torch.autograd.gradcheck(expected, (scores, log_partition))


# ------------------------------------------------------------------ consistency


@pytest.mark.parametrize("num_noise", [1, 5])
@pytest.mark.parametrize("orders", [(), (3,)])
def test_the_truth_is_where_the_gradient_vanishes(num_noise: int, orders: tuple[int, ...]) -> None:
    """True energies up to any constant, and log Z: a minimum, whatever the noise, or noises."""
    truth, log_noise = random_log_probs(), random_log_probs(*orders)
    loss = partial(expected_sequence_contrastive_loss, weights_N=truth.exp(), log_noise=log_noise, num_noise=num_noise)
    for constant in (0.0, 3.7):
        scores = (truth + constant).requires_grad_()
        log_partition = torch.tensor(constant, dtype=torch.float64, requires_grad=True)
        loss(scores, log_partition=log_partition).backward()
        assert scores.grad is not None and log_partition.grad is not None
        assert scores.grad.abs().max() < 1e-15 and log_partition.grad.abs() < 1e-15
        assert scores.detach().logsumexp(0).item() == pytest.approx(constant, abs=1e-12)  # which is the true log Z
    least = loss(truth).item()
    for _ in range(20):
        assert loss(truth + 0.1 * torch.randn(N).double()).item() > least
    for other in (-0.1, 0.1):
        assert loss(truth, log_partition=other).item() > least
    # Weights other than the truth have their optimum elsewhere: the gradient does not vanish everywhere.
    scores = truth.clone().requires_grad_()
    expected_sequence_contrastive_loss(scores, random_log_probs().exp(), log_noise, num_noise=num_noise).backward()
    assert scores.grad is not None and scores.grad.abs().max() > 1e-3


def test_much_noise_gives_the_gradient_of_the_likelihood() -> None:
    """K to infinity: p_model - p_data, where log Z is right."""
    logits = torch.randn(T, V ** (T - 1), V, dtype=torch.float64)
    scores = (logits[0].T.reshape(-1) + logits[1].reshape(-1)).requires_grad_()  # position by position
    weights = random_log_probs().exp()
    log_partition = scores.detach().logsumexp(0)
    expected_sequence_contrastive_loss(
        scores, weights, random_log_probs(), num_noise=10**8, log_partition=log_partition
    ).backward()
    moved = logits.requires_grad_()
    likelihood_loss(moved, weights).backward()
    assert scores.grad is not None and moved.grad is not None
    torch.testing.assert_close(scores.grad, (scores - log_partition).exp().detach() - weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.grad.view(V, V).T, moved.grad[0], atol=1e-6, rtol=0)


def test_importance_sampling_estimates_log_z() -> None:
    scores, log_noise = torch.randn(N).double(), random_log_probs()
    drawn_B = torch.multinomial(log_noise.exp(), 20_000, replacement=True, generator=torch.Generator().manual_seed(4))
    ratios_B = (scores - log_noise)[drawn_B].exp()
    found = estimated_log_partition(ratios_B.log(), torch.zeros(1)).item()
    error = (ratios_B.std() / math.sqrt(len(ratios_B))).item()
    assert abs(math.exp(found) - scores.exp().sum().item()) < 4 * error < 0.05 * math.exp(found)
    # Noise in proportion to exp(-E) has no variance.
    log_noise = scores.log_softmax(0)
    assert estimated_log_partition(scores[:1], log_noise[:1]).item() == pytest.approx(scores.logsumexp(0).item())


# ------------------------------------------------------------------ filling masks


@pytest.mark.parametrize("which", [MaskedLSTM, MaskedTransformer])
def test_the_probability_of_a_filling_is_a_product_of_conditionals(which: type) -> None:
    model, length = small_model(which=which), 4
    tokens_BT = torch.randint(V, (5, length))
    orders_BT = torch.stack([torch.randperm(length) for _ in range(5)])
    found = fill_log_probs(model, tokens_BT, orders_BT)
    for row in range(5):
        total, masked = 0.0, [True] * length
        for place in orders_BT[row].tolist():
            logits = model.masked_logits(tokens_BT[row : row + 1], torch.tensor([masked]))
            number = sum(masked[:place])  # of the rows that the model gives, the one of this position
            total += logits.log_softmax(-1)[number, tokens_BT[row, place]].item()
            masked[place] = False
        assert found[row].item() == pytest.approx(total, abs=1e-12)
    assert found.requires_grad


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_is_a_distribution_of_its_own(order: tuple[int, ...]) -> None:
    model, every = small_model(), every_sequence(V, 3)
    log_probs = fill_log_probs(model, every, torch.tensor(order).expand(len(every), 3))
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-12)
    other = fill_log_probs(model, every, torch.tensor(order).roll(1).expand(len(every), 3))
    assert (log_probs - other).abs().max() > 1e-3


def test_orders() -> None:
    assert left_to_right(4)(2, None).tolist() == [[0, 1, 2, 3]] * 2
    orders_BT = shuffled_orders(3)(6_000, torch.Generator().manual_seed(5))
    _, counts = orders_BT.unique(dim=0, return_counts=True)
    assert len(counts) == 6 and ((counts - 1_000).abs() < 4 * math.sqrt(6_000 * 5 / 36)).all()


# ------------------------------------------------------------------ refusals


def test_noise_must_cover_the_data_and_no_more() -> None:
    weights = torch.tensor([0.5, 0.5, 0.0, *[0.0] * (N - 3)], dtype=torch.float64)
    log_noise = torch.tensor([0.25, 0.5, 0.0, 0.25, *[0.0] * (N - 4)], dtype=torch.float64).log()
    scores = torch.randn(N).double().requires_grad_()
    loss = expected_sequence_contrastive_loss(scores, weights, log_noise, num_noise=2)
    loss.backward()
    # Where there is neither data nor noise, nothing pulls; and 0 times infinity is nowhere.
    assert loss.isfinite() and scores.grad is not None and scores.grad.isfinite().all()
    assert scores.grad[2] == 0 and scores.grad[4:].abs().sum() == 0 and (scores.grad[[0, 1, 3]] != 0).all()
    with pytest.raises(InputError, match="no probability under the noise"):
        expected_sequence_contrastive_loss(scores, weights.flip(0), log_noise, num_noise=2)
