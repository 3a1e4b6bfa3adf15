"""Statistics of a data file, warnings about a wrong label column, and baselines without learning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seqwise.data.readers import Example

Tokens = tuple[str, ...]
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer", bound=Hashable)

MOST_IN_TRAINING = 0.5
"""Largest share of the development data that may be in the training data without a warning."""

ENOUGH_TOKENS = 50
"""Smallest number of tokens for a warning; fewer tokens often have many different labels."""


@dataclass(frozen=True)
class DataSummary:
    """Statistics of the examples of a file."""

    examples: int  # sentences, or pairs of source and target
    source_tokens: int
    target_tokens: int
    source_types: int  # different source tokens
    target_types: int  # different target tokens; of a tagger, labels
    longest_source: int  # in tokens
    longest_target: int  # in tokens
    # Tokens that the training data lack; None for the training data.
    unseen_source_tokens: int | None = None
    unseen_target_tokens: int | None = None
    # The three most frequent target tokens, each with its share of all.
    commonest_targets: Sequence[tuple[str, float]] = ()


def summarize(examples: Sequence[Example], *, train: Sequence[Example] | None = None) -> DataSummary:
    """Compute the statistics of examples; with ``train``, count the tokens that the training data lack."""
    sources, targets = _token_counts(examples)
    known_sources, known_targets = (None, None) if train is None else _token_counts(train)
    return DataSummary(
        examples=len(examples),
        source_tokens=sources.total(),
        target_tokens=targets.total(),
        source_types=len(sources),
        target_types=len(targets),
        longest_source=max((len(example.source) for example in examples), default=0),
        longest_target=max((len(example.target) for example in examples), default=0),
        unseen_source_tokens=_unseen(sources, known_sources),
        unseen_target_tokens=_unseen(targets, known_targets),
        commonest_targets=[(token, count / targets.total()) for token, count in targets.most_common(3)],
    )


def _token_counts(examples: Sequence[Example]) -> tuple[Counter[str], Counter[str]]:
    """Count the tokens of the sources and of the targets."""
    return (
        Counter(token for example in examples for token in example.source),
        Counter(token for example in examples for token in example.target),
    )


def _unseen(counts: Counter[str], known: Container[str] | None) -> int | None:
    """Count the tokens that the training data lack; None without training data."""
    return None if known is None else sum(count for token, count in counts.items() if token not in known)


def num_in_training(train: Iterable[Example], dev: Iterable[Example]) -> int:
    """Count the examples of the development data that are in the training data.

    Example:
        >>> num_in_training([Example(("a",), ("b",))], [Example(("a",), ("b",)), Example(("a",), ("c",))])
        1
    """
    known = {(example.source, example.target) for example in train}
    return sum((example.source, example.target) in known for example in dev)


def overlap_warning(train: Sequence[Example], dev: Sequence[Example]) -> str | None:
    """Return a warning if most of the development data are in the training data; short examples recur in any text.

    Example:
        >>> overlap_warning([Example(("a",), ("b",))], [Example(("a",), ("b",))])
        '1 of 1 development examples are in the training data: the model may have memorised them'
    """
    count = num_in_training(train, dev)
    if count <= MOST_IN_TRAINING * len(dev):
        return None
    return f"{count:,} of {len(dev):,} development examples are in the training data: the model may have memorised them"


def estimated_unseen_share(train: Sequence[Example]) -> float:
    """Estimate the share of unseen source tokens in new text from the tokens that occur once in the training data.

    The estimate is ``n1 / n``, with n tokens of which n1 occur once. Development data are not used, so that a run
    trained without them has the same model.

    Source: Good (Biometrika 1953), after Turing.

    Example:
        >>> estimated_unseen_share([Example(("a", "b", "a", "c"), ())])
        0.5
    """
    counts = Counter(token for example in train for token in example.source)
    return sum(count == 1 for count in counts.values()) / max(counts.total(), 1)


def wrong_label_column(examples: Sequence[Example]) -> str | None:
    """Return a warning if a tagger's labels seem to come from the wrong column, else None.

    Labels recur, whereas about half of the different words of a text occur once. Three signs show a wrong column: more
    different labels than tokens, half of them seen once (words); labels that mostly equal their tokens (lemmas); and
    labels that count the tokens of each sentence.
    """
    labels = Counter(label for example in examples for label in example.target)
    tokens, words = labels.total(), {token for example in examples for token in example.source}
    if tokens < ENOUGH_TOKENS:
        return None
    hint = "should it be another --label-column"
    if any(all(example.target == _numbers(first, len(example.target)) for example in examples) for first in (0, 1)):
        return f"the labels count the tokens of each sentence; {hint}?"
    if 2 * len(labels) > tokens:
        return f"{tokens:,} tokens have {len(labels):,} different labels; {hint}, or --task transduce?"
    once = sum(count == 1 for count in labels.values())
    if len(labels) > len(words) and 5 * once > 2 * len(labels):
        counts = f"{len(labels):,} different labels of {len(words):,} different tokens, {once:,} of them seen once"
        return f"{counts}; are the columns swapped? Try --token-column and --label-column"
    pairs = (pair for example in examples for pair in zip(example.source, example.target, strict=True))
    same = sum(token.casefold() == label.casefold() for token, label in pairs)
    if len(labels) > ENOUGH_TOKENS and 3 * same > tokens:
        return f"{same:,} of {tokens:,} labels equal their token; {hint}?"
    return None


def missing_blank_lines(examples: Sequence[Example]) -> str | None:
    """Return a warning if a tagger's file seems to lack blank lines between sentences, else None."""
    tokens = sum(len(example.source) for example in examples)
    if len(examples) != 1 or tokens < ENOUGH_TOKENS:
        return None
    return f"all {tokens:,} tokens are one sentence; is there a blank line after each sentence?"


def _numbers(first: int, count: int) -> Tokens:
    return tuple(str(number) for number in range(first, first + count))


MOST_FREQUENT = {
    "tag": "each word's most frequent label",
    "transduce": "each source's most frequent target (of an unknown source, the most frequent one)",
}
"""Predictions without learning, by task: :func:`most_frequent_labels` and :func:`most_frequent_outputs`."""


def most_frequent_labels(train: Sequence[Example], examples: Iterable[Example]) -> list[Tokens]:
    """Tag each word with its most frequent training label, and an unknown word with the most frequent label."""
    pairs = [pair for example in train for pair in zip(example.source, example.target, strict=True)]
    by_word, of_all = _most_frequent(pairs)
    return [tuple(by_word.get(token, of_all) for token in example.source) for example in examples]


def most_frequent_outputs(train: Sequence[Example], examples: Iterable[Example]) -> list[Tokens]:
    """Map each known source to its most frequent output, and others to the most frequent output."""
    by_source, of_all = _most_frequent((example.source, example.target) for example in train)
    return [by_source.get(example.source, of_all) for example in examples]


def _most_frequent(pairs: Iterable[tuple[Key, Answer]]) -> tuple[dict[Key, Answer], Answer]:
    """Return the most frequent answer for each key, and the most frequent answer overall."""
    by_key: defaultdict[Key, Counter[Answer]] = defaultdict(Counter)
    of_all: Counter[Answer] = Counter()
    for key, answer in pairs:
        by_key[key][answer] += 1
        of_all[answer] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in by_key.items()}, of_all.most_common(1)[0][0]
