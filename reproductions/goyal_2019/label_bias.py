"""The systems of Tables 5.1 to 5.6: local and global normalisation through the relaxed beam, from three warm starts.

They are those of :mod:`reproductions.goyal_2018.exposure_bias`, which start from cross-entropy, and the same searches
from a self-normalised and from a distilled model. A tagger reads left to right ("uni", the classical case of label
bias) or in both directions ("bi"); a translator reads the whole source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from reproductions.goyal_2018 import exposure_bias
from reproductions.goyal_2018.exposure_bias import PLANS, Plan
from reproductions.systems import System, systems_of
from reproductions.tasks import Family, Task
from seqwise.runs.settings import Settings

LOG_PARTITION_WEIGHT = 0.05
"""lambda, with which E[log Z] is at most some tenths, and accuracy suffers little."""


# Translators need many steps before their attention works; smaller batches give more of them in the same time.
_TRANSLATION = PLANS["translation"]
OWN_PLANS = {
    "translation": Plan(
        {
            "cpu": _TRANSLATION.start["cpu"].with_changes(batch_size=32, epochs=6.0, learning_rate=2e-3),
            "gpu": _TRANSLATION.start["gpu"],
        },
        {"longer": 2, "feeding": 1, "search": 0.5, "likelihood": 1},
    )
}
"""Plans by name of the task, at the scales at which Chapter 5 is trained differently from Chapters 3 and 4."""


def plan_of(name: str, scale: str) -> Plan:
    """Return the plan of Chapter 5 for a task at a scale."""
    own = OWN_PLANS.get(name)
    return own if own is not None and scale in own.start else PLANS[name]


def runs_of(task: Task, scale: str, direction: str = "bi") -> str:
    """Return the folder of a task's runs, shared with Chapters 3 and 4 if the plan is."""
    is_shared = plan_of(task.name, scale) is PLANS[task.name]
    return exposure_bias.runs_of(task, direction) + ("" if is_shared else "-small-batches")


def family(start: Settings, seed: int, *, budget: Mapping[str, float], **options: Any) -> dict[str, System]:
    """Return every system of a task for one seed, by key; the arguments are those of the family of Chapters 3 and 4."""
    systems = exposure_bias.family(start, seed, budget=budget, **options)
    plain, longer = (systems[key].settings for key in ("cross-entropy", "cross-entropy-longer"))
    local, global_ = (systems[key].settings for key in ("direct-mixed", "direct-global"))
    distilled = longer.with_changes(objective="distillation", epochs=budget["likelihood"])
    stages: dict[str, tuple[Settings, str | None]] = {
        "self-normalized": (_normalized(plain), None),
        "self-normalized-longer": (_normalized(longer), "self-normalized"),
        "normalized-local": (local, "self-normalized"),
        "normalized-global": (global_, "self-normalized"),
        "distilled": (distilled, "cross-entropy"),
        "distilled-global": (global_, "distilled"),
    }
    return {**systems, **systems_of(stages, seed)}


def _normalized(settings: Settings) -> Settings:
    return settings.with_changes(objective="self-normalized", log_partition_weight=LOG_PARTITION_WEIGHT)


def family_of(task: Task, scale: str, direction: str = "bi") -> Family:
    """Return the systems of a task at a scale, as a function of the seed; only taggers have a direction."""
    start, options = plan_of(task.name, scale).options_at(scale, len(task.load_data().train), direction)
    return partial(family, start, **options)
