"""seqwise: neural sequence models that are trained, searched and sampled as whole sequences.

Start with :mod:`seqwise.search.selection` (the idea), then :mod:`seqwise.search.beam` (the one loop), then
:mod:`seqwise.objectives.search_aware` (what training makes of it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.decoding import Decoder, Hypothesis, backtrace, decode, hypotheses
    from seqwise.errors import InputError
    from seqwise.hugging_face import SearchAwareConfig, SearchAwareTrainer
    from seqwise.models import EncoderDecoder, StepModel, Tagger
    from seqwise.objectives import (
        cross_entropy,
        direct_loss,
        gold_scores,
        hamming_cost,
        hinge_loss,
        log_partition_statistics,
        self_normalized_cross_entropy,
    )
    from seqwise.runs import load_run, predict
    from seqwise.sampling import (
        energies,
        gibbs,
        mask_predict,
        masked_conditionals,
        metropolis_hastings,
        sample_chains,
        start_chains,
    )
    from seqwise.search import (
        Beam,
        Gumbel,
        HardTopK,
        Score,
        SoftArgmax,
        SoftTopK,
        StochasticBeam,
        beam_search,
        cost_augmented,
        fed_logits,
        global_,
        hard_top_k,
        importance_weights,
        interpolated,
        local,
        normalized_importance_weights,
        peaked_softmax,
        soft_top_k,
        stochastic_beam_search,
        unroll,
    )
    from seqwise.training import fit
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.errors",
        "seqwise.search",
        "seqwise.models",
        "seqwise.objectives",
        "seqwise.decoding",
        "seqwise.sampling",
        "seqwise.training",
        "seqwise.runs",
        "seqwise.hugging_face",
    )

__version__ = "0.1.0"

__all__ = [
    "Beam",
    "Decoder",
    "EncoderDecoder",
    "Gumbel",
    "HardTopK",
    "Hypothesis",
    "InputError",
    "Score",
    "SearchAwareConfig",
    "SearchAwareTrainer",
    "SoftArgmax",
    "SoftTopK",
    "StepModel",
    "StochasticBeam",
    "Tagger",
    "backtrace",
    "beam_search",
    "cost_augmented",
    "cross_entropy",
    "decode",
    "direct_loss",
    "energies",
    "fed_logits",
    "fit",
    "gibbs",
    "global_",
    "gold_scores",
    "hamming_cost",
    "hard_top_k",
    "hinge_loss",
    "hypotheses",
    "importance_weights",
    "interpolated",
    "load_run",
    "local",
    "log_partition_statistics",
    "mask_predict",
    "masked_conditionals",
    "metropolis_hastings",
    "normalized_importance_weights",
    "peaked_softmax",
    "predict",
    "sample_chains",
    "self_normalized_cross_entropy",
    "soft_top_k",
    "start_chains",
    "stochastic_beam_search",
    "unroll",
]
