"""Products by oneDNN: against products in float64, and layers that are replaced for a while."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from pretrained import bert, byte_tokenizer, gpt2
from seqwise import tree
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import masked_model, pretrained_tagger, step_model
from seqwise.hugging_face.scoring import score_texts
from seqwise.models import Transformer, products
from seqwise.models import fast_layers as module
from seqwise.models.fast_layers import PackedLayers, fast_layers
from seqwise.models.products import Linear, fast_linear


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Every product is worth it, on every machine; the shapes of the rows that oneDNN has multiplied."""
    if products._LINEAR is None:
        pytest.skip("torch has no oneDNN here")
    shapes, real = [], products._LINEAR
    monkeypatch.setattr(products, "_LINEAR", lambda rows, *rest: shapes.append(tuple(rows.shape)) or real(rows, *rest))
    for each in (products, module):
        monkeypatch.setattr(each, "blas_is_slow", lambda: True)
    monkeypatch.setattr(products, "WORTHWHILE", 1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    yield shapes
    torch.set_default_dtype(before)


@torch.no_grad()
def test_it_is_the_product(by_onednn: list[tuple[int, ...]]) -> None:
    weight_VD, bias_V = torch.randn(50, 24), torch.randn(50)
    rows = torch.randn(6, 5, 24)
    for weight in (weight_VD, weight_VD.T.contiguous().T, nn.Parameter(weight_VD)):
        for bias in (bias_V, None):
            for given in (rows, rows[:, 0], rows[:0], rows.transpose(0, 1), rows[::2, 1:4], rows.expand(2, 6, 5, 24)):
                exact = given.double() @ weight_VD.double().T + (0 if bias is None else bias.double())
                found = fast_linear(given, weight, bias)
                torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-5)
    assert len(by_onednn) == 3 * 2 * 5  # all but the empty one


def test_it_is_the_usual_one_wherever_onednn_is_not_the_same(by_onednn: list[tuple[int, ...]]) -> None:
    weight_VD, rows = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4)
    fast_linear(rows, weight_VD, None).sum().backward()
    assert weight_VD.grad is not None
    with torch.no_grad():
        assert fast_linear(rows[0], weight_VD, None).shape == (5,)
        assert fast_linear(rows.double(), weight_VD.double(), None).dtype == torch.float64
        for bias_V in (torch.arange(10.0)[::2], torch.ones(1).expand(5), torch.ones(1)):  # it ignores the stride
            expected = rows @ weight_VD.T + bias_V
            torch.testing.assert_close(fast_linear(rows, weight_VD, bias_V), expected)
            torch.testing.assert_close(products.Products(weight_VD.detach(), bias_V)(rows), expected)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            fast_linear(rows[:, 1:], weight_VD, None)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert fast_linear(rows, weight_VD, None).dtype == torch.bfloat16
    assert by_onednn == []


def marian() -> transformers.MarianMTModel:
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 8}
    config = transformers.MarianConfig(
        vocab_size=12, pad_token_id=11, eos_token_id=0, decoder_start_token_id=11, **sizes
    )
    return transformers.MarianMTModel(config)


@pytest.mark.parametrize("make", [bert, gpt2, lambda: marian().get_encoder()], ids=["BERT", "GPT-2", "Marian"])
def test_layers_are_replaced_in_the_context_only(make: Callable[[], Any], by_onednn: list[tuple[int, ...]]) -> None:
    """Those of GPT-2 are transposed; hooks are called, and layers with another ``forward`` keep it."""
    model, tokens = make().eval(), torch.randint(5, 12, (2, 6))
    with torch.no_grad():
        usual = model(tokens)[0]
        assert by_onednn == []
        with fast_layers(model):
            found = model(tokens)[0]
    torch.testing.assert_close(found, usual, atol=1e-5, rtol=1e-5)
    count = len(by_onednn)
    assert count >= 4
    layers = [layer for layer in model.modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    assert count == len(layers)
    seen: list[int] = []
    layers[0].register_forward_hook(lambda *_: seen.append(1))
    own = layers[1].forward
    layers[1].forward = lambda *given: own(*given)
    with pytest.raises(RuntimeError, match="stop"), torch.no_grad(), fast_layers(model):
        model(tokens)
        raise RuntimeError("stop")
    assert seen == [1] and len(by_onednn) == 2 * count - 1
    assert [layer for layer in layers if "forward" in vars(layer)] == [layers[1]]
    with fast_layers(model):  # with gradients
        assert model(tokens)[0].requires_grad
    assert len(by_onednn) == 2 * count - 1


def test_what_others_do_with_layers_meanwhile(by_onednn: list[tuple[int, ...]]) -> None:
    """Layers replaced later, a ``forward`` that another library sets inside, compiled parts, and other devices."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    rows = torch.ones(3, 4)

    def count(called: nn.Module = model) -> int:
        before = len(by_onednn)
        with torch.no_grad(), fast_layers(called):
            called(rows.to(next(called.parameters()).device))
        return len(by_onednn) - before

    assert count() == 2
    model[0] = nn.Linear(4, 4)
    assert count() == 2
    with torch.no_grad(), fast_layers(model):
        model[0].forward = lambda given: given
    assert "forward" in vars(model[0]) and count() == 1
    model[1].compile(backend="eager")
    assert count() == 0
    assert count(nn.Linear(4, 4).to("meta")) == 0
    double = nn.Linear(4, 4).double()
    with torch.no_grad(), fast_layers(double):
        assert "forward" not in vars(double)
    compiled = torch.compile(Linear(4, 4), backend="eager", fullgraph=True)
    with torch.no_grad():
        compiled(rows)
        torch.jit.trace(Linear(4, 4), rows)


def test_nothing_is_kept_alive() -> None:
    """Not even a model whose layers refer to it; and a search's packed layers are copied as none."""
    model: Any = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_, model=model: None)
    with torch.no_grad(), fast_layers(model):
        model(torch.ones(3, 4))
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None
    packed = PackedLayers()
    packed.of(nn.Linear(2, 2), torch.ones(2, 2))
    assert vars(copy.deepcopy(packed)) == vars(PackedLayers())


