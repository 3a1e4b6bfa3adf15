"""Runs that start from the weights of another run (``--init``)."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from run_folders import weights
from seqwise.errors import InputError
from seqwise.runs import load_run, masked_settings, new_run, train_run, train_settings
from seqwise.runs.inputs import read_examples, read_sequences
from seqwise.runs.masked_model_training import new_masked_run, train_masked_model
from seqwise.runs.settings import load_settings
from seqwise.runs.training import train_stage
from seqwise.training.trainer import Progress

pytestmark = pytest.mark.thorough

SIZES: dict[str, Any] = {"hidden_size": 6, "embedding_size": 5, "label_embedding_size": 3}


def write(path: Path, tokens: Sequence[str], *, seed: int = 0) -> Path:
    draw = random.Random(seed)
    sentences = [draw.choices(tokens, k=draw.randint(1, 5)) for _ in range(16)]
    path.write_text("\n".join("".join(f"{token}\t{token.upper()}\n" for token in sentence) for sentence in sentences))
    return path


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of cross-entropy."""
    folder = tmp_path_factory.mktemp("before")
    settings = train_settings(train=write(folder / "train", "abcd"), epochs=2.0, encoder="left-to-right", **SIZES,
                              objective="cross-entropy", beam_size=2)  # fmt: skip
    train_run(settings, folder / "run")
    return folder / "run"


@pytest.mark.parametrize("objective", [None, "relaxed-beam", "distillation", "beam-crf"])
def test_a_continued_run_starts_from_the_weights_of_the_other(
    objective: str | None, before: Path, tmp_path: Path
) -> None:
    chosen = {} if objective is None else {"objective": objective}
    train = write(tmp_path / "more", "abcde", seed=1)  # e is unknown, and stands for itself in no label
    train.write_text(train.read_text().replace("\tE", "\tA"))
    settings = train_settings(init=before, train=train, epochs=2.0, batch_size=8, beam_size=2, **chosen)
    other = load_run(before)
    assert settings.model == other.settings.model and settings.warm_start is None
    assert settings.objective.name == (objective or "cross-entropy")
    train_run(settings, tmp_path / "run")
    # Done by hand, it comes to the same weights, with the vocabulary of the other run.
    examples = read_examples(settings, train)
    run = new_run(examples, settings)
    for name, weight in other.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], weight)
    saved = load_settings(tmp_path / "run" / "configuration.yaml", {})
    train_stage(run, other.codec.encode(examples), saved, folder=tmp_path / "by-hand")
    trained = load_run(tmp_path / "run")
    assert trained.codec == other.codec and trained.settings.init == settings.init
    for name, weight in run.model.state_dict().items():
        assert torch.equal(trained.model.state_dict()[name], weight)


def test_a_continued_run_is_loaded_without_the_other(before: Path, tmp_path: Path) -> None:
    train_run(train_settings(init=before, train=before.parent / "train", epochs=1.0), tmp_path / "run")
    text = (tmp_path / "run" / "configuration.yaml").read_text()
    assert f"init: {before}" in text
    (tmp_path / "run" / "configuration.yaml").write_text(text.replace(str(before), "gone"))
    assert load_run(tmp_path / "run").settings.init == Path("gone")


