"""Hugging Face models as step models: the same scores, the same outputs, gradients, and clear refusals.

The oracle is always the model itself, run whole and without a cache on one unpadded row. Shapes: B batch, J and K
slots, T steps, V vocabulary.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call

from seqwise import tree
from seqwise.data import Batch, EncodedExample, collate
from seqwise.decoding import (
    Decoder,
    Hypothesis,
    decode,
    hypotheses,
)
from seqwise.errors import InputError
from seqwise.hugging_face import caches, generation, generation_selector, step_model
from seqwise.hugging_face.caches import per_slot
from seqwise.models.deferred_linear import DeferredLinear
from seqwise.models.heads import ForcedFirst, linear_weights
from seqwise.objectives import direct_loss, hamming_cost
from seqwise.objectives.objective import cross_entropy_objective
from seqwise.objectives.rescoring import beam_outputs, output_scores
from seqwise.objectives.scheduled_sampling import scheduled_sampling_objective
from seqwise.objectives.search_aware import hinge_objective, relaxed_beam_objective
from seqwise.objectives.self_normalization import sampled_self_normalized_objective, self_normalized_objective
from seqwise.search import (
    HardTopK,
    SoftTopK,
    backtrace,
    beam_search,
    best_first,
    expanded,
    global_,
    local,
    summed,
    trie,
)
from seqwise.search.feeding import fed_logits_in_two_passes
from seqwise.search.large_vocabulary import relaxed

transformers.logging.set_verbosity_error()

VOCABULARY = 7
END, START, PAD = 0, 6, 6
POSITIONS = 24

SEQ2SEQ_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": 5,
    "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}
LLAMA_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 5,
    "eos_token_id": END,
    "pad_token_id": None,
}
GPT_OSS_SIZES = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3}
GPT_OSS_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
DEEPSEEK_SIZES = {
    "num_key_value_heads": 2,
    "first_k_dense_replace": 2,  # no experts
    "kv_lora_rank": 4,
    "q_lora_rank": None,
    "qk_rope_head_dim": 2,
    "qk_nope_head_dim": 2,
    "v_head_dim": 4,
    "head_dim": 2,
}
T5_SIZES = {"vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}
T5_TOKENS = {"decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": END}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS}
OPT_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
CAUSAL_TOKENS = {"bos_token_id": 5, "eos_token_id": END, "pad_token_id": None}
MAMBA_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4}
QWEN_SIZES = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}
STATE_SPACE_SIZES = {"mamba_d_ssm": 8, "mamba_n_heads": 2, "mamba_d_head": 4, "mamba_d_state": 4, "mamba_n_groups": 1}
NEMOTRON_SIZES = {
    "layer_types": ["linear_attention", "mlp", "full_attention"],
    "mamba_num_heads": 2,
    "mamba_head_dim": 4,
    "ssm_state_size": 4,
    "n_groups": 1,
}


def _of(name: str, *, scale_embedding: bool = False, **more: Any) -> Any:
    """A model of a family, as transformers makes it."""
    t = transformers
    scaled = {"scale_embedding": scale_embedding}
    makers: dict[str, Callable[[], Any]] = {
        "Marian": lambda: t.MarianMTModel(t.MarianConfig(**(SEQ2SEQ_SIZES | scaled | more))),
        "BART": lambda: t.BartForConditionalGeneration(t.BartConfig(**(SEQ2SEQ_SIZES | scaled | more))),
        "mBART": lambda: t.MBartForConditionalGeneration(t.MBartConfig(**(SEQ2SEQ_SIZES | scaled | more))),
        "T5": lambda: t.T5ForConditionalGeneration(t.T5Config(**(T5_SIZES | T5_TOKENS | more))),
        # With a bias for each layer.
        "UMT5": lambda: t.UMT5ForConditionalGeneration(t.UMT5Config(**(T5_SIZES | T5_TOKENS | more))),
        "gpt-oss": lambda: _gpt_oss(**more),
        "DeepSeek V3": lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**(LLAMA_SIZES | DEEPSEEK_SIZES | more))),
        "GPT-2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**(GPT2_SIZES | CAUSAL_TOKENS | more))),
        "Llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**(LLAMA_SIZES | more))),
        # Windows of fewer steps than most outputs have, in all layers or in one of two.
        "Mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**(LLAMA_SIZES | {"sliding_window": 3} | more))),
        "Gemma 3": lambda: t.Gemma3ForCausalLM(
            t.Gemma3TextConfig(
                **(LLAMA_SIZES | {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]} | more)
            )
        ),
        "T5Gemma": lambda: _t5gemma(**more),
        # Recurrences: alone, before attention, beside attention, and before layers that keep nothing.
        "Mamba": lambda: t.MambaForCausalLM(t.MambaConfig(**(MAMBA_SIZES | CAUSAL_TOKENS | more))),
        "Qwen 3.5": lambda: t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(**(LLAMA_SIZES | QWEN_SIZES | more))),
        "Falcon-H1": lambda: t.FalconH1ForCausalLM(t.FalconH1Config(**(LLAMA_SIZES | STATE_SPACE_SIZES | more))),
        "Nemotron-H": lambda: t.NemotronHForCausalLM(t.NemotronHConfig(**(LLAMA_SIZES | NEMOTRON_SIZES | more))),
        "Qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**(LLAMA_SIZES | more))),
        "OPT": lambda: t.OPTForCausalLM(
            t.OPTConfig(**(OPT_SIZES | CAUSAL_TOKENS | {"max_position_embeddings": POSITIONS} | more))
        ),
        "MPT": lambda: t.MptForCausalLM(t.MptConfig(vocab_size=VOCABULARY, d_model=8, n_layers=2, n_heads=2)),
        "BLOOM": lambda: t.BloomForCausalLM(t.BloomConfig(vocab_size=VOCABULARY, hidden_size=8, n_layer=2, n_head=2)),
        "GPT-Neo": lambda: t.GPTNeoForCausalLM(
            t.GPTNeoConfig(
                vocab_size=VOCABULARY,
                hidden_size=8,
                num_layers=2,
                num_heads=2,
                attention_types=[[["global", "local"], 1]],
                window_size=2,
                max_position_embeddings=POSITIONS,
            )
        ),
        "Gemma 2": lambda: t.Gemma2ForCausalLM(
            t.Gemma2Config(
                **(LLAMA_SIZES | {"layer_types": ["full_attention"] * 2, "final_logit_softcapping": 2.0} | more)
            )
        ),
        "Cohere": lambda: t.CohereForCausalLM(t.CohereConfig(**(LLAMA_SIZES | {"logit_scale": 0.3}))),
        "Granite": lambda: t.GraniteForCausalLM(t.GraniteConfig(**(LLAMA_SIZES | {"logits_scaling": 3.0}))),
    }
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = makers[name]().to(torch.float64).eval()
    if name in CAPPED:  # older releases of Transformers default to torch's attention, which ignores the cap
        model.set_attn_implementation("eager")
    return model


def _gpt_oss(**more: Any) -> Any:
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**(LLAMA_SIZES | GPT_OSS_SIZES | more)))
    model.set_experts_implementation("eager")  # the others have no float64
    for layer in model.model.layers:
        layer.self_attn.sinks.data = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    return model


def _t5gemma(**more: Any) -> Any:
    """A decoder whose window, and whose soft cap of scores, are settings of its own; it does not see padding."""
    own: dict[str, Any] = {"sliding_window": 3, "cross_attention_hidden_size": 8, "final_logit_softcapping": 2.0}
    one = transformers.T5GemmaModuleConfig(**(LLAMA_SIZES | own | {"pad_token_id": PAD} | more))
    config = transformers.T5GemmaConfig(
        encoder=one, decoder=one, vocab_size=VOCABULARY, **(T5_TOKENS | {"decoder_start_token_id": 5})
    )
    return transformers.T5GemmaForConditionalGeneration(config)


def _drawn(model: Any, seed: int, spread: float | None = None) -> Any:
    """The same model with weights that make its scores differ, those that are zero at first included."""
    if spread is None:  # recurrences are steep where weights are large
        spread = 0.3 if caches.has_recurrences(model.config) else 0.6
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
            elif parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
    return model


def _model(name: str, seed: int = 0, **options: Any) -> Any:
    return _drawn(_of(name, **options), seed)


def _batch(sources: list[list[int]], targets: list[list[int]] | None = None) -> Batch:
    targets = targets or [[] for _ in sources]
    pairs = zip(sources, targets, strict=True)
    return collate([EncodedExample(tuple(source), tuple(target)) for source, target in pairs])


SOURCES = [[1, 4, 2, 3], [3, 5], [2], [4, 4, 1]]
TARGETS = [[2, 3, END], [1, 5, 1, 4, END], [4], [3, END]]


def _own_logits(model: Any, source: list[int], target: list[int]) -> Tensor:
    """The scores of each target token by the whole model on one row: no padding, no cache, tokens and not vectors."""
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            tokens = torch.tensor([source + target[:-1]])
            return model(input_ids=tokens, use_cache=False).logits[0, len(source) - 1 :]
        start = model.generation_config.decoder_start_token_id
        fed = torch.tensor([[start, *target[:-1]]])
        return model(input_ids=torch.tensor([source]), decoder_input_ids=fed, use_cache=False).logits[0]


CAPPED = ["Gemma 2", "T5Gemma"]
EXACT = ["Marian", "BART", "mBART", "GPT-2", "OPT", "GPT-Neo"]
RECURRENT = ["Mamba", "Qwen 3.5", "Falcon-H1", "Nemotron-H"]
CASTING = ["T5", "T5Gemma", "Llama", "Mistral", "Gemma 3", "Qwen2", "BLOOM", "MPT", "Gemma 2", "Cohere", "Granite"]
CASTING += RECURRENT
"""These compute norms or attention weights in float32 for a model of any type."""


# ---------------------------------------------------------------------------------------- the same scores


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "scale_embedding"),
    [(name, False) for name in EXACT + CASTING] + [(name, True) for name in ("Marian", "BART", "mBART")],
)
def test_steps_and_all_at_once_and_the_model_itself_agree(name: str, scale_embedding: bool) -> None:
    model = _model(name, scale_embedding=scale_embedding)
    adapted = step_model(model)
    batch = _batch(SOURCES, TARGETS)
    tolerance = {"rtol": 0.0, "atol": 1e-10} if name in EXACT else {"rtol": 1e-5, "atol": 1e-5}
    with torch.no_grad():
        context = adapted.encode(batch)
        at_once = adapted.head(adapted.teacher_forced(context, batch.targets_BT))
        # Two slots that write different things and change places at every step.
        fed = torch.stack([batch.targets_BT.clamp(min=0), (batch.targets_BT + 1).clamp(min=0) % VOCABULARY])
        inputs, state = adapted.start(context)
        rows = []
        for step in range(batch.targets_BT.shape[1]):
            features, state = adapted.step(inputs, state, context, step)
            slot = 0 if step == 0 else step % 2
            rows.append(adapted.head(features[:, slot]))
            state = tree.gather(state, torch.tensor([[slot, slot]] if step == 0 else [[1, 0]]).expand(len(batch), 2))
            order = [1, 0] if (step + 1) % 2 else [0, 1]
            inputs = adapted.embedding_VD[fed[order, :, step]].transpose(0, 1)
            if step > 0:  # the other slot has a history of its own
                assert not torch.allclose(rows[-1], adapted.head(features[:, 1 - slot]))
        by_step = torch.stack(rows, dim=1)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        own = _own_logits(model, source, target)
        assert own.std() > 0.05  # there is something to agree on
        # Some heads return float32 for a model of any type.
        torch.testing.assert_close(at_once[row, : len(target)], own, check_dtype=False, **tolerance)
        torch.testing.assert_close(by_step[row, : len(target)], own, check_dtype=False, **tolerance)


@pytest.mark.filterwarnings("error::FutureWarning")  # they take no argument that Transformers will drop
@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Llama", "Mistral", "Mamba", "Qwen 3.5"])
def test_nothing_depends_on_padding_or_on_the_order_of_a_batch(name: str) -> None:
    adapted = step_model(_model(name))
    steps = torch.tensor([4, 5, 3, 5])

    def search(rows: list[int], padding: int) -> tuple[Tensor, Tensor]:
        batch = _batch([SOURCES[row] for row in rows])
        wider = torch.nn.functional.pad(batch.sources_BS, (0, 2))
        is_padding = torch.arange(wider.shape[1]) >= batch.source_lengths_B[:, None]
        # Not even the ids there may matter, or whether there are such ids at all.
        batch = Batch(
            wider.masked_fill(is_padding, padding),
            batch.source_lengths_B,
            batch.targets_BT,
            batch.target_lengths_B,
            batch.indices_B,
        )
        with torch.no_grad():
            beam = beam_search(adapted, adapted.encode(batch), SoftTopK(3, 2.0), num_steps=steps[rows])
        return beam.scores_BK, torch.nn.functional.pad(backtrace(beam), (0, 5 - len(beam.tokens)), value=-1)

    scores, tokens = search([0, 1, 2, 3], 0)
    for rows, padding in (([3, 2, 1, 0], 3), ([2], -100), ([1, 2], 99)):
        other_scores, other_tokens = search(rows, padding)
        torch.testing.assert_close(other_scores, scores[rows], rtol=0, atol=1e-10 if name in EXACT else 1e-5)
        assert torch.equal(other_tokens, tokens[rows])


@pytest.mark.parametrize("name", ["Marian", "BART", "T5", "GPT-2", "Llama", "Mamba", "Qwen 3.5"])
def test_the_likelihood_and_its_gradients_are_those_of_the_models_own_loss(name: str) -> None:
    """Of one unpadded row, so that the model's own loss is the cross-entropy and nothing else."""
    model = _model(name, scale_embedding=True) if name in ("Marian", "BART") else _model(name)
    source, target = SOURCES[0], TARGETS[1]
    if model.config.is_encoder_decoder:
        own = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).loss
    else:
        tokens = torch.tensor([source + target])
        labels = tokens.clone()
        labels[:, : len(source)] = -100
        own = model(input_ids=tokens, labels=labels).loss
    own.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    adapted = step_model(model)
    ours = cross_entropy_objective()(adapted, _batch([source], [target]), {})
    ours.backward()
    torch.testing.assert_close(ours, own.to(ours.dtype), rtol=1e-5, atol=1e-5)
    assert sum(gradient is not None and bool(gradient.any()) for gradient in gradients.values()) > 10
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", RECURRENT)
def test_states_of_recurrences_have_gradients(name: str) -> None:
    """Step by step, the likelihood has the gradients of the model's own loss, which keeps no states."""
    model = _model(name)
    source, target = SOURCES[0], TARGETS[1]
    tokens = torch.tensor([source + target])
    labels = tokens.clone()
    labels[:, : len(source)] = -100
    model(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    adapted = step_model(model)
    context = adapted.encode(_batch([source]))
    inputs_B1D, state = adapted.start(context)
    losses, before = [], []
    for step, token in enumerate(target):
        before.append((state, tree.map(lambda leaf: leaf.detach().clone(), state)))
        features_B1H, state = adapted.step(inputs_B1D, state, context, step)
        losses.append(-adapted.head(features_B1H).log_softmax(-1)[0, 0, token])
        inputs_B1D = adapted.embedding_VD[torch.tensor([[token]])]
    torch.stack(losses).mean().backward()
    assert sum(gradient is not None and bool(gradient.any()) for gradient in gradients.values()) > 10
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], rtol=1e-4, atol=1e-5, msg=key)
    for kept, then in before:  # which other slots may still read
        torch.testing.assert_close(kept, then, rtol=0, atol=0)


