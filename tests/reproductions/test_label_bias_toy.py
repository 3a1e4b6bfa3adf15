"""Ceilings of the label-bias toy, by enumeration of its definition."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import pytest

from reproductions.beyond.label_bias_toy import toy_ceilings


def enumerate_toy(length: int, flip: Fraction):
    """Every (inputs, labels, probability), straight from the definition."""
    for inputs in itertools.product(range(10), repeat=length):
        for flips in itertools.product((False, True), repeat=length - 1):
            probability = Fraction(1, 10**length)
            labels = []
            for t in range(length):
                bit = 0
                if t < length - 1:
                    probability *= flip if flips[t] else 1 - flip
                    bit = int((inputs[t + 1] >= 5) != flips[t])
                labels.append(2 * inputs[t] + bit)
            yield inputs, tuple(labels), probability


def best_accuracy(outcomes, length: int, look_ahead: int):
    """Of all predictors of y_t from x_1 .. x_{t + look_ahead} and y_1 .. y_{t-1}: the expected accuracy of the best."""
    total = Fraction(0)
    for t in range(length):
        seen: dict[tuple, Counter] = defaultdict(Counter)
        for inputs, labels, probability in outcomes:
            seen[inputs[: t + 1 + look_ahead], labels[:t]][labels[t]] += probability
        total += sum(max(counts.values()) for counts in seen.values())
    return 100 * total / length


@pytest.mark.parametrize(("length", "flip"), [(1, "1/10"), (2, "0"), (3, "1/10"), (3, "1/2")])
def test_ceilings_equal_the_best_predictor_over_all_outcomes(length, flip):
    outcomes = list(enumerate_toy(length, Fraction(flip)))
    assert sum(probability for *_, probability in outcomes) == 1
    expected = [float(best_accuracy(outcomes, length, look_ahead)) for look_ahead in (0, 1)]
    assert toy_ceilings(length, float(Fraction(flip))) == pytest.approx(expected, abs=1e-12)
    assert best_accuracy(outcomes, length, length) == best_accuracy(outcomes, length, 1)  # all of the input


def test_the_published_ceilings():
    assert toy_ceilings(10, 0.1) == (55.0, 91.0)
