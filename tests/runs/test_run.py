"""Runs as a library: settings, vocabularies, decoders by name, measures, and inputs."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from seqwise.configuration import dump
from seqwise.data import Batch, Example, Vocabulary, collate, join_pieces, read_columns, write_columns
from seqwise.data.durable import LOCK
from seqwise.data.readers import each_source
from seqwise.decoding import DECODERS
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.models import EncoderDecoder, Transformer
from seqwise.objectives.distillation import distillation_objective
from seqwise.objectives.options import parse_label_costs
from seqwise.runs import Prediction, Run, Settings, choose_decoder, load_run, new_run, predict, save_run, train_settings
from seqwise.runs.advice import advise, best_of
from seqwise.runs.decoder_choice import best_decoder, usual_decoder
from seqwise.runs.diagnosis import diagnose
from seqwise.runs.inputs import file_units, input_units, inputs_of
from seqwise.runs.loading import build_codec, build_model
from seqwise.runs.measures import (
    decisive,
    decode,
    known_targets,
    log_partitions_of,
    measure,
    measure_decoders,
    measure_outputs,
    missing_bleu,
    references_by_source,
    signatures,
    tagging_measures,
    unknown_targets,
)
from seqwise.runs.paths import names_a_file
from seqwise.runs.run import OutputRun
from seqwise.runs.settings import (
    load_settings,
    require_data,
)
from seqwise.runs.sizing import sized
from seqwise.runs.training import context_of, train_run
from seqwise.search.candidates import global_, local
from seqwise.search.operators import mean_squared_gap
from seqwise.search.selectors import HardTopK, SoftTopK
from seqwise.training.lock import sole_writer

TINY = train_settings(
    objective="relaxed-beam", hidden_size=4, embedding_size=4, label_embedding_size=2, minimum_count=1, beam_size=2
)
WORDS = [
    Example(("a", "b"), ("A", "B"), "x.tsv", 1),
    Example(("a",), ("A",), "x.tsv", 2),
    Example(("a",), ("B",), "x.tsv", 3),
]


def tiny_run(settings: Settings) -> OutputRun:
    codec = build_codec(WORDS, settings)
    return Run(settings, build_model(settings, codec).eval(), codec)


TEXTS = [
    Example(("Das Haus.",), ("The house.",), "x.tsv", 1),
    Example(("Das  Haus rennt",), ("The house runs",), "x.tsv", 2),
] * 2
SUBWORDS = TINY.with_changes(task="transduce", source_units="subwords", target_units="subwords", subword_vocabulary=20)


def text_run(settings: Settings = SUBWORDS) -> OutputRun:
    return new_run(TEXTS, settings)


@pytest.mark.parametrize("task", ["tag", "transduce"])
def test_self_normalised_models_start_with_log_z_near_zero(task: str) -> None:
    """log Z of a new model is about log V; after the biases are lowered by that, about 0."""
    settings = TINY.with_changes(task=task, objective="cross-entropy")
    words = [replace(example, target=(label,)) for example in WORDS[:1] for label in "ABCDEFGHIJKLMNOPQRST"]

    def mean_log_partition(settings: Settings) -> float:
        codec = build_codec(words, settings)
        run = Run(settings, build_model(settings, codec).eval(), codec)
        return float(log_partitions_of(run, run.codec.encode(words)).mean())

    assert mean_log_partition(settings) == pytest.approx(math.log(20), abs=0.4)
    for chosen in (
        settings.with_changes(objective="self-normalized"),
        settings.with_changes(objective="unnormalized-likelihood"),
        settings.with_changes(objective="relaxed-beam", warm_start="self-normalized", warm_start_epochs=1.0),
    ):
        assert mean_log_partition(chosen) == pytest.approx(0, abs=0.4)


@pytest.mark.parametrize("task", ["tag", "transduce"])
def test_a_saved_run_comes_back_as_it_was(tmp_path: Path, task: str) -> None:
    run = tiny_run(TINY.with_changes(task=task, train=Path("gone.tsv"), alpha="linear(1, 2)"))
    save_run(run, tmp_path)
    back = load_run(tmp_path)
    assert back.settings == run.settings
    assert back.codec == run.codec
    state = back.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in run.model.state_dict().items())
    assert not back.model.training
    decoder = choose_decoder(run.settings)
    assert predict(back, WORDS, decoder, n_best=2) == predict(run, WORDS, decoder, n_best=2)
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "codec.json", "config.json", "manifest.json", "model.safetensors", "source", "target",
    }  # fmt: skip


def test_a_run_saved_again_replaces_the_model_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_run(tiny_run(TINY), tmp_path)
    (tmp_path / "model.partial").mkdir()  # of a process that died
    other = tiny_run(TINY.with_changes(seed=1))
    save_run(other, tmp_path)
    assert load_run(tmp_path).settings.seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["configuration.yaml", "model"]


def test_new_weights_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (tiny_run(TINY.with_changes(seed=seed)).model.state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_values_that_yaml_reads_otherwise_survive_it(tmp_path: Path) -> None:
    settings = TINY.with_changes(learning_rate=1e-5, dev=Path("dev no.tsv"), warm_start="none", alpha="1e1", seed=7)
    (tmp_path / "s.yaml").write_text(dump(settings))
    assert load_settings(tmp_path / "s.yaml", {}) == settings


def test_a_range_error_names_the_line_of_the_file_unless_a_flag_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("epochs: 1\nclip: 0\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: clip must be greater than 0, got 0"):
        load_settings(tmp_path / "s.yaml", {})
    with pytest.raises(InputError, match=r"^clip must be greater than 0, got -1"):
        load_settings(tmp_path / "s.yaml", {"clip": "-1"})
    assert load_settings(tmp_path / "s.yaml", {"clip": "2"}).clip == 2


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": "exponential(0, 1)"}, {"alpha": "nan"}, {"alpha": "constant(-3)"}, {"alpha": "linear(2, 0)"},
        {"gold_probability": "linear(-0.1, 1)"}, {"gold_probability": "linear(0, 2, 1000)"}, {"dropout": -0.1},
        {"log_partition_fraction": 0.0}, {"log_partition_fraction": 1.5}, {"cross_entropy_weight": -1.0},
        {"minimum_count": 0}, {"seed": 2**32}, {"batch_size": 0}, {"epochs": 0.0},
    ],
)  # fmt: skip
def test_settings_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        require_data(TINY.with_changes(**{"train": Path("x"), **change}))


def test_the_ends_of_ranges_are_allowed() -> None:
    require_data(
        TINY.with_changes(
            train=Path("x"),
            objective="scheduled-sampling",
            gold_probability="linear(1, 0)",
            alpha="0.001",
            seed=2**32 - 1,
            dropout=0.0,
        )
    )
    sampled = TINY.with_changes(objective="scheduled-sampling", gold_probability="inverse_sigmoid(10)")
    require_data(sampled.with_changes(train=Path("x"), warm_start_epochs=0.0))


def trained(settings: Settings) -> list[tuple[str, str, float, float]]:
    """Objective, folder, epochs and learning rate of each stage."""
    found = settings.stages()
    assert found[-1].settings == settings and found[-1].name == "training"
    return [(one.settings.objective.name, one.folder, one.settings.epochs, one.settings.learning_rate) for one in found]


def test_warm_starts() -> None:
    settings = TINY.with_changes(objective="hinge", epochs=1.0, learning_rate=1e-3, warm_start_epochs=2.5)
    last = ("hinge", "", 1.0, 1e-3)
    for objective in ("cross-entropy", "self-normalized", "unnormalized-likelihood", "noise-contrastive"):
        assert len(trained(settings.with_changes(objective=objective))) == 1
    assert (
        trained(settings.with_changes(warm_start="none"))
        == trained(settings.with_changes(warm_start_epochs=0.0))
        == [last]
    )
    for warm_start in ("cross-entropy", "self-normalized"):
        assert trained(settings.with_changes(warm_start=warm_start)) == [(warm_start, "warm-start", 2.5, 2e-3), last]
    assert trained(settings.with_changes(warm_start="scheduled-sampling")) == [
        ("cross-entropy", "warm-start", 2.5, 2e-3),
        ("scheduled-sampling", "scheduled-sampling", 1.25, 1e-3),
        last,
    ]


def test_auto_chooses_objective_score_and_warm_start() -> None:
    short = {"epochs": 1.0, "warm_start_epochs": 2.5}
    streaming = train_settings(encoder="left-to-right", **short)
    assert streaming == train_settings(objective="auto", encoder="left-to-right", **short)
    assert (streaming.objective.name, streaming.trained_score) == ("beam-crf", "global")
    assert streaming.warm_start.name == "scheduled-sampling" and streaming.warm_start.epochs == 2.5
    assert usual_decoder(streaming) == "raw-beam" and streaming.chosen_by_auto and not TINY.chosen_by_auto
    for seen in ({"encoder": "bidirectional"}, {"task": "transduce"}):
        plain = train_settings(**seen, **short)
        assert (plain.objective.name, plain.trained_score) == ("cross-entropy", "local")
        assert (plain.epochs, plain.learning_rate) == (3.5, TINY.learning_rate)
    for name, value in (("score", "global"), ("warm_start", "none")):
        with pytest.raises(InputError, match=f"^{name}: the objective auto chooses it; leave .* out, or name an"):
            train_settings(**{name: value})


def test_options_that_auto_chooses_are_refused(tmp_path: Path) -> None:
    assert load_settings(None, {"learning_rate": "0.5"}).learning_rate == 0.5
    with pytest.raises(InputError, match=r"^score: the objective auto chooses it; leave score out"):
        load_settings(None, {"score": "local"})
    (tmp_path / "c.yaml").write_text("seed: 1\nwarm_start: cross-entropy\n")
    with pytest.raises(InputError, match=r"c\.yaml:2: warm_start: the objective auto chooses it"):
        load_settings(tmp_path / "c.yaml", {})
    assert load_settings(tmp_path / "c.yaml", {"objective": "hinge"}).warm_start.name == "cross-entropy"


@pytest.mark.thorough
def test_auto_trains_its_three_stages(tmp_path: Path) -> None:
    examples = [Example(tuple("abc"), tuple("ABC")), Example(tuple("ba"), tuple("BA"))] * 3
    write_columns(tmp_path / "train.conll", examples)
    flat: dict[str, Any] = {
        "encoder": "left-to-right", "train": tmp_path / "train.conll", "epochs": 2.0, "warm_start_epochs": 2.0,
        "hidden_size": 4, "embedding_size": 4, "label_embedding_size": 2, "minimum_count": 1, "beam_size": 2,
    }  # fmt: skip
    settings = train_settings(**flat)
    named = train_settings(objective="beam-crf", score="global", warm_start="scheduled-sampling", **flat)
    metrics = train_run(settings, tmp_path / "run")
    assert {"warm start", "scheduled sampling", "training"} < set(metrics)
    run = load_run(tmp_path / "run")
    assert run.settings == sized(named, examples)
    weights = (tmp_path / "run/model/model.safetensors").read_bytes()
    # The same command again, and one that names what auto stands for, go on with the same run.
    train_run(settings, tmp_path / "run")
    train_run(named, tmp_path / "run")
    # A configuration of the user's own in the output folder says auto, and stays as it is.
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "configuration.yaml"
    text = "".join(f"{name}: {value}\n" for name, value in flat.items())
    own.write_text(f"# mine\n{text}")
    train_run(settings, tmp_path / "own")
    assert own.read_text().startswith("# mine\n") and load_run(tmp_path / "own").settings == named
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == weights


def test_schedules_go_over_the_whole_training() -> None:
    alpha = TINY.with_changes(alpha="linear(1, 3)").objective.schedules["alpha"].over(10)
    assert [alpha(step) for step in (0, 5, 10)] == [1, 2, 3]
    gold = TINY.with_changes(objective="scheduled-sampling").objective.schedules["gold_probability"].over(10)
    assert [gold(step) for step in (0, 10)] == [1, 0]


def test_vocabularies_are_open_unless_they_are_told_otherwise() -> None:
    words, characters = TINY.with_changes(minimum_count=None), TINY.with_changes(minimum_count=None, task="transduce")
    characters = characters.with_changes(source_units="characters")
    assert build_codec(WORDS, words).source.vocabulary.tokens == ("<unk>", "a")  # b stands once
    assert build_codec(WORDS, characters).source.vocabulary.tokens == ("a", "b")
    assert build_codec(WORDS, words).target.vocabulary.end is None
    assert build_codec(WORDS, characters).target.vocabulary.end == "</s>"


def test_the_decoder_follows_the_training() -> None:
    trained_global = TINY.with_changes(objective="relaxed-beam", score="global", beam_size=7, alpha="exponential(1, 8)")
    assert choose_decoder(trained_global).score is global_ and choose_decoder(trained_global).selector == HardTopK(7)
    assert choose_decoder(trained_global.with_changes(score="local")).score is local
    # Without a search in training the score setting does not count.
    assert choose_decoder(trained_global.with_changes(objective="cross-entropy")).score is local
    # Always of raw scores, whatever the setting.
    for objective, model in (("crf", "chain"), ("distillation", "lstm")):
        whole = trained_global.with_changes(objective=objective, model=model)
        assert usual_decoder(whole) == "raw-beam" and choose_decoder(whole).score is global_
    soft = choose_decoder(trained_global, "soft-beam", beam_size=2)
    assert soft.selector == SoftTopK(2, 8.0) and soft.score is global_
    by_gaps = trained_global.with_changes(alpha_unit="gaps")
    assert choose_decoder(by_gaps, "soft-beam").selector == SoftTopK(7, 8.0, mean_squared_gap)
    assert choose_decoder(by_gaps, "beam").selector == HardTopK(7)
    # A schedule with steps of its own ends where it says.
    assert choose_decoder(TINY.with_changes(alpha="linear(1, 5, 100)"), "soft-beam").selector == SoftTopK(2, 5.0)
    assert choose_decoder(trained_global, "greedy").selector == HardTopK(1)
    with pytest.raises(InputError, match="no decoder is called 'greed'; did you mean 'greedy'"):
        choose_decoder(TINY, "greed")


def test_every_target_of_a_source_counts_as_right() -> None:
    asked, references = references_by_source(WORDS)
    assert [example.line for example in asked] == [1, 2]
    assert references == [[("A", "B")], [("A",), ("B",)]]
    counts = measure(tiny_run(TINY.with_changes(task="transduce")), WORDS, "greedy")
    assert set(counts) - {"BLEU"} == {"word error", "token error", "length ratio"}
    assert len(counts["word error"]) == 2  # words, not pairs


@pytest.mark.parametrize("encoder", ["left-to-right", "bidirectional"])
def test_advice_and_diagnosis_tell_left_to_right_models_apart(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = tiny_run(TINY.with_changes(encoder=encoder)), {}
    monkeypatch.setattr("seqwise.runs.measures.advise", lambda *_, **named: told.update(named))
    measure_decoders(run, WORDS)
    assert told["left_to_right"] == diagnose(run, WORDS).left_to_right == (encoder == "left-to-right")


def test_measures_of_all_decoders() -> None:
    run = tiny_run(TINY)
    encoded = run.codec.encode(WORDS)
    found = measure_decoders(run, WORDS)
    assert set(found["decoders"]) == set(DECODERS) - {"viterbi", "renormalized-beam"}
    log_partitions_N = log_partitions_of(run, encoded, batch_size=2)
    assert log_partitions_N.shape == (4,)  # a position each
    assert found["mean log Z"] == pytest.approx(log_partitions_N.mean().item())
    assert found["variance of log Z"] >= 0
    right = {name: values["accuracy"] for name, values in found["decoders"].items()}
    assert right[found["best decoder"]] == max(right.values())
    assert found["best by"] == "accuracy" and found["advice"]


def test_outputs_do_not_depend_on_the_rest_of_the_batch() -> None:
    run = tiny_run(TINY.with_changes(task="transduce"))
    decoder = choose_decoder(run.settings)
    together = predict(run, WORDS, decoder, n_best=2)
    for example, outputs in zip(WORDS, together, strict=True):
        alone = predict(run, [example], decoder, n_best=2)[0]
        assert [one.tokens for one in alone] == [one.tokens for one in outputs]
        assert [one.score for one in alone] == pytest.approx([one.score for one in outputs], abs=1e-5)


def test_inputs_from_texts_and_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b\nc\n")
    assert [(e.source, e.line) for e in inputs_of(str(tmp_path / "in"), units="words")] == [
        (("a", "b"), 1),
        (("c",), 2),
    ]
    # A typed text has the words of a line of a file: a no-break space separates none.
    (tmp_path / "in").write_text(" 10\u00a0000 \tb\u2028c  d ")
    for text in (str(tmp_path / "in"), (tmp_path / "in").read_text(), " 10\u00a0000\r\nb\u2028c\nd\n"):
        read = partial(each_source, units="words", separator=None)  # as with --text
        assert [e.source for e in inputs_of(text, units="words", read=read)] == [("10\u00a0000", "b\u2028c", "d")]
    with pytest.raises(InputError, match="in:1: a pair where a source was expected"):
        inputs_of(str(tmp_path / "in"), units="words")
    (tmp_path / "in").write_text(" a  b\u00a0")
    for text in (str(tmp_path / "in"), "\n a  b\u00a0\t"):
        assert [e.source for e in inputs_of(text, units="text")] == [("a  b\u00a0",)]
    for blank in ("", " ", "\n \t"):
        with pytest.raises(InputError, match="the input is empty"):
            inputs_of(blank, units="words")
    only = inputs_of("a b", units="characters")
    assert [(e.source, e.path) for e in only] == [(("a", " ", "b"), "")]
    assert not names_a_file("x" * 5000) and not names_a_file("the end.txt is near") and not names_a_file(str(tmp_path))
    with pytest.raises(InputError, match="this is a directory"):
        inputs_of(f"{tmp_path}/", units="words")
    with pytest.raises(InputError, match="no such file"):
        inputs_of("away.tsv", units="words")
    assert input_units(TINY) == "words"  # a tagger reads tokens
    assert input_units(TINY.with_changes(task="transduce", source_units="characters")) == "characters"


@pytest.mark.thorough
def test_training_reports_its_progress_by_stage(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tA\nb\tB\n\n" * 4)
    seen: list[tuple[str, int, int]] = []
    settings = TINY.with_changes(train=tmp_path / "train.tsv", batch_size=2, epochs=1.5, warm_start_epochs=0.5)
    metrics = train_run(settings, tmp_path / "run", on_progress=lambda stage, p: seen.append((stage, p.step, p.steps)))
    assert seen == [("warm start", 1, 1), ("training", 1, 3), ("training", 2, 3), ("training", 3, 3)]
    assert metrics["warm start"]["steps"] == 1 and metrics["training"]["steps"] == 3


# -------------------------------------------------------------------------------------- costs of labels


def test_costs_of_labels_are_read() -> None:
    assert parse_label_costs("") == parse_label_costs(" , ") == {}
    assert parse_label_costs("O=2, B-PER = 0.5,a=b=1e3") == {"O": 2.0, "B-PER": 0.5, "a=b": 1000.0}


@pytest.mark.parametrize("text", ["O", "O=", "=2", "O=two", "O=0", "O=-1", "O=nan", "O=inf"])
def test_costs_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not the cost of a label; write LABEL=NUMBER, such as O=2"):
        parse_label_costs(text)


def test_a_label_with_two_costs_is_refused() -> None:
    with pytest.raises(InputError, match="'O' has two costs"):
        parse_label_costs("O=2,X=1, O=2")


def test_a_cost_from_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("objective: hinge\nwrong_label_costs: O=two\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: wrong_label_costs: 'O=two' is not the cost of a label"):
        load_settings(path, {})
    path.write_text("objective: beam-crf\nwrong_label_costs: O=2\n")
    with pytest.raises(
        InputError, match=r"s\.yaml:2: wrong_label_costs: beam-crf does not use it; leave it out, or give direct"
    ):
        load_settings(path, {})
    assert load_settings(path, {"objective": "hinge"}).objective.wrong_label_costs == "O=2"


def test_a_cost_of_an_unknown_label_names_the_nearest() -> None:
    settings = TINY.with_changes(objective="hinge", wrong_label_costs="O=2,B-PEER=3")
    with pytest.raises(InputError, match="the training data have no label 'B-PEER'; did you mean 'B-PER'"):
        settings.objective.build(context_of(Vocabulary(("O", "B-PER"))))


def test_a_cost_weighs_what_is_wrongly_chosen() -> None:
    """With every score 0, all candidates are tied and the direct loss is linear in the cost of each label."""
    run = tiny_run(TINY.with_changes(beam_size=1))
    for parameter in run.model.parameters():
        parameter.data.zero_()
    batch = collate(run.codec.encode([Example(("a",), ("A",))]))

    def loss(costs: str) -> float:
        settings = TINY.with_changes(
            beam_size=1, objective="relaxed-beam", cross_entropy_weight=0.0, wrong_label_costs=costs
        )
        return settings.objective.build(context_of(run.codec.target_vocabulary))(
            run.model, batch, {"alpha": 1.0}
        ).item()

    # Gold is A, and half of the mass is on B.
    assert loss("") == pytest.approx(0.5)
    assert loss("B=4") == pytest.approx(2.0)
    assert loss("A=4") == pytest.approx(0.5)
    assert loss("A=7,B=0.5") == pytest.approx(0.25)


# -------------------------------------------------------------------------------------- objectives without a search


def batch_of(run: OutputRun, examples: list[Example] = WORDS) -> Batch:
    return collate(run.codec.encode(examples))


def test_noise_is_the_frequency_of_gold_tokens_plus_one() -> None:
    run = tiny_run(TINY.with_changes(objective="noise-contrastive", task="transduce"))
    encoded = run.codec.encode(WORDS)
    count = dict.fromkeys(run.codec.target_vocabulary.tokens, 1) | {"A": 3, "B": 3, "</s>": 4}
    wanted = torch.tensor([count[token] / 10 for token in run.codec.target_vocabulary.tokens])
    torch.testing.assert_close(context_of(run.codec.target_vocabulary, encoded=encoded).log_noise_V().exp(), wanted)
    torch.testing.assert_close(context_of(run.codec.target_vocabulary).log_noise_V().exp(), torch.full((3,), 1 / 3))


def test_noise_contrastive_estimation_is_built_with_that_noise() -> None:
    """With every score 0, the mean of the loss over draws is known."""
    run = tiny_run(TINY.with_changes(objective="noise-contrastive", noise_tokens=3, task="transduce"))
    for parameter in run.model.parameters():
        parameter.data.zero_()
    encoded = run.codec.encode(WORDS)
    objective = run.settings.objective.build(context_of(run.codec.target_vocabulary, encoded=encoded))
    losses = torch.stack([objective(run.model, batch_of(run), {}) for _ in range(400)])
    odds = [
        3 * noise for noise in context_of(run.codec.target_vocabulary, encoded=encoded).log_noise_V().exp().tolist()
    ]
    gold = [token for example in encoded for token in example.target_ids]
    expected = sum(math.log1p(odds[token]) for token in gold) / len(gold)
    expected += sum(odd * math.log1p(1 / odd) for odd in odds)
    error = losses.std().item() / math.sqrt(len(losses))
    assert losses.mean().item() == pytest.approx(expected, abs=4 * error) and error < 0.02


def test_objectives_of_single_tokens_take_any_linear_head() -> None:
    """At gamma = 1, by hand from the logits; a chain's head is the identity."""
    for model in ("lstm", "chain"):
        run = tiny_run(TINY.with_changes(model=model))
        batch = batch_of(run)
        logits_BTV = run.model.head(run.model.teacher_forced(run.model.encode(batch), batch.targets_BT))
        counted = batch.targets_BT >= 0
        gold = logits_BTV.gather(-1, batch.targets_BT.clamp(min=0)[..., None])[..., 0][counted].mean()
        log_z = logits_BTV.logsumexp(-1)[counted]
        for objective, expected in (
            ("unnormalized-likelihood", -gold + 0.3 * log_z.square().mean()),
            ("sampled-self-normalized", log_z.mean() - gold + 0.3 * log_z.square().mean()),
        ):
            settings = run.settings.with_changes(objective=objective, log_partition_weight=0.3)
            loss = settings.objective.build(context_of(run.codec.target_vocabulary))(run.model, batch, {})
            torch.testing.assert_close(loss, expected)


