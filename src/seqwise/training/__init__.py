"""Training: one loop for every model, based on the Hugging Face Trainer, with crash-safe checkpoints.

``fit`` is imported on first use, because importing transformers takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.training.trainer import TrainingResult, fit
else:
    __getattr__, __dir__ = lazy_names(__name__, "seqwise.training.trainer")

__all__ = ["TrainingResult", "fit"]
