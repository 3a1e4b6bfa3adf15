"""Tuning: what is chosen, what is pruned, and that an interruption changes nothing."""

from __future__ import annotations

import builtins
import json
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

optuna = pytest.importorskip("optuna")

from command_line import Command  # noqa: E402
from seqwise.configuration import dump  # noqa: E402
from seqwise.errors import InputError, NotFiniteError  # noqa: E402
from seqwise.runs import load_run, train_settings, tuning  # noqa: E402
from seqwise.runs.settings import Settings, load_settings  # noqa: E402
from seqwise.runs.tuning import tune  # noqa: E402
from seqwise.training.checkpoints import saving  # noqa: E402
from seqwise.training.lock import sole_writer  # noqa: E402
from seqwise.training.trainer import Progress  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "batch_size": 8, "epochs": 2.0, "evaluate_every": 1}


def write(path: Path, *, seed: int) -> Path:
    draw = random.Random(seed)
    sentences = [draw.choices("abc", k=draw.randint(1, 4)) for _ in range(16)]
    path.write_text("\n".join("".join(f"{token}\t{token.upper()}\n" for token in sentence) for sentence in sentences))
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    files = {name: write(tmp_path / name, seed=seed) for seed, name in enumerate(("train", "dev"))}
    return train_settings(**files, **SIZES, objective="cross-entropy")


class Trainings:
    """Stands in for ``train_run``: the measure is a function of the settings, and evaluations come step by step."""

    def __init__(self, patch: pytest.MonkeyPatch, *, interrupted_at: int | None = None) -> None:
        self.learning_rates: list[float] = []
        self.interrupted_at = interrupted_at
        patch.setattr(tuning, "train_run", self)

    def __call__(self, settings: Settings, folder: Path, *, on_progress: Any) -> dict[str, Any]:
        self.learning_rates.append(settings.learning_rate)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        if self.interrupted_at == len(self.learning_rates):
            raise KeyboardInterrupt
        if settings.learning_rate > 0.02:
            raise NotFiniteError("the loss is nan at step 1", hint="look into files that are removed")
        value = 1 - abs(settings.learning_rate - 0.01) * 50
        for step in range(1, 5):
            measured = {"accuracy": value * step / 4, "cross-entropy": 9.0}
            on_progress("training", Progress(step, 4, 0.5, 0.1, 1.0, {}, seconds=1.0, measured=measured))
        return {"dev": {"best decoder": "beam", "decoders": {"beam": {"accuracy": value}}}}