def test_a_cache_with_recurrences_keeps_what_leaves_a_window() -> None:
    types = ["sliding_attention", "hybrid_sliding", "linear_attention", "full_attention"]
    config = transformers.PreTrainedConfig(sliding_window=2, layer_types=types, num_hidden_layers=4)
    cache = caches.empty_cache_of(config)
    steps = torch.arange(5.0).view(1, 1, 5, 1)
    for place in (0, 1, 3):
        for step in steps.split(1, dim=2):
            cache.update(step, step, place)
        assert torch.equal(cache.layers[place].keys, steps)


def test_a_state_without_gradients_is_refused_in_training() -> None:
    """As kernels for a GPU have them; in a search, slots that read it later still find it as it was."""
    kept = caches.Recurrence((torch.zeros(1, 2, 3),), (torch.zeros(1, 2),), ())
    cache = caches.cache_of((kept,))
    with torch.no_grad(), caches.ReplacedStates(cache, "Mamba"):
        cache.layers[0].conv_states[0].add_(1.0)
        cache.layers[0].recurrent_states[0].add_(1.0)
    assert not kept.convolved[0].any() and not kept.recurrent[0].any()
    without = "Mamba computes the states of its recurrence without gradients"
    with pytest.raises(InputError, match=without), caches.ReplacedStates(cache, "Mamba"):
        cache.layers[0].recurrent_states[0].add_(1.0)
    with caches.ReplacedStates(cache, "Mamba"):
        cache.layers[0].update_conv_state(torch.ones(1, 2, 1))
        cache.layers[0].update_recurrent_state(torch.ones(1, 2))
    cache.layers[0].recurrent_states[0].requires_grad_()
    with pytest.raises(InputError, match=without), caches.ReplacedStates(cache, "Mamba"):
        cache.layers[0].update_conv_state(torch.ones(1, 2, 1))
        cache.layers[0].update_recurrent_state(torch.ones(1, 2))


