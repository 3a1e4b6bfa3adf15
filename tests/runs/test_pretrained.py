"""seqwise score and sample over folders of Hugging Face models: results, resumption, refusals."""

from __future__ import annotations

import json
import math
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from command_line import Command
from pretrained import bert, cut, esm, esm_tokenizer, made, pickled, saved, with_code, without, word_tokenizer
from run_folders import contents
from seqwise.hugging_face import pseudo_log_likelihoods
from seqwise.runs import load_run, sampling


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return saved(tmp_path_factory.mktemp("bert") / "my-bert", made(bert(), dtype=torch.float32), word_tokenizer())


@pytest.fixture
def folder(made_once: Path, tmp_path: Path) -> Path:
    """A Hugging Face masked language model, as it is saved."""
    return Path(shutil.copytree(made_once, tmp_path / "my-bert"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    # What the environment of the tests forbids anyway must not be what keeps the network out.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_scores_are_those_of_the_python_call(seqwise: Command, folder: Path, tmp_path: Path) -> None:
    texts = ["The dog sees a cat.", "a zebra runs", "dog"]
    (tmp_path / "some.txt").write_text("\n\n".join(texts) + "\n")
    ended = seqwise("score", folder, tmp_path / "some.txt")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    scores = pseudo_log_likelihoods(model, word_tokenizer(), texts)
    assert [(one["text"], one["line"]) for one in ended.records] == [(text, 2 * n + 1) for n, text in enumerate(texts)]
    for record, score in zip(ended.records, scores, strict=True):
        assert tuple(record["tokens"]) == score.tokens
        assert record["token_log_probs"] == pytest.approx(score.token_log_probs_T.tolist(), abs=2e-4)
        assert record["log_prob"] == pytest.approx(score.log_prob, abs=1e-3)
        assert record["pseudo_perplexity"] == pytest.approx(score.pseudo_perplexity, rel=1e-3)
    total, tokens = sum(one.log_prob for one in scores), sum(len(one.tokens) for one in scores)
    expected = f"3 sequences, {tokens} tokens (1 unknown): pseudo-perplexity {math.exp(-total / tokens):.4g}\n"
    assert ended.err == expected == seqwise("score", folder, tmp_path / "some.txt", "--max-tokens=1").err


def test_samples_keep_what_is_written(seqwise: Command, folder: Path) -> None:
    ended = seqwise("sample", folder, "The  _ sees [MASK] cat.", "--chains=3", "--sweeps=8", "--every=4", "--discard=1")
    assert [(one["chain"], one["sweep"]) for one in ended.records] == [(c, s) for c in (1, 2, 3) for s in (4, 8)]
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    for record in ended.records:
        assert record["text"].startswith("The  ") and record["text"].endswith(" cat.") and " sees " in record["text"]
        (score,) = pseudo_log_likelihoods(model, word_tokenizer(), [record["text"]])
        assert record["energy"] == pytest.approx(-score.log_prob, abs=1e-3)
    assert ended.err.startswith("3 chains, 7 of 8 sweeps counted: accepted ")
    for record in seqwise("sample", folder, "the x [MASK].", "--free=x", "--chains=2", "--sweeps=2").records:
        assert record["text"].startswith("the ") and record["text"].endswith(".") and "x" not in record["text"]
    refused = "'__' is not 2 free positions; write _ _, or choose another token for free positions"
    assert seqwise("sample", folder, "the __ sees _").complaint.endswith(refused)
    command = ("sample", folder, "the __ [MASK][MASK]", "--free=[MASK]", "--chains=1", "--sweeps=1")
    assert len(seqwise(*command).records) == 1


@pytest.mark.thorough
def test_whole_texts_of_a_length(seqwise: Command, folder: Path, tmp_path: Path) -> None:
    ended = seqwise("sample", folder, "--length=4-5", "--count=3", "--contain=a cat", "--blocks=2,1", "--chains=2")
    assert len(ended.records) == 6
    for record in ended.records:
        assert "a cat" in record["text"] and len(word_tokenizer().tokenize(record["text"])) in (4, 5)
    (tmp_path / "blanks.txt").write_text("_ dog\nthe _ _\n")
    best = seqwise("sample", folder, tmp_path / "blanks.txt", "--best", "--sweeps=6")
    assert [one["problem"] for one in best.records] == [1, 2]
    for name in ("exact-gibbs", "delayed-acceptance", "mask-predict"):
        assert seqwise("sample", folder, "the _ _", f"--kernel={name}").records[0]["text"].startswith("the ")


@pytest.mark.thorough
@pytest.mark.parametrize("time", [1, 2])
def test_killed_sampling_resumes_to_the_same_samples(
    seqwise: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: int
) -> None:
    flags = ["the _ sees _ _", "--chains=3", "--every=1", "--discard=0", "--save-every=3", "--sweeps=8"]
    whole = seqwise("sample", folder, *flags, "--output", tmp_path / "whole")
    real, calls = sampling.append_sweeps, []

    def kill(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == time:
            raise KeyboardInterrupt
        real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sampling, "append_sweeps", kill)
        assert seqwise("sample", folder, *flags, "--output", tmp_path / "killed").code == 130
    again = seqwise("sample", folder, *flags, "--output", tmp_path / "killed")
    assert again.out == whole.out and contents(tmp_path / "killed") == contents(tmp_path / "whole")
    longer = seqwise("sample", folder, *flags[:-1], "--sweeps=10", "--output", tmp_path / "killed")
    assert longer.out == seqwise("sample", folder, *flags[:-1], "--sweeps=10").out


def test_sampling_is_not_resumed_with_another_model(seqwise: Command, folder: Path, tmp_path: Path) -> None:
    flags = ["the _", "--sweeps=4", "--output", tmp_path / "samples"]
    assert seqwise("sample", folder, *flags).code == 0
    torch.manual_seed(1)
    other = saved(tmp_path / "other", made(bert(), dtype=torch.float32), word_tokenizer())
    assert "the samples were started with another model" in seqwise("sample", other, *flags).complaint


def test_proteins_are_read_from_fasta(seqwise: Command, tmp_path: Path) -> None:
    tokenizer = esm_tokenizer(tmp_path / "vocabulary")
    folder = saved(tmp_path / "my-esm", made(esm(33, mask_id=32), dtype=torch.float32), tokenizer)
    (tmp_path / "some.fasta").write_text(">P1 a protein\nMKT\nWL\n>P2\nGGA\n")
    (tmp_path / "some.txt").write_text("MKTWL\nG G A\n")
    named = seqwise("score", folder, tmp_path / "some.fasta").records
    plain = seqwise("score", folder, tmp_path / "some.txt").records
    assert [(one["name"], one["text"]) for one in named] == [("P1", "MKTWL"), ("P2", "GGA")]
    assert [one["tokens"] for one in named] == [list("MKTWL"), list("GGA")] == [one["tokens"] for one in plain]
    assert [one["log_prob"] for one in named] == [one["log_prob"] for one in plain]
    (tmp_path / "some.fa").write_text(">P1\nMK<mask>WL\n")
    for record in seqwise("sample", folder, tmp_path / "some.fa", "--without=.").records:
        assert record["text"].startswith("MK") and record["text"].endswith("WL") and "." not in record["text"]
    letters = word_tokenizer(list("MKTWLGA"))
    spaced = saved(tmp_path / "spaced", made(bert(), dtype=torch.float32), letters)
    # This one lower-cases, and so knows no residue; it is given blanks all the same.
    assert seqwise("score", spaced, tmp_path / "some.fasta").records[0]["tokens"] == ["[UNK]"] * 5


def test_weights_in_half_precision_are_scored(seqwise: Command, tmp_path: Path) -> None:
    model = made(bert(), dtype=torch.bfloat16, scale=2.0)
    folder = saved(tmp_path / "half", model, word_tokenizer())
    (tmp_path / "some.txt").write_text("the dog runs\n")
    (record,) = seqwise("score", folder, tmp_path / "some.txt").records
    (score,) = pseudo_log_likelihoods(model, word_tokenizer(), ["the dog runs"])
    assert record["log_prob"] == pytest.approx(score.log_prob, abs=0.05)
    flags = ["the _ _", "--sweeps=4", "--output", tmp_path / "samples"]
    assert seqwise("sample", folder, *flags).out == seqwise("sample", folder, *flags).out


def test_nothing_is_trusted_and_only_safetensors_are_read(
    seqwise: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.txt").write_text("the dog\n")
    given: list[dict[str, Any]] = []
    for kind in (transformers.AutoModelForMaskedLM, transformers.AutoTokenizer):
        real = kind.from_pretrained

        def recording(*arguments: Any, _real: Any = real, **options: Any) -> Any:
            given.append(options)
            return _real(*arguments, **options)

        monkeypatch.setattr(kind, "from_pretrained", recording)
    assert seqwise("score", folder, tmp_path / "some.txt").code == 0
    assert len(given) == 2 and all(one["local_files_only"] is True for one in given)
    assert not any("trust_remote_code" in one for one in given) and given[0]["use_safetensors"] is True


def edited(name: str = "config.json", **values: Any) -> Callable[[Path], None]:
    """A configuration with other values in it."""

    def edit(folder: Path) -> None:
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))

    return edit


def another_tokenizer(*words: str, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: word_tokenizer(list(words) or None, **options).save_pretrained(folder)


MORE_WORDS = ("more", "words", "than", "the", "model", "has", "ever", "seen")
SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle": (pickled, "the weights are a pickle, which could run code when it is read; save them as safetensors"),
    "no weights": (without("*.safetensors"), "the folder has no model.safetensors; save the model there"),
    "code": (with_code, "the model has its own code (auto_map), which is never run"),
    "code of the tokenizer": (
        edited("tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization.Mine", None]}),
        "the model has its own code (auto_map), which is never run",
    ),
    "no tokenizer": (without("tokenizer.json"), "the folder has no tokenizer; tokenizer.save_pretrained(folder)"),
    "truncated": (cut, "transformers cannot load the model ("),
    "other sizes": (edited(hidden_size=8), "transformers cannot load the model ("),
    "another type": (
        edited(model_type="gpt2", architectures=["GPT2LMHeadModel"]),
        "transformers cannot load the model (",
    ),
    "unknown type": (edited(model_type="mine"), "transformers cannot load the model ("),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json:1: invalid JSON"),
    "no type": (lambda folder: (folder / "config.json").write_text("{}"), "the folder holds no trained model; give "),
    "no head": (
        lambda folder: saved(folder, bert().bert, word_tokenizer()),
        "incomplete masked language model: ",
    ),
    "large tokenizer": (another_tokenizer(*MORE_WORDS), "the tokenizer has tokens up to 12, and the model scores 12"),
    "no mask": (another_tokenizer(mask=None), "the tokenizer has no mask token"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(
    seqwise: Command, folder: Path, tmp_path: Path, how: str
) -> None:
    (tmp_path / "some.txt").write_text("the dog\n")
    spoil, said = SPOILT[how]
    spoil(folder)
    for command in (["score", folder, tmp_path / "some.txt"], ["sample", folder, "the _"]):
        complaint = seqwise(*command).complaint
        # What the configuration calls a GPT-2 can be scored, and is loaded as one.
        as_gpt2 = how == "another type" and command[0] == "score"
        expected = "incomplete causal model or encoder-decoder: " if as_gpt2 else said
        assert complaint.startswith(str(folder)) and expected in complaint, complaint


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["score", "{folder}", "{file}"], "{file}:2: the text contains the special token [SEP]"),
        (["score", "{folder}", "{masked}"], "{masked}:1: the text contains the mask token [MASK]"),
        (["sample", "{folder}", "{file}"], "{file}:1: no position is free; write _"),
        (["sample", "{folder}"], "length: the lengths of the training data are unknown; give a number of tokens"),
        (["sample", "{folder}", "--length=20"], "a sequence has 20 tokens and 2 special ones"),
        (["sample", "{folder}", "a _", "--free="], "free: '' is blank"),
        (
            ["sample", "{folder}", "a _", "--contain=zebra"],
            "contain: the phrase 'zebra' contains an unknown token",
        ),
        (["sample", "{folder}", "a _", "--contain= "], "contain: a phrase is blank"),
        (["sample", "{folder}", "a _", "--contain=the dog"], "no sequence was found that contains 'the dog'"),
        (["sample", "{folder}", "a _", "--length-beam=2"], "length_beam: the model has no source"),
    ],
)
def test_what_cannot_be_scored_or_sampled_is_refused(
    seqwise: Command, folder: Path, tmp_path: Path, command: list[str], complaint: str
) -> None:
    names = {"folder": folder, "file": tmp_path / "a.txt", "masked": tmp_path / "c.txt"}
    names["file"].write_text("the dog\nthe [SEP] dog\n")
    names["masked"].write_text("the [MASK]\n")
    filled = [argument.format(**names) for argument in command]
    assert complaint.format(**names) in seqwise(*filled).complaint


