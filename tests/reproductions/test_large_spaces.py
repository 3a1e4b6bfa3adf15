"""Log Z block by block, and true conditionals, against one pass of the model for each masked sequence."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from reproductions.goyal_2021 import large_spaces
from reproductions.goyal_2021.large_spaces import (
    log_partitions_of_block,
    product_blocks,
    sequence_scores,
    true_conditionals,
)
from seqwise.models import MaskedLSTM
from seqwise.sampling.correctness import every_sequence


def random_model(vocab_size: int, *, std: float = 0.8) -> MaskedLSTM:
    model = MaskedLSTM(vocab_size=vocab_size, embedding_size=4, hidden_size=5, feedforward_size=6).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


@torch.no_grad()
def brute_force(model: MaskedLSTM, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Minus both energies, by the public forward pass, one masked position at a time."""
    raw_B = torch.zeros(len(tokens_BT), dtype=torch.float64)
    local_B = raw_B.clone()
    for place in range(tokens_BT.shape[1]):
        masked_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        masked_BT[:, place] = True
        logits_BV = model.masked_logits(tokens_BT, masked_BT)
        for row, token in enumerate(tokens_BT[:, place].tolist()):
            raw_B[row] += logits_BV[row, token]
            local_B[row] += logits_BV[row, token] - math.log(sum(math.exp(logit) for logit in logits_BV[row].tolist()))
    return raw_B, local_B


def log_sum(scores_B: Tensor) -> float:
    return math.log(math.fsum(math.exp(score) for score in scores_B.tolist()))


def check_partition(model: MaskedLSTM, length: int, *, tokens_at_once: int, expected: tuple[Tensor, Tensor]) -> None:
    blocks = product_blocks(model.vocab_size, length, tokens_at_once=tokens_at_once)
    found = [log_partitions_of_block(model, choices) for choices in blocks]
    for reading, scores_B in enumerate(expected):
        total = math.log(math.fsum(math.exp(one[reading].item()) for one in found))
        assert total == pytest.approx(log_sum(scores_B), abs=1e-9)
        assert found[0][reading].dtype == torch.float64 and not found[0][reading].requires_grad


# ------------------------------------------------------------------ log Z


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_log_z_in_blocks_of_every_size(length: int) -> None:
    model = random_model(5)
    expected = brute_force(model, every_sequence(5, length))
    for tokens_at_once in range(1, 7):
        check_partition(model, length, tokens_at_once=tokens_at_once, expected=expected)


@pytest.mark.parametrize("contexts, states", [(1, 1), (3, 2), (7, 5), (50, 7)])
def test_log_z_whatever_is_computed_at_once(contexts: int, states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_spaces, "CONTEXTS_AT_ONCE", contexts)
    monkeypatch.setattr(large_spaces, "STATES_AT_ONCE", states)
    model = random_model(3)
    expected = brute_force(model, every_sequence(3, 5))
    for tokens_at_once in (2, 3):
        check_partition(model, 5, tokens_at_once=tokens_at_once, expected=expected)


def test_log_z_where_exponentials_are_large_or_vanish() -> None:
    model = random_model(3)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([70.0, -75.0, 0.0]))
    expected = brute_force(model, every_sequence(3, 3))
    assert max(score.abs().max() for score in expected) > 2 * large_spaces.LARGEST_EXPONENT
    check_partition(model, 3, tokens_at_once=2, expected=expected)
    with torch.no_grad():  # in float32, e^100 is infinite: what is taken off first must not depend on the context
        model.head.bias.copy_(torch.tensor([100.0, -100.0, 0.0]))
    found = log_partitions_of_block(model.float(), [torch.arange(3)] * 3)
    raw, local = brute_force(model.double(), every_sequence(3, 3))
    assert found.raw.item() == pytest.approx(log_sum(raw), rel=1e-6)
    assert found.local.item() == pytest.approx(log_sum(local), abs=1e-4)


def test_a_block_is_a_product_of_any_sets() -> None:
    model = random_model(5)
    choices = [torch.tensor(tokens) for tokens in ([3], [4, 0, 2], [1, 3], [2, 1])]
    tokens_BT = torch.tensor(list(product(*(tokens.tolist() for tokens in choices))))
    found = log_partitions_of_block(model, choices)
    for reading, scores_B in zip(found, brute_force(model, tokens_BT), strict=True):
        assert reading.item() == pytest.approx(log_sum(scores_B), abs=1e-9)


def test_single_precision_loses_next_to_nothing() -> None:
    model = random_model(6, std=0.4)
    choices = [torch.arange(6)] * 5
    exact = log_partitions_of_block(model, choices)
    found = log_partitions_of_block(model.float(), choices)
    assert found.raw.item() == pytest.approx(exact.raw.item(), abs=2e-6)
    assert found.local.item() == pytest.approx(exact.local.item(), abs=2e-6)


@pytest.mark.parametrize("tokens_at_once", [1, 2, 3, 4, 9])
def test_every_sequence_is_in_one_block(tokens_at_once: int) -> None:
    for length in (1, 2, 4):
        blocks = product_blocks(4, length, tokens_at_once=tokens_at_once)
        met = [one for choices in blocks for one in product(*(tokens.tolist() for tokens in choices))]
        assert sorted(met) == [tuple(one) for one in every_sequence(4, length).tolist()]
        assert len(blocks) == math.ceil(4 / tokens_at_once) ** max(0, length - 2)


# ------------------------------------------------------------------ given sequences


@pytest.mark.parametrize("length", [1, 2, 4])
def test_scores_of_sequences(length: int) -> None:
    model, tokens_BT = random_model(4), torch.randint(4, (9, length))
    found = sequence_scores(model, tokens_BT)
    for scores_B, expected_B in zip(found, brute_force(model, tokens_BT), strict=True):
        torch.testing.assert_close(scores_B, expected_B, atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_true_conditionals_of_all_variants(length: int) -> None:
    model, tokens_BT = random_model(4), torch.randint(4, (3, length))
    for place in range(length):
        found_BV = true_conditionals(model, tokens_BT, place)
        variants_BVT = tokens_BT[:, None].repeat(1, 4, 1)
        variants_BVT[:, :, place] = torch.arange(4)
        scores_BV = brute_force(model, variants_BVT.flatten(0, 1))[0].view(3, 4)
        expected_BV = scores_BV - torch.tensor([[log_sum(scores_V)] for scores_V in scores_BV], dtype=torch.float64)
        torch.testing.assert_close(found_BV, expected_BV, atol=1e-12, rtol=0)


def test_gradients_of_a_parameter_of_each_part() -> None:
    """By central differences: what trains is the whole model, through all variants."""
    model, tokens_BT = random_model(3), torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]])

    def loss() -> Tensor:
        conditionals = sum(true_conditionals(model, tokens_BT, place)[:, 1].sum() for place in range(4))
        return conditionals + sequence_scores(model, tokens_BT).local.sum()

    loss().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        flat, place = parameter.data.view(-1), parameter.numel() // 2
        before = flat[place].item()
        values = []
        for step in (1e-5, -1e-5):
            flat[place] = before + step
            values.append(loss().item())
        flat[place] = before
        numeric = (values[0] - values[1]) / 2e-5
        assert parameter.grad.view(-1)[place].item() == pytest.approx(numeric, abs=1e-7), name


# ------------------------------------------------------------------ refusals
