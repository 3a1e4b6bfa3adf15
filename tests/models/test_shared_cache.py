"""Slots that share keys and values read from them what their own copies would hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import masking_utils

from hugging_face import test_step_model as families
from seqwise import tree
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import shared_attention, step_model
from seqwise.models import Transformer
from seqwise.models.shared_cache import SharedCache, additive
from seqwise.search import HardTopK, SoftTopK, backtrace, beam_search

BATCH, HEADS, SIZE, LAYERS = 3, 2, 4, 2


def nothing(width: int = 0) -> list[tuple[Tensor, Tensor]]:
    shape = (BATCH, HEADS, width, SIZE)
    return [(torch.randn(shape).double(), torch.randn(shape).double()) for _ in range(LAYERS)]


def written(cache: SharedCache, seed: int) -> tuple[SharedCache, list[Tensor]]:
    """One step further, and what was written: keys and values of the layers in turn, (B, N, J, A)."""
    generator = torch.Generator().manual_seed(seed)
    grown = cache.step()
    shape = (BATCH, HEADS, cache.columns_BJT.shape[1], SIZE)
    new = [torch.randn(shape, generator=generator).double() for _ in range(2 * LAYERS)]
    for layer in range(LAYERS):
        grown.put(layer, new[2 * layer], new[2 * layer + 1])
    return grown, new


def searched(cache: SharedCache, steps: int, seed: int = 0) -> tuple[SharedCache, list[list[list[list[Tensor]]]]]:
    """A search with random parents, and what every slot holds by plain lists: [row][slot][step][leaf] (N, A)."""
    generator = torch.Generator().manual_seed(seed)
    held: list[list[list[list[Tensor]]]] = [[[]] for _ in range(BATCH)]
    for step in range(steps):
        cache, new = written(cache, seed=1000 * seed + step)
        for b in range(BATCH):
            held[b] = [[*past, [leaf[b, :, j] for leaf in new]] for j, past in enumerate(held[b])]
        parents_BK = torch.randint(len(held[0]), (BATCH, 1 + step % 4), generator=generator)
        cache = tree.gather(cache, parents_BK)
        held = [[held[b][j] for j in parents_BK[b].tolist()] for b in range(BATCH)]
    return cache, held


@pytest.mark.parametrize("width", [0, 5])
def test_every_slot_holds_its_own_history(width: int) -> None:
    """Over more steps than there is room for at first."""
    cache, held = searched(SharedCache.start(nothing(width)), steps=70)
    assert len(cache) == 70
    layers = cache.dense()
    for b in range(BATCH):
        for j, past in enumerate(held[b]):
            for place in range(2 * LAYERS):
                wanted_NTA = torch.stack([step[place] for step in past], dim=1)
                assert torch.equal(layers[place // 2][place % 2][b, j], wanted_NTA)


@pytest.mark.parametrize("window", [None, 1, 4, 10, 12, 99])
@pytest.mark.parametrize("width", [0, 5])
def test_attention_to_all_columns_is_attention_to_the_slots_own(width: int, window: int | None) -> None:
    """All of them, or the last so many of prompt and path."""
    prompt = nothing(width)
    is_real_BP = torch.arange(width) >= torch.tensor([0, 2, 4])[:, None]
    cache, held = searched(SharedCache.start(prompt, is_real_BP), steps=9)
    grown, new = written(cache, seed=5)
    queries_BNJA = torch.randn(BATCH, HEADS, len(held[0]), SIZE).double()
    for layer in range(LAYERS):
        keys, values = grown.put(layer, new[2 * layer], new[2 * layer + 1])
        found = F.scaled_dot_product_attention(queries_BNJA, keys, values, attn_mask=grown.mask(window))
        for b in range(BATCH):
            real = [prompt[layer][side][b][:, is_real_BP[b]] for side in (0, 1)]
            for j, past in enumerate(held[b]):
                own = [torch.stack([step[2 * layer + side] for step in past], dim=1) for side in (0, 1)]
                last = [new[2 * layer + side][b, :, j : j + 1] for side in (0, 1)]
                k, v = (torch.cat([real[side], own[side], last[side]], dim=1) for side in (0, 1))
                k, v = (k, v) if window is None else (k[:, -window:], v[:, -window:])
                weights = (k @ queries_BNJA[b, :, j, :, None] / SIZE**0.5).softmax(1)
                torch.testing.assert_close(found[b, :, j], (weights * v).sum(1), rtol=0, atol=1e-12)


def test_a_cache_is_not_changed_by_later_steps() -> None:
    """Two searches go on from one, and the first of them once more."""
    cache, _ = searched(SharedCache.start(nothing(2)), steps=3)
    before = tree.map(torch.clone, cache.dense())
    one, _ = written(cache, seed=1)
    kept = tree.map(torch.clone, one.dense())
    two, new = written(cache, seed=2)
    further, _ = written(one, seed=3)
    torch.testing.assert_close(cache.dense(), before, rtol=0, atol=0)
    torch.testing.assert_close(one.dense(), kept, rtol=0, atol=0)
    assert torch.equal(two.dense()[0][0][:, :, :, -1].transpose(1, 2), new[0])
    for layer, (keys, values) in enumerate(further.dense()):
        torch.testing.assert_close((keys[..., :-1, :], values[..., :-1, :]), kept[layer], rtol=0, atol=0)


def test_a_hard_selection_moves_indices_only() -> None:
    cache, _ = searched(SharedCache.start(nothing()), steps=8)
    chosen = tree.gather(cache, torch.tensor([[0, 3, 3], [1, 1, 1], [2, 0, 1]]))
    assert chosen._store is cache._store and chosen.columns_BJT.shape == (BATCH, 3, 8)
    grown, _ = written(chosen, seed=0)
    assert grown._store is cache._store


def test_mixtures_are_those_of_copies() -> None:
    cache, _ = searched(SharedCache.start(nothing(3)), steps=8)
    weights_BKJ = torch.rand(BATCH, 2, 4).double().softmax(-1)
    torch.testing.assert_close(tree.mix(cache, weights_BKJ), tree.mix(cache.dense(), weights_BKJ), rtol=0, atol=1e-15)


def test_a_cache_made_in_inference_mode_can_be_extended_outside() -> None:
    with torch.inference_mode():
        cache, _ = searched(SharedCache.start(nothing()), steps=3)
    with torch.no_grad():
        grown, new = written(cache, seed=0)
    assert torch.equal(grown.dense()[0][0][:, :, :, -1].transpose(1, 2), new[0])


# ---------------------------------------------------------------------------------------- models


def encoded(adapted: Any) -> Any:
    """The context of all sources of the families."""
    return adapted.encode(families._batch(families.SOURCES))


SELECTORS: dict[str, Callable[[], Any]] = {"hard": lambda: HardTopK(4), "soft": lambda: SoftTopK(4, 2.0)}


@pytest.mark.parametrize("selector", sorted(SELECTORS))
def test_our_transformer_searches_with_shared_slots_as_with_copies(selector: str) -> None:
    model = Transformer(source_size=6, target_size=5, end=4, hidden_size=8, num_heads=2, feedforward_size=8).double()
    model.eval()
    batch = collate([EncodedExample((1, 2, 3), ()), EncodedExample((4,), ()), EncodedExample((), ())])
    copies = beam_search(model, model.encode(batch), SELECTORS[selector](), num_steps=7)
    with torch.no_grad():
        shared = beam_search(model, model.encode(batch), SELECTORS[selector](), num_steps=7)
    assert isinstance(shared.state, SharedCache) == (selector == "hard") and isinstance(copies.state, tuple)
    assert isinstance(model.start(model.encode(batch))[1], tuple)
    assert torch.equal(backtrace(shared), backtrace(copies))
    torch.testing.assert_close(shared.scores_BK, copies.scores_BK, rtol=0, atol=1e-12)
    # A cache that was made without gradients can be gone on from with them.
    features_BJH, state = model.step(shared.inputs_BKD, shared.state, model.encode(batch), 7)
    torch.testing.assert_close(features_BJH, model.step(copies.inputs_BKD, copies.state, model.encode(batch), 7)[0])
    features_BJH.sum().backward()
    assert isinstance(state, tuple)


SHARING = ["Marian", "BART", "mBART", "T5", "UMT5", "GPT-2", "OPT", "Llama", "Mistral", "Gemma 3", "Qwen2", "Cohere"]
SHARING += ["Granite", "Gemma 2", "T5Gemma", "gpt-oss", "DeepSeek V3"]


@pytest.mark.parametrize("name", SHARING)
def test_models_of_transformers_search_with_shared_slots_as_with_copies(name: str) -> None:
    model = families._model(name, seed=1)
    adapted = step_model(model)
    assert adapted.shares
    before = model.config._attn_implementation
    with torch.no_grad():
        context = encoded(adapted)
        shared = beam_search(adapted, context, HardTopK(3), num_steps=8)
        adapted.shares = False
        copies = beam_search(adapted, context, HardTopK(3), num_steps=8)
    assert isinstance(shared.state, SharedCache) and isinstance(copies.state, tuple)
    assert model.config._attn_implementation == model.get_decoder().config._attn_implementation == before
    assert torch.equal(backtrace(shared), backtrace(copies))
    tolerance = 1e-10 if name in families.EXACT else 1e-5
    torch.testing.assert_close(shared.scores_BK, copies.scores_BK, rtol=0, atol=tolerance)
    torch.testing.assert_close(shared.state.dense(), copies.state, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["GPT-Neo", "BLOOM"])
def test_models_with_other_attention_keep_copies(name: str) -> None:
    """Windows and slopes that a model makes itself: found out when the model is adapted."""
    adapted = step_model(families._model(name))
    assert not adapted.shares
    with torch.no_grad():
        _, state = adapted.start(encoded(adapted))
    assert isinstance(state, tuple)


def test_unsupported_arguments_of_attention_are_refused() -> None:
    """A window may be wider than what the model is tried on."""
    state = SharedCache.start(nothing()).step()
    query = torch.zeros(BATCH, HEADS, 1, SIZE).double()
    call = shared_attention.SharedCall(state, num_seen=0)
    with shared_attention.shared_call(families._model("Llama"), call):
        keys, values = call.cache.layers[0].update(query, query)
        mask = shared_attention.mask_of()
        shared_attention.attend(None, query, keys, values, mask, sliding_window=None, position_ids=query)
        with pytest.raises(NotImplementedError, match="sliding_window"):
            shared_attention.attend(None, query, keys, values, mask, sliding_window=4096)
        with pytest.raises(NotImplementedError, match="mask"):
            shared_attention.attend(None, query, keys, values, mask + 1)
        with pytest.raises(NotImplementedError, match="keys"):
            shared_attention.attend(None, query, keys.repeat(1, 1, 2, 1), values, mask)
        in_window = masking_utils.sliding_window_causal_mask_function(4096)
        window = shared_attention.mask_of(mask_function=in_window, local_size=4096)
        shared_attention.attend(None, query, keys, values, window, sliding_window=4096)
        for other in (None, 4095):  # as of attention in chunks
            with pytest.raises(NotImplementedError, match="window"):
                shared_attention.attend(None, query, keys, values, window, sliding_window=other)
        with pytest.raises(NotImplementedError, match="parts"):
            shared_attention.mask_of(mask_function=in_window)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_attention_implementation_is_shared_and_restored(attention: str) -> None:
    model = families._model("Llama")
    model.set_attn_implementation(attention)
    assert step_model(model).shares and model.config._attn_implementation == attention


def test_training_and_gradients_have_copies() -> None:
    """Dropout of attention weights is the model's own."""
    adapted = step_model(families._model("Marian"))
    context = encoded(adapted)
    assert isinstance(adapted.start(context)[1], tuple)
    with torch.no_grad():
        inputs_B1D, state = adapted.start(context)
        assert isinstance(state, SharedCache)
        adapted.train()
        assert isinstance(adapted.start(context)[1], tuple)
        assert isinstance(adapted.step(inputs_B1D, state, context, 0)[1], tuple)


