"""Alignments of outputs with gold, against edit distances."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seqwise.evaluation import edit_distance
from seqwise.evaluation.errors import align, confusions, label_scores, num_errors

texts = st.lists(st.sampled_from("abc"), max_size=7)


@given(texts, texts)
def test_an_alignment_has_both_sides_in_order_and_the_fewest_edits(output: list[str], gold: list[str]) -> None:
    pairs = align(output, gold)
    assert [token for token, _ in pairs if token is not None] == output
    assert [token for _, token in pairs if token is not None] == gold
    assert (None, None) not in pairs
    assert num_errors(pairs) == edit_distance(output, gold) == sum(confusions(pairs).values())


def test_a_label_that_is_never_gold_or_never_predicted_has_no_f1() -> None:
    scores = label_scores([("a", "b"), (None, "b"), ("c", None)])
    assert {label: score.f1 for label, score in scores.items()} == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert (scores["b"].support, scores["a"].support) == (2, 0)
