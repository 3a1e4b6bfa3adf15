"""Noise-contrastive estimation of sequences: sums written out one by one, consistency, noises that fill masks."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from reproductions.goyal_2021.energy_training import likelihood_loss
from reproductions.goyal_2021.enumerable import Enumerable
from reproductions.goyal_2021.sequence_contrastive import (
    estimated_log_partition,
    expected_sequence_contrastive_loss,
    ranking_contrastive_loss,
    sampled_sequence_contrastive_loss,
    sequence_contrastive_loss,
)
from reproductions.goyal_2021.sequence_noise import (
    SequenceNoise,
    fill_log_probs,
    fill_masks,
    filling_noise,
    left_to_right,
    shuffled_orders,
    table_noise,
)
from seqwise.errors import InputError
from seqwise.models import MaskedLSTM, MaskedTransformer
from seqwise.sampling.correctness import every_sequence

V, T = 3, 2
N = V**T
SEQUENCES = list(itertools.product(range(V), repeat=T))


def random_log_probs(*shape: int) -> Tensor:
    return torch.randn(*shape, N, dtype=torch.float64).log_softmax(-1)


def random_table() -> Enumerable:
    return Enumerable(V, T, random_log_probs())


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
def test_losses_are_the_sums_written_out(num_noise: int) -> None:
    scores, weights, log_noise = torch.randn(N).double(), random_log_probs().exp(), random_log_probs(3)
    found = expected_sequence_contrastive_loss(scores, weights, log_noise, num_noise=num_noise, log_partition=0.7)
    expected = [
        written_out(scores, weights, one, num_noise=num_noise, log_partition=0.7) for one in log_noise
    ]  # the mean over three noises
    assert found.item() == pytest.approx(sum(expected) / 3, abs=1e-12)
    gold, noise = torch.tensor([1, 4]), torch.randint(N, (2, num_noise))
    log_q = log_noise[0]
    found = sequence_contrastive_loss(scores[gold], log_q[gold], scores[noise], log_q[noise], log_partition=0.7)
    right = partial(probability_of_data, num_noise=num_noise, log_partition=0.7)
    total = 0.0
    for one, others in zip(gold.tolist(), noise.tolist(), strict=True):
        total -= math.log(right(scores[one].item(), log_q[one].item()))
        total -= sum(math.log(1 - right(scores[other].item(), log_q[other].item())) for other in others)
    assert found.item() == pytest.approx(total / 2, abs=1e-12)
    found = ranking_contrastive_loss(scores[gold], log_q[gold], scores[noise], log_q[noise])
    total = 0.0
    for one, others in zip(gold.tolist(), noise.tolist(), strict=True):
        ratios = [math.exp(scores[place].item() - log_q[place].item()) for place in (one, *others)]
        total -= math.log(ratios[0] / sum(ratios))
    assert found.item() == pytest.approx(total / 2, abs=1e-12)


def test_gradients() -> None:
    weights, log_noise = random_log_probs().exp(), random_log_probs(2)
    scores, log_partition = torch.randn(N).double().requires_grad_(), torch.tensor(0.3).double().requires_grad_()

    def expected(scores_N: Tensor, log_z: Tensor) -> Tensor:
        return expected_sequence_contrastive_loss(scores_N, weights, log_noise, num_noise=3, log_partition=log_z)

    assert torch.autograd.gradcheck(expected, (scores, log_partition))
    gold, noise = torch.tensor([1, 4]), torch.tensor([[0, 4, 2], [5, 5, 1]])

    def sampled(scores_N: Tensor, log_z: Tensor) -> Tensor:
        given = scores_N[gold], log_noise[0, gold], scores_N[noise], log_noise[0, noise]
        return sequence_contrastive_loss(*given, log_partition=log_z) + ranking_contrastive_loss(*given)

    assert torch.autograd.gradcheck(sampled, (scores, log_partition))


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


@pytest.mark.parametrize("num_noise", [1, 2])
def test_the_ranking_form_is_consistent_up_to_a_constant(num_noise: int) -> None:
    truth, log_noise = random_log_probs(), random_log_probs()

    def expected(scores: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for gold, *others in itertools.product(range(N), repeat=num_noise + 1):
            chance = (truth[gold] + log_noise[others].sum()).exp()
            total = total + chance * ranking_contrastive_loss(
                scores[[gold]], log_noise[[gold]], scores[others][None], log_noise[others][None]
            )
        return total

    scores = (truth + 2.5).requires_grad_()
    least = expected(scores)
    least.backward()
    assert scores.grad is not None and scores.grad.abs().max() < 1e-15
    assert expected(truth).item() == pytest.approx(least.item(), abs=1e-12)
    assert expected(truth + 0.3 * torch.randn(N).double()).item() > least.item() + 1e-4


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


def test_a_table_is_learnt_from_samples_and_log_z_with_it() -> None:
    truth, noise = random_table(), table_noise(random_table())
    generator = torch.Generator().manual_seed(0)
    scores = torch.zeros(N, dtype=torch.float64, requires_grad=True)
    log_partition = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([scores, log_partition], lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=400)
    for _ in range(400):
        optimizer.zero_grad()
        sampled_sequence_contrastive_loss(
            lambda tokens_BT: scores[tokens_BT[:, 0] * V + tokens_BT[:, 1]], truth.sample(256, generator=generator),
            noise, num_noise=4, contrast=partial(sequence_contrastive_loss, log_partition=log_partition),
            generator=generator,
        ).backward()  # fmt: skip
        optimizer.step()
        schedule.step()
    found = scores.detach()
    divergence = (truth.probs_N * (truth.log_probs_N - found.log_softmax(0))).sum().item()
    assert divergence < 2e-3 and abs((found.logsumexp(0) - log_partition).item()) < 0.05
    assert abs(found.logsumexp(0).item()) > 0.3  # it is not that log Z stayed where it was


# ------------------------------------------------------------------ samples against expectations


def noises() -> list[tuple[SequenceNoise, Tensor]]:
    """Noise with log q of all sequences, for each order that it may take: (O, N)."""
    table, every = random_table(), every_sequence(V, T)
    model = small_model()
    with torch.no_grad():
        tables = [
            torch.stack([fill_log_probs(model, every, torch.tensor(order).expand(N, T)) for order in orders])
            for orders in ([(0, 1)], [(0, 1), (1, 0)])
        ]
    return [
        (table_noise(table), table.log_probs_N[None]),
        (filling_noise(model, left_to_right(T)), tables[0]),
        (filling_noise(model, shuffled_orders(T)), tables[1]),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("which", [0, 1, 2])
def test_samples_estimate_the_expected_loss_without_bias(which: int) -> None:
    noise, log_noise = noises()[which]
    truth, generator = random_table(), torch.Generator().manual_seed(1)
    scores = torch.randn(N).double()

    def scored(tokens_BT: Tensor) -> Tensor:
        return scores[tokens_BT[:, 0] * V + tokens_BT[:, 1]]

    contrast = partial(sequence_contrastive_loss, log_partition=0.4)
    losses = torch.stack([
        sampled_sequence_contrastive_loss(
            scored, truth.sample(50, generator=generator), noise, num_noise=3, contrast=contrast, generator=generator
        )
        for _ in range(250)
    ])  # fmt: skip
    expected = expected_sequence_contrastive_loss(scores, truth.probs_N, log_noise, num_noise=3, log_partition=0.4)
    error = losses.std() / math.sqrt(len(losses))
    assert abs((losses.mean() - expected) / error) < 4 and error < 0.03
    if which == 2:  # with the orders confused, the difference would be seen
        for wrong in log_noise:
            other = expected_sequence_contrastive_loss(scores, truth.probs_N, wrong, num_noise=3, log_partition=0.4)
            assert abs((other - expected) / error) > 6


@pytest.mark.parametrize("which", [0, 1, 2])
def test_noise_is_drawn_as_often_as_it_says(which: int) -> None:
    noise, log_noise = noises()[which]
    generator = torch.Generator().manual_seed(2)
    tokens_BT, log_probs_B = noise.draw(20_000, generator)
    probs = log_noise.exp().mean(0)
    assert probs.sum().item() == pytest.approx(1, abs=1e-9)
    shares = torch.bincount(tokens_BT[:, 0] * V + tokens_BT[:, 1], minlength=N) / len(tokens_BT)
    errors = (probs * (1 - probs) / len(tokens_BT)).sqrt()
    assert ((shares - probs) / errors).abs().max() < 4
    # What is said of the draw is one of what could be said of the sequence.
    said = log_noise[:, tokens_BT[:, 0] * V + tokens_BT[:, 1]] - log_probs_B
    assert said.abs().amin(0).max() < 1e-9
    again = noise.draw(20, torch.Generator().manual_seed(3)), noise.draw(20, torch.Generator().manual_seed(3))
    assert torch.equal(again[0][0], again[1][0]) and torch.equal(again[0][1], again[1][1])
    # The same of given sequences, with orders drawn as often as each other, whatever the sequences.
    told_B = noise.log_probs(tokens_BT, generator)
    differences_OB = (log_noise[:, tokens_BT[:, 0] * V + tokens_BT[:, 1]] - told_B).abs()
    assert differences_OB.amin(0).max() < 1e-9 and not told_B.requires_grad
    of_order = (differences_OB < 1e-9).double().mean(1)
    assert (of_order - 1 / len(log_noise)).abs().max() < 4 * math.sqrt(0.25 / len(tokens_BT))


def test_importance_sampling_estimates_log_z() -> None:
    scores, table = torch.randn(N).double(), random_table()
    tokens_BT, log_noise_B = table_noise(table).draw(20_000, torch.Generator().manual_seed(4))
    ratios_B = (scores[tokens_BT[:, 0] * V + tokens_BT[:, 1]] - log_noise_B).exp()
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
    drawn, log_probs = fill_masks(model, orders_BT)
    torch.testing.assert_close(fill_log_probs(model, drawn, orders_BT), log_probs, atol=1e-12, rtol=0)


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
