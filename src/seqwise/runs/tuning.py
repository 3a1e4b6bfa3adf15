"""Hyperparameter search on development data, by Optuna.

::

    FOLDER/study.db     the study of Optuna, which the same command resumes
    FOLDER/best.yaml    the settings of the best trial, for ``seqwise train --config``
    FOLDER/trials/      the run of the best trial, and those of running or interrupted ones
    FOLDER/running/     a locked folder for each trial that a process is training
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from seqwise.configuration import dump
from seqwise.configuration.flat import differences
from seqwise.data.durable import write_atomically
from seqwise.data.records import read_json_lines
from seqwise.errors import InputError, NotFiniteError, first_line, warn
from seqwise.evaluation.signature import sha256_of_examples
from seqwise.runs.inputs import read_examples
from seqwise.runs.measures import decisive
from seqwise.runs.settings import Settings, load_settings, require_data
from seqwise.runs.sizing import sized
from seqwise.runs.trainer_options import changed_setting_error, require_usable, with_absolute_paths
from seqwise.runs.training import begin_run, train_run
from seqwise.schedules import exponential
from seqwise.training.checkpoints import MEASUREMENTS
from seqwise.training.lock import InUseError, next_writer, sole_writer
from seqwise.training.processes import as_one_process
from seqwise.training.trainer import Progress

GIVEN = "given"  # attribute of the first trial: the given settings, which may be outside the ranges
DATA = "data"  # attribute of the study: checksums of its data
BEST, STUDY, SETTINGS = "best.yaml", "study.db", "settings.yaml"
CROSS_ENTROPY_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
BEAM_SIZES = (2, 8)  # minimum and maximum
FIRST_TRIALS = 4  # number of trials before pruning begins
PATIENCE = 0.5  # seconds between checks on the trials of other processes
WRITE_TIMEOUT = 60.0  # seconds of waiting while another process writes to the study


@dataclass(frozen=True)
class Trial:
    """Choice of settings, by flat names; refused if a loss is not finite, or the device ran out of memory."""

    state: Literal["complete", "pruned", "refused"]
    value: float | None  # measure on development data with the best decoder; if pruned, of the last evaluation
    settings: Mapping[str, float | str]


@dataclass(frozen=True)
class Tuning:
    """All trials in order, including those of earlier calls, and the best one."""

    title: str  # of the measure
    trials: list[Trial]
    best: int
    config: Path  # settings of the best trial
    run: Path  # folder of the best trial


@as_one_process()
def tune(
    settings: Settings,
    output: str | os.PathLike[str],
    *,
    num_trials: int,
    on_trial: Callable[[Tuning | None], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> Tuning:
    """Train with several settings, and keep the best run on development data.

    It tunes the learning rate and epochs of each stage and, if the objective has them, the schedule of alpha, the
    weight of added cross-entropy and the beam size. The first trial has the given settings; Optuna's tree-structured
    Parzen estimator chooses the others. A trial with an evaluation below the median of earlier trials is pruned. An
    interrupted search resumes its trial, with the same choices. ``num_trials`` is the total over all calls.

    Several processes on one machine may call this with the same folder. Each trains its own trials, which are pruned by
    the evaluations of all processes, and takes over the trials of processes that died. All return the whole study.
    Optuna's choices then depend on the order in which trials end.

    Source: Akiba et al. (KDD 2019). Not implemented: several processes for one trial.
    """
    output = Path(output)
    _optuna()
    if num_trials < 1:
        raise InputError(f"trials must be at least 1, got {num_trials}", hint="give --trials N")
    if settings.dev is None:
        hint = "give --dev FILE, or a line 'dev: FILE' in the YAML"
        raise InputError("dev: settings are tuned on development data, and there are none", hint=hint)
    require_data(settings)
    examples = read_examples(settings, settings.train)
    settings = sized(with_absolute_paths(settings, output), examples)
    require_usable(settings, has_lstm=not settings.model.parallel)
    _require_same_settings(output, settings)
    begin_run(settings, examples)  # refuses bad data before there is a study
    with _storing(output / STUDY):
        study = _begin(settings, output)
        tuning = _search(study, settings, output, num_trials=num_trials, on_trial=on_trial, on_progress=on_progress)
    if tuning is None:
        hint = "lower the learning rate or the batch size, or check the data"
        raise InputError(f"no trial finished ({_ended(study)[-1].user_attrs['refused']})", path=output, hint=hint)
    return tuning


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Report errors of the file of a study in one line."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, _optuna().exceptions.StorageInternalError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        hint = "make room on a full disk, wait for other processes, or restore a damaged file"
        raise InputError(f"cannot be read or written ({first_line(cause)})", path=path, hint=hint) from error


def _begin(settings: Settings, output: Path) -> Any:
    """Make the study with its first trial, or load it."""
    optuna = _optuna()
    with next_writer(output):
        _claim(output, settings)
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage(
                f"sqlite:///{(output / STUDY).resolve()}",
                engine_kwargs={"connect_args": {"timeout": WRITE_TIMEOUT}},
            ),
            study_name="seqwise",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_warmup_steps=1),
        )
        _require_same_data(study, _checksums(settings), output)
        if not study.trials:
            study.enqueue_trial(_nearest_choice(settings), user_attrs={GIVEN: _tuned_settings(settings)})
        best = _best(study)
        if best is not None:
            _restore_best(settings.with_changes(**best.user_attrs["settings"]), output)
    return study


def _restore_best(best: Settings, output: Path) -> None:
    """Write the settings of the best trial if their file was removed; warn if its run was."""
    if not (output / BEST).exists():
        write_atomically(output / BEST, dump(best))
    folder = _folder(output, best)
    if not folder.exists():
        again = f"seqwise train --config {shlex.quote(str(output / BEST))} --output FOLDER"
        warn(f"{folder}: the run of the best trial is not there; to train it again: {again}")


def _search(
    study: Any,
    settings: Settings,
    output: Path,
    *,
    num_trials: int,
    on_trial: Callable[[Tuning | None], None] | None,
    on_progress: Callable[[str, Progress], None] | None,
) -> Tuning | None:
    """Run trials until enough have ended; return all of them, or None if none is complete."""
    num_ended, lock = -1, ExitStack()
    while num_ended < num_trials:
        with next_writer(output):
            trial = _next_trial(study, settings, output, num_trials=num_trials)
            if trial is not None:
                lock.enter_context(sole_writer(_lock_of(output, trial)))
            tuning, before, num_ended = _tuning(study, settings, output), num_ended, len(_ended(study))
        try:
            if on_trial is not None and num_ended != before:
                on_trial(tuning)
            if trial is not None:
                _run_trial(study, trial, settings, output, on_progress=on_progress)
            elif num_ended < num_trials:
                time.sleep(PATIENCE)
        finally:
            with next_writer(output):
                lock.close()
    return tuning


def _next_trial(study: Any, settings: Settings, output: Path, *, num_trials: int) -> Any:
    """Return a trial to run, with its choices, or None if enough trials have ended or are running.

    Trials of processes that died come first. The caller holds the lock of the study.
    """
    optuna = _optuna()
    states = optuna.trial.TrialState
    running = []
    for trial in study.get_trials(states=(states.RUNNING,)):
        try:
            with sole_writer(_lock_of(output, trial)):
                study.tell(trial.number, state=states.FAIL)
                given = {name: value for name, value in trial.user_attrs.items() if name == GIVEN}
                study.enqueue_trial(trial.params, user_attrs=given)
            shutil.rmtree(_lock_of(output, trial), ignore_errors=True)
        except InUseError:
            running.append(trial.user_attrs["settings"])
    started = len(_ended(study)) + len(running)
    while started < num_trials:
        # The sampler depends only on the seed and the number of trials, so that interruptions change no choice.
        duplicates = sum("duplicate" in trial.user_attrs for trial in study.trials)
        study.sampler = optuna.samplers.TPESampler(seed=settings.seed + started + duplicates)
        trial = study.ask()
        trial.set_user_attr("settings", _choices(trial, settings))
        if trial.user_attrs["settings"] not in running:
            return trial
        # Another process trains the same settings, in the same folder.
        trial.set_user_attr("duplicate", True)
        study.tell(trial, state=states.FAIL)
    return None


def _lock_of(output: Path, trial: Any) -> Path:
    """Return the folder that a process locks while it runs a trial."""
    return output / "running" / str(trial.number)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs Optuna", hint="pip install 'seqwise[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _claim(output: Path, settings: Settings) -> None:
    """Write the settings, or raise an InputError for a folder with different ones."""
    _require_same_settings(output, settings)
    study = output / STUDY
    if (output / BEST).exists() and not (study.exists() and study.stat().st_size > 0):
        hint = f"restore it, or remove {output} to start again"
        raise InputError("the study of the trials in this folder is missing", path=study, hint=hint)
    if not (output / SETTINGS).exists():
        write_atomically(output / SETTINGS, dump(settings))


def _require_same_settings(output: Path, settings: Settings) -> None:
    """Raise an InputError if the output folder contains anything but a study with the same settings."""
    saved = output / SETTINGS
    if not saved.exists():
        if (output / STUDY).exists() or (output / "model").exists():
            raise InputError("the folder holds no study with these settings", path=output, hint="give another --output")
        return
    for name, (then, now) in differences(load_settings(saved), settings).items():
        raise changed_setting_error(output, name, then, now, what="the study was")


def _checksums(settings: Settings) -> dict[str, str]:
    """Return the checksums of the data as they are now."""
    files = {"training data": settings.train, "development data": settings.dev}
    return {name: sha256_of_examples(read_examples(settings, file)) for name, file in files.items() if file}


def _require_same_data(study: Any, data: Mapping[str, str], output: Path) -> None:
    """Raise an InputError if other trials of the study were trained or measured on different data."""
    for name, fingerprint in study.user_attrs.get(DATA, data).items():
        if data.get(name) != fingerprint:
            hint = "give another --output, or remove this folder to start again"
            raise InputError(f"the study was started with other {name}", path=output, hint=hint)
    study.set_user_attr(DATA, dict(data))


def _choices(trial: Any, settings: Settings) -> dict[str, Any]:
    """Draw the settings of a trial, by flat names."""
    chosen: dict[str, Any] = {}
    for name, value in _tuned_settings(settings).items():
        if name == "alpha":
            first = _rounded(trial.suggest_float("alpha_at_first", 0.1, 10.0, log=True))
            growth = trial.suggest_float("alpha_growth", 1.0, 30.0, log=True)
            chosen[name] = str(exponential(first, _rounded(first * growth)))
        elif name == "cross_entropy_weight":
            chosen[name] = trial.suggest_categorical(name, CROSS_ENTROPY_WEIGHTS)
        elif name == "beam_size":
            chosen[name] = trial.suggest_int(name, *BEAM_SIZES)
        else:
            factor = 5.0 if name.endswith("learning_rate") else 2.0
            chosen[name] = _rounded(trial.suggest_float(name, value / factor, value * factor, log=True))
    return chosen | trial.user_attrs.get(GIVEN, {})


def _tuned_settings(settings: Settings) -> dict[str, Any]:
    """Return the given values of the settings that are tuned, by flat names."""
    objective, start = settings.objective, settings.warm_start
    values: dict[str, Any] = {"learning_rate": settings.learning_rate, "epochs": settings.epochs}
    if start is not None and start.epochs > 0:
        values["warm_start_learning_rate"] = settings.warm_start_learning_rate
        values["warm_start_epochs"] = start.epochs
    if "alpha" in objective.schedules:
        values["alpha"] = str(objective.schedules["alpha"])
    if hasattr(objective, "cross_entropy_weight"):
        values["cross_entropy_weight"] = objective.cross_entropy_weight
    if hasattr(objective, "k"):
        values["beam_size"] = objective.k
    return values


def _nearest_choice(settings: Settings) -> dict[str, Any]:
    """Return the choice within the ranges that is nearest to the settings."""
    values = _tuned_settings(settings)
    if "alpha" in values:
        del values["alpha"]
        first, last = settings.objective.schedules["alpha"].ends
        values["alpha_at_first"] = min(max(first, 0.1), 10.0)
        values["alpha_growth"] = min(max(last / first, 1.0), 30.0)
    if "cross_entropy_weight" in values:
        given = values["cross_entropy_weight"]
        values["cross_entropy_weight"] = min(CROSS_ENTROPY_WEIGHTS, key=lambda weight: abs(weight - given))
    if "beam_size" in values:
        least, most = BEAM_SIZES
        values["beam_size"] = min(max(values["beam_size"], least), most)
    return values


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _run_trial(
    study: Any,
    trial: Any,
    settings: Settings,
    output: Path,
    *,
    on_progress: Callable[[str, Progress], None] | None,
) -> None:
    """Train with the choices of a trial, and keep its run if it is the best one."""
    optuna, chosen = _optuna(), trial.user_attrs["settings"]
    states, trial_settings = optuna.trial.TrialState, settings.with_changes(**chosen)
    folder, subwords = _folder(output, trial_settings), settings.target_units == "subwords"
    evaluations: dict[str, int] = {}  # number so far, by stage

    def report(stage: str, step: int, measured: Mapping[str, float]) -> None:
        before = sum(evaluations.values())
        evaluations[stage] = max(step // settings.evaluate_every, evaluations.get(stage, 0))
        title, sign = decisive(measured, subwords=subwords)
        value = sign * measured[title]
        if math.isfinite(value) and sum(evaluations.values()) > before:  # not repeated after an interruption
            trial.report(value, sum(evaluations.values()))

    def advance(stage: str, progress: Progress) -> None:
        if on_progress is not None:
            on_progress(stage, progress)
        if progress.measured and _is_evaluated(progress.step, settings):
            report(stage, progress.step, progress.measured)
            if trial.should_prune():
                raise optuna.TrialPruned

    for stage in trial_settings.stages():  # evaluations of an interrupted call
        log = folder / stage.folder / MEASUREMENTS
        for _, line in read_json_lines(log, hint="remove the folder of this trial") if log.exists() else ():
            if _is_evaluated(line["step"], settings):
                report(stage.name, line["step"], line)
    try:
        metrics = train_run(trial_settings, folder, on_progress=advance)
    except optuna.TrialPruned:
        with next_writer(output):
            study.tell(trial, state=states.PRUNED)
            shutil.rmtree(folder)
        return
    except (NotFiniteError, torch.OutOfMemoryError) as error:
        with next_writer(output):
            trial.set_user_attr("refused", error.problem if isinstance(error, InputError) else first_line(error))
            study.tell(trial, state=states.FAIL)
            shutil.rmtree(folder)
        return
    data = _checksums(settings)  # the files may have changed meanwhile
    try:
        _require_same_data(study, data, output)
    except InputError:
        best = _best(study)
        if best is None or best.user_attrs["settings"] != chosen:  # the same choices have the same folder
            shutil.rmtree(folder)
        raise
    title, value = _measure(metrics, subwords=subwords)
    with next_writer(output):
        _keep_best(study, trial, title, value, settings, output)


def _is_evaluated(step: int, settings: Settings) -> bool:
    """Whether trials are compared at a step: at multiples of ``evaluate_every``, which the last step need not be."""
    return settings.evaluate_every > 0 and step % settings.evaluate_every == 0


def _keep_best(study: Any, trial: Any, title: str, value: float, settings: Settings, output: Path) -> None:
    """End a trial with its value; remove its run, or, if it is the best one, those of earlier trials."""
    states, chosen = _optuna().trial.TrialState, trial.user_attrs["settings"]
    trial_settings = settings.with_changes(**chosen)
    folder = _folder(output, trial_settings)
    study.set_user_attr("title", title)
    before = _complete(study)
    kept = _best(study)
    is_best = kept is None or value > kept.value
    if is_best:  # before the study records it, because a later call would not write the file
        write_atomically(output / BEST, dump(trial_settings))
    study.tell(trial, value)
    if not is_best:
        if kept.user_attrs["settings"] != chosen:  # the same choices have the same folder
            shutil.rmtree(folder)
        return
    # A process may have died before its trial had settings.
    in_use = [running.user_attrs.get("settings") for running in study.get_trials(states=(states.RUNNING,))]
    for other in (ended.user_attrs["settings"] for ended in before):
        if other not in in_use:
            shutil.rmtree(_folder(output, settings.with_changes(**other)), ignore_errors=True)


def _measure(metrics: Mapping[str, Any], *, subwords: bool) -> tuple[str, float]:
    """Return the deciding measure of the best decoder on development data, signed so that more is better."""
    row = metrics["dev"]["decoders"][metrics["dev"]["best decoder"]]
    title, sign = decisive(row, subwords=subwords)
    return title, sign * row[title]


def _folder(output: Path, settings: Settings) -> Path:
    """Return the run folder of a choice of settings."""
    return output / "trials" / hashlib.sha256(dump(settings).encode()).hexdigest()[:12]


def _complete(study: Any) -> list[Any]:
    """List the trials that have a value."""
    return [trial for trial in _ended(study) if trial.state.name == "COMPLETE"]


def _best(study: Any) -> Any:
    """Return the best trial so far, whose run is kept, or None."""
    return max(_complete(study), key=lambda trial: trial.value, default=None)


def _ended(study: Any) -> list[Any]:
    """List the trials that have ended."""
    return [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED") or _was_refused(trial)]


def _was_refused(trial: Any) -> bool:
    return trial.state.name == "FAIL" and "refused" in trial.user_attrs


def _tuning(study: Any, settings: Settings, output: Path) -> Tuning | None:
    """Return all trials so far, or None if none is complete."""
    ended, best = _ended(study), _best(study)
    if best is None:
        return None
    title = study.user_attrs["title"]
    _, sign = decisive([title], subwords=title == "BLEU")

    def trial(frozen: Any) -> Trial:
        state: Any = "refused" if _was_refused(frozen) else frozen.state.name.lower()
        value = frozen.value
        if value is None and frozen.intermediate_values:
            value = frozen.intermediate_values[max(frozen.intermediate_values)]
        return Trial(state, None if value is None else sign * value, frozen.user_attrs["settings"])

    run = _folder(output, settings.with_changes(**best.user_attrs["settings"]))
    place = [frozen.number for frozen in ended].index(best.number)
    return Tuning(title, [trial(frozen) for frozen in ended], place, output / BEST, run)
