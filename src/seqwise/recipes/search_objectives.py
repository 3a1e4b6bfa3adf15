"""Which objective is worth its time where labels come left to right: three corpora, five seeds, the strongest controls.

All systems start from the same cross-entropy weights; their training seconds after that are among the results, and
differ by a third or so. The controls are that start itself, more cross-entropy, and scheduled sampling, shorter and
longer; each is searched as it does best on development data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from seqwise.data.readers import Example
from seqwise.evaluation.entities import macro_entity_f1
from seqwise.evaluation.metrics import Sums, sequence_accuracy, token_accuracy
from seqwise.evaluation.report import Claim
from seqwise.recipes import corpora, stress
from seqwise.recipes.comparison import HEADINGS, Measured, Row, best_on_dev, compare, examine, measure_rows
from seqwise.recipes.outcome import Outcome
from seqwise.recipes.systems import Data, ProgressFactory, System, run_systems
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
    "beam-crf-longer": "beam CRF from cross-entropy",
}


@dataclass(frozen=True)
class Corpus:
    """One corpus with its measure and training times.

    Args:
        title: for headings.
        measure: the name of the measure.
        load_data: keeps what it has read.
        count: the measure, of outputs and right answers.
        start: the cross-entropy training.
        epochs: of scheduled sampling, of each stage after it by key, and of the longer ones.
    """

    title: str
    measure: str
    load_data: Callable[[], Data]
    count: Callable[[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]], Sums]
    start: Settings
    epochs: Mapping[str, float]


def family(corpus: Corpus, seed: int) -> list[System]:
    """Every system for one seed; scores are global wherever a search is trained through."""
    start = replace(corpus.start, seed=seed)
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
        "beam-crf-longer": (replace(last, objective="beam-crf"), "cross-entropy"),
    }  # fmt: skip
    folder = f"seed-{seed}"
    return [
        System(f"cross-entropy ({seed})", f"{folder}/cross-entropy", start),
        *(
            System(
                f"{key} ({seed})", f"{folder}/{key}", replace(stage, epochs=corpus.epochs[key]), f"{folder}/{before}"
            )
            for key, (stage, before) in stages.items()
        ),
    ]


@cache
def _stress() -> Data:
    """A third of the training words of the demo, and its development and test words."""
    dev, test = stress.load_data("dev"), stress.load_data("test")
    return Data(train=test.train[::3], dev=dev.test, test=test.test)


_START = Settings(
    task="tag", encoder="left-to-right", objective="cross-entropy", beam_size=5, batch_size=32, embedding_size=100,
    hidden_size=128, label_embedding_size=64, dropout=0.2, learning_rate=4e-3, save_every=500,
)  # fmt: skip
_EPOCHS = {
    "cross-entropy-longer": 10.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 2.0, "beam-crf": 1.5,
    "relaxed-beam": 0.8, "beam-crf-longer": 3.0,
}  # fmt: skip
CORPORA = {
    "pmb": Corpus(
        "CCG supertags (Parallel Meaning Bank), left to right", "labels right", partial(corpora.supertags, "pmb"),
        token_accuracy, replace(_START, epochs=6.0), _EPOCHS,
    ),
    "ner": Corpus(
        "German named entities (GermEval 2014), left to right", "macro F1", corpora.named_entities, macro_entity_f1,
        replace(_START, hidden_size=96, label_embedding_size=16, epochs=8.0, learning_rate=6e-3),
        {
            "cross-entropy-longer": 14.0, "sampling": 3.0, "sampling-longer": 3.0, "dense-beam": 1.5, "beam-crf": 2.0,
            "relaxed-beam": 1.0, "beam-crf-longer": 4.0,
        },
    ),
    "stress": Corpus(
        "streaming stress assignment (CMU dictionary)", "words right", _stress, sequence_accuracy,
        replace(
            _START, minimum_count=1, embedding_size=64, hidden_size=96, label_embedding_size=16, dropout=0.1,
            batch_size=64, epochs=4.0, learning_rate=3e-3,
        ),
        {
            "cross-entropy-longer": 9.0, "sampling": 2.0, "sampling-longer": 2.0, "dense-beam": 1.0, "beam-crf": 1.2,
            "relaxed-beam": 1.0, "beam-crf-longer": 2.4,
        },
    ),
}  # fmt: skip
"""The corpora; what each key's stage trains for is chosen to take about the time of the other stages."""


def reproduce(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Iterator[Outcome]:
    """Train every system on every corpus, and put each objective to a test against the best control."""
    for corpus in CORPORA.values():
        corpus.load_data()  # so that what is not there is said before an hour of training
    for name, corpus in CORPORA.items():
        data = corpus.load_data()
        systems = [system for seed in seeds for system in family(corpus, seed)]
        cells = run_systems(systems, corpus.load_data, folder / name, progress=progress, decoders=tuple(HEADINGS))
        table = f"search-objectives-{name}"
        rows = [Row(key, title) for key, title in {**CONTROLS, **SEARCHED}.items()]
        dev, test = (partial(_count, corpus, part) for part in (data.dev, data.test))
        measured = measure_rows(table, rows, cells, seeds, dev=dev, test=test)
        yield compare(
            table,
            f"Search-aware objectives, {corpus.title}",
            measured,
            measure=corpus.measure,
            controls=CONTROLS,
            claims=_claims(measured),
            files={"runs": folder / name},
        )


def _count(corpus: Corpus, examples: Sequence[Example], outputs: Sequence[tuple[str, ...]]) -> Sums:
    return corpus.count(outputs, [example.target for example in examples])


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
