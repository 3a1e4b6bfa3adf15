"""Measures as functions of sums over examples, so that one bootstrap serves all of them.

A measure returns `Sums`: the terms of each of the N examples in C sums, and a function that combines the sums. Most
measures are `Counts`, the ratio of two sums (a corpus-level, "micro" average). Intervals come from resampling the
examples and, if there are several, the training seeds.

Shapes: N examples, C sums, R resamples, S training seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqwise.errors import InputError

Tokens: TypeAlias = Sequence[str]
Floats: TypeAlias = npt.NDArray[np.float64]
A = TypeVar("A")
B = TypeVar("B")
PerSeed: TypeAlias = "Sums | Sequence[Sums]"  # one measurement, or one per training seed

# Resamples are drawn in blocks of about this many indices: 8 MB at a time however many examples there are.
INDICES_AT_ONCE = 2**20

FEWEST = 10
"""Smallest number of examples for a bootstrap: intervals over fewer are too narrow."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Measure that is a function of C sums over examples: combine(sum over n of columns_NC[n]).

    Args:
        columns_NC: one row per example.
        combine: maps sums (..., C) to values (...) along the last axis; NaN if nothing can be measured.

    Raises:
        InputError: no examples, a number that is not finite, or nothing to measure in all of them.

    Example:
        >>> powers_NC = np.array([[1, 2, 4], [1, 4, 16]])  # 1, x and x squared: a variance is no single ratio
        >>> Sums(powers_NC, lambda sums: sums[..., 2] / sums[..., 0] - (sums[..., 1] / sums[..., 0]) ** 2).value
        1.0
    """

    columns_NC: Floats
    combine: Callable[[Floats], Floats]

    def __post_init__(self) -> None:
        columns_NC = np.asarray(self.columns_NC, dtype=np.float64, order="F")  # columns are summed and read one by one
        if columns_NC.ndim != 2 or not columns_NC.size:
            raise InputError("there are no examples to measure", hint="give one row per example and at least one")
        if not np.isfinite(columns_NC).all():
            raise InputError("a count is not a finite number")
        object.__setattr__(self, "columns_NC", columns_NC)
        if not np.isfinite(self.value):
            raise InputError("there is nothing to count in these examples")

    def __len__(self) -> int:
        return len(self.columns_NC)

    @property
    def value(self) -> float:
        """The measure as a fraction, not in per cent."""
        return float(_combined(self, self.columns_NC.sum(axis=0)))


class Counts(Sums):
    """Ratio of two sums over examples: sum(numerators_N) / sum(denominators_N).

    Args:
        numerators_N: one number per example.
        denominators_N: one number >= 0 per example; by default 1, so that the value is the mean.

    Raises:
        InputError: no examples, different lengths, a number that is not finite, or denominators that sum to 0.

    Example:
        >>> Counts([3, 1], [4, 4]).value, Counts([0.2, 0.4, 0.9]).value
        (0.5, 0.5)
    """

    numerators_N: Floats
    denominators_N: Floats

    def __init__(self, numerators_N: npt.ArrayLike, denominators_N: npt.ArrayLike | None = None) -> None:
        above_N = np.asarray(numerators_N, dtype=np.float64)
        below_N = np.ones_like(above_N) if denominators_N is None else np.asarray(denominators_N, dtype=np.float64)
        if above_N.ndim != 1 or above_N.shape != below_N.shape:
            raise InputError(f"numerators {above_N.shape} and denominators {below_N.shape} do not pair up")
        super().__init__(np.stack([above_N, below_N], axis=1), _ratio)
        object.__setattr__(self, "numerators_N", above_N)
        object.__setattr__(self, "denominators_N", below_N)
        if (below_N < 0).any():
            raise InputError("there is nothing to count in these examples: a denominator is less than 0")


class Estimate(NamedTuple):
    """Value with its confidence interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """Difference between two systems, with its confidence interval and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def token_accuracy(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Compute the share of gold positions with the right token: #{t: prediction_t = reference_t} / #{t}.

    Missing predictions are wrong; tokens beyond the end of the reference are ignored.

    Example:
        >>> token_accuracy([["D", "N"], ["V"]], [["D", "V"], ["V", "N"]]).value
        0.5
    """
    return selected_accuracy(predictions, references, ignored=())