def test_excluded_tokens_are_laid_out_once_for_searches_with_and_without_a_graph() -> None:
    model = _model("Marian")
    model.generation_config.bad_words_ids = [[PAD]]
    adapted = step_model(model)
    selector = generation_selector(SoftTopK(2, 1.0), adapted)
    generation._candidate_indices.cache_clear()
    with torch.inference_mode():
        beam_search(adapted, adapted.encode(_batch(SOURCES)), selector, num_steps=4)
    beam = beam_search(adapted, adapted.encode(_batch(SOURCES)), selector, num_steps=4)
    beam.scores_BK.sum().backward()
    assert generation._candidate_indices.cache_info().misses == 2, "for one slot, and for two"
    assert not any((tokens_BK == PAD).any() for tokens_BK in beam.tokens)


def test_the_source_is_encoded_once_and_kept_once_for_each_input() -> None:
    for name, part in (("Marian", "get_encoder"), ("GPT-2", "get_decoder")):
        model = _model(name)
        adapted = step_model(model)
        lengths: list[int] = []

        def note(module: nn.Module, inputs: Any, arguments: Any, seen: list[int] = lengths) -> None:
            given = arguments.get("input_ids")
            seen.append((given if given is not None else arguments["inputs_embeds"]).shape[1])

        hook = getattr(model, part)().register_forward_pre_hook(note, with_kwargs=True)
        with torch.no_grad():
            context = adapted.encode(_batch(SOURCES))
            beam = beam_search(adapted, context, HardTopK(3), num_steps=4)
        hook.remove()
        assert lengths == ([4] if name == "Marian" else [3, 1, 1, 1, 1])
        assert all(leaf.shape[0] == 4 for layer in context.memory for leaf in layer)
        assert beam.state.columns_BJT.shape == (4, 3, 4)
        assert all(leaf.shape[:2] == (4, 3) and leaf.shape[3] == 4 for layer in beam.state.dense() for leaf in layer)


# ---------------------------------------------------------------------------------------- the same outputs


