"""Numbers and what stands behind them: measures with bootstrap intervals, and tables that say how they were made."""

from __future__ import annotations

from seqwise.evaluation.entities import Entity, entity_f1, macro_entity_f1
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
from seqwise.evaluation.translation import bins_by_length, bleu, bleu_signature, ngram_overlap, subset

__all__ = [
    "Claim",
    "Comparison",
    "Counts",
    "Entity",
    "Estimate",
    "LogPartitionReport",
    "LogPartitionSummary",
    "Result",
    "Signature",
    "Sums",
    "Table",
    "bins_by_length",
    "bleu",
    "bleu_signature",
    "bootstrap_interval",
    "describe_machine",
    "edit_distance",
    "entity_f1",
    "length_ratio",
    "load_table",
    "log_partition_report",
    "macro_entity_f1",
    "ngram_overlap",
    "paired_bootstrap",
    "phoneme_error_rate",
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
    "word_error_rate",
]
