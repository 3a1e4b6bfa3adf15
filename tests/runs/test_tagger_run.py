"""``seqwise train --task tag --model FOLDER``: a tagger over a Hugging Face encoder, from files to everything else.

Encoders are tiny, with random weights, and saved in a folder with a tokenizer made here; nothing comes from a network.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

from command_line import Command, exit_code, run_main
from letters import letter_bart, letter_pairs, letter_tokenizer
from pages import DOCS, blocks, run_commands
from parameters import quick
from pretrained import (
    MODELS,
    WORDS,
    byte_tokenizer,
    cut,
    esm_tokenizer,
    gpt2,
    saved,
    with_code,
    without,
    word_tokenizer,
)
from run_folders import columns_file, weights
from seqwise.data import EncodedExample, Example, load_tokenizer, read_columns
from seqwise.decoding import DECODERS, decode_examples
from seqwise.errors import InputError
from seqwise.hugging_face import load_tagger, pretrained_tagger, word_pieces
from seqwise.hugging_face.tagger import words_without_pieces
from seqwise.models import Tagger
from seqwise.objectives import cross_entropy_objective
from seqwise.pages.explorer.answers import answer
from seqwise.pages.explorer.questions import load_explored, read_question
from seqwise.pages.explorer.searches import Setup
from seqwise.runs import choose_decoder, load_run, new_run, predict, train_settings
from seqwise.runs.inputs import inputs_of
from seqwise.runs.model_card import model_card
from seqwise.runs.pretrained import is_encoder, pretrained_source
from seqwise.runs.pushing import upload_of
from seqwise.runs.settings import load_settings
from seqwise.training.checkpoints import seal, verify
from seqwise.training.trainer import fit

KINDS = ["BERT", "RoBERTa", "DistilBERT", "ModernBERT", "ESM"]
LABELS = {"the": "D", "a": "D", "sees": "V", "runs": "V", ".": "P"}
WORDS_OF_ESM = ["MK", "V", "A", "GST", "LL", "RR", "W"]
"""The words of the other models as ESM, whose tokenizer knows only residues, reads them."""


def tokenizer_of(kind: str, folder: Path) -> Any:
    if kind in ("RoBERTa", "ModernBERT"):
        return byte_tokenizer()
    return esm_tokenizer(folder) if kind == "ESM" else word_tokenizer()


def sentences(count: int, seed: int, kind: str = "BERT") -> list[Example]:
    """A noun behind "sees" is an object, any other a subject: what decides is the word before."""
    generator, found = random.Random(seed), []
    for _ in range(count):
        words = generator.choices(WORDS, k=generator.randint(2, 6))
        before = [None, *words[:-1]]
        labels = [
            LABELS.get(word, "OBJ" if last == "sees" else "SUBJ") for last, word in zip(before, words, strict=True)
        ]
        found.append(Example(tuple(as_written(word, kind) for word in words), tuple(labels)))
    return found


def as_written(word: str, kind: str) -> str:
    return dict(zip(WORDS, WORDS_OF_ESM, strict=True))[word] if kind == "ESM" else word


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    for kind in KINDS:
        tokenizer = tokenizer_of(kind, folder / "vocabulary")
        # Sentences of byte pairs, and of residues, are longer than those of words.
        model = MODELS[kind](len(tokenizer))
        if kind in ("RoBERTa", "ModernBERT", "ESM"):
            model.config.max_position_embeddings = 64
            model = type(model)(model.config)
        saved(folder / kind, model, tokenizer)
    for kind in ("BERT", "ESM"):
        columns_file(folder / f"{kind}-train.conll", sentences(160, 0, kind))
        columns_file(folder / f"{kind}-dev.conll", sentences(24, 1, kind))
    saved(folder / "bart", letter_bart(), letter_tokenizer())
    (folder / "train.tsv").write_text(letter_pairs(16, 0))
    return folder


def data(files: Path, kind: str, part: str) -> Path:
    return files / f"{'ESM' if kind == 'ESM' else 'BERT'}-{part}.conll"


def options(files: Path, kind: str = "BERT", **more: Any) -> list[str]:
    given = {"task": "tag", "model": files / kind, "train": data(files, kind, "train"), "batch_size": 16} | more
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


LEARNT: dict[str, Any] = {
    "epochs": 15,
    "learning_rate": 0.003,
    "decoder_learning_rate": 0.01,
    "hidden_size": 16,
    "save_every": 1000,
    "evaluate_every": 0,
}
NEW = ("first_input_D", "label_embedding.", "decoder.", "head.")
"""Prefixes of the names of the decoder's weights."""


