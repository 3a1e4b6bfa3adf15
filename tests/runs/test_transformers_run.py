"""``seqwise train --model FOLDER``: a Hugging Face encoder-decoder from the command line, end to end.

Causal models are in test_causal_runs.py.

Models are tiny, with random weights, and saved in a folder with a tokenizer made here; nothing comes from a network.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

from command_line import Command, run_main
from letters import letter_bart, letter_pairs, letter_tokenizer
from pretrained import saved, with_code
from run_folders import weights
from seqwise.data.readers import Example
from seqwise.evaluation.slot_ranking import Slots, unroll_slots
from seqwise.runs import load_run, predict
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.diagnosis import diagnose, explore
from seqwise.runs.inputs import inputs_of
from seqwise.runs.measures import changed_targets
from seqwise.runs.model_settings import names_pretrained
from seqwise.runs.settings import load_settings, train_settings
from seqwise.training.checkpoints import verify


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    # BART forces the last token of "generate", which has no effect here.
    options = {"max_position_embeddings": 24, "forced_eos_token_id": 0, "dropout": 0.05, "init_std": 0.3}
    saved(folder / "bart", letter_bart(width=16, **options), letter_tokenizer())
    (folder / "train.tsv").write_text(letter_pairs(120, 0))
    (folder / "dev.tsv").write_text(letter_pairs(20, 1))
    return folder


def options(files: Path, **more: Any) -> list[str]:
    given = {"model": files / "bart", "train": files / "train.tsv", "batch_size": 16, "save_every": 5, **more}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    learnt = {"objective": "cross-entropy", "epochs": 25, "learning_rate": 0.01, "dev": files / "dev.tsv"}
    run_main("train", *options(files, **learnt), f"--output={folder}")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(("decoder", "beams"), [("greedy", 1), ("beam", 3)])
def test_transformers_decodes_a_trained_model_as_seqwise_does(
    decoder: str, beams: int, run: Path, files: Path, seqwise: Command
) -> None:
    verify(run / "model")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(run / "model").eval()
    loaded = transformers.AutoTokenizer.from_pretrained(run / "model")
    assert type(model) is transformers.BartForConditionalGeneration
    sources = [line.split("\t")[0] for line in (files / "dev.tsv").read_text().splitlines()]
    (files / "inputs.txt").write_text("\n".join(sources) + "\n")
    size = () if beams == 1 else ("--beam-size", beams)
    records = seqwise("predict", run, files / "inputs.txt", "--decoder", decoder, *size, "--json").records
    assert [record["input"] for record in records] == sources
    for source, record in zip(sources, records, strict=True):
        search: dict[str, Any] = {"num_beams": beams, "do_sample": False, "length_penalty": 0.0, "max_new_tokens": 8}
        ids = model.generate(**loaded(source, return_tensors="pt", return_token_type_ids=False), **search)
        assert loaded.decode(ids[0], skip_special_tokens=True) == record["outputs"][0]["output"]
    # What was learnt: the next letter.
    assert records[0]["outputs"][0]["output"] == (files / "dev.tsv").read_text().splitlines()[0].split("\t")[1]


@pytest.mark.thorough
def test_all_decoders_predict_and_are_measured(run: Path, files: Path, seqwise: Command) -> None:
    found = json.loads(seqwise("evaluate", run, files / "dev.tsv", "--json").out)
    assert set(found) == {"greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam"}
    assert found["beam"]["token error"]["value"] < 20
    for decoder in ("beam", "raw-beam", "soft-beam"):
        ended = seqwise("predict", run, "a b", "--decoder", decoder, "--beam-size", 3)
        assert ended.code == 0 and "b c" in ended.out.splitlines()[0]
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["dev"]["mean log Z"] > 0
    diagnosed = seqwise("diagnose", run, files / "dev.tsv", "--json")
    assert diagnosed.code == 0, diagnosed.err
    assert "beam" in json.loads(diagnosed.out)["decoders"]


def test_a_run_records_its_settings(run: Path, files: Path) -> None:
    settings = yaml.safe_load((run / "configuration.yaml").read_text())
    assert settings["model"] == {"name": "pretrained", "path": str(files / "bart")}
    assert (settings["task"], settings["learning_rate"]) == ("transduce", 0.01)
    assert load_settings(run / "configuration.yaml", {}).learning_rate == 0.01


def test_rates_are_small_unless_they_are_given(tmp_path: Path) -> None:
    assert load_settings(None, {"model": "./some"}).learning_rate == 5e-5
    assert load_settings(None, {"model": "./some", "learning_rate": "1e-3"}).learning_rate == 1e-3
    assert load_settings(None, {}).learning_rate == 1e-3
    (tmp_path / "settings.yaml").write_text("model: ./some\nobjective: hinge\nwarm_start_learning_rate: 0.002\n")
    from_file = load_settings(tmp_path / "settings.yaml", {})
    assert (from_file.learning_rate, from_file.warm_start_learning_rate) == (5e-5, 2e-3)


def test_the_name_of_a_model_folder_is_kept_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "lstm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names_pretrained("mine") and not names_pretrained("lstm") and names_pretrained("./lstm")
    assert train_settings(model="mine").model.title == "./mine"
    assert train_settings(model="lstm", task="transduce").model.name == "lstm"
    monkeypatch.chdir("/")
    assert names_pretrained("./mine") and not names_pretrained("mine")


@pytest.mark.parametrize("name", ["bert-base-cased", "gpt2", "ada/bart"])
def test_names_on_the_hub_are_looked_up_with_and_without_a_user(
    name: str, files: Path, tmp_path: Path, seqwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def without_network(source: str, **options: Any) -> None:
        asked.append(source)
        raise OSError("We couldn't connect to the hub.\nMore about it.")

    monkeypatch.setattr(transformers.PretrainedConfig, "get_config_dict", without_network)
    assert train_settings(model=name).model.title == name
    complaint = seqwise("train", *options(files, model=name), f"--output={tmp_path / 'run'}").complaint
    assert asked == [name] and complaint.startswith(f"{name}: there is no such folder, and no such model on the hub")
    assert "without a network, give the folder" in complaint


@pytest.mark.thorough
@pytest.mark.parametrize(
    "objective",
    [
        {"objective": "relaxed-beam", "beam_size": 2},
        {"objective": "beam-crf", "score": "global", "beam_size": 2},
        {"objective": "scheduled-sampling", "feeding_passes": "two-pass", "feeding": "soft-greedy"},
        {"objective": "sampled-self-normalized", "log_partition_fraction": 0.5},
        {"objective": "distillation", "beam_size": 2, "warm_start_epochs": 0.2},
        {"objective": "minimum-risk", "cost": "edit-distance", "beam_size": 2},
    ],
    ids=lambda settings: settings["objective"],
)
def test_other_objectives_train_too(objective: dict[str, Any], files: Path, tmp_path: Path, seqwise: Command) -> None:
    short = {"epochs": 0.4, "learning_rate": 0.01}
    if objective["objective"] not in ("distillation", "sampled-self-normalized"):
        short["warm_start"] = "none"
    ended = seqwise("train", *options(files, **(short | objective)), f"--output={tmp_path / 'run'}")
    assert ended.code == 0, ended.err
    assert seqwise("predict", tmp_path / "run", "a b c", "--beam-size", 2).code == 0
    usual = "raw-beam" if objective["objective"] in ("beam-crf", "distillation") else "beam"
    loaded = load_run(tmp_path / "run")
    inputs = inputs_of("a b c", units="text")
    best = predict(loaded, inputs, choose_decoder(loaded.settings))[0][0]
    assert best == predict(loaded, inputs, choose_decoder(loaded.settings, usual))[0][0]
    before = transformers.AutoModelForSeq2SeqLM.from_pretrained(files / "bart")
    after = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


@pytest.mark.thorough
def test_killed_training_resumes_to_the_same_weights(files: Path, tmp_path: Path, seqwise: Command) -> None:
    """With dropout and a warm start; the second training finds the checkpoints of a part of the first."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["train", *options(files, objective="relaxed-beam", beam_size=2, warm_start_epochs=0.7, epochs=1.0)]
    assert seqwise(*command, f"--output={whole}").code == 0
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "checkpoints" / "checkpoint-8")
    assert (killed / "checkpoints" / "checkpoint-5").exists()
    assert seqwise(*command, f"--output={killed}").code == 0
    assert weights(whole) == weights(killed)


