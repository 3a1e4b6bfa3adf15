"""The tasks of the published tables on our corpora: data, measure, models, and how long each system trains.

GermEval 2014 stands in for CoNLL-2003 German, the Parallel Meaning Bank for CCGbank, and Tatoeba for IWSLT 2014: so
absolute numbers do not compare with the papers', directions and sizes of differences do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from seqwise.data.readers import Example
from seqwise.data.subwords import join_pieces
from seqwise.evaluation.entities import macro_entity_f1
from seqwise.evaluation.metrics import Sums, token_accuracy
from seqwise.evaluation.translation import bleu
from seqwise.recipes import corpora
from seqwise.recipes.comparison import HEADINGS, Measured, Row, measure_rows
from seqwise.recipes.exposure_bias import family
from seqwise.recipes.systems import Data, ProgressFactory, run_systems
from seqwise.runs.settings import Settings

__all__ = ["ENTITIES", "SUPERTAGS", "TRANSLATION", "Task", "run_task"]

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """A corpus with a measure and a family of systems.

    Args:
        name: of the folder of its runs.
        title: for headings.
        measure: the name of the measure, a share that is printed in per cent.
        load_data: keeps what it has read.
        count: the measure of outputs for "dev" or "test".
        start: by scale, the cross-entropy training that all systems start from.
        budget: epochs of the second stage, see :func:`~seqwise.recipes.exposure_bias.family`.
        label_costs: of the searches.
    """

    name: str
    title: str
    measure: str
    load_data: Callable[[], Data]
    count: Callable[[str, Sequence[Tokens]], Sums]
    start: Mapping[str, Settings]
    budget: Mapping[str, float]
    label_costs: str = ""


def run_task(
    task: Task,
    rows: Sequence[Row],
    table: str,
    folder: Path,
    *,
    seeds: Sequence[int],
    scale: str,
    progress: ProgressFactory,
) -> dict[str, Measured]:
    """Train the systems of some rows, or read them back, and measure them.

    Args:
        task: what they are trained on.
        rows: keys are those of :func:`~seqwise.recipes.exposure_bias.family`.
        table: its name, for signatures.
        folder: takes the runs, which tables on the same task share.
        seeds: one training of each system for each.
        scale: "cpu" or "gpu".
        progress: makes the progress bars.

    Raises:
        InputError: the corpus is not at hand.
    """
    data = task.load_data()
    start = task.start[scale]
    steps_an_epoch = -(-len(data.train) // start.batch_size)
    make = partial(family, start, steps_an_epoch=steps_an_epoch, budget=task.budget, label_costs=task.label_costs)
    keys = dict.fromkeys(["cross-entropy", *(row.key for row in rows)])
    # Seed by seed, so that an interrupted table has whole seeds.
    systems = [systems[key] for systems in map(make, seeds) for key in keys]
    cells = run_systems(systems, task.load_data, folder, progress=progress, decoders=tuple(HEADINGS))
    return measure_rows(table, rows, cells, seeds, dev=partial(task.count, "dev"), test=partial(task.count, "test"))


def _count_entities(part: str, outputs: Sequence[Tokens]) -> Sums:
    return macro_entity_f1(outputs, _targets(corpora.named_entities(), part))


def _count_supertags(part: str, outputs: Sequence[Tokens]) -> Sums:
    return token_accuracy(outputs, _targets(corpora.supertags("pmb"), part))


def _count_translations(part: str, outputs: Sequence[Tokens]) -> Sums:
    return bleu([join_pieces(output) for output in outputs], corpora.translation_references(part))


def _targets(data: Data, part: str) -> list[Tokens]:
    examples: list[Example] = {"dev": data.dev, "test": data.test}[part]
    return [example.target for example in examples]


_TAGGER = Settings(task="tag", encoder="bidirectional", embedding_size=100, beam_size=3, batch_size=32, save_every=500)
_ENTITY_TAGGER = replace(_TAGGER, hidden_size=64, label_embedding_size=8, dropout=0.2, epochs=12.0, learning_rate=6e-3)
_SUPERTAGGER = replace(_TAGGER, hidden_size=128, label_embedding_size=64, dropout=0.3, epochs=10.0, learning_rate=4e-3)
_TRANSLATOR = Settings(
    task="transduce", minimum_count=2, embedding_size=96, hidden_size=160, dropout=0.2, beam_size=3, batch_size=64,
    epochs=4.0, learning_rate=3e-3, save_every=500,
)  # fmt: skip
ENTITIES = Task(
    "ner",
    "German named entities (GermEval 2014)",
    "macro F1",
    corpora.named_entities,
    _count_entities,
    {"cpu": _ENTITY_TAGGER, "gpu": replace(_ENTITY_TAGGER, epochs=20.0)},
    {"longer": 8, "feeding": 4, "search": 1.5, "likelihood": 2.5},
    label_costs="O=2",
)
"""A tagger that reads both ways; the papers' sizes fit a CPU. Wrongly choosing "O" costs double in searches."""

SUPERTAGS = Task(
    "supertags",
    "CCG supertags (Parallel Meaning Bank)",
    "labels right",
    partial(corpora.supertags, "pmb"),
    _count_supertags,
    {
        "cpu": _SUPERTAGGER,
        "gpu": replace(
            _SUPERTAGGER, embedding_size=512, hidden_size=512, label_embedding_size=512, learning_rate=1e-3, epochs=20.0
        ),
    },
    {"longer": 10, "feeding": 5, "search": 2, "likelihood": 3.5},
)
"""A tagger that reads both ways, of a fifth of the papers' size at the scale "cpu"."""

TRANSLATION = Task(
    "translation",
    "German to English (Tatoeba)",
    "BLEU",
    corpora.translation,
    _count_translations,
    {
        "cpu": _TRANSLATOR,
        "gpu": replace(_TRANSLATOR, embedding_size=256, hidden_size=256, learning_rate=1e-3, epochs=10.0),
    },
    {"longer": 2, "feeding": 1, "search": 1, "likelihood": 1},
)
"""An attention encoder-decoder over 4,000 subwords."""
