"""Options of the Trainer as settings of a run, with every objective."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from command_line import Command
from run_folders import columns_file, json_lines
from seqwise.configuration import OneOf
from seqwise.data import EncodedExample, Example
from seqwise.errors import InputError
from seqwise.objectives.options import ObjectiveConfig
from seqwise.runs import masked_settings, new_run, save_run, train_run, train_settings
from seqwise.runs.masked_model_training import train_masked_model
from seqwise.runs.trainer_options import require_usable
from seqwise.runs.training import train_stage

SIZES: dict[str, Any] = {"hidden_size": 4, "num_heads": 1, "num_layers": 1, "feedforward_size": 4}
CHAIN: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "task": "tag", "model": "chain"}
OPTIONS: dict[str, dict[str, Any]] = {
    "weights, rates and parts": {"weight_decay": 0.5, "decay": "cosine", "gradient_accumulation_steps": 2},
    "bfloat16": {"bf16": True},
    "float16": {"fp16": True},
    "token batches": {"batch_tokens": 13},
    "label smoothing": {"label_smoothing": 0.3},
    "init": {"init": ...},
    "early stopping": {"evaluate_every": 1, "patience": 1},
}
OBJECTIVES = [*OneOf(ObjectiveConfig).members]


def tagged(count: int = 8) -> list[Example]:
    draw = random.Random(0)
    sources = [tuple(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(count)]
    return [Example(source, tuple(token.upper() for token in source)) for source in sources]


def refused(option: str, objective: str) -> bool:
    """Whether an objective lacks an option: nothing but cross-entropy smooths labels, and CPUs lack some types."""
    on_cpu = not torch.cuda.is_available()
    return {
        "label smoothing": objective != "cross-entropy",
        "bfloat16": on_cpu and objective == "crf",  # of an LSTM
        "float16": on_cpu,
    }.get(option, False)


def trained(folder: Path, objective: str, options: dict[str, Any]) -> list[dict[str, float]]:
    """The log of two steps or more; of models with all kinds of objectives."""
    kind = CHAIN if objective == "crf" else {**SIZES, "task": "transduce", "model": "transformer"}
    sizes = {} if "batch_tokens" in options else {"batch_size": 4}
    beam = {"beam_size": 2} if "beam_size" in OneOf(ObjectiveConfig).members[objective].model_fields else {}
    if "init" in options:
        before = train_settings(**kind, objective="cross-entropy", minimum_count=1)
        save_run(new_run(tagged(), before), folder / "before")
        kind, options = {}, {"init": folder / "before"}
    epochs = 1.0 * options.get("gradient_accumulation_steps", 1)  # two steps
    settings = train_settings(**kind, **sizes, **beam, **options, objective=objective, epochs=epochs)
    require_usable(settings, has_lstm=not settings.model.parallel)
    run = new_run(tagged(), settings)
    dev = tagged() if settings.evaluate_every else []
    train_stage(run, run.codec.encode(tagged()), settings, folder=folder, dev=dev)
    return json_lines(folder / "log.jsonl")


@pytest.mark.thorough
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_option_with_each_objective_is_trained_or_refused_in_one_line(objective: str, tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", objective, {})
    for option, settings in OPTIONS.items():
        try:
            log = trained(tmp_path / option, objective, settings)
        except InputError as error:
            assert refused(option, objective) and "\n" not in str(error), option
        else:
            assert not refused(option, objective), option
            assert len(log) >= 2 and all(math.isfinite(line["loss"]) for line in log), option
            assert option == "early stopping" or log != plain, option


@pytest.mark.parametrize("objective", ["cross-entropy", "beam-crf", "minimum-risk"])
def test_gradient_checkpointing_is_for_searches_with_gradients(objective: str) -> None:
    with pytest.raises(InputError, match=f"gradient_checkpointing: {objective} has no search with gradients"):
        train_settings(objective=objective, gradient_checkpointing=True)
    assert train_settings(objective="relaxed-beam", gradient_checkpointing=True).gradient_checkpointing
    assert train_settings(objective="beam-crf", direct_loss_weight=1.0, gradient_checkpointing=True)


def test_the_learning_rate_rises_in_a_fraction_of_the_steps_and_falls_by_name(tmp_path: Path) -> None:
    options = {"warmup": 0.5, "decay": "inverse_sqrt", "learning_rate": 0.01, "batch_size": 2, "epochs": 4.0}
    settings = train_settings(objective="cross-entropy", hidden_size=4, embedding_size=4, evaluate_every=0, **options)
    run = new_run(tagged(), settings)
    encoded = run.codec.encode(tagged())
    train_stage(run, encoded, settings, folder=tmp_path)
    peak, steps = settings.num_steps(encoded) // 2, range(settings.num_steps(encoded))
    rates = [line["learning_rate"] for line in json_lines(tmp_path / "log.jsonl")]
    assert rates == pytest.approx([0.01 * min(step / peak, (peak / max(step, 1)) ** 0.5) for step in steps])


def test_a_warm_up_leaves_the_last_step_a_learning_rate(tmp_path: Path) -> None:
    options = {"warmup": 0.9, "learning_rate": 0.01, "batch_size": 99, "epochs": 1.0, "evaluate_every": 0}
    settings = train_settings(objective="cross-entropy", hidden_size=4, embedding_size=4, **options)
    run = new_run(tagged(), settings)
    train_stage(run, run.codec.encode(tagged()), settings, folder=tmp_path)
    (line,) = json_lines(tmp_path / "log.jsonl")
    assert line["learning_rate"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes in these types")
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--bf16=yes", "bf16: without a GPU, an LSTM does not compute in bfloat16; leave it out"),
        ("--bf16", "bf16: without a GPU, an LSTM does not compute in bfloat16; leave it out"),
        ("--fp16=yes", "fp16: float16 needs a GPU, and there is none; leave it out"),
    ],
)
def test_a_type_that_the_machine_lacks_is_refused_and_leaves_nothing(
    flag: str, message: str, tmp_path: Path, seqwise: Command
) -> None:
    train, run = columns_file(tmp_path / "train", tagged()), tmp_path / "run"
    assert seqwise("train", "--train", train, flag, "--output", run).complaint.startswith(message)
    assert seqwise("masked-model", "train", flag, train, "--model=lstm", "--output", run).complaint.startswith(message)
    assert not run.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--weight-decay=-1"], "weight_decay must be at least 0"),
        (["--decay=square"], "decay must be one of linear, cosine, constant, inverse_sqrt"),
        (["--gradient-accumulation-steps=0"], "gradient_accumulation_steps must be at least 1"),
        (["--bf16=perhaps"], "bf16 must be true or false"),
        (["--bf16", "--fp16", "yes"], "fp16: bf16 is on already; give one of them"),
        (["--label-smoothing=1"], "label_smoothing must be at least 0 and below 1, got 1.0"),
        (["--batch-tokens=0"], "batch_tokens must be at least 1"),
        (["--batch-tokens=9", "--batch-size=2"], "batch_tokens: the size of a batch is given in examples already; "),
        (["--batch-size=none"], "batch_size: the size of a batch is missing; give batch-size or batch-tokens"),
        (["--report-to=wandb"], "report_to: wandb is not installed; pip install wandb"),
        (["--report-to=none,azure_ml"], "report_to: the Trainer has no integration 'none'"),
        (["--report-to=azure_ml"], "report_to: azureml-sdk is not installed; pip install azureml-sdk"),
        (["--report-to=wand"], "report_to: the Trainer has no integration 'wand'; did you mean 'wandb'?"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    flags: list[str], message: str, seqwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("wandb", "azureml"):
        monkeypatch.setattr(integration_utils, f"is_{package}_available", lambda: False)
    assert seqwise("train", "--train=x", "--output=y", *flags).complaint.startswith(message)
    if flags != ["--label-smoothing=1"]:
        assert seqwise("masked-model", "train", "x", "--output=y", *flags).complaint.startswith(message)


# ------------------------------------------------------------------------------------------------ reports


class Recorder(TrainerCallback):  # type: ignore[misc]
    """An integration that keeps what it is told."""

    lines: list[dict[str, Any]]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.lines.append({"step": state.global_step, **logs})


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(Recorder, "lines", lines, raising=False)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "recorder", Recorder)
    return lines


def test_an_integration_gets_losses_and_evaluations_and_changes_nothing(
    recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    train = columns_file(tmp_path / "train", tagged(16))
    sizes: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "batch_size": 4, "beam_size": 2, "epochs": 6.0}
    plain = train_settings(train=train, dev=train, evaluate_every=12, objective="cross-entropy", **sizes)
    for name, settings in (("plain", plain), ("told", plain.with_changes(report_to="recorder"))):
        train_run(settings, tmp_path / name)
    assert (tmp_path / "plain" / "log.jsonl").read_text() == (tmp_path / "told" / "log.jsonl").read_text()
    losses = [line["loss"] for line in json_lines(tmp_path / "told" / "log.jsonl")]
    told = {line["step"]: line["loss"] for line in recorded if "loss" in line}
    assert {*told} == {10, 20}
    assert told[20] == pytest.approx(sum(losses[10:20]) / 10, rel=1e-4)
    measured = json_lines(tmp_path / "told" / "measurements.jsonl")
    evaluated = [line for line in recorded if "eval_metric" in line]
    assert [line["step"] for line in evaluated] == [line["step"] for line in measured] == [12, 24]
    for line, expected in zip(evaluated, measured, strict=True):
        assert line["eval_accuracy"] == expected["accuracy"]
    # It says nothing about the weights, so that a run may go on without it.
    assert train_run(plain, tmp_path / "told")["training"]["steps"] == 24


def test_a_masked_model_reports_as_well(recorded: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "train").write_text("a b\nb a a\n" * 10)
    settings = masked_settings(**SIZES, epochs=2.0, batch_size=2, report_to="recorder")
    train_masked_model(tmp_path / "train", tmp_path / "run", settings)
    assert [line["step"] for line in recorded if "loss" in line] == [10, 20]


# ------------------------------------------------------------------------------------------- token batches


def test_steps_are_counted_in_batches_of_tokens(tmp_path: Path) -> None:
    encoded = [EncodedExample((0,) * length, (0,) * length) for length in (1, 1, 2, 2, 3, 9)]
    settings = train_settings(batch_tokens=4, epochs=3.0)
    assert settings.batch_size is None and sorted(map(len, settings.batches(encoded))) == [1, 1, 2, 2]
    assert settings.num_steps(encoded) == 12
    train = columns_file(tmp_path / "train", tagged(6))
    flat: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "epochs": 2.0, "objective": "cross-entropy"}
    metrics = train_run(train_settings(train=train, batch_tokens=4, **flat), tmp_path / "run")
    assert metrics["training"]["steps"] == 12  # each of them is longer than 2
    assert "batch_size: null" in (tmp_path / "run" / "configuration.yaml").read_text()
    # The same command goes on, and another size is refused.
    train_run(train_settings(train=train, batch_tokens=4, **flat), tmp_path / "run")
    for other in ({"batch_tokens": 8}, {"batch_size": 4}):
        with pytest.raises(InputError, match=r"started with another batch_(tokens|size)"):
            train_run(train_settings(train=train, **flat, **other), tmp_path / "run")
