"""Names that settings accept, of scores, costs, decoders, kernels ...; for objectives, see `objectives.settings`.

Nothing here imports torch, so that ``--help`` and shell completion are quick. Tests compare the names with the objects
that they stand for, which are defined elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Literal, get_args

__all__ = [
    "AlphaUnitName",
    "CostName",
    "DecayName",
    "DecoderName",
    "EnergyName",
    "Feeding",
    "FeedingPasses",
    "NormalizedOver",
    "Pieces",
    "ScoreName",
    "ScoreUnit",
    "TextUnits",
    "VisitsName",
    "WithinName",
    "WordsName",
]

ScoreName = Literal["local", "global", "renormalized"]  # what a token adds (search/candidates.py)
NormalizedOver = Literal["vocabulary", "allowed"]  # the tokens that log Z sums over: all, or those of a language
CostName = Literal["hamming", "edit-distance"]  # what a wrong output costs
AlphaUnitName = Literal["scores", "gaps"]  # what alpha is divided by
Feeding = Literal["greedy", "sample", "soft-greedy", "soft-sample"]  # what is fed in place of gold
FeedingPasses = Literal["step-by-step", "two-pass"]  # how scheduled sampling is done

DecayName = Literal["linear", "cosine", "constant", "inverse_sqrt"]
"""Decays of the learning rate after the warm-up: to 0, none, or with the square root of the step."""

DecoderName = Literal["greedy", "beam", "renormalized-beam", "interpolated-beam", "raw-beam", "soft-beam", "viterbi"]
"""Names of decoders; viterbi is for chains."""

DECODER_NAMES: tuple[DecoderName, ...] = get_args(DecoderName)
"""Names of decoders; viterbi is for chains."""

WithinName = Literal["budgeted", "rejection", "metropolis"]
"""Methods of sampling inside a language; see :func:`~seqwise.sampling.within.sample_within`."""

EnergyName = Literal["local", "raw"]
"""Negative pseudo-log-likelihood, or negative sum of raw scores."""

Pieces = Literal["within-word-l2r", "whole-word", "original"]
"""Tokens masked together with a scored one: the rest of its word, the whole word, or none."""

WordsName = Literal["tokenizer", "blanks"]
"""Word boundaries: those of the tokenizer, or whitespace."""

TextUnits = Literal["words", "characters", "subwords"]
"""Units of the texts of one side of the examples."""

ScoreUnit = Literal["nats", "bits"]
"""Unit of logarithms: natural or base 2."""

VisitsName = Literal["in-order", "shuffled", "anywhere"]
"""Order of visits in a sweep: each free position once, from left to right or shuffled; or as many visits at random
positions, each with a block size drawn between 1 and that of the sweep."""


VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""Variable of the environment that lists the GPUs in use; ``--device cuda:N`` leaves one."""

STDIN = "<stdin>"
"""Path that stands for standard input, to read and in messages."""


def count_of(number: int, thing: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count_of(1, "sentence"), count_of(1200, "token")
        ('1 sentence', '1,200 tokens')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def measure_heading(title: str) -> str:
    """Return the name of a measure with its unit."""
    if "entropy" in title:
        return f"{title}, nats"
    return title if title in ("length ratio", "BLEU") else f"{title}, %"


def measure_scale(title: str) -> float:
    """Return the factor of a measure's unit: 1 for ratios and entropies, 100 for all others, in per cent."""
    return 1.0 if "ratio" in title or "entropy" in title else 100.0


def measure_text(title: str, value: float) -> str:
    """Format a measure in the unit of its heading, with one digit for per cent and three for others."""
    scale = measure_scale(title)
    return f"{scale * value:.{1 if scale == 100 else 3}f}"


def interval_texts(title: str, estimate: Iterable[float]) -> tuple[str, str]:
    """Format a measure and, in brackets, its interval, without it if its ends are not numbers."""
    value, *ends = estimate
    interval = "" if isnan(ends[0]) else f"[{', '.join(measure_text(title, end) for end in ends)}]"
    return measure_text(title, value), interval