@pytest.mark.thorough
def test_the_best_settings_are_kept_and_those_that_fall_behind_are_pruned(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings(monkeypatch)
    found = tune(settings, tmp_path / "tuned", num_trials=14)
    assert len(found.trials) == 14 and found.title == "accuracy"
    assert [trial.settings["learning_rate"] for trial in found.trials] == trainings.learning_rates
    # The first trial is as the settings are, sized to the data.
    assert found.trials[0].settings == {"learning_rate": 0.005, "epochs": 2.0}
    complete = [trial for trial in found.trials if trial.state == "complete"]
    assert found.trials[found.best].value == max(trial.value or 0 for trial in complete)
    assert {trial.state for trial in found.trials} == {"complete", "pruned", "refused"}
    assert all((trial.state == "refused") == (trial.settings["learning_rate"] > 0.02) for trial in found.trials)  # type: ignore[operator]
    for place, trial in enumerate(found.trials):
        if trial.state == "pruned":  # no earlier than at its second evaluation, below the median of those before
            values = [before.value or 0 for before in found.trials[:place] if before.state == "complete"]
            assert trial.value is not None and trial.value < sorted(values)[len(values) // 2]
    assert [*(tmp_path / "tuned" / "trials").iterdir()] == [found.run]
    best = load_settings(found.config, {})
    assert best.learning_rate == found.trials[found.best].settings["learning_rate"]
    assert best.train == settings.train and best.evaluate_every == 1


@pytest.mark.thorough
@pytest.mark.parametrize("interrupted_at", [1, 3, 7])
def test_an_interruption_changes_no_choice(
    interrupted_at: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)
    whole = tune(settings, tmp_path / "whole", num_trials=8)
    again = Trainings(monkeypatch, interrupted_at=interrupted_at)
    with pytest.raises(KeyboardInterrupt):
        tune(settings, tmp_path / "killed", num_trials=8)
    tune(settings, tmp_path / "killed", num_trials=6) if interrupted_at < 6 else None
    killed = tune(settings, tmp_path / "killed", num_trials=8)
    assert killed.trials == whole.trials and killed.best == whole.best
    assert len(again.learning_rates) == 8 + 1
    assert killed.config.read_text() == whole.config.read_text()


def test_the_folder_of_a_trial_that_another_process_trains_is_left_alone(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch, interrupted_at=1)
    with pytest.raises(KeyboardInterrupt):
        tune(settings, tmp_path / "tuned", num_trials=1)
    monkeypatch.undo()
    (folder,) = (tmp_path / "tuned" / "trials").iterdir()
    with sole_writer(folder), pytest.raises(InputError, match=f"{folder}: process .* is writing to this folder"):
        tune(settings, tmp_path / "tuned", num_trials=1)
    assert (folder / "checkpoints").is_dir()
    Trainings(monkeypatch)
    assert [trial.state for trial in tune(settings, tmp_path / "tuned", num_trials=1).trials] == ["complete"]


def test_the_first_trial_has_the_settings_as_they_are(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside the ranges of the others, in digits and schedules that they do not have, and after an interruption."""
    Trainings(monkeypatch, interrupted_at=1)
    given = {"alpha": "linear(1, 40, 7)", "beam_size": 10, "cross_entropy_weight": 0.5, "learning_rate": 0.0123456}
    chosen = settings.with_changes(objective="relaxed-beam", warm_start="none", **given)
    with pytest.raises(KeyboardInterrupt):
        tune(chosen, tmp_path / "tuned", num_trials=1)
    found = tune(chosen, tmp_path / "tuned", num_trials=1)
    assert found.trials[0].settings == {**given, "epochs": 2.0}
    assert load_settings(found.config).objective == chosen.objective


def test_killed_before_it_writes_the_best_settings_it_writes_them_in_the_next_call(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)

    def be_killed(path: Path, text: str) -> None:
        if path.name == "best.yaml":
            raise KeyboardInterrupt
        path.write_text(text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tuning, "write_atomically", be_killed)
        tune(settings, tmp_path / "tuned", num_trials=1)
    found = tune(settings, tmp_path / "tuned", num_trials=1)
    assert load_settings(found.config).learning_rate == found.trials[0].settings["learning_rate"]


def test_a_process_that_died_before_its_trial_had_settings_stops_no_other(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings, output = Trainings(monkeypatch), tmp_path / "tuned"

    def train(settings: Settings, folder: Path, *, on_progress: Any) -> dict[str, Any]:
        optuna.load_study(study_name="seqwise", storage=f"sqlite:///{output / 'study.db'}").ask()
        return trainings(settings, folder, on_progress=on_progress)

    monkeypatch.setattr(tuning, "train_run", train)
    assert len(tune(settings, output, num_trials=2).trials) == 2


@pytest.mark.parametrize(("changed", "said"), [("train", "training data"), ("dev", "development data")])
def test_trials_on_other_data_are_not_compared(
    changed: str, said: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)
    tune(settings, tmp_path / "tuned", num_trials=1)
    write(tmp_path / changed, seed=7)
    with pytest.raises(InputError, match=f"tuned: the study was started with other {said}; give another --output"):
        tune(settings, tmp_path / "tuned", num_trials=2)


def test_a_trial_that_goes_on_is_compared_at_the_evaluations_it_has_reached(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the second evaluation of its second stage, after three of the first; that one comes again."""
    values = {"warm start": [0.1, 0.2, 0.3], "training": [0.4, 0.5, 0.6]}
    todo = [(stage, step) for stage in values for step in (1, 2, 3)]

    def train(own: Settings, folder: Path, *, on_progress: Any) -> dict[str, Any]:
        folders = {stage.name: folder / stage.folder for stage in own.stages()}
        begun = folder.exists()
        for stage, step in todo[4:] if begun else todo:
            measured = {"accuracy": values[stage][step - 1], "cross-entropy": 1.0}
            folders[stage].mkdir(parents=True, exist_ok=True)
            with (folders[stage] / "measurements.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, **measured}) + "\n")
            if not begun and (stage, step) == todo[4]:
                raise KeyboardInterrupt
            on_progress(stage, Progress(step, 3, 0.5, 0.1, 1.0, {}, seconds=1.0, measured=measured))
        return {"dev": {"best decoder": "beam", "decoders": {"beam": {"accuracy": 0.6}}}}

    monkeypatch.setattr(tuning, "train_run", train)
    chosen = settings.with_changes(objective="hard-hinge")
    with pytest.raises(KeyboardInterrupt):
        tune(chosen, tmp_path / "tuned", num_trials=1)
    tune(chosen, tmp_path / "tuned", num_trials=1)
    study = optuna.load_study(study_name="seqwise", storage=f"sqlite:///{tmp_path}/tuned/study.db")
    assert study.trials[-1].intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.6}


def test_a_full_disk_is_not_the_fault_of_a_trial(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Trainings(monkeypatch)

    def train_on_a_full_disk(own: Settings, folder: Path, **named: Any) -> Any:
        (folder / "checkpoints").mkdir(parents=True)
        with saving(folder / "checkpoints" / "checkpoint-2"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning, "train_run", train_on_a_full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        tune(settings, tmp_path / "tuned", num_trials=1)
    assert len([*(tmp_path / "tuned" / "trials").iterdir()]) == 1
    monkeypatch.setattr(tuning, "train_run", train)
    found = tune(settings, tmp_path / "tuned", num_trials=1)
    assert [trial.state for trial in found.trials] == ["complete"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_file_that_cannot_grow_is_not_the_fault_of_a_trial(settings: Settings, tmp_path: Path) -> None:
    """A real limit, at which torch and sqlite raise errors of their own, and no OSError."""
    (tmp_path / "settings.yaml").write_text(dump(settings.with_changes(hidden_size=64)))
    large = load_settings(tmp_path / "settings.yaml")
    for limit, what in ((300_000, "checkpoint"), (60_000, "study.db")):
        script = (
            "import resource, signal, sys; from pathlib import Path; from seqwise.errors import InputError\n"
            "from seqwise.runs.settings import load_settings; from seqwise.runs.tuning import tune\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            "try: tune(load_settings(Path(sys.argv[1])), sys.argv[2], num_trials=2)\n"
            "except InputError as error: print(error)\n"
        )
        arguments = [sys.executable, "-c", script, str(tmp_path / "settings.yaml"), str(tmp_path / what)]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert what in ended.stdout and "cannot be" in ended.stdout and ended.stdout.count("\n") == 1, ended.stderr
        found = tune(large, tmp_path / what, num_trials=2)
        assert "complete" in {trial.state for trial in found.trials} and len(found.trials) == 2


def test_a_choice_that_does_not_fit_into_memory_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Trainings(monkeypatch)

    def train_the_second_out_of_memory(own: Settings, folder: Path, **named: Any) -> Any:
        found = train(own, folder, **named)
        if len(train.learning_rates) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return found

    monkeypatch.setattr(tuning, "train_run", train_the_second_out_of_memory)
    found = tune(settings, tmp_path / "tuned", num_trials=3)
    assert [trial.state for trial in found.trials] == ["complete", "refused", "complete"]


@pytest.mark.parametrize(("evaluate_every", "said"), [(1, "the model's scores are not numbers"), (100, "the loss is")])
def test_a_training_that_diverges_is_refused(
    settings: Settings, tmp_path: Path, evaluate_every: int, said: str
) -> None:
    diverging = settings.with_changes(learning_rate=1e38, evaluate_every=evaluate_every)
    with pytest.raises(InputError, match=rf"no trial finished \({said}"):
        tune(diverging, tmp_path / "tuned", num_trials=1)


def test_a_search_in_which_nothing_finished_says_why(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)
    with pytest.raises(InputError, match=r"no trial finished \(the loss is nan at step 1\); lower the learning rate"):
        tune(settings.with_changes(learning_rate=9.0), tmp_path / "tuned", num_trials=1)


def test_a_damaged_or_missing_study_is_one_line(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)
    tune(settings, tmp_path / "tuned", num_trials=2)
    study = tmp_path / "tuned" / "study.db"
    whole = study.read_bytes()
    for damaged in (b"garbage\n", whole[:3000]):
        study.write_bytes(damaged)
        with pytest.raises(InputError, match=r"study\.db: cannot be read or written \(.*; .* restore a damaged"):
            tune(settings, tmp_path / "tuned", num_trials=3)
    for remove in (lambda: study.write_bytes(b""), study.unlink):
        remove()
        with pytest.raises(InputError, match=r"study\.db: the study of the trials in this folder is missing"):
            tune(settings, tmp_path / "tuned", num_trials=3)
    study.write_bytes(whole)
    assert len(tune(settings, tmp_path / "tuned", num_trials=3).trials) == 3


def test_a_removed_file_of_the_best_settings_is_written_again_and_a_removed_run_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trainings(monkeypatch)
    found = tune(settings, tmp_path / "tuned", num_trials=2)
    assert capsys.readouterr().err == ""
    written = found.config.read_text()
    found.config.unlink()
    shutil.rmtree(found.run)
    assert tune(settings, tmp_path / "tuned", num_trials=2) == found
    assert found.config.read_text() == written
    again = f"to train it again: seqwise train --config {found.config} --output FOLDER"
    assert capsys.readouterr().err == f"seqwise: {found.run}: the run of the best trial is not there; {again}\n"


def test_data_that_change_while_a_trial_is_trained_are_noticed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, dev = Trainings(monkeypatch), settings.dev
    assert dev is not None
    before = dev.read_text()

    def change_the_second(own: Settings, folder: Path, **named: Any) -> Any:
        found = train(own, folder, **named)
        if len(train.learning_rates) == 2:
            dev.write_text("a\tA\n")
        return found

    monkeypatch.setattr(tuning, "train_run", change_the_second)
    with pytest.raises(InputError, match="the study was started with other development data"):
        tune(settings, tmp_path / "tuned", num_trials=3)
    assert len([*(tmp_path / "tuned" / "trials").iterdir()]) == 1  # a finished run is not trained again
    dev.write_text(before)
    found = tune(settings, tmp_path / "tuned", num_trials=3)
    assert [trial.state for trial in found.trials] == ["complete"] * 3 and len(train.learning_rates) == 4


@pytest.mark.thorough
def test_processes_share_the_trials_of_a_study(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at a time, each with another trial; threads hold locks as processes do."""
    train, choose, chosen, all_three = Trainings(monkeypatch), tuning._choices, [], threading.Barrier(3)

    def train_three_at_a_time(*arguments: Any, **named: Any) -> Any:
        all_three.wait(20)
        return train(*arguments, **named)

    def choose_the_third_again(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        return chosen[2] if len(chosen) == 4 else chosen[-1]

    monkeypatch.setattr(tuning, "train_run", train_three_at_a_time)
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(tune, settings, tmp_path / "tuned", num_trials=3) for _ in range(3)]
        assert len({id(call.result(120)) for call in calls}) == 3
        monkeypatch.setattr(tuning, "_choices", choose_the_third_again)
        chosen[:] = [choose_the_third_again] * 2  # the next is the third
        calls = [threads.submit(tune, settings, tmp_path / "tuned", num_trials=6) for _ in range(3)]
        one, other, third = (call.result(120) for call in calls)
    assert one == other == third and len(one.trials) == 6 and len(chosen) == 2 + 4
    rates = [trial.settings["learning_rate"] for trial in one.trials]
    assert len(set(rates)) == 6 and sorted(rates) == sorted(train.learning_rates)  # type: ignore[type-var]
    values = [trial.value for trial in one.trials if trial.state == "complete"]
    assert one.trials[one.best].value == max(value for value in values if value is not None)
    assert [*(tmp_path / "tuned" / "trials").iterdir()] == [one.run]
    assert load_settings(one.config, {}).learning_rate == rates[one.best]


@pytest.mark.thorough
def test_the_trial_of_a_dead_process_is_taken_over(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, begun, alone = Trainings(monkeypatch), threading.Event(), threading.Event()

    def die_in_the_first(own: Settings, folder: Path, **named: Any) -> Any:
        if not begun.is_set():
            train.learning_rates.append(own.learning_rate)
            begun.set()
            assert alone.wait(60)
            raise KeyboardInterrupt
        found = train(own, folder, **named)
        if len(train.learning_rates) == 4:
            alone.set()
        return found

    monkeypatch.setattr(tuning, "train_run", die_in_the_first)
    with ThreadPoolExecutor(2) as threads:
        dead = threads.submit(tune, settings, tmp_path / "tuned", num_trials=4)
        assert begun.wait(60)
        found = threads.submit(tune, settings, tmp_path / "tuned", num_trials=4).result(120)
        assert isinstance(dead.exception(), KeyboardInterrupt)
    rates = [trial.settings["learning_rate"] for trial in found.trials]
    assert rates == train.learning_rates[1:] and rates[-1] == train.learning_rates[0]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param({}, {"learning_rate", "epochs"}, marks=pytest.mark.thorough),
        pytest.param({"objective": "hard-hinge"}, {"cross_entropy_weight", "beam_size"}, marks=pytest.mark.thorough),
        pytest.param(
            {"objective": "beam-crf", "warm_start": "none"},
            {"cross_entropy_weight", "beam_size"},
            marks=pytest.mark.thorough,
        ),
        ({"objective": "relaxed-beam"}, {"cross_entropy_weight", "beam_size", "alpha"}),
        pytest.param({"objective": "distillation"}, {"beam_size"}, marks=pytest.mark.thorough),
        pytest.param(
            {"objective": "scheduled-sampling", "feeding": "soft-greedy"}, {"alpha"}, marks=pytest.mark.thorough
        ),
    ],
)
def test_the_options_of_an_objective_are_tuned(
    options: dict[str, Any], names: set[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainings(monkeypatch)
    chosen = settings.with_changes(**options)
    found = tune(chosen, tmp_path / "tuned", num_trials=2)
    stages = {"learning_rate", "epochs"}
    if chosen.warm_start is not None:
        stages |= {"warm_start_learning_rate", "warm_start_epochs"}
    assert set(found.trials[0].settings) == stages | names
    first = found.trials[0].settings
    assert first.get("beam_size", 5) == 5 and first.get("alpha", "exponential(1, 8)") == "exponential(1, 8)"
    assert first.get("cross_entropy_weight", 0.1) == 0.1


@pytest.mark.thorough
def test_from_the_command_line_to_a_run_with_the_winner(tmp_path: Path, seqwise: Command) -> None:
    files = {name: write(tmp_path / name, seed=seed) for seed, name in enumerate(("train", "dev"))}
    lines = {**files, **SIZES, "objective": "hinge", "warm_start_epochs": 1.0, "beam_size": 2}
    (tmp_path / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    command = ["tune", tmp_path / "config.yaml", "--output", tmp_path / "tuned"]
    ended = seqwise(*command, "--trials=2")
    assert ended.code == 0 and "settings" in ended.out, ended.err
    ended = seqwise(*command, "--trials=1")
    assert "no trial was run: 2 trials had ended, and --trials 1 counts them" in ended.err
    (record,) = seqwise(*command, "--trials=3", "--json").records
    assert len(record["trials"]) == 3 and record["title"] == "accuracy"
    best = load_run(Path(record["run"]))
    assert seqwise("train", "--config", record["config"], "--output", tmp_path / "run").code == 0
    for name, weight in load_run(tmp_path / "run").model.state_dict().items():
        assert weight.equal(best.model.state_dict()[name])
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (tmp_path / "run", Path(record["run"]))]
    assert metrics[0]["dev"]["decoders"] == metrics[1]["dev"]["decoders"]
    ended = seqwise(*command, "--trials=3", "--seed=1")
    assert "the study was started with another seed (0 then, 1 now)" in ended.complaint


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trials=0"], "trials must be at least 1, got 0; give --trials N"),
        (["--trials=2"], "dev: settings are tuned on development data, and there are none; give --dev FILE"),
        (["--trials=2", "--dev=/nowhere", "--patience=0"], "patience must be at least 1, got 0"),
        (["--trials=2", "--dev=/nowhere", "--output=.."], "..: the folder holds no study"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(
    flags: list[str], message: str, tmp_path: Path, seqwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train", seed=0)
    (tmp_path / "config.yaml").write_text(f"train: {tmp_path / 'train'}\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    ended = seqwise("tune", tmp_path / "config.yaml", "--output=tuned", *flags)
    assert ended.complaint.startswith(message)
    assert not (tmp_path / "inside" / "tuned").exists()


def test_without_optuna_the_extra_is_named(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *others: Any, **named: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return usual(name, *others, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"tuning needs Optuna; pip install 'seqwise\[tune\]'"):
        tune(settings, tmp_path / "tuned", num_trials=1)
