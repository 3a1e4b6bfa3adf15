"""Mask-Predict over several lengths: equal to one input and one length at a time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from reproductions.goyal_2021.length_beams import predict_with_lengths
from seqwise.models import ConditionalMaskedTransformer
from seqwise.sampling import SeededDraws, local_energy, mask_predict, start_chains, table_model
from seqwise.sampling.energies import rows_of
from seqwise.sampling.refinement import likeliest_lengths, refine


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

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        return self.of_length[tokens_NT.shape[1]].masked_logits(tokens_NT, masked_NT, context.shift_B)


def guess(num_inputs: int, greatest: int, seed: int = 0) -> Guess:
    generator = torch.Generator().manual_seed(seed)
    scores_BL = torch.randn(num_inputs, greatest, generator=generator, dtype=torch.float64)
    return Guess(torch.linspace(-2, 2, num_inputs, dtype=torch.float64), scores_BL.log_softmax(-1))


def best_by_hand(
    model: Any, context: Any, row: int, *, beam: int, iterations: int, allowed: list[int]
) -> tuple[float, list[int]]:
    """One input: each of its lengths in turn, by the kernel and without it, and the best mean."""
    own = rows_of(context, torch.tensor([row]))
    guessed = own.length_log_probs_BL[0].tolist()
    order = sorted(range(1, len(guessed) + 1), key=lambda length: -guessed[length - 1])
    best: tuple[float, list[int]] | None = None
    for length in order[:beam]:
        allowed_V = torch.tensor([token in allowed for token in range(model.vocab_size)])
        state = start_chains(local_energy(model), torch.zeros(1, length).long(), context=own)
        options: dict[str, Any] = {"num_iterations": iterations, "context": own, "allowed_V": allowed_V}
        tokens_1T, log_probs_1T = refine(model, state.tokens_BT, state.free_BT, **options)
        tokens, log_probs = tokens_1T[0].tolist(), log_probs_1T[0].tolist()
        kernel = mask_predict(model, num_iterations=iterations, allowed_V=allowed_V)
        assert kernel(SeededDraws(0, state.chain_B, sweep=0), state)[0].tokens_BT[0].tolist() == tokens
        mean = math.fsum(log_probs) / length
        if best is None or mean > best[0]:
            best = mean, tokens
    assert best is not None
    return best


@pytest.mark.parametrize(("beam", "iterations"), [(1, 3), (3, 2), (3, 4), (5, 1)])
def test_the_length_beam_is_one_input_and_one_length_at_a_time(beam: int, iterations: int) -> None:
    model, context = Tables(5, 4), guess(7, 5)
    allowed_V = torch.tensor([True, True, False, True])
    found = predict_with_lengths(model, context, beam=beam, num_iterations=iterations, allowed_V=allowed_V)
    chosen = set()
    for row, one in enumerate(found):
        mean, tokens = best_by_hand(model, context, row, beam=beam, iterations=iterations, allowed=[0, 1, 3])
        assert one.tokens.tolist() == tokens
        assert one.log_prob == pytest.approx(mean, abs=1e-12)
        chosen.add(int(likeliest_lengths(context.length_log_probs_BL, beam=beam)[row].tolist().index(len(one.tokens))))
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
    assert len({len(one.tokens) for one in found}) > 1


def test_of_outputs_that_are_as_good_the_one_of_the_likelier_length_is_taken() -> None:
    class Flat:
        vocab_size = mask_id = 3

        def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
            return torch.zeros(int(masked_NT.sum()), 3)

    context = Guess(torch.zeros(1), torch.tensor([[0.1, 0.2, 0.4, 0.3]]).log())
    assert len(predict_with_lengths(Flat(), context, beam=4, num_iterations=2)[0].tokens) == 3
