"""Search-aware objectives for labels from left to right, against strong controls: three corpora, five seeds.

All systems start from the same cross-entropy weights; their training seconds are among the results and, after the
start, differ by about a third. The controls are the start itself, more cross-entropy, and scheduled sampling, shorter
and longer; each is decoded by its best decoder on development data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from reproductions import Setup
from reproductions.comparison import Measured, best_on_dev, examine, rows_of
from reproductions.outcome import Outcome
from reproductions.report import Claim
from reproductions.systems import System, systems_of
from reproductions.tasks import ENTITIES, STRESS, Task, make_table, supertags
from seqwise.runs.settings import Settings, train_settings

TITLE = "Search-aware objectives, {}"
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


SLOWER = {"second": 2.0, "last": 3.0}
"""Divisors of the start's learning rate, by kind of stage."""
ALIKE = dict.fromkeys(SLOWER, 1.0)
"""The same if learning rates are chosen by :func:`reproductions.tuning.tune`."""


def family(
    start: Settings, epochs: Mapping[str, float], seed: int, *, slower: Mapping[str, float] = SLOWER
) -> dict[str, System]:
    """Return the systems of one seed by key; those trained through a search have global scores.

    Args:
        start: settings of the cross-entropy stage that the others start from.
        epochs: of the other stages, by key.
        seed: of weights, batches and noise.
        slower: divisors of the start's learning rate, for a "second" and a "last" stage.
    """
    start = start.with_changes(seed=seed)
    after = start.with_changes(learning_rate=start.learning_rate / slower["second"])
    sampling = after.with_changes(objective="scheduled-sampling", gold_probability="linear(1, 0.25)")
    last = partial(start.with_changes, learning_rate=start.learning_rate / slower["last"], score="global")
    stages = {
        "cross-entropy-longer": (after, "cross-entropy"),
        "sampling": (sampling, "cross-entropy"),
        "sampling-longer": (
            sampling.with_changes(gold_probability="0.25", learning_rate=start.learning_rate / slower["last"]),
            "sampling",
        ),
        "dense-beam": (last(objective="dense-beam", cross_entropy_weight=0.0), "sampling"),
        "beam-crf": (last(objective="beam-crf"), "sampling"),
        "relaxed-beam": (last(objective="relaxed-beam", alpha="exponential(0.5, 3)"), "sampling"),
        "beam-crf-from-cross-entropy": (last(objective="beam-crf"), "cross-entropy"),
    }  # fmt: skip
    trained = {key: (stage.with_changes(epochs=epochs[key]), before) for key, (stage, before) in stages.items()}
    return systems_of({"cross-entropy": (start, None), **trained}, seed)


_START = train_settings(
    task="tag", encoder="left-to-right", objective="cross-entropy", beam_size=5, batch_size=32, embedding_size=100,
    hidden_size=128, label_embedding_size=64, dropout=0.2, learning_rate=4e-3, save_every=500,
)  # fmt: skip
_EPOCHS = {
    "cross-entropy-longer": 10.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 2.0, "beam-crf": 1.5,
    "relaxed-beam": 0.8, "beam-crf-from-cross-entropy": 3.0,
}  # fmt: skip
CORPORA: dict[str, tuple[Task, Settings, Mapping[str, float]]] = {
    "pmb": (
        _left_to_right(supertags("pmb")), _START.with_changes(epochs=6.0), _EPOCHS,
    ),
    # Four and six times the text of the first.
    "ewt": (
        _left_to_right(supertags("ewt")), _START.with_changes(epochs=3.0),
        {key: each / 4 for key, each in _EPOCHS.items()},
    ),
    "erg": (
        _left_to_right(supertags("erg")), _START.with_changes(epochs=2.0),
        {key: each / 6 for key, each in _EPOCHS.items()},
    ),
    "ner": (
        _left_to_right(ENTITIES),
        _START.with_changes(hidden_size=96, label_embedding_size=16, epochs=8.0, learning_rate=6e-3),
        {
            "cross-entropy-longer": 14.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 1.5, "beam-crf": 2.0,
            "relaxed-beam": 1.0, "beam-crf-from-cross-entropy": 4.0,
        },
    ),
    "stress": (
        STRESS,
        _START.with_changes(
            minimum_count=1, embedding_size=64, hidden_size=96, label_embedding_size=16, dropout=0.1, batch_size=64,
            epochs=4.0, learning_rate=3e-3,
        ),
        {
            "cross-entropy-longer": 9.0, "sampling": 2.0, "sampling-longer": 2.0, "dense-beam": 1.0, "beam-crf": 1.2,
            "relaxed-beam": 1.0, "beam-crf-from-cross-entropy": 2.4,
        },
    ),
}  # fmt: skip
"""Tasks, settings of the start, and epochs of the other stages by key, which make these take about equally long."""
TABLES = ("pmb", "ner", "stress")


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train every system on every corpus, and test each objective against the best control."""
    tables = setup.chosen({f"search-objectives-{name}": name for name in TABLES})
    for name in tables.values():
        CORPORA[name][0].require()
    rows = rows_of({**CONTROLS, **SEARCHED})
    for table, name in tables.items():
        task, start, epochs = CORPORA[name]
        title, systems = TITLE.format(task.title), partial(family, start, epochs)
        yield make_table(table, title, task, systems, rows, setup.inside(name), controls=CONTROLS, claims=_claims)


def beat_the_best(measured: Mapping[str, Measured], control: Measured, keys: Iterable[str]) -> list[Claim]:
    """Test for each of these rows whether it beats the best control."""
    return [
        examine(f"“{measured[key].row.name}” beats the best control.", "here", measured[key], control) for key in keys
    ]


def _claims(measured: Mapping[str, Measured]) -> list[Claim]:
    control = best_on_dev(measured, CONTROLS)
    winner = best_on_dev(measured, SEARCHED)
    others = [measured[key] for key in CONTROLS if measured[key] is not control]
    plain = measured["cross-entropy-longer"]
    return [
        *beat_the_best(measured, control, SEARCHED),
        *(examine(f"“{winner.row.name}” beats “{other.row.name}”.", "here", winner, other) for other in others),
        examine(
            "The raw beam of plain cross-entropy beats its beam.", "here", plain, plain, decoders=("raw-beam", "beam")
        ),
    ]
