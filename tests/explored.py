"""Small untrained runs with weights large enough that their outputs differ, for tests of the explorer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from oracles import EncoderDecoderOracle, TaggerOracle, randomised
from seqwise.data.readers import Example
from seqwise.runs import masked_settings, new_run, train_settings
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.run import MaskedRun, OutputRun

__all__ = ["SIZES", "masked_run", "oracle_of", "served", "speller", "tagger"]

MARKUP = "<b>&X"  # a label that would be markup, were it not escaped
SIZES: dict[str, Any] = {"hidden_size": 4, "embedding_size": 3, "beam_size": 3}


def tagger(*, model: str = "lstm", seed: int = 1, look_ahead: int = 0) -> OutputRun:
    """A tagger of the words a, b and c with three labels, random."""
    own = {"objective": "crf"} if model == "chain" else {"objective": "cross-entropy", "label_embedding_size": 2}
    own |= {"encoder": "left-to-right", "look_ahead": look_ahead}
    settings = train_settings(task="tag", model=model, minimum_count=1, **own, **SIZES)
    run = new_run([Example(("a", "b", "c"), ("D", "N", MARKUP))], settings)
    randomised(run.model, seed, 1.5)
    return run


def speller(*, seed: int = 1) -> OutputRun:
    """From the characters a, b and c to the words A, B and C, random."""
    settings = train_settings(
        task="transduce", source_units="characters", objective="cross-entropy", minimum_count=1, **SIZES
    )
    run = new_run([Example(("a", "b", "c"), ("A", "B", "C"))], settings)
    randomised(run.model, seed, 0.8)
    return run


def masked_run(*, seed: int = 0) -> MaskedRun:
    """A masked model of sequences of a, b, c and d, random."""
    settings = masked_settings(minimum_count=1, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=8)
    run = new_masked_run([Example((), ("a", "b", "c", "d"))], settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    run.model.eval()
    return run


def oracle_of(run: OutputRun, source_ids: tuple[int, ...]) -> Any:
    """The same model on one source, in NumPy."""
    kind = TaggerOracle if run.settings.task == "tag" else EncoderDecoderOracle
    return kind(run.model, source_ids)  # type: ignore[arg-type]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run ``seqwise explore`` on a free port, and yield the line that it prints."""
    command = [sys.executable, "-m", "seqwise", "explore", str(folder), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.terminate()
