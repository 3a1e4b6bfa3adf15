"""Numbers that are exact for each seed: their mean with Student's interval, and paired comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from seqwise.evaluation.report import Claim

__all__ = ["estimate", "judge_by_seed", "one_thread"]

T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, 97.5%, by number of seeds


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, and sums then depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def estimate(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean over seeds with the ends of Student's 95% interval; of one seed, no interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    # For more seeds than the table has, the last is on the safe side.
    half = T_95.get(len(values), T_95[5]) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def judge_by_seed(
    text: str, source: str, larger: Sequence[float], smaller: Sequence[float], *, said: str = ""
) -> Claim:
    """Put "the first is larger than the second" to a paired t-test over seeds.

    There are no examples to draw again: each number is exact for its seed.

    Args:
        text: the claim.
        source: where it is made.
        larger, smaller: in nats, one number for each seed.
        said: what the evidence begins with.

    Returns:
        The claim, which holds if Student's 95% interval of the mean difference lies above 0, and is reversed if it
        lies below; of one seed, nothing is said.
    """
    differences = [one - other for one, other in zip(larger, smaller, strict=True)]
    mean, low, high = estimate(differences)
    above = f"{sum(difference > 0 for difference in differences)} of {len(differences)} seeds above"
    if low is None or high is None:
        return Claim(text, source, "not seen", f"{said}{mean:+.3f}, one seed, no interval")
    verdict = "holds" if low > 0 else "reversed" if high < 0 else "not seen"
    return Claim(text, source, verdict, f"{said}{mean:+.3f} [{low:.3f}, {high:.3f}] nats, {above}")
