"""Does training inside a language help? Constraints in training, separately from constraints in decoding.

Every system is decoded inside the language: entity labels of German sentences are well formed, and a word has one of
the pronunciations of a dictionary. Systems differ in their training: cross-entropy over all tokens or over the allowed
ones, and searches over all outputs or over those of the language. The control is cross-entropy with the same mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from reproductions import Setup
from reproductions.beyond import spelling
from reproductions.beyond.improvements import SPELLING
from reproductions.beyond.stress import cmu_entries
from reproductions.comparison import Measured, best_on_dev, examine, examine_all, rows_of
from reproductions.corpora.lexicons import read_spelling
from reproductions.goyal_2018.exposure_bias import PLANS
from reproductions.outcome import Outcome
from reproductions.report import Claim
from reproductions.systems import Data, System, systems_of
from reproductions.tasks import ENTITIES, Task, make_table
from reproductions.tuning import with_early_stopping
from seqwise.data.durable import write_atomically
from seqwise.runs.paths import BIO
from seqwise.runs.settings import Settings, train_settings

DECODERS = ("greedy", "beam", "renormalized-beam", "raw-beam")
CONTROLS = {"cross-entropy": "cross-entropy", "cross-entropy-longer": "cross-entropy, longer"}
TRAINED = {
    "renormalized": "cross-entropy, renormalised inside",
    "relaxed-masked": "relaxed beam, masked inside",
    "relaxed-renormalized": "relaxed beam, renormalised inside",
    "crf": "beam CRF, raw, not inside",
    "crf-inside": "beam CRF, raw, inside",
}
SOURCE = "not in the papers"
EVERY = 10
"""One in this many words is used for training; with all of them, the dictionary would add little in decoding."""
EPOCHS = {"cross-entropy": 20.0, "relaxed-beam": 5.0, "beam-crf": 8.0}
"""Largest number of epochs of a second stage, which is stopped early on development data."""


@dataclass(frozen=True)
class ConstrainedTask:
    """Task with the language of its outputs, and the settings of the stage that all systems start from."""

    task: Task
    start: Settings
    language: Callable[[Path], str]  # returns the language; may write it to a folder
    costs: str = ""  # of wrong labels in a search
    epochs: Mapping[str, float] = field(default_factory=lambda: EPOCHS)


@cache
def _few_words() -> Data:
    data = spelling.load_both_parts()
    return replace(data, train=data.train[::EVERY])


def _catalogue(folder: Path) -> str:
    """Write every pronunciation of the dictionary, including those of the test words, and return the file."""
    path = folder.absolute() / "pronunciations.txt"
    lines = sorted({" ".join(example.target) for example in read_spelling(cmu_entries())})
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    return str(path)


TASKS = {
    "ner": ConstrainedTask(
        replace(ENTITIES, title=f"{ENTITIES.title}, left to right", decoders=DECODERS),
        PLANS["ner"].start["converged"].with_changes(encoder="left-to-right", batch_size=32, epochs=30.0),
        lambda _: BIO,
        costs="O=2",
    ),
    "g2p": ConstrainedTask(
        replace(SPELLING, title=f"{SPELLING.title}, a tenth of the words", load_data=_few_words, decoders=DECODERS),
        train_settings(
            task="transduce", source_units="characters", objective="cross-entropy", minimum_count=1, embedding_size=64,
            hidden_size=128, dropout=0.3, epochs=30.0, batch_size=64, learning_rate=3e-3, beam_size=5, save_every=500,
        ),
        _catalogue,
        epochs={**EPOCHS, "relaxed-beam": 15.0, "beam-crf": 24.0},
    ),
}  # fmt: skip
"""Tasks by name."""


def family(inside: ConstrainedTask, num_examples: int, language: str, seed: int) -> dict[str, System]:
    """Return the systems of one seed by key; their learning rates are tuned as multiples of the start's."""
    start = with_early_stopping(inside.start.with_changes(seed=seed, language=language), num_examples)

    def after(objective: str, **options: Any) -> tuple[Settings, str]:
        return start.with_changes(objective=objective, epochs=inside.epochs[objective], **options), "cross-entropy"

    relaxed = {"alpha": "exponential(1, 10)", "wrong_label_costs": inside.costs}
    crf = after("beam-crf", score="global")
    stages: dict[str, tuple[Settings, str | None]] = {
        "cross-entropy": (start, None),
        "cross-entropy-longer": after("cross-entropy"),
        "renormalized": after("cross-entropy", normalized_over="allowed"),
        "relaxed-masked": after("relaxed-beam", **relaxed),
        "relaxed-renormalized": after("relaxed-beam", score="renormalized", **relaxed),
        "crf": crf,
        "crf-inside": crf,
    }
    systems = systems_of(stages, seed)
    anywhere = systems["crf"].settings.with_changes(language="")
    return {**systems, "crf": replace(systems["crf"], settings=anywhere, language=language)}


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train every system with early stopping on development data, and decode all inside the language."""
    tables = setup.chosen({f"training-inside-{name}": name for name in TASKS})
    for name in tables.values():
        TASKS[name].task.require()
    for table, name in tables.items():
        inside, runs = TASKS[name], setup.inside(name)
        runs.folder.mkdir(parents=True, exist_ok=True)
        systems = partial(family, inside, len(inside.task.load_data().train), inside.language(runs.folder))
        title, rows = f"Training inside a language, {inside.task.title}", rows_of({**CONTROLS, **TRAINED})
        yield make_table(table, title, inside.task, systems, rows, runs, controls=CONTROLS, claims=_claims)


def _claims(measured: Mapping[str, Measured]) -> list[Claim]:
    control, searched = best_on_dev(measured, CONTROLS), best_on_dev(measured, [*TRAINED])
    plain = measured["cross-entropy-longer"]
    return [
        *(examine(f"“{name}” beats cross-entropy with the same mask.", SOURCE, measured[key], control)
          for key, name in TRAINED.items()),
        examine("The best of them does.", SOURCE, searched, control),
        *examine_all(
            measured, SOURCE,
            ("A beam CRF trained inside the language beats one that is only decoded inside.", "crf-inside", "crf"),
            ("A relaxed beam of masked scores beats one of renormalised scores.", "relaxed-masked",
             "relaxed-renormalized"),
        ),
        examine("Decoding by masked scores beats decoding by renormalised ones, without training inside.", SOURCE,
                plain, plain, decoders=("beam", "renormalized-beam")),
    ]  # fmt: skip
