"""Taggers over Hugging Face encoders: words from pieces, steps that agree, raw scores that are searched, folders."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pretrained import MODELS, byte_tokenizer, cut, esm_tokenizer, gpt2, made, with_code, without, word_tokenizer
from seqwise import Decoder, HardTopK, beam_search, global_
from seqwise.data import EncodedExample, collate
from seqwise.decoding import DECODERS, decode_examples
from seqwise.errors import InputError
from seqwise.hugging_face import load_tagger, pretrained_tagger, save_tagger, word_pieces
from seqwise.objectives import beam_crf_objective
from seqwise.training.checkpoints import seal
from seqwise.training.trainer import fit

KINDS = ["BERT", "RoBERTa", "DistilBERT", "ModernBERT", "ESM"]
# Special tokens around words of one, two and three pieces.
SOURCES = [(2, ~5, 6, ~7, 3), (2, ~8, ~9, 10, 11, ~5, 3), (2, ~6, 3)]
TARGETS = [(0, 2), (1, 2, 0), (1,)]


def tagger(kind: str = "BERT", **options: Any) -> Any:
    model = made(MODELS[kind](), scale=2.0).base_model
    return pretrained_tagger(model, num_labels=3, hidden_size=8, label_embedding_size=4, **options).double().eval()


def test_the_decoder_has_the_type_of_the_encoder() -> None:
    model = pretrained_tagger(made(MODELS["BERT"]()).base_model.to(torch.bfloat16), num_labels=3, hidden_size=8).eval()
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    (outputs, *_) = decode_examples(model, examples(), DECODERS["beam"](2, 1.0, None))
    assert len(outputs[0].tokens) == 2


def test_an_encoder_of_half_precision_stays_as_it_is_and_is_loaded_as_it_was(tmp_path: Path) -> None:
    """Rotary positions are float32 beside weights in bfloat16, and rounded ones would move every far token."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.LlamaModel(transformers.LlamaConfig(vocab_size=30, **sizes)).save_pretrained(tmp_path / "plain")
    model = transformers.LlamaModel.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16).eval()
    ids = torch.arange(300)[None] % 30
    with torch.no_grad():
        before = model(ids).last_hidden_state
        made_of_it = pretrained_tagger(model, num_labels=3, hidden_size=8)
        assert torch.equal(model(ids).last_hidden_state, before)
        save_tagger(made_of_it, tmp_path / "tagger")
        loaded = load_tagger(tmp_path / "tagger")
        assert torch.equal(loaded.encoder.backbone(ids).last_hidden_state, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_tagger_that_was_cast_is_loaded_with_its_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tagger().to(dtype)
    save_tagger(model, tmp_path)
    loaded = load_tagger(tmp_path)
    assert {one.dtype for one in loaded.parameters()} == {dtype}
    decoder = DECODERS["beam"](2, 1.0, None)
    assert decode_examples(loaded, examples(), decoder) == decode_examples(model, examples(), decoder)


def examples() -> list[EncodedExample]:
    return [EncodedExample(source, target) for source, target in zip(SOURCES, TARGETS, strict=True)]


def batch(*chosen: int) -> Any:
    encoded = examples()
    return collate([encoded[one] for one in chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_each_word_is_read_at_its_first_piece(kind: str) -> None:
    model = tagger(kind)
    context = model.encode(batch(0, 1, 2))
    assert context.lengths_B.tolist() == [2, 3, 1]
    for row, source in enumerate(SOURCES):
        ids = torch.tensor([[one if one >= 0 else ~one for one in source]])
        with torch.no_grad():
            hidden_SM = model.encoder.backbone(input_ids=ids).last_hidden_state[0]
        firsts = [place for place, one in enumerate(source) if one < 0]
        torch.testing.assert_close(context.memory_BSM[row, : len(firsts)], hidden_SM[firsts], rtol=1e-9, atol=1e-9)
        assert context.mask_BS[row].sum() == len(firsts)


@pytest.mark.parametrize("kind", KINDS)
def test_all_steps_at_once_are_single_steps_whatever_else_is_in_the_batch(kind: str) -> None:
    model, together = tagger(kind), batch(0, 1, 2)
    with torch.no_grad():
        features_BTH = model.teacher_forced(model.encode(together), together.targets_BT)
        for row in range(3):
            alone = batch(row)
            context = model.encode(alone)
            inputs_B1D, state = model.start(context)
            for step, label in enumerate(TARGETS[row]):
                features_B1H, state = model.step(inputs_B1D, state, context, step)
                torch.testing.assert_close(features_B1H[:, 0], features_BTH[row : row + 1, step])
                inputs_B1D = model.embedding_VD[torch.tensor([[label]])]


def raw_score(model: Any, source: tuple[int, ...], labels: tuple[int, ...]) -> float:
    one = collate([EncodedExample(source, labels)])
    with torch.no_grad():
        scores_TV = model.head(model.teacher_forced(model.encode(one), one.targets_BT))[0]
    return float(scores_TV.gather(1, torch.tensor(labels)[:, None]).sum())


def test_a_raw_beam_without_bounds_finds_the_best_sequence_of_labels() -> None:
    model = tagger()
    for parameter in (model.label_embedding.weight, model.head.weight):
        parameter.data *= 4  # so that labels depend on each other
    found = decode_examples(model, examples(), DECODERS["raw-beam"](27, 1.0, None))
    for source, target, outputs in zip(SOURCES, TARGETS, found, strict=True):
        every = list(itertools.product(range(3), repeat=len(target)))
        best = max(every, key=lambda labels: raw_score(model, source, labels))
        assert outputs[0].tokens == best
        assert outputs[0].score == pytest.approx(raw_score(model, source, best))


def test_training_on_raw_scores_reaches_encoder_and_decoder_and_learns(tmp_path: Path) -> None:
    model = tagger().float()
    before = {name: one.clone() for name, one in model.named_parameters()}
    options: dict[str, Any] = {"steps": 40, "batch_size": 3, "learning_rate": 1e-2, "seed": 0}
    fit(model, beam_crf_objective(k=3, score="global"), examples() * 2, output=tmp_path, **options)
    found = decode_examples(model, examples(), DECODERS["raw-beam"](3, 1.0, None))
    assert [outputs[0].tokens for outputs in found] == TARGETS
    moved = {name for name, one in model.named_parameters() if not torch.equal(one.cpu(), before[name])}
    assert {"head.weight", "label_embedding.weight", "encoder.backbone.encoder.layer.0.output.dense.weight"} <= moved


def test_a_causal_encoder_does_not_see_later_words() -> None:
    config = transformers.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, n_positions=14)
    model = pretrained_tagger(transformers.GPT2LMHeadModel(config), num_labels=2).eval()

    def memory(source: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            return model.encode(collate([EncodedExample(source, ())])).memory_BSM[0]

    one, other = memory((~5, 6, ~7)), memory((~5, 6, ~8))
    torch.testing.assert_close(one[0], other[0])
    assert not torch.equal(one[1], other[1])


def test_a_look_ahead_reads_the_outputs_of_later_words_back_to_each() -> None:
    """Whatever else is in the batch."""
    backbone = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, n_positions=14)
    )
    plain, ahead = (pretrained_tagger(backbone, num_labels=2, look_ahead=tokens).eval() for tokens in (0, 2))
    sources = [EncodedExample(source, ()) for source in ((~5, 6, ~7, ~8, 9, ~3), (1, ~4), (~4, ~5, ~6))]
    with torch.no_grad():
        found, outputs = ahead.encode(collate(sources)), plain.encode(collate(sources))
    for row, length in enumerate([4, 1, 3]):
        hidden_WH = outputs.memory_BSM[row, :length]
        with torch.no_grad():
            back = [ahead.encoder.ahead.lstm(hidden_WH[i : i + 3].flip(0))[0][-1] for i in range(length)]
        torch.testing.assert_close(found.memory_BSM[row, :length], torch.cat([hidden_WH, torch.stack(back)], dim=1))
    assert found.lengths_B.tolist() == [4, 1, 3] and torch.equal(found.mask_BS, outputs.mask_BS)


def test_a_beam_takes_as_many_steps_as_there_are_words() -> None:
    model, one = tagger(), batch(1)
    context = model.encode(one)
    beam = beam_search(model, context, HardTopK(2), score=global_, num_steps=context.lengths_B)
    assert beam.scores_BK.shape == (1, 2)
    assert model.most_steps(SOURCES[1]) == 3
    decoder = Decoder(HardTopK(2), global_)
    assert [len(outputs[0].tokens) for outputs in decode_examples(model, examples(), decoder)] == [2, 3, 1]


# --------------------------------------------------------------------------------------------------- words


def test_pieces_of_words_by_fast_and_slow_tokenizers(tmp_path: Path) -> None:
    words = ["the", "dogs", "zebra"]
    assert word_pieces(word_tokenizer(), ["the", "dog."]) == (2, ~5, ~6, 11, 3)
    assert word_pieces(word_tokenizer(), words) == (2, ~5, ~1, ~1, 3)
    fast = byte_tokenizer()
    ids = word_pieces(fast, words)
    assert sum(one < 0 for one in ids) == 3 and ids[0] == 0 and ids[-1] == 2
    plain = [one if one >= 0 else ~one for one in ids]
    assert plain == fast(f" {' '.join(words)}").input_ids
    slow = esm_tokenizer(tmp_path / "esm")
    assert not slow.is_fast
    residues = word_pieces(slow, ["M", "KT"])
    first, second, third = (slow.convert_tokens_to_ids(letter) for letter in "MKT")
    assert residues == (slow.cls_token_id, ~first, ~second, third, slow.eos_token_id)


def test_a_word_without_pieces_is_unknown() -> None:
    assert word_pieces(word_tokenizer(), ["the", " ", "cat"]) == (2, ~5, ~1, ~9, 3)
    with pytest.raises(InputError, match="words were expected, at least one; split the sentence"):
        word_pieces(word_tokenizer(), "the cat")
    with pytest.raises(InputError, match="words were expected"):
        word_pieces(word_tokenizer(), [])


# ---------------------------------------------------------------------------------------- folders and refusals


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tagger_is_the_tagger(kind: str, tmp_path: Path) -> None:
    model = tagger(kind, dropout=0.3).float().eval()
    model.encoder.backbone.config.id2label = {0: "D", 1: "N", 2: "V"}
    save_tagger(model, tmp_path / "tagger")
    loaded = load_tagger(tmp_path / "tagger")
    assert not loaded.training and loaded.dropout.p == 0.3
    assert loaded.encoder.backbone.config.id2label == {0: "D", 1: "N", 2: "V"}
    one = batch(0, 1, 2)
    with torch.no_grad():
        for score in (model, loaded):
            assert score.encode(one).lengths_B.tolist() == [2, 3, 1]
        scores = [m.head(m.teacher_forced(m.encode(one), one.targets_BT)) for m in (model, loaded)]
    assert torch.equal(*scores)


def test_a_saved_look_ahead(tmp_path: Path) -> None:
    backbone = transformers.GPT2Model(transformers.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2))
    save_tagger(pretrained_tagger(backbone, num_labels=2, look_ahead=3), tmp_path / "tagger")
    assert load_tagger(tmp_path / "tagger").look_ahead == 3