def test_distillation_needs_a_model_to_copy_and_leaves_it_alone() -> None:
    run = tiny_run(TINY.with_changes(objective="distillation"))
    with pytest.raises(InputError, match="distillation needs a trained model to start from"):
        run.settings.objective.build(context_of(run.codec.target_vocabulary))
    run.model.train()
    objective = run.settings.objective.build(context_of(run.codec.target_vocabulary, start=run.model))
    assert run.model.training and all(parameter.requires_grad for parameter in run.model.parameters())
    before = copy.deepcopy(run.model).eval()
    with torch.no_grad():
        for parameter in run.model.eval().parameters():
            parameter.mul_(3)
    # The teacher is what the model was, not what it has become.
    expected = distillation_objective(before, k=TINY.beam_size)(run.model, batch_of(run), {})
    assert objective(run.model, batch_of(run), {}).item() == expected.item() > 0
    assert expected != distillation_objective(run.model, k=TINY.beam_size)(run.model, batch_of(run), {})


# -------------------------------------------------------------------------------------- models and settings


def test_the_model_is_chosen_by_its_name() -> None:
    transformer = TINY.with_changes(
        task="transduce", model="transformer", num_heads=2, num_layers=3, feedforward_size=8
    )
    model = tiny_run(transformer).model
    assert isinstance(model, Transformer) and len(model.decoder) == 3 and model.embedding_VD.shape[1] == 4
    assert isinstance(tiny_run(transformer.with_changes(model="lstm")).model, EncoderDecoder)
    require_data(transformer.with_changes(train=Path("x"), objective="scheduled-sampling", feeding_passes="two-pass"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "tag"}, "model.name must be one of .*, got 'transformer'"),
        ({"model": "chain"}, "model must be one of .*, got 'chain'"),
        (
            {"objective": "crf"},
            "objective: crf needs the scores of a chain, which the model transformer does not have",
        ),
        (
            {"objective": "unnormalized-likelihood", "log_partition_weight": 0.0},
            "log_partition_weight must be greater than 0",
        ),
        ({"objective": "noise-contrastive", "noise_tokens": 0}, "noise_tokens must be at least 1"),
        ({"noise_tokens": 1}, "noise_tokens: has no effect here; leave it out, or use objective noise-contrastive"),
        ({"num_heads": 3}, "hidden_size: 4 cannot be divided among 3 heads; use a multiple of 3"),
        ({"feeding_passes": "two-pass"}, "feeding_passes: has no effect here"),
        ({"model": "lstm", "feeding_passes": "two-pass", "objective": "scheduled-sampling"}, "feeding_passes: only"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"subword_vocabulary": 0}, "subword_vocabulary must be at least 1"),
    ],
)
def test_settings_that_do_not_go_together(change: dict[str, object], said: str) -> None:
    settings = TINY.with_changes(train=Path("x"), task="transduce", model="transformer", num_heads=2)
    require_data(settings)
    with pytest.raises(InputError, match=said):
        require_data(settings.with_changes(**change))


