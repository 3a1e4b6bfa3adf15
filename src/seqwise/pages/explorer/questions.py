"""Text typed into the explorer; it is never read as a file name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example, split_text
from seqwise.errors import InputError
from seqwise.names import count_of
from seqwise.runs.inputs import example_of, file_units, input_units, read_examples
from seqwise.runs.loading import load_run
from seqwise.runs.measures import gold_ids
from seqwise.runs.paths import recorded_file
from seqwise.runs.run import OutputRun, Run
from seqwise.training.processes import local_device

MOST_TOKENS = 100
"""Largest length of an input, as each of its steps is searched several times."""


@dataclass(frozen=True)
class Question:
    """Input with the right output, if known."""

    example: Example  # as typed
    source: EncodedExample
    # The right output as ids, end token included (see ``gold_ids``).
    gold: tuple[int, ...] | None
    # Tokens of the right output that training never saw, by their places in gold.
    unseen: Mapping[int, str] = field(default_factory=dict)


def load_explored(name: str | os.PathLike[str], *, file: Path | None = None) -> Run[Any, Any]:
    """Load a run or a Hugging Face masked model from a folder; ``file`` replaces the run's development data."""
    folder = Path(name)
    if (folder / "chains").is_dir():
        raise InputError("the folder holds samples", path=folder, hint="give the run that they were drawn from")
    run = load_run(folder, device=local_device())
    if run.codec.purpose == "score":
        if file is not None:
            raise InputError("--file: the page of a masked model reads no data", hint="leave it out")
        return run
    if file is not None:
        read_examples(run.settings, file)
    dev = file or (run.settings.dev and recorded_file(run.settings.dev, folder))
    return replace(run, settings=run.settings.with_changes(dev=dev))


def read_question(run: OutputRun, text: str, right: str = "") -> Question:
    """Read an input and its right output."""
    example = example_of(text.strip(), units=input_units(run.settings))
    require_short(example.source)
    if right.strip():
        example = replace(example, target=_right(run, right.strip(), len(example.source)))
    (source,) = run.codec.encode_sources([example])
    require_short(run.codec.source_tokens(source))
    gold = gold_ids(run, example)
    right_tokens, unknown = run.codec.split([example])[0].target, run.model.embedding_VD.shape[0]
    unseen = {place: right_tokens[place] for place, token in enumerate(gold or ()) if token == unknown}
    return Question(example, source, gold, unseen)


def _right(run: OutputRun, text: str, length: int) -> tuple[str, ...]:
    settings = run.settings
    if settings.task != "tag":
        return example_of(text, units=file_units(settings.target_units)).source
    labels = split_text(text, "words")
    if len(labels) != length:
        problem = f"the right output has {count_of(len(labels), 'label')} for {count_of(length, 'word')}"
        raise InputError(problem, hint="give one for each")
    return labels


def require_short(tokens: Sequence[object]) -> None:
    """Raise an InputError if an input is too long to explore."""
    if len(tokens) > MOST_TOKENS:
        problem = f"the input has {len(tokens)} tokens, and the explorer takes at most {MOST_TOKENS}"
        raise InputError(problem, hint="give a shorter one")
