"""Intervals, p-values and verdicts, computed from the summands that results keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from reproductions.report import Claim, Result, Table
from reproductions.values import Values, sums_of, values_by_seed, values_of
from seqwise.evaluation.metrics import Comparison, PerSeed, bootstrap_interval, paired_bootstrap
from seqwise.evaluation.signature import Signature

SIGNIFICANT = 0.05
"""p-value below which a difference is significant."""
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, 97.5%, by number of seeds
BY_SEED = "by seed"
EVERYWHERE = "better everywhere"
ABOUT = 1.25  # "about ten times" is 8 to 12.5 times
CLOSE = 1e-6


def interval_result(
    system: str, measure: str, measured: PerSeed, signature: Signature, *, unit: str = "%", rule: str = "",
    published: float | None = None, note: str = "",
) -> Result:  # fmt: skip
    """Return a result with its bootstrap interval; the rule "exp" takes the exponential of the measure."""
    bare = Result(
        system, measure, 0.0, signature, unit=unit, rule=rule, published=published, note=note,
        values=(values_of(measured),),
    )  # fmt: skip
    return computed(bare)


def difference_result(
    system: str, measure: str, first: PerSeed, second: PerSeed, signature: Signature, *, note: str = ""
) -> Result:
    """Return the difference first - second, with the interval and p-value of a paired bootstrap."""
    values = (values_of(first), values_of(second))
    return computed(Result(system, measure, 0.0, signature, note=note, values=values))


def student_result(
    system: str, measure: str, numbers: Sequence[float], signature: Signature, *, unit: str, note: str = "",
    published: float | None = None,
) -> Result:  # fmt: skip
    """Return the mean of numbers that are exact for each seed, with Student's interval."""
    bare = Result(
        system, measure, 0.0, signature, unit=unit, rule=BY_SEED, published=published, note=note,
        values=(values_by_seed(numbers),),
    )  # fmt: skip
    return computed(bare)


def computed(result: Result) -> Result:
    """Return a result with its numbers computed from its values, if it has any."""
    if not result.values:
        return result
    measured = [sums_of(values) for values in result.values]
    if result.rule == BY_SEED:
        value, low, high = student_interval([run.value for run in measured[0]])
        return replace(result, value=value, low=low, high=high)
    scale = 100.0 if result.unit == "%" else 1.0
    if len(measured) == 2:
        test = paired_bootstrap(measured[0], measured[1])
        value, low, high = (scale * number for number in test[:3])
        return replace(result, value=value, low=low, high=high, p_value=test.p_value)
    estimate = bootstrap_interval(measured[0])
    value, low, high = (math.exp(end) if result.rule == "exp" else scale * end for end in estimate)
    return replace(result, value=value, low=low, high=high)


def student_interval(numbers: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean over seeds and the ends of Student's 95% interval, which are None for one seed."""
    mean = statistics.fmean(numbers)
    if len(numbers) < 2:
        return mean, None, None
    # For more seeds than the table has, its last entry is conservative.
    half = T_95.get(len(numbers), T_95[5]) * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return mean, mean - half, mean + half


def decide(rule: str, first: Values, second: Values, *others: Values) -> tuple[str, tuple[float, ...]]:
    """Return the verdict of a claim and the numbers that it rests on.

    Rules, for a paired bootstrap over examples and seeds: "better": first > second with p < 0.05. "better everywhere":
    the same for each pair of values; pairs that disagree make it not seen. "no worse by M": the whole 95% interval of
    first - second lies above -M. For Student's 95% interval over seeds: "by seed": that of the
    differences lies above 0. "about T times": that of the ratios lies within a quarter of T; reversed if it lies below
    1. Otherwise, a claim whose opposite passes the test is reversed. The numbers are the difference, the ends of its
    interval and, of a bootstrap, the p-value; of a single seed, by seed, the difference alone.
    """
    if rule == EVERYWHERE:
        values = (first, second, *others)
        each = [decide("better", *pair) for pair in zip(values[::2], values[1::2], strict=True)]
        verdicts = {verdict for verdict, _ in each}
        numbers = tuple(number for _, numbers in each for number in numbers)
        return verdicts.pop() if len(verdicts) == 1 else "not seen", numbers
    ours, theirs = sums_of(first), sums_of(second)
    if rule == BY_SEED:
        mean, low, high = student_interval([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
        if low is None or high is None:
            return "not seen", (mean,)
        return "holds" if low > 0 else "reversed" if high < 0 else "not seen", (mean, low, high)
    if rule.startswith("about "):
        times = float(rule.removeprefix("about ").removesuffix(" times"))
        logs = [math.log(a.value / b.value) for a, b in zip(ours, theirs, strict=True)]
        mean, low, high = student_interval(logs)
        if low is None or high is None:
            return "not seen", (math.exp(mean),)
        low, high = math.exp(low), math.exp(high)
        about = times / ABOUT <= low and high <= ABOUT * times
        return "holds" if about else "reversed" if high < 1 else "not seen", (math.exp(mean), low, high)
    test: Comparison = paired_bootstrap(ours, theirs)
    if rule == "better":
        direction = "holds" if test.difference > 0 else "reversed"
        return direction if test.p_value < SIGNIFICANT else "not seen", tuple(test)
    margin = float(rule.removeprefix("no worse by "))
    return "holds" if test.low >= -margin else "reversed" if test.high < -margin else "not seen", tuple(test)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for their number.

    The i-th smallest of m becomes the largest of ``(m - j + 1) p_j`` over all j up to i, at most 1.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = [(len(order) - rank) * p_values[place] for rank, place in enumerate(order)]
    adjusted = dict(zip(order, accumulate(scaled, max), strict=True))
    return [min(1.0, adjusted[place]) for place in range(len(p_values))]


def recompute(table: Table) -> Iterator[tuple[Result | Claim, str]]:
    """Recompute all intervals, p-values and verdicts of a table; yield each with its problem, "" if it is the same."""
    for result in table.results:
        if result.low is not None or result.p_value is not None:
            yield result, _difference(result, computed(result)) if result.values else "no values"
    for claim in table.claims:
        if claim.kind == "claim" and claim.verdict != "not tested":
            yield claim, _examine(claim)


def _difference(saved: Result, recomputed: Result) -> str:
    for name in ("value", "low", "high", "p_value"):
        before, now = getattr(saved, name), getattr(recomputed, name)
        if before != now and (before is None or now is None or not _is_close(before, now)):
            old, new = (number if number is None else f"{number:.6g}" for number in (before, now))
            return f"{name} is {old}, comes out as {new}"
    return ""


def _examine(claim: Claim) -> str:
    if not claim.values:
        return "no values"
    verdict, numbers = decide(claim.rule, *claim.values)
    if len(numbers) != len(claim.numbers) or not all(map(_is_close, numbers, claim.numbers)):
        return f"the numbers are {claim.numbers}, come out as {numbers}"
    return "" if verdict == claim.verdict else f"the verdict is {claim.verdict!r}, comes out as {verdict!r}"


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)
