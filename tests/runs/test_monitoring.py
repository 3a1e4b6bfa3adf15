"""Measures during training: their numbers, and that they do not change the training."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import pytest
import torch

from command_line import Command
from run_folders import columns_file, json_lines
from seqwise.data import Example
from seqwise.models import Tagger
from seqwise.runs import new_run, train_settings
from seqwise.runs.monitoring import MOST_EXAMPLES, monitor, score_spread
from seqwise.training.trainer import fit

TINY = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3"]
STAGES = [*TINY, "--objective=relaxed-beam", "--epochs=2", "--warm-start-epochs=2", "--save-every=2"]


def tagged(count: int, *, seed: int) -> list[Example]:
    generator = random.Random(seed)
    sources = [tuple(generator.choices("abcd", k=generator.randint(1, 5))) for _ in range(count)]
    return [Example(source, tuple(token.upper() for token in source)) for source in sources]


def test_the_spread_is_the_standard_deviation_over_live_slots() -> None:
    generator = torch.Generator().manual_seed(0)
    scores_BK = torch.randn(6, 4, generator=generator, dtype=torch.float64) * 3 - 50
    scores_BK[1, 2:] = -math.inf
    scores_BK[2, 1:] = -math.inf
    live = [[score for score in row if math.isfinite(score)] for row in scores_BK.tolist()]
    assert score_spread(scores_BK).tolist() == pytest.approx([statistics.pstdev(row) for row in live], rel=1e-12)


def test_a_relaxed_beam_is_as_wide_as_a_hard_one_or_has_merged() -> None:
    examples = tagged(20, seed=0)
    run = new_run(examples, train_settings(beam_size=3, objective="relaxed-beam"))
    measure = monitor(run, examples, run.settings)
    assert measure({"alpha": 1e-6})["spread of slots, relaxed"] < 1e-3
    hard = measure({"alpha": 1e9})
    assert hard["spread of slots, relaxed"] == pytest.approx(hard["spread of slots, hard"], rel=1e-4)
    assert hard["spread of slots, hard"] > 1e-2


def test_only_measures_that_apply_are_computed() -> None:
    examples = tagged(4, seed=0)
    run = new_run(examples, train_settings(objective="cross-entropy"))
    expected = {"accuracy", "cross-entropy", "mean log Z", "spread of slots, hard"}
    assert set(monitor(run, examples, run.settings)({})) == expected
    strangers = [Example(("a",), ("never seen",))]
    assert set(monitor(run, strangers, run.settings)({})) == {"accuracy"}


def test_what_is_measured_is_not_smoothed() -> None:
    examples, plain = tagged(4, seed=0), train_settings(objective="cross-entropy")
    measured = [
        monitor(new_run(examples, settings), examples, settings)({})["cross-entropy"]
        for settings in (plain, plain.with_changes(label_smoothing=0.5))
    ]
    assert measured[0] == measured[1]


def test_a_sample_is_spread_evenly() -> None:
    sources = [tuple(f"{number:03d}") for number in range(3 * MOST_EXAMPLES)]
    examples = [Example(source, tuple("xy"[digit > "4"] for digit in source)) for source in sources]
    run = new_run(examples, train_settings(objective="cross-entropy", beam_size=2))
    sample = monitor(run, examples[::3], run.settings)({})
    assert monitor(run, examples, run.settings)({}) == sample
    assert monitor(run, examples[:MOST_EXAMPLES], run.settings)({}) != sample


@pytest.mark.thorough
def test_monitoring_does_not_change_training(seqwise: Command, tmp_path: Path) -> None:
    train, dev = (columns_file(tmp_path / f"{name}.conll", tagged(24, seed=seed)) for seed, name in enumerate("ab"))
    for name, every in (("blind", 0), ("seeing", 1), ("often", 2)):
        flags = [f"--evaluate-every={every}", "--patience=none", "--output", tmp_path / name]
        stage = [flag for flag in STAGES if not flag.startswith("--warm-start")]
        ended = seqwise("train", "--train", train, "--dev", dev, *stage, "--warm-start=none", *flags)
        assert ended.code == 0, ended.err
    assert len({(tmp_path / name / "log.jsonl").read_bytes() for name in ("blind", "seeing", "often")}) == 1
    assert not (tmp_path / "blind" / "measurements.jsonl").exists()
    seen = json_lines(tmp_path / "seeing" / "measurements.jsonl")
    assert [line["step"] for line in seen] == [1, 2, 3, 4, 5, 6]
    often = json_lines(tmp_path / "often" / "measurements.jsonl")
    assert often == [line for line in seen if line["step"] in (2, 4, 6)]
    # The weights that are kept are the best, and all of the development data was looked at.
    metrics = json.loads((tmp_path / "seeing" / "metrics.json").read_text())
    best = max(seen, key=lambda line: (line["accuracy"], -line["cross-entropy"]))
    assert metrics["training"]["best"] == best | {"epoch": best["step"] / 3}
    assert best["accuracy"] == metrics["dev"]["decoders"]["beam"]["accuracy"]
    assert best["mean log Z"] == pytest.approx(metrics["dev"]["mean log Z"], rel=1e-6)


@pytest.mark.thorough
def test_resumed_training_measures_each_step_once(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def train(folder: Path, *, until: int | None) -> None:
        torch.manual_seed(0)
        model = Tagger(source_size=5, target_size=4, embedding_size=4, hidden_size=8, label_embedding_size=2)
        encoded = new_run(examples, train_settings(minimum_count=1)).codec.encode(examples)

        def measure(values: object) -> dict[str, float]:
            with torch.no_grad():
                return {"weight": next(model.parameters()).sum().item()}

        def on_progress(progress: object) -> None:
            if getattr(progress, "step", None) == until:
                raise Stop

        def objective(model: torch.nn.Module, batch: object, values: object) -> torch.Tensor:
            return sum((weight.square().sum() for weight in model.parameters()), torch.zeros(()))

        fit(
            model, objective, encoded, output=folder, steps=12, batch_size=4, learning_rate=0.1, seed=0, save_every=5,
            measure=measure, measure_every=2, on_progress=on_progress,
        )  # fmt: skip

    examples = tagged(16, seed=0)
    train(tmp_path / "whole", until=None)
    with pytest.raises(Stop):
        train(tmp_path / "stopped", until=8)
    with (tmp_path / "stopped" / "measurements.jsonl").open("a") as log:
        log.write('{"step": 9, "wei')
    train(tmp_path / "stopped", until=None)
    seen = json_lines(tmp_path / "stopped" / "measurements.jsonl")
    assert [line["step"] for line in seen] == [2, 4, 6, 8, 10, 12]
    assert seen == json_lines(tmp_path / "whole" / "measurements.jsonl")