def _generated(model: Any, source: list[int], k: int, steps: int, **settings: Any) -> tuple[list[list[int]], Tensor]:
    """The k outputs of ``generate``, best first, and their scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([source]),
            attention_mask=torch.ones(1, len(source), dtype=torch.long),
            num_beams=k,
            num_return_sequences=k,
            max_new_tokens=steps,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
            **({"length_penalty": 0.0} | settings),
        )
    written = found.sequences[:, 1 if model.config.is_encoder_decoder else len(source) :]
    scores = found.sequences_scores if k > 1 else torch.full((1,), torch.nan)
    return written.tolist(), scores


def _greedy_as_generated(model: Any, selector: Any, *, num_models: int, steps: int) -> list[Hypothesis]:
    """Outputs of random weights, one slot each, which are those of ``generate``."""
    adapted, outputs = step_model(model), []
    for seed in range(num_models):
        _drawn(model, seed)
        with torch.no_grad():
            found = decode(adapted, adapted.encode(_batch(SOURCES)), Decoder(selector, local), num_steps=steps)
        for source, (best, *_) in zip(SOURCES, found, strict=True):
            (written,), _ = _generated(model, source, 1, steps)
            assert list(best.tokens) + [END] * best.finished == written
            outputs.append(best)
    return outputs


PARITY = ["Marian", "BART", "T5", "T5Gemma", "GPT-2", "Llama", "Mistral", "Gemma 3", *RECURRENT]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARITY)
def test_hard_beams_are_those_of_generate_on_many_random_models(name: str) -> None:
    """20 models of each kind, where nothing ends, so that the definitions are the same: all k outputs, in order.

    ``generate`` runs on one unpadded row at a time, the adapter on the whole batch.
    """
    model = _of(name, scale_embedding=True) if name in ("Marian", "BART") else _of(name)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    adapted = step_model(model)
    distinct = set()
    for seed in range(20):
        _drawn(model, seed)
        k, steps = 1 + seed % 4, 3 + seed % 3
        sources = [SOURCES[seed % 4], SOURCES[(seed + 1) % 4]]
        with torch.no_grad():
            found = decode(
                adapted, adapted.encode(_batch(sources)), Decoder(HardTopK(k), local), num_steps=steps, n_best=k
            )
        for source, ours in zip(sources, found, strict=True):
            outputs, scores = _generated(model, source, k, steps)
            assert [list(hypothesis.tokens) for hypothesis in ours] == outputs
            distinct |= {tuple(output) for output in outputs}
            if k > 1:
                ours_scores = torch.tensor([hypothesis.score for hypothesis in ours])
                torch.testing.assert_close(ours_scores, scores.float(), rtol=1e-4, atol=1e-4)
    assert len(distinct) > 20


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARITY)
def test_greedy_outputs_end_where_those_of_generate_end(name: str) -> None:
    """With one slot the definitions are the same at the end token too."""
    model = _of(name)
    model.generation_config.pad_token_id = PAD
    outputs = _greedy_as_generated(model, HardTopK(1), num_models=8, steps=6)
    assert 0 < sum(best.finished for best in outputs) < 30


@pytest.mark.thorough
@pytest.mark.parametrize("power", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("name", ["Marian", "BART", "T5", "GPT-2"])
def test_length_normalisation_is_the_length_penalty_of_generate(name: str, power: float) -> None:
    """Beams wide enough for all outputs of at most 3 tokens, so that nothing but the scores decides."""
    model = _model(name, vocab_size=5, **({"pad_token_id": 4, "bos_token_id": 3, "decoder_start_token_id": 4}))
    model.generation_config.pad_token_id = 4
    adapted, sources = step_model(model), [[1, 2, 3], [2], [3, 1]]
    settings: dict[str, Any] = {"num_steps": 3, "n_best": 85, "length_normalization": power}
    with torch.no_grad():
        found = decode(adapted, adapted.encode(_batch(sources)), Decoder(HardTopK(125), local), **settings)
    for source, ours in zip(sources, found, strict=True):
        written, scores = _generated(model, source, 125, 3, length_penalty=power, early_stopping="never")
        for rank, best in enumerate(ours):
            tokens = written[rank][: written[rank].index(END) + 1] if END in written[rank] else written[rank]
            assert [*best.tokens, *[END] * best.finished] == tokens
            assert best.score == pytest.approx(float(scores[rank]), abs=1e-5)
        assert len(ours) == 1 + 4 + 4 * 4 * 5, "all outputs of 1, 2 and 3 tokens"


def _literal_beam(model: Any, source: list[int], k: int, steps: int) -> list[tuple[float, list[int]]]:
    """Beam search by the book, in lists: an output that has ended stays a candidate, at its score.

    Scores are those of the whole model, without a cache.
    """
    beam: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        candidates = []
        for score, tokens in beam:
            if END in tokens:
                candidates.append((score, tokens))
                continue
            log_probs = _own_logits(model, source, [*tokens, END])[-1].log_softmax(-1).tolist()
            candidates += [(score + added, [*tokens, token]) for token, added in enumerate(log_probs)]
        beam = sorted(candidates, key=lambda candidate: -candidate[0])[:k]
    return beam


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2"])
def test_outputs_that_end_are_those_of_a_literal_beam(name: str) -> None:
    model = _of(name)
    adapted = step_model(model)
    ended = lasting = 0
    for seed in range(4):
        _drawn(model, seed)
        k = 2 + seed % 3
        with torch.no_grad():
            found = decode(adapted, adapted.encode(_batch(SOURCES)), Decoder(HardTopK(k), local), num_steps=4, n_best=k)
        for source, ours in zip(SOURCES, found, strict=True):
            expected = _literal_beam(model, source, k, 4)
            assert [list(h.tokens) + [END] * h.finished for h in ours] == [tokens for _, tokens in expected]
            for hypothesis, (score, tokens) in zip(ours, expected, strict=True):
                assert abs(hypothesis.score - score) < 1e-4
                ended += END in tokens
                lasting += END not in tokens
    assert ended > 3
    assert lasting > 3


SETTINGS: list[dict[str, Any]] = [
    {"bad_words_ids": [[PAD], [END]]},
    {"suppress_tokens": [2, 4]},
    {"begin_suppress_tokens": [2, 4]},
    {"forced_eos_token_id": END},
    {"suppress_tokens": [PAD], "begin_suppress_tokens": [2], "forced_eos_token_id": 3},
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Marian", "mBART", "GPT-2"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "+".join(settings))
def test_what_a_generation_config_forbids_is_forbidden_as_in_generate(name: str, settings: dict[str, Any]) -> None:
    model = _of(name)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    if name == "mBART":
        model.generation_config.forced_bos_token_id = 3
    adapted = step_model(_set(model, **settings))
    changed = 0
    for seed in range(4):
        _drawn(model, seed)
        k, steps = 2 + seed % 3, 4
        selector = generation_selector(HardTopK(k), adapted, num_steps=steps)
        with torch.no_grad():
            context = adapted.encode(_batch(SOURCES))
            plain = decode(adapted, context, Decoder(HardTopK(k), local), num_steps=steps, n_best=k)
            found = decode(adapted, context, Decoder(selector, local), num_steps=steps, n_best=k)
        for source, ours, free in zip(SOURCES, found, plain, strict=True):
            outputs, scores = _generated(model, source, k, steps)
            assert [list(hypothesis.tokens) for hypothesis in ours] == outputs
            ours_scores = torch.tensor([hypothesis.score for hypothesis in ours])
            torch.testing.assert_close(ours_scores, scores.float(), rtol=1e-4, atol=1e-4)
            changed += [h.tokens for h in free] != [h.tokens for h in ours]
            if name == "mBART":
                assert all(hypothesis.tokens[0] == 3 for hypothesis in (*ours, *free))
    assert changed > 0


@pytest.mark.thorough
@pytest.mark.parametrize("setting", ["min_new_tokens", "min_length"])
def test_an_end_that_comes_too_early_is_forbidden_as_in_generate(setting: str) -> None:
    model = _of("Marian")
    setattr(model.generation_config, setting, 4)
    least = 4 if setting == "min_new_tokens" else 3  # which counts the start token
    outputs = _greedy_as_generated(model, generation_selector(HardTopK(1), model), num_models=6, steps=7)
    assert all(len(best.tokens) >= least for best in outputs)
    assert any(best.finished and len(best.tokens) == least for best in outputs)


def test_an_end_token_among_the_bad_words_may_come_as_in_generate() -> None:
    model = _of("Marian")
    model.generation_config.bad_words_ids = [[END], [2]]
    outputs = _greedy_as_generated(model, generation_selector(HardTopK(1), model), num_models=4, steps=5)
    assert any(best.finished for best in outputs)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_new_tokens": 4}, "generation_config.min_new_tokens is 4"),
        ({"min_length": 5}, "generation_config.min_length is 5"),
        ({"begin_suppress_tokens": [2]}, r"generation_config.begin_suppress_tokens is \[2\]"),
        ({"forced_eos_token_id": 3}, "generation_config.forced_eos_token_id is 3"),
        ({"suppress_tokens": [1, 3]}, "has a token that generation_config.suppress_tokens forbids"),
        ({"suppress_tokens": [END]}, "has a token that generation_config.suppress_tokens forbids"),
    ],
)
def test_what_a_language_cannot_follow_of_a_generation_config_is_refused(settings: dict[str, Any], said: str) -> None:
    model = _with("Marian", **settings)
    adapted = step_model(model)
    adapted.language = trie([(1, 2), (3, 2, 4)], end=END)
    selector = generation_selector(HardTopK(2), model, num_steps=6)
    with pytest.raises(InputError, match=said):
        decode(adapted, adapted.encode(_batch(SOURCES)), Decoder(selector, local), num_steps=6)


@pytest.mark.parametrize("k", [1, 2])
def test_a_search_in_a_language_enters_no_prefix_that_needs_a_forbidden_token(k: int) -> None:
    model = _with("Marian", suppress_tokens=[2], bad_words_ids=[[PAD]], forced_eos_token_id=END)
    adapted = step_model(model)
    adapted.language = trie([(1, 2), (3, 2, 4), (4, 2), (5, 5, 5, 5)], end=END)
    selector = generation_selector(HardTopK(k), model, num_steps=6)
    for seed in range(3):
        _drawn(model, seed)
        found = decode(adapted, adapted.encode(_batch(SOURCES)), Decoder(selector, local), num_steps=6, n_best=k)
        assert [[best.tokens for best in outputs] for outputs in found] == [[(5, 5, 5, 5)]] * len(SOURCES)


def test_a_forced_last_token_adds_nothing_to_raw_scores_either() -> None:
    adapted = step_model(_with("GPT-2", forced_eos_token_id=3))
    selector = generation_selector(HardTopK(2), adapted, num_steps=4)
    with torch.no_grad():
        context = adapted.encode(_batch(SOURCES))
        three = beam_search(adapted, context, HardTopK(2), num_steps=3, score=global_)
        four = beam_search(adapted, context, selector, num_steps=4, score=global_)
    assert torch.equal(four.scores_BK, three.scores_BK)
    assert set(four.tokens[-1].flatten().tolist()) <= {3, END}  # what had ended stays


# ---------------------------------------------------------------------------------------- soft and hard


@pytest.mark.parametrize("name", ["Marian", "BART", "GPT-2", "OPT", "Qwen 3.5"])
def test_a_one_hot_mixture_is_a_choice(name: str) -> None:
    """One step after a mixture by one-hot weights, and after gathering: the same to the last bits."""
    adapted = step_model(_model(name))
    with torch.no_grad():
        context = adapted.encode(_batch(SOURCES))
        beam = beam_search(adapted, context, HardTopK(3), num_steps=2)
        parents = torch.tensor([[2, 0, 0], [1, 1, 2], [0, 1, 2], [2, 2, 2]])
        weights = torch.nn.functional.one_hot(parents, 3).double()
        tokens = torch.tensor([[1, 2, 3]] * 4)
        hard = adapted.step(adapted.embedding_VD[tokens], tree.gather(beam.state, parents), context, 2)
        fed = torch.nn.functional.one_hot(tokens, VOCABULARY).double() @ adapted.embedding_VD
        soft = adapted.step(fed, tree.mix(beam.state, weights), context, 2)
    torch.testing.assert_close(soft[0], hard[0], rtol=0, atol=1e-12)
    gathered = hard[1].dense() if adapted.shares else hard[1]
    torch.testing.assert_close(soft[1], gathered, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2"])
def test_best_first_search_is_a_beam_that_holds_everything(name: str) -> None:
    adapted, steps = step_model(_model(name)), torch.tensor([3, 2, 3, 1])
    with torch.no_grad():
        context = adapted.encode(_batch(SOURCES))
        beam = beam_search(adapted, context, HardTopK(VOCABULARY**2 + VOCABULARY), num_steps=steps)
    found = best_first(adapted, context, 2, num_steps=steps, at_once=3, most_expansions=10**4)
    wide = hypotheses(beam, end=adapted.end, n_best=2)
    for ranked, exact in zip(wide, hypotheses(found, end=adapted.end, n_best=2), strict=True):
        assert [output.tokens for output in ranked] == [output.tokens for output in exact]
        assert [output.score for output in ranked] == pytest.approx([output.score for output in exact], abs=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@pytest.mark.parametrize("name", ["Marian", "BART", "T5", "GPT-2", "Llama", "Mistral", "Mamba", "Qwen 3.5"])
def test_a_relaxed_beam_of_large_alpha_is_the_hard_beam(name: str, score: Any) -> None:
    adapted = step_model(_model(name, seed=3))
    with torch.no_grad():
        context = adapted.encode(_batch(SOURCES))
        hard = beam_search(adapted, context, HardTopK(3), num_steps=5, score=score)
        soft = beam_search(adapted, context, SoftTopK(3, 1e10), num_steps=5, score=score)
    assert torch.equal(backtrace(hard), backtrace(soft))
    torch.testing.assert_close(soft.scores_BK, hard.scores_BK, rtol=0, atol=1e-6)
    state = hard.state.dense() if adapted.shares else hard.state
    torch.testing.assert_close(soft.state, state, rtol=0, atol=1e-5)


class _LossOfWeights(nn.Module):
    """The relaxed beam's direct loss as a module, so that its weights can be handed in."""

    def __init__(self, adapted: Any) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self) -> Tensor:
        gold = torch.tensor([[2, 3, END], [1, END, END]])
        beam = beam_search(
            self.adapted,
            self.adapted.encode(_batch(SOURCES[:2])),
            SoftTopK(2, 1.5),
            num_steps=3,
            cost=hamming_cost(gold, VOCABULARY),
        )
        return direct_loss(beam, 1.5).sum()


# Padding is not fed first here: torch gives its embedding no gradient.
TINY = {"d_model": 4, "decoder_layers": 1, "encoder_ffn_dim": 4, "decoder_ffn_dim": 4, "decoder_start_token_id": 5}
CHECKED = {
    "Marian": (
        TINY,
        "encoder.layers.0.self_attn.v_proj.weight",
        "decoder.layers.0.self_attn.k_proj.weight",
        "decoder.layers.0.encoder_attn.v_proj.weight",
        "shared.weight",
    ),
    "GPT-2": ({"n_embd": 4, "n_layer": 1}, "wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Marian", "GPT-2"])
