"""Models that search can drive, and the protocol that says what that takes."""

from __future__ import annotations

from seqwise.models.protocols import StepModel
from seqwise.models.recurrent import EncoderDecoder, Tagger

__all__ = ["EncoderDecoder", "StepModel", "Tagger"]
