"""Numbers that are exact for each seed: their mean with Student's interval, and paired comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from seqwise.evaluation.report import Claim
from seqwise.evaluation.values import values_by_seed
from seqwise.evaluation.verdicts import decide


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, and sums then depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def judge_by_seed(
    text: str, source: str, larger: Sequence[float], smaller: Sequence[float], *, said: str = "", unit: str = " nats",
    digits: int = 3,
) -> Claim:  # fmt: skip
    """Put "the first is larger than the second" to a paired t-test over seeds.

    There are no examples to draw again: each number is exact for its seed.
    """
    values = (values_by_seed(larger), values_by_seed(smaller))
    verdict, numbers = decide("by seed", *values)
    evidence = f"{said}{numbers[0]:+.{digits}f}, one seed, no interval"
    if len(numbers) > 1:
        above = sum(one > other for one, other in zip(larger, smaller, strict=True))
        mean, low, high = (f"{number:.{digits}f}" for number in numbers)
        mean = mean if numbers[0] < 0 else f"+{mean}"
        evidence = f"{said}{mean} [{low}, {high}]{unit}, {above} of {len(larger)} seeds above"
    return Claim(text, source, verdict, evidence, rule="by seed", values=values, numbers=numbers)
