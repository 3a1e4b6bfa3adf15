"""Entities against a grammar of label sequences and against seqeval; their F1 against sets of spans."""

from __future__ import annotations

import itertools
import random
import re
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.intervals import require_ends
from seqwise.errors import InputError
from seqwise.evaluation.entities import TypeScores, entities, entity_f1, macro_entity_f1
from seqwise.evaluation.metrics import Sums, bootstrap_interval

LABELS = ["O", *(f"{prefix}-{name}" for name in ("X", "Y") for prefix in "BIES")]
label_sequences = st.lists(st.sampled_from(LABELS), max_size=12)


def by_grammar(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Cut into stretches of one type, each of which is a string of the language (S | (B | I) I* E? | E)*."""
    found, start = [], 0
    for name, stretch in itertools.groupby(labels, key=lambda label: label[2:]):
        prefixes = "".join(label[0] for label in stretch)
        if name:
            found += [(name, start + m.start(), start + m.end()) for m in re.finditer("S|[BI]I*E?|E", prefixes)]
        start += len(prefixes)
    return found


def f1_by_type(predictions, references) -> dict[str, float]:
    """Type by type, from sets of (example, type, start, end)."""
    found = {(n, *e) for n, labels in enumerate(predictions) for e in by_grammar(labels)}
    gold = {(n, *e) for n, labels in enumerate(references) for e in by_grammar(labels)}
    scores = {}
    for name in {e[1] for e in gold}:
        ours, theirs = {e for e in found if e[1] == name}, {e for e in gold if e[1] == name}
        right = len(ours & theirs)
        scores[name] = statistics.harmonic_mean([right / len(ours), right / len(theirs)]) if right else 0.0
    return scores


@pytest.mark.parametrize("length", range(5))
def test_every_short_sequence_is_read_by_the_grammar(length):
    for labels in itertools.product(LABELS, repeat=length):
        assert entities(labels) == by_grammar(labels)


@given(label_sequences)
def test_longer_sequences_are_read_by_the_grammar(labels):
    assert entities(labels) == by_grammar(labels)


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [
        ("IO", "I-X I-X O I-Y I-X"),
        ("IOB1", "I-X I-X O I-Y I-X"),
        ("IOB2", "B-X I-X O B-Y B-X"),
        ("IOE1", "I-X I-X O I-Y I-X"),
        ("IOE2", "I-X E-X O E-Y E-X"),
        ("IOBES", "B-X E-X O S-Y S-X"),
        ("never closed", "B-X I-X O B-Y I-X"),
    ],
)
def test_one_reading_whatever_the_scheme(scheme, labels):
    assert entities(labels.split()) == [("X", 0, 2), ("Y", 3, 4), ("X", 4, 5)], scheme


def test_neighbours_of_one_type_are_told_apart_as_each_scheme_does():
    for labels in ("I-X B-X I-X", "B-X B-X I-X", "E-X I-X E-X", "E-X I-X I-X", "S-X B-X E-X", "S-X I-X E-X"):
        assert entities(labels.split()) == [("X", 0, 1), ("X", 1, 3)], labels


def test_types_may_hold_hyphens_or_be_missing_and_other_labels_are_outside():
    assert entities(["B-X-1", "I-X-1", "I-X-2"]) == [("X-1", 0, 2), ("X-2", 2, 3)]
    assert entities(["B", "I", "O", "I", "B"]) == [("", 0, 2), ("", 3, 4), ("", 4, 5)]
    assert entities(["B-X", "<unk>", "I-X", "X", "Q-X"]) == [("X", 0, 1), ("X", 2, 3)]


def random_labels(generator: random.Random, length: int) -> list[str]:
    return generator.choices(LABELS, weights=[4] + [1] * 8, k=length)


def random_pairs(seed: int, number: int) -> tuple[list[list[str]], list[list[str]]]:
    """Gold labels, and predictions that differ from them here and there; both ill-formed as often as not."""
    generator = random.Random(seed)
    references = [random_labels(generator, generator.randrange(1, 9)) for _ in range(number)]
    predictions = [
        [label if generator.random() < 0.7 else generator.choice(LABELS) for label in labels] for labels in references
    ]
    return predictions, references


@pytest.mark.parametrize("seed", range(20))
def test_f1_is_that_of_sets_of_spans(seed):
    predictions, references = random_pairs(seed, 12)
    found = {(n, *e) for n, labels in enumerate(predictions) for e in by_grammar(labels)}
    gold = {(n, *e) for n, labels in enumerate(references) for e in by_grammar(labels)}
    precision, recall = len(found & gold) / len(found), len(found & gold) / len(gold)
    assert entity_f1(predictions, references).value == pytest.approx(2 * precision * recall / (precision + recall))
    by_type = f1_by_type(predictions, references)
    assert macro_entity_f1(predictions, references).value == pytest.approx(np.mean(list(by_type.values())))
    assert macro_entity_f1(predictions, references, types=["Y"]).value == pytest.approx(by_type["Y"])


def test_seqeval_agrees():
    reason = "seqeval is not installed, which this test compares with"
    sequence_labeling = pytest.importorskip("seqeval.metrics.sequence_labeling", reason=reason)
    generator = random.Random(0)
    for _ in range(5000):
        labels = random_labels(generator, generator.randrange(15))
        theirs = [(name, start, last + 1) for name, start, last in sequence_labeling.get_entities(labels)]
        assert entities(labels) == theirs
    for seed in range(200):
        predictions, references = random_pairs(seed, 10)
        micro = sequence_labeling.f1_score(references, predictions, average="micro", zero_division=0)
        assert entity_f1(predictions, references).value == pytest.approx(micro, abs=1e-12)
        report = sequence_labeling.precision_recall_fscore_support(
            references, predictions, average=None, zero_division=0
        )
        by_type = entity_f1(predictions, references).by_type  # theirs come without names, in the order of the names
        np.testing.assert_allclose([by_type[name] for name in sorted(by_type)], np.transpose(report), atol=1e-12)
        *_, f1, support = report
        macro = np.mean(f1[support > 0])
        assert macro_entity_f1(predictions, references).value == pytest.approx(macro, abs=1e-12)


def test_a_type_without_prediction_counts_as_zero_and_one_without_gold_not_at_all():
    gold = [["B-X", "O", "B-Y"], ["B-X", "O", "O"]]
    assert macro_entity_f1([["B-X", "O", "O"], ["B-X", "O", "O"]], gold).value == 1 / 2
    assert macro_entity_f1([["B-X", "O", "B-Y"], ["B-X", "B-Z", "B-Z"]], gold).value == 1
    assert entity_f1([["B-X", "O", "B-Y"], ["B-X", "B-Z", "B-Z"]], gold).value == pytest.approx(6 / 8)


@pytest.mark.parametrize(
    ("scheme", "gold", "predicted"),
    [
        ("IOB2", "B-X I-X O B-X O B-Y", "B-X I-X O B-X I-X B-Z"),
        ("IOB1", "I-X I-X O I-X O I-Y", "I-X I-X O I-X I-X I-Z"),
        ("BIOES", "B-X E-X O S-X O S-Y", "B-X E-X O B-X E-X S-Z"),
    ],
)
def test_each_type_has_its_precision_recall_and_support(scheme, gold, predicted):
    # One X of two is right, of two predicted; the only Y is missed; Z is predicted and never gold.
    measured = entity_f1([predicted.split(), ["O"]], [gold.split(), ["O"]])
    assert measured.value == 2 * 1 / (3 + 3), scheme
    assert measured.by_type == {
        "X": TypeScores(precision=0.5, recall=0.5, f1=0.5, support=2),
        "Y": TypeScores(precision=0.0, recall=0.0, f1=0.0, support=1),
        "Z": TypeScores(precision=0.0, recall=0.0, f1=0.0, support=0),
    }


def test_missing_positions_are_outside_and_surplus_ones_not_looked_at():
    gold = [["B-X", "I-X", "O"], ["B-X", "I-X"]]
    assert entity_f1([["B-X", "I-X"], ["B-X", "I-X", "I-X", "B-Y"]], gold).value == 1
    assert entity_f1([["B-X"], []], gold).value == 0


@pytest.mark.parametrize("seed", range(10))
def test_what_each_example_adds_is_what_it_has_alone(seed):
    predictions, references = random_pairs(seed, 8)
    references = [[*labels, "O", "B-X", "O", "B-Y"] for labels in references]  # each has both types, missed or not
    predictions = [[*labels, "O", "B-X"] for labels in predictions]
    together = macro_entity_f1(predictions, references)
    for n in range(8):
        by_type = f1_by_type([predictions[n]], [references[n]])
        assert Sums(together.columns_NC[[n]], together.combine).value == pytest.approx(np.mean(list(by_type.values())))


def test_macro_interval_against_every_resample():
    # Types come and go with the examples drawn: Y is in the second only, and the third has no entity at all.
    references = [["B-X", "O", "B-X"], ["B-Y", "B-X", "I-X"], ["O", "O"], ["B-X", "B-X"]]
    predictions = [["B-X", "O", "O"], ["B-Y", "B-Y", "B-X"], ["B-Y", "O"], ["B-X", "I-X"]]
    draws = np.ndindex(4, 4, 4, 4)
    resampled = [([predictions[i] for i in draw], [references[i] for i in draw]) for draw in draws]
    scores = [f1_by_type(*pair).values() for pair in resampled]
    values = [sum(by_type) / len(by_type) for by_type in scores if by_type]
    assert len(values) == 4**4 - 1  # only the draw of the third alone has nothing to average
    for confidence in (0.2, 0.5, 0.8, 0.95):
        _, *ends = bootstrap_interval(macro_entity_f1(predictions, references), confidence=confidence, resamples=20_000)
        require_ends(ends, values, confidence)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: entity_f1([["O"]], []), "1 predictions for 0 references"),
        (lambda: entity_f1([["O"], ["O"]], [["B-X"], ["O", "PER"]]), "reference 2 has the label 'PER'"),
        (lambda: entity_f1([["O"]], [["O"]]), "nothing to count"),
        (lambda: entity_f1([], []), "no examples"),
        (lambda: macro_entity_f1([["B-X"]], [["O"]]), "no types to average over"),
        (lambda: macro_entity_f1([["B-X"]], [["B-X"]], types=["Y"]), "no reference has an entity of type 'Y'"),
        (lambda: macro_entity_f1([["B-X"]], [["B-X"]], types=[]), "no types"),
        (lambda: macro_entity_f1([["O"]], [["PER"]]), "label 'PER'"),
        (lambda: macro_entity_f1([["O"], ["O"]], [["B-X"]]), "2 predictions for 1 references"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