def test_the_gradient_of_the_relaxed_beam_is_right(name: str) -> None:
    """Through cache, fed embeddings, source and head, tied weights included."""
    sizes, *weights = CHECKED[name]
    loss = _LossOfWeights(step_model(_model(name, seed=5, **sizes)))
    named = dict(loss.named_parameters())
    prefix = "adapted.model.model." if name == "Marian" else "adapted.model.transformer."
    for weight in weights:
        start = named[prefix + weight].detach().clone().requires_grad_()

        def of_weight(value: Tensor, key: str = prefix + weight) -> Tensor:
            return functional_call(loss, {key: value}, ())

        assert torch.autograd.grad(of_weight(start), start)[0].abs().max() > 1e-6
        assert torch.autograd.gradcheck(of_weight, start, fast_mode=start.numel() > 16)


OBJECTIVES: list[tuple[str, Any]] = [
    ("relaxed beam", relaxed_beam_objective(k=2, cross_entropy_weight=0.5)),
    ("hinge", hinge_objective(k=2, score=global_)),
    ("scheduled sampling", scheduled_sampling_objective("soft-greedy")),
    ("two passes", scheduled_sampling_objective("soft-greedy", fed=fed_logits_in_two_passes)),
    ("self-normalised", self_normalized_objective(weight=0.1)),
]


@pytest.mark.parametrize("name", ["Marian", "mBART", "Gemma 3", "BioGPT"])
def test_padding_that_is_mixed_has_a_gradient(name: str) -> None:
    """In front of an embedding that scales itself too; by finite differences."""
    pad = 3
    if name == "Gemma 3":
        sizes = LLAMA_SIZES | {"pad_token_id": pad, "layer_types": ["full_attention"] * 2}
        model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes))
    elif name == "BioGPT":
        sizes = {key: size for key, size in LLAMA_SIZES.items() if key not in ("num_key_value_heads", "head_dim")}
        model = transformers.BioGptForCausalLM(transformers.BioGptConfig(**(sizes | {"pad_token_id": pad})))
    else:
        model = _of(name, scale_embedding=True, pad_token_id=pad)
    adapted = step_model(_drawn(model, 1).double().eval())
    weight_VD = adapted.model.get_input_embeddings().weight
    mixed_VD = torch.linspace(1, 2, weight_VD.numel(), dtype=weight_VD.dtype).view_as(weight_VD)
    (gradient_VD,) = torch.autograd.grad((adapted.embedding_VD * mixed_VD).sum(), weight_VD)
    with torch.no_grad():
        before_VD = adapted.embedding_VD.clone()
        weight_VD.add_(1.0)
        torch.testing.assert_close(gradient_VD, (adapted.embedding_VD - before_VD) * mixed_VD)
    looked_up = adapted.model.get_input_embeddings()(torch.tensor([pad, 1]))
    (gradient_VD,) = torch.autograd.grad(looked_up.sum(), weight_VD)
    assert gradient_VD[1].all() and not gradient_VD[pad].any(), "as in the model"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Qwen 3.5"])
def test_every_objective_trains_it(name: str) -> None:
    """One step down the gradient lowers the loss."""
    start = _model(name).state_dict()
    for label, objective in OBJECTIVES:
        model = _of(name)
        model.load_state_dict(start)
        adapted = step_model(model)
        values = {"alpha": 1.0, "gold_probability": 0.0}
        batch = _batch(SOURCES, TARGETS)
        before = objective(adapted, batch, values)
        before.backward()
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
        optimiser.step()
        assert objective(adapted, batch, values) < before, label


@pytest.mark.parametrize("name", ["Marian", "BART", "GPT-2", "T5"])
def test_single_scores_come_from_rows_of_a_linear_head(name: str) -> None:
    """The part that looks rows of the head up finds what the whole head says: log Z at every position, in both ways."""
    model = _model(name)
    adapted = step_model(model)
    features = torch.randn(3, 8, dtype=torch.float64)
    rows = features @ adapted.head.weight.T
    torch.testing.assert_close(adapted.head(features), rows if adapted.head.bias is None else rows + adapted.head.bias)
    batch = _batch(SOURCES, TARGETS)
    whole = self_normalized_objective(weight=0.3)(adapted, batch, {})
    sampled = sampled_self_normalized_objective(weight=0.3, fraction=1.0)(adapted, batch, {})
    torch.testing.assert_close(sampled, whole)


# ---------------------------------------------------------------------------------------- a module like others


def test_what_is_saved_is_the_model() -> None:
    model = _model("Marian")
    adapted = step_model(model)
    assert set(adapted.state_dict()) == set(model.state_dict())
    inside = nn.ModuleDict({"part": adapted})
    assert set(inside.state_dict()) == {f"part.{name}" for name in model.state_dict()}
    other = _model("Marian", seed=1)
    adapted.load_state_dict(other.state_dict())
    assert all(torch.equal(mine, other.state_dict()[name]) for name, mine in model.state_dict().items())
    third = _model("Marian", seed=2)
    inside.load_state_dict({f"part.{name}": tensor for name, tensor in third.state_dict().items()})
    assert all(torch.equal(mine, third.state_dict()[name]) for name, mine in model.state_dict().items())
    assert {id(p) for p in adapted.parameters()} == {id(p) for p in model.parameters()}
    with pytest.raises(RuntimeError, match="Missing key"):
        adapted.load_state_dict({})


class _Wrapped(nn.Module):
    """As adapters of weights wrap a model, with something added to its scores or not."""

    def __init__(self, model: Any, added: float) -> None:
        super().__init__()
        self.base, self.config, self.added = model, model.config, added

    def get_base_model(self) -> Any:
        return self.base

    def forward(self, *arguments: Any, **named: Any) -> Any:
        output = self.base(*arguments, **named)
        output.logits = output.logits + self.added * torch.arange(VOCABULARY)
        return output


def test_a_wrapped_model_is_adapted_where_the_wrapping_adds_nothing_outside() -> None:
    model = _model("Marian")
    assert step_model(_Wrapped(model, 0.0)).model is model
    with pytest.raises(InputError, match="MarianMTModel cannot be adapted"):
        step_model(_Wrapped(model, 0.1))


def test_a_copy_has_weights_of_its_own() -> None:
    adapted = step_model(_model("Marian"))
    twin = copy.deepcopy(adapted)
    features = torch.randn(2, 8, dtype=torch.float64)
    torch.testing.assert_close(twin.head(features), adapted.head(features))
    with torch.no_grad():
        twin.model.final_logits_bias.add_(1.0)
    torch.testing.assert_close(twin.head(features), adapted.head(features) + 1.0)


