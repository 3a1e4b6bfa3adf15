"""Runs: settings, training from files to a run folder, prediction and measures from that folder alone."""

from __future__ import annotations

from seqwise.runs.run import (
    Prediction,
    Run,
    best_decoder,
    build_model,
    build_vocabularies,
    choose_decoder,
    load_run,
    new_run,
    predict,
    require_enough_candidates,
    save_run,
)
from seqwise.runs.settings import Settings

__all__ = [
    "Prediction",
    "Run",
    "Settings",
    "best_decoder",
    "build_model",
    "build_vocabularies",
    "choose_decoder",
    "load_run",
    "new_run",
    "predict",
    "require_enough_candidates",
    "save_run",
]
