"""Counts over a data file, signs that it is read from the wrong column, and how far one gets without learning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seqwise.data.readers import Example

Tokens = tuple[str, ...]
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer", bound=Hashable)

ENOUGH_TOKENS = 50
"""In fewer tokens, many labels that differ are nothing unusual."""


@dataclass(frozen=True)
class DataSummary:
    """Counts over the examples of a file.

    Attributes:
        examples: sentences, or pairs of source and target.
        source_tokens: of all sources together.
        target_tokens: of all targets together.
        source_types: source tokens that differ.
        target_types: target tokens that differ; of a tagger, the labels.
        longest_source: in tokens.
        longest_target: in tokens.
        unseen_source_tokens: of the source tokens, those that the training data lack; None for the training data.
        unseen_target_tokens: the same of the target tokens.
        commonest_targets: the three most frequent target tokens, each with its share of all.
    """

    examples: int
    source_tokens: int
    target_tokens: int
    source_types: int
    target_types: int
    longest_source: int
    longest_target: int
    unseen_source_tokens: int | None = None
    unseen_target_tokens: int | None = None
    commonest_targets: Sequence[tuple[str, float]] = ()


def summarize(examples: Sequence[Example], *, train: Sequence[Example] | None = None) -> DataSummary:
    """Count what examples hold.

    Args:
        examples: of one file.
        train: the training data that they are compared with, or None where the examples are these.

    Example:
        >>> train = [Example(("the", "cat"), ("DET", "NOUN")), Example(("the",), ("DET",))]
        >>> found = summarize([Example(("the", "dog"), ("DET", "NOUN"))], train=train)
        >>> found.examples, found.source_tokens, found.unseen_source_tokens, found.unseen_target_tokens
        (1, 2, 1, 0)
    """
    sources = Counter(token for example in examples for token in example.source)
    targets = Counter(token for example in examples for token in example.target)
    return DataSummary(
        examples=len(examples),
        source_tokens=sources.total(),
        target_tokens=targets.total(),
        source_types=len(sources),
        target_types=len(targets),
        longest_source=max((len(example.source) for example in examples), default=0),
        longest_target=max((len(example.target) for example in examples), default=0),
        unseen_source_tokens=_unseen(
            sources, None if train is None else {token for one in train for token in one.source}
        ),
        unseen_target_tokens=_unseen(
            targets, None if train is None else {token for one in train for token in one.target}
        ),
        commonest_targets=[(token, count / targets.total()) for token, count in targets.most_common(3)],
    )


def _unseen(counts: Counter[str], known: Container[str] | None) -> int | None:
    """Count the tokens that the training data lack; None where there is nothing to compare with."""
    return None if known is None else sum(count for token, count in counts.items() if token not in known)


def wrong_label_column(examples: Sequence[Example]) -> str | None:
    """Say what suggests that the labels of a tagger's training data stand in another column, or None.

    Labels recur. Words do not, half of which occur once in any text: labels that do so, and of which there are more
    than of tokens, are words whose column was taken for that of the labels. So are labels that mostly equal their
    tokens, as lemmas do; and numbers that count the tokens of each sentence are no labels either.

    Example:
        >>> wrong_label_column([Example(("a",) * 99, tuple(str(n) for n in range(99)))])
        'the labels count the tokens of each sentence; is it another --label-column?'
        >>> wrong_label_column([Example(("a", "b") * 30, ("A", "B") * 30)])
    """
    labels = Counter(label for one in examples for label in one.target)
    tokens, words = labels.total(), {token for one in examples for token in one.source}
    if tokens < ENOUGH_TOKENS:
        return None
    hint = "is it another --label-column"
    if any(all(one.target == _numbers(first, len(one.target)) for one in examples) for first in (0, 1)):
        return f"the labels count the tokens of each sentence; {hint}?"
    if 2 * len(labels) > tokens:
        return f"{tokens:,} tokens have {len(labels):,} different labels; {hint}, or --task transduce?"
    once = sum(count == 1 for count in labels.values())
    if len(labels) > len(words) and 5 * once > 2 * len(labels):
        many = f"{len(labels):,} different labels of {len(words):,} different tokens, {once:,} of them seen once"
        return f"{many}; {hint}, and another --token-column?"
    pairs = (pair for one in examples for pair in zip(one.source, one.target, strict=True))
    same = sum(token.casefold() == label.casefold() for token, label in pairs)
    if len(labels) > ENOUGH_TOKENS and 3 * same > tokens:
        return f"{same:,} of {tokens:,} labels are their own token; {hint}?"
    return None


def _numbers(first: int, count: int) -> Tokens:
    return tuple(str(number) for number in range(first, first + count))


def most_frequent_labels(train: Sequence[Example], examples: Iterable[Example]) -> list[Tokens]:
    """Tag without learning: each word gets its most frequent label, an unknown word the most frequent one of all.

    Args:
        train: where labels are counted; of labels that are equally frequent, the one that comes first is taken.
        examples: whose sources are tagged.

    Example:
        >>> train = [Example(("a", "a", "b"), ("X", "Y", "Y"))]
        >>> most_frequent_labels(train, [Example(("a", "b", "c"), ())])
        [('X', 'Y', 'Y')]
    """
    pairs = [pair for one in train for pair in zip(one.source, one.target, strict=True)]
    by_word, of_all = _most_frequent(pairs)
    return [tuple(by_word.get(token, of_all) for token in one.source) for one in examples]


def most_frequent_outputs(train: Sequence[Example], examples: Iterable[Example]) -> list[Tokens]:
    """Transduce without learning: a known source gets its most frequent output, others the most frequent one of all.

    Args:
        train: where outputs are counted; of outputs that are equally frequent, the one that comes first is taken.
        examples: whose sources are answered.

    Example:
        >>> train = [Example(("a",), ("X", "Y")), Example(("b",), ("Z",)), Example(("c",), ("Z",))]
        >>> most_frequent_outputs(train, [Example(("a",), ()), Example(("d",), ())])
        [('X', 'Y'), ('Z',)]
    """
    by_source, of_all = _most_frequent((one.source, one.target) for one in train)
    return [by_source.get(one.source, of_all) for one in examples]


def _most_frequent(pairs: Iterable[tuple[Key, Answer]]) -> tuple[dict[Key, Answer], Answer]:
    """The most frequent answer to each key, and that to all of them."""
    by_key: defaultdict[Key, Counter[Answer]] = defaultdict(Counter)
    of_all: Counter[Answer] = Counter()
    for key, answer in pairs:
        by_key[key][answer] += 1
        of_all[answer] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in by_key.items()}, of_all.most_common(1)[0][0]
