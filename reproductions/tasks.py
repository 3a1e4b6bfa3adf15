"""Tasks of the tables, each a corpus and a measure, and training and measuring a table over seeds.

GermEval 2014 stands in for CoNLL-2003 German, the Parallel Meaning Bank and UD English EWT for CCGbank, and Tatoeba for
IWSLT 2014. Only directions and sizes of differences are comparable with the papers', not absolute numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from reproductions import Setup
from reproductions.beyond import stress
from reproductions.comparison import Measured, Row, compare, measure_rows
from reproductions.corpora import readers as corpora
from reproductions.outcome import DECODERS, Outcome
from reproductions.report import Claim
from reproductions.systems import Cell, Data, System, run_systems
from reproductions.tuning import Trial, rates_of, tune, with_chosen_rate, with_rates
from seqwise.data.readers import Example
from seqwise.data.subwords import join_pieces
from seqwise.errors import InputError
from seqwise.evaluation.entities import macro_entity_f1
from seqwise.evaluation.metrics import Sums, sequence_accuracy, token_accuracy
from seqwise.evaluation.translation import bleu, bleu_signature

Tokens = tuple[str, ...]
Outputs = Sequence[Tokens]


@dataclass(frozen=True)
class Task:
    """Corpus with a measure, which is a share and printed in per cent."""

    name: str  # of the folder of its runs
    title: str
    measure: str
    load_data: Callable[[], Data]  # cached
    count: Callable[[str, Outputs], Sums]  # the measure of outputs for "dev" or "test"
    decoders: tuple[str, ...] = DECODERS  # of every system
    check: Callable[[], None] = lambda: None  # raises an error if something that measuring needs is missing

    def require(self) -> None:
        """Read the data and check what measuring needs, so that an error comes before hours of training."""
        self.check()
        self.load_data()


Family = Callable[[int], Mapping[str, System]]
"""``family(seed)``: the systems of a task by key, each in the folder ``seed-N/key`` and after those it starts from."""


def run_task(task: Task, family: Family, rows: Sequence[Row], table: str, setup: Setup) -> dict[str, Measured]:
    """Train the systems of some rows and those that they start from, or read them back, and measure them."""
    dev, test = (partial(task.count, part) for part in ("dev", "test"))
    return measure_rows(table, rows, train_task(task, family, rows, table, setup), setup.seeds, dev=dev, test=test)


def make_table(
    name: str,
    title: str,
    task: Task,
    family: Family,
    rows: Sequence[Row],
    setup: Setup,
    *,
    controls: Collection[str],
    claims: Callable[[Mapping[str, Measured]], Sequence[Claim]],
) -> Outcome:
    """Train and measure the rows of a table on a task, compare each with the best control, and test the claims."""
    measured = run_task(task, family, rows, name, setup)
    return compare(
        name,
        title,
        measured,
        measure=task.measure,
        controls=controls,
        claims=claims(measured),
        files={"runs": setup.folder},
    )


def train_task(task: Task, family: Family, rows: Sequence[Row], table: str, setup: Setup) -> dict[str, Cell]:
    """Train the systems of some rows and those that they start from, or read them back; cells by folder.

    The runs are in the folder of the setup and shared by tables on the same task. If the scale tunes learning rates
    (:func:`reproductions.tuning.rates_of`), they are chosen with the first seed on development data, by the measure of
    the task, and the best trials are the systems of that seed.
    """
    task.require()
    keys = [row.key for row in rows]
    options: dict[str, Any] = {"progress": setup.progress, "decoders": task.decoders}
    best: dict[str, Trial] = {}
    factors: dict[str, float] = {}
    if rates := rates_of(setup.scale):
        record, first = setup.folder / f"trials-{table}.json", family(setup.seed)
        dev = partial(task.count, "dev")
        best = tune(_needed(first, keys), task.load_data, dev, setup.folder, record=record, rates=rates, **options)
        factors = {key: best[system.folder].factor for key, system in first.items() if system.folder in best}
    systems = [trial.system for trial in best.values()]
    # Seed by seed, so that an interrupted table has complete seeds.
    for seed in setup.seeds[1:] if best else setup.seeds:
        systems += _needed(with_rates(family(seed), factors), keys)
    cells = run_systems(systems, task.load_data, setup.folder, **options)
    return cells | {name: with_chosen_rate(cells[trial.system.folder], trial, rates) for name, trial in best.items()}


def _needed(systems: Mapping[str, System], keys: Sequence[str]) -> list[System]:
    """Return the systems of these keys and all that they start from, in the order of the family."""
    by_folder = {system.folder: system for system in systems.values()}
    needed: set[str] = set()
    for key in keys:
        if key not in systems:
            raise InputError(f"the family has no system {key!r}", hint=f"it has {', '.join(systems)}")
        folder: str | None = systems[key].folder
        while folder is not None and folder not in needed:
            needed.add(folder)
            folder = by_folder[folder].starts_from
    return [system for system in systems.values() if system.folder in needed]


def against_gold(load_data: Callable[[], Data], measure: Callable[..., Sums]) -> Callable[[str, Outputs], Sums]:
    """Turn a measure of outputs and gold targets into one of a part of the data and its outputs."""

    def count(part: str, outputs: Outputs) -> Sums:
        data = load_data()
        examples: list[Example] = {"dev": data.dev, "test": data.test}[part]
        return measure(outputs, [example.target for example in examples])

    return count


def texts_of(outputs: Outputs) -> list[str]:
    """Join pieces to detokenised text."""
    return [join_pieces(output) for output in outputs]


def require_sacrebleu() -> None:
    """Raise an InputError if sacrebleu is not installed."""
    bleu_signature([])


def bleu_of_pieces(outputs: Outputs, references: Sequence[Sequence[str]]) -> Sums:
    """Return BLEU of detokenised text against all translations of a source."""
    return bleu(texts_of(outputs), references)


def _count_translations(part: str, outputs: Outputs) -> Sums:
    return bleu_of_pieces(outputs, corpora.translation_references(part))


def _count_sentences(part: str, outputs: Outputs) -> Sums:
    """Return BLEU of the sentences, which come first."""
    return _count_translations(part, outputs[: len(corpora.translation_references(part))])


@cache
def _stress() -> Data:
    """Read a third of the training words of the demo, and its development and test words."""
    data = stress.load_data()
    return replace(data, train=data.train[::3])


HARD_DECODERS = ("greedy", "beam", "interpolated-beam", "raw-beam")
ENTITIES = Task(
    "ner",
    "German named entities (GermEval 2014)",
    "macro F1",
    corpora.named_entities,
    against_gold(corpora.named_entities, macro_entity_f1),
)
"""Measured by macro-averaged entity F1, as in the papers; `seqwise evaluate` decides by the micro-averaged one."""
STRESS = Task(
    "stress",
    "streaming stress assignment (CMU dictionary)",
    "word accuracy",
    _stress,
    against_gold(_stress, sequence_accuracy),
)
"""Measured by the share of words whose labels are all right."""
TRANSLATION = Task(
    "translation",
    "German to English (Tatoeba)",
    "BLEU",
    corpora.translation,
    _count_translations,
    # A soft beam cannot stop when its hypotheses have ended: it would take longer than all others together.
    decoders=HARD_DECODERS,
    check=require_sacrebleu,
)
"""Measured by BLEU of detokenised text against all references of a source."""
LONG_TRANSLATION = replace(
    TRANSLATION,
    title="German to English (Tatoeba, all pairs)",
    load_data=corpora.long_translation,
    count=_count_sentences,
)
"""The same with the whole corpus; concatenations, which follow the sentences, are translated but not measured."""


def translation_at(scale: str) -> Task:
    """Return the translation task of a scale."""
    return LONG_TRANSLATION if scale == "converged" else TRANSLATION


_SUPERTAG_TITLES = {
    "pmb": "CCG supertags (Parallel Meaning Bank)",
    "ewt": "dependency supertags (UD English EWT)",
    "erg": "HPSG lexical types (ERG)",
}


@cache
def supertags(name: str) -> Task:
    """Return the supertagging task of "pmb", "ewt" or "erg", see :func:`reproductions.corpora.readers.supertags`."""
    load_data = partial(corpora.supertags, name)
    folder = "supertags" if name == "pmb" else f"supertags-{name}"
    # A soft beam over a thousand labels takes longer than all other decoders together.
    decoders = DECODERS if name == "pmb" else HARD_DECODERS
    count = against_gold(load_data, token_accuracy)
    return Task(folder, _SUPERTAG_TITLES[name], "accuracy", load_data, count, decoders)
