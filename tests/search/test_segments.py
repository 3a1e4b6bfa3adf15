"""Gradient checkpointing of a search: the same numbers from less memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import oracles
from parameters import quick
from pretrained import made
from seqwise.configuration import OneOf
from seqwise.data import Batch, EncodedExample, collate
from seqwise.hugging_face import step_model
from seqwise.models import EncoderDecoder, Tagger, Transformer
from seqwise.objectives import ObjectiveConfig, direct_loss, hamming_cost
from seqwise.search import (
    Gumbel,
    HardTopK,
    SoftArgmax,
    SoftTopK,
    beam_search,
    edit_distance_cost,
    global_,
    local,
    stochastic_beam_search,
    summed,
)
from seqwise.search.beam import search_steps, unroll
from seqwise.search.segments import recomputed, root, segments

STEPS = (21, 16)
"""Of two inputs: 6, then segments of 3, of which the backward pass takes all but the last again."""
VOCABULARY = 6
PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""GPUs have random numbers of their own."""


def a_batch(*, vocabulary: int = VOCABULARY, lengths: tuple[int, ...] = STEPS) -> Batch:
    draw = torch.Generator().manual_seed(7)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, vocabulary, (length,), generator=draw).tolist())

    return collate([EncodedExample(tokens(min(length, 21)), tokens(length)) for length in lengths]).to(PLACE)


def a_model(name: str, *, vocabulary: int = VOCABULARY, dropout: float = 0.2) -> Any:
    """In training, with dropout, so that a step draws random numbers."""
    torch.manual_seed(3)
    if name == "GPT-2":
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 160, **rates}
        config = transformers.GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=1, **sizes)
        return step_model(made(transformers.GPT2LMHeadModel(config)).to(PLACE).train())
    if name == "Marian":
        layers = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        config = transformers.MarianConfig(
            vocab_size=vocabulary, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, dropout=dropout, eos_token_id=1,
            pad_token_id=0, decoder_start_token_id=0, forced_eos_token_id=None, max_position_embeddings=160, **layers,
        )  # fmt: skip
        return step_model(made(transformers.MarianMTModel(config)).to(PLACE).train())
    sizes = {"source_size": vocabulary, "target_size": vocabulary, "hidden_size": 8, "dropout": dropout}
    if name == "tagger":
        model = Tagger(**sizes, embedding_size=4, label_embedding_size=3)
    elif name == "encoder-decoder":
        model = EncoderDecoder(**sizes, embedding_size=4, end=1)
    else:
        model = Transformer(**sizes, end=1, num_layers=2, num_heads=2, feedforward_size=8)
    return oracles.randomised(model, 3, 0.6).to(PLACE).train()


def with_and_without(model: Any, compute: Callable[[], Tensor]) -> list[list[Tensor]]:
    """Loss, gradients and the states of torch's generators afterwards, with gradient checkpointing and without."""
    found = []
    for checkpointing in (True, False):
        model.gradient_checkpointing = checkpointing
        model.zero_grad(set_to_none=True)
        torch.manual_seed(11)
        loss = compute()
        loss.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if PLACE.type == "cuda" else [])]
        found.append([loss.detach(), *gradients, *states])
    return found


def require_same(model: Any, compute: Callable[[], Tensor]) -> None:
    again, kept = with_and_without(model, compute)
    assert sum(float(gradient.abs().sum()) for gradient in kept[1:] if gradient.is_floating_point()) > 1e-3
    torch.testing.assert_close(again, kept, rtol=1e-9, atol=1e-9)