def test_adapters_are_merged_into_the_saved_weights(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    model = pretrained_tagger(peft.get_peft_model(made(MODELS["BERT"]()), lora), num_labels=3).double().eval()
    save_tagger(model, tmp_path / "tagger")
    loaded, one = load_tagger(tmp_path / "tagger"), batch(0, 1, 2)
    with torch.no_grad():
        merged, adapted = (each.encode(one).memory_BSM for each in (loaded, model))
    torch.testing.assert_close(merged, adapted)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert any("lora" in name for name, _ in model.named_parameters())
    model.encoder.backbone.base_model.encoder.layer[0].attention.self.query.enable_adapters(False)
    model.encoder.backbone.base_model.encoder.layer[0].attention.self.value.enable_adapters(False)
    save_tagger(model, tmp_path / "without")
    with torch.no_grad():
        torch.testing.assert_close(
            *(each.encode(one).memory_BSM for each in (load_tagger(tmp_path / "without"), model))
        )
    lora.modules_to_save = ["key"]
    with pytest.raises(InputError, match="has a ModulesToSaveWrapper, which cannot be merged"):
        pretrained_tagger(peft.get_peft_model(made(MODELS["BERT"]()), lora), num_labels=3)
    prompt = peft.PromptTuningConfig("CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(InputError, match="puts a learnt prompt before the tokens, which is not read here"):
        pretrained_tagger(peft.get_peft_model(gpt2(), prompt), num_labels=3)


def _with_code(folder: Path) -> None:
    with_code(folder / "backbone")
    seal(folder)


def _other_sizes(folder: Path) -> None:
    path = folder / "backbone" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))
    seal(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "differs from its checksum"),
        (_with_code, "has its own code"),
        (_other_sizes, "the weights do not fit the configuration"),
        (without("tagger.json"), "tagger.json"),
    ],
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    save_tagger(tagger(), tmp_path / "tagger")
    damage(tmp_path / "tagger")
    with pytest.raises(InputError, match=said):
        load_tagger(tmp_path / "tagger")