def test_sources_near_the_last_position_are_decoded(run: Path, seqwise: Command) -> None:
    """Twice as long an output as the source would have no position left."""
    # A soft beam runs its course, whatever has ended.
    ended = seqwise("predict", run, " ".join("abcd" * 6)[2:], "--decoder", "soft-beam")
    assert ended.code == 0, ended.err
    said = seqwise("predict", run, " ".join("abcd" * 6)).complaint
    assert "the source has 25 tokens, and the model has 24 positions; shorten it" in said


@pytest.mark.thorough
def test_a_run_is_diagnosed_and_reported_on_up_to_the_last_position(
    run: Path, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    pytest.importorskip("matplotlib")
    letters = ["abcd"[place % 4] for place in range(23)]  # twice as many have no position
    (tmp_path / "long.tsv").write_text(f"{' '.join(letters)}\t{' '.join(letters[1:])}\na b\tb c\n")
    measured = json.loads(seqwise("evaluate", run, tmp_path / "long.tsv", "--json").out)
    ended = seqwise("diagnose", run, tmp_path / "long.tsv", "--json")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["decoders"]
    for decoder in ("greedy", "beam", "raw-beam"):
        assert rows[decoder]["token error"]["value"] == measured[decoder]["token error"]["value"]
    explored = seqwise("diagnose", run, tmp_path / "long.tsv", "--example", 1)
    assert explored.code == 0, explored.err
    page = tmp_path / "page.html"
    reported = seqwise("report", run, "--output", page, "--file", tmp_path / "long.tsv", "--examples", 2)
    assert reported.code == 0, reported.err
    assert str(files / "bart") in page.read_text() and "edit distance" in page.read_text()


@pytest.mark.parametrize("forbids", [{"suppress_tokens": [5]}, {"bad_words_ids": [[5], [4, 6]]}])
def test_tokens_that_a_generation_config_forbids_are_never_written(forbids: dict[str, Any], run: Path) -> None:
    loaded, inputs = load_run(run), inputs_of("a a", units="text")
    assert loaded.codec.target_text(["<s>", "a", "<pad>", "b", "</s>"]) == "a b"
    assert loaded.codec.target_text(predict(loaded, inputs, choose_decoder(loaded.settings))[0][0].tokens) == "b b"
    for name, value in forbids.items():
        setattr(loaded.model.model.generation_config, name, value)
    for decoder in ("greedy", "beam", "raw-beam", "soft-beam"):
        best = predict(loaded, inputs, choose_decoder(loaded.settings, decoder))[0][0]
        assert "b" not in best.tokens
    examples = [Example(("a a",), ("b b",))]
    in_diagnosis: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:

        def measured(run: Any, examples: Any, outputs: Any) -> dict[str, Any]:
            in_diagnosis.extend(output.tokens for output in outputs)
            return {}

        patch.setattr("seqwise.runs.diagnosis.measure_outputs", measured)
        assert diagnose(loaded, examples).search is None
    assert len(in_diagnosis) >= 3 and not any(5 in tokens for tokens in in_diagnosis)
    free = diagnose(load_run(run), examples).search
    assert free is not None and (free.inputs, free.certified) == (1, 1)


def test_targets_that_the_run_cannot_write_are_left_out_of_every_part_of_a_diagnosis(run: Path) -> None:
    found = diagnose(load_run(run), [Example(("a a",), ("a z",))])
    assert found.log_partitions is None and not found.exposure and found.ranking is None


def _suppressing(run: Path, *tokens: int) -> Any:
    """A run whose generation config forbids some tokens."""
    loaded = load_run(run)
    loaded.model.model.generation_config.suppress_tokens = list(tokens)
    return loaded


@pytest.mark.thorough
def test_the_explorer_and_the_slot_ranking_search_as_the_run_does(run: Path) -> None:
    examples = [Example(("a a",), ("a c a",)), Example(("c a",), ("a c",))]
    free = explore(load_run(run), examples[0], beam_size=4)
    assert any(5 in prefix.tokens for prefixes in free.steps for prefix in prefixes if prefix.on_beam)
    loaded = _suppressing(run, 5)
    bias = explore(loaded, examples[0], beam_size=4)
    assert len(bias.steps) > 2 and not any(5 in prefix.tokens for prefixes in bias.steps for prefix in prefixes)
    ranked: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:

        def recording(*arguments: Any, **options: Any) -> Iterator[Slots]:
            for slots in unroll_slots(*arguments, **options):
                live_BJT = slots.prefixes_BJT[slots.scores_BJ != -torch.inf]
                ranked.extend(live_BJT.tolist())
                yield slots

        patch.setattr("seqwise.evaluation.slot_ranking.unroll_slots", recording)
        diagnose(loaded, examples, beam_size=4)
    assert len(ranked) > 20 and not any(5 in tokens for tokens in ranked)


@pytest.mark.thorough
def test_the_global_shares_are_over_what_the_run_may_write(run: Path) -> None:
    """With the end and one other token to write, a step adds one output; their shares sum to 1; other gold has none."""
    loaded = _suppressing(run, *(token for token in range(10) if token not in (0, 4)))
    bias = explore(loaded, Example(("a a",), ("b a",)), beam_size=20)
    assert bias.exact
    for step, prefixes in enumerate(bias.steps):
        kept = [prefix for prefix in prefixes if prefix.on_beam]
        assert len(kept) == (step + 1 if step else 1)
        for place in (0, -1):
            assert sum(prefix.global_masses[place] for prefix in kept) == pytest.approx(1.0, abs=1e-5)
    gold = [prefix for prefixes in bias.steps[1:] for prefix in prefixes if prefix.is_gold]
    assert len(gold) == 3 and all(set(one.global_masses) == {0.0} and not one.on_beam for one in gold)


# ---------------------------------------------------------------------------------------- what is refused


def test_a_model_with_its_own_code_is_refused(files: Path, tmp_path: Path, seqwise: Command) -> None:
    folder = Path(shutil.copytree(files / "bart", tmp_path / "model"))
    with_code(folder)
    complaint = seqwise("train", *options(files, model=folder), f"--output={tmp_path / 'run'}").complaint
    assert "has its own code (auto_map), which is never run" in complaint and str(folder) in complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "lstn"}, "model must be one of lstm, transformer, chain, a folder, or a name on the hub"),
        ({"task": "tag"}, "is neither an encoder nor a causal model, which --task tag needs"),
        ({"source_units": "words"}, "source_units: "),
        ({"hidden_size": 8}, "hidden_size: has no effect here"),
        ({"dropout": 0.3}, "dropout: has no effect here"),
        ({"num_layers": 3}, "num_layers: has no effect here"),
        ({"subword_vocabulary": 30}, "subword_vocabulary: has no effect here"),
        ({"token_column": 1}, "token_column: has no effect here"),
        ({"objective": "crf"}, "crf needs the scores of a chain"),
        ({"model": "no-such/model"}, "no-such/model: "),
    ],
)
def test_settings_that_do_not_go_with_a_trained_model(
    given: dict[str, Any], said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    assert said in seqwise("train", *options(files, **given), f"--output={tmp_path / 'run'}").complaint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a b\t", "train.tsv:2: the target is empty"),
        ("a b", "train.tsv:2: 1 column where 2 were expected"),
        ("a b\ta </s> b", "train.tsv:2: the target contains the end token '</s>'; leave it out"),
        ("a b\ta b </s>", "train.tsv:2: the target contains the end token '</s>'; leave it out"),
        ("a b\t" + "a " * 24, "train.tsv:2: the target has 25 tokens, and the model has 24 positions"),
    ],
)
def test_pairs_that_cannot_be_read_are_named(
    line: str, said: str, files: Path, tmp_path: Path, seqwise: Command
) -> None:
    (tmp_path / "train.tsv").write_text(f"a\tb\n{line}\n")
    arguments = options(files, train=tmp_path / "train.tsv")
    assert said in seqwise("train", *arguments, f"--output={tmp_path / 'run'}").complaint


def test_a_tokenizer_that_changes_a_tenth_of_the_targets_is_named(run: Path) -> None:
    kept, changed = Example(("a",), ("b a",)), Example(("a",), ("b zebra",))
    said = changed_targets(load_run(run), [*[kept] * 9, changed])
    assert said is not None and "changes 1 of 10 sampled targets" in said and "'b zebra'" in said
    assert changed_targets(load_run(run), [*[kept] * 10, changed]) is None


def test_unknown_words_of_targets_are_named(run: Path, tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "dev.tsv").write_text("a\tb\na b\tb zebra\n")
    ended = seqwise("evaluate", run, tmp_path / "dev.tsv", "--decoder", "greedy")
    assert ended.code == 0 and "1 of 3 target tokens was never seen in training" in ended.err
