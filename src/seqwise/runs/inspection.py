"""Look at data files before training: counts, labels, unknown tokens, odd BIO labels, duplicates and the baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from seqwise.data.readers import Example
from seqwise.data.summary import (
    DataSummary,
    most_frequent_labels,
    most_frequent_outputs,
    summarize,
    wrong_label_column,
)
from seqwise.errors import InputError
from seqwise.evaluation.metrics import sequence_accuracy
from seqwise.runs.measures import tagging_measures

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """A label of a tagger: how often it occurs, and how often in the training data."""

    name: str
    count: int
    in_training_data: int


@dataclass(frozen=True)
class Lengths:
    """The shortest, the median, the 95th percentile and the longest, in tokens."""

    least: int
    median: float
    most_of_them: int
    most: int


@dataclass(frozen=True)
class FileInspection:
    """Contents of one file.

    Attributes:
        name: of the file.
        summary: counts of examples, tokens and labels.
        source_lengths: in tokens.
        target_lengths: in tokens; those of a tagger's labels are those of its tokens.
        labels: of a tagger, the most frequent first.
        odd_inside: labels I-X that follow neither B-X nor I-X, in a file whose entities begin with B.
        first_odd: file and line of the example with the first of them; None where there is none.
        duplicates: examples that stand in the file before, source and target.
        contradictions: examples whose source stands in the file before with another target.
        leaked: examples that the training data have as well, source and target; None for the training data.
        seen_sources: examples whose source is in the training data; None for the training data.
        baseline: measures of the answers that take no learning, as ratios.
        warning: a sign that labels are read from the wrong column; None where there is none.
    """

    name: str
    summary: DataSummary
    source_lengths: Lengths
    target_lengths: Lengths
    labels: Sequence[Label]
    odd_inside: int
    first_odd: str | None
    duplicates: int
    contradictions: int
    leaked: int | None
    seen_sources: int | None
    baseline: Mapping[str, float]
    warning: str | None


def inspect_data(files: Mapping[str, Sequence[Example]], *, tags: bool) -> list[FileInspection]:
    """Inspect training data, and other files beside them.

    Example:
        >>> train = [Example(("the", "cat"), ("D", "N")), Example(("the", "cat"), ("D", "V"))]
        >>> _, dev = inspect_data({"train": train, "dev": [Example(("a", "cat"), ("D", "N"))]}, tags=True)
        >>> dev.summary.unseen_source_tokens, dev.baseline["labels right"]
        (1, 1.0)
    """
    if not files or not all(files.values()):
        empty = next((name for name, examples in files.items() if not examples), None)
        raise InputError("there are no examples", path=empty, hint="give a file with at least one")
    train = next(iter(files.values()))
    return [_inspect(name, examples, train, tags=tags) for name, examples in files.items()]


def _inspect(name: str, examples: Sequence[Example], train: Sequence[Example], *, tags: bool) -> FileInspection:
    is_train = examples is train
    odd = [example for example in examples for _ in range(_odd_inside(example.target))] if tags else []
    begins = tags and any(label.startswith("B-") for example in examples for label in example.target)
    odd = odd if begins else []
    duplicates, contradictions = _repetitions(examples)
    pairs, sources = {(one.source, one.target) for one in train}, {one.source for one in train}
    return FileInspection(
        name=name,
        summary=summarize(examples, train=None if is_train else train),
        source_lengths=_lengths([len(one.source) for one in examples]),
        target_lengths=_lengths([len(one.target) for one in examples]),
        labels=_labels(examples, train) if tags else (),
        odd_inside=len(odd),
        first_odd=f"{odd[0].path}:{odd[0].line}" if odd else None,
        duplicates=duplicates,
        contradictions=contradictions,
        leaked=None if is_train else sum((one.source, one.target) in pairs for one in examples),
        seen_sources=None if is_train else sum(one.source in sources for one in examples),
        baseline=_baseline(train, examples, tags=tags),
        warning=wrong_label_column(examples) if tags else None,
    )


def _odd_inside(labels: Tokens) -> int:
    """Labels I-X that follow neither B-X nor I-X."""
    before = ("O", *labels)
    return sum(
        label.startswith("I-") and previous not in (label, f"B{label[1:]}")
        for previous, label in zip(before, labels, strict=False)
    )


def _lengths(lengths: list[int]) -> Lengths:
    ordered = sorted(lengths)
    return Lengths(ordered[0], median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1])


def _labels(examples: Sequence[Example], train: Sequence[Example]) -> list[Label]:
    here, there = (Counter(label for one in part for label in one.target) for part in (examples, train))
    return [Label(name, count, there[name]) for name, count in here.most_common()]


def _repetitions(examples: Sequence[Example]) -> tuple[int, int]:
    """Examples that stand there before, and examples whose source stands there before with other targets only."""
    targets: defaultdict[Tokens, set[Tokens]] = defaultdict(set)
    duplicates = contradictions = 0
    for one in examples:
        known = targets[one.source]
        duplicates += one.target in known
        contradictions += bool(known) and one.target not in known
        known.add(one.target)
    return duplicates, contradictions


def _baseline(train: Sequence[Example], examples: Sequence[Example], *, tags: bool) -> dict[str, float]:
    gold = [one.target for one in examples]
    if tags:
        found = tagging_measures(most_frequent_labels(train, examples), gold)
    else:
        found = {"sequences right": sequence_accuracy(most_frequent_outputs(train, examples), gold)}
    return {name: sums.value for name, sums in found.items()}
