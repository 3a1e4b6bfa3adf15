"""The demo: label bias on toy data, in half a minute, then on the CMU dictionary."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import Setup
from reproductions.beyond import label_bias_toy, stress
from reproductions.outcome import Outcome


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Run both reproductions in their own folders; the first can be read while the second runs."""
    yield from label_bias_toy.reproduce(setup.inside("label-bias-toy"))
    yield from stress.reproduce(setup.inside("stress"))