def test_what_is_no_encoder_and_what_does_not_fit_are_refused() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    with pytest.raises(InputError, match="BartModel is an encoder-decoder"):
        pretrained_tagger(transformers.BartModel(transformers.BartConfig(vocab_size=12, **sizes, **heads)))
    with pytest.raises(InputError, match="Linear is not a Hugging Face model"):
        pretrained_tagger(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="num_labels must be at least 1"):
        pretrained_tagger(MODELS["BERT"](), num_labels=0)
    with pytest.raises(InputError, match="reads its source both ways has no look-ahead; leave look_ahead out"):
        tagger(look_ahead=1)
    recurrent = transformers.MambaConfig(vocab_size=12, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(InputError, match=r"MambaModel keeps .* use a model with plain attention"):
        pretrained_tagger(transformers.MambaModel(recurrent), num_labels=2, look_ahead=1)
    with pytest.raises(InputError, match="look_ahead must be at least 0, got -1"):
        tagger(look_ahead=-1)
    with pytest.raises(InputError, match="a source has 15 pieces, and BertModel has 14 positions; split it"):
        tagger().encode(collate([EncodedExample((~5,) * 15, ())]))
    with pytest.raises(InputError, match="a source has no word"):
        tagger().encode(collate([EncodedExample((2, 5, 3), ())]))
