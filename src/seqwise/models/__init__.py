"""Models that search can drive, and the protocols that say what that takes."""

from __future__ import annotations

from seqwise.models.protocols import ParallelModel, StepModel
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.models.transformer import Transformer

__all__ = ["EncoderDecoder", "ParallelModel", "StepModel", "Tagger", "Transformer"]
