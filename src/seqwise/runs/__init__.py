"""Runs: settings, training from files to a run folder, and prediction and evaluation from that folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.runs.decoder_choice import choose_decoder
    from seqwise.runs.inputs import example_of, read_sequences
    from seqwise.runs.language import in_language
    from seqwise.runs.loading import load_run, new_run, save_run
    from seqwise.runs.masked_model_settings import MaskedModelSettings, masked_settings
    from seqwise.runs.run import Prediction, Run, predict
    from seqwise.runs.scoring import Scorer
    from seqwise.runs.settings import Settings, train_settings
    from seqwise.runs.streaming import Stream, Streams, Update
    from seqwise.runs.training import train_run
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.runs.settings",
        "seqwise.runs.masked_model_settings",
        "seqwise.runs.inputs",
        "seqwise.runs.language",
        "seqwise.runs.decoder_choice",
        "seqwise.runs.run",
        "seqwise.runs.loading",
        "seqwise.runs.scoring",
        "seqwise.runs.streaming",
        "seqwise.runs.training",
    )

__all__ = [
    "MaskedModelSettings",
    "Prediction",
    "Run",
    "Scorer",
    "Settings",
    "Stream",
    "Streams",
    "Update",
    "choose_decoder",
    "example_of",
    "in_language",
    "load_run",
    "masked_settings",
    "new_run",
    "predict",
    "read_sequences",
    "save_run",
    "train_run",
    "train_settings",
]
