"""Languages of texts: tokens of each kind of tokenizer spell the texts that a pattern matches, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from letters import letter_tokenizer
from pretrained import byte_tokenizer, piece_tokenizer
from seqwise import HardTopK, InputError, beam_search
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import step_model, text_grammar, text_language
from seqwise.hugging_face.language import token_texts
from seqwise.sampling import sample_within
from seqwise.search import Language, backtrace
from seqwise.search.language import members

TOKENIZERS: dict[str, Any] = {
    "byte pairs": byte_tokenizer,
    "word pieces": lambda: piece_tokenizer(["the", "dog", "##s", "##gy", "run", "."]),
    "words": letter_tokenizer,
    "sentence pieces": lambda: sentence_piece_tokenizer(["\u2581", "\u2581a", "a", "b"]),
}


def sentence_piece_tokenizer(pieces: list[str]) -> Any:
    core = Tokenizer(models.BPE({piece: place for place, piece in enumerate(["</s>", *pieces])}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_of_tokens_add_up_to_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    texts, first = token_texts(tokenizer)
    assert not {*texts, *first} & set(tokenizer.all_special_ids)
    ids, generator = sorted(texts), torch.Generator().manual_seed(0)
    for _ in range(50):
        chosen = [ids[place] for place in torch.randint(len(ids), (6,), generator=generator).tolist()]
        decoded = tokenizer.decode(chosen, clean_up_tokenization_spaces=False)
        assert first[chosen[0]] + "".join(texts[token] for token in chosen[1:]) == decoded


def written(tokenizer: Any, language: Language, *, num_steps: int) -> list[str]:
    """Texts that a tiny GPT-2 writes inside a language, by a beam and by sampling."""
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    sizes = {
        "vocab_size": len(tokenizer),
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": 1,
    }
    model = step_model(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval())
    model.language = language
    context = model.encode(collate([EncodedExample((end,), ())]))
    with torch.no_grad():
        beam = backtrace(beam_search(model, context, HardTopK(4), num_steps=num_steps))[0]
    drawn = sample_within(model, context, model.language, num_steps=num_steps, num_samples=6, num_passes=2)
    rows = [*beam.tolist(), *drawn.tokens_BNT[0].tolist()]
    return [tokenizer.decode([token for token in row if token >= 0 and token != end]) for row in rows]


def test_gpt2_writes_valid_json() -> None:
    pytest.importorskip("interegular")
    tokenizer = byte_tokenizer()
    pattern = r'\{"name": "[a-z]{1,5}", "age": [1-9][0-9]?\}'
    language = text_language(tokenizer, pattern, end=tokenizer.eos_token_id)
    for text in written(tokenizer, language, num_steps=40):
        record = json.loads(text)
        assert re.fullmatch("[a-z]{1,5}", record["name"]) and 1 <= record["age"] <= 99


def test_the_first_token_has_a_text_of_its_own() -> None:
    """Without the blank that it has behind others; and a piece inside a word does not begin one."""
    pytest.importorskip("interegular")
    tokenizer = letter_tokenizer()
    found = written(tokenizer, text_language(tokenizer, "a( b)?( c| d)", end=tokenizer.eos_token_id), num_steps=5)
    assert set(found) == {"a b c", "a b d", "a c", "a d"}
    language = text_language(TOKENIZERS["word pieces"](), "(s|dogs) run", end=3)
    allowed = language.allowed(language.start(1, torch.device("cpu")), None)
    assert [token for token in allowed.flatten().tolist() if token >= 0] == [6]  # dog


def test_the_tokenizer_s_own_tokens_of_a_text_are_in_the_language_of_a_pattern() -> None:
    """Also if they begin with a blank as a piece of its own, which decodes to nothing there."""
    pytest.importorskip("interegular")
    tokenizer = sentence_piece_tokenizer(["\u2581", "\u2581a", "a", "b"])
    language = text_language(tokenizer, "b a", end=0)
    assert tokenizer.convert_ids_to_tokens(ids := tokenizer.encode("b a"))[0] == "\u2581"
    assert bool(members(language, torch.tensor([[*ids, 0]])))


@pytest.mark.parametrize(("pattern", "says"), [("[", "cannot be read"), ("é", "no sequence of tokens spells")])
def test_what_no_tokens_spell_is_refused(pattern: str, says: str) -> None:
    pytest.importorskip("interegular")
    with pytest.raises(InputError, match=says):
        text_language(letter_tokenizer(), pattern, end=0)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.thorough
def test_gpt2_writes_json_of_a_schema() -> None:
    pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")
    tokenizer = byte_tokenizer()
    texts = written(tokenizer, text_grammar(tokenizer, SCHEMA, end=tokenizer.eos_token_id), num_steps=40)
    assert len(set(texts)) > 1
    for text in texts:
        record = json.loads(text)
        assert record.keys() == {"name", "age"} and len(record["name"]) <= 5 and 1 <= record["age"] <= 99


def test_a_grammar_of_words_has_no_blank_at_the_beginning() -> None:
    pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")
    tokenizer = letter_tokenizer()
    language = text_grammar(tokenizer, 'start: "a" (" b")? (" c" | " d")', end=tokenizer.eos_token_id)
    assert set(written(tokenizer, language, num_steps=5)) == {"a b c", "a b d", "a c", "a d"}


def test_tokens_that_were_added_as_special_are_no_part_of_a_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([transformers.AddedToken("<|reserved|>", special=True)])
    reserved = tokenizer.convert_tokens_to_ids("<|reserved|>")
    assert reserved not in tokenizer.all_special_ids
    later, first = token_texts(tokenizer)
    assert reserved not in {*later, *first}
