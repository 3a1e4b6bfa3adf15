"""Default settings against a search by hand, on six corpora of up to a thousand training examples, with one seed.

``seqwise train`` sizes its settings to the data. They are compared with settings that a user would try by hand: other
learning rates, batches and dropout, longer training, and words with or without characters. One of these is chosen on
development data; only it and the defaults are measured on test data.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from reproductions import Setup
from reproductions.comparison import Measured, Row, best_on_dev, no_worse
from reproductions.corpora.dependencies import read_dependencies
from reproductions.corpora.readers import columns, corpus, source_of
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.systems import Data, System, systems_of
from reproductions.tasks import Task, against_gold, run_task
from reproductions.verdicts import difference_result, interval_result
from seqwise.data.durable import sha256_of_file
from seqwise.data.readers import Example, read_pairs
from seqwise.errors import InputError
from seqwise.evaluation.entities import entity_f1
from seqwise.evaluation.metrics import Sums, sequence_accuracy, token_accuracy
from seqwise.runs.model_settings import NewTagger
from seqwise.runs.settings import Settings, train_settings
from seqwise.runs.sizing import sized

MOST = (1_000, 300, 1_000)
"""Largest numbers of training, development and test examples."""
MOST_TURKISH = (400, 150, 400)
"""The same for Turkish, whose sentences have three times as many words."""
MARGIN = 0.02
DEFAULTS = "defaults"
OTHER_WAY = "characters"
USUAL: Mapping[str, Any] = {"learning_rate": 0.005, "batch_size": 16, "epochs": 25.0}
"""Settings from which the search by hand begins."""
BY_HAND: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "slower": {"learning_rate": 0.002},
    "faster": {"learning_rate": 0.01},
    "large-batches": {"batch_size": 32},
    "dropout-0.3": {"dropout": 0.3},
    "dropout-0.5": {"dropout": 0.5},
    "long": {"learning_rate": 0.002, "dropout": 0.3, "epochs": 50.0},
}
"""Changes to the usual settings by key; taggers are also tried with characters, or without if defaults have them."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Corpus with its measure, and the flags that its files need."""

    task: Task
    flags: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------- corpora


