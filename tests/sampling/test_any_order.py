"""Bounds of any-order models against all 2^T masks, and their variance against plain Monte Carlo."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from seqwise import InputError
from seqwise.models import MaskedLSTM
from seqwise.sampling.any_order import any_order_bound

NUM_POSITIONS = 6


def model() -> MaskedLSTM:
    torch.manual_seed(0)
    lstm = MaskedLSTM(vocab_size=4, embedding_size=6, hidden_size=8, feedforward_size=8).double().eval()
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter *= 3.0
    return lstm


TOKENS_T = torch.tensor([2, 0, 3, 1, 1, 2])


class Remembered:
    """The model, asked once for each of the 2^T masks of one sequence."""

    vocab_size = 4

    def __init__(self) -> None:
        lstm, places = model(), range(NUM_POSITIONS)
        self.logits = {}
        for size in range(1, NUM_POSITIONS + 1):
            for masked in itertools.combinations(places, size):
                masked_1T = torch.tensor([[place in masked for place in places]])
                with torch.no_grad():
                    self.logits[masked] = lstm.masked_logits(TOKENS_T[None], masked_1T)

    def masked_logits(self, tokens_NT: torch.Tensor, masked_NT: torch.Tensor, context: Any = None) -> torch.Tensor:
        assert bool((tokens_NT == TOKENS_T).all())
        return torch.cat([self.logits[tuple(row.nonzero().flatten().tolist())] for row in masked_NT])


MODEL = Remembered()


def log_probs_of(masked: tuple[int, ...]) -> list[float]:
    """The log-probability of each masked token, from one pass of one row."""
    logits_KV = MODEL.logits[masked]
    return [
        math.log(math.exp(row[int(TOKENS_T[place])]) / math.fsum(map(math.exp, row)))
        for row, place in zip(logits_KV.tolist(), masked, strict=True)
    ]


SUMS = {
    masked: math.fsum(log_probs_of(masked))
    for size in range(1, NUM_POSITIONS + 1)
    for masked in itertools.combinations(range(NUM_POSITIONS), size)
}


def exact(free: tuple[int, ...] = tuple(range(NUM_POSITIONS))) -> float:
    """Of every order of the free positions, the log-probability that the model gives the tokens one after another."""
    values = []
    for order in itertools.permutations(free):
        hidden = [tuple(sorted(order[place:])) for place in range(len(order))]
        values.append(math.fsum(log_probs_of(left)[left.index(order[place])] for place, left in enumerate(hidden)))
    return math.fsum(values) / len(values)


def estimates(num_passes: int, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor(
        [any_order_bound(MODEL, TOKENS_T, num_passes=num_passes, generator=generator) for _ in range(count)]
    )


def plain_estimates(num_passes: int, count: int, seed: int = 1) -> torch.Tensor:
    """Monte Carlo as LLaDA has it: a uniform number of masks, a uniform set of so many, each pass for itself."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(count):
        total = 0.0
        for size in torch.randint(1, NUM_POSITIONS + 1, (num_passes,), generator=generator).tolist():
            masked = tuple(sorted(torch.randperm(NUM_POSITIONS, generator=generator)[:size].tolist()))
            total += NUM_POSITIONS / size * SUMS[masked]
        values.append(total / num_passes)
    return torch.tensor(values)


def test_the_bound_over_sets_is_the_mean_over_orders() -> None:
    """The sum over all 2^T masks, which the estimate aims at, and the definition by orders."""
    by_sets = math.fsum(value / (len(masked) * math.comb(NUM_POSITIONS, len(masked))) for masked, value in SUMS.items())
    assert by_sets == pytest.approx(exact((0, 1, 2, 3, 4, 5)), abs=1e-9)


@pytest.mark.parametrize("num_passes", [1, 3, 6, 12, 13])
def test_the_estimate_is_unbiased(num_passes: int) -> None:
    values = estimates(num_passes, 400)
    error = float(values.std() / math.sqrt(len(values)))
    assert error > 0 and abs(float(values.mean()) - exact()) < 4 * error


@pytest.mark.thorough
@pytest.mark.parametrize("num_passes", [6, 12, 96])
def test_its_variance_is_at_most_a_quarter_of_plain_monte_carlo(num_passes: int) -> None:
    """With 2,000 estimates of each, a ratio of variances is off by a factor of 1.2 at most, at four standard errors."""
    plain, ours = plain_estimates(num_passes, 2000), estimates(num_passes, 2000)
    assert abs(float(plain.mean()) - exact()) < 4 * float(plain.std()) / math.sqrt(2000)
    assert 1.2 * float(ours.var()) < float(plain.var()) / 4


def test_given_tokens_are_never_masked() -> None:
    free_T = torch.tensor([False, True, False, True, True, False])
    generator = torch.Generator().manual_seed(2)
    values = torch.tensor(
        [
            any_order_bound(MODEL, TOKENS_T, num_passes=5, generator=generator, free_T=free_T, max_rows=2)
            for _ in range(300)
        ]
    )
    assert abs(float(values.mean()) - exact((1, 3, 4))) < 4 * float(values.std()) / math.sqrt(300)


def test_one_free_position_leaves_nothing_to_chance() -> None:
    free_T = torch.tensor([False, True, False, False, False, False])
    value = any_order_bound(MODEL, TOKENS_T, num_passes=3, generator=torch.Generator(), free_T=free_T)
    assert value == pytest.approx(SUMS[(1,)], abs=1e-12)


def test_no_pass_and_no_position_are_refused() -> None:
    with pytest.raises(InputError, match="num_passes must be at least 1, got 0"):
        any_order_bound(MODEL, TOKENS_T, num_passes=0, generator=torch.Generator())
    with pytest.raises(InputError, match="no position is free"):
        nothing_T = torch.zeros(6, dtype=torch.bool)
        any_order_bound(MODEL, TOKENS_T, num_passes=1, generator=torch.Generator(), free_T=nothing_T)