def selected_accuracy(
    predictions: Sequence[Tokens], references: Sequence[Tokens], *, ignored: Collection[str] = ("-",)
) -> Counts:
    """Compute token accuracy over positions whose gold token is not in ``ignored``.

    The default gives vowel accuracy in stress assignment, where letters without a stress mark are "-".
    """
    numerators, denominators = [], []
    for prediction, reference in pairs(predictions, references):
        selected = [t for t, gold in enumerate(reference) if gold not in ignored]
        numerators.append(sum(t < len(prediction) and prediction[t] == reference[t] for t in selected))
        denominators.append(len(selected))
    return Counts(numerators, denominators)


def sequence_accuracy(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Compute the share of examples whose output equals the reference.

    Example:
        >>> sequence_accuracy([["a", "b"], ["a"]], [["a", "b"], ["a", "b"]]).value
        0.5
    """
    return Counts([list(p) == list(r) for p, r in pairs(predictions, references)])


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance between two sequences: insertions, deletions and substitutions cost 1 each.

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    for row in edit_distances(first, second):
        distance = row[-1]
    return distance


def edit_distances(first: Sequence[Hashable], second: Sequence[Hashable]) -> Iterator[list[int]]:
    """Yield, for each prefix of the first sequence, its edit distances to all prefixes of the second.

    Example:
        >>> list(edit_distances("a", "ba"))
        [[0, 1, 2], [1, 1, 1]]
    """
    row = list(range(len(second) + 1))
    yield row
    for i, token in enumerate(first, start=1):
        above, row = row, [i]
        for j, other in enumerate(second, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (token != other)))
        yield row


def token_error_rate(predictions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Counts:
    """Compute edits per gold token against the nearest reference of each example; the rate can exceed 1.

    The nearest reference has the fewest edits, then the fewest tokens; its length is the denominator.

    Args:
        predictions: one sequence per example, such as the phonemes of a word.
        references: the right sequences of each example, at least one.

    Raises:
        InputError: the lists differ in length, or an example has no reference.

    Example:
        >>> token_error_rate([["T", "AH"]], [[["T", "AH", "M"], ["T", "OW", "M", "EY"]]]).value  # 1 edit / 3
        0.3333333333333333
    """
    nearest = [
        min((edit_distance(prediction, reference), len(reference)) for reference in options)
        for prediction, options in _tokens_with_many(predictions, references)
    ]
    return Counts([edits for edits, _ in nearest], [length for _, length in nearest])


def word_error_rate(predictions: Sequence[Tokens], pronunciations: Sequence[Sequence[Tokens]]) -> Counts:
    """Compute the share of words whose predicted pronunciation is not an accepted one.

    The word error rate of speech recognition, edits per word of running text, is `token_error_rate`, with the same
    arguments and errors.

    Example:
        >>> word_error_rate([["R", "EH", "D"], ["L"]], [[["R", "IY", "D"], ["R", "EH", "D"]], [["M"]]]).value
        0.5
    """
    together = _tokens_with_many(predictions, pronunciations)
    return Counts([all(list(p) != list(reference) for reference in references) for p, references in together])


def length_ratio(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> Counts:
    """Compute the number of predicted tokens per gold token."""
    lengths = [(len(prediction), len(reference)) for prediction, reference in pairs(predictions, references)]
    return Counts([ours for ours, _ in lengths], [gold for _, gold in lengths])


def bootstrap_interval(counts: PerSeed, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0) -> Estimate:
    """Compute a measure with its percentile bootstrap interval over examples and training seeds.

    Each resample draws N examples with replacement and combines their sums; the ends are the (1 - confidence) / 2 and
    (1 + confidence) / 2 quantiles. Given one measurement per training seed, the value is the mean over the S seeds,
    and each resample also draws S seeds with replacement; all seeds share the resampled examples.

    A single measurement covers only the choice of examples. With few seeds, variance is underestimated: on average it
    is (S - 1) / S of the true variance between seeds, and the quantiles lack the tails of t with S - 1 degrees of
    freedom (at S = 3, 4.3 standard errors for 95%, not 2). Variance between seeds within an example is overestimated,
    up to threefold.

    Args:
        counts: `Counts(values)` for a plain mean; or a sequence, one per training seed, all on the same examples.
        confidence: nominal coverage, in (0, 1).
        resamples: number of resamples, R.
        seed: random seed; equal seeds give equal intervals.

    Raises:
        InputError: confidence or resamples out of range, no seed, or seeds with different numbers of examples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; with seeds, Sellam et al., The
    MultiBERTs, ICLR 2022, and Owen, Ann. Appl. Stat. 1(2), 2007. Not implemented: BCa intervals, drawing documents.

    Example:
        >>> estimate = bootstrap_interval(Counts([1, 0] * 200))
        >>> estimate.value, 0.44 < estimate.low < 0.46, 0.54 < estimate.high < 0.56
        (0.5, True, True)
    """
    (runs,) = _by_seed(counts)
    (resampled_R,) = _resampled_means([runs], resamples=resamples, seed=seed)
    return Estimate(float(np.mean([run.value for run in runs])), *_middle(resampled_R, confidence))


def paired_bootstrap(
    first: PerSeed, second: PerSeed, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Compute the difference first - second of two systems, by a paired bootstrap over the same examples.

    With d the difference and d*_r that of resample r, the two-sided p-value of "no difference" is
    (1 + #{r: |d*_r - d| >= |d|}) / (R + 1). The notes on few seeds in `bootstrap_interval` also apply to p-values.

    Args:
        first, second: the systems, measured on the same examples in the same order; or one measurement per training
            seed, paired by seed, whose means are compared.
        confidence, resamples, seed: see `bootstrap_interval`.

    Raises:
        InputError: the systems differ in their number of examples or seeds, or an option is out of range.

    Source: Noreen, Computer-Intensive Methods for Testing Hypotheses, 1989; Koehn, EMNLP 2004, for the pairing.

    Example:
        >>> better = paired_bootstrap(Counts([1] * 90 + [0] * 10), Counts([1] * 50 + [0] * 50))
        >>> round(better.difference, 6), better.low > 0.2, better.p_value < 0.01
        (0.4, True, True)
    """
    first_R, second_R = _resampled_means(_by_seed(first, second), resamples=resamples, seed=seed)
    difference = float(np.mean(seed_differences(first, second)))
    differences_R = first_R - second_R
    # Accuracies move in steps of 1 / N, so exact ties are common and rounding must not decide them.
    extreme = np.abs(differences_R - difference) >= abs(difference) - 1e-12
    p_value = float((1 + extreme.sum()) / (1 + len(differences_R)))
    return Comparison(difference, *_middle(differences_R, confidence), p_value)


def seed_differences(first: PerSeed, second: PerSeed) -> tuple[float, ...]:
    """Return first - second for each training seed."""
    return tuple(ours.value - theirs.value for ours, theirs in zip(*_by_seed(first, second), strict=True))


def _by_seed(*measured: PerSeed) -> list[list[Sums]]:
    """Return a list of measurements by seed for each system, with equal numbers of seeds and examples."""
    systems = [[each] if isinstance(each, Sums) else list(each) for each in measured]
    seeds = dict.fromkeys(len(runs) for runs in systems)
    examples = dict.fromkeys(len(run) for runs in systems for run in runs)
    if not all(seeds):
        raise InputError("there is no training seed to measure", hint="give at least one")
    for what, numbers in (("seeds", seeds), ("examples", examples)):
        if len(numbers) > 1:
            raise InputError(f"there are {' and '.join(map(str, numbers))} {what}", hint=f"use the same {what}")
    return systems


def _resampled_means(systems: Sequence[Sequence[Sums]], *, resamples: int, seed: int) -> Floats:
    """Return (systems, R): the mean over seeds of each system in each resample, with common draws."""
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    num_seeds, num_examples = len(systems[0]), len(systems[0][0])
    rows_at_once = max(1, INDICES_AT_ONCE // num_examples)
    generator = np.random.default_rng(seed)
    # A separate random stream, so that the drawn examples do not depend on the number of seeds.
    seeds_SR = generator.spawn(1)[0].integers(num_seeds, size=(resamples, num_seeds)).T
    blocks: list[Floats] = []
    for start in range(0, resamples, rows_at_once):
        indices_RN = generator.integers(num_examples, size=(min(rows_at_once, resamples - start), num_examples))
        # A product with the number of draws of each example sums all columns: far faster than gathering drawn rows.
        draws_RN = np.empty(indices_RN.shape)
        for draws_N, indices_N in zip(draws_RN, indices_RN, strict=True):
            draws_N[:] = np.bincount(indices_N, minlength=num_examples)
        blocks.append(np.array([[_combined(run, draws_RN @ run.columns_NC) for run in runs] for runs in systems]))
    means = np.take_along_axis(np.concatenate(blocks, axis=2), seeds_SR[None], axis=1).mean(axis=1)
    # A resample in which no example has anything to count has no value and is left out.
    return means[:, np.isfinite(means).all(axis=0)]


def _combined(run: Sums, sums: Floats) -> Floats:
    """Return the measure of sums (..., C); NaN or infinite if nothing can be measured."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return run.combine(sums)


def _ratio(sums: Floats) -> Floats:
    return sums[..., 0] / sums[..., 1]


def _middle(values_R: Floats, confidence: float) -> tuple[float, float]:
    """Return the central interval that contains this share of the values."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    if not len(values_R):
        raise InputError("no resample had anything to count", hint="ask for more resamples or give more examples")
    low, high = np.quantile(values_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def pairs(predictions: Sequence[A], references: Sequence[B]) -> Iterator[tuple[A, B]]:
    """Zip equal numbers of predictions and references."""
    if len(predictions) != len(references):
        raise InputError(f"{len(predictions)} predictions for {len(references)} references", hint="give one for each")
    return zip(predictions, references, strict=True)


def pairs_with_many(predictions: Sequence[A], references: Sequence[Sequence[B]]) -> Iterator[tuple[A, Sequence[B]]]:
    """Zip predictions and nonempty lists of references."""
    together = pairs(predictions, references)
    for number, options in enumerate(references, start=1):
        if not options:
            raise InputError(f"example {number} has no reference", hint="give at least one or leave the example out")
    return together


def _tokens_with_many(
    predictions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]
) -> Iterator[tuple[Tokens, Sequence[Tokens]]]:
    """Zip outputs and lists of references; a bare reference would pass for one of characters per token."""
    for number, (prediction, options) in enumerate(pairs_with_many(predictions, references), start=1):
        are_texts = all(isinstance(option, str) for option in options)
        if isinstance(options, str) or (are_texts and not isinstance(prediction, str)):
            problem = f"example {number} has one reference, where a list of references was expected"
            raise InputError(problem, hint="give a list of token sequences for each example")
        yield prediction, options


def num_examples(sums: Sums) -> int:
    """Count the examples with a nonzero term.

    Example:
        >>> num_examples(Counts([1, 0, 0], [1, 1, 0]))
        2
    """
    return int((sums.columns_NC != 0).any(axis=1).sum())


def estimated(sums: Sums) -> Estimate:
    """Compute a measure with its bootstrap interval, whose ends are NaN for too few examples.

    Example:
        >>> estimated(Counts([1, 0]))
        Estimate(value=0.5, low=nan, high=nan)
    """
    return bootstrap_interval(sums) if enough_examples(sums) else Estimate(sums.value, math.nan, math.nan)


def compared(first: Sums, second: Sums) -> Comparison:
    """Compute a difference as `paired_bootstrap` does; for too few examples, its interval and p-value are NaN."""
    if enough_examples(first):
        return paired_bootstrap(first, second)
    return Comparison(first.value - second.value, math.nan, math.nan, math.nan)


def enough_examples(sums: Sums) -> bool:
    """Whether a measure has enough examples for a bootstrap."""
    return num_examples(sums) >= FEWEST
