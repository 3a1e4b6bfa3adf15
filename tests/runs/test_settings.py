"""Settings of training: each alternative survives YAML and flags, and options without effect are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqwise import InputError
from seqwise.configuration import Config, OneOf, dump
from seqwise.configuration.flat import flags_of, plain_values
from seqwise.objectives import CRF, BeamCRF, CrossEntropy, Hinge, ObjectiveConfig, RelaxedBeam, ScheduledSampling
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.model_settings import LSTMTagger, TaggerModel, TransducerModel, TransformerTransducer
from seqwise.runs.settings import (
    SETTINGS,
    ScheduledSamplingStart,
    Settings,
    Tagging,
    Transducing,
    WarmStart,
    load_settings,
    train_settings,
)
from seqwise.runs.training import train_run
from seqwise.schedules import exponential


def one_of_each() -> dict[str, Settings]:
    """Settings with each objective, model and warm start that there is."""
    settings: dict[str, Settings] = {}
    for name, objective in OneOf(ObjectiveConfig).members.items():
        model = {"model": "chain"} if objective is CRF else {}
        settings[f"objective {name}"] = Tagging(objective=objective(), **model)
    for task, base in ((Tagging, TaggerModel), (Transducing, TransducerModel)):
        for name in OneOf(base).members:
            model = {"name": name, **({"path": "ada/some-1"} if name == "pretrained" else {})}
            settings[f"{task.__name__} {name}"] = task(objective=Hinge(), model=model)
    for name in OneOf(WarmStart).members:
        settings[f"warm start {name}"] = Tagging(objective=RelaxedBeam(score="global"), warm_start=name)
    return settings


EACH = one_of_each()


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_each_alternative_survives_yaml(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(dump(settings))
    assert load_settings(path, {}) == settings
    assert hash(load_settings(path, {})) == hash(settings)
    assert settings.with_changes() == settings and settings.with_changes(seed=3).seed == 3


def changed_values(config: Config) -> dict[str, Any]:
    """Another value of each option of an alternative, as text."""
    values = {}
    for name, info in type(config).model_fields.items():
        value = plain_values(config)[name]
        choices = getattr(info.annotation, "__args__", ())
        if name in ("name", "path") or name == "unit" or "loss_weight" in name or name == "wrong_label_costs":
            continue
        if isinstance(value, float) or (isinstance(value, str) and "(" in value):
            values[name] = "0.5"
        elif isinstance(value, bool):
            values[name] = "no" if value else "yes"
        elif isinstance(value, int) or value is None:
            values[name] = "8"
        elif str in {type(choice) for choice in choices}:
            values[name] = next(choice for choice in choices if choice != value)
    return values


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
@pytest.mark.parametrize("section", ["objective", "model", "warm_start"])
def test_nested_settings_and_flags_are_equal(settings: Settings, section: str, tmp_path: Path) -> None:
    chosen = getattr(settings, section)
    if chosen is None:
        return
    changes = changed_values(chosen)
    if chosen.name == "scheduled-sampling" or getattr(chosen, "direct_loss_weight", None) == 0:
        changes = {name: text for name, text in changes.items() if name not in ("feeding_passes", "cost")}
    if getattr(settings.model, "encoder", None) != "left-to-right":
        changes.pop("commit_delay", None)
    changes.pop("normalized_over", None)  # needs a language
    if "score" in changes and settings.trained_score == "global":
        changes["score"] = "global"
    if section == "model" and "subwords" not in changes.values():
        changes.pop("subword_vocabulary", None)
    nested = {**plain_values(settings), section: {"name": chosen.name, **changes}}
    if chosen.name == "pretrained":
        nested["model"]["path"] = chosen.path
    for name in ("beam_size", "alpha", "alpha_unit"):  # of decoding, by default as in training
        nested.pop(name)
    path = tmp_path / "s.yaml"
    path.write_text(yaml_of(nested))
    by_file = load_settings(path, {})
    assert getattr(by_file, section) != chosen or not changes
    flags = {name: str(value) for name, value in flat(settings).items()}
    fields = type(chosen).model_fields
    flags |= {(fields[name].json_schema_extra or {}).get("flag") or name: text for name, text in changes.items()}
    by_flags = load_settings(None, flags)
    assert getattr(by_flags, section) == getattr(by_file, section)


def yaml_of(values: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(values)


def flat(settings: Settings) -> dict[str, str]:
    """The flags that choose the same alternatives."""
    model = getattr(settings.model, "path", settings.model.name)
    start = {} if settings.warm_start is None else {"warm_start": settings.warm_start.name}
    score = {"score": "global"} if settings.trained_score == "global" and hasattr(settings.objective, "score") else {}
    return {"task": settings.task, "model": model, "objective": settings.objective.name, **start, **score}


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("token_column", {"task": "transduce", "token_column": 1}),
        ("label_column", {"task": "transduce", "label_column": 1}),
        ("encoder", {"task": "transduce", "encoder": "left-to-right"}),
        ("source_units", {"source_units": "characters"}),
        ("target_units", {"target_units": "subwords"}),
        ("subword_vocabulary", {"task": "transduce", "subword_vocabulary": 50}),
        ("subword_vocabulary", {"subword_vocabulary": 50}),
        ("num_layers", {"task": "transduce", "num_layers": 3}),
        ("num_heads", {"num_heads": 2}),
        ("feedforward_size", {"model": "chain", "feedforward_size": 3}),
        ("feeding", {"objective": "hinge", "feeding": "sample"}),
        ("feeding", {"feeding": "sample"}),
        ("gold_probability", {"objective": "cross-entropy", "gold_probability": "0.5"}),
        ("log_partition_weight", {"objective": "hinge", "log_partition_weight": 0.3}),
        ("log_partition_fraction", {"objective": "cross-entropy", "log_partition_fraction": 0.3}),
        ("log_partition_fraction", {"objective": "hinge", "warm_start": "none", "log_partition_fraction": 0.3}),
        ("decoder_learning_rate", {"decoder_learning_rate": 0.1}),
        ("decoder_learning_rate", {"model": "./my-bart", "decoder_learning_rate": 0.1}),
        ("encoder", {"task": "tag", "model": "./my-bert", "encoder": "left-to-right"}),
        ("minimum_count", {"task": "tag", "model": "./my-bert", "minimum_count": 1}),
        ("hidden_size", {"model": "./my-bart", "hidden_size": 8}),
        ("source_units", {"model": "./my-bart", "source_units": "words"}),
        ("noise_tokens", {"objective": "hinge", "noise_tokens": 3}),
        ("score", {"objective": "cross-entropy", "score": "global"}),
        ("commit_delay", {"objective": "soft-dense-beam", "encoder": "left-to-right", "commit_delay": 1}),
        ("cost", {"objective": "dense-beam", "cost": "edit-distance"}),
        ("wrong_label_costs", {"objective": "minimum-risk", "wrong_label_costs": "O=2"}),
        ("cross_entropy_weight", {"objective": "crf", "model": "chain", "cross_entropy_weight": 0.5}),
        ("cross_entropy_weight", {"objective": "distillation", "cross_entropy_weight": 0.5}),
        ("cross_entropy_weight", {"cross_entropy_weight": 0.5}),
        ("warm_start", {"objective": "cross-entropy", "warm_start": "self-normalized"}),
        ("warm_start_epochs", {"objective": "cross-entropy", "warm_start_epochs": 3.0}),
        ("warm_start_learning_rate", {"objective": "self-normalized", "warm_start_learning_rate": 0.1}),
        ("warm_start_learning_rate", {"warm_start_learning_rate": 0.1}),
        ("warm_start_epochs", {"objective": "hinge", "warm_start": "none", "warm_start_epochs": 3.0}),
        ("label_embedding_size", {"model": "chain", "label_embedding_size": 8}),
        ("label_embedding_size", {"task": "transduce", "label_embedding_size": 8}),
        ("embedding_size", {"task": "transduce", "model": "transformer", "embedding_size": 8}),
        ("embedding_size", {"task": "tag", "model": "./my-bert", "embedding_size": 8}),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(named: str, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{named}: .*; leave .*out, or (use|give) "):
        train_settings(**settings)
    path = tmp_path / "s.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    with pytest.raises(InputError, match=rf"s\.yaml:{len(settings)}: {named}: "):
        load_settings(path, {})


def test_a_list_in_place_of_a_task_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("train: a\ntask: [tag]\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: task must be one of tag, transduce, got a list"):
        load_settings(tmp_path / "s.yaml")


def test_options_beside_auto_are_those_of_the_objective_it_chooses(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("objective: {name: auto, label_smoothing: 0.1}\n")
    assert load_settings(path).objective == CrossEntropy(label_smoothing=0.1)
    path.write_text("encoder: left-to-right\nobjective:\n  name: auto\n  k: 3\n")
    assert load_settings(path).objective == BeamCRF(k=3, score="global")
    path.write_text("objective:\n  name: auto\n  k: 3\n")
    with pytest.raises(InputError, match=r"s\.yaml:3: unknown key 'objective\.k'"):
        load_settings(path)


@pytest.mark.parametrize(("value", "said"), [("x", "a finite number, got 'x'"), ("-1", "at least 0, got -1")])
@pytest.mark.parametrize("other", ["", "epochs: 2"])
def test_a_wrong_number_of_epochs_of_a_warm_start_is_refused_by_its_name(
    value: str, said: str, other: str, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(f"warm_start_epochs: {value}\n{other}\n")
    with pytest.raises(InputError, match=rf"s\.yaml:1: warm_start_epochs must be {said}"):
        load_settings(tmp_path / "s.yaml")


def test_no_epochs_of_a_warm_start_add_nothing() -> None:
    assert train_settings(warm_start_epochs=0) == train_settings()
    assert "epochs" not in train_settings(warm_start_epochs=0).model_fields_set


def test_an_option_of_another_task_is_refused_with_that_task() -> None:
    with pytest.raises(InputError, match=r"or use task transduce with model lstm, transformer$"):
        train_settings(train=Path("train.conll"), model="lstm", source_units="characters")
    with pytest.raises(InputError, match=r"or use objective beam-crf, [a-z, -]*$"):
        train_settings(train=Path("train.conll"), objective="crf", model="chain", score="global")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warm_start_epochs": 3.0},
        {"encoder": "left-to-right", "warm_start_learning_rate": 0.1, "gold_probability": "0.5", "feeding": "sample",
         "cross_entropy_weight": 0.5},
        {"token_column": 1, "label_column": 2, "embedding_size": 8, "label_embedding_size": 8},
        {"model": "chain", "embedding_size": 8},
        {"task": "transduce", "source_units": "subwords", "subword_vocabulary": 50, "embedding_size": 8},
        {"task": "tag", "model": "./my-bert", "hidden_size": 8, "label_embedding_size": 8, "dropout": 0.0,
         "token_column": 1, "decoder_learning_rate": 0.1},
        {"task": "transduce", "model": "transformer", "num_layers": 3, "num_heads": 2, "feedforward_size": 8},
        {"objective": "crf", "model": "chain", "warm_start_epochs": 1.0},
        {"objective": "cross-entropy", "warm_start": "none", "beam_size": 3, "alpha": "2", "alpha_unit": "gaps"},
        {"objective": "scheduled-sampling", "warm_start_learning_rate": 0.1, "gold_probability": "0.5"},
        {"objective": "hinge", "warm_start": "scheduled-sampling", "feeding": "sample"},
        {"objective": "hinge", "warm_start": "self-normalized", "log_partition_weight": 0.3},
        {"objective": "unnormalized-likelihood", "log_partition_fraction": 0.3},
        {"objective": "noise-contrastive", "noise_tokens": 3},
        {"objective": "dense-beam", "encoder": "left-to-right", "commit_delay": 0},
        {"encoder": "left-to-right", "commit_delay": 2},
        {"encoder": "left-to-right", "look_ahead": 2},
        {"encoder": "left-to-right", "look_ahead": 1, "objective": "crf", "model": "chain"},
        {"objective": "beam-crf", "direct_loss_weight": 0.5, "cost": "edit-distance", "alpha_unit": "gaps"},
        {"task": "transduce", "model": "transformer", "objective": "hinge", "warm_start": "scheduled-sampling",
         "feeding_passes": "two-pass"},
    ],
)  # fmt: skip
def test_options_with_effect_are_accepted(settings: dict[str, Any]) -> None:
    made = train_settings(train=Path("train.conll"), **settings)
    assert (
        load_settings(None, {name: str(value) for name, value in {"train": "train.conll", **settings}.items()}) == made
    )


def test_the_same_settings_in_python() -> None:
    made = train_settings(
        task="transduce", model="transformer", hidden_size=8, num_heads=2, objective="relaxed-beam", beam_size=3,
        alpha="exponential(1, 10)", score="global", warm_start="scheduled-sampling", feeding="sample", epochs=2,
    )  # fmt: skip
    assert made == Transducing(
        model=TransformerTransducer(hidden_size=8, num_heads=2),
        objective=RelaxedBeam(k=3, alpha=exponential(1, 10), score="global"),
        warm_start=ScheduledSamplingStart(feeding="sample", alpha=exponential(1, 10)),
        epochs=2.0,
    )
    assert (made.beam_size, made.alpha) == (3, exponential(1, 10))
    assert train_settings(objective=ScheduledSampling(feeding="sample"), model=LSTMTagger(hidden_size=4)) == Tagging(
        objective={"name": "scheduled-sampling", "feeding": "sample"}, model={"name": "lstm", "hidden_size": 4}
    )


def test_options_beside_an_objective_replace_its_own() -> None:
    made = train_settings(objective=RelaxedBeam(k=3, score="local", alpha="2"), score="global", beam_size=4, epochs=2)
    assert made == train_settings(objective="relaxed-beam", beam_size=4, score="global", alpha="2", epochs=2)
    with pytest.raises(InputError, match="gold_probability: has no effect here"):
        train_settings(objective=RelaxedBeam(), gold_probability="1")


def test_changes_keep_what_the_new_alternatives_have() -> None:
    settings = train_settings(objective="relaxed-beam", beam_size=3, score="global", alpha="2", cost="edit-distance")
    hinge = settings.with_changes(objective="hinge")
    assert hinge.objective == Hinge(k=3, score="global", alpha="2", cost="edit-distance")
    plain = hinge.with_changes(objective="cross-entropy")
    assert plain.warm_start is None and plain.beam_size == 3
    assert plain.with_changes(objective="hinge").objective == Hinge(k=3, alpha="2")
    with pytest.raises(InputError, match="noise_tokens: has no effect here"):
        settings.with_changes(noise_tokens=3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder": "bidirectional"}, "a bidirectional encoder reads the whole source, so there is no stream"),
        ({"task": "transduce"}, "only the labels of a tagger can be final before the end"),
    ],
)
def test_a_commit_delay_needs_a_stream(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"^commit_delay: {problem}; leave it out, or use --"):
        train_settings(objective="beam-crf", commit_delay=1, **settings)


def test_an_unknown_objective_may_have_been_the_one_that_chooses() -> None:
    with pytest.raises(InputError, match=r"^objective must be one of auto, .*, got 'autto'; did you mean 'auto'\?$"):
        train_settings(objective="autto")


def test_a_look_ahead_needs_a_left_to_right_encoder() -> None:
    for settings in ({}, {"model": "chain", "encoder": "bidirectional"}):
        with pytest.raises(InputError, match=r"^look_ahead: .* here; leave it out, or use --encoder left-to-right$"):
            train_settings(look_ahead=1, **settings)


def test_every_flag_has_help_and_says_who_reads_it() -> None:
    flags = {flag.name: flag for flag in flags_of(SETTINGS)}
    assert all(flag.text and flag.panel for flag in flags.values())
    assert flags["noise_tokens"].text.startswith("noise-contrastive: ")
    assert set(flags["objective"].choices) == {"auto", *OneOf(ObjectiveConfig).members}


def test_training_needs_data() -> None:
    with pytest.raises(InputError, match="there is no training data"):
        train_run(train_settings(), Path("missing") / "run")


def test_settings_of_a_masked_model_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "masked.yaml"
    path.write_text(dump(masked_settings(format="fasta")))
    said = (
        r"masked\.yaml: settings of a masked model, which seqwise train and tune do not take; use seqwise masked-model"
    )
    with pytest.raises(InputError, match=said):
        load_settings(path)
