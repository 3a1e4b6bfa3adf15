"""``seqwise tune``."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import print_device, print_table, progress_bars
from seqwise.cli.flags import given_flags
from seqwise.errors import warn
from seqwise.names import count_of, measure_heading, measure_text

if TYPE_CHECKING:
    from seqwise.runs.tuning import Tuning


def tune(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="settings of train in YAML; options override them")],
    *,
    trials: Annotated[int, typer.Option(metavar="N", help="total number of trials, those of earlier calls included")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="folder to create or to continue")],
    as_json: Annotated[bool, typer.Option("--json", help="print only the trials, as JSON")] = False,
    **flags: str | None,
) -> None:
    """Tune hyperparameters on development data.

    Tunes the learning rate and epochs of each stage and, where the objective has them, the schedule of alpha, the
    weight of added cross-entropy and the beam size. The same command resumes, or adds trials.

    Several processes on one machine, started by torchrun or by the same command again, each train trials of their own.
    The settings tried then depend on the order in which trials end, so two such studies differ.
    """
    from seqwise.runs.settings import load_settings

    settings = load_settings(config, given_flags(flags))
    # Imported after the settings are checked, because it takes seconds.
    from seqwise.runs.tuning import tune as tune_settings

    print_device()
    counts: list[int] = []  # of trials that have ended
    with progress_bars() as progress:
        bar = progress.add_task("trials", total=max(trials, 1), note="")

        def on_progress(stage: str, step: Any) -> None:
            progress.update(bar, note=f"{stage}, step {step.step:,} of {step.steps:,}")

        def on_trial(tuning: Tuning | None) -> None:
            ended = 0 if tuning is None else len(tuning.trials)
            counts.append(ended)
            note = "" if tuning is None else f"best {_value(tuning, tuning.trials[tuning.best].value)}"
            progress.update(bar, completed=ended, note=note)

        tuning = tune_settings(settings, output, num_trials=trials, on_trial=on_trial, on_progress=on_progress)
    if counts[0] >= trials:
        warn(f"no trial was run: {count_of(counts[0], 'trial')} had ended, and --trials {trials} counts them")
    if as_json:
        print(json.dumps({**asdict(tuning), "config": str(tuning.config), "run": str(tuning.run)}))
        return
    _print_trials(tuning)
    run = f", run: {tuning.run}" if tuning.run.exists() else ""  # a warning says that it is not there
    print(f"the best trial is {tuning.best + 1}; settings: {tuning.config}{run}")
    print(f"try: seqwise train --config {shlex.quote(str(tuning.config))} --output FOLDER")


def _value(tuning: Tuning, value: float | None) -> str:
    return "" if value is None else measure_text(tuning.title, value)


def _print_trials(tuning: Tuning) -> None:
    rows = []
    for place, trial in enumerate(tuning.trials):
        state = "best" if place == tuning.best else "" if trial.state == "complete" else trial.state
        settings = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
        rows.append((str(place + 1), state, _value(tuning, trial.value), settings))
    print_table(("trial", "", measure_heading(tuning.title), "settings"), rows, names=4)