@pytest.mark.parametrize("name", ["Marian", "GPT-2"])
def test_dropout_follows_the_mode_of_the_model(name: str) -> None:
    rates = {"dropout": 0.5} if name == "Marian" else {"embd_pdrop": 0.5, "resid_pdrop": 0.5}
    model = _model(name, **rates)
    adapted = step_model(model)
    batch = _batch(SOURCES, TARGETS)
    assert not adapted.training

    def loss() -> float:
        return cross_entropy_objective()(adapted, batch, {}).item()

    assert loss() == loss()
    adapted.train()
    assert model.training
    assert loss() != loss()
    assert step_model(model).training  # and the check at construction leaves it so
    assert model.training
    before = torch.get_rng_state()
    step_model(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Llama", "Mistral", "Qwen 3.5"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = _model(name, dropout_rate=0.0) if name == "T5" else _model(name)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    for setting in ("dropout", "attention_dropout", "activation_dropout"):
        for part in model.modules():
            if isinstance(getattr(part, setting, None), float):
                setattr(part, setting, 0.0)
    adapted = step_model(model).train()
    batch = _batch(SOURCES, TARGETS)
    objectives = [cross_entropy_objective(), relaxed_beam_objective(k=2, cross_entropy_weight=0.5)]

    def losses_and_gradients() -> list[Any]:
        found = []
        for objective in objectives:
            model.zero_grad()
            loss = objective(adapted, batch, {"alpha": 1.0})
            loss.backward()
            found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        return found

    plain = losses_and_gradients()
    adapted.gradient_checkpointing = True
    assert adapted.gradient_checkpointing and model.is_gradient_checkpointing
    torch.testing.assert_close(losses_and_gradients(), plain, rtol=1e-4, atol=1e-6)
    assert model.is_gradient_checkpointing
    adapted.steps_singly = False  # so that sources are read for all steps at once only
    assert not adapted.encode(batch).memory
    adapted.gradient_checkpointing = False
    assert not model.is_gradient_checkpointing
    assert bool(adapted.encode(batch).memory) is not adapted.recurs


@pytest.mark.parametrize("name", ["Marian", "T5", "Llama", "Qwen 3.5"])
def test_in_half_precision_scores_are_single(name: str) -> None:
    model = _model(name).to(torch.bfloat16)
    adapted = step_model(model)
    batch = _batch(SOURCES, TARGETS)
    for selector in (HardTopK(3), SoftTopK(3, 1.0)):
        beam = beam_search(adapted, adapted.encode(batch), selector, num_steps=4)
        assert beam.scores_BK.dtype == torch.float32
        assert beam.scores_BK.isfinite().all()
        # Some recurrences keep float32.
        kinds = {leaf.dtype for leaf in tree.flatten(beam.state)[0]}
        assert kinds == {torch.bfloat16} or (adapted.recurs and kinds <= {torch.bfloat16, torch.float32})
    loss = relaxed_beam_objective(k=2)(adapted, batch, {"alpha": 1.0})
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    single = step_model(_model(name).to(torch.float32))
    with torch.no_grad():
        expected = single.head(single.teacher_forced(single.encode(batch), batch.targets_BT))
        found = adapted.head(adapted.teacher_forced(adapted.encode(batch), batch.targets_BT)).float()
    assert ((found - expected).abs().max() / expected.abs().max()) < 0.1


@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Llama", "Qwen 3.5"])
def test_under_autocast_it_searches_and_learns(name: str) -> None:
    model = _model(name).to(torch.float32)
    adapted = step_model(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = relaxed_beam_objective(k=2)(adapted, _batch(SOURCES, TARGETS), {"alpha": 1.0})
        loss.backward()
    exact = relaxed_beam_objective(k=2)(adapted, _batch(SOURCES, TARGETS), {"alpha": 1.0})
    torch.testing.assert_close(loss.float(), exact, rtol=0.05, atol=0.05)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", ["Marian", "GPT-2", "Qwen 3.5"])
def test_contexts_can_be_repeated_for_several_outputs_of_an_input(name: str) -> None:
    """Rescoring reads each source once, and scores all outputs of its beam in one pass."""
    model = _model(name)
    adapted = step_model(model)
    context = adapted.encode(_batch(SOURCES))
    with torch.no_grad():
        outputs, _ = beam_outputs(adapted, context, k=3, num_steps_B=torch.tensor([3] * 4), score=local)
        scores = output_scores(adapted, context, outputs, local)
    for row, source in enumerate(SOURCES):
        for slot in range(3):
            written = outputs[row, slot].tolist()
            written = written[: written.index(END) + 1] if END in written else written
            log_probs = _own_logits(model, source, written).log_softmax(-1)
            own = log_probs[torch.arange(len(written)), torch.tensor(written)].sum()
            tolerance = 1e-9 if name in EXACT else 1e-6
            torch.testing.assert_close(scores[row, slot], own, rtol=0, atol=tolerance)


def test_the_forced_first_token_is_the_first_of_every_output_at_score_zero() -> None:
    model = _model("mBART")
    model.generation_config.forced_bos_token_id = 4
    adapted = step_model(model)
    batch = _batch(SOURCES, [[4, *target] for target in TARGETS])
    with torch.no_grad():
        context = adapted.encode(batch)
        logits = adapted.head(adapted.teacher_forced(context, batch.targets_BT))
        beams = [beam_search(adapted, context, s, num_steps=3) for s in (HardTopK(2), SoftTopK(2, 1.0))]
        first = beam_search(adapted, context, HardTopK(1), num_steps=1)
    assert (logits[:, 0].log_softmax(-1)[:, 4] == 0).all()
    assert (first.scores_BK == 0).all()
    with torch.no_grad():
        inputs, state = adapted.start(context)
        states = state.gather(torch.zeros(len(SOURCES), 2, dtype=torch.long))
        two, _ = adapted.step(inputs.expand(-1, 2, -1), states, context, 0)
    assert (adapted.head(two).softmax(-1)[..., 4] == 1).all()
    for beam in beams:
        assert (backtrace(beam)[:, 0, 0] == 4).all()
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        own = _own_logits(model, source, [4, *target])
        torch.testing.assert_close(logits[row, 1 : len(target) + 1], own[1:], rtol=0, atol=1e-10)
    loss = relaxed_beam_objective(k=2, cross_entropy_weight=1.0)(adapted, batch, {"alpha": 1.0})
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    with pytest.raises(InputError, match="forced_bos_token_id"):
        adapted.teacher_forced(context, _batch(SOURCES, TARGETS).targets_BT)
    free = copy.deepcopy(model.generation_config)
    free.forced_bos_token_id = None
    assert step_model(model, generation_config=free).forced_first is None
    adapted.language = trie([(3,)], end=END)
    with torch.no_grad(), pytest.raises(InputError, match="no output of the language begins with it"):
        beam_search(adapted, adapted.encode(batch), HardTopK(2), num_steps=3)
    adapted.language = trie([(3,)], end=END).after([4])
    with torch.no_grad():
        (best, *_) = backtrace(beam_search(adapted, adapted.encode(batch), HardTopK(2), num_steps=3))
    assert best[0].tolist() == [4, 3, END]


def test_tokens_beyond_the_vocabulary_are_never_written() -> None:
    """As the end token of a small GPT-2 that keeps the number of a large one."""
    model, plain = _model("GPT-2"), _model("GPT-2")
    model.generation_config.eos_token_id, model.generation_config.suppress_tokens = 50256, [3, 999]
    plain.generation_config.eos_token_id, plain.generation_config.suppress_tokens = None, [3]
    found = []
    for each in (model, plain):
        adapted = step_model(each)
        with torch.no_grad():
            context = adapted.encode(_batch(SOURCES, TARGETS))
            beam = beam_search(adapted, context, generation_selector(HardTopK(3), each), num_steps=3)
        found.append(backtrace(beam))
    assert step_model(model).end is None and torch.equal(*found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "forced", "tied"),
    [("Marian", None, True), ("BART", 4, True), ("mBART", 4, False), ("GPT-2", None, True), ("T5", None, False)],
)
@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
def test_a_relaxed_beam_never_expands_the_candidates_of_a_linear_head(
    monkeypatch: pytest.MonkeyPatch, name: str, forced: int | None, tied: bool, score: Any
) -> None:
    """But those of a forced first step; with the gradients of the plain form, each matrix's made once."""
    model = _model(name, tie_word_embeddings=tied)
    model.generation_config.forced_bos_token_id = forced
    adapted = step_model(model)
    assert (adapted.forced_first is None) is (forced is None)
    batch = _batch(SOURCES, [[forced, *target] if forced else target for target in TARGETS])
    counted = {"expanded": 0, "matrices": 0}
    again, make = relaxed._checkpointed, DeferredLinear.__init__

    def expanded_again(*arguments: Any) -> Any:
        counted["expanded"] += 1
        return again(*arguments)

    def made(self: DeferredLinear, *arguments: Any) -> None:
        counted["matrices"] += 1
        make(self, *arguments)

    monkeypatch.setattr(relaxed, "_checkpointed", expanded_again)
    monkeypatch.setattr(DeferredLinear, "__init__", made)

    def gradients(form: Any) -> list[Tensor]:
        context, gold_BT = adapted.encode(batch), batch.targets_BT.clamp(min=0)
        cost = hamming_cost(gold_BT, VOCABULARY, torch.linspace(0.5, 2.5, VOCABULARY, dtype=torch.float64))
        selector = SoftTopK(3, 2.0, form=form)
        beam = beam_search(adapted, context, selector, num_steps=gold_BT.shape[1], score=score, cost=cost)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        loss = direct_loss(beam, 2.0) + beam.scores_BK.logsumexp(1).mean()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    plain = gradients(expanded)
    assert counted == {"expanded": 0, "matrices": 0}
    for form in (
        summed(tolerance=1e-12),
        summed(tolerance=-1.0),
    ):  # few candidates where that is certain, and all of them
        found = gradients(form)
        assert counted == {"expanded": 0 if forced is None else 1, "matrices": counted["matrices"]}
        assert 1 <= counted["matrices"] <= 2, "the head and the embedding"
        for one, other in zip(plain, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
        counted.update(expanded=0, matrices=0)
    # What else somebody lets the head or a layer behind it do is done.
    steps = batch.targets_BT.shape[1]
    head = adapted.head
    forward = head.forward
    head.forward = lambda features: 2 * forward(features)
    doubled = gradients(summed(tolerance=1e-12))
    assert counted["expanded"] == steps and any(
        not torch.allclose(one, other) for one, other in zip(doubled, plain, strict=True)
    )
    del head.forward
    for module in {head, model.get_output_embeddings(), getattr(head, "after_first", head)}:
        seen: list[bool] = []
        hook = module.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(True))
        counted.update(expanded=0)
        gradients(summed(tolerance=1e-12))
        assert counted["expanded"] == steps and len(seen) >= steps
        hook.remove()


def test_a_search_copies_what_it_reads_of_the_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = step_model(_model("BART"))
    copied: list[int] = []

    def watched(layers: Any, num_slots: int) -> Any:
        copied.append(num_slots)
        return per_slot(layers, num_slots)

    monkeypatch.setattr(caches, "per_slot", watched)
    context = adapted.encode(_batch(SOURCES))
    with torch.no_grad():
        beam_search(adapted, context, HardTopK(3), num_steps=4)
    assert copied == [], "where slots share what they read, nothing is copied"
    adapted.shares = False
    with torch.no_grad():
        beam = beam_search(adapted, context, HardTopK(3), num_steps=4)
    assert copied == [1, 3]
    # A graph is not built on copies that have none.
    soft = beam_search(adapted, context, SoftTopK(3, 2.0), num_steps=4)
    assert copied == [1, 3, 1, 3]
    soft.scores_BK.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapted.model.get_encoder().layers.parameters()
               if p.dim() > 1)  # fmt: skip
    # Nor are those of one context taken for another, made of it, or of what has been written over.
    rows_N = torch.tensor([2, 0])
    some = tree.map(lambda leaf: leaf[rows_N], context)
    assert some.copies is not context.copies
    with torch.no_grad():
        found = beam_search(adapted, some, HardTopK(3), num_steps=4)
        torch.testing.assert_close(found.scores_BK, beam.scores_BK[rows_N], rtol=0, atol=1e-10)
        for _, values in some.memory:
            values.mul_(-3.0)
        again = beam_search(adapted, some, HardTopK(3), num_steps=4)
        fresh = beam_search(adapted, tree.map(torch.clone, some), HardTopK(3), num_steps=4)
    assert torch.equal(again.scores_BK, fresh.scores_BK) and not torch.equal(again.scores_BK, found.scores_BK)


