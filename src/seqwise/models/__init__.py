"""Models that search can drive, and the protocols that say what that takes."""

from __future__ import annotations

from seqwise.models.chain import Chain, ChainTagger, linear_chain
from seqwise.models.characters import CharacterConvolution, spelt_source
from seqwise.models.conditional import ConditionalContext, ConditionalMaskedTransformer
from seqwise.models.hub import HubModel
from seqwise.models.masked import MaskedLSTM, MaskedTransformer
from seqwise.models.protocols import MaskedModel, ParallelModel, StepModel
from seqwise.models.recurrent import EncoderDecoder, FixedAttentionTagger, Tagger
from seqwise.models.shared_cache import SharedCache
from seqwise.models.transformer import Transformer

__all__ = [
    "Chain",
    "ChainTagger",
    "CharacterConvolution",
    "ConditionalContext",
    "ConditionalMaskedTransformer",
    "EncoderDecoder",
    "FixedAttentionTagger",
    "HubModel",
    "MaskedLSTM",
    "MaskedModel",
    "MaskedTransformer",
    "ParallelModel",
    "SharedCache",
    "StepModel",
    "Tagger",
    "Transformer",
    "linear_chain",
    "spelt_source",
]