OBJECTIVES = {
    "relaxed-beam": {},
    "relaxed-beam, global": {"score": "global"},
    "relaxed-beam, edit distance": {"cost": "edit-distance", "unit": "gaps"},
    "hinge": {},
    "hard-hinge": {},
    "soft-dense-beam": {},
    "dense-beam": {},
    "beam-search-optimization": {},
    "early-update": {},
    "scheduled-sampling": {"feeding": "soft-sample"},
}
MODELS = ("tagger", "encoder-decoder", "transformer", "GPT-2", "Marian")


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", quick(MODELS, "tagger", "GPT-2"))
def test_losses_gradients_and_random_numbers_are_the_same(kind: str, name: str) -> None:
    objective = OneOf(ObjectiveConfig).members[name.partition(",")[0]](**OBJECTIVES[name])
    values = {name: schedule.over(10)(5) for name, schedule in objective.schedules.items()}
    # Recomputed by layers, cross-entropy of a causal model reads the prompt once more, and draws its dropout. And where
    # the host looks at every eighth step alone, how many steps are taken after gold has fallen out is another matter.
    draws_alike = kind != "GPT-2" and not (name == "early-update" and PLACE.type == "cuda")
    model = a_model(kind, dropout=0.2 if draws_alike else 0.0)
    batch, loss = a_batch(), objective.build()
    require_same(model, lambda: loss(model, batch, values))


@pytest.mark.parametrize("form", [summed(), summed(tolerance=-1)], ids=["few candidates", "all candidates"])
@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@pytest.mark.parametrize("kind", quick(["tagger", "transformer", "GPT-2"], "tagger"))
def test_a_large_vocabulary_and_its_deferred_gradients(kind: str, score: Any, form: Any) -> None:
    vocabulary = 300
    model, batch = a_model(kind, vocabulary=vocabulary), a_batch(vocabulary=vocabulary)

    def loss() -> Tensor:
        cost = hamming_cost(batch.targets_BT, vocabulary)
        selector = SoftTopK(3, 4.0, form=form)
        steps = batch.target_lengths_B
        beam = beam_search(model, model.encode(batch), selector, num_steps=steps, score=score, cost=cost)
        return direct_loss(beam, 4.0)

    require_same(model, loss)


@pytest.mark.parametrize("kind", quick(["tagger", "transformer"], "tagger"))
@pytest.mark.parametrize(
    "selector",
    [HardTopK(1, noise=Gumbel()), SoftArgmax(2.0, noise=Gumbel())],
    ids=["ancestral sample", "soft sample"],
)
def test_a_generator_draws_the_same_and_ends_in_the_same_state(selector: Any, kind: str) -> None:
    model, batch, states = a_model(kind), a_batch(), []

    def loss() -> Tensor:
        generator = torch.Generator(PLACE).manual_seed(5)
        beam = beam_search(model, model.encode(batch), selector, num_steps=21, generator=generator)
        loss = beam.scores_BK.sum()
        before = generator.get_state()
        loss.backward(retain_graph=True)
        torch.testing.assert_close(generator.get_state(), before)
        states.append(before)
        model.zero_grad(set_to_none=True)
        return loss  # and backward once more

    require_same(model, loss)
    assert torch.equal(*states)


def test_outputs_without_replacement() -> None:
    model, batch = a_model("transformer"), a_batch()

    def loss() -> Tensor:
        generator = torch.Generator(PLACE).manual_seed(5)
        drawn = stochastic_beam_search(model, model.encode(batch), k=3, num_steps=21, generator=generator)
        return drawn.beam.scores_BK.sum()

    require_same(model, loss)


@pytest.mark.parametrize("name, end, lowered", [("transformer", 1, 16), ("tagger", None, 10)])
def test_a_cost_with_a_state_and_steps_that_are_lowered(name: str, end: int | None, lowered: int) -> None:
    """What is lowered while a segment is yielded counts from the next one on, in both passes."""
    model, batch = a_model(name, dropout=0.0), a_batch()

    def loss() -> Tensor:
        steps_B = batch.target_lengths_B.clone()
        cost = edit_distance_cost(batch.targets_BT, VOCABULARY, end=end)
        steps = search_steps(model, model.encode(batch), SoftTopK(3, 2.0), num_steps=steps_B, cost=cost)
        for number, step in enumerate(steps, start=1):
            beam = step.beam
            if number == 15:  # the last one of a segment
                steps_B.clamp_(max=lowered)
        return direct_loss(beam, 2.0)

    require_same(model, loss)


