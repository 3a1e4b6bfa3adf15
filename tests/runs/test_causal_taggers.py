"""Taggers over causal Hugging Face models, trained from files: their streams against the search of whole sentences."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from command_line import Command, run_main
from pretrained import WORDS, bert, byte_tokenizer, made, saved, word_tokenizer
from seqwise import Stream, Streams, load_run, predict
from seqwise.data import Example
from seqwise.errors import InputError
from seqwise.hugging_face import word_pieces
from seqwise.runs import new_run, save_run, train_settings
from seqwise.runs.pretrained import is_causal

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
LABELS = {"the": "D", "a": "D", "sees": "V", "runs": "V", ".": "P"}
EXAMPLES = [
    Example(tuple(words), tuple(LABELS.get(word, "N") for word in words), "x.conll", 1)
    for words in (WORDS, WORDS[::-1])
]


def gpt2(vocabulary_size: int) -> Any:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 100}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocabulary_size, **sizes))


def llama(vocabulary_size: int) -> Any:
    own = {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 100}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=vocabulary_size, **own))


def bert_decoder(vocabulary_size: int) -> Any:
    config = transformers.BertConfig(
        vocab_size=vocabulary_size, is_decoder=True, max_position_embeddings=100, pad_token_id=0, **SIZES
    )
    return transformers.BertLMHeadModel(config)


def plain_bytes() -> Any:
    """Byte pairs as GPT-2 has them, without special tokens."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    return tokenizer


