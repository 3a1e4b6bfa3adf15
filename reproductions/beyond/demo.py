"""The demo: the toy, which tells the story in half a minute, then the same story on the CMU dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reproductions.beyond import label_bias_toy, stress
from reproductions.outcome import Outcome
from reproductions.workers import ProgressFactory


def reproduce(folder: Path, *, seed: int, progress: ProgressFactory) -> Iterator[Outcome]:
    """Run both reproductions in folders of their own; the first is there to be looked at while the second runs."""
    yield from label_bias_toy.reproduce(folder / "label-bias-toy", seed=seed, progress=progress)
    yield from stress.reproduce(folder / "stress", seed=seed, progress=progress)
