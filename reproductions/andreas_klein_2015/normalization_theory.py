"""Two bounds on log Z of log-linear models, ``Z(x; theta) = sum_y exp(theta_y . x)``: by distance, and on new data."""

from __future__ import annotations

import math


def approximate_normalization_bound(*, num_features: int, weight_bound: float, mean_distance: float) -> float:
    """Return theorem 1's bound ``E|log Z(X)| <= d B D``, D the mean distance to the normalised set.

    log Z changes by no more than the score that changes most, which by Hoelder's inequality is at most d B times the
    largest change of a feature.
    """
    return num_features * weight_bound * mean_distance


def generalization_bound(
    *, num_features: int, num_classes: int, weight_bound: float, radius: float, num_examples: int, delta: float
) -> float:
    """Return theorem 2's bound on ``|mean_i |log Z(X_i)| - E|log Z(X)||``, which fails with probability delta::

        2 / n + M sqrt((d k log ceil(n d B R) + log(2 / delta)) / (2 n)),   M = min(log k + d B R, 2 d B R)

    The sum of three facts. Scores move by at most 1 / n if each weight moves by ``1 / (n d R)``, and |log Z| by no more
    (lemma 3, alpha = 1/n), which costs 2 / n; a grid of ``ceil(n d B R)`` values a weight comes that near to all theta
    (corollary 4); and for each theta on the grid Hoeffding's inequality holds, with a |log Z| that varies by M at most,
    since log Z is within d B R of log k. The printed bound lacks M. Without it no bound of this kind can hold, for
    |log Z| is in nats and grows with B and R. So this function follows the proof.
    """
    spread = num_features * weight_bound * radius  # the largest score
    cover = num_features * num_classes * math.log(max(1, math.ceil(num_examples * spread)))
    variation = min(math.log(num_classes) + spread, 2 * spread)
    return 2 / num_examples + variation * math.sqrt((cover + math.log(2 / delta)) / (2 * num_examples))


def printed_generalization_bound(
    *, num_features: int, num_classes: int, weight_bound: float, radius: float, num_examples: int, delta: float
) -> float:
    """Return theorem 2 as printed: ``2 sqrt((d k (log d B R + log n) + log 1/delta) / (2 n)) + 2 / n``.

    It takes |log Z| to vary by little more than 1, as the lemma that it cites does of losses, and fails where |log Z|
    varies by much more. Where ``n d B R < 1``, the logarithm of the size of the cover is taken as 0.
    """
    spread = num_features * weight_bound * radius  # the largest score
    cover = num_features * num_classes * math.log(max(1.0, num_examples * spread))
    return 2 * math.sqrt((cover + math.log(1 / delta)) / (2 * num_examples)) + 2 / num_examples
