"""Numbers of positions: models stop where their tables end, with one line, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from seqwise import Decoder, HardTopK, InputError, decode
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import step_model
from seqwise.hugging_face.positions import configured_limit, num_positions
from seqwise.search import local

POSITIONS, VOCABULARY = 12, 9
SMALL = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": POSITIONS}
CAUSAL: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL)),
    "gptj": lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(**SMALL, rotary_dim=4)),
    "codegen": lambda: transformers.CodeGenForCausalLM(
        transformers.CodeGenConfig(**{**SMALL, "n_embd": 32, "n_head": 4}, n_ctx=POSITIONS, rotary_dim=4)
    ),
    "ctrl": lambda: transformers.CTRLLMHeadModel(transformers.CTRLConfig(**SMALL, dff=16)),
    "mpt": lambda: transformers.MptForCausalLM(
        transformers.MptConfig(vocab_size=VOCABULARY, d_model=16, n_layers=1, n_heads=2, max_seq_len=POSITIONS)
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_writes_up_to_its_last_position_and_no_further(name: str) -> None:
    model = CAUSAL[name]().eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        model(torch.zeros(1, POSITIONS, dtype=torch.int64))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.zeros(1, POSITIONS + 1, dtype=torch.int64))
    adapted = step_model(model)
    context = adapted.encode(collate([EncodedExample((5, 6, 7), ())]))
    most = adapted.most_steps((5, 6, 7))
    assert most == POSITIONS - 2 and num_positions(model) == POSITIONS
    ((best, *_),) = decode(adapted, context, Decoder(HardTopK(2), local), num_steps=most)
    assert len(best.tokens) == most
    with pytest.raises(InputError, match=f"needs {POSITIONS + 1} positions, and .* has {POSITIONS} "):
        decode(adapted, context, Decoder(HardTopK(2), local), num_steps=most + 1)
    with pytest.raises(InputError, match=f"needs {POSITIONS + 2} positions"):
        adapted.teacher_forced(context, torch.zeros(1, POSITIONS, dtype=torch.int64))


def test_encoder_and_decoder_may_have_their_own_numbers_of_positions() -> None:
    sizes = {"vocab_size": VOCABULARY, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "attention_window": 4}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    config = transformers.LEDConfig(
        **sizes, max_encoder_position_embeddings=16, max_decoder_position_embeddings=6, eos_token_id=2
    )
    adapted = step_model(transformers.LEDForConditionalGeneration(config).eval())
    assert adapted.most_steps((5,)) == 6
    adapted.encode(collate([EncodedExample((5,) * 16, ())]))
    with pytest.raises(InputError, match=r"the longest source needs 17 positions, .* has 16 \(max_encoder_pos"):
        adapted.encode(collate([EncodedExample((5,) * 17, ())]))
    context = adapted.encode(collate([EncodedExample((5,) * 9, ())]))
    with pytest.raises(InputError, match=r"the longest target needs 7 positions, .* has 6 \(max_decoder_pos"):
        adapted.teacher_forced(context, torch.zeros(1, 7, dtype=torch.int64))
    assert num_positions(adapted.model, "encoder") == 16 and num_positions(adapted.model, "decoder") == 6


def test_rotary_positions_have_no_limit() -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=POSITIONS, eos_token_id=None,
    )  # fmt: skip
    adapted = step_model(transformers.LlamaForCausalLM(config).eval())
    assert adapted.most_steps((5, 6)) is None and configured_limit(config) == (POSITIONS, "max_position_embeddings")
