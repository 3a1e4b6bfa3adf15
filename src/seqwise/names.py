"""Names that settings can have, of scores, costs, decoders, kernels ...; those of objectives: `objectives.settings`.

Nothing here imports torch, so that ``--help`` and the completion of a shell are quick. What the names stand for is
built elsewhere, and tests compare both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

__all__ = [
    "DECODER_NAMES",
    "AlphaUnitName",
    "CostName",
    "DecoderName",
    "EnergyName",
    "Feeding",
    "FeedingPasses",
    "Pieces",
    "ScoreName",
    "ScoreUnit",
    "VisitsName",
    "WordsName",
]

ScoreName = Literal["local", "global"]  # what a token adds to a hypothesis: log-softmax, or raw scores
CostName = Literal["hamming", "edit-distance"]  # what a wrong output costs
AlphaUnitName = Literal["scores", "gaps"]  # what alpha is divided by
Feeding = Literal["greedy", "sample", "soft-greedy", "soft-sample"]  # what is fed in place of gold
FeedingPasses = Literal["step-by-step", "two-pass"]  # how scheduled sampling is done

DecoderName = Literal["greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam", "viterbi"]
"""Names of decoders; viterbi is for chains."""

DECODER_NAMES: tuple[DecoderName, ...] = get_args(DecoderName)
"""Names of decoders; viterbi is for chains."""

EnergyName = Literal["local", "raw"]
"""Minus the pseudo-log-likelihood, or minus the sum of the scores as they are."""

Pieces = Literal["within-word-l2r", "whole-word", "original"]
"""What is masked with a token that is scored: the rest of its word, all of its word, or nothing."""

WordsName = Literal["tokenizer", "blanks"]
"""What parts words: what the tokenizer has them parted by, or blanks alone."""

ScoreUnit = Literal["nats", "bits"]
"""Natural logarithms, or those to the base 2."""

VisitsName = Literal["in-order", "shuffled", "anywhere"]
"""Each free position once in a sweep, from left to right or in an order drawn anew; or as many visits at random places,
each of a size that is drawn from 1 to the sweep's block."""


def measure_heading(title: str) -> str:
    """Return the name of a measure with its unit."""
    return title if title in ("length ratio", "BLEU") else f"{title}, %"


def measure_text(title: str, value: float) -> str:
    """Write a measure in the unit of its heading: ratios and entropies with three digits, all others in per cent."""
    return f"{value:.3f}" if "ratio" in title or "entropy" in title else f"{100 * value:.1f}"


def interval_texts(title: str, estimate: Iterable[float]) -> tuple[str, str]:
    """Write a measure, and in brackets the ends of its interval."""
    value, low, high = (measure_text(title, number) for number in estimate)
    return value, f"[{low}, {high}]"
