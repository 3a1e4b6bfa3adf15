"""Models that search can drive, and the protocols that say what that takes."""

from __future__ import annotations

from seqwise.models.chain import Chain, ChainTagger, linear_chain
from seqwise.models.conditional import ConditionalContext, ConditionalMaskedTransformer
from seqwise.models.hub import HubModel
from seqwise.models.log_linear import HeldOut, LogLinear, held_out, rerank, sentence_scores
from seqwise.models.log_linear_training import (
    AdagradState,
    Normalization,
    adagrad_state,
    adagrad_step,
    exact_normalization,
    language_model_loss,
    sampled_normalization,
)
from seqwise.models.masked import MaskedLSTM, MaskedTransformer
from seqwise.models.protocols import MaskedModel, ParallelModel, StepModel
from seqwise.models.recurrent import EncoderDecoder, FixedAttentionTagger, Tagger
from seqwise.models.shared_cache import SharedCache
from seqwise.models.transformer import Transformer

__all__ = [
    "AdagradState",
    "Chain",
    "ChainTagger",
    "ConditionalContext",
    "ConditionalMaskedTransformer",
    "EncoderDecoder",
    "FixedAttentionTagger",
    "HeldOut",
    "HubModel",
    "LogLinear",
    "MaskedLSTM",
    "MaskedModel",
    "MaskedTransformer",
    "Normalization",
    "ParallelModel",
    "SharedCache",
    "StepModel",
    "Tagger",
    "Transformer",
    "adagrad_state",
    "adagrad_step",
    "exact_normalization",
    "held_out",
    "language_model_loss",
    "linear_chain",
    "rerank",
    "sampled_normalization",
    "sentence_scores",
]
