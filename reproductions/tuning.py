"""Learning rates by development data: the same number of trials for every system, controls included.

Systems are tuned in the order in which they start from each other: a second stage starts from the best checkpoint of
the best trial of its start. Test outputs are kept beside those of the development data, and not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reproductions.systems import Cell, Data, System, run_systems
from reproductions.workers import ProgressFactory
from seqwise.data.durable import write_atomically
from seqwise.evaluation.metrics import Sums
from seqwise.runs.settings import Settings

RATES = (1.0, 0.4, 0.15)
"""Learning rates that are tried, as parts of the one that a system comes with."""

PATIENCE = 6
"""Evaluations without a better one that end a stage."""

TRIALS = "trials"
"""The folder of the trials."""


@dataclass(frozen=True)
class Trial:
    """A system with one of the learning rates."""

    system: System  # a cell of its own
    part: float  # of the learning rate that the system came with


def ended_on_dev(start: Settings, num_examples: int, *, evaluations: int = 2) -> Settings:
    """Return settings with which development data end a stage: looked at so many times an epoch, six without a better.

    Stages that are derived from them are ended in the same way.
    """
    assert start.batch_size is not None
    steps_an_epoch = -(-num_examples // start.batch_size)
    return start.with_changes(evaluate_every=max(1, steps_an_epoch // evaluations), patience=PATIENCE)


def rates_of(scale: str) -> tuple[float, ...]:
    """Return the learning rates that are tried at a scale; none where every system has the rate that it comes with."""
    return RATES if scale == "converged" else ()


def tune(
    systems: Sequence[System],
    load_data: Callable[[], Data],
    count: Callable[[Sequence[tuple[str, ...]]], Sums],
    folder: Path,
    *,
    record: Path,
    decoders: Sequence[str],
    rates: Sequence[float] = RATES,
    progress: ProgressFactory,
) -> dict[str, Trial]:
    """Try every system with several learning rates, and choose by its best decoder on development data."""
    trials: dict[str, list[Trial]] = {}
    scores: dict[str, list[float]] = {}
    best: dict[str, Trial] = {}
    for level in _levels(systems):
        trials |= {system.folder: _trials(system, rates, best) for system in level}
        # All that came before is named again: it is read back, and what starts from it depends on its weights.
        every = [trial.system for several in trials.values() for trial in several]
        cells = run_systems(every, load_data, folder, progress=progress, decoders=decoders)
        for system in level:
            several = trials[system.folder]
            scores[system.folder] = [_on_dev(cells[trial.system.folder], count) for trial in several]
            best[system.folder] = max(zip(scores[system.folder], several, strict=True), key=lambda pair: pair[0])[1]
    written = {
        name: {
            "learning_rates": [trial.system.settings.learning_rate for trial in trials[name]],
            "development": scores[name],
            "chosen": best[name].system.settings.learning_rate,
        }
        for name in trials
    }
    write_atomically(record, json.dumps(written, indent=1) + "\n")
    return best


def with_rates(systems: Mapping[str, System], chosen: Mapping[str, float]) -> dict[str, System]:
    """Give systems the learning rates that were chosen, by their keys; others stay as they are."""
    return {key: _at(system, chosen.get(key, 1.0)) for key, system in systems.items()}


def with_chosen_rate(cell: Cell, trial: Trial, rates: Sequence[float]) -> Cell:
    """Add the learning rate that was chosen, and whether a better one may lie beyond those that were tried."""
    return replace(cell, learning_rate=trial.system.settings.learning_rate, place_of_rate=place_of(trial.part, rates))


def place_of(part: float, rates: Sequence[float]) -> str:
    """Return "lowest" or "highest" where a rate is that of all that were tried, else ""."""
    return {min(rates): "lowest", max(rates): "highest"}.get(part, "")


def _at(system: System, part: float) -> System:
    rate = part * system.settings.learning_rate
    return replace(system, settings=system.settings.with_changes(learning_rate=rate))


def _trials(system: System, rates: Sequence[float], best: Mapping[str, Trial]) -> list[Trial]:
    start = None if system.starts_from is None else best[system.starts_from].system.folder
    trials = []
    for number, part in enumerate(rates, start=1):
        name, folder = f"{system.name}, trial {number}", f"{TRIALS}/{system.folder}/{number}"
        trials.append(Trial(replace(_at(system, part), name=name, folder=folder, starts_from=start), part))
    return trials


def _levels(systems: Sequence[System]) -> list[list[System]]:
    """Group systems: those that start from nothing, those that start from these, and so on."""
    levels: list[list[System]] = []
    placed: set[str | None] = {None}
    waiting = list(systems)
    while waiting:
        level = [system for system in waiting if system.starts_from in placed]
        levels.append(level)
        placed |= {system.folder for system in level}
        waiting = [system for system in waiting if system.folder not in placed]
    return levels


def _on_dev(cell: Cell, count: Callable[[Sequence[tuple[str, ...]]], Sums]) -> float:
    return max(count(outputs).value for outputs in cell.dev_outputs.values())
