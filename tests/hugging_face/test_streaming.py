"""Streams of taggers over causal Hugging Face models: keys and values kept, against the whole source at once."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from pretrained import SIZES, bert, gpt2, made
from seqwise import Decoder, HardTopK, InputError, SoftTopK, Stream, Streams, global_
from seqwise.data import EncodedExample
from seqwise.decoding import decode_examples
from seqwise.hugging_face import pretrained_tagger

VOCABULARY = 12


def llama() -> Any:
    own = {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 40}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **own))


def mistral() -> Any:
    """Attention within a window of three pieces, fewer than most of the sources have."""
    own = {**SIZES, "num_key_value_heads": 1, "sliding_window": 3, "max_position_embeddings": 40}
    return transformers.MistralForCausalLM(transformers.MistralConfig(vocab_size=VOCABULARY, **own))


def bloom() -> Any:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2)
    return transformers.BloomForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: gpt2(VOCABULARY, n_positions=20),
    "Llama": llama,
    "Mistral": mistral,
    "BLOOM": bloom,
}

# Words of one to three pieces.
SOURCES: dict[str, list[tuple[int, ...]]] = {
    "a": [(2, ~5, 6), (~7,), (~8, 1, 1), (~3,), (~3, 4), (~11,)],
    "b": [(2, ~9,), (~10, 3), (~4,), (~5,)],
    "c": [(2, ~6, 6, 7), (~6,), (~1, 2, 3), (~0,), (~10,)],
}  # fmt: skip
FEEDS = [{"a": 2}, {"a": 1, "b": 1}, {"b": 3, "c": 1}, {"c": 2, "a": 1}, {"a": 2, "c": 2}]


def tagger(kind: str, **options: Any) -> Any:
    model = made(MODELS[kind](), scale=2.0).base_model
    return pretrained_tagger(model, num_labels=3, hidden_size=8, label_embedding_size=4, **options).double().eval()


@pytest.mark.parametrize("look_ahead", [0, 1, 3])
@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 50.0)], ids=["hard", "relaxed"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_stream_over_a_causal_model_is_its_whole_search(kind: str, selector: Any, look_ahead: int) -> None:
    """Streams of other ages and other numbers of pieces in one batch; restored after every call."""
    model, decoder = tagger(kind, look_ahead=look_ahead), Decoder(selector, global_)
    streams, fed = Streams(model, decoder), dict.fromkeys(SOURCES, 0)
    labels: dict[str, tuple[int, ...]] = dict.fromkeys(SOURCES, ())
    for sizes in FEEDS:
        updates = streams.feed({name: SOURCES[name][fed[name] : fed[name] + size] for name, size in sizes.items()})
        for name, update in updates.items():
            fed[name] += sizes[name]
            labels[name] += update.committed
            assert len(labels[name] + update.partial) == max(fed[name] - look_ahead, 0)
            if not look_ahead:
                best = whole_search(model, decoder, SOURCES[name][: fed[name]])
                assert labels[name] + update.partial == best.tokens
                assert streams.score(name) == pytest.approx(best.score, abs=1e-8)
        state = io.BytesIO()
        torch.save(streams.state_dict(), state)
        streams = Streams(model, decoder)
        streams.load_state_dict(torch.load(io.BytesIO(state.getvalue()), weights_only=True))
    assert fed == {name: len(source) for name, source in SOURCES.items()}
    for name, update in streams.finish_all(SOURCES).items():
        assert labels[name] + update.committed == whole_search(model, decoder, SOURCES[name]).tokens


def whole_search(model: Any, decoder: Decoder, words: list[tuple[int, ...]]) -> Any:
    source = tuple(piece for word in words for piece in word)
    return decode_examples(model, [EncodedExample(source, ())], decoder)[0][0]


def test_a_stream_ends_where_the_positions_do_and_stays_as_it_was() -> None:
    stream = Stream(tagger("GPT-2"), commit="never")
    first = stream.feed([(~3,)] * 19)
    with pytest.raises(InputError, match="a source has 21 pieces, and GPT2Model has 20 positions; split it"):
        stream.feed([(~4,), (~4,)])
    assert len(first.partial) == 19 and len(stream.feed([(~4,)]).partial) == 20


def test_a_bidirectional_encoder_cannot_stream() -> None:
    """With the small weights that it begins with."""
    model = pretrained_tagger(bert().base_model, num_labels=3)
    with pytest.raises(InputError, match="the model reads its source both ways, and a stream has no end"):
        Stream(model)


def test_a_cache_that_cannot_be_followed_is_refused() -> None:
    config = transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = transformers.MambaModel(config).eval()
    with pytest.raises(InputError, match="MambaModel keeps a LinearAttentionLayer"):
        Stream(pretrained_tagger(model, num_labels=3))