@pytest.mark.parametrize("command", ["predict", "evaluate", "diagnose"])
def test_commands_that_decode_refuse_a_masked_model(
    seqwise: Command, folder: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "some.tsv").write_text("the\tdog\n")
    complaint = seqwise(command, folder, tmp_path / "some.tsv").complaint
    assert complaint == (
        f"{folder}: the folder holds a Hugging Face model, not a run; "
        f"fine-tune it with seqwise train --model {folder}, or give the --output of seqwise train"
    )


def test_a_name_on_the_hub_is_looked_up_only_where_there_is_no_such_path(
    seqwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.txt").write_text("the dog\n")
    complaint = seqwise("score", "somebody/some-bert", "some.txt").complaint
    assert complaint.startswith("somebody/some-bert: there is no such folder, and no such model on the hub (")
    (tmp_path / "somebody" / "some-bert").mkdir(parents=True)
    assert "holds no trained model" in seqwise("score", "somebody/some-bert", "some.txt").complaint
    assert "there is no such run folder" in seqwise("score", "./runs/of/mine", "some.txt").complaint


def test_a_name_on_the_hub_is_read_as_a_folder_is(
    seqwise: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache as the hub's client leaves it, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cache = tmp_path / "hub"
    snapshot = cache / "models--somebody--some-bert" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (cache / "models--somebody--some-bert" / "refs").mkdir()
    (cache / "models--somebody--some-bert" / "refs" / "main").write_text("0" * 40)
    for place in ("huggingface_hub.constants.HF_HUB_CACHE", "huggingface_hub.constants.HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(place, str(cache))
    (tmp_path / "some.txt").write_text("the dog\n")
    monkeypatch.chdir(tmp_path)
    assert seqwise("score", "somebody/some-bert", "some.txt").out == seqwise("score", folder, "some.txt").out
    with_code(snapshot)
    assert "has its own code" in seqwise("score", "somebody/some-bert", "some.txt").complaint


def test_loading_restores_the_verbosity_of_transformers(folder: Path) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_run(folder)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_tokenizer_of_bytes_needs_no_vocabulary(seqwise: Command, tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=384, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    saved(tmp_path / "byt5", transformers.T5ForConditionalGeneration(config), transformers.ByT5Tokenizer())
    (tmp_path / "texts.txt").write_text("the dog\n")
    assert seqwise("score", tmp_path / "byt5", tmp_path / "texts.txt").code == 0