def test_two_passes_are_another_objective() -> None:
    settings = TINY.with_changes(task="transduce", model="transformer", num_heads=2, objective="scheduled-sampling")
    run = tiny_run(settings)
    batch = collate(run.codec.encode([Example(("a", "b"), ("A", "B", "A", "B", "A"))]))
    values = {"gold_probability": 0.0, "alpha": 1.0}
    for feeding in ("greedy", "soft-greedy"):
        one, two = (
            settings.with_changes(feeding=feeding, feeding_passes=passes).objective.build()
            for passes in ("step-by-step", "two-pass")
        )
        torch.manual_seed(0)
        run.model.eval()
        assert one(run.model, batch, values).item() != two(run.model, batch, values).item()


# -------------------------------------------------------------------------------------- subwords


def test_a_run_of_subwords_reads_and_writes_text(tmp_path: Path) -> None:
    run = text_run()
    assert run.codec.source.subwords != run.codec.target.subwords  # each side its own
    (example, *_), (encoded, *_) = run.codec.split(TEXTS), run.codec.encode(TEXTS)
    assert join_pieces(example.source) == "Das Haus." and join_pieces(example.target) == "The house."
    assert run.codec.target_vocabulary.decode(encoded.target_ids) == [*example.target, "</s>"]
    assert (
        run.codec.source_text(TEXTS[1]) == "Das  Haus rennt" and run.codec.target_text(example.target) == "The house."
    )
    # Every subword can be written, whether or not the training data are split into it.
    assert set(run.codec.target_vocabulary.tokens) == {"</s>", *run.codec.target.subwords.pieces}
    save_run(run, tmp_path)
    back = load_run(tmp_path)
    assert back.codec == run.codec
    decoder = choose_decoder(run.settings)
    assert predict(back, TEXTS, decoder, n_best=2) == predict(
        replace(run, model=run.model.eval()), TEXTS, decoder, n_best=2
    )
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert {"source/tokenizer.json", "target/tokenizer.json"} <= set(manifest["files"])


