"""Inspection of data files before training: counts, labels, unknown tokens, odd BIO labels, duplicates, baseline."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from seqwise.data.readers import Example
from seqwise.data.summary import (
    DataSummary,
    missing_blank_lines,
    most_frequent_labels,
    most_frequent_outputs,
    num_in_training,
    summarize,
    wrong_label_column,
)
from seqwise.evaluation.metrics import sequence_accuracy
from seqwise.runs.measures import tagging_measures

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """Counts of a label, here and in the training data."""

    name: str
    count: int
    in_training_data: int


@dataclass(frozen=True)
class Lengths:
    """Shortest, median, 95th percentile and longest length, in tokens."""

    least: int
    median: float
    most_of_them: int
    most: int


@dataclass(frozen=True)
class FileInspection:
    """Findings in one file; comparisons with the training data are None for the training data."""

    name: str
    summary: DataSummary
    in_another_form: int | None  # unseen source tokens whose NFC form is that of a token of the training data
    source_lengths: Lengths
    target_lengths: Lengths
    labels: Sequence[Label]  # of a tagger, the most frequent first
    odd_inside: int  # labels I-X after neither B-X nor I-X, in a file whose entities begin with B
    first_odd: str | None  # file and line of the example with the first of them
    duplicates: int  # examples with source and target of an earlier one
    contradictions: int  # examples with the source of an earlier one and another target
    leaked: int | None  # examples that are in the training data, source and target
    seen_sources: int | None  # examples whose source is in the training data
    baseline: Mapping[str, float]  # measures without learning, as ratios
    warning: str | None  # about a wrong label column, or missing blank lines


def inspect_data(files: Mapping[str, Sequence[Example]], *, tags: bool) -> list[FileInspection]:
    """Inspect files of examples, by name; the first is the training data."""
    train = next(iter(files.values()))
    return [_inspect(name, examples, train, tags=tags) for name, examples in files.items()]


def _inspect(name: str, examples: Sequence[Example], train: Sequence[Example], *, tags: bool) -> FileInspection:
    is_train = examples is train
    has_begins = tags and any(label.startswith("B-") for example in examples for label in example.target)
    odd = [example for example in examples for _ in range(_odd_inside(example.target))] if has_begins else []
    duplicates, contradictions = _repetitions(examples)
    sources = {example.source for example in train}
    return FileInspection(
        name=name,
        summary=summarize(examples, train=None if is_train else train),
        in_another_form=None if is_train else _in_another_form(train, examples),
        source_lengths=_lengths([len(example.source) for example in examples]),
        target_lengths=_lengths([len(example.target) for example in examples]),
        labels=_labels(examples, train) if tags else (),
        odd_inside=len(odd),
        first_odd=f"{odd[0].path}:{odd[0].line}" if odd else None,
        duplicates=duplicates,
        contradictions=contradictions,
        leaked=None if is_train else num_in_training(train, examples),
        seen_sources=None if is_train else sum(example.source in sources for example in examples),
        baseline=_baseline(train, examples, tags=tags),
        warning=(wrong_label_column(examples) or missing_blank_lines(examples)) if tags else None,
    )


def _in_another_form(train: Sequence[Example], examples: Sequence[Example]) -> int:
    known = {token for example in train for token in example.source}
    composed = {unicodedata.normalize("NFC", token) for token in known}
    counts = Counter(token for example in examples for token in example.source if token not in known)
    return sum(count for token, count in counts.items() if unicodedata.normalize("NFC", token) in composed)


def _odd_inside(labels: Tokens) -> int:
    """Count labels I-X that follow neither B-X nor I-X."""
    return sum(
        label.startswith("I-") and previous not in (label, f"B{label[1:]}")
        for previous, label in pairwise(("O", *labels))
    )


def _lengths(lengths: list[int]) -> Lengths:
    ordered = sorted(lengths)
    return Lengths(ordered[0], median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1])


def _labels(examples: Sequence[Example], train: Sequence[Example]) -> list[Label]:
    counts, in_training = (Counter(label for example in part for label in example.target) for part in (examples, train))
    return [Label(name, count, in_training[name]) for name, count in counts.most_common()]


def _repetitions(examples: Sequence[Example]) -> tuple[int, int]:
    """Count duplicates and contradictions."""
    targets: defaultdict[Tokens, set[Tokens]] = defaultdict(set)
    duplicates = contradictions = 0
    for example in examples:
        known = targets[example.source]
        duplicates += example.target in known
        contradictions += bool(known) and example.target not in known
        known.add(example.target)
    return duplicates, contradictions


def _baseline(train: Sequence[Example], examples: Sequence[Example], *, tags: bool) -> dict[str, float]:
    gold = [example.target for example in examples]
    if tags:
        measures = tagging_measures(most_frequent_labels(train, examples), gold)
    else:
        measures = {"sequence accuracy": sequence_accuracy(most_frequent_outputs(train, examples), gold)}
    return {name: sums.value for name, sums in measures.items()}
