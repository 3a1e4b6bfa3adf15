"""Learning rates chosen on development data, with the same number of trials for every system, controls included.

Systems are tuned in the order in which they start from each other: a second stage starts from the best checkpoint of
the best trial of its start. Test outputs are stored with those of the development data, and not used.
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
"""Factors by which the learning rate of a system is multiplied in its trials."""

PATIENCE = 6
"""Number of evaluations without improvement that end a stage."""

TRIALS = "trials"
"""The folder of the trials."""


@dataclass(frozen=True)
class Trial:
    """System with one of the learning rates."""

    system: System  # a cell of its own
    factor: float  # of its learning rate


def with_early_stopping(start: Settings, num_examples: int, *, evaluations: int = 2) -> Settings:
    """Return settings with early stopping on development data, after so many evaluations per epoch.

    Stages derived from them are stopped in the same way.
    """
    assert start.batch_size is not None
    steps_per_epoch = -(-num_examples // start.batch_size)
    return start.with_changes(evaluate_every=max(1, steps_per_epoch // evaluations), patience=PATIENCE)


def rates_of(scale: str) -> tuple[float, ...]:
    """Return the factors of learning rates to try at a scale; none if the scale does not tune them."""
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
        # Earlier levels are listed again: they are read back, and the fingerprints of later ones need their weights.
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
    """Multiply the learning rates of systems by the chosen factors, by key; other systems stay as they are."""
    return {key: _at(system, chosen.get(key, 1.0)) for key, system in systems.items()}


def with_chosen_rate(cell: Cell, trial: Trial, rates: Sequence[float]) -> Cell:
    """Add the chosen learning rate to a cell, and whether it is at an end of the range that was tried."""
    return replace(cell, learning_rate=trial.system.settings.learning_rate, place_of_rate=place_of(trial.factor, rates))


def place_of(factor: float, rates: Sequence[float]) -> str:
    """Return "lowest" or "highest" if a rate is at that end of those that were tried, else ""."""
    return {min(rates): "lowest", max(rates): "highest"}.get(factor, "")


def _at(system: System, factor: float) -> System:
    rate = factor * system.settings.learning_rate
    return replace(system, settings=system.settings.with_changes(learning_rate=rate))


def _trials(system: System, rates: Sequence[float], best: Mapping[str, Trial]) -> list[Trial]:
    start = None if system.starts_from is None else best[system.starts_from].system.folder
    trials = []
    for number, factor in enumerate(rates, start=1):
        name, folder = f"{system.name}, trial {number}", f"{TRIALS}/{system.folder}/{number}"
        trials.append(Trial(replace(_at(system, factor), name=name, folder=folder, starts_from=start), factor))
    return trials


def _levels(systems: Sequence[System]) -> list[list[System]]:
    """Group systems: those that start from new weights, those that start from these, and so on."""
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