def test_one_side_may_be_made_of_subwords(tmp_path: Path) -> None:
    examples = [Example(("h", "i"), ("hi there",)), Example(("y", "o"), ("yo there",))]
    run = new_run(examples, SUBWORDS.with_changes(source_units="characters"))
    assert run.codec.source.subwords is None and run.codec.source.vocabulary.tokens == ("h", "i", "o", "y")
    save_run(run, tmp_path)
    assert load_run(tmp_path).codec == run.codec
    assert file_units("subwords") == "text" == input_units(SUBWORDS)
    # A tagger reads words, whatever the units say.
    assert new_run(WORDS, SUBWORDS.with_changes(task="tag")).codec.source.subwords is None


def test_rare_and_new_subwords_are_unknown_even_where_all_were_counted() -> None:
    run = text_run(SUBWORDS.with_changes(minimum_count=1))
    (encoded,) = run.codec.encode([Example(("β",), ())])
    assert run.codec.source.vocabulary.decode(encoded.source_ids)[-1] == "<unk>"
    with pytest.raises(InputError, match=r"x\.tsv:7: the target is blank"):
        run.codec.encode([Example(("Das",), ("\u00a0",), "x.tsv", 7)])


def test_outputs_of_subwords_are_measured_as_texts() -> None:
    pytest.importorskip("sacrebleu")
    told = {"Das Haus.": "The house.", "Das  Haus rennt": "The house runs on no"}
    run = text_run()

    def parrot(run: OutputRun, examples: list[Example], decoder: object) -> list[list[Prediction]]:
        wanted = [Example(example.source, (told[example.source[0]],)) for example in examples]
        return [[Prediction(example.target, 0.0)] for example in run.codec.split(wanted)]

    examples = [
        Example(("Das Haus.",), ("The house.",)),
        Example(("Das Haus.",), ("A  house.",)),
        Example(("Das  Haus rennt",), ("The house runs on us",)),
    ]
    found = measure_outputs(run, examples, decode(run, examples, choose_decoder(run.settings), search=parrot))
    assert set(found) == {"token error", "length ratio", "BLEU"}
    assert found["token error"].value == pytest.approx(1 / 7)
    # The full stop is a word for BLEU. Of 3 + 5 words 7 are right, and so on to fours; the lengths are right.
    assert found["BLEU"].value == pytest.approx((7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** 0.25)
    assert signatures(run, examples)["BLEU"].startswith("nrefs:var|case:mixed|eff:no|tok:13a")
    assert signatures(run, TEXTS)["BLEU"].startswith("nrefs:1|")  # the same reference twice is one


def test_references_of_subwords_are_compared_in_the_form_of_the_outputs() -> None:
    decomposed = [Example(("Zoe\u0308 rennt",), ("Zoe\u0308  runs",))] * 2
    run = new_run(decomposed, SUBWORDS.with_changes(subword_vocabulary=30))
    right = run.codec.split(decomposed)[0].target

    def search(run: OutputRun, examples: list[Example], decoder: object) -> list[list[Prediction]]:
        return [[Prediction(right, 0.0)] for _ in examples]

    outputs = decode(run, decomposed, choose_decoder(run.settings), search=search)
    assert measure_outputs(run, decomposed, outputs)["token error"].value == 0


def test_bleu_is_for_words_and_not_for_characters() -> None:
    pytest.importorskip("sacrebleu")
    words = tiny_run(TINY.with_changes(task="transduce"))
    assert "tok:none" in signatures(words, WORDS)["BLEU"] and "BLEU" in measure(words, WORDS, "greedy")
    characters = tiny_run(TINY.with_changes(task="transduce", target_units="characters"))
    assert signatures(characters, WORDS) == signatures(tiny_run(TINY), WORDS) == {}
    assert "BLEU" not in measure(characters, WORDS, "greedy")


def test_without_sacrebleu_there_is_no_bleu(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(TINY.with_changes(task="transduce"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "BLEU" not in measure(run, WORDS, "greedy") and signatures(run, WORDS) == {}
    said = missing_bleu(run)
    assert said is not None and "sacrebleu" in said and "pip install 'seqwise[translation]'" in said
    assert missing_bleu(tiny_run(TINY)) is None  # a tagger has no BLEU
    assert missing_bleu(tiny_run(TINY.with_changes(task="transduce", target_units="characters"))) is None
    monkeypatch.undo()
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed, with which BLEU is measured")
    assert missing_bleu(run) is None
    assert decisive(["token error", "length ratio"], subwords=True) == ("token error", -1)


# -------------------------------------------------------------------------------------- unknown labels


STRANGE = [Example(("a", "b"), ("A", "Z"), "dev.conll", 5), Example(("b", "a"), ("Q", "Z"), "dev.conll", 8)]


def test_labels_that_were_never_seen_count_as_wrong() -> None:
    run = tiny_run(TINY)
    assert unknown_targets(run, WORDS) is None and known_targets(run, WORDS) == WORDS
    assert unknown_targets(run, [WORDS[0], STRANGE[0]]) == (
        "1 of 4 labels was never seen in training and counts as wrong; the first is dev.conll:6: 'Z'"
    )
    assert unknown_targets(run, STRANGE) == (
        "3 of 4 labels were never seen in training and count as wrong; the first is dev.conll:6: 'Z'"
    )
    with_one = measure_decoders(run, [*WORDS, STRANGE[0]])
    without = measure_decoders(run, WORDS)
    assert (
        with_one["mean log Z"] == without["mean log Z"]
        and with_one["variance of log Z"] == without["variance of log Z"]
    )
    for name, values in measure(run, [STRANGE[1]], "beam").items():
        assert values.value == 0, name
    nothing_known = measure_decoders(run, STRANGE)
    assert nothing_known["mean log Z"] is None and nothing_known["variance of log Z"] is None


def test_an_unknown_label_behind_a_range_of_words_is_named_with_its_own_line(tmp_path: Path) -> None:
    rows = ["# text = zum Haus", "1-2\tzum\t_", "1\tzu\tADP", "2\tdem\tDET", "2.1\tnichts\t_", "3\tHaus\tX", ""]
    file = tmp_path / "dev.conllu"
    file.write_text("".join("\t".join([row, *"1234567"]) + "\n" if "\t" in row else f"{row}\n" for row in rows))
    examples = read_columns(file, token_column=1, label_column=2)
    settings = TINY.with_changes(encoder="bidirectional", objective="cross-entropy")
    known = [Example(("zu", "dem"), ("ADP", "DET"), "x.tsv", 1)]
    run = new_run(known, settings)
    assert f"the first is {file}:6: 'X'" in str(unknown_targets(run, examples))


def test_targets_that_cannot_be_written_are_named() -> None:
    run = tiny_run(TINY.with_changes(task="transduce"))
    said = unknown_targets(run, [Example(("a",), ("A", "Z", "Z"), "dev.tsv", 5)])
    assert said and said.startswith("2 of 3 target tokens were never") and said.endswith("dev.tsv:5: 'Z'")
    said = unknown_targets(text_run(), [*TEXTS, Example(("Das",), ("Thé hoÛse",), "dev.tsv", 9)])
    assert said and said.startswith("2 of ") and "target characters were" in said and said.endswith("dev.tsv:9: 'é'")


# -------------------------------------------------------------------------------------- measures and advice


@pytest.mark.parametrize(
    ("labels", "entities"),
    [
        ([("O", "B-PER", "I-PER")], True),
        ([("O", "I-PER"), ("S-X", "E-X")], True),
        ([("O", "O")], False),
        ([("O", "S-X", "E-X")], False),
        ([("B-PER", "NOUN")], False),
        ([("BAD", "I-PER")], False),
        ([("B", "I")], False),
    ],
)
def test_labels_that_look_like_entities_are_measured_as_such(labels: list[tuple[str, ...]], entities: bool) -> None:
    found = tagging_measures([("O",) * len(row) for row in labels], labels)
    assert ("entity F1" in found) == entities
    assert decisive(found) == (("entity F1" if entities else "accuracy"), 1)
    assert tagging_measures(labels, labels).get("entity F1", found["accuracy"]).value == (
        1 if entities else found["accuracy"].value
    )


def test_entity_f1_counts_all_entities_alike_and_the_macro_average_all_types() -> None:
    # Nine persons found of ten, and the one place missed: 2 * 9 / (9 + 11) against the mean of 18 / 19 and 0.
    gold = [("B-PER",)] * 10 + [("B-LOC",)]
    predicted = [("B-PER",)] * 9 + [("O",)] * 2
    found = tagging_measures(predicted, gold)
    assert list(found) == ["sequence accuracy", "accuracy", "entity F1", "macro-averaged entity F1"]
    assert found["entity F1"].value == pytest.approx(18 / 20)
    assert found["macro-averaged entity F1"].value == pytest.approx(18 / 19 / 2)
    assert decisive(found) == ("entity F1", 1)


def test_bleu_decides_for_subwords_only() -> None:
    titles = ["word error", "token error", "length ratio", "BLEU"]
    assert decisive(titles) == ("word error", -1) and decisive(titles, subwords=True) == ("BLEU", 1)


Rows = dict[str, dict[str, Sums]]


def decoders(**right: float) -> Rows:
    """Accuracy of decoders on a hundred examples."""
    return {
        name.replace("_", "-"): {"accuracy": Counts([1.0] * round(100 * value) + [0.0] * round(100 - 100 * value))}
        for name, value in right.items()
    }


def advice(rows: Rows, *, title: str = "accuracy", sign: int = 1, **options: object) -> str:
    given = {"settings": TINY, "usual": "beam", "mean_log_partition": 6.71, "left_to_right": True} | options
    return advise(rows, title, sign, **given)


def test_advice_recommends_what_is_surely_better() -> None:
    said = advice(decoders(greedy=0.4, beam=0.5, interpolated_beam=0.6, raw_beam=0.72))
    gain = r"raw-beam is better than beam by 22\.0 points \[1\d\.0, \d\d\.0\]"
    assert re.match(gain + r" \(accuracy, development data\): ", said)
    assert "later tokens" in said and said.endswith("; predict with --decoder raw-beam")
    assert "later tokens" in advice(decoders(beam=0.5, interpolated_beam=0.8, raw_beam=0.72))
    # No such evidence in a search without one, where raw scores are what is usual, or where the model has seen all.
    said = advice(decoders(beam=0.5, raw_beam=0.72), left_to_right=False)
    assert "later tokens" not in said and said.endswith("; predict with --decoder raw-beam")
    said = advice(decoders(greedy=0.8, beam=0.5, raw_beam=0.4))
    assert "greedy is better than beam by 30.0 points" in said and "later tokens" not in said
    said = advice(decoders(beam=0.8, raw_beam=0.4), usual="raw-beam")
    assert said.startswith("beam is better than raw-beam by 40.0 points [")
    assert said.endswith("] (accuracy, development data); predict with --decoder beam")


def test_no_decoder_is_called_best_where_all_do_equally_well() -> None:
    said = advice(decoders(greedy=0.0, beam=0.0, raw_beam=0.0))
    assert said.startswith("all decoders are") and said.endswith("(accuracy); predict uses beam")


def test_advice_does_not_follow_chance() -> None:
    rows = decoders(beam=0.5, raw_beam=0.5)
    rows["raw-beam"] = {"accuracy": Counts([1, 0] * 49 + [1, 1])}
    rows["beam"] = {"accuracy": Counts([0, 1] * 49 + [1, 0])}
    assert "predict keeps using beam" in advice(rows)
    assert advice(decoders(greedy=0.4, beam=0.5, raw_beam=0.5)) == (
        "beam, which predict uses by default, is best here (accuracy); raw-beam is as good"
    )
    tied = decoders(greedy=0.5, beam=0.5, raw_beam=0.5)
    assert best_of(tied, "accuracy", 1, usual="raw-beam") == "raw-beam"
    assert best_of(tied, "accuracy", 1, usual="soft-beam") == "greedy"
    for count, sure in ((9, False), (10, True)):  # of one example the interval is a point, whatever the difference
        few = {name: {"accuracy": Counts([right] * count)} for name, right in (("beam", 0), ("raw-beam", 1))}
        assert ("predict with --decoder raw-beam" in advice(few)) == sure
    errors = decoders(greedy=0.2, beam=0.5)
    assert best_of(errors, "accuracy", -1, usual="beam") == "greedy"


def lengths(raw: float, *, wrong: float = 0.9) -> Rows:
    """Word errors and length ratios of a beam, and of a raw beam that writes more or less."""
    return {
        name: {"word error": Counts([1.0] * round(100 * error) + [0.0] * round(100 - 100 * error)),
               "length ratio": Counts([ratio] * 100)}
        for name, error, ratio in (("beam", 0.3, 1.0), ("raw-beam", wrong, raw))
    }  # fmt: skip


def test_advice_warns_of_raw_scores_that_collapse() -> None:
    def said(rows: Rows, **options: object) -> str:
        return advice(rows, title="word error", sign=-1, **options)

    assert said(lengths(1.5)).startswith(
        "raw-beam collapses here (outputs 1.5 times as long as the beam's: each token adds log Z = 6.7 nats)"
        ": do not use it; --objective self-normalized prevents it. beam, which predict uses"
    )
    assert "outputs 0.5 times as long as the beam's: each token subtracts log Z = 3.0 nats)" in said(
        lengths(0.5), mean_log_partition=-3.0
    )
    # log Z of the wrong sign, or none, explains nothing.
    assert "outputs 1.5 times as long as the beam's):" in said(lengths(1.5), mean_log_partition=-3.0)
    assert "outputs 1.5 times as long as the beam's):" in said(lengths(1.5), mean_log_partition=None)
    for harmless in (lengths(1.1), lengths(0.9), lengths(1.5, wrong=0.3), lengths(1.5, wrong=0.1)):
        assert "collapses" not in said(harmless)
    normalized = TINY.with_changes(objective="self-normalized")
    assert "a larger --log-partition-weight" in said(lengths(1.5), settings=normalized)
    trained_global = TINY.with_changes(objective="relaxed-beam", score="global")
    cured = said(lengths(1.5), settings=trained_global, usual="raw-beam")
    assert "--warm-start self-normalized helps. beam is better than raw-beam by 60.0 points" in cured
    distilled = TINY.with_changes(objective="distillation")  # of raw scores, whatever the score
    assert "--warm-start self-normalized helps" in said(lengths(1.5), settings=distilled, usual="raw-beam")


def test_the_usual_decoder_and_the_best(tmp_path: Path) -> None:
    assert usual_decoder(TINY) == "beam"
    assert usual_decoder(TINY.with_changes(score="global", objective="beam-crf")) == "raw-beam"
    metrics = tmp_path / "metrics.json"
    with pytest.raises(InputError, match=r"metrics\.json: the file is missing"):
        best_decoder(tmp_path)
    for text in ('{"train_examples": 3}', '{"dev": 3}'):
        metrics.write_text(text)
        with pytest.raises(InputError, match=r"metrics\.json: .*name a decoder, or train with --dev"):
            best_decoder(tmp_path)
    for text in ("{", '{"dev": {"best decoder": "be', "[]", "\xff", ""):  # which does not say how the run was trained
        metrics.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=r"metrics\.json") as refused:
            best_decoder(tmp_path)
        assert "development data" not in str(refused.value)
    metrics.write_text('{"dev": {"best decoder": "bean"}}')
    with pytest.raises(InputError, match=r"metrics\.json: the best decoder 'bean' is unknown; name one of greedy, "):
        best_decoder(tmp_path)
    metrics.write_text('{"dev": {"best decoder": "raw-beam"}}')
    assert best_decoder(tmp_path) == "raw-beam"


# -------------------------------------------------------------------------------------- one writer a folder


HOLDER = """
import sys, time
from pathlib import Path
from typing import Any
from seqwise.training.lock import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A folder that another process writes to, and that process."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield tmp_path / "run", holder
        holder.kill()


@pytest.mark.thorough
def test_a_folder_has_one_writer_and_the_lock_of_a_dead_one_is_ignored(
    held: tuple[Path, subprocess.Popen[str]], tmp_path: Path, seqwise: Command
) -> None:
    folder, holder = held
    data = tmp_path / "data"
    data.write_text("a\tA\nb\tB\n\n" * 4)
    train = ("train", "--train", data, "--epochs=1", "--hidden-size=4", "--objective=cross-entropy")
    commands = [train, ("masked-model", "train", data)]
    for command in commands:
        said = seqwise(*command, "--output", folder).complaint
        assert (
            said == f"{folder}: process {holder.pid} is writing to this folder; wait for it, or give another --output"
        )
    holder.kill()
    holder.wait()
    assert list(folder.iterdir()) == [folder / LOCK]  # which its dead holder has left
    assert seqwise(*train, "--output", folder).code == 0
    assert not (folder / LOCK).exists()


def test_sampling_into_a_folder_that_is_written_to_is_refused(tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "data").write_text("a b\nb a\n" * 4)
    sizes = ["--hidden-size=8", "--feedforward-size=8", "--embedding-size=4", "--model=lstm", "--epochs=1"]
    assert seqwise("masked-model", "train", tmp_path / "data", *sizes, "--output", tmp_path / "run").code == 0
    with sole_writer(tmp_path / "samples"):
        ended = seqwise("sample", tmp_path / "run", "--sweeps=1", "--output", tmp_path / "samples")
    assert ended.code == 2 and f"process {os.getpid()} is writing to this folder" in ended.err
    assert seqwise("sample", tmp_path / "run", "--sweeps=1", "--output", tmp_path / "samples").code == 0


@pytest.mark.parametrize("score", ["local", "global"])
def test_predict_takes_texts_and_the_name_of_a_decoder(score: Any) -> None:
    run = tiny_run(TINY.with_changes(score=score))
    examples = [Example(("a", "b"), ()), Example(("b", "a", "a"), ())]
    texts = [" ".join(example.source) for example in examples]
    for name in (None, "greedy", "raw-beam"):
        assert predict(run, texts, name) == predict(run, examples, choose_decoder(run.settings, name))
    with pytest.raises(InputError, match="no decoder is called 'bean'"):
        predict(run, texts, "bean")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"one text where a list of texts was expected; write predict\(run, \[text\]\)"
    ):
        predict(run, "a b")
    with pytest.raises(InputError, match=r"input 2 is a list, and a text or an Example was expected; .* spaces"):
        predict(run, ["a b", ["a", "b"]])  # type: ignore[list-item]
    with pytest.raises(
        InputError, match=r"'runs/tagger' is the name of a run; load it first: load_run\('runs/tagger'\)"
    ):
        predict("runs/tagger", texts)  # type: ignore[arg-type]


def test_a_tagger_with_an_end_token_is_refused_by_its_name() -> None:
    codec = build_codec(WORDS, TINY.with_changes(task="transduce"))
    with pytest.raises(InputError, match="the target vocabulary of a tagger has the end token '</s>'"):
        build_model(TINY, codec)


def test_paths_may_be_texts(tmp_path: Path) -> None:
    data = tmp_path / "train.conll"
    data.write_text("a A\nb B\n\na A\n\n" * 4)
    settings = TINY.with_changes(objective="cross-entropy", epochs=1.0, train=str(data), dev=str(data))
    assert (settings.train, settings.dev) == (data, data)
    train_run(settings, str(tmp_path / "run"))
    train_run(settings.with_changes(train=data), tmp_path / "run")  # the same run
    for folder in (tmp_path / "run", str(tmp_path / "run")):
        assert predict(load_run(folder), ["a b"])[0][0].tokens
        assert best_decoder(folder)