def pieces_after_blanks() -> Any:
    """Letters, of which a word's first is written with its blank, as Llama has them, between two special tokens."""
    pieces = ["<unk>", "<s>", "</s>", "▁", *sorted({letter for word in WORDS for letter in word})]
    core = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[], Any]]] = {
    "GPT-2": (gpt2, plain_bytes),
    "Llama": (llama, pieces_after_blanks),
    "BERT as a decoder": (bert_decoder, word_tokenizer),
}


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights so large that labels are revised."""
    make, tokenizer = KINDS[request.param][0], KINDS[request.param][1]()
    folder = tmp_path_factory.mktemp("causal")
    torch.manual_seed(0)
    saved(folder / "model", made(make(len(tokenizer)), scale=3.0, dtype=torch.float32), tokenizer)
    settings = train_settings(
        task="tag", model=str(folder / "model"), objective="beam-crf", score="global", hidden_size=8, beam_size=3
    )
    new = new_run(EXAMPLES, settings)
    with torch.no_grad():
        new.model.head.weight *= 20
        new.model.label_embedding.weight *= 3
    save_run(new, folder / "run")
    return folder / "run"


def sentences(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices([*WORDS, "dogs"], k=draw.randint(1, 9)) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=str)
def test_a_stream_in_any_pieces_is_the_search_of_the_sentence(run: Path, dtype: torch.dtype, tolerance: float) -> None:
    """Labels and scores, of streams in one batch that join and leave, with the pieces of their words."""
    loaded = load_run(run, to="predict")
    loaded.model.to(dtype)
    texts = sentences(12, 1)
    whole = [outputs[0] for outputs in predict(loaded, [Example(tuple(words), ()) for words in texts])]
    draw, revised = random.Random(2), 0
    streams, fed = Streams(loaded), dict.fromkeys(range(len(texts)), 0)
    labels: dict[int, tuple[str, ...]] = dict.fromkeys(fed, ())
    while fed:
        pieces: dict[int, list[str]] = {}
        for place in draw.sample(sorted(fed), min(len(fed), 4)):
            start, count = fed[place], draw.randint(1, 4)
            pieces[place] = texts[place][start : start + count]
            fed[place] = start + len(pieces[place])
        for place, update in streams.feed(pieces).items():
            labels[place] += update.committed
            revised += len(update.retracted)
            if fed[place] == len(texts[place]):
                del fed[place]
                assert streams.score(place) == pytest.approx(whole[place].score, abs=tolerance, rel=tolerance)
                assert labels[place] + streams.finish(place).committed == whole[place].tokens
    assert revised > 0


def test_a_causal_model_reads_each_piece_once(run: Path) -> None:
    """And marks the last piece of a word, the only one that has seen all of it."""
    loaded = load_run(run, to="predict")
    words, read = ["dogs", "see", "cats"], []
    stream = Stream(loaded)
    embeddings = loaded.model.encoder.backbone.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda module, given: read.append(given[0].tolist()[0]))
    for word in words:
        stream.feed([word])
    source = word_pieces(loaded.codec.tokenizer, words, piece="last")
    ids = [max(piece, ~piece) for piece in source]
    assert len(read) == 3
    # What stands behind the words plays no part.
    assert [piece for each in read for piece in each] == ids[: sum(map(len, read))]
    assert all(piece >= 0 for piece in source[sum(map(len, read)) :])
    (encoded,) = loaded.codec.encode_sources([Example(tuple(words), ())])
    assert encoded.source_ids == source


def test_the_command_streams_what_predict_finds(run: Path, tmp_path: Path, seqwise: Command) -> None:
    texts = sentences(5, 3)
    file = tmp_path / "words.txt"
    file.write_text("".join(" ".join(words) + "\n" for words in texts))
    found = [outputs[0].tokens for outputs in predict(load_run(run), [Example(tuple(words), ()) for words in texts])]
    ended = seqwise("stream", run, file, "--text", "--json")
    assert ended.code == 0, ended.err
    labels: list[list[str]] = [[]]
    for record in ended.records:
        labels[-1] += record["committed"]
        if record["token"] is None:
            labels.append([])
    assert [tuple(each) for each in labels[:-1]] == found


@pytest.mark.thorough
def test_a_causal_tagger_is_trained_from_files_and_streamed(tmp_path: Path, seqwise: Command) -> None:
    """With commits during the training as well; the label of a word is known once all its pieces are read."""
    draw = random.Random(0)
    lines = []
    for _ in range(60):
        words = draw.choices(["do", "dog", "dogs", "cat", "cats"], k=draw.randint(2, 5))
        lines += [f"{word}\t{'PLURAL' if word.endswith('s') else 'OTHER'}\n" for word in words] + ["\n"]
    (tmp_path / "train.conll").write_text("".join(lines))
    torch.manual_seed(0)
    tokenizer = plain_bytes()
    saved(tmp_path / "gpt2", gpt2(len(tokenizer)), tokenizer)
    options = {
        "task": "tag", "model": tmp_path / "gpt2", "train": tmp_path / "train.conll", "objective": "dense-beam",
        "score": "global", "commit-delay": 1, "epochs": 4, "warm-start-epochs": 8, "learning-rate": 0.003,
        "warm-start-learning-rate": 0.003, "decoder-learning-rate": 0.01, "hidden-size": 16, "batch-size": 8,
        "output": tmp_path / "run",
    }  # fmt: skip
    run_main("train", *(f"--{name}={value}" for name, value in options.items()))
    stream = Stream(load_run(tmp_path / "run"), commit="delay(0)")
    words = ["dogs", "dog", "cats", "do", "cat"]
    assert [stream.feed([word]).committed for word in words] == [
        (label,) for label in ("PLURAL", "OTHER", "PLURAL", "OTHER", "OTHER")
    ]


def test_an_encoder_that_reads_both_ways_is_refused_in_one_line(tmp_path: Path, seqwise: Command) -> None:
    tokenizer = word_tokenizer()
    saved(tmp_path / "bert", bert(len(tokenizer)), tokenizer)
    settings = train_settings(task="tag", model=str(tmp_path / "bert"), objective="cross-entropy")
    save_run(new_run(EXAMPLES, settings), tmp_path / "run")
    (tmp_path / "words.txt").write_text("the dog\n")
    complaint = seqwise("stream", tmp_path / "run", tmp_path / "words.txt").complaint
    assert complaint.startswith("the model reads its source both ways, and a stream has no end to read back from; ")
    assert complaint.endswith("over a causal model (--task tag --model gpt2)")


def test_an_encoder_that_reads_both_ways_is_not_trained_for_a_stream(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    folder = saved(tmp_path / "bert", bert(len(tokenizer)), tokenizer)
    settings = train_settings(task="tag", model=str(folder), objective="beam-crf", commit_delay=1)
    problem = f"^{folder}: commit_delay: the model reads its source both ways, .*; leave it out, or name another model"
    with pytest.raises(InputError, match=problem):
        new_run(EXAMPLES, settings)


def test_a_word_without_pieces_is_refused_and_the_stream_goes_on(run: Path) -> None:
    loaded = load_run(run)
    if not loaded.codec.encode_words(["the"])[0]:  # of bytes, each of which has a piece
        return
    loaded.codec.tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    stream, other = Stream(loaded), Stream(loaded)
    assert stream.feed([]) == ((), (), ())
    with pytest.raises(InputError, match=r"the tokenizer returns nothing for '\\xad'; replace the word"):
        stream.feed(["\u00ad"])
    assert stream.feed(["the"]) == other.feed(["the"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, True),
        ({"model_type": "llama", "architectures": None}, True),
        ({"model_type": "bert", "is_decoder": True}, True),
        ({"model_type": "bert"}, False),
        ({"model_type": "bart", "architectures": ["BartModel"]}, False),
        ({"model_type": "t5"}, False),
        ({}, False),
    ],
)
def test_causal_models_are_recognised_by_their_configuration(config: dict[str, Any], expected: bool) -> None:
    assert is_causal(config) is expected
