"""Minimal pairs: which of two texts a model scores higher, by how much, and how often this is the right one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from seqwise.errors import InputError
from seqwise.evaluation.metrics import Estimate
from seqwise.names import ScoreUnit
from seqwise.sampling.scores import NATS_OF, TextScore
from seqwise.sampling.scoring_settings import ScoringSettings


@dataclass(frozen=True)
class PairScore:
    """Scores of a good and a bad text in ``unit``: sums over tokens, or means (``by``).

    Example:
        >>> PairScore("a", "b", "", -1.0, -3.5, "nats", "sum").difference
        2.5
    """

    good: str
    bad: str
    category: str
    good_log_prob: float
    bad_log_prob: float
    unit: ScoreUnit
    by: str

    @classmethod
    def of(cls, good: TextScore, bad: TextScore, *, category: str, settings: ScoringSettings) -> PairScore:
        """Compare two scored texts."""
        means = settings.by == "mean"
        values = [(side.mean_log_prob if means else side.log_prob) / NATS_OF[settings.unit] for side in (good, bad)]
        return cls(good.text, bad.text, category, values[0], values[1], settings.unit, settings.by)

    @property
    def difference(self) -> float:
        """Return the score of the good text minus that of the bad one; 0 for two texts of probability 0."""
        return 0.0 if self.good_log_prob == self.bad_log_prob else self.good_log_prob - self.bad_log_prob

    @property
    def winner(self) -> str:
        """Return "good", "bad", or "tie"."""
        return "tie" if self.difference == 0 else "good" if self.difference > 0 else "bad"

    def record(self) -> dict[str, Any]:
        """Return the pair as a JSON record."""
        return asdict(self) | {"difference": self.difference, "winner": self.winner}


@dataclass(frozen=True)
class PairAccuracy:
    """Share of pairs whose good text wins, with its interval; ties count as losses."""

    category: str
    accuracy: Estimate
    num_pairs: int
    num_ties: int
    mean_difference: float


def pair_accuracies(pairs: Iterable[PairScore]) -> list[PairAccuracy]:
    """Return accuracies by category, sorted by name, with all pairs last, under "all".

    Example:
        >>> pairs = [PairScore("a", "b", "x", good, -2.0, "nats", "sum") for good in (-1.0, -3.0, -2.0)]
        >>> [(row.category, row.num_pairs, row.num_ties) for row in pair_accuracies(pairs)]
        [('x', 3, 1), ('all', 3, 1)]
    """
    groups: dict[str, list[PairScore]] = {}
    every: list[PairScore] = []
    for pair in pairs:
        every.append(pair)
        if pair.category:
            groups.setdefault(pair.category, []).append(pair)
    if not every:
        raise InputError("there are no pairs")
    return [_accuracy(name, groups[name]) for name in sorted(groups)] + [_accuracy("all", every)]


def _accuracy(category: str, pairs: list[PairScore]) -> PairAccuracy:
    winners = [pair.winner for pair in pairs]
    mean = sum(pair.difference for pair in pairs) / len(pairs)  # math.fsum refuses infinities of both signs
    interval = wilson_interval(winners.count("good"), len(pairs))
    return PairAccuracy(category, interval, len(pairs), winners.count("tie"), mean)


def wilson_interval(successes: int, number: int) -> Estimate:
    """Return a share with its 95% score interval, which is also valid near 0 and 1.

    It contains the p with ``(successes - number p)^2 <= z^2 number p (1 - p)``.

    Args:
        successes: from 0 to number.
        number: number of trials, at least 1.

    Source: Wilson (JASA 22(158), 1927).

    Example:
        >>> [round(end, 3) for end in wilson_interval(9, 10)]
        [0.9, 0.596, 0.982]
    """
    if not 0 <= successes <= number or number < 1:
        raise InputError(f"{successes} successes of {number} trials")
    z = NormalDist().inv_cdf(0.975)
    share = successes / number
    centre = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z / (1 + z**2 / number) * math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))