def test_training_is_not_resumed_from_another_init(before: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(stage: str, progress: Progress) -> None:
        if progress.step == 3:
            raise Killed

    settings = train_settings(init=before, train=before.parent / "train", epochs=4.0, batch_size=8, save_every=2)
    train_run(settings, tmp_path / "whole")
    with pytest.raises(Killed):
        train_run(settings, tmp_path / "killed", on_progress=kill)
    other = train_settings(train=before.parent / "train", epochs=1.0, encoder="left-to-right", **SIZES, seed=3,
                           objective="cross-entropy", beam_size=2)  # fmt: skip
    train_run(other, tmp_path / "other")
    with pytest.raises(InputError, match="made with other initial weights"):
        train_run(settings.with_changes(init=tmp_path / "other"), tmp_path / "killed")
    train_run(settings, tmp_path / "killed")
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")


REFUSED = {
    "no name of a folder": ([f"--init={'x' * 300}"], "x is not a run of seqwise train; give the --output of one"),
    "no run": (["--init=nowhere"], "init: nowhere is not a run of seqwise train; give the --output of one"),
    "other task": (["--init={run}", "--task=transduce"], "init: the run is of another task (tag, not transduce)"),
    "other size": (["--init={run}", "--hidden-size=7"], "hidden_size: the run in init determines it; leave it out"),
    "other model": (
        ["--init={run}", "--model=chain", "--objective=crf", "--task=tag"],
        "init: the run has another model (lstm, not chain)",
    ),
    "unknown label": (
        ["--init={run}", "--train={labels}"],
        "labels:2: init: the run has no label 'new'; train a new run",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_does_not_fit_is_refused_in_one_line(
    case: str, before: Path, tmp_path: Path, seqwise: Command
) -> None:
    labels = tmp_path / "labels"
    labels.write_text("a\tA\na\tnew\n")
    flags, message = REFUSED[case]
    flags = [flag.format(run=before, labels=labels) for flag in flags]
    ended = seqwise("train", "--train", before.parent / "train", *flags, "--output", tmp_path / "run")
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") <= 1, ended.err


# ------------------------------------------------------------------------------------------- masked models


def pairs(path: Path, *, seed: int, longest: int = 4) -> Path:
    draw = random.Random(seed)
    lines = [draw.choices("abc", k=draw.randint(1, longest)) for _ in range(16)]
    path.write_text("".join(f"{' '.join(line)}\t{' '.join(reversed(line))}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a conditional masked model."""
    folder = tmp_path_factory.mktemp("masked")
    sizes: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "feedforward_size": 8}
    settings = masked_settings(format="pairs", masking="0.5", minimum_count=1, epochs=2.0, **sizes)
    train_masked_model(pairs(folder / "train", seed=0), folder / "run", settings)
    return folder / "run"


def test_a_masked_model_starts_from_the_weights_of_another_run(masked: Path, tmp_path: Path, seqwise: Command) -> None:
    train = pairs(tmp_path / "more", seed=1, longest=2)
    settings = masked_settings(init=masked, epochs=1.0, weight_decay=0.1)
    before = load_run(masked)
    assert settings.masking == "0.5" and settings.conditional and settings.model == before.settings.model
    run = new_masked_run(read_sequences(train, settings), settings)
    for name, weight in before.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], weight)
    assert run.codec.sequence == before.codec.sequence and set(run.codec.lengths) == {1, 2}
    command = ["masked-model", "train", train, "--init", masked, "--epochs=1", "--output", tmp_path / "run"]
    for _ in range(2):  # the same command again changes nothing
        assert seqwise(*command).code == 0
        trained = load_run(tmp_path / "run").model.state_dict()
        assert not torch.equal(trained["head.weight"], before.model.state_dict()["head.weight"])
    assert load_run(tmp_path / "run").settings.learning_rate == pytest.approx(0.4 * before.settings.learning_rate)


def test_a_masked_model_is_not_resumed_without_its_init(masked: Path, tmp_path: Path, seqwise: Command) -> None:
    flags = ["--epochs=1", "--learning-rate=1e-3", "--batch-size=8", "--output", tmp_path / "run"]
    sizes = ["--format=pairs", "--masking=0.5", "--minimum-count=1", "--hidden-size=8", "--num-heads=2"]
    command = ["masked-model", "train", pairs(tmp_path / "train", seed=1), *flags]
    assert seqwise(*command, "--init", masked).code == 0
    ended = seqwise(*command, *sizes, "--num-layers=1", "--feedforward-size=8")
    assert ended.complaint.startswith(
        f"{tmp_path}/run: the run was started with another init ({masked} then, None now)"
    )


@pytest.mark.parametrize("kind", ["tagger", "masked model"])
def test_a_start_that_is_worse_than_its_baseline_is_warned_of(
    kind: str, before: Path, masked: Path, tmp_path: Path, seqwise: Command
) -> None:
    init = shutil.copytree(before if kind == "tagger" else masked, tmp_path / "init")
    command: list[Any] = ["train", "--train", write(tmp_path / "data", "abcd", seed=1), "--beam-size=2"]
    if kind == "masked model":
        command = ["masked-model", "train", pairs(tmp_path / "data", seed=1, longest=2)]
    command += ["--init", init, "--epochs=1", "--output"]
    metrics = json.loads((init / "metrics.json").read_bytes())
    for number, warnings in enumerate(({}, {"below the baseline": "the model is worse than"})):
        (init / "metrics.json").write_text(json.dumps(metrics | {"warnings": warnings}))
        ended = seqwise(*command, tmp_path / f"run {number}")
        assert ended.code == 0 and (f"seqwise: init: {init}: the model is worse than\n" in ended.err) == bool(warnings)
    (init / "metrics.json").unlink()  # of which a run has no need
    assert seqwise(*command, tmp_path / "run 2").code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hidden-size=4"], "hidden_size: the run in init determines it; leave it out"),
        (["--format=fasta"], "format: the run in init determines it; leave it out"),
        (["--minimum-count=3"], "minimum_count: the run in init determines it; leave it out"),
        (
            [f"--init={'x' * 300}"],
            f"init: {'x' * 300} is not a run of seqwise masked-model train; give the --output of one",
        ),
        (["--init=/nowhere"], "init: /nowhere is not a run of seqwise masked-model train; give the --output of one"),
    ],
)
def test_settings_that_the_run_in_init_determines_are_refused(
    flags: list[str], message: str, masked: Path, tmp_path: Path, seqwise: Command
) -> None:
    ended = seqwise("masked-model", "train", tmp_path, "--init", masked, *flags, "--output", tmp_path / "run")
    assert ended.complaint == message


def test_a_sequence_that_is_too_long_for_the_run_is_refused(masked: Path, tmp_path: Path, seqwise: Command) -> None:
    train = tmp_path / "train"
    train.write_text("a\ta a\na\ta a a a a\n")
    ended = seqwise("masked-model", "train", train, "--init", masked, "--output", tmp_path / "run")
    assert ended.complaint.startswith(f"{train}:2: a sequence of 5 tokens, where max_length is 4")
