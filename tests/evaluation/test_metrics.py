"""Measures against definitions by brute force; intervals against closed forms and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.intervals import require_ends
from oracles import levenshtein
from seqwise.errors import InputError
from seqwise.evaluation import metrics
from seqwise.evaluation.metrics import (
    Counts,
    Sums,
    bootstrap_interval,
    edit_distance,
    length_ratio,
    paired_bootstrap,
    seed_differences,
    selected_accuracy,
    sequence_accuracy,
    token_accuracy,
    token_error_rate,
    word_error_rate,
)

words = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


@given(words, words)
def test_edit_distance_is_its_recursive_definition(first, second):
    assert edit_distance(first, second) == levenshtein(first, second)


@given(words, words, words)
def test_edit_distance_is_a_metric(first, second, third):
    assert (edit_distance(first, second) == 0) == (first == second)
    assert edit_distance(first, second) == edit_distance(second, first)
    assert edit_distance(first, third) <= edit_distance(first, second) + edit_distance(second, third)


def test_token_accuracy_counts_missing_positions_wrong_and_looks_at_gold_positions_only():
    counts = token_accuracy([list("ab"), list("abcd"), []], [list("axc"), list("ab"), list("a")])
    numerators_N, denominators_N = counts.numerators_N, counts.denominators_N
    assert numerators_N.tolist() == [1, 2, 0]
    assert denominators_N.tolist() == [3, 2, 1]
    assert counts.value == 3 / 6


def test_selected_accuracy_sees_only_gold_vowels():
    # Wrong marks on consonants do not count; a vowel predicted as a consonant does.
    assert selected_accuracy([list("111-")], [list("-1-0")]).value == 1 / 2
    with pytest.raises(InputError, match="nothing to count"):
        selected_accuracy([list("--")], [list("--")])


def test_sequence_accuracy_needs_the_length_and_ignores_the_container():
    assert sequence_accuracy([("a",), ["a", "b"], ["b"]], [["a"], ["a"], ["c"]]).numerators_N.tolist() == [1, 0, 0]


def test_token_error_rate_is_a_ratio_of_sums_not_a_mean_of_ratios():
    counts = token_error_rate([list("x"), list("abcdefghi"), list("zz")], [[list("a")], [list("abcdefghi")], [[]]])
    assert counts.value == 3 / 10


def test_word_errors_accept_any_reference_and_token_errors_take_the_nearest():
    references = [[list("abc"), list("xy")], [list("ab"), list("abcd")], [list("q")]]
    predictions = [list("xy"), list("abc"), list("pq")]
    assert word_error_rate(predictions, references).numerators_N.tolist() == [0, 1, 1]
    counts = token_error_rate(predictions, references)
    edits_N, lengths_N = counts.numerators_N, counts.denominators_N
    assert edits_N.tolist() == [0, 1, 1]
    assert lengths_N.tolist() == [2, 2, 1]  # "abc" lies one edit from both: the shorter counts, in either order
    turned = [list(reversed(each)) for each in references]
    assert token_error_rate(predictions, turned).denominators_N.tolist() == [2, 2, 1]


def test_texts_are_sequences_of_characters():
    assert token_error_rate(["abc"], [["abd", "xyz"]]).value == pytest.approx(1 / 3)
    assert word_error_rate([["a"]], [{("a",), ("b",)}]).value == 0.0  # references in any order


@given(st.lists(st.tuples(words, words.filter(bool)), min_size=1, max_size=5))
def test_one_reference_makes_the_measures_agree(pairs):
    predictions, references = [p for p, _ in pairs], [r for _, r in pairs]
    alone = [[reference] for reference in references]
    wrong = word_error_rate(predictions, alone).value
    assert wrong == pytest.approx(1 - sequence_accuracy(predictions, references).value)
    assert (token_error_rate(predictions, alone).value == 0) == (wrong == 0)
    # An alignment without shifts is one way to edit: edits are at most the wrong positions plus the surplus tokens.
    surplus = sum(max(0, len(p) - len(r)) for p, r in pairs)
    positions_wrong = sum(map(len, references)) * (1 - token_accuracy(predictions, references).value)
    assert token_error_rate(predictions, alone).numerators_N.sum() <= positions_wrong + surplus + 1e-9


def test_length_ratio():
    assert length_ratio([list("abc"), []], [list("a"), list("a")]).value == 3 / 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: token_accuracy([["a"]], []), "1 predictions for 0 references"),
        (lambda: token_error_rate([["a"], ["a"]], [[["a"]], []]), "example 2 has no reference"),
        (lambda: word_error_rate([["a"]], [[]]), "example 1 has no reference"),
        (lambda: word_error_rate([["AH", "T"]], [["AH", "T"]]), "example 1 has one reference"),
        (lambda: token_error_rate([["AH"], ["T"]], [[["AH"]], ["T"]]), "example 2 has one reference"),
        (lambda: token_error_rate(["abc"], ["abd"]), "example 1 has one reference"),
        (lambda: token_accuracy([], []), "no examples"),
        (lambda: Counts([1.0], [0.0]), "nothing to count"),
        (lambda: Counts([1.0, 2.0], [3.0, -1.0]), "nothing to count"),
        (lambda: Counts([math.nan]), "finite"),
        (lambda: Counts([1.0], [1.0, 2.0]), "pair up"),
        (lambda: bootstrap_interval(Counts([1.0]), resamples=0), "resamples"),
        (lambda: bootstrap_interval(Counts([1.0]), confidence=95), "confidence"),
        (lambda: paired_bootstrap(Counts([1.0]), Counts([1.0, 0.0])), "1 and 2 examples"),
        (lambda: paired_bootstrap(Counts([1.0]), [Counts([1.0])] * 3), "1 and 3 seeds"),
        (lambda: bootstrap_interval([Counts([1.0]), Counts([1.0, 0.0])]), "1 and 2 examples"),
        (lambda: bootstrap_interval([]), "no training seed"),
        (lambda: seed_differences([Counts([1.0])] * 2, [Counts([1.0])]), "2 and 1 seeds"),
        (lambda: Sums(np.array([1.0, 2.0]), lambda sums: sums[..., 0]), "one row per example"),
        (lambda: Sums(np.array([[1.0], [np.inf]]), lambda sums: sums[..., 0]), "finite"),
        (lambda: Sums(np.array([[1.0]]), lambda sums: sums[..., 0] / 0), "nothing to count"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_interval_of_a_mean_is_the_normal_approximation():
    values_N = np.random.default_rng(3).normal(10, 2, size=800)
    value, low, high = bootstrap_interval(Counts(values_N), resamples=8000, confidence=0.9)
    standard_error = values_N.std() / math.sqrt(len(values_N))
    assert value == pytest.approx(values_N.mean())
    assert low == pytest.approx(value - 1.6449 * standard_error, abs=0.06 * standard_error)
    assert high == pytest.approx(value + 1.6449 * standard_error, abs=0.06 * standard_error)


def test_interval_of_a_ratio_is_the_delta_method():
    generator = np.random.default_rng(4)
    denominators_N = generator.integers(1, 20, size=1000)
    counts = Counts(generator.binomial(denominators_N, 0.8), denominators_N)
    value, low, high = bootstrap_interval(counts, resamples=8000)
    numerators_N = counts.numerators_N
    residuals_N = numerators_N - value * denominators_N
    standard_error = residuals_N.std() / denominators_N.mean() / math.sqrt(1000)
    assert (high - low) / (2 * 1.96 * standard_error) == pytest.approx(1, abs=0.04)


def test_interval_against_every_resample_of_three_examples():
    # All 27 equally likely draws, by enumeration: the 10th and 90th hundredths fall inside steps of their distribution.
    numerators, denominators = [1, 2, 0], [1, 3, 4]
    values = sorted(
        sum(numerators[i] for i in draw) / sum(denominators[i] for i in draw) for draw in np.ndindex(3, 3, 3)
    )
    _, low, high = bootstrap_interval(Counts(numerators, denominators), confidence=0.8, resamples=20_000)
    assert low == pytest.approx(values[math.floor(0.1 * 27)])
    assert high == pytest.approx(values[math.floor(0.9 * 27)])


def test_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(5)
    covered = 0
    for trial in range(300):
        counts = Counts(generator.random(150) < 0.7)
        _, low, high = bootstrap_interval(counts, confidence=0.9, resamples=300, seed=trial)
        covered += low <= 0.7 <= high
    # Binomial standard error at 0.9 and 300 trials is 0.017: four of them either side.
    assert 0.83 < covered / 300 < 0.97


def test_draws_depend_on_the_seed_and_not_on_the_block_size(monkeypatch):
    counts = Counts(np.random.default_rng(6).random(37))
    whole = bootstrap_interval(counts, seed=1, resamples=101)
    assert bootstrap_interval(counts, seed=2, resamples=101) != whole
    monkeypatch.setattr(metrics, "INDICES_AT_ONCE", 5 * 37 + 1)
    assert bootstrap_interval(counts, seed=1, resamples=101) == pytest.approx(whole, rel=1e-12)


def test_a_resample_is_the_measure_of_the_examples_that_were_drawn():
    columns_NC = np.random.default_rng(3).random((23, 3))
    measured = Sums(columns_NC, lambda sums: sums[..., 0] * sums[..., 1] / sums[..., 2])
    drawn_RN = np.random.default_rng(4).integers(23, size=(50, 23))
    values = [measured.combine(columns_NC[drawn_N].sum(axis=0)) for drawn_N in drawn_RN]
    expected = (measured.value, *np.quantile(values, [0.025, 0.975]))
    assert bootstrap_interval(measured, resamples=50, seed=4) == pytest.approx(expected, rel=1e-12)


def test_draws_without_anything_to_count_are_left_out():
    value, low, high = bootstrap_interval(Counts([1, 0], [2, 0]))
    assert (value, low, high) == (0.5, 0.5, 0.5)


def test_paired_bootstrap_turns_its_sign_with_the_order():
    generator = np.random.default_rng(7)
    first, second = Counts(generator.random(200) < 0.8), Counts(generator.random(200) < 0.7)
    forward, backward = paired_bootstrap(first, second), paired_bootstrap(second, first)
    assert forward.difference == -backward.difference
    assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low))
    assert forward.p_value == backward.p_value


def test_paired_bootstrap_at_its_two_ends():
    values_N = np.random.default_rng(8).random(50)
    same = paired_bootstrap(Counts(values_N), Counts(values_N))
    assert same == (0.0, 0.0, 0.0, 1.0)
    moved = paired_bootstrap(Counts(values_N + 0.5), Counts(values_N), resamples=999)
    assert moved.low == pytest.approx(0.5) and moved.high == pytest.approx(0.5)  # pairing cancels what is shared
    assert moved.p_value == 1 / 1000


def test_paired_p_value_is_that_of_the_normal_test():
    generator = np.random.default_rng(9)
    second_N = generator.normal(size=500)
    first_N = second_N + generator.normal(0.06, 0.8, size=500)
    comparison = paired_bootstrap(Counts(first_N), Counts(second_N), resamples=8000)
    differences_N = first_N - second_N
    z = differences_N.mean() / (differences_N.std() / math.sqrt(500))
    assert comparison.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.02)
    assert 0.02 < comparison.p_value < 0.9  # else the line above says little


def test_p_values_are_uniform_when_there_is_no_difference():
    generator = np.random.default_rng(10)
    p_values = [
        paired_bootstrap(Counts(generator.normal(size=100)), Counts(generator.normal(size=100)), resamples=200).p_value
        for _ in range(300)
    ]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.07)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.07)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=20))
def test_interval_stays_inside_the_range_of_single_examples(pairs):
    counts = Counts([n for n, _ in pairs], [d for _, d in pairs])
    ratios = [n / d for n, d in pairs]
    _, low, high = bootstrap_interval(counts, resamples=50)
    assert min(ratios) - 1e-12 <= low <= high <= max(ratios) + 1e-12


def correlation(sums):
    """Of n, x, y, xx, yy, xy: a function of six sums, without a value where x or y does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


