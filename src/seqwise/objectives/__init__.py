"""What training minimises: likelihood, self-normalisation, noise contrast, and losses of a whole search."""

from __future__ import annotations

from seqwise.objectives.beam_likelihood import (
    beam_crf_loss,
    beam_crf_objective,
    dense_beam_loss,
    dense_beam_objective,
    negative_log_share,
    soft_dense_beam_objective,
)
from seqwise.objectives.by_name import log_partition_objective, objective_by_name
from seqwise.objectives.chain import (
    best_chain_output,
    chain_log_partition,
    chain_loss,
    chain_marginals,
    chain_score,
    crf_objective,
)
from seqwise.objectives.contrastive import (
    expected_noise_contrastive_loss,
    noise_contrastive_loss,
    noise_log_probs,
    sampled_noise_contrastive_loss,
)
from seqwise.objectives.distillation import distillation_loss, distillation_objective
from seqwise.objectives.enumeration import (
    MOST_OUTPUTS,
    enumerated_likelihood_objective,
    enumerated_log_partition,
    every_output,
)
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
    CostOfGold,
    Objective,
    cross_entropy_objective,
    hinge_objective,
    mixed_objective,
    noise_contrastive_objective,
    relaxed_beam_objective,
    sampled_self_normalized_objective,
    scheduled_sampling_objective,
    search_targets,
    self_normalized_objective,
    two_pass_scheduled_sampling_objective,
    unnormalized_likelihood_objective,
)
from seqwise.objectives.rescoring import beam_outputs, output_scores
from seqwise.objectives.risk import (
    OutputCost,
    edit_distances,
    expected_cost,
    hamming_distances,
    minimum_risk_objective,
)
from seqwise.objectives.search_aware import direct_loss, hamming_cost, hinge_loss
from seqwise.objectives.self_normalization import (
    LogPartitionStatistics,
    log_partition_statistics,
    log_partitions,
    sampled_self_normalized_cross_entropy,
    self_normalized_cross_entropy,
    unnormalized_likelihood_loss,
)
from seqwise.objectives.violations import (
    beam_search_optimization_loss,
    beam_search_optimization_objective,
    early_update_loss,
    early_update_objective,
    hard_beam_hinge_objective,
    perceptron_violation,
)

__all__ = [
    "MOST_OUTPUTS",
    "CostOfGold",
    "LogPartitionStatistics",
    "Objective",
    "OutputCost",
    "beam_crf_loss",
    "beam_crf_objective",
    "beam_outputs",
    "beam_search_optimization_loss",
    "beam_search_optimization_objective",
    "best_chain_output",
    "chain_log_partition",
    "chain_loss",
    "chain_marginals",
    "chain_score",
    "conditional_masked_objective",
    "crf_objective",
    "cross_entropy",
    "cross_entropy_objective",
    "dense_beam_loss",
    "dense_beam_objective",
    "direct_loss",
    "distillation_loss",
    "distillation_objective",
    "early_update_loss",
    "early_update_objective",
    "edit_distances",
    "enumerated_likelihood_objective",
    "enumerated_log_partition",
    "every_output",
    "expected_cost",
    "expected_noise_contrastive_loss",
    "gold_scores",
    "hamming_cost",
    "hamming_distances",
    "hard_beam_hinge_objective",
    "hinge_loss",
    "hinge_objective",
    "log_partition_objective",
    "log_partition_statistics",
    "log_partitions",
    "mask_fraction",
    "mask_one",
    "mask_uniformly",
    "masked_cross_entropy",
    "masked_objective",
    "minimum_risk_objective",
    "mixed_objective",
    "negative_log_share",
    "noise_contrastive_loss",
    "noise_contrastive_objective",
    "noise_log_probs",
    "objective_by_name",
    "output_scores",
    "perceptron_violation",
    "relaxed_beam_objective",
    "sampled_noise_contrastive_loss",
    "sampled_self_normalized_cross_entropy",
    "sampled_self_normalized_objective",
    "scheduled_sampling_objective",
    "search_targets",
    "self_normalized_cross_entropy",
    "self_normalized_objective",
    "soft_dense_beam_objective",
    "two_pass_scheduled_sampling_objective",
    "unnormalized_likelihood_loss",
    "unnormalized_likelihood_objective",
]
