"""The options of the Trainer, as settings of a run, with every named objective."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from seqwise.configuration import OneOf
from seqwise.data import Example
from seqwise.objectives.named import ObjectiveConfig
from seqwise.runs import new_run, train_settings
from seqwise.runs.training import train_stage
from seqwise.training import trainer

SIZES: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "beam_size": 2, "batch_size": 4, "epochs": 2.0}
OPTIONS: dict[str, Any] = {
    "weight_decay": 0.5,
    "decay": "cosine",
    "gradient_accumulation_steps": 2,
}


def tagged() -> list[Example]:
    draw = random.Random(0)
    sources = [tuple(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(8)]
    return [Example(source, tuple(token.upper() for token in source)) for source in sources]


@pytest.mark.parametrize("objective", OneOf(ObjectiveConfig).members)
def test_each_option_reaches_the_trainer_with_each_objective(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"model": "chain"} if objective == "crf" else {"label_embedding_size": 2}
    arguments: list[Any] = []
    make = trainer._arguments
    monkeypatch.setattr(trainer, "_arguments", lambda *given: arguments.append(make(*given)) or arguments[-1])
    plain = train_settings(objective=objective, **SIZES, **model)
    logs = []
    for settings in (plain, plain.with_changes(**OPTIONS)):
        run = new_run(tagged(), settings)
        folder = tmp_path / settings.decay
        assert train_stage(run, run.codec.encode(tagged()), settings, folder=folder).steps == 4
        logs.append((folder / "log.jsonl").read_text().splitlines())
    usual, chosen = arguments
    assert (usual.weight_decay, usual.lr_scheduler_type, usual.gradient_accumulation_steps) == (0.0, "linear", 1)
    assert (chosen.weight_decay, chosen.lr_scheduler_type, chosen.gradient_accumulation_steps) == (0.5, "cosine", 2)
    assert len(logs[0]) == len(logs[1]) and logs[0] != logs[1]


@pytest.mark.parametrize("objective", [name for name in OneOf(ObjectiveConfig).members if name != "crf"])
def test_a_transformer_is_trained_in_bfloat16(objective: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "feedforward_size": 8, "beam_size": 2, "batch_size": 4}
    plain = train_settings(task="transduce", model="transformer", objective=objective, epochs=1.0, **sizes)
    logs = set()
    for settings in (plain, plain.with_changes(bf16=True)):
        run = new_run(tagged(), settings)
        folder = tmp_path / str(settings.bf16)
        assert train_stage(run, run.codec.encode(tagged()), settings, folder=folder).steps == 2
        assert all(weight.dtype == torch.float32 for weight in run.model.parameters())
        logs.add((folder / "log.jsonl").read_text())
    assert len(logs) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes LSTMs in bfloat16")
def test_an_lstm_in_bfloat16_is_refused_without_a_gpu(tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "train").write_text("a\tA\n")
    ended = seqwise("train", "--train", tmp_path / "train", "--bf16=yes", "--output", tmp_path / "run")
    assert ended.complaint.startswith("bf16: without a GPU, an LSTM does not compute in bfloat16; leave it out")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--weight-decay=-1", "weight_decay must be at least 0, got '-1'"),
        ("--decay=square", "decay must be one of linear, cosine, constant, got 'square'"),
        ("--gradient-accumulation-steps=0", "gradient_accumulation_steps must be at least 1, got 0"),
        ("--bf16=perhaps", "bf16 must be true or false, got 'perhaps'"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_line(flag: str, message: str, seqwise: Command) -> None:
    assert seqwise("train", "--train=x", "--output=y", flag).complaint.startswith(message.partition(", got")[0])
