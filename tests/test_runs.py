"""Runs as a library: settings, vocabularies, decoders by name, measures, and inputs."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqwise.data import Example
from seqwise.errors import InputError
from seqwise.runs import Run, Settings, build_model, build_vocabularies, choose_decoder, load_run, predict, save_run
from seqwise.runs.inputs import input_units, inputs_of, names_a_file
from seqwise.runs.measures import log_partitions_of, measure, measure_decoders, references_by_source
from seqwise.runs.run import require_enough_candidates
from seqwise.runs.settings import build_schedules, check, load_settings, warm_start_settings
from seqwise.runs.training import train_run
from seqwise.search.candidates import global_, local
from seqwise.search.selection import HardTopK, SoftTopK
from seqwise.training.configuration import dump_configuration

TINY = Settings(hidden_size=4, embedding_size=4, label_embedding_size=2, minimum_count=1, beam_size=2)
WORDS = [
    Example(("a", "b"), ("A", "B"), "x.tsv", 1),
    Example(("a",), ("A",), "x.tsv", 2),
    Example(("a",), ("B",), "x.tsv", 3),
]


def tiny_run(settings: Settings) -> Run:
    source, target = build_vocabularies(WORDS, settings)
    return Run(settings, build_model(settings, source, target).eval(), source, target)


@pytest.mark.parametrize("task", ["tag", "transduce"])
def test_a_saved_run_comes_back_as_it_was(tmp_path: Path, task: str) -> None:
    run = tiny_run(replace(TINY, task=task, train=Path("gone.tsv"), alpha="linear(1, 2)"))
    save_run(run, tmp_path)
    back = load_run(tmp_path)
    assert back.settings == run.settings
    assert (back.source_vocabulary, back.target_vocabulary) == (run.source_vocabulary, run.target_vocabulary)
    state = back.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in run.model.state_dict().items())
    assert not back.model.training
    decoder = choose_decoder(run.settings)
    assert predict(back, WORDS, decoder, n_best=2) == predict(run, WORDS, decoder, n_best=2)
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "config.json", "manifest.json", "model.safetensors", "source_vocabulary.json", "target_vocabulary.json",
    }  # fmt: skip


def test_a_run_saved_again_replaces_the_model_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_run(tiny_run(TINY), tmp_path)
    (tmp_path / "model.partial").mkdir()  # of a process that died
    other = tiny_run(replace(TINY, seed=1))
    save_run(other, tmp_path)
    assert load_run(tmp_path).settings.seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["configuration.yaml", "model"]


def test_models_depend_on_the_seed_alone_and_leave_the_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (tiny_run(replace(TINY, seed=seed)).model.state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_every_setting_survives_yaml_and_has_help(tmp_path: Path) -> None:
    settings = replace(TINY, learning_rate=1e-5, dev=Path("dev no.tsv"), warm_start="none", alpha="1e1", seed=7)
    (tmp_path / "s.yaml").write_text(dump_configuration(settings))
    assert load_settings(tmp_path / "s.yaml", {}) == settings
    assert all(field.metadata["help"] for field in fields(Settings))


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
        {"minimum_count": 0}, {"seed": 2**32}, {"batch_size": 0}, {"epochs": 0.0}, {"train": Path()},
    ],
)  # fmt: skip
def test_settings_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change)) if "train" not in change else "no training data"):
        check(replace(TINY, **{"train": Path("x"), **change}))


def test_the_ends_of_ranges_are_allowed() -> None:
    check(replace(TINY, train=Path("x"), gold_probability="linear(1, 0)", alpha="0.001", dropout=0.0, seed=2**32 - 1))
    check(replace(TINY, train=Path("x"), gold_probability="inverse_sigmoid(10)", warm_start_epochs=0.0))


def test_warm_starts() -> None:
    for objective in ("cross-entropy", "self-normalized"):
        assert warm_start_settings(replace(TINY, objective=objective)) is None
    assert warm_start_settings(replace(TINY, warm_start="none")) is None
    assert warm_start_settings(replace(TINY, warm_start_epochs=0.0)) is None
    warm = warm_start_settings(replace(TINY, warm_start="self-normalized", warm_start_epochs=2.5))
    assert warm is not None
    assert (warm.objective, warm.epochs, warm.learning_rate) == ("self-normalized", 2.5, 2e-3)


def test_schedules_go_over_the_whole_training() -> None:
    schedules = build_schedules(replace(TINY, alpha="linear(1, 3)"), total_steps=10)
    assert [schedules["alpha"](step) for step in (0, 5, 10)] == [1, 2, 3]
    assert [schedules["gold_probability"](step) for step in (0, 10)] == [1, 0]


def test_vocabularies_are_open_unless_they_are_told_otherwise() -> None:
    words, characters = replace(TINY, minimum_count=None), replace(TINY, minimum_count=None, task="transduce")
    characters = replace(characters, source_units="characters")
    assert build_vocabularies(WORDS, words)[0].tokens == ("<unk>", "a")  # b stands once
    assert build_vocabularies(WORDS, characters)[0].tokens == ("a", "b")
    assert build_vocabularies(WORDS, words)[1].end is None
    assert build_vocabularies(WORDS, characters)[1].end == "</s>"


def test_the_decoder_follows_the_training() -> None:
    trained_global = replace(TINY, objective="relaxed-beam", score="global", beam_size=7, alpha="exponential(1, 8)")
    assert choose_decoder(trained_global).score is global_ and choose_decoder(trained_global).selector == HardTopK(7)
    assert choose_decoder(replace(trained_global, score="local")).score is local
    # Without a search in training the score setting does not count.
    assert choose_decoder(replace(trained_global, objective="cross-entropy")).score is local
    soft = choose_decoder(trained_global, "soft-beam", beam_size=2)
    assert soft.selector == SoftTopK(2, 8.0) and soft.score is global_
    # A schedule with steps of its own ends where it says.
    assert choose_decoder(replace(TINY, alpha="linear(1, 5, 100)"), "soft-beam").selector == SoftTopK(2, 5.0)
    assert choose_decoder(trained_global, "greedy").selector == HardTopK(1)
    with pytest.raises(InputError, match="no decoder is called 'greed'; did you mean 'greedy'"):
        choose_decoder(TINY, "greed")


def test_a_beam_must_not_exceed_the_candidates() -> None:
    run = tiny_run(TINY)  # two labels
    require_enough_candidates(run, WORDS, 4)
    with pytest.raises(InputError, match=r"a beam of 5 is larger than the number of candidates, 2\^2 = 4"):
        require_enough_candidates(run, WORDS, 5)


def test_every_target_of_a_source_counts_as_right() -> None:
    asked, references = references_by_source(WORDS)
    assert [example.line for example in asked] == [1, 2]
    assert references == [[("A", "B")], [("A",), ("B",)]]
    counts = measure(tiny_run(replace(TINY, task="transduce")), WORDS, "greedy")
    assert set(counts) == {"word error", "token error", "length ratio"}
    assert len(np.asarray(counts["word error"].numerators_N)) == 2  # words, not pairs


def test_measures_of_all_decoders() -> None:
    run = tiny_run(TINY)
    encoded = run.encode(WORDS)
    found = measure_decoders(run, WORDS, encoded)
    assert set(found["decoders"]) == {"greedy", "beam", "raw-beam", "soft-beam"}
    log_partitions_N = log_partitions_of(run, encoded, batch_size=2)
    assert log_partitions_N.shape == (4,)  # a position each
    assert found["mean log Z"] == pytest.approx(log_partitions_N.mean().item())
    assert found["variance of log Z"] >= 0
    right = {name: values["labels right"] for name, values in found["decoders"].items()}
    assert right[found["best decoder"]] == max(right.values())


def test_outputs_do_not_depend_on_the_company() -> None:
    run = tiny_run(replace(TINY, task="transduce"))
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
    only = inputs_of("a b", units="characters")
    assert [(e.source, e.path) for e in only] == [(("a", " ", "b"), "")]
    assert not names_a_file("x" * 5000) and not names_a_file("the end.txt is near") and not names_a_file(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        inputs_of("away.tsv", units="words")
    assert input_units(replace(TINY, source_units="characters")) == "words"  # a tagger reads tokens
    assert input_units(replace(TINY, task="transduce", source_units="characters")) == "characters"


def test_training_tells_its_progress_by_stage(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tA\nb\tB\n\n" * 4)
    seen: list[tuple[str, int, int]] = []
    settings = replace(TINY, train=tmp_path / "train.tsv", batch_size=2, epochs=1.5, warm_start_epochs=0.5)
    metrics = train_run(settings, tmp_path / "run", on_progress=lambda stage, p: seen.append((stage, p.step, p.steps)))
    assert seen == [("warm start", 1, 1), ("training", 1, 3), ("training", 2, 3), ("training", 3, 3)]
    assert metrics["warm start"]["steps"] == 1 and metrics["training"]["steps"] == 3
