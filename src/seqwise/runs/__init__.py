"""Runs: settings, training from files to a run folder, prediction and measures from that folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.runs.loading import build_model, build_vocabularies, load_run, new_run
    from seqwise.runs.masked_model import (
        MaskedRun,
        SequenceScore,
        load_masked_run,
        read_sequences,
        save_masked_run,
        score_sequences,
    )
    from seqwise.runs.masked_model_settings import MaskedModelSettings
    from seqwise.runs.run import (
        Prediction,
        Run,
        best_decoder,
        choose_decoder,
        predict,
        require_enough_candidates,
        save_run,
    )
    from seqwise.runs.settings import Settings
    from seqwise.runs.training import train_run
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.runs.settings",
        "seqwise.runs.masked_model_settings",
        "seqwise.runs.run",
        "seqwise.runs.loading",
        "seqwise.runs.masked_model",
        "seqwise.runs.training",
    )

__all__ = [
    "MaskedModelSettings",
    "MaskedRun",
    "Prediction",
    "Run",
    "SequenceScore",
    "Settings",
    "best_decoder",
    "build_model",
    "build_vocabularies",
    "choose_decoder",
    "load_masked_run",
    "load_run",
    "new_run",
    "predict",
    "read_sequences",
    "require_enough_candidates",
    "save_masked_run",
    "save_run",
    "score_sequences",
    "train_run",
]