def _spread(examples: Sequence[Example], most: int) -> list[Example]:
    """Choose at most ``most`` examples, evenly spaced."""
    count = min(most, len(examples))
    return [examples[place * len(examples) // count] for place in range(count)]


def _cut(data: Data, most: tuple[int, int, int] = MOST) -> Data:
    train, dev, test = map(_spread, (data.train, data.dev, data.test), most)
    return replace(data, train=train, dev=dev, test=test)


@cache
def _columns(*corpus_and_files: str) -> Data:
    return _cut(columns(*corpus_and_files))


_entities = partial(_columns, "ner-de-mobie", "train.tsv.gz", "dev.tsv", "test.tsv")


@cache
def _spelling() -> Data:
    files = [corpus("g2p-en-sigmorphon21") / f"eng_us_{part}" for part in ("train.tsv.gz", "dev.tsv", "test.tsv")]
    train, dev, test = (read_pairs(file, source_units="characters", target_units="words") for file in files)
    return _cut(Data(train, test, dev, (source_of(files[0]),)))


@cache
def _turkish() -> Data:
    """Read parts of speech with morphological features from the package ``turkish-treebanks``."""
    file = _turkish_file()
    examples = [
        Example(tuple(word.form for word in words), tuple(f"{word.upos}|{word.features}" for word in words))
        for words in read_dependencies(file)
    ]
    parts: list[list[Example]] = [[], [], []]
    for place, example in enumerate(examples):
        parts[{3: 1, 4: 2}.get(place % 5, 0)].append(example)
    train, dev, test = parts
    source = f"turkish-treebanks/{file.name} {sha256_of_file(file)}"
    return _cut(Data(train, test, dev, (source,)), MOST_TURKISH)


def _turkish_file() -> Path:
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError as error:
        problem = "the package turkish-treebanks, which contains a corpus, is not installed"
        raise InputError(problem, hint="pip install turkish-treebanks") from error
    return Path(str(next(file for file in files if file.name == "wiki.conllu").locate()))


def _corpus(
    name: str, title: str, measure: str, load: Callable[[], Data], count: Callable[..., Sums], **flags: Any
) -> Corpus:
    return Corpus(Task(name, title, measure, load, against_gold(load, count), decoders=("beam",)), flags)


def _supertags(language: str, title: str, suffix: str = "") -> Corpus:
    files = (f"{language}.train.tsv{suffix}", f"{language}.dev.tsv", f"{language}.test.tsv")
    load = partial(_columns, "supertag-ccg-pmb", *files)
    return _corpus(f"supertags-{language}", title, "accuracy", load, token_accuracy)


CORPORA = (
    _supertags("en", "CCG supertags, English", ".gz"),
    _supertags("nl", "CCG supertags, Dutch"),
    _supertags("it", "CCG supertags, Italian"),
    _corpus("mobie", "named entities, MobIE", "entity F1", _entities, entity_f1),
    _corpus("turkish", "morphological tags, Turkish", "accuracy", _turkish, token_accuracy),
    _corpus(
        "g2p", "spelling to sound, SIGMORPHON", "word accuracy", _spelling, sequence_accuracy,
        task="transduce", source_units="characters",
    ),
)  # fmt: skip
UNSEEN = "supertags-it"
"""Corpus that was first read after the defaults had been fixed."""

# ---------------------------------------------------------------------------------------- systems


def settings_of(train: Sequence[Example], flags: Mapping[str, Any], seed: int = 0) -> Settings:
    """Return the settings of ``seqwise train`` with training and development data and only these flags."""
    return sized(train_settings(**flags, seed=seed, dev=Path("dev.tsv")), train)


def family(case: Corpus, seed: int) -> dict[str, System]:
    """Return the system with defaults, and those of the search by hand."""
    train = case.task.load_data().train
    defaults = settings_of(train, case.flags, seed)
    by_hand = dict(BY_HAND)
    if isinstance(defaults.model, NewTagger):
        by_hand[OTHER_WAY] = {"characters": not defaults.model.characters}
    tried = {key: settings_of(train, {**case.flags, **USUAL, **flags}, seed) for key, flags in by_hand.items()}
    return systems_of({DEFAULTS: (defaults, None), **{key: (settings, None) for key, settings in tried.items()}}, seed)


# ---------------------------------------------------------------------------------------- table

TITLE = "Defaults and a search by hand"
SOURCE = "not in the papers"
SEEN = (
    "What this search showed on development data of Turkish and SIGMORPHON led to more epochs for few sentences and a "
    "lower rate for transducers, which were then tuned on other data (300 English and 581 German sentences with "
    "supertags, 400 from the web part of the Turkish treebank, the CMU dictionary); test data chose nothing."
)
"""Origin of the defaults."""


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train each corpus with the defaults and with every setting of the search."""
    for case in CORPORA:
        case.task.require()
    measured = {}
    for case in CORPORA:
        rows = [Row(key, key) for key in family(case, setup.seed)]
        measured[case] = run_task(case.task, partial(family, case), rows, DEFAULTS, setup.inside(case.task.name))
    yield build_outcome(measured, setup.folder)


def build_outcome(measured: Mapping[Corpus, Mapping[str, Measured]], folder: Path) -> Outcome:
    """Make the table: every setting on development data; the defaults and the best one by hand on test data."""
    results: list[Result] = []
    claims: list[Claim] = []
    for case, by_key in measured.items():
        defaults = by_key[DEFAULTS]
        chosen = best_on_dev(by_key, [key for key in by_key if key != DEFAULTS])
        ours, theirs = _on_test(defaults), _on_test(chosen)
        title, signature = case.task.title, defaults.signature
        seconds = statistics.fmean(each.train_seconds for each in by_key.values())
        results += [
            interval_result(title, "defaults", ours, signature),
            interval_result(title, "by hand", theirs, chosen.signature, note=chosen.row.name),
            difference_result(title, "defaults minus by hand", ours, theirs, signature),
            *(
                interval_result(title, f"{key}, dev", each.dev[each.chosen], each.signature)
                for key, each in by_key.items()
            ),
            Result(title, "training seconds, defaults", defaults.train_seconds, signature, unit="s"),
            Result(title, "training seconds, a setting by hand", seconds, signature, unit="s"),
        ]
        text = f"{title}: the defaults are at most {100 * MARGIN:g} points worse than the best of a search by hand."
        claims.append(no_worse(text, SOURCE, ours, theirs, margin=MARGIN))
    table = Table(TITLE, tuple(results), note=_note(measured), claims=tuple(claims))
    return Outcome(DEFAULTS, table, {"runs": folder})


def _on_test(measured: Measured) -> list[Sums]:
    return list(measured.test[measured.chosen])


def _note(measured: Mapping[Corpus, Mapping[str, Measured]]) -> str:
    data = {case.task: case.task.load_data() for case in measured}
    sizes = "; ".join(
        f"{task.title}: {task.measure}, {len(parts.train):,} / {len(parts.dev):,} / {len(parts.test):,} examples"
        for task, parts in data.items()
    )
    last = [f" {case.task.title} came last, after all choices." for case in measured if case.task.name == UNSEEN]
    return f"{sizes}. {SEEN}{''.join(last)}"
