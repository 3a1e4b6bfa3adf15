"""Stages of a training run, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqwise.data.batches import EncodedExample
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.settings import Settings

WARM_START_FOLDERS = ("warm-start", "scheduled-sampling", "distillation")
"""Folder of the stages before the last, below the run folder."""


@dataclass(frozen=True)
class Stage:
    """One training stage of a run; each goes on with the weights of the one before.

    Attributes:
        name: for progress bars and metrics.
        folder: below the run folder, "" for the run folder itself.
        settings: with the objective, epochs and learning rate of this stage.
    """

    name: str
    folder: str
    settings: Settings


def stages(settings: Settings) -> list[Stage]:
    """List the stages of a run, in order: its warm start, if it has one, and the objective itself."""
    start = settings.warm_start
    first = [] if start is None or start.epochs == 0 else start.stages()
    found = []
    for name, folder, objective, share in first:
        assert start is not None
        changes = {
            "objective": objective,
            "warm_start": None,
            "epochs": share * start.epochs,
            "learning_rate": share * settings.warm_start_learning_rate,
        }
        found.append(Stage(name, folder, settings.model_copy(update=changes)))
    return [*found, Stage("training", "", settings)]


def steps_of(settings: Settings | MaskedModelSettings, encoded: Sequence[EncodedExample]) -> int:
    """Number of steps of a stage: its epochs times the batches of one epoch."""
    return max(1, round(settings.epochs * len(settings.batches(encoded))))