class _Announced:
    """Stands for the agreement of processes that share the layers of a model."""

    def announce(self) -> None:
        pass


@pytest.mark.parametrize("name", ["Marian", "T5"])
def test_a_search_does_not_repeat_the_step_that_fills_the_cache_of_the_source(name: str) -> None:
    """Unless slots have copies of their pasts, or other processes wait for a pass at every step."""
    adapted, found, passes = step_model(_model(name)), [], []
    adapted.model.get_decoder().register_forward_pre_hook(lambda *_: passes.append(len(found)))
    for adapted.shares, adapted.lockstep in ((True, None), (False, None), (True, _Announced())):
        with torch.no_grad():
            context = adapted.encode(_batch(SOURCES))
            found.append(beam_search(adapted, context, HardTopK(3), num_steps=4).scores_BK)
    assert [passes.count(search) for search in range(3)] == [4, 5, 5]
    for others in found[1:]:
        torch.testing.assert_close(found[0], others)


def test_a_bias_of_another_precision_is_added_as_the_model_adds_it() -> None:
    """Embeddings that are enlarged leave a model of 16 bits with a bias of 32."""
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQ2SEQ_SIZES)).to(torch.bfloat16)
    model.resize_token_embeddings(3000)
    adapted = step_model(model.eval())
    assert adapted.head.bias.dtype == torch.float32 and linear_weights(adapted.head, adapted.head.in_features) is None
    beam = beam_search(adapted, adapted.encode(_batch(SOURCES)), SoftTopK(2, 1.0), num_steps=2)
    beam.scores_BK.sum().backward()
    assert bool(beam.scores_BK.isfinite().all())


def _quantized(model: nn.Module) -> Any:
    """Copy it with dynamic int8 layers, which are deprecated."""
    if torch.backends.quantized.engine == "none":
        pytest.skip("no engine for int8 layers")
    quantization = pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("forced_first", [None, 3])
@torch.no_grad()
def test_a_model_quantised_after_it_was_adapted_writes_what_it_generates(forced_first: int | None) -> None:
    """One source and one slot, because the rounding depends on all rows of a batch."""
    original = _with("Marian", forced_bos_token_id=forced_first).float()
    adapted = _quantized(step_model(original))
    model = adapted.model
    assert linear_weights(adapted.head, model.config.d_model) is None
    fed_BT, batch = torch.tensor([[START, 3, 1, 2]]), _batch(SOURCES[:1])
    logits_TV = model(input_ids=batch.sources_BS, decoder_input_ids=fed_BT).logits[0]
    features_TH = adapted.teacher_forced(adapted.encode(batch), torch.tensor([[3, 1, 2, 4]]))[0]
    torch.testing.assert_close(adapted.head(features_TH)[1:], logits_TV[1:])
    exact_TV = original(input_ids=batch.sources_BS, decoder_input_ids=fed_BT).logits[0]
    assert bool(((logits_TV - exact_TV).abs().amax(1) > 1e-4).all())
    for selector in (HardTopK(1), SoftTopK(1, 1e6)):
        selector = generation_selector(selector, adapted)
        beam = beam_search(adapted, adapted.encode(batch), selector, num_steps=4)
        assert bool(beam.scores_BK.isfinite().all())
    found = decode(
        adapted, adapted.encode(batch), Decoder(generation_selector(HardTopK(1), adapted), local), num_steps=4
    )
    written = model.generate(batch.sources_BS, num_beams=1, do_sample=False, max_new_tokens=4)
    assert list(found[0][0].tokens) == [token for token in written[0, 1:].tolist() if token != END]


def test_a_forced_first_token_before_a_head_that_is_not_linear() -> None:
    """It can be moved, shown and saved: no part of it is itself."""
    head = ForcedFirst(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), 1, width=2).eval()
    assert "ForcedFirst" in repr(head) and not head.state_dict()
    features = torch.tensor([[0.3, -0.2, 1.0], [0.3, -0.2, 0.0]])
    scores = head(features)
    assert scores[0].tolist() == [-torch.inf, 0.0, -torch.inf]
    assert torch.equal(scores[1], head.after_first(features[1, :2])) and torch.equal(scores[1], head(features[1, :2]))


def test_targets_without_tokens_have_no_features() -> None:
    for name in ("Marian", "GPT-2"):
        adapted = step_model(_model(name))
        context = adapted.encode(_batch(SOURCES))
        empty = torch.zeros(4, 0, dtype=torch.long)
        assert adapted.head(adapted.teacher_forced(context, empty)).shape == (4, 0, VOCABULARY)


def test_an_empty_source_of_an_encoder_decoder_does_not_depend_on_the_batch() -> None:
    adapted = step_model(_model("Marian"))

    def score(sources: list[list[int]]) -> Tensor:
        with torch.no_grad():
            return beam_search(adapted, adapted.encode(_batch(sources)), HardTopK(2), num_steps=3).scores_BK[-1]

    torch.testing.assert_close(score([[1, 2, 3], []]), score([[]]), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------------------------- refusals


def _set(model: Any, **settings: Any) -> Any:
    for setting, value in settings.items():
        setattr(model.generation_config, setting, value)
    return model


def _with(name: str, **settings: Any) -> Any:
    return _set(_model(name), **settings)


def _recurrent_gemma() -> Any:
    """Keeps the states of its recurrences in its layers."""
    config = transformers.RecurrentGemmaConfig(**(LLAMA_SIZES | {"num_hidden_layers": 3, "attention_window_size": 4}))
    return transformers.RecurrentGemmaForCausalLM(config).double().eval()


class _Changed(transformers.GPT2LMHeadModel):
    """A model that changes its scores."""

    change: Callable[[Tensor], Tensor]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        output = super().forward(*arguments, **named)
        output.logits = self.change(output.logits)
        return output


def _changed(change: Callable[[Tensor], Tensor]) -> Any:
    model = _Changed(transformers.GPT2Config(**(GPT2_SIZES | CAUSAL_TOKENS))).double().eval()
    model.change = change
    return model


def _fsmt() -> Any:
    sizes = {name: size for name, size in SEQ2SEQ_SIZES.items() if name != "vocab_size"}
    names = {"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**names, **sizes)).double()


def _m2m100(**settings: Any) -> Any:
    """Counts positions by what is not padding."""
    config = transformers.M2M100Config(**(SEQ2SEQ_SIZES | {"decoder_start_token_id": END}))
    return _set(_drawn(transformers.M2M100ForConditionalGeneration(config), 0).double().eval(), **settings)


def _whisper() -> Any:
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SEQ2SEQ_SIZES)).double()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: transformers.BertForMaskedLM(transformers.BertConfig(**LLAMA_SIZES)), "BertForMaskedLM writes no outputs"),
    (_fsmt, "FSMTForConditionalGeneration cannot be run as a step model"),
    (_whisper, "WhisperForConditionalGeneration reads input_features"),
    (lambda: _quantized(_model("Marian").float()), "MarianMTModel cannot be adapted: all steps at once"),
    (lambda: _musicgen(), "a head for each of several outputs"),
    (_m2m100, "M2M100ForConditionalGeneration cannot be adapted: .* after padding was written"),
    (lambda: transformers.BartModel(transformers.BartConfig(**SEQ2SEQ_SIZES)), "no language model head"),
    (_recurrent_gemma, "RecurrentGemmaForCausalLM (cannot be adapted|keeps no such cache)"),
    (lambda: _with("Llama", eos_token_id=[0, 1]), r"eos_token_id is \[0, 1\]"),
    (lambda: _with("Marian", decoder_start_token_id=[1, 2]), "decoder_start_token_id"),
    (lambda: _with("T5", decoder_start_token_id=None, bos_token_id=None), "decoder_start_token_id is None"),
    (lambda: _with("GPT-2", forced_bos_token_id=3), "forced_bos_token_id is 3"),
    (lambda: _with("GPT-2", cache_implementation="static"), "static cache"),
    (lambda: _with("Llama", cache_implementation="quantized"), "quantized cache"),
    (lambda: _bert_to_gpt2(), "EncoderDecoderModel joins two models"),
    (lambda: _prompted(), "puts a learnt prompt before the tokens"),
    (lambda: torch.compile(_with("GPT-2")), "GPT2LMHeadModel is compiled"),
    (lambda: _damaged("Marian"), "the scores of MarianMTModel are not numbers; check its weights"),
    (lambda: _damaged("GPT-2"), "the scores of GPT2LMHeadModel are not numbers; check its weights"),
    # What shows at large scores only, and what shows everywhere.
    (lambda: _changed(lambda f: 1e3 * torch.tanh(f / 1e3)), "_Changed cannot be adapted: the head, given large scores"),
    (lambda: _changed(lambda f: 1.01 * f), "_Changed cannot be adapted: all steps at once"),
    (
        lambda: transformers.BartForCausalLM(transformers.BartConfig(**SEQ2SEQ_SIZES)).double(),
        "BartForCausalLM cannot be",
    ),
]


