"""Numbers and what stands behind them: measures with bootstrap intervals, and tables that say how they were made."""

from __future__ import annotations

from seqwise.evaluation.metrics import (
    Comparison,
    Counts,
    Estimate,
    bootstrap_interval,
    edit_distance,
    length_ratio,
    paired_bootstrap,
    phoneme_error_rate,
    selected_accuracy,
    sequence_accuracy,
    token_accuracy,
    token_error_rate,
    word_error_rate,
)
from seqwise.evaluation.report import (
    Result,
    Signature,
    Table,
    describe_machine,
    load_table,
    percent_result,
    save_table,
    sha256_of_examples,
    sign,
    signature_line,
)

__all__ = [
    "Comparison",
    "Counts",
    "Estimate",
    "Result",
    "Signature",
    "Table",
    "bootstrap_interval",
    "describe_machine",
    "edit_distance",
    "length_ratio",
    "load_table",
    "paired_bootstrap",
    "percent_result",
    "phoneme_error_rate",
    "save_table",
    "selected_accuracy",
    "sequence_accuracy",
    "sha256_of_examples",
    "sign",
    "signature_line",
    "token_accuracy",
    "token_error_rate",
    "word_error_rate",
]
