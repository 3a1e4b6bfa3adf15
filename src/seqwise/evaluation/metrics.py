"""Every measure here is a ratio of two sums over examples, so one bootstrap serves them all.

A measure returns `Counts`: what each of the N examples adds to the numerator and to the denominator. Their ratio of
sums is the published number (a corpus level, "micro" average), and resampling the examples gives its interval.

Shapes: N examples, R resamples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seqwise.errors import InputError

__all__ = [
    "Comparison",
    "Counts",
    "Estimate",
    "bootstrap_interval",
    "edit_distance",
    "length_ratio",
    "paired_bootstrap",
    "phoneme_error_rate",
    "selected_accuracy",
    "sequence_accuracy",
    "token_accuracy",
    "token_error_rate",
    "word_error_rate",
]

Tokens: TypeAlias = Sequence[str]
Floats: TypeAlias = npt.NDArray[np.float64]

# Resamples are drawn in blocks of about this many indices: 8 MB at a time however many examples there are.
INDICES_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class Counts:
    """What each example adds to both sides of a measure: sum(numerators_N) / sum(denominators_N).

    Args:
        numerators_N: one number per example.
        denominators_N: one number >= 0 per example; left out, each is 1 and the value is the mean.

    Raises:
        InputError: no examples, sides of unequal length, a number that is not finite, or nothing to divide by.

    Example:
        >>> Counts([3, 1], [4, 4]).value
        0.5
        >>> Counts([0.2, 0.4, 0.9]).value
        0.5
    """

    numerators_N: npt.ArrayLike
    denominators_N: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        numerators_N = np.asarray(self.numerators_N, dtype=np.float64)
        given = self.denominators_N
        denominators_N = np.ones_like(numerators_N) if given is None else np.asarray(given, dtype=np.float64)
        if numerators_N.ndim != 1 or numerators_N.shape != denominators_N.shape:
            raise InputError(f"numerators {numerators_N.shape} and denominators {denominators_N.shape} do not pair up")
        if not numerators_N.size:
            raise InputError("there are no examples to measure", mend="give at least one")
        if not (np.isfinite(numerators_N).all() and np.isfinite(denominators_N).all()):
            raise InputError("a count is not a finite number")
        if (denominators_N < 0).any() or not denominators_N.any():
            raise InputError("there is nothing to count in these examples: the denominators must sum to more than 0")
        object.__setattr__(self, "numerators_N", numerators_N)
        object.__setattr__(self, "denominators_N", denominators_N)

    def __len__(self) -> int:
        return len(self.sides[0])

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """(numerators_N, denominators_N) as float64 arrays."""
        return np.asarray(self.numerators_N, dtype=np.float64), np.asarray(self.denominators_N, dtype=np.float64)

    @property
    def value(self) -> float:
        """The measure itself, as a fraction (not per cent)."""
        numerators_N, denominators_N = self.sides
        return float(numerators_N.sum() / denominators_N.sum())


class Estimate(NamedTuple):
    """A value with the two ends of its confidence interval, in the value's unit."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """The difference of two systems, the ends of its confidence interval, and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def token_accuracy(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Share of gold positions whose token is predicted: #{t: prediction_t = reference_t} / #{t}.

    A position that the prediction lacks is wrong; tokens beyond the reference's end are not looked at (report
    `length_ratio` beside it where lengths can differ).

    Example:
        >>> token_accuracy([["D", "N"], ["V"]], [["D", "V"], ["V", "N"]]).value
        0.5
    """
    return selected_accuracy(predictions, references, ignored=())


def selected_accuracy(
    predictions: Sequence[Tokens], references: Sequence[Tokens], *, ignored: Collection[str] = ("-",)
) -> Counts:
    """Token accuracy on the positions whose gold token is not in ``ignored``.

    With the default it is vowel accuracy in stress assignment, where letters that bear no stress mark are "-".

    Example:
        >>> selected_accuracy([list("-1-0")], [list("-1-2")]).value
        0.5
    """
    numerators, denominators = [], []
    for prediction, reference in _pairs(predictions, references):
        selected = [t for t, gold in enumerate(reference) if gold not in ignored]
        numerators.append(sum(t < len(prediction) and prediction[t] == reference[t] for t in selected))
        denominators.append(len(selected))
    return Counts(numerators, denominators)


def sequence_accuracy(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Share of examples whose whole output is right, length included.

    Example:
        >>> sequence_accuracy([["a", "b"], ["a"]], [["a", "b"], ["a", "b"]]).value
        0.5
    """
    return Counts([list(p) == list(r) for p, r in _pairs(predictions, references)])


