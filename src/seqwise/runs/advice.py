"""Advice on decoders, from their results on development data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seqwise.evaluation.metrics import Sums, enough_examples, paired_bootstrap
from seqwise.objectives.settings import SelfNormalized
from seqwise.runs.settings import Settings

Measured = Mapping[str, Mapping[str, Sums]]
"""Measures by decoder and title."""

COLLAPSE = 1.2
"""Ratio of output lengths, raw scores to beam, above which (or below whose inverse) raw scores have collapsed."""


class Gain(NamedTuple):
    """Difference of two measures in points, with its 95% interval; positive if the first is better."""

    points: float
    low: float
    high: float
    significant: bool  # whether the interval excludes 0, and there are ten examples or more

    def __str__(self) -> str:
        """Format the absolute difference with its interval."""
        low, high = (self.low, self.high) if self.points >= 0 else (-self.high, -self.low)
        return f"{abs(self.points):.1f} points [{low:.1f}, {high:.1f}]"


def advise(
    measured: Measured,
    title: str,
    sign: int,
    *,
    settings: Settings,
    usual: str,
    mean_log_partition: float | None,
    left_to_right: bool,
) -> str:
    """Recommend a decoder in a sentence or two, and warn if raw scores ruin the search.

    Measures are compared by ``title``, times ``sign``. A difference counts if its 95% interval (paired bootstrap over
    the examples) excludes 0, and there are ten examples or more. Only a model that reads ``left_to_right`` can lack
    later evidence, which unnormalised scores bring in.
    """
    best = best_of(measured, title, sign, usual=usual)
    warning = _collapse(measured, title, sign, settings, mean_log_partition)
    choice = _choice(measured, title, sign, best, usual, left_to_right=left_to_right)
    return ". ".join(filter(None, (warning, choice)))


def best_of(measured: Measured, title: str, sign: int, *, usual: str) -> str:
    """Return the decoder with the best value; ties go to the usual one, then to the first."""
    return max(measured, key=lambda name: (sign * measured[name][title].value, name == usual))


def _choice(measured: Measured, title: str, sign: int, best: str, usual: str, *, left_to_right: bool) -> str:
    values = {by_title[title].value for by_title in measured.values()}
    if len(values) == 1 and len(measured) > 1:
        return f"all decoders are equally good here ({title}); predict uses {usual}"
    if best == usual:
        value = measured[usual][title].value
        equals = [name for name in measured if name != usual and measured[name][title].value == value]
        also = f"; {', '.join(equals)} {'is' if len(equals) == 1 else 'are'} as good" if equals else ""
        return f"{usual}, which predict uses by default, is best here ({title}){also}"
    gain = gain_of(measured, title, sign, best, usual)
    if not gain.significant:
        by = f"{gain}, {title}, development data" if enough_examples(measured[best][title]) else "too few examples"
        return f"{best} is not significantly better than {usual} ({by}); predict keeps using {usual}"
    better = f"{best} is better than {usual} by {gain} ({title}, development data)"
    raw = left_to_right and best in ("raw-beam", "interpolated-beam") and usual == "beam"
    why = ": its unnormalised scores hold evidence from later tokens, which local scores discard" if raw else ""
    return f"{better}{why}; predict with --decoder {best}"


def _collapse(measured: Measured, title: str, sign: int, settings: Settings, mean_log_partition: float | None) -> str:
    """Return a warning if raw scores give worse outputs, of a different length, than local scores."""
    if "length ratio" not in measured["beam"] or not measured["beam"]["length ratio"].value:
        return ""
    ratio = measured["raw-beam"]["length ratio"].value / measured["beam"]["length ratio"].value
    loss = gain_of(measured, title, sign, "beam", "raw-beam")
    if 1 / COLLAPSE < ratio < COLLAPSE or loss.points <= 0 or not loss.significant:
        return ""
    # A positive log Z explains longer outputs, a negative one shorter outputs.
    nats = mean_log_partition if mean_log_partition is not None and (mean_log_partition > 0) == (ratio > 1) else 0.0
    why = f": each token {'adds' if nats > 0 else 'subtracts'} log Z = {abs(nats):.1f} nats" if nats else ""
    length = f"outputs {ratio:.1f} times as long as the beam's"
    return f"raw-beam collapses here ({length}{why}): do not use it; {_remedy(settings)}"


def _remedy(settings: Settings) -> str:
    if any(isinstance(stage.settings.objective, SelfNormalized) for stage in settings.stages()):
        return "a larger --log-partition-weight brings log Z closer to 0"
    if settings.trained_score == "global":
        return "--warm-start self-normalized helps"
    return "--objective self-normalized prevents it"


def gain_of(measured: Measured, title: str, sign: int, first: str, second: str) -> Gain:
    """Return the gain of the first decoder over the second."""
    return gain_between(measured[first][title], measured[second][title], sign=sign)


def gain_between(first: Sums, second: Sums, *, sign: int = 1) -> Gain:
    """Return the gain of the first measure over the second, times ``sign``."""
    comparison = paired_bootstrap(first, second)
    significant = enough_examples(first) and (comparison.low > 0 or comparison.high < 0)
    low, high = sorted((sign * comparison.low, sign * comparison.high))
    return Gain(100 * sign * comparison.difference, 100 * low, 100 * high, significant)
