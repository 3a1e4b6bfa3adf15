"""Low-confidence remasking: its exact law against a recursion over every draw, and what it is not."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from seqwise import InputError
from seqwise.sampling import (
    SeededDraws,
    boltzmann,
    local_energy,
    low_confidence_remasking,
    masked_conditionals,
    sample_chains,
    start_chains,
    table_model,
    transition_matrix,
)
from seqwise.sampling.correctness import TableModel, every_sequence

SIZE, LENGTH = 2, 3
MODEL = table_model(num_positions=LENGTH, vocab_size=SIZE, seed=4)
EVERY = every_sequence(SIZE, LENGTH)


def conditionals(model: TableModel, tokens: list[int], masked: list[int], temperature: float) -> list[list[float]]:
    """The distribution at each masked position given the others, from the table itself."""
    digits = [SIZE if place in masked else token for place, token in enumerate(tokens)]
    row = sum(digit * (SIZE + 1) ** (LENGTH - 1 - place) for place, digit in enumerate(digits))
    found = []
    for place in masked:
        powers = [math.exp(float(score) / temperature) for score in model.table[place, row]]
        found.append([power / sum(powers) for power in powers])
    return found


def law(num_iterations: int, temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of every sequence: a recursion over what may be drawn in each iteration."""
    probabilities: dict[tuple[int, ...], float] = {}

    def go_on(tokens: list[int], masked: list[int], iteration: int, weight: float) -> None:
        if iteration > num_iterations:
            key = tuple(tokens)
            probabilities[key] = probabilities.get(key, 0.0) + weight
            return
        q = conditionals(MODEL, tokens, masked, temperature)
        stay = LENGTH - LENGTH * iteration // num_iterations
        for drawn in itertools.product(range(SIZE), repeat=len(masked)):
            certainty = [q[place][token] for place, token in enumerate(drawn)]
            surest = sorted(range(len(masked)), key=lambda place: (-certainty[place], place))
            kept = surest[: len(masked) - stay]
            after = list(tokens)
            for place in kept:
                after[masked[place]] = drawn[place]
            left = [position for place, position in enumerate(masked) if place not in kept]
            go_on(after, left, iteration + 1, weight * math.prod(certainty))

    go_on([0] * LENGTH, list(range(LENGTH)), 1, 1.0)
    return probabilities


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("num_iterations", [1, 2, 3])
def test_its_law_is_that_of_a_recursion_over_every_draw(num_iterations: int, temperature: float) -> None:
    kernel = low_confidence_remasking(
        masked_conditionals(MODEL, temperature=temperature), num_iterations=num_iterations
    )
    matrix = transition_matrix(kernel, start_chains(local_energy(MODEL), EVERY))
    expected = law(num_iterations, temperature)
    wanted = torch.tensor([expected.get(tuple(row), 0.0) for row in EVERY.tolist()], dtype=torch.float64)
    torch.testing.assert_close(matrix, wanted.expand_as(matrix), atol=1e-12, rtol=0)


def test_one_token_at_a_time_is_not_the_law_of_the_conditionals_in_any_order() -> None:
    """The surest draw is kept, which favours likely tokens: the chain rule over random orders gives another law."""
    kernel = low_confidence_remasking(masked_conditionals(MODEL), num_iterations=LENGTH)
    ours = transition_matrix(kernel, start_chains(local_energy(MODEL), EVERY))[0]
    any_order = torch.zeros(len(EVERY), dtype=torch.float64)
    for number, tokens in enumerate(EVERY.tolist()):
        for order in itertools.permutations(range(LENGTH)):
            weight = 1.0
            for place in range(LENGTH):
                masked = sorted(order[place:])
                q = conditionals(MODEL, tokens, masked, 1.0)
                weight *= q[masked.index(order[place])][tokens[order[place]]]
            any_order[number] += weight / math.factorial(LENGTH)
    assert float(any_order.sum()) == pytest.approx(1)
    assert float((ours - any_order).abs().sum() / 2) > 0.01
    assert float((ours - boltzmann(start_chains(local_energy(MODEL), EVERY).energy_B)).abs().sum() / 2) > 0.01


def test_positions_that_are_not_free_stay_and_ragged_chains_stop_alone() -> None:
    free_BT = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()
    tokens_BT = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1]])
    state = start_chains(local_energy(MODEL), tokens_BT, free_BT=free_BT)
    kernel = low_confidence_remasking(masked_conditionals(MODEL), num_iterations=3)
    after, info = kernel(SeededDraws(0, state.chain_B, sweep=0), state)
    assert torch.equal(after.tokens_BT[~free_BT], tokens_BT[~free_BT])
    assert info.proposals_B.tolist() == [3, 3, 0] and not info.invariant
    alone = start_chains(local_energy(MODEL), tokens_BT[:1], free_BT=free_BT[:1])
    one, _ = kernel(SeededDraws(0, alone.chain_B, sweep=0), alone)
    assert torch.equal(one.tokens_BT[0], after.tokens_BT[0])


def test_tokens_that_are_not_allowed_are_never_drawn() -> None:
    model = table_model(num_positions=LENGTH, vocab_size=3, seed=4)
    allowed_V = torch.tensor([True, False, True])
    proposal = masked_conditionals(model, allowed_V=allowed_V)
    state = start_chains(local_energy(model), torch.zeros(20, LENGTH).long())
    trace = sample_chains(low_confidence_remasking(proposal, num_iterations=2), state, 5, seed=0)
    assert allowed_V[trace.tokens_SBT].all() and (trace.tokens_SBT == 2).any()


def test_no_iterations_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1 iteration, got 0"):
        low_confidence_remasking(masked_conditionals(MODEL), num_iterations=0)
