"""What training minimises: likelihood, self-normalisation, and losses of a whole search."""

from __future__ import annotations

from seqwise.objectives.beam_likelihood import (
    beam_crf_loss,
    beam_crf_objective,
    dense_beam_loss,
    dense_beam_objective,
    negative_log_share,
    soft_dense_beam_objective,
)
from seqwise.objectives.likelihood import cross_entropy, gold_scores
from seqwise.objectives.objective import (
    CostOfGold,
    Objective,
    cross_entropy_objective,
    hinge_objective,
    relaxed_beam_objective,
    scheduled_sampling_objective,
    search_targets,
    self_normalized_objective,
    two_pass_scheduled_sampling_objective,
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
    self_normalized_cross_entropy,
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
    "CostOfGold",
    "LogPartitionStatistics",
    "Objective",
    "OutputCost",
    "beam_crf_loss",
    "beam_crf_objective",
    "beam_outputs",
    "beam_search_optimization_loss",
    "beam_search_optimization_objective",
    "cross_entropy",
    "cross_entropy_objective",
    "dense_beam_loss",
    "dense_beam_objective",
    "direct_loss",
    "early_update_loss",
    "early_update_objective",
    "edit_distances",
    "expected_cost",
    "gold_scores",
    "hamming_cost",
    "hamming_distances",
    "hard_beam_hinge_objective",
    "hinge_loss",
    "hinge_objective",
    "log_partition_statistics",
    "log_partitions",
    "minimum_risk_objective",
    "negative_log_share",
    "output_scores",
    "perceptron_violation",
    "relaxed_beam_objective",
    "scheduled_sampling_objective",
    "search_targets",
    "self_normalized_cross_entropy",
    "self_normalized_objective",
    "soft_dense_beam_objective",
    "two_pass_scheduled_sampling_objective",
]