@pytest.fixture(scope="module", params=quick(KINDS, "BERT"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(kind: str, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / kind
    given = {"objective": "cross-entropy", "dev": data(files, kind, "dev"), **LEARNT}
    run_main("train", *options(files, kind, **given), f"--output={folder}")
    return folder


# --------------------------------------------------------------------------------- a run like every other


@pytest.mark.thorough
@pytest.mark.parametrize("decoder", ["greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam"])
def test_a_run_predicts_what_the_tagger_predicts_in_python(
    decoder: str, kind: str, run: Path, files: Path, seqwise: Command
) -> None:
    verify(run / "model")
    examples = read_columns(data(files, kind, "dev"))
    inputs = files / "inputs.txt"
    inputs.write_text("".join(" ".join(example.source) + "\n" for example in examples))
    most = 1 if decoder == "greedy" else 3
    predict = ["predict", run, "--decoder", decoder, "--n-best", most, "--json"]
    records = seqwise(*predict, inputs, "--text").records
    # The same sentences in columns, with labels that play no part.
    columns = seqwise(*predict, data(files, kind, "dev")).records
    assert [record["outputs"] for record in columns] == [record["outputs"] for record in records]
    model: Any = load_tagger(run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model" / "backbone")
    names = model.encoder.backbone.config.id2label
    encoded = [EncodedExample(word_pieces(tokenizer, example.source), ()) for example in examples]
    search = DECODERS[decoder](5, 8.0, DECODERS["beam"](5, 8.0, None).score)
    for record, outputs in zip(records, decode_examples(model, encoded, search, n_best=most), strict=True):
        assert [one["output"].split() for one in record["outputs"]] == [
            [names[label] for label in one.tokens] for one in outputs
        ]
        assert [one["score"] for one in record["outputs"]] == pytest.approx([one.score for one in outputs], abs=1e-4)
    if decoder == "beam":  # what was learnt: the label of a noun is that of its place
        right = [tuple(record["outputs"][0]["output"].split()) for record in records]
        assert sum(found == example.target for found, example in zip(right, examples, strict=True)) >= 20


@pytest.mark.thorough
def test_training_is_that_of_pretrained_tagger_bit_for_bit(kind: str, run: Path, files: Path, tmp_path: Path) -> None:
    examples = read_columns(data(files, kind, "train"))
    trained: Any = load_tagger(run / "model")
    labels = trained.encoder.backbone.config.label2id
    tokenizer = transformers.AutoTokenizer.from_pretrained(files / kind)
    torch.manual_seed(0)
    backbone = transformers.AutoModel.from_pretrained(files / kind)
    model = pretrained_tagger(backbone, num_labels=len(labels), hidden_size=16, label_embedding_size=16, dropout=0.1)
    encoded = [
        EncodedExample(word_pieces(tokenizer, one.source), tuple(labels[label] for label in one.target))
        for one in examples
    ]
    steps: dict[str, Any] = {"steps": 15 * 10, "batch_size": 16, "learning_rate": 0.003, "seed": 0}
    fit(model, cross_entropy_objective(), encoded, output=tmp_path / "fit", rates=dict.fromkeys(NEW, 0.01), **steps)
    own = trained.state_dict()
    for name, tensor in model.state_dict().items():
        assert name.startswith("encoder.backbone.pooler.") or torch.equal(tensor, own[name]), name


@pytest.mark.thorough
def test_a_run_is_measured_diagnosed_and_reported_on(
    kind: str, run: Path, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    pytest.importorskip("matplotlib")
    dev = data(files, kind, "dev")
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["dev"]["best decoder"] in DECODERS and metrics["dev"]["mean log Z"] is not None
    measured = json.loads(seqwise("evaluate", run, dev, "--json").out)
    assert set(measured) == {"greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam"}
    assert measured["beam"]["accuracy"]["value"] > 0.9
    diagnosed = seqwise("diagnose", run, dev, "--json")
    assert diagnosed.code == 0, diagnosed.err
    rows = json.loads(diagnosed.out)["decoders"]
    for decoder in ("greedy", "beam", "raw-beam"):
        assert rows[decoder]["accuracy"]["value"] == measured[decoder]["accuracy"]["value"]
    explored = seqwise("diagnose", run, dev, "--example", 1, "--beam-size", 3)
    assert explored.code == 0 and read_columns(dev)[0].source[0] in explored.out, explored.err
    page = tmp_path / "page.html"
    reported = seqwise("report", run, "--file", dev, "--example", 1, "--output", page)
    assert reported.code == 0, reported.err
    assert str(files / kind) in page.read_text() and "Hamming cost" in page.read_text()


def test_a_run_is_explored(kind: str, run: Path, files: Path) -> None:
    loaded = load_explored(run)
    assert loaded.codec.kind == "word-pieces"
    example = min(read_columns(data(files, kind, "dev")), key=lambda one: len(one.source))
    question = read_question(loaded, " ".join(example.source), " ".join(example.target))
    found = answer(loaded, question, Setup(k=3, score="raw"))
    assert len(found.lattice) == len(example.source)
    outputs = len(loaded.codec.target_vocabulary) ** len(example.source)
    # Of all that there are, the best one is what a wide beam finds.
    assert found.errors.exact is not None and found.errors.exact.name == f"exact, over all {outputs:,} outputs"
    assert found.errors.beams[-1].gap == 0
    with pytest.raises(InputError, match=r"the right output has 1 label for \d words; give one for each"):
        read_question(loaded, " ".join(example.source), "D")


def test_a_card_and_what_goes_to_the_hub(kind: str, run: Path, files: Path, tmp_path: Path, seqwise: Command) -> None:
    card = seqwise("card", run, "--repo", "ada/tagger").out
    assert "A tagger with 5 labels over the Hugging Face encoder" in card and "token-classification" in card
    assert "library_name: seqwise" in card and 'seqwise predict ada/tagger "a text"' in card
    upload = upload_of(run, "ada/tagger")
    assert {"model.safetensors", "tagger.json", "target/tokenizer.json", "backbone/config.json"} <= set(upload.files)
    repository = tmp_path / "repository"
    for name, one in upload.files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        content = one.read_bytes() if isinstance(one, Path) else one
        assert name.endswith(".safetensors") or str(files).encode() not in content, name
        (repository / name).write_bytes(content)
    inputs = inputs_of(" ".join(read_columns(data(files, kind, "dev"))[0].source), units="words")
    found, expected = (
        predict(one, inputs, choose_decoder(one.settings), n_best=2) for one in (load_run(repository), load_run(run))
    )
    assert found == expected
    loaded = load_run(run)
    assert "`./bert`" in model_card(replaced_model(loaded, "/somewhere/else/bert"), {}, repo="x")
    assert "base_model: ada/bert" in model_card(replaced_model(loaded, "ada/bert"), {}, repo="x")


def replaced_model(run: Any, model: str) -> Any:
    from dataclasses import replace

    return replace(run, settings=run.settings.with_changes(model=model))


def test_a_run_outlives_the_folder_that_it_was_trained_from(files: Path, tmp_path: Path, seqwise: Command) -> None:
    base = shutil.copytree(files / "BERT", tmp_path / "mine")
    given = options(files, model=base, epochs=0.2, objective="cross-entropy")
    assert seqwise("train", *given, f"--output={tmp_path / 'run'}").code == 0
    before = seqwise("predict", tmp_path / "run", "the dog runs").out
    shutil.rmtree(base)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert seqwise("predict", tmp_path / "elsewhere", "the dog runs").out == before != ""


def test_a_causal_model_with_a_look_ahead_streams(files: Path, tmp_path: Path, seqwise: Command) -> None:
    """Streamed labels are those of predict; an encoder that reads both ways is refused."""
    causal, tokenizer = tmp_path / "causal", byte_tokenizer()
    saved(causal, gpt2(len(tokenizer), n_positions=64), tokenizer)
    given = {"epochs": 2, "objective": "cross-entropy", "hidden_size": 16, "look_ahead": 2}
    trained = seqwise("train", *options(files, model=causal, **given), f"--output={tmp_path / 'run'}")
    assert trained.code == 0, trained.err
    assert ", 2 tokens ahead" in " ".join(trained.out.split())
    words = read_columns(data(files, "BERT", "dev"))[0].source
    predicted = seqwise("predict", tmp_path / "run", " ".join(words)).out
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    streamed = seqwise("stream", tmp_path / "run", tmp_path / "words.txt", "--json").out.splitlines()
    committed = [label for line in streamed for label in json.loads(line)["committed"]]
    assert len(committed) == len(words) and " ".join(committed) in predicted
    assert "that looks 2 tokens ahead" in seqwise("card", tmp_path / "run").out
    refused = seqwise("train", *options(files, **given), f"--output={tmp_path / 'both'}")
    assert refused.code == 2
    assert "an encoder that reads its source both ways has no look-ahead; leave look_ahead out" in refused.err


def test_a_run_records_its_settings(run: Path, kind: str, files: Path) -> None:
    settings = yaml.safe_load((run / "configuration.yaml").read_text())
    model = settings["model"]
    assert (settings["task"], model["path"], model["hidden_size"]) == ("tag", str(files / kind), 16)
    assert load_settings(run / "configuration.yaml", {}) == load_run(run).settings
    config = json.loads((run / "model" / "backbone" / "config.json").read_text())
    labels = list(load_tokenizer(run / "model" / "target").vocabulary.tokens)
    assert list(config["id2label"].values()) == labels and set(labels) == {"D", "V", "P", "SUBJ", "OBJ"}


# ------------------------------------------------------------------------------------------- training


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, scope="function")
def test_killed_training_resumes_to_the_same_weights(kind: str, files: Path, tmp_path: Path, seqwise: Command) -> None:
    """With dropout and a warm start; the second training finds the checkpoints of a part of the first."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    given = {"objective": "relaxed-beam", "score": "global", "beam_size": 2, "warm_start_epochs": 0.7, "epochs": 1.0}
    command = ["train", *options(files, kind, save_every=4, learning_rate=0.003, decoder_learning_rate=0.01, **given)]
    assert seqwise(*command, f"--output={whole}").code == 0
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "checkpoints" / "checkpoint-10")
    assert (killed / "checkpoints" / "checkpoint-8").exists()
    assert seqwise(*command, f"--output={killed}").code == 0
    assert weights(whole) == weights(killed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "objective",
    [
        {"objective": "relaxed-beam"},
        {"objective": "relaxed-beam", "score": "global"},
        {"objective": "beam-crf", "score": "global", "wrong_label_costs": None},
        {"objective": "hinge", "wrong_label_costs": "OBJ=2"},
        {"objective": "minimum-risk"},
        {"objective": "scheduled-sampling", "feeding": "soft-greedy"},
        {"objective": "self-normalized"},
        {"objective": "sampled-self-normalized", "log_partition_fraction": 0.5},
        {"objective": "noise-contrastive"},
        {"objective": "distillation", "warm_start_epochs": 0.2},
        {"objective": "auto", "warm_start_epochs": 0.2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_other_objectives_train_too(objective: dict[str, Any], files: Path, tmp_path: Path, seqwise: Command) -> None:
    from_scratch = ("self-normalized", "sampled-self-normalized", "noise-contrastive", "distillation", "auto")
    short: dict[str, Any] = {"epochs": 0.4, "learning_rate": 0.01, "beam_size": 3}
    if objective["objective"] not in from_scratch:
        short["warm_start"] = "none"
    ended = seqwise("train", *options(files, **(short | objective)), f"--output={tmp_path / 'run'}")
    assert ended.code == 0, ended.err
    loaded: Any = load_run(tmp_path / "run")
    usual = "raw-beam" if objective.get("score") == "global" or objective["objective"] == "distillation" else "beam"
    inputs = inputs_of("the dog sees a cat", units="words")
    found, wanted = (predict(loaded, inputs, choose_decoder(loaded.settings, name)) for name in (None, usual))
    assert found == wanted and len(found[0][0].tokens) == 5
    before = transformers.AutoModel.from_pretrained(files / "BERT").state_dict()
    after = loaded.model.encoder.backbone.state_dict()
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items() if "pooler" not in name)


def test_a_self_normalised_tagger_starts_near_a_log_partition_of_zero(files: Path) -> None:
    examples = read_columns(data(files, "BERT", "train"))
    biases: dict[str, Any] = {}
    for objective in ("cross-entropy", "self-normalized"):
        settings = load_settings(None, {"task": "tag", "model": str(files / "BERT"), "objective": objective})
        new: Any = new_run(examples, settings)
        biases[objective] = new.model.head.bias
    assert torch.equal(biases["self-normalized"], torch.full((5,), -torch.tensor(5.0).log().item()))
    assert not torch.equal(biases["cross-entropy"], biases["self-normalized"])


def test_weights_of_half_precision_are_trained_in_single_precision(
    files: Path, tmp_path: Path, seqwise: Command
) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(files / "ModernBERT", dtype=torch.bfloat16)
    saved(tmp_path / "half", model, byte_tokenizer())
    given = options(files, model=tmp_path / "half", epochs=0.2, objective="cross-entropy")
    assert seqwise("train", *given, f"--output={tmp_path / 'run'}").code == 0
    assert {one.dtype for one in load_run(tmp_path / "run").model.parameters()} == {torch.float32}


def test_parts_of_a_model_can_have_different_learning_rates(tmp_path: Path) -> None:
    """The first step of Adam is as long as the learning rate, for any gradient."""
    model = Tagger(source_size=4, target_size=3, embedding_size=4, hidden_size=5, label_embedding_size=2, dropout=0.0)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    options: dict[str, Any] = {"batch_size": 2, "learning_rate": 1e-3, "seed": 0, "decay": "constant", "save_every": 1}
    train = [EncodedExample((0, 1, 2), (0, 1, 2)), EncodedExample((3, 2, 0), (1, 1, 0))]
    rates = {"decoder.": 2e-2, "head.bias": 5e-3}
    fit(model, cross_entropy_objective(), train, output=tmp_path, steps=1, rates=rates, **options)
    for name, one in model.cpu().named_parameters():
        rate = next((rate for part, rate in rates.items() if name.startswith(part)), 1e-3)
        assert float((one.detach() - before[name]).abs().max()) == pytest.approx(rate, rel=1e-2), name
    assert json.loads((tmp_path / "log.jsonl").read_text())["learning_rate"] == 1e-3
    with pytest.raises(InputError, match="the checkpoint was made with other rates"):
        fit(model, cross_entropy_objective(), train, output=tmp_path, steps=1, rates={"decoder.": 1e-2}, **options)
    with pytest.raises(InputError, match=r"no weights of the model have names that begin with 'encode_'"):
        fit(model, cross_entropy_objective(), train, output=tmp_path, steps=1, rates={"encode_": 1e-2}, **options)
    with pytest.raises(InputError, match=r"the learning rate of decoder. must be greater than 0, got 0"):
        fit(model, cross_entropy_objective(), train, output=tmp_path, steps=1, rates={"decoder.": 0}, **options)


def test_the_encoder_is_trained_with_its_dropout(tmp_path: Path) -> None:
    seen: set[bool] = set()
    backbone = MODELS["BERT"]().base_model.eval()
    backbone.encoder.register_forward_pre_hook(lambda module, _: seen.add(module.training))
    model = pretrained_tagger(backbone, num_labels=2, hidden_size=4)
    assert not model.training
    options: dict[str, Any] = {"steps": 1, "batch_size": 1, "learning_rate": 1e-3, "seed": 0}
    fit(model, cross_entropy_objective(), [EncodedExample((2, ~5, 3), (1,))], output=tmp_path, **options)
    assert seen == {True} and not model.training and not backbone.training
    assert pretrained_tagger(backbone.train(), num_labels=2).training


def test_a_decoder_learns_at_its_own_rate(files: Path, tmp_path: Path, seqwise: Command) -> None:
    """The first of two steps is as long as the rate, the second half as long."""
    rates: dict[str, Any] = {"learning_rate": 1e-5, "decoder_learning_rate": 1e-2}
    given = options(files, objective="cross-entropy", epochs=0.2, **rates)
    assert seqwise("train", *given, f"--output={tmp_path / 'run'}").code == 0
    after = load_run(tmp_path / "run")
    before = new_run(read_columns(data(files, "BERT", "train")), after.settings)
    for name, one in after.model.state_dict().items():
        moved = float((one - before.model.state_dict()[name]).abs().max())
        is_new = name.startswith(NEW)
        if "pooler" not in name and one.is_floating_point():
            assert moved <= (1.6e-2 if is_new else 1.6e-5), name
            assert moved >= (0.5e-2 if is_new else 0) or name.startswith("decoder.weight_hh"), name


# -------------------------------------------------------------------------------------------- settings


def test_a_pretrained_model_transduces_unless_the_task_is_tag() -> None:
    assert train_settings(model="./my-bert").task == "transduce" == load_settings(None, {"model": "./my-bert"}).task
    assert train_settings().task == "tag" == load_settings(None, {}).task
    tagger = load_settings(None, {"model": "./my-bert", "task": "tag"})
    assert (tagger.task, tagger.source_units, tagger.learning_rate) == ("tag", "words", 5e-5)
    assert load_settings(None, {"model": "./b", "task": "tag", "learning_rate": "1e-3"}).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minimum_count": 3}, "minimum_count: has no effect here"),
        ({"encoder": "left-to-right", "objective": "cross-entropy"}, "encoder: has no effect here"),
        ({"encoder": "left-to-right"}, "encoder: has no effect here"),
        ({"task": "tag", "model": "lstm", "decoder_learning_rate": 0.1}, "decoder_learning_rate: has no effect"),
        ({"decoder_learning_rate": 0}, "decoder_learning_rate must be greater than 0"),
        ({"num_layers": 3}, "num_layers: has no effect here"),
        ({"source_units": "characters"}, "source_units: has no effect here"),
        ({"subword_vocabulary": 30}, "subword_vocabulary: has no effect here"),
        ({"objective": "crf"}, "crf needs the scores of a chain"),
        ({"objective": "scheduled-sampling", "feeding_passes": "two-pass"}, "feeding_passes: only scheduled sampling"),
        ({"model": "no-such/model"}, "no-such/model: "),
        ({"model": "./no-such-model"}, "no-such-model: there is no such folder; name a folder, or a model on the hub"),
    ],
)
def test_settings_that_do_not_go_with_an_encoder(
    given: dict[str, Any], said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    assert said in seqwise("train", *options(files, **given), f"--output={tmp_path / 'run'}").complaint
    assert not (tmp_path / "run").exists()


def test_sizes_of_the_decoder_are_used(files: Path, tmp_path: Path, seqwise: Command) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 7,
        "label_embedding_size": 3,
        "dropout": 0.3,
        "label_column": 1,
        "token_column": 0,
    }
    given = options(files, epochs=0.1, objective="cross-entropy", **sizes)
    assert seqwise("train", *given, f"--output={tmp_path / 'run'}").code == 0
    found: Any = load_run(tmp_path / "run").model
    assert (found.decoder.hidden_size, found.label_embedding.weight.shape[1], found.dropout.p) == (7, 3, 0.3)


# -------------------------------------------------------------------------------------- what is refused


def _fewer_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def _larger_tokenizer(folder: Path) -> None:
    word_tokenizer([*WORDS, "zebra"]).save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (with_code, "has its own code (auto_map), which is never run; use a model class of transformers"),
        (cut, "transformers cannot load the model"),
        (_fewer_layers, "incomplete encoder: 16 weights are missing"),
        (_larger_tokenizer, "the tokenizer has 13 tokens, and the encoder has embeddings for 12; save it after"),
        (without("config.json"), "the folder holds no Hugging Face model; name a folder with config.json"),
    ],
)
def test_unusable_encoders_are_refused_in_one_line(
    damage: Callable[[Path], Any], said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(files / "BERT", folder)
    damage(folder)
    complaint = seqwise("train", *options(files, model=folder), f"--output={tmp_path / 'run'}").complaint
    assert complaint.startswith(f"{folder}: ") and said in complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "task", "train", "said"),
    [
        (
            "bart",
            "tag",
            "BERT-train.conll",
            "the model (BartForConditionalGeneration) is neither an encoder nor a causal model, which --task tag needs",
        ),
        (
            "BERT",
            "transduce",
            "train.tsv",
            "the model is a masked language model, which cannot generate text; tag with it",
        ),
        (
            "BERT",
            None,
            "train.tsv",
            "which cannot generate text; tag with it (--task tag), or use it with seqwise score",
        ),
        ("DistilBERT", None, "train.tsv", "which cannot generate text; tag with it (--task tag)"),
    ],
)
def test_a_task_that_a_model_is_not_for_is_refused(
    name: str, task: str | None, train: str, said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    given = options(files, model=files / name, task=task, train=files / train)
    complaint = seqwise("train", *given, f"--output={tmp_path / 'run'}").complaint
    assert complaint.startswith(f"{files / name}: ") and said in complaint


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "bert"}, True),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"]}, True),
        ({"model_type": "xlm-roberta", "architectures": None}, True),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, False),
        ({"model_type": "bert", "is_decoder": True}, False),
        ({"model_type": "bart", "architectures": ["BartModel"]}, False),
        ({"model_type": "t5"}, False),
        ({"model_type": "llama"}, False),
        ({}, False),
    ],
)
def test_encoders_are_recognised_by_their_configuration(config: dict[str, Any], expected: bool) -> None:
    assert is_encoder(config) is expected


@pytest.mark.thorough
def test_an_encoder_with_another_head_or_none_tags_and_cannot_generate(
    files: Path, tmp_path: Path, seqwise: Command
) -> None:
    config = transformers.AutoConfig.from_pretrained(files / "BERT", num_labels=9)
    for model in (transformers.BertModel(config), transformers.BertForTokenClassification(config)):
        folder = saved(tmp_path / type(model).__name__, model, word_tokenizer())
        said = seqwise("train", *options(files, model=folder, task=None, train=files / "train.tsv"), "--output=x")
        assert "the model is an encoder, which cannot generate text; tag with it (--task tag)" in said.complaint
        given = options(files, model=folder, epochs=0.1, objective="cross-entropy")
        ended = seqwise("train", *given, f"--output={tmp_path / 'run' / folder.name}")
        assert ended.code == 0, ended.err
        assert len(load_run(tmp_path / "run" / folder.name).codec.target_vocabulary) == 5


UNREADABLE = [
    (
        "the\tD\n\u00ad\tN\n\ndog\tN\n",
        "{path}:2: the tokenizer returns nothing for '\\xad'; replace the word, or drop it",
    ),
    (
        "dog\tN\n\n" + "the\tD\n" * 13,
        "{path}:3: the sentence has 15 pieces, and the encoder has 14 positions; split",
    ),
]


@pytest.mark.parametrize(("text", "said"), [*UNREADABLE, ("dog N\ncat\n", "{path}:2: ")])
def test_sentences_that_cannot_be_read_are_named(
    text: str, said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    (tmp_path / "some.conll").write_text(text)
    given = options(files, model=stripping_bert(files, tmp_path), train=tmp_path / "some.conll")
    complaint = seqwise("train", *given, f"--output={tmp_path / 'run'}").complaint
    assert said.format(path=tmp_path / "some.conll") in complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("text", "said"), UNREADABLE)
def test_development_sentences_that_cannot_be_read_count_as_wrong(
    text: str, said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    (tmp_path / "some.conll").write_text(text)
    how: dict[str, Any] = {"epochs": 0.1, "objective": "cross-entropy", "dev": tmp_path / "some.conll"}
    given = options(files, model=stripping_bert(files, tmp_path), **how)
    ended = seqwise("train", *given, f"--output={tmp_path / 'run'}")
    named = f"1 of 2 inputs could not be read (counted as wrong); the first is {said.format(path=how['dev'])}"
    assert ended.code == 0 and named in ended.err
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())["dev"]["decoders"]["greedy"]
    assert measured["sequence accuracy"] in (0.0, 0.5)


def stripping_bert(files: Path, tmp_path: Path) -> Path:
    """BERT with a tokenizer that leaves out soft hyphens, as its own does."""
    from tokenizers import normalizers

    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    folder = shutil.copytree(files / "BERT", tmp_path / "stripping")
    tokenizer.save_pretrained(folder)
    return Path(folder)


@pytest.mark.thorough
def test_unreadable_inputs_are_named_in_prediction_and_evaluation(
    files: Path, tmp_path: Path, seqwise: Command
) -> None:
    folder = tmp_path / "run"
    given = options(files, model=stripping_bert(files, tmp_path), epochs=0.1, objective="cross-entropy")
    assert seqwise("train", *given, f"--output={folder}").code == 0
    (tmp_path / "inputs.txt").write_text("the dog\nthe cat \u00ad runs\n")
    ended = seqwise("predict", folder, tmp_path / "inputs.txt", "--text")
    assert f"{tmp_path / 'inputs.txt'}:2: the tokenizer returns nothing for '\\xad'" in ended.err and ended.code == 1
    assert [line.split("\t")[1][:5] == "error" for line in ended.out.splitlines()] == [False, True]
    (tmp_path / "inputs.conll").write_text("the\n\nthe\n\u00ad\n")
    ended = seqwise("predict", folder, tmp_path / "inputs.conll", "--format=columns")
    assert f"1 of 2 inputs could not be read; the first is {tmp_path / 'inputs.conll'}:4: the tok" in ended.err
    assert [line.split("\t")[0] for line in ended.out.splitlines()] == ["the", "", "the", "\u00ad", ""]
    assert "the sentence has 22 pieces, and the" in seqwise("predict", folder, "dog " * 20).complaint
    (tmp_path / "test.conll").write_text("the\tD\n\ndog\tSUBJ\n\u00ad\tN\n")
    ended = seqwise("evaluate", folder, tmp_path / "test.conll")
    named = f"1 of 2 inputs could not be read (counted as wrong); the first is {tmp_path / 'test.conll'}:4: the tok"
    assert ended.code == 1 and named in ended.err
    (tmp_path / "test.conll").write_text("the\tD\ndog\tNEW\n")
    ended = seqwise("evaluate", folder, tmp_path / "test.conll", "--decoder", "beam")
    line = (
        f"1 of 2 labels was never seen in training and counts as wrong; the first is {tmp_path / 'test.conll'}:2: 'NEW'"
    )
    assert ended.code == 0 and line in ended.err
    (tmp_path / "test.conll").write_text("犬\tD\n猫\tD\n鳥\tD\n")  # three unknown pieces between two special ones
    ended = seqwise("evaluate", folder, tmp_path / "test.conll", "--decoder", "beam")
    said = f"the run does not know 3 of 5 source tokens in {tmp_path / 'test.conll'}: are they in the language of"
    assert ended.code == 0 and said in ended.err


def test_a_run_is_resumed_with_its_own_settings_only(files: Path, tmp_path: Path, seqwise: Command) -> None:
    given = options(files, epochs=0.1, objective="cross-entropy")
    output = f"--output={tmp_path / 'run'}"
    assert seqwise("train", *given, output).code == 0
    assert "started with another hidden_size" in seqwise("train", *given, "--hidden-size=9", output).complaint
    lstm = [one for one in given if not one.startswith("--model")]
    assert "started with another model" in seqwise("train", *lstm, output).complaint
    assert seqwise("train", *given, output).code == 0


def test_a_tokenizer_with_code_is_refused_in_a_sealed_run(files: Path, tmp_path: Path, seqwise: Command) -> None:
    folder = tmp_path / "run"
    given = options(files, epochs=0.1, objective="cross-entropy")
    assert seqwise("train", *given, f"--output={folder}").code == 0
    config = folder / "model" / "backbone" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoTokenizer": ["evil.T", None]}}))
    seal(folder / "model")
    assert "has its own code (auto_map)" in seqwise("predict", folder, "the dog").complaint


def test_names_of_the_hub_are_left_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pretrained_source("ada/bert") == "ada/bert"
    (tmp_path / "ada" / "bert").mkdir(parents=True)
    with pytest.raises(InputError, match="ada/bert: the folder holds no Hugging Face model"):
        pretrained_source("ada/bert")
    (tmp_path / "ada" / "bert" / "config.json").write_text("{}")
    assert pretrained_source("ada/bert") == Path("ada/bert")


# ------------------------------------------------------------------------------------------------ words


def test_a_byte_tokenizer_reads_every_word_as_after_a_blank() -> None:
    tokenizer = byte_tokenizer()
    ids = word_pieces(tokenizer, ["the", "dog", "sees"])
    assert [one if one >= 0 else ~one for one in ids] == tokenizer(" the dog sees").input_ids
    assert [one if one >= 0 else ~one for one in ids] != tokenizer("thedogsees").input_ids
    tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
    assert word_pieces(tokenizer, ["the", "dog", "sees"]) == ids


def test_words_without_pieces_are_known_by_their_place(tmp_path: Path) -> None:
    assert words_without_pieces(word_tokenizer(), ["the", " ", "cat", "\t"]) == (1, 3)
    assert words_without_pieces(byte_tokenizer(), ["the", "\u00ad"]) == ()
    assert words_without_pieces(esm_tokenizer(tmp_path / "esm"), ["MK", " ", "V"]) == (1,)
    with pytest.raises(InputError, match="words were expected, at least one"):
        words_without_pieces(word_tokenizer(), [])


# ---------------------------------------------------------------------------------------- documentation


@pytest.mark.thorough
def test_the_commands_of_the_page_run(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "hugging-face.md").read_text(encoding="utf-8")
    (block,) = blocks(page.split("## Tag with a BERT")[1].split("\n## ")[0], "console")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-bert").symlink_to(files / "BERT")
    for part in ("train", "dev"):
        (tmp_path / f"{part}.conll").symlink_to(data(files, "BERT", part))
    # A BERT of random weights, and few sentences.
    said = run_commands(block.code, accepted="the loss was still falling|the model is worse than the baseline")
    assert "the run is in runs/tagger" in said
    assert exit_code("predict", "runs/tagger", "the dog runs") == 0