def correlated(xs, ys) -> Sums:
    return Sums(np.array([[1, x, y, x * x, y * y, x * y] for x, y in zip(xs, ys, strict=True)]), correlation)


CONFIDENCES = (0.1, 0.5, 0.8, 0.9, 0.95)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_of_a_function_of_many_sums_against_every_resample(confidence):
    xs, ys = [0, 1, 3, 4], [1, 0, 5, 3]
    values = []
    for draw in np.ndindex(4, 4, 4, 4):
        x, y = [xs[i] for i in draw], [ys[i] for i in draw]
        if len(set(x)) > 1:  # else it has no value
            values.append(np.corrcoef(x, y)[0, 1])
    assert len(values) == 4**4 - 4
    value, *ends = bootstrap_interval(correlated(xs, ys), confidence=confidence, resamples=20_000)
    assert value == pytest.approx(np.corrcoef(xs, ys)[0, 1])
    require_ends(ends, values, confidence)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_over_seeds_against_every_draw_of_examples_and_seeds(confidence):
    runs = [Counts([1, 2, 0], [1, 3, 4]), Counts([0, 3, 1], [1, 3, 4]), Counts([1, 0, 4], [1, 3, 4])]

    def ratio(run: int, draw: Sequence[int]) -> float:
        numerators_N, denominators_N = runs[run].numerators_N, runs[run].denominators_N
        return sum(numerators_N[i] for i in draw) / sum(denominators_N[i] for i in draw)

    values = [
        sum(ratio(run, draw) for run in drawn) / 3 for draw in np.ndindex(3, 3, 3) for drawn in np.ndindex(3, 3, 3)
    ]
    value, *ends = bootstrap_interval(runs, confidence=confidence, resamples=20_000)
    assert value == pytest.approx((3 / 8 + 4 / 8 + 5 / 8) / 3)
    require_ends(ends, values, confidence)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_seeds_and_examples_are_drawn_once_for_both_systems(confidence):
    first = [[0.9, 0.1, 0.3, 0.0], [0.2, 0.7, 0.9, 0.4]]
    second = [[0.5, 0.2, 0.3, 0.1], [0.4, 0.1, 0.8, 0.9]]
    differences_SN = np.array(first) - np.array(second)
    values = [
        np.mean([[differences_SN[run, i] for i in draw] for run in drawn])
        for draw in np.ndindex(4, 4, 4, 4)
        for drawn in np.ndindex(2, 2)
    ]
    comparison = paired_bootstrap(
        [Counts(values_N) for values_N in first],
        [Counts(values_N) for values_N in second],
        confidence=confidence,
        resamples=20_000,
    )
    difference = differences_SN.mean()
    assert comparison.difference == pytest.approx(difference)
    require_ends((comparison.low, comparison.high), values, confidence)
    beyond = np.mean(np.abs(np.array(values) - difference) >= abs(difference) - 1e-12)
    assert comparison.p_value == pytest.approx(beyond, abs=0.014)
    assert 0.1 < beyond < 0.9


