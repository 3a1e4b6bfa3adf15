"""The demo: the toy, which tells the story in half a minute, then the same story on the CMU dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqwise.recipes import label_bias_toy, stress
from seqwise.recipes.outcome import Outcome
from seqwise.recipes.workers import ProgressFactory

__all__ = ["reproduce"]


def reproduce(folder: Path, *, seed: int, progress: ProgressFactory) -> Iterator[Outcome]:
    """Run both recipes in folders of their own; the first is there to be looked at while the second runs."""
    yield from label_bias_toy.reproduce(folder / "label-bias-toy", seed=seed, progress=progress)
    yield from stress.reproduce(folder / "stress", seed=seed, progress=progress)
