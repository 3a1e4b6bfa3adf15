"""Results of a search depend on the input alone: not on padding, order, batch size or number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import oracles
from seqwise.data import EncodedExample, collate
from seqwise.data.batches import Batch
from seqwise.decoding import Decoder, Hypothesis, decode
from seqwise.models import EncoderDecoder, Tagger, Transformer
from seqwise.objectives.search_aware import relaxed_beam_objective
from seqwise.search import HardTopK, SoftTopK, global_, interpolated, local

END = 1
SIZES: dict[str, Any] = {"source_size": 6, "target_size": 5, "hidden_size": 4}
MODELS: dict[str, Any] = {
    "tagger": lambda: Tagger(**SIZES, embedding_size=3, label_embedding_size=2),
    "encoder-decoder": lambda: EncoderDecoder(**SIZES, embedding_size=3, end=END),
    "transformer": lambda: Transformer(**SIZES, end=END, num_layers=1, num_heads=2, feedforward_size=6, dropout=0.0),
}
SELECTORS = (HardTopK(1), HardTopK(3), SoftTopK(3, 2.0))
SCORES = (local, global_, interpolated(0.5))


def drawn(name: str, draw: np.random.Generator) -> Any:
    """A model in double precision, with weights so large that it has an opinion."""
    return oracles.randomised(MODELS[name](), int(draw.integers(2**31)), 0.8)


def sources(draw: np.random.Generator, count: int) -> list[EncodedExample]:
    lengths = draw.integers(1, 7, count)
    return [EncodedExample(tuple(draw.integers(0, 6, length).tolist()), ()) for length in lengths]


def found(model: Any, batch: Batch, decoder: Decoder) -> list[list[Hypothesis]]:
    with torch.no_grad():
        steps_B = batch.source_lengths_B + (0 if model.end is None else 2)
        return decode(model, model.encode(batch), decoder, num_steps=steps_B, n_best=2)


def same(decoder: Decoder, one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    # Soft slots may come to be one and the same mixture, whose heaviest token is then a matter of rounding.
    alike = isinstance(decoder.selector, SoftTopK) or [x.tokens for x in one] == [x.tokens for x in other]
    return alike and all(abs(x.score - y.score) <= 1e-10 for x, y in zip(one, other, strict=True))


@pytest.mark.thorough
def test_searches_do_not_depend_on_the_rest_of_the_batch(promise: Any) -> None:
    draw, count, longest = np.random.default_rng(0), 200, EncodedExample((1,) * 12, ())
    for number in range(count):
        model = drawn(list(MODELS)[number % len(MODELS)], draw)
        decoder = Decoder(SELECTORS[number // 3 % 3], SCORES[number // 9 % 3])
        examples = sources(draw, int(draw.integers(1, 6)))
        whole = found(model, collate(examples), decoder)
        order = draw.permutation(len(examples)).tolist()
        among = [longest, *(examples[place] for place in order)]  # other order, more padding, a larger batch
        shuffled = found(model, collate(among), decoder)
        for row, place in enumerate(order):
            assert same(decoder, shuffled[row + 1], whole[place]), (number, place)
        alone = number % len(examples)
        assert same(decoder, found(model, collate([examples[alone]]), decoder)[0], whole[alone]), number
    promise("searches alone, in a batch, shuffled and padded", count, "equal to 1e-10 in double precision")


def gradient(model: nn.Module, batch: Batch) -> torch.Tensor:
    objective = relaxed_beam_objective(k=3, score=global_)
    model.zero_grad()
    objective(model, batch, {"alpha": 1.0}).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_the_number_of_threads(name: str, promise: Any) -> None:
    draw = np.random.default_rng(1)
    model: Any = oracles.randomised(
        Tagger(source_size=6, target_size=200, hidden_size=64) if name == "tagger" else MODELS[name](), 0, 0.3
    )
    examples = [
        EncodedExample(one.source_ids, tuple(draw.integers(2, 5, len(one.source_ids)).tolist()))
        for one in sources(draw, 24)
    ]
    batch, before = collate(examples), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(gradient(model, batch))
    finally:
        torch.set_num_threads(before)
    assert float(results[0].abs().max()) > 1e-6
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-12)
    promise("gradients with 1, 2 and 4 threads", 1, "equal to 1e-10 in double precision")