def test_what_seeds_share_cancels_in_a_comparison():
    generator = np.random.default_rng(11)
    shared_SN = generator.normal(size=(5, 1)) + generator.normal(size=(5, 60))
    moved = paired_bootstrap([Counts(row_N + 0.5) for row_N in shared_SN], [Counts(row_N) for row_N in shared_SN])
    assert moved.low == pytest.approx(0.5) and moved.high == pytest.approx(0.5)
    assert moved.p_value == 1 / 1001
    estimate = bootstrap_interval([Counts(row_N) for row_N in shared_SN])
    assert estimate.high - estimate.low > 0.5  # there was something to cancel


def test_one_seed_gives_the_interval_without_seeds():
    generator = np.random.default_rng(12)
    first, second = (Counts(generator.random(77), generator.random(77)) for _ in range(2))
    assert bootstrap_interval([first], seed=3) == bootstrap_interval(first, seed=3)
    assert paired_bootstrap([first], [second], seed=3) == paired_bootstrap(first, second, seed=3)


def test_equal_seeds_draw_the_examples_that_one_draws():
    counts = Counts(np.random.default_rng(13).random(50))
    assert bootstrap_interval([counts] * 4, seed=5) == pytest.approx(bootstrap_interval(counts, seed=5))


def test_a_ratio_is_sums_of_two_columns():
    counts = Counts([1.5, 2, 0], [1, 3, 4])
    sums = Sums(np.array([[1.5, 1], [2, 3], [0, 4]]), lambda sums: sums[..., 0] / sums[..., 1])
    assert sums.value == counts.value and len(sums) == len(counts) == 3
    assert bootstrap_interval(sums) == bootstrap_interval(counts)
    assert paired_bootstrap(sums, counts) == (0.0, 0.0, 0.0, 1.0)


