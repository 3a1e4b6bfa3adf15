"""Mask-Predict against a loop over single positions; the likeliest lengths."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from seqwise import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import SeededDraws, local_energy, mask_predict, start_chains, table_model
from seqwise.sampling.refinement import likeliest_lengths, refine


def refined_by_hand(
    model: MaskedModel, tokens: list[int], free: list[int], iterations: int, context: Any, allowed: list[int]
) -> tuple[list[int], list[float]]:
    """One sequence, one position and one token at a time; ``free`` are places; the log-probability of each of them."""
    tokens, certainty = list(tokens), dict.fromkeys(free, -math.inf)
    for iteration in range(iterations):
        count = len(free) * (iterations - iteration) // iterations
        masked = sorted(sorted(free), key=lambda place: certainty[place])[:count]
        before = list(tokens)
        for place in masked:
            flags = [[at in masked for at in range(len(tokens))]]
            rows = model.masked_logits(torch.tensor([before]), torch.tensor(flags), context)
            scores = rows[sorted(masked).index(place)].tolist()
            log_z = math.log(math.fsum(math.exp(scores[token]) for token in allowed))
            tokens[place] = max(allowed, key=lambda token: scores[token])
            certainty[place] = scores[tokens[place]] - log_z
    return tokens, [certainty[place] for place in free]


# ---- Lengths --------------------------------------------------------------------------------------------------------


def test_the_likeliest_lengths_are_those_of_a_sort() -> None:
    log_probs_BL = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    for beam in (1, 3, 9):
        for shortest in (1, 4):
            found = likeliest_lengths(log_probs_BL, beam=beam, shortest=shortest).tolist()
            for row, lengths in zip(log_probs_BL.tolist(), found, strict=True):
                known = sorted(range(shortest, 10), key=lambda length: -row[length - 1])
                assert lengths == known[:beam]


def test_equally_likely_lengths_are_ordered_shortest_first() -> None:
    assert likeliest_lengths(torch.zeros(1, 40), beam=3).tolist() == [[1, 2, 3]]
    assert likeliest_lengths(torch.tensor([[0.0, 1.0, 0.0, 1.0]]), beam=9).tolist() == [[2, 4, 1, 3]]


@pytest.mark.parametrize(
    ("beam", "shortest", "what"), [(0, 1, "at least 1 length"), (1, 5, "from 1 to 4"), (1, 0, "0")]
)
def test_invalid_numbers_of_lengths_are_refused(beam: int, shortest: int, what: str) -> None:
    with pytest.raises(InputError, match=what):
        likeliest_lengths(torch.zeros(1, 4), beam=beam, shortest=shortest)


# ---- Refinement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("allowed", [None, [0, 2, 3]])
def test_refinement_equals_the_kernel_and_a_loop(iterations: int, allowed: list[int] | None) -> None:
    model = table_model(num_positions=5, vocab_size=4, seed=3)
    free_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]).bool()
    tokens_BT = torch.tensor([[0, 1, 2, 3, 0], [3, 2, 1, 0, 0], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]])
    context = torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=torch.float64)
    allowed_V = None if allowed is None else torch.tensor([token in allowed for token in range(4)])
    found_BT, log_probs_BT = refine(
        model, tokens_BT, free_BT, num_iterations=iterations, context=context, allowed_V=allowed_V
    )
    state = start_chains(local_energy(model), tokens_BT, free_BT=free_BT, context=context)
    kernel = mask_predict(model, num_iterations=iterations, allowed_V=allowed_V)
    assert torch.equal(found_BT, kernel(SeededDraws(0, state.chain_B, sweep=0), state)[0].tokens_BT)
    for row in range(len(tokens_BT)):
        free = free_BT[row].nonzero().flatten().tolist()
        tokens, certainty = refined_by_hand(
            model, tokens_BT[row].tolist(), free, iterations, context[row : row + 1], allowed or [0, 1, 2, 3]
        )
        assert found_BT[row].tolist() == tokens
        assert log_probs_BT[row, free].tolist() == pytest.approx(certainty, abs=1e-12)
    assert bool((log_probs_BT[~free_BT] == 0).all())
    assert torch.equal(tokens_BT[0], torch.tensor([0, 1, 2, 3, 0]))  # the argument is not changed


def test_without_an_iteration_nothing_is_refined() -> None:
    with pytest.raises(InputError, match="at least 1 iteration"):
        refine(table_model(num_positions=1, vocab_size=2), torch.zeros(1, 1).long(), torch.ones(1, 1).bool(),
               num_iterations=0)  # fmt: skip


@pytest.mark.parametrize("allowed", [[False, False], [True]])
def test_without_an_allowed_token_nothing_is_refined(allowed: list[bool]) -> None:
    model = table_model(num_positions=1, vocab_size=2)
    with pytest.raises(InputError, match="must be a bool mask of 2 tokens, at least one of them true"):
        refine(model, torch.zeros(1, 1).long(), torch.ones(1, 1).bool(),
               num_iterations=1, allowed_V=torch.tensor(allowed))  # fmt: skip
