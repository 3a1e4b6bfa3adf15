"""Numbers and what stands behind them: measures with bootstrap intervals, and tables that say how they were made."""

from __future__ import annotations

from seqwise.evaluation.diagnosis import ExposureGap, LengthBias, exposure_gap, length_bias, optimal_next_tokens
from seqwise.evaluation.entities import Entity, entity_f1, macro_entity_f1
from seqwise.evaluation.label_bias import LabelBias, Prefix, draw_label_bias, explore_label_bias, fate_of_gold
from seqwise.evaluation.log_partitions import (
    LogPartitionReport,
    LogPartitionSummary,
    log_partition_report,
    summarize_log_partitions,
)
from seqwise.evaluation.metrics import (
    Comparison,
    Counts,
    Estimate,
    Sums,
    bootstrap_interval,
    edit_distance,
    length_ratio,
    paired_bootstrap,
    phoneme_error_rate,
    seed_differences,
    selected_accuracy,
    sequence_accuracy,
    token_accuracy,
    token_error_rate,
    word_error_rate,
)
from seqwise.evaluation.report import Claim, Result, Table, load_table, save_table
from seqwise.evaluation.signature import Signature, describe_machine, sha256_of_examples, sign, signature_line
from seqwise.evaluation.slot_ranking import SlotRanking, Slots, rank_slots, unroll_slots
from seqwise.evaluation.translation import (
    bins_by_length,
    bleu,
    bleu_length_ratio,
    bleu_signature,
    ngram_overlap,
    require_sacrebleu,
    subset,
)

__all__ = [
    "Claim",
    "Comparison",
    "Counts",
    "Entity",
    "Estimate",
    "ExposureGap",
    "LabelBias",
    "LengthBias",
    "LogPartitionReport",
    "LogPartitionSummary",
    "Prefix",
    "Result",
    "Signature",
    "SlotRanking",
    "Slots",
    "Sums",
    "Table",
    "bins_by_length",
    "bleu",
    "bleu_length_ratio",
    "bleu_signature",
    "bootstrap_interval",
    "describe_machine",
    "draw_label_bias",
    "edit_distance",
    "entity_f1",
    "explore_label_bias",
    "exposure_gap",
    "fate_of_gold",
    "length_bias",
    "length_ratio",
    "load_table",
    "log_partition_report",
    "macro_entity_f1",
    "ngram_overlap",
    "optimal_next_tokens",
    "paired_bootstrap",
    "phoneme_error_rate",
    "rank_slots",
    "require_sacrebleu",
    "save_table",
    "seed_differences",
    "selected_accuracy",
    "sequence_accuracy",
    "sha256_of_examples",
    "sign",
    "signature_line",
    "subset",
    "summarize_log_partitions",
    "token_accuracy",
    "token_error_rate",
    "unroll_slots",
    "word_error_rate",
]