def test_seed_differences_pair_seed_with_seed():
    first, second = [Counts([1, 1]), Counts([1, 0])], [Counts([0, 0]), Counts([1, 1])]
    assert seed_differences(first, second) == (1.0, -0.5)
    assert paired_bootstrap(first, second).difference == 0.25


def test_seed_draws_do_not_depend_on_the_block_size(monkeypatch):
    generator = np.random.default_rng(14)
    runs = [Counts(generator.random(37)) for _ in range(3)]
    whole = bootstrap_interval(runs, seed=1, resamples=101)
    monkeypatch.setattr(metrics, "INDICES_AT_ONCE", 5 * 37 + 1)
    assert bootstrap_interval(runs, seed=1, resamples=101) == pytest.approx(whole, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(("num_seeds", "least", "most"), [(3, 0.6, 0.82), (25, 0.83, 0.97)])
def test_few_seeds_are_understated_as_the_docstring_says_and_many_are_not(num_seeds, least, most):
    # Seeds differ far more than examples do: the interval is that of a mean of so few normal draws. With 3 seeds, the
    # bootstrap standard error is sqrt(2 / 3) of the usual one and the tails are those of t with 2 degrees of freedom.
    generator = np.random.default_rng(15)
    covered = 0
    for trial in range(300):
        runs = [Counts(generator.normal() + 0.01 * generator.normal(size=20)) for _ in range(num_seeds)]
        _, low, high = bootstrap_interval(runs, confidence=0.9, resamples=200, seed=trial)
        covered += low <= 0 <= high
    assert least < covered / 300 < most
