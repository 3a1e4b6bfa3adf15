"""Which objective is worth its time where labels come left to right: three corpora, five seeds, the strongest controls.

All systems start from the same cross-entropy weights; their training seconds are among the results, and those after the
start differ by a third or so. The controls are that start itself, more cross-entropy, and scheduled sampling, shorter
and longer; each is searched as it does best on development data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from seqwise.evaluation.report import Claim
from seqwise.recipes.comparison import Measured, Row, best_on_dev, compare, examine
from seqwise.recipes.outcome import Outcome
from seqwise.recipes.systems import ProgressFactory, System
from seqwise.recipes.tasks import ENTITIES, STRESS, Task, run_task, supertags
from seqwise.runs.settings import Settings

__all__ = ["CORPORA", "family", "reproduce"]

CONTROLS = {
    "cross-entropy": "cross-entropy",
    "cross-entropy-longer": "cross-entropy, longer",
    "sampling": "scheduled sampling",
    "sampling-longer": "scheduled sampling, longer",
}
SEARCHED = {
    "dense-beam": "sampling, then dense beam loss",
    "beam-crf": "sampling, then beam CRF",
    "relaxed-beam": "sampling, then relaxed beam",
    "beam-crf-from-cross-entropy": "beam CRF from cross-entropy",
}


def _left_to_right(task: Task) -> Task:
    return replace(task, title=f"{task.title}, left to right")


def family(start: Settings, epochs: Mapping[str, float], seed: int) -> dict[str, System]:
    """Every system for one seed by key; scores are global wherever a search is trained through.

    Args:
        start: the cross-entropy training.
        epochs: of scheduled sampling, of each stage after it by key, and of the longer ones.
        seed: of weights, batches and noise.
    """
    start = replace(start, seed=seed)
    after = replace(start, learning_rate=start.learning_rate / 2)
    sampling = replace(after, objective="scheduled-sampling", gold_probability="linear(1, 0.25)")
    last = replace(start, learning_rate=start.learning_rate / 3, score="global", cross_entropy_weight=0.1)
    stages = {
        "cross-entropy-longer": (after, "cross-entropy"),
        "sampling": (sampling, "cross-entropy"),
        "sampling-longer": (
            replace(sampling, gold_probability="0.25", learning_rate=start.learning_rate / 3), "sampling",
        ),
        "dense-beam": (replace(last, objective="dense-beam", cross_entropy_weight=0.0), "sampling"),
        "beam-crf": (replace(last, objective="beam-crf"), "sampling"),
        "relaxed-beam": (replace(last, objective="relaxed-beam", alpha="exponential(0.5, 3)"), "sampling"),
        "beam-crf-from-cross-entropy": (replace(last, objective="beam-crf"), "cross-entropy"),
    }  # fmt: skip
    folder = f"seed-{seed}"
    systems = {"cross-entropy": System(f"cross-entropy ({seed})", f"{folder}/cross-entropy", start)}
    for key, (stage, before) in stages.items():
        settings = replace(stage, epochs=epochs[key])
        systems[key] = System(f"{key} ({seed})", f"{folder}/{key}", settings, f"{folder}/{before}")
    return systems


_START = Settings(
    task="tag", encoder="left-to-right", objective="cross-entropy", beam_size=5, batch_size=32, embedding_size=100,
    hidden_size=128, label_embedding_size=64, dropout=0.2, learning_rate=4e-3, save_every=500,
)  # fmt: skip
_EPOCHS = {
    "cross-entropy-longer": 10.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 2.0, "beam-crf": 1.5,
    "relaxed-beam": 0.8, "beam-crf-from-cross-entropy": 3.0,
}  # fmt: skip
CORPORA: dict[str, tuple[Task, Settings, Mapping[str, float]]] = {
    "pmb": (
        _left_to_right(supertags("pmb")), replace(_START, epochs=6.0), _EPOCHS,
    ),
    "ner": (
        _left_to_right(ENTITIES),
        replace(_START, hidden_size=96, label_embedding_size=16, epochs=8.0, learning_rate=6e-3),
        {
            "cross-entropy-longer": 14.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 1.5, "beam-crf": 2.0,
            "relaxed-beam": 1.0, "beam-crf-from-cross-entropy": 4.0,
        },
    ),
    "stress": (
        STRESS,
        replace(
            _START, minimum_count=1, embedding_size=64, hidden_size=96, label_embedding_size=16, dropout=0.1,
            batch_size=64, epochs=4.0, learning_rate=3e-3,
        ),
        {
            "cross-entropy-longer": 9.0, "sampling": 2.0, "sampling-longer": 2.0, "dense-beam": 1.0, "beam-crf": 1.2,
            "relaxed-beam": 1.0, "beam-crf-from-cross-entropy": 2.4,
        },
    ),
}  # fmt: skip
"""The corpora; what each key's stage trains for is chosen to take about the time of the other stages."""


def reproduce(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Iterator[Outcome]:
    """Train every system on every corpus, and put each objective to a test against the best control."""
    for task, _, _ in CORPORA.values():
        task.require()
    rows = [Row(key, title) for key, title in {**CONTROLS, **SEARCHED}.items()]
    for name, (task, start, epochs) in CORPORA.items():
        table = f"search-objectives-{name}"
        systems = partial(family, start, epochs)
        measured = run_task(task, systems, rows, table, folder / name, seeds=seeds, progress=progress)
        yield compare(
            table,
            f"Search-aware objectives, {task.title}",
            measured,
            measure=task.measure,
            controls=CONTROLS,
            claims=_claims(measured),
            files={"runs": folder / name},
        )


def _claims(measured: Mapping[str, Measured]) -> list[Claim]:
    control = best_on_dev(measured, CONTROLS)
    others = [measured[key] for key in CONTROLS if measured[key] is not control]
    claims = [
        examine(f"“{measured[key].row.name}” beats the best control.", "here", measured[key], control)
        for key in SEARCHED
    ]
    winner = best_on_dev(measured, SEARCHED)
    claims += [examine(f"“{winner.row.name}” beats “{other.row.name}”.", "here", winner, other) for other in others]
    plain = measured["cross-entropy-longer"]
    raw = examine(
        "The raw beam of plain cross-entropy beats its beam.", "here", plain, plain, decoders=("raw-beam", "beam")
    )
    return [*claims, raw]
