"""Ends of bootstrap intervals beside those of all resamples, listed one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence


def require_ends(ends: Sequence[float], values: Sequence[float], confidence: float) -> None:
    """The ends of an interval of 20,000 draws lie where all equally likely values put them, within 4 standard errors.

    The standard error of a share of 20,000 draws is at most 0.0035.
    """
    ranked = sorted(values)
    for end, share in zip(ends, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True):
        least, most = (ranked[math.floor((share + margin) * len(ranked))] for margin in (-0.014, 0.014))
        assert least - 1e-12 <= end <= most + 1e-12