# ---------------------------------------------------------------------------------------- memory


class Kept:
    """Bytes of the tensors that a graph keeps, parameters aside, each storage counted once."""

    def __init__(self, model: Any) -> None:
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self._tensors: dict[int, Tensor] = {}

    def of(self, compute: Callable[[], Tensor]) -> int:
        self._tensors = {}
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            loss = compute()
        del loss
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self._weights:
            self._tensors[place] = tensor
        return tensor


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["GPT-2", "transformer", "tagger"])
def test_at_128_steps_the_graph_keeps_a_quarter(kind: str) -> None:
    """Between the passes; the backward pass adds one segment at a time, where it has freed the last one."""
    model, batch = a_model(kind, vocabulary=20), a_batch(vocabulary=20, lengths=(128,))
    if kind == "tagger":
        batch = collate([EncodedExample(example, example) for example in batch.targets_BT.tolist()]).to(PLACE)

    def loss() -> Tensor:
        beam = beam_search(model, model.encode(batch), SoftTopK(5, 4.0), num_steps=128)
        return beam.scores_BK.sum()

    kept = Kept(model)
    before = kept.of(loss)
    model.gradient_checkpointing = True
    assert kept.of(loss) < 0.25 * before


def test_without_gradients_nothing_is_recomputed() -> None:
    model, batch = a_model("transformer"), a_batch()
    model.gradient_checkpointing = True
    with torch.no_grad():
        assert [again for _, again in segments(21, root)] == [False]
        steps = unroll(model, model.encode(batch), HardTopK(2), num_steps=21, segment=root)
        assert next(steps).candidates.step == 0


# ---------------------------------------------------------------------------------------- parts


def test_segments() -> None:
    assert list(segments(5, None)) == [(range(5), False)]
    assert list(segments(0, root)) == []
    assert list(segments(1, root)) == [(range(1), False)]
    assert [len(steps) for steps, _ in segments(128, root)] == [16, *[8] * 14]


@pytest.mark.parametrize("length", [root, lambda _: 1, lambda _: 5], ids=["root", "1", "5"])
def test_segments_cover_every_step_once_and_all_but_the_first_and_last_are_recomputed(
    length: Callable[[int], int],
) -> None:
    for num_steps in range(1, 40):
        cut = list(segments(num_steps, length))
        assert [step for steps, _ in cut for step in steps] == list(range(num_steps))
        assert [again for _, again in cut] == [False, *[True] * (len(cut) - 2), *[False] * (len(cut) > 1)]
        assert len(cut[0][0]) == min(2 * length(num_steps), num_steps)


def test_a_function_is_called_again_with_its_state() -> None:
    weight, calls = torch.tensor(3.0, requires_grad=True), []

    def function(state: Any) -> Iterator[Tensor]:
        calls.append(state["count"])
        yield (state["value"] * weight).exp() * state["value"].sin()

    (found,) = recomputed(function, {"value": torch.tensor(2.0), "count": 5})
    found.backward()
    assert calls == [5, 5]
    torch.testing.assert_close(weight.grad, torch.tensor(2.0) * torch.tensor(6.0).exp() * torch.tensor(2.0).sin())


def test_the_second_call_keeps_none_of_its_results() -> None:
    """Each may hold its past."""
    kept: list[bool] = []

    def steps(x: Tensor) -> Iterator[Tensor]:
        before: Any = None
        for number in range(3):
            y = x * x * (number + 1.0)
            if before is not None:
                kept.append(before() is not None)
            before = weakref.ref(y)
            yield y

    x = torch.ones(2, requires_grad=True)
    results = recomputed(steps, x)
    assert kept == [True, True]
    sum(results).sum().backward()  # type: ignore[union-attr]
    assert len(kept) > 2 and not any(kept[2:])  # it may stop early
    assert x.grad is not None and x.grad.tolist() == [12.0, 12.0]
