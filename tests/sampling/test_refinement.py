"""Mask-Predict over several lengths: equal to one input and one length at a time, by another hand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from seqwise import InputError
from seqwise.models import ConditionalMaskedTransformer
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import SeededDraws, local_energy, mask_predict, start_chains, table_model
from seqwise.sampling.energies import rows_of
from seqwise.sampling.refinement import likeliest_lengths, predict_with_lengths, refine


class Guess(NamedTuple):
    """What the model below has read: a number for each input, and a guess of the length."""

    shift_B: Tensor
    length_log_probs_BL: Tensor


class Tables:
    """A random table of scores for each length; what was read is added to the scores of token 0."""

    def __init__(self, greatest: int, vocab_size: int) -> None:
        self.vocab_size = self.mask_id = vocab_size
        self.of_length = {
            length: table_model(num_positions=length, vocab_size=vocab_size, seed=length)
            for length in range(1, greatest + 1)
        }
        self.most_rows = 0

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        self.most_rows = max(self.most_rows, len(tokens_NT))
        return self.of_length[tokens_NT.shape[1]].masked_logits(tokens_NT, masked_NT, context.shift_B)


def guess(num_inputs: int, greatest: int, seed: int = 0) -> Guess:
    generator = torch.Generator().manual_seed(seed)
    scores_BL = torch.randn(num_inputs, greatest, generator=generator, dtype=torch.float64)
    return Guess(torch.linspace(-2, 2, num_inputs, dtype=torch.float64), scores_BL.log_softmax(-1))


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
    log_probs_BL = guess(6, 9).length_log_probs_BL
    for beam in (1, 3, 9):
        for shortest in (1, 4):
            found = likeliest_lengths(log_probs_BL, beam=beam, shortest=shortest).tolist()
            for row, lengths in zip(log_probs_BL.tolist(), found, strict=True):
                known = sorted(range(shortest, 10), key=lambda length: -row[length - 1])
                assert lengths == known[:beam]


def test_of_lengths_that_are_as_likely_the_shorter_comes_first() -> None:
    assert likeliest_lengths(torch.zeros(1, 40), beam=3).tolist() == [[1, 2, 3]]
    assert likeliest_lengths(torch.tensor([[0.0, 1.0, 0.0, 1.0]]), beam=9).tolist() == [[2, 4, 1, 3]]


@pytest.mark.parametrize(
    ("beam", "shortest", "what"), [(0, 1, "at least 1 length"), (1, 5, "from 1 to 4"), (1, 0, "0")]
)
def test_lengths_that_cannot_be_are_refused(beam: int, shortest: int, what: str) -> None:
    with pytest.raises(InputError, match=what):
        likeliest_lengths(torch.zeros(1, 4), beam=beam, shortest=shortest)


# ---- Refinement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("allowed", [None, [0, 2, 3]])
def test_refining_is_the_kernel_and_the_hand(iterations: int, allowed: list[int] | None) -> None:
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
    assert torch.equal(tokens_BT[0], torch.tensor([0, 1, 2, 3, 0]))  # what is given stays as it is


def test_without_an_iteration_nothing_is_refined() -> None:
    with pytest.raises(InputError, match="at least 1 iteration"):
        refine(table_model(num_positions=1, vocab_size=2), torch.zeros(1, 1).long(), torch.ones(1, 1).bool(),
               num_iterations=0)  # fmt: skip


# ---- The length beam ------------------------------------------------------------------------------------------------


def best_by_hand(
    model: Any, context: Any, row: int, *, beam: int, iterations: int, allowed: list[int]
) -> tuple[float, list[int]]:
    """One input: each of its lengths in turn, by the kernel and by hand, and the best mean."""
    own = rows_of(context, torch.tensor([row]))
    guessed = own.length_log_probs_BL[0].tolist()
    order = sorted(range(1, len(guessed) + 1), key=lambda length: -guessed[length - 1])
    best: tuple[float, list[int]] | None = None
    for length in order[:beam]:
        tokens, log_probs = refined_by_hand(model, [0] * length, list(range(length)), iterations, own, allowed)
        state = start_chains(local_energy(model), torch.zeros(1, length).long(), context=own)
        allowed_V = torch.tensor([token in allowed for token in range(model.vocab_size)])
        kernel = mask_predict(model, num_iterations=iterations, allowed_V=allowed_V)
        assert kernel(SeededDraws(0, state.chain_B, sweep=0), state)[0].tokens_BT[0].tolist() == tokens
        mean = math.fsum(log_probs) / length
        if best is None or mean > best[0]:
            best = mean, tokens
    assert best is not None
    return best


@pytest.mark.parametrize(("beam", "iterations", "max_rows"), [(1, 3, 1024), (3, 2, 1024), (3, 4, 2), (5, 1, 3)])
def test_the_length_beam_is_one_input_and_one_length_at_a_time(beam: int, iterations: int, max_rows: int) -> None:
    model, context = Tables(5, 4), guess(7, 5)
    allowed_V = torch.tensor([True, True, False, True])
    found = predict_with_lengths(
        model, context, beam=beam, num_iterations=iterations, allowed_V=allowed_V, max_rows=max_rows
    )
    assert model.most_rows <= max_rows
    chosen = set()
    for row, one in enumerate(found):
        mean, tokens = best_by_hand(model, context, row, beam=beam, iterations=iterations, allowed=[0, 1, 3])
        assert (one.tokens.tolist(), one.length) == (tokens, len(tokens))
        assert one.log_prob == pytest.approx(mean, abs=1e-12)
        chosen.add(int(likeliest_lengths(context.length_log_probs_BL, beam=beam)[row].tolist().index(one.length)))
    assert beam == 1 or len(chosen) > 1  # it is not always the likeliest length that wins


def test_a_conditional_transformer_gets_the_same_outputs_one_source_at_a_time() -> None:
    torch.manual_seed(0)
    model = ConditionalMaskedTransformer(
        source_size=6, vocab_size=5, max_length=6, hidden_size=16, num_layers=1, num_heads=2, feedforward_size=32
    )
    model = model.double().eval()
    for parameter in model.parameters():
        parameter.data *= 2
    sources = [[0, 1, 2, 3], [5], [4, 4], [2, 0, 5, 1, 3], [1, 1, 1]]
    lengths_B = torch.tensor([len(source) for source in sources])
    padded_BS = torch.tensor([source + [0] * (5 - len(source)) for source in sources])
    with torch.no_grad():
        context = model.encode(padded_BS, lengths_B)
        found = predict_with_lengths(model, context, beam=3, num_iterations=3)
        for source, one in zip(sources, found, strict=True):
            alone = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
            mean, tokens = best_by_hand(model, alone, 0, beam=3, iterations=3, allowed=list(range(5)))
            assert one.tokens.tolist() == tokens
            assert one.log_prob == pytest.approx(mean, abs=1e-9)
    assert len({one.length for one in found}) > 1


def test_of_outputs_that_are_as_good_the_one_of_the_likelier_length_is_taken() -> None:
    class Flat:
        vocab_size = mask_id = 3

        def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
            return torch.zeros(int(masked_NT.sum()), 3)

    context = Guess(torch.zeros(1), torch.tensor([[0.1, 0.2, 0.4, 0.3]]).log())
    assert predict_with_lengths(Flat(), context, beam=4, num_iterations=2)[0].length == 3
    assert predict_with_lengths(Flat(), context, beam=4, num_iterations=2, shortest=4)[0].length == 4


def test_memory_for_no_row_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        predict_with_lengths(Tables(2, 2), guess(1, 2), beam=1, num_iterations=1, max_rows=0)
