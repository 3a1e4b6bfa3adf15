"""The summary before training and the verdict after it: counted by hand, and each rule tried on both sides."""

from __future__ import annotations

import torch

from seqwise.data import Example, label_bias_toy
from seqwise.data.summary import most_frequent_labels, most_frequent_outputs, summarize, wrong_label_column

SENTENCES = [
    Example(("the", "cat", "saw", "the", "dog"), ("DET", "NOUN", "VERB", "DET", "NOUN")),
    Example(("the", "saw"), ("DET", "NOUN")),
    Example(("dog",), ("VERB",)),
]


def test_examples_are_counted() -> None:
    found = summarize(SENTENCES)
    assert (found.examples, found.source_tokens, found.target_tokens) == (3, 8, 8)
    assert (found.source_types, found.target_types) == (4, 3)
    assert (found.longest_source, found.longest_target) == (5, 5)
    assert found.unseen_source_tokens is None and found.unseen_target_tokens is None
    dev = summarize([Example(("a", "cat", "a"), ("DET", "NOUN", "ADV"))], train=SENTENCES)
    assert (dev.unseen_source_tokens, dev.unseen_target_tokens) == (2, 1)


def test_answers_without_learning_are_counted() -> None:
    asked = [Example(("the", "saw", "bird"), ()), Example(("dog",), ())]
    # saw: VERB first of two equals; dog: NOUN first; the most frequent label is DET, first of two with three each.
    assert most_frequent_labels(SENTENCES, asked) == [("DET", "VERB", "DET"), ("NOUN",)]
    pairs = [Example(("a",), (x,)) for x in "XYY"] + [Example(("b",), ("X",)), Example(("c",), ("X",))]
    assert most_frequent_outputs(pairs, [Example((x,), ()) for x in "abd"]) == [("Y",), ("X",), ("X",)]


def text(count: int) -> list[Example]:
    """Sentences of five words, half of which occur once, as words do, with a part of speech and a lemma."""
    words = [f"w{place if place % 2 else place % 20}" for place in range(5 * count)]
    return [Example(tuple(words[at : at + 5]), ("DET", "ADJ", "NOUN", "VERB", "ADV")) for at in range(0, len(words), 5)]


def test_labels_of_a_right_column_are_no_reason_to_warn() -> None:
    toy = label_bias_toy(1200, length=6, generator=torch.Generator().manual_seed(0))
    for right in (toy, toy[:10], text(200), text(10)):
        assert wrong_label_column(right) is None
    many = [Example((str(place % 7),) * 3, (str(place % 30), "A", "B")) for place in range(300)]
    assert wrong_label_column(many) is None  # more labels than tokens that differ, each of them many times
    copied = [Example(("a", "b", "c"), ("A", "B", "C"))] * 100
    assert wrong_label_column(copied) is None  # few labels, which happen to be the tokens


def test_labels_of_a_wrong_column_are() -> None:
    right = text(200)
    swapped = [Example(one.target, one.source) for one in right]
    assert "seen once" in (wrong_label_column(swapped + swapped[:1] * 20) or "")
    lemmas = [Example(one.source, tuple(word.upper() for word in one.source)) for one in right]
    lemmas += [Example(("w1",), ("W1",))] * 1000  # words that recur, so that labels are far fewer than tokens
    assert "are their own token" in (wrong_label_column(lemmas) or "")
    numbered = [Example(one.source, ("1", "2", "3", "4", "5")) for one in right]
    assert "count the tokens" in (wrong_label_column(numbered) or "")
    all_differ = [Example(one.source, tuple(f"{place}{n}" for n in one.source)) for place, one in enumerate(right)]
    assert "1,000 different labels" in (wrong_label_column(all_differ) or "")
