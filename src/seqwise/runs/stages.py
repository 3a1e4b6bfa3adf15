"""What is trained before what, and the choice that the objective "auto" stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqwise.names import SELF_NORMALIZING
from seqwise.runs.settings import Settings, adopt

__all__ = ["SELF_NORMALIZING", "WARM_START_FOLDERS", "Stage", "resolve", "stages", "steps_of"]

WARM_START_FOLDERS = ("warm-start", "scheduled-sampling", "distillation")
"""Where the stages before the last are kept, below the run folder."""

_FROM_SCRATCH = ("cross-entropy", *SELF_NORMALIZING, "noise-contrastive")


@dataclass(frozen=True)
class Stage:
    """One training of a run; each goes on with the weights of the one before.

    Args:
        name: for progress bars and metrics.
        folder: below the run folder, "" for the run folder itself.
        settings: with the objective, epochs and learning rate of this stage.
    """

    name: str
    folder: str
    settings: Settings


def resolve(settings: Settings) -> Settings:
    """Put what has won here in the place of the objective "auto"; other settings are returned as they are, or adopted.

    A tagger that reads from left to right has to commit before it has seen what decides. It is trained with
    cross-entropy, then with scheduled sampling, then with the beam CRF on raw scores, and searched by these: of what
    beats the strongest controls, the best on development data (``python -m reproductions search-objectives``). Where
    the whole input is seen, nothing has beaten cross-entropy trained longer (Tables 4.1 and 4.2, g2p), so it gets the
    warm start's epochs as well. Everything else stays as it is set.

    Example:
        >>> resolve(Settings(objective="auto", encoder="left-to-right")).objective, resolve(Settings()).objective
        ('beam-crf', 'cross-entropy')
    """
    settings = adopt(settings)
    if settings.objective != "auto":
        return settings
    if settings.task == "tag" and settings.encoder == "left-to-right":
        return replace(settings, objective="beam-crf", score="global", warm_start="scheduled-sampling")
    return replace(settings, objective="cross-entropy", epochs=settings.warm_start_epochs + settings.epochs)


def stages(settings: Settings) -> list[Stage]:
    """The trainings of a run, in order: its warm start, if it has one, and the objective itself.

    A warm start by scheduled sampling is one by cross-entropy, followed by half as many epochs of sampling at half the
    learning rate; a distilled one, by as much of distillation, whose teacher is the model of cross-entropy.

    Example:
        >>> [stage.settings.objective for stage in stages(Settings(objective="hinge", warm_start="scheduled-sampling"))]
        ['cross-entropy', 'scheduled-sampling', 'hinge']
    """
    last = Stage("training", "", settings)
    if settings.objective in _FROM_SCRATCH or settings.warm_start == "none" or settings.warm_start_epochs == 0:
        return [last]
    first = replace(
        settings,
        objective="self-normalized" if settings.warm_start == "self-normalized" else "cross-entropy",
        epochs=settings.warm_start_epochs,
        learning_rate=settings.warm_start_learning_rate,
    )
    shorter = replace(first, epochs=first.epochs / 2, learning_rate=first.learning_rate / 2)
    found = [Stage("warm start", "warm-start", first)]
    if settings.warm_start == "scheduled-sampling":
        sampling = replace(shorter, objective="scheduled-sampling")
        found.append(Stage("scheduled sampling", "scheduled-sampling", sampling))
    if settings.warm_start == "distilled":
        found.append(Stage("distillation", "distillation", replace(shorter, objective="distillation")))
    return [*found, last]


def steps_of(settings: Settings, num_examples: int) -> int:
    """How many steps a stage takes: its epochs times the batches of one epoch.

    Example:
        >>> steps_of(Settings(epochs=1.5, batch_size=4), 9)
        4
    """
    return max(1, round(settings.epochs * -(-num_examples // settings.batch_size)))
