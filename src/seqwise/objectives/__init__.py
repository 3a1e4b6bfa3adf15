"""What training minimises: likelihood, self-normalisation, and losses of a whole search."""

from __future__ import annotations

from seqwise.objectives.likelihood import cross_entropy, gold_scores
from seqwise.objectives.objective import (
    Objective,
    cross_entropy_objective,
    hinge_objective,
    relaxed_beam_objective,
    scheduled_sampling_objective,
    search_targets,
    self_normalized_objective,
)
from seqwise.objectives.search_aware import direct_loss, hamming_cost, hinge_loss
from seqwise.objectives.self_normalization import (
    LogPartitionStatistics,
    log_partition_statistics,
    log_partitions,
    self_normalized_cross_entropy,
)

__all__ = [
    "LogPartitionStatistics",
    "Objective",
    "cross_entropy",
    "cross_entropy_objective",
    "direct_loss",
    "gold_scores",
    "hamming_cost",
    "hinge_loss",
    "hinge_objective",
    "log_partition_statistics",
    "log_partitions",
    "relaxed_beam_objective",
    "scheduled_sampling_objective",
    "search_targets",
    "self_normalized_cross_entropy",
    "self_normalized_objective",
]
