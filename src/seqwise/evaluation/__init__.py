"""Measures with bootstrap intervals, and signatures that record how results were made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.evaluation.diagnosis import ExposureGap, LengthBias, exposure_gap, length_bias
    from seqwise.evaluation.entities import entity_f1, macro_entity_f1
    from seqwise.evaluation.exact_search import BeamErrors, beam_errors, exact_outputs
    from seqwise.evaluation.label_bias import LabelBias, explore_label_bias
    from seqwise.evaluation.log_partitions import LogPartitionReport, log_partition_report
    from seqwise.evaluation.metrics import (
        Comparison,
        Counts,
        Estimate,
        Sums,
        bootstrap_interval,
        edit_distance,
        paired_bootstrap,
        sequence_accuracy,
        token_accuracy,
        token_error_rate,
        word_error_rate,
    )
    from seqwise.evaluation.minimal_pairs import pair_accuracies
    from seqwise.evaluation.slot_ranking import SlotRanking, rank_slots
    from seqwise.evaluation.translation import bleu, bleu_signature
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.evaluation.diagnosis",
        "seqwise.evaluation.entities",
        "seqwise.evaluation.exact_search",
        "seqwise.evaluation.label_bias",
        "seqwise.evaluation.log_partitions",
        "seqwise.evaluation.metrics",
        "seqwise.evaluation.minimal_pairs",
        "seqwise.evaluation.slot_ranking",
        "seqwise.evaluation.translation",
    )

__all__ = [
    "BeamErrors",
    "Comparison",
    "Counts",
    "Estimate",
    "ExposureGap",
    "LabelBias",
    "LengthBias",
    "LogPartitionReport",
    "SlotRanking",
    "Sums",
    "beam_errors",
    "bleu",
    "bleu_signature",
    "bootstrap_interval",
    "edit_distance",
    "entity_f1",
    "exact_outputs",
    "explore_label_bias",
    "exposure_gap",
    "length_bias",
    "log_partition_report",
    "macro_entity_f1",
    "pair_accuracies",
    "paired_bootstrap",
    "rank_slots",
    "sequence_accuracy",
    "token_accuracy",
    "token_error_rate",
    "word_error_rate",
]