def edit_distance(first: Tokens, second: Tokens) -> int:
    """Fewest insertions, deletions and substitutions, each of cost 1, from one sequence to the other (Levenshtein).

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(second) + 1))
    for i, token in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != other))
    return row[-1]


def token_error_rate(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Edits per gold token: sum of edit distances / sum of reference lengths; it can exceed 1.

    Example:
        >>> token_error_rate([list("abd")], [list("abcd")]).value
        0.25
    """
    return phoneme_error_rate(predictions, [[reference] for reference in references])


def phoneme_error_rate(predictions: Sequence[Tokens], pronunciations: Sequence[Sequence[Tokens]]) -> Counts:
    """Edits per phoneme against the nearest of each word's reference pronunciations.

    The nearest is the one with the fewest edits and, among equals, the shortest (so that the order of the dictionary
    does not matter); its length goes into the denominator.

    Args:
        predictions: one phoneme sequence per word.
        pronunciations: per word, its accepted pronunciations, at least one.

    Raises:
        InputError: the lists differ in length, or a word has no reference.

    Example:
        >>> phoneme_error_rate([["T", "AH"]], [[["T", "AH", "M"], ["T", "OW", "M", "EY"]]]).value  # 1 edit / 3
        0.3333333333333333
    """
    nearest = [
        min((edit_distance(prediction, reference), len(reference)) for reference in references)
        for prediction, references in _pairs_with_many(predictions, pronunciations)
    ]
    return Counts([edits for edits, _ in nearest], [length for _, length in nearest])


def word_error_rate(predictions: Sequence[Tokens], pronunciations: Sequence[Sequence[Tokens]]) -> Counts:
    """Share of words whose predicted pronunciation is none of the accepted ones.

    This is the word error rate of grapheme-to-phoneme conversion, one word an example; the measure of that name in
    speech recognition, edits per word of running text, is `token_error_rate` on words.

    Args, Raises: as `phoneme_error_rate`.

    Example:
        >>> word_error_rate([["R", "EH", "D"], ["L"]], [[["R", "IY", "D"], ["R", "EH", "D"]], [["M"]]]).value
        0.5
    """
    pairs = _pairs_with_many(predictions, pronunciations)
    return Counts([all(list(p) != list(reference) for reference in references) for p, references in pairs])


