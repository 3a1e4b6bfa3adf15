"""Hugging Face models as step models, taggers and masked models, and a Trainer with search-aware objectives.

Importing this package imports transformers; importing seqwise does not. The Trainer is imported on first use, because
its dependencies take seconds to import and scoring and sampling do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names
from seqwise.hugging_face.generation import generation_selector
from seqwise.hugging_face.language import text_grammar, text_language
from seqwise.hugging_face.masked_model import HuggingFaceMaskedModel, masked_model
from seqwise.hugging_face.masked_text import (
    SampledTexts,
    TextSample,
    infill,
    sample_texts,
)
from seqwise.hugging_face.scoring import pseudo_log_likelihoods, score_texts
from seqwise.hugging_face.step_model import step_model
from seqwise.hugging_face.tagger import load_tagger, pretrained_tagger, save_tagger, word_pieces

if TYPE_CHECKING:
    from seqwise.hugging_face.configuration import SearchAwareConfig
    from seqwise.hugging_face.trainer import SearchAwareTrainer
else:
    __getattr__, __dir__ = lazy_names(__name__, "seqwise.hugging_face.configuration", "seqwise.hugging_face.trainer")

__all__ = [
    "HuggingFaceMaskedModel",
    "SampledTexts",
    "SearchAwareConfig",
    "SearchAwareTrainer",
    "TextSample",
    "generation_selector",
    "infill",
    "load_tagger",
    "masked_model",
    "pretrained_tagger",
    "pseudo_log_likelihoods",
    "sample_texts",
    "save_tagger",
    "score_texts",
    "step_model",
    "text_grammar",
    "text_language",
    "word_pieces",
]
