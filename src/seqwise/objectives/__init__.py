"""Training objectives: likelihood, self-normalisation, noise contrast, and search-aware losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.objectives.beam_likelihood import beam_crf_objective
    from seqwise.objectives.chain import best_chain_output, chain_log_partition, chain_loss, chain_marginals
    from seqwise.objectives.likelihood import cross_entropy, gold_scores
    from seqwise.objectives.masked_likelihood import (
        conditional_masked_objective,
        mask_fraction,
        mask_one,
        mask_uniformly,
        masked_cross_entropy,
        masked_objective,
    )
    from seqwise.objectives.objective import (
        Objective,
        cross_entropy_objective,
        mixed_objective,
        teacher_forced_logits,
    )
    from seqwise.objectives.options import Context, ObjectiveConfig
    from seqwise.objectives.risk import minimum_risk_objective
    from seqwise.objectives.search_aware import (
        direct_loss,
        hamming_cost,
        hinge_loss,
        hinge_objective,
        relaxed_beam_objective,
    )
    from seqwise.objectives.self_normalization import (
        log_partitions,
        sampled_self_normalized_cross_entropy,
        self_normalized_cross_entropy,
        unnormalized_likelihood_loss,
    )
    from seqwise.objectives.settings import (
        CRF,
        BeamCRF,
        BeamSearchOptimization,
        CrossEntropy,
        DenseBeam,
        Distillation,
        EarlyUpdate,
        HardHinge,
        Hinge,
        MinimumRisk,
        NoiseContrastive,
        RelaxedBeam,
        SampledSelfNormalized,
        ScheduledSampling,
        SelfNormalized,
        SoftDenseBeam,
        SoftmaxMargin,
        UnnormalizedLikelihood,
    )
    from seqwise.objectives.softmax_margin import softmax_margin_objective
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.objectives.beam_likelihood",
        "seqwise.objectives.chain",
        "seqwise.objectives.contrastive",
        "seqwise.objectives.likelihood",
        "seqwise.objectives.masked_likelihood",
        "seqwise.objectives.objective",
        "seqwise.objectives.risk",
        "seqwise.objectives.search_aware",
        "seqwise.objectives.self_normalization",
        # Before the options that they share: a base class comes with its members.
        "seqwise.objectives.settings",
        "seqwise.objectives.options",
        "seqwise.objectives.softmax_margin",
    )

__all__ = [
    "CRF",
    "BeamCRF",
    "BeamSearchOptimization",
    "Context",
    "CrossEntropy",
    "DenseBeam",
    "Distillation",
    "EarlyUpdate",
    "HardHinge",
    "Hinge",
    "MinimumRisk",
    "NoiseContrastive",
    "Objective",
    "ObjectiveConfig",
    "RelaxedBeam",
    "SampledSelfNormalized",
    "ScheduledSampling",
    "SelfNormalized",
    "SoftDenseBeam",
    "SoftmaxMargin",
    "UnnormalizedLikelihood",
    "beam_crf_objective",
    "best_chain_output",
    "chain_log_partition",
    "chain_loss",
    "chain_marginals",
    "conditional_masked_objective",
    "cross_entropy",
    "cross_entropy_objective",
    "direct_loss",
    "gold_scores",
    "hamming_cost",
    "hinge_loss",
    "hinge_objective",
    "log_partitions",
    "mask_fraction",
    "mask_one",
    "mask_uniformly",
    "masked_cross_entropy",
    "masked_objective",
    "minimum_risk_objective",
    "mixed_objective",
    "relaxed_beam_objective",
    "sampled_self_normalized_cross_entropy",
    "self_normalized_cross_entropy",
    "softmax_margin_objective",
    "teacher_forced_logits",
    "unnormalized_likelihood_loss",
]