def _musicgen() -> Any:
    sizes = {"hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_codebooks": 2}
    return transformers.MusicgenForCausalLM(transformers.MusicgenDecoderConfig(vocab_size=VOCABULARY, **sizes))


def _bert_to_gpt2() -> Any:
    encoder = transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    decoder = transformers.GPT2Config(**GPT2_SIZES, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return transformers.EncoderDecoderModel(config)


def _damaged(name: str) -> Any:
    """A model with weights that are NaN, as after a training run that diverged."""
    model = _with(name)
    with torch.no_grad():
        next(model.get_decoder().parameters()).fill_(torch.nan)
    return model


def _prompted() -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(_with("GPT-2"), peft.PromptTuningConfig("CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_reproduced_is_refused_by_name(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        step_model(make())


def test_attention_in_chunks_is_refused() -> None:
    """Its cache is that of a window, and its mask goes by places, which padding moves."""
    with pytest.raises(InputError, match="Some model keeps a DynamicSlidingWindowLayer"):
        caches.require_plain_layers(transformers.Llama4TextConfig(attention_chunk_size=4), "Some model")


def test_a_window_is_as_wide_as_before_once_the_model_has_been_tried() -> None:
    model = _of("Gemma 3", sliding_window=9)
    step_model(model)
    assert model.config.sliding_window == 9
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == [9, None]


@pytest.mark.parametrize("settings", [{"suppress_tokens": [PAD]}, {"bad_words_ids": [[PAD]]}], ids=str)
def test_positions_counted_by_padding_are_accepted_where_padding_is_forbidden(settings: dict[str, Any]) -> None:
    model = _m2m100(**settings)
    adapted, batch = step_model(model), _batch(SOURCES, TARGETS)
    with torch.no_grad():
        found = adapted.head(adapted.teacher_forced(adapted.encode(batch), batch.targets_BT))
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        own = _own_logits(model, source, target)
        torch.testing.assert_close(found[row, : len(target)], own, rtol=0, atol=1e-5)


def _with_rope(**rope: Any) -> Any:
    t = transformers
    settings = {**LLAMA_SIZES, "num_key_value_heads": 2, "rope_parameters": {"rope_theta": 100.0, **rope}}
    if rope["rope_type"] == "longrope":
        return _drawn(t.Phi3ForCausalLM(t.Phi3Config(**settings, original_max_position_embeddings=8)), 0).double()
    return _drawn(t.LlamaForCausalLM(t.LlamaConfig(**(settings | {"max_position_embeddings": 8}))), 0).double()


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 7.0]}, {"rope_type": "dynamic"}],
    ids=lambda rope: rope["rope_type"],
)
def test_a_long_row_never_turns_the_positions_of_others(rope: dict[str, Any]) -> None:
    """Past 8 positions the frequencies of the whole batch would be others."""
    adapted = step_model(_with_rope(**rope, factor=2.0).eval())
    assert adapted.most_steps([1, 2, 3]) == 6
    with pytest.raises(InputError, match=f"9 positions, and .* has 8 .*{rope['rope_type']}"):
        adapted.encode(_batch([[1, 2], [1] * 9]))

    def scores(sources: list[list[int]]) -> Tensor:
        with torch.no_grad():
            return beam_search(adapted, adapted.encode(_batch(sources)), HardTopK(2), num_steps=2).scores_BK[0]

    torch.testing.assert_close(scores([[1, 2], [1] * 7]), scores([[1, 2]]), rtol=0, atol=1e-5)


def test_inputs_that_would_fail_later_are_refused_early() -> None:
    gpt2 = step_model(_model("GPT-2"))
    with pytest.raises(InputError, match="a source is empty"):
        gpt2.encode(_batch([[1, 2], []]))
    for name in ("GPT-2", "Marian"):
        adapted = step_model(_model(name))
        with pytest.raises(InputError, match=f"{POSITIONS} .max_position_embeddings"):
            adapted.encode(_batch([[1] * (POSITIONS + 1)]))
        context = adapted.encode(_batch([[1] * POSITIONS]))
        with pytest.raises(InputError, match=f"{POSITIONS} .max_position_embeddings"):
            adapted.teacher_forced(context, torch.ones(1, POSITIONS + 1, dtype=torch.long))
        with pytest.raises(InputError, match=f"{POSITIONS} .max_position_embeddings"):
            beam_search(adapted, context, HardTopK(1), num_steps=POSITIONS + 1)
    llama = step_model(_model("Llama"))  # rotary positions go on
    llama.encode(_batch([[1] * (POSITIONS + 1)]))
    dropping = step_model(_model("BART", decoder_layerdrop=0.5)).train()
    batch = _batch(SOURCES, TARGETS)
    assert cross_entropy_objective()(dropping, batch, {}).isfinite()
    with pytest.raises(InputError, match=r"layerdrop = 0\.0"):
        relaxed_beam_objective(k=2)(dropping, batch, {"alpha": 1.0})


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Marian", {"repetition_penalty": 1.2}, "repetition_penalty is 1.2"),
        ("Marian", {"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3"),
        ("Marian", {"renormalize_logits": True}, "renormalize_logits"),
        ("Marian", {"bad_words_ids": [[1, 2]]}, "words of several tokens"),
        ("Marian", {"forced_eos_token_id": 0}, "pass num_steps"),
        ("GPT-2", {"min_length": 3}, "min_new_tokens instead"),
        ("GPT-2", {"sequence_bias": [[[1], 2.0]]}, "sequence_bias"),
    ],
)
def test_settings_that_generate_applies_differently_are_refused_by_name(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        generation_selector(HardTopK(2), _with(name, **settings))


def test_settings_without_effect_are_accepted() -> None:
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "num_beams": 5, "do_sample": True}
    assert generation_selector(HardTopK(2), _with("GPT-2", **neutral)).excluded == ()
    for cache in ("hybrid", "sliding_window"):
        assert step_model(_with("Gemma 3", cache_implementation=cache)).shares


def test_a_causal_model_with_padding_never_warns_that_a_mask_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = transformers.logging.get_logger("transformers")
    type(library).warning_once.cache_clear()  # it warns once in a process
    monkeypatch.setattr(library, "handlers", [caplog.handler])
    transformers.logging.set_verbosity_warning()
    try:
        step_model(_of("GPT-2", pad_token_id=PAD))
        assert transformers.logging.get_verbosity() == transformers.logging.WARNING
    finally:
        transformers.logging.set_verbosity_error()
    assert not caplog.records


def test_adapting_a_model_leaves_its_sparse_attention_on() -> None:
    torch.manual_seed(0)
    sizes = {**SEQ2SEQ_SIZES, "max_position_embeddings": 128, "block_size": 4, "num_random_blocks": 1, "init_std": 0.5}
    model = transformers.BigBirdPegasusForConditionalGeneration(transformers.BigBirdPegasusConfig(**sizes)).eval()
    source, target = torch.randint(1, 5, (1, 100), generator=torch.Generator().manual_seed(0)), torch.tensor([[1, 2]])
    fed = torch.tensor([[START, 1]])
    with torch.no_grad():
        own = model(input_ids=source, decoder_input_ids=fed).logits
        adapted = step_model(model)
        assert model.model.encoder.attention_type == "block_sparse"
        for _ in range(2):
            context = adapted.encode(collate([EncodedExample(tuple(source[0].tolist()), ())]))
            scores = adapted.head(adapted.teacher_forced(context, target))
            torch.testing.assert_close(scores, own, atol=1e-5, rtol=1e-4)
            adapted.encode(collate([EncodedExample((1, 2), ())]))