def length_ratio(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Predicted tokens per gold token: below 1, outputs are too short.

    Example:
        >>> length_ratio([["a"], ["a", "b"]], [["a", "b"], ["a", "b"]]).value
        0.75
    """
    pairs = list(_pairs(predictions, references))
    return Counts([len(p) for p, _ in pairs], [len(r) for _, r in pairs])


def bootstrap_interval(counts: Counts, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0) -> Estimate:
    """Percentile bootstrap: the measure with the interval that it spans when the N examples are drawn anew.

    Each resample draws N examples with replacement and takes the ratio of its sums; the ends are the
    (1 - confidence) / 2 and (1 + confidence) / 2 quantiles. It covers the choice of examples, not of training seeds.

    Args:
        counts: per-example counts; `Counts(values)` for a plain mean.
        confidence: coverage aimed at, in (0, 1).
        resamples: how many draws, R.
        seed: of the draws; equal seeds give equal intervals.

    Raises:
        InputError: confidence or resamples out of range.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13. Not implemented: the
    bias-corrected (BCa) interval, resampling of documents or seeds.

    Example:
        >>> estimate = bootstrap_interval(Counts([1, 0] * 200))
        >>> estimate.value, 0.44 < estimate.low < 0.46, 0.54 < estimate.high < 0.56
        (0.5, True, True)
    """
    (resampled_R,) = _resampled_values([counts], resamples=resamples, seed=seed)
    return Estimate(counts.value, *_middle(resampled_R, confidence))


def paired_bootstrap(
    first: Counts, second: Counts, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Difference first - second of two systems on the same examples, resampled together.

    With d the difference and d*_r that of resample r, the two-sided p-value of "no difference" is
    (1 + #{r: |d*_r - d| >= |d|}) / (R + 1): the resampled differences, moved to have centre 0, say how far chance
    alone would go.

    Args:
        first, second: counts of the two systems, example n of one beside example n of the other.
        confidence, resamples, seed: as in `bootstrap_interval`.

    Raises:
        InputError: the systems were measured on different numbers of examples, or an option is out of range.

    Source: Noreen, Computer-Intensive Methods for Testing Hypotheses, 1989; Koehn, EMNLP 2004, for the pairing.

    Example:
        >>> better = paired_bootstrap(Counts([1] * 90 + [0] * 10), Counts([1] * 50 + [0] * 50))
        >>> round(better.difference, 6), better.low > 0.2, better.p_value < 0.01
        (0.4, True, True)
    """
    if len(first) != len(second):
        raise InputError(
            f"the systems have {len(first)} and {len(second)} examples", mend="measure both on the same examples"
        )
    first_R, second_R = _resampled_values([first, second], resamples=resamples, seed=seed)
    difference = first.value - second.value
    differences_R = first_R - second_R
    # Accuracies move in steps of 1 / N, so exact ties are common and rounding must not decide them.
    extreme = np.abs(differences_R - difference) >= abs(difference) - 1e-12
    p_value = float((1 + extreme.sum()) / (1 + len(differences_R)))
    return Comparison(difference, *_middle(differences_R, confidence), p_value)


def _resampled_values(systems: Sequence[Counts], *, resamples: int, seed: int) -> Floats:
    """Each system's measure in each resample (one row per system), the same draws for all."""
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    num_examples = len(systems[0])
    rows_at_once = max(1, INDICES_AT_ONCE // num_examples)
    generator = np.random.default_rng(seed)
    blocks: list[Floats] = []
    for start in range(0, resamples, rows_at_once):
        rows = min(rows_at_once, resamples - start)
        indices_RN = generator.integers(num_examples, size=(rows, num_examples))
        sums = np.array([[side_N[indices_RN].sum(axis=1) for side_N in counts.sides] for counts in systems])
        with np.errstate(invalid="ignore", divide="ignore"):
            blocks.append(sums[:, 0] / sums[:, 1])
    values = np.concatenate(blocks, axis=1)
    # A draw of examples that all have nothing to count has no value: such draws are left out.
    return values[:, np.isfinite(values).all(axis=0)]


def _middle(values_R: Floats, confidence: float) -> tuple[float, float]:
    """The two ends of the central ``confidence`` share of the values."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    if not len(values_R):
        raise InputError("no resample had anything to count", mend="ask for more resamples or give more examples")
    low, high = np.quantile(values_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _pairs(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Iterator[tuple[Tokens, Tokens]]:
    _check_same_number(len(predictions), len(references))
    return zip(predictions, references, strict=True)


def _pairs_with_many(
    predictions: Sequence[Tokens], pronunciations: Sequence[Sequence[Tokens]]
) -> Iterator[tuple[Tokens, Sequence[Tokens]]]:
    _check_same_number(len(predictions), len(pronunciations))
    for number, references in enumerate(pronunciations, start=1):
        if not references:
            raise InputError(f"example {number} has no reference", mend="give at least one or leave the example out")
    return zip(predictions, pronunciations, strict=True)


def _check_same_number(num_predictions: int, num_references: int) -> None:
    if num_predictions != num_references:
        raise InputError(f"{num_predictions} predictions for {num_references} references", mend="give one for each")