@torch.no_grad()
def test_a_search_packs_the_weights_of_its_steps(
    monkeypatch: pytest.MonkeyPatch, by_onednn: list[tuple[int, ...]]
) -> None:
    """From the third step on, up to a limit; with the usual features, and with new weights in the next search."""
    packed: list[Any] = []
    real = products._PACK
    monkeypatch.setattr(products, "_PACK", lambda weight: packed.append(weight) or real(weight))
    model = gpt2().eval()
    for weight in model.parameters():  # the biases of new models are zeros
        weight.add_(0.1 * torch.randn_like(weight))
    adapted, batch = step_model(model), collate([EncodedExample((5, 6, 7), ()), EncodedExample((8, 5), ())])

    def features(num_steps: int) -> torch.Tensor:
        context = adapted.encode(batch)
        inputs_BJD, state = adapted.start(context)
        for step in range(num_steps):
            found, state = adapted.step(inputs_BJD, state, context, step)
            if step == 0:
                inputs_BJD = inputs_BJD.expand(-1, 2, -1)
                state = tree.gather(state, torch.zeros(2, 2, dtype=torch.long))
        return found

    def usual(num_steps: int) -> torch.Tensor:
        with monkeypatch.context() as without:
            for each in (products, module):
                without.setattr(each, "blas_is_slow", lambda: False)
            return features(num_steps)

    with fast_layers(model, PackedLayers()), torch.enable_grad():
        model(torch.tensor([[5, 6, 7, 8]]))[0].sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    packed.clear()
    features(2)
    assert packed == []
    torch.testing.assert_close(features(5), usual(5), atol=1e-4, rtol=1e-4)
    num_layers = len([layer for layer in model.get_decoder().modules() if type(layer).__name__ == "Conv1D"])
    assert len(packed) == num_layers >= 4
    for weight in model.parameters():
        weight.mul_(0.5)
    torch.testing.assert_close(features(5), usual(5), atol=1e-4, rtol=1e-4)
    packed.clear()
    monkeypatch.setattr(module, "MOST_PACKED", size := model.get_decoder().h[0].attn.c_attn.weight.numel())
    torch.testing.assert_close(features(5), usual(5), atol=1e-4, rtol=1e-4)
    assert 1 <= len(packed) < num_layers and sum(weight.numel() for weight in packed) <= size
    packed.clear()
    # Of a sharded model, whose weights exist only during a pass.
    monkeypatch.setattr(adapted, "lockstep", SimpleNamespace(announce=lambda: None))
    torch.testing.assert_close(features(5), usual(5), atol=1e-4, rtol=1e-4)
    assert packed == []


@torch.no_grad()
def test_threads_share_a_model(by_onednn: list[tuple[int, ...]]) -> None:
    """A context that ends in one thread leaves the layers as they were, whatever the others do meanwhile."""
    model, rows = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.randn(5, 4)
    usual = model(rows)
    entered = threading.Barrier(2)

    def call(_: int) -> torch.Tensor:
        with torch.no_grad(), fast_layers(model):
            entered.wait()
            return model(rows)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            for found in threads.map(call, range(2)):
                torch.testing.assert_close(found, usual)
            assert not any("forward" in vars(layer) for layer in model)
    assert by_onednn


def test_who_uses_it(by_onednn: list[tuple[int, ...]]) -> None:
    """Searches, masked models and taggers over Hugging Face models, and our Transformer."""
    batch = collate([EncodedExample((5, 6, 7), (1, 2)), EncodedExample((8,), (1,))])

    def uses() -> bool:
        found, by_onednn[:] = bool(by_onednn), []
        return found

    with torch.no_grad():
        for adapted in (step_model(gpt2().eval()), step_model(marian().eval())):
            uses()
            context = adapted.encode(batch)
            assert (2, 3, 12) in by_onednn or not adapted.model.config.is_encoder_decoder  # the encoder
            assert uses()
            adapted.step(*adapted.start(context), context, 1)
            assert uses()
        score_texts(gpt2(len(byte_tokenizer())).eval(), byte_tokenizer(), ["the dog"])
        assert uses()
        masked = masked_model(bert().eval(), mask_id=4)
        masked.masked_logits(torch.tensor([[5, 6]]), torch.tensor([[True, False]]))
        assert uses()
        tagger = pretrained_tagger(bert(), num_labels=2).eval()
        tagger.encode(collate([EncodedExample((~5, 6), ())]))
        assert uses()
        Transformer(source_size=9, target_size=4, end=3, hidden_size=8, num_heads=2).eval().encode(batch)
        assert uses()
    Linear(2, 3)(torch.zeros(1, 2)).sum().backward()
    assert not uses()