def test_a_step_that_fails_leaves_model_and_history_as_they_were() -> None:
    model = families._model("Marian")
    adapted = step_model(model)
    with torch.no_grad():
        context = encoded(adapted)
        inputs_B1D, start = adapted.start(context)
        _, state = adapted.step(inputs_B1D, start, context, 0)
        wanted, _ = adapted.step(inputs_B1D, state, context, 1)
        before = model.config._attn_implementation
        hook = model.get_decoder().layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adapted.step(inputs_B1D, state, context, 1)
        hook.remove()
        assert model.config._attn_implementation == before
        found, _ = adapted.step(inputs_B1D, state, context, 1)
    assert torch.equal(found, wanted)


def _with_a_mask_of_its_own(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
    mask = named["attention_mask"]
    return arguments, named | {"attention_mask": None if mask is None else mask.clone()}


def test_a_mask_that_the_model_makes_itself_is_not_overlooked() -> None:
    """Even one that shows in no step that the model is tried on."""
    model = families._model("Llama")
    assert step_model(model).shares
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(_with_a_mask_of_its_own, with_kwargs=True)
    assert not step_model(model).shares


def test_a_wide_window_is_tried_where_it_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no token would leave the window in the few steps of the trial."""
    model = families._of("Mistral", sliding_window=4096)
    assert step_model(model).shares
    over_all = SharedCache.mask
    monkeypatch.setattr(SharedCache, "mask", lambda cache, window=None: over_all(cache))
    assert not step_model(model).shares


def test_columns_that_no_slot_needs_are_dropped() -> None:
    """What is kept is the prompt and what slots need, and no more than copies would have."""
    prompt = nothing(3)
    cache, held = searched(SharedCache.start(prompt), steps=300, seed=4)
    assert cache.mask().shape[-1] < 3 + 300 + 2 * 128
    for b in range(BATCH):
        for j, past in enumerate(held[b]):
            wanted = [torch.stack([step[place] for step in past], dim=1) for place in range(2 * LAYERS)]
            for place in range(2 * LAYERS):
                assert torch.equal(cache.dense()[place // 2][place % 2][b, j], wanted[place])
    grown, new = written(cache, seed=0)
    keys, values = grown.put(1, new[2], new[3])
    assert torch.equal(keys[:, :, :3], prompt[1][0]) and torch.equal(values[:, :, :3], prompt[1][1])
    assert grown.mask()[..., :3].all() and (grown.mask().sum(-1) == 3 + 301).all()


def test_the_step_of_a_column_is_the_one_that_wrote_it() -> None:
    """Keys hold the number of their step; with columns that are left out on the way."""
    cache = SharedCache.start(nothing())
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        cache = cache.step()
        number = torch.full((BATCH, HEADS, cache.columns_BJT.shape[1], SIZE), float(step), dtype=torch.double)
        keys, _ = cache.put(0, number, number)
        is_seen_BC = cache.mask()[:, 0].any(1)
        assert torch.equal(cache.steps_BC()[is_seen_BC], keys[:, 0, :, 0][is_seen_BC].long())
        cache = tree.gather(cache, torch.randint(cache.columns_BJT.shape[1], (BATCH, 4), generator=generator))
    assert cache.steps_BC().shape[1] < 4 * 200
    with pytest.raises(NotImplementedError, match="prompt"):
        SharedCache.start(nothing(2)).step().steps_BC()


@pytest.mark.parametrize("memory", [False, True])
def test_derived_keys_are_refused_beside_keys_of_a_memory(memory: bool) -> None:
    state = SharedCache.start(nothing()).step()
    query, others = torch.zeros(BATCH, HEADS, 1, SIZE).double(), nothing(1)
    call = shared_attention.SharedCall(state, num_seen=0, memory=others if memory else ())
    with shared_attention.shared_call(families._model("Llama"), call):
        keys, values = call.cache.layers[0].update(query, query)
        mask = shared_attention.mask_of()
        if not memory:
            shared_attention.attend(None, query, keys + 0, values, mask)
            return
        with pytest.raises(NotImplementedError, match="keys"):
            shared_attention.attend(None, query, keys + 0, values, mask)


@pytest.mark.parametrize("name", ["Gemma 2", "gpt-oss"])
def test_where_the_model_ignores_caps_and_sinks_slots_have_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older releases of Transformers do: torch's attention has neither."""
    model = families._of(name)
    assert step_model(model).shares
    monkeypatch.setattr(shared_attention, "_own_attention", lambda config: "sdpa")
    assert not step_model(model).shares


@pytest.mark.parametrize("name", families.CAPPED)
def test_caps_of_attention_are_those_of_the_model(name: str) -> None:
    """So low that they change what is written."""

    def scores(adapted: Any, *, shares: bool) -> Tensor:
        adapted.shares = shares
        with torch.no_grad():
            context = encoded(adapted)
            return beam_search(adapted, context, HardTopK(3), num_steps=6).scores_BK

    models = [families._of(name, attn_logit_softcapping=cap).eval() for cap in (1e9, 1e-3)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        for module in model.modules():
            if hasattr(module, "q_proj"):
                module.q_proj.weight.data.mul_(300)
    uncapped, capped = map(step_model, models)
    torch.testing.assert_close(scores(capped, shares=True), scores(capped, shares=False), rtol=0, atol=1e-5)
    assert (scores(capped, shares=True) - scores(uncapped, shares=True)).abs().max() > 1e-3


def test_a_cache_grows_with_the_number_of_slots() -> None:
    cache, _ = written(SharedCache.start(nothing()), seed=0)
    for _ in range(3):
        cache, _ = written(tree.gather(cache, torch.zeros(BATCH, 500, dtype=torch.long)), seed=1)
    assert cache.columns_BJT.shape == (BATCH, 500, 4)


def test_columns_of_another_precision_are_promoted() -> None:
    cache = SharedCache.start([(keys.float(), values.float()) for keys, values in nothing(2)])
    ones = torch.ones(BATCH, HEADS, 1, SIZE).double()
    keys, _ = cache.step().put(0, ones, ones)
    assert keys.dtype == torch.float64


@pytest.mark.parametrize("place", ["before", "inside", "late", "after"])
def test_an_interruption_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    model = families._model("Llama")
    adapted = step_model(model)
    before, tokens = model.config._attn_implementation, torch.tensor([[1, 2, 3]])
    wanted = model(input_ids=tokens).logits

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        context = encoded(adapted)
        inputs_B1D, state = adapted.start(context)
        with monkeypatch.context() as patch:
            if place == "before":
                patch.setattr(shared_attention, "_CALL", _InterruptedOnce(1))
            elif place == "late":
                patch.setattr(shared_attention, "_CALL", _InterruptedOnce(2))
            elif place == "inside":
                patch.setattr(shared_attention.SharedCall, "put", interrupt)
            else:
                patch.setattr(shared_attention, "_LOCK", _Interrupting(2))
            with pytest.raises(KeyboardInterrupt):
                adapted.step(inputs_B1D, state, context, 0)
        torch.testing.assert_close(model(input_ids=tokens).logits, wanted)
        adapted.step(inputs_B1D, state, context, 0)
    assert torch.equal(model(input_ids=tokens).logits, wanted)
    assert model.config._attn_implementation == before or place in ("late", "after")


class _InterruptedOnce:
    """A variable whose n-th change is interrupted."""

    def __init__(self, number: int) -> None:
        self.variable, self.left = shared_attention._CALL, number

    def get(self) -> Any:
        return self.variable.get()

    def set(self, call: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        self.variable.set(call)


class _Interrupting:
    """A lock whose n-th acquisition is interrupted."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def __exit__(self, *_: Any) -> None: ...


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_another_thread_runs_the_same_model_meanwhile(attention: str) -> None:
    """What it computes is its own, and so are its masks."""
    model = families._model("Llama").float()  # in float64 its own eager attention does not like padding
    model.set_attn_implementation(attention)
    adapted = step_model(model)
    tokens, mask = torch.tensor([[1, 2, 3, 4], [3, 2, 1, 1]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    wanted = model(input_ids=tokens, attention_mask=mask).logits
    found: list[Tensor] = []

    def meanwhile(*_: Any) -> None:
        assert model.config._attn_implementation == shared_attention.NAME
        thread = threading.Thread(target=lambda: found.append(model(input_ids=tokens, attention_mask=mask).logits))
        hook.remove()
        thread.start()
        thread.join()

    with torch.no_grad():
        context = adapted.encode(families._batch(families.SOURCES[:1]))
        inputs_B1D, state = adapted.start(context)
        hook = model.get_decoder().layers[0].register_forward_pre_hook(meanwhile)
        adapted.step(inputs_B1D, state, context, 0)
    torch.testing.assert_close(found[0][mask.bool()], wanted[mask.bool()], rtol=0, atol=1e-5)


def test_two_threads_step_through_one_model() -> None:
    """The second begins in the middle of a step of the first, and ends after it."""
    model = families._model("Marian")
    adapted = step_model(model)
    before, first_is_done, found = model.config._attn_implementation, threading.Event(), {}

    def search(name: str) -> None:
        with torch.no_grad():
            beam = beam_search(adapted, encoded(adapted), HardTopK(2), num_steps=3)
        found[name] = beam.scores_BK

    search("alone")
    second = threading.Thread(target=search, args=("second",))

    def meanwhile(*_: Any) -> None:
        if threading.current_thread() is second:
            second_has_begun.set()
            first_is_done.wait(30)
        elif not second.is_alive():
            second.start()
            second_has_begun.wait(30)

    second_has_begun = threading.Event()
    hook = model.get_decoder().layers[1].register_forward_pre_hook(meanwhile)
    search("first")
    hook.remove()
    first_is_done.set()
    second.join()
    assert torch.equal(found["first"], found["alone"]) and torch.equal(found["second"], found["alone"])
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["Marian", "Llama"])
def test_half_precision_keeps_its_columns_in_it(name: str) -> None:
    adapted = step_model(families._model(name).to(torch.bfloat16))
    with torch.no_grad():
        beam = beam_search(adapted, encoded(adapted), HardTopK(3), num_steps=4)
    assert beam.scores_BK.isfinite().all() and beam.scores_BK.dtype == torch.float32
    assert all(leaf.dtype == torch.bfloat16 for layer in beam.state.dense() for leaf in layer)


@pytest.mark.parametrize("columns", [1, 15, 16, 17])
def test_an_additive_mask_has_rows_that_a_gpu_reads_without_a_copy(columns: int) -> None:
    mask = torch.rand(2, 1, 3, columns, generator=torch.Generator().manual_seed(columns)) < 0.5
    added = additive(mask, torch.float32)
    assert added.exp().equal(mask.float())
    assert all(stride % 16 == 0 for stride in added.stride()[:-1]) and added.stride(-1) == 1
