"""Models for search and sampling, and the protocols that they implement."""

from __future__ import annotations

from seqwise.models.chain import Chain, ChainTagger, linear_chain
from seqwise.models.characters import spelt_source
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.models.masked import MaskedLSTM, MaskedTransformer
from seqwise.models.protocols import MaskedModel, ParallelModel, StepModel, StreamModel
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.models.transformer import Transformer

__all__ = [
    "Chain",
    "ChainTagger",
    "ConditionalMaskedTransformer",
    "EncoderDecoder",
    "MaskedLSTM",
    "MaskedModel",
    "MaskedTransformer",
    "ParallelModel",
    "StepModel",
    "StreamModel",
    "Tagger",
    "Transformer",
    "linear_chain",
    "spelt_source",
]
