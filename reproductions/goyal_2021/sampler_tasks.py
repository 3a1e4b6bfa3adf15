"""Tasks of Tables 6.2 to 6.6: training data of masked models, and sentences on which their samples are measured.

German and Romanian to English (Tatoeba) stand in for the thesis' WMT; spelling to sound (CMU dictionary) is learnt well
in minutes; phoneme sequences (the same dictionary) have no sources, and so no references.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from reproductions import Setup, tasks
from reproductions.beyond import spelling, stress
from reproductions.comparison import Row
from reproductions.corpora import readers as corpora
from reproductions.corpora.lexicons import split_by_hash
from reproductions.goyal_2018.exposure_bias import family_of
from reproductions.goyal_2021.enumerable import phoneme_sequences
from reproductions.systems import best_outputs
from seqwise.data.readers import Example, read_pairs
from seqwise.data.subwords import learn_subwords
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.translation import bleu_signature
from seqwise.runs.loading import load_run
from seqwise.runs.masked_model_settings import MaskedModelSettings, masked_settings
from seqwise.runs.measures import references_by_source

Tokens = tuple[str, ...]

ROMANIAN_PIECES = 2000
PHONEME_PARTS = {"dev": (0.90, 0.95), "test": (0.95, 1.0)}


@dataclass(frozen=True)
class Part:
    """Examples to measure on, and the references of each; None without sources."""

    examples: list[Example]
    references: list[Any]

    def drawn(self, count: int, *, longest: int | None = None) -> Part:
        """Return a fixed random sample of ``count`` examples with sources of at most ``longest`` tokens, in order."""
        short = [
            place for place, example in enumerate(self.examples) if longest is None or len(example.source) <= longest
        ]
        places = sorted(random.Random(0).sample(short, min(count, len(short))))
        return Part([self.examples[place] for place in places], [self.references[place] for place in places])


@dataclass(frozen=True)
class TaskData:
    """Training, development and test data, and their sources for a signature."""

    train: list[Example]
    dev: Part
    test: Part
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Size:
    """Amounts of sampling."""

    sentences: int  # of the test data; half as many of the development data
    chains: int  # for each of them; one on development data
    sweeps: int = 33  # of each chain; the first 7, or half if there are fewer than 14, are not counted
    longest: int | None = None  # largest length of a source, as in the thesis' "De-En (20)"


@dataclass(frozen=True)
class SamplerTask:
    """Data and sizes of a masked model, and the measure of its samples."""

    name: str  # of the folder of its runs
    title: str
    load: Callable[[], TaskData]  # cached
    settings: Mapping[str, MaskedModelSettings]  # by scale
    sizes: Mapping[str, Size]  # by scale
    measure: str = ""  # name of a share, printed in per cent; "" for none
    score: Callable[[Sequence[Tokens], Sequence[Any]], Sums] | None = None  # the measure, of outputs and references
    check: Callable[[], None] = lambda: None  # raises an error if something that measuring needs is missing
    note: Callable[[Sequence[Any]], str] | None = None  # describes the measure, given the references of the test data
    # Outputs of a left-to-right model for some test examples, for each seed: a control for Table 6.6.
    left_to_right: Callable[[Sequence[Example], Setup], list[list[Tokens]]] | None = None

    def require(self) -> None:
        """Read the data and check what measuring needs, so that an error comes before hours of work."""
        self.check()
        self.load()

    def part(self, name: str, scale: str) -> Part:
        """Return the examples of "dev" or "test" that are measured on at a scale."""
        size, data = self.sizes[scale], self.load()
        if name == "test":
            return data.test.drawn(size.sentences, longest=size.longest)
        return data.dev.drawn(max(1, size.sentences // 2), longest=size.longest)


# ------------------------------------------------------------------------------------------------- translation


@cache
def german() -> TaskData:
    """Read all 164,834 training pairs, in the subwords of Table 3.1; a masked model memorises the sixth used there.

    Sources of the other parts are distinct, each with all of its translations.
    """
    data = corpora.translation(every=1)
    dev, test = (
        Part(examples, list(corpora.translation_references(part)))
        for part, examples in (("dev", data.dev), ("test", data.test))
    )
    return TaskData(data.train, dev, test, data.sources)


@cache
def romanian() -> TaskData:
    """Read all 12,738 training pairs, in joint subwords learnt from them."""
    folder = corpora.corpus("mt-ro-en-tatoeba")

    def read(file: str) -> list[Example]:
        return read_pairs(folder / file, source_units="words", target_units="words")

    train = read("train.tsv.gz")
    texts = (" ".join(side) for pair in train for side in (pair.source, pair.target))
    subwords = learn_subwords(texts, size=ROMANIAN_PIECES)

    def part(file: str) -> Part:
        pairs, translations = references_by_source(read(file))
        texts = [[" ".join(option) for option in options] for options in translations]
        return Part([corpora.split_pair(pair, subwords) for pair in pairs], texts)

    sources = (corpora.source_of(folder / "train.tsv.gz"),)
    return TaskData(
        [corpora.split_pair(pair, subwords) for pair in train], part("valid.tsv.gz"), part("test.tsv.gz"), sources
    )


def left_to_right(examples: Sequence[Example], setup: Setup) -> list[list[Tokens]]:
    """Translate some test examples of :func:`german` by the longer cross-entropy of Table 3.1, for each seed.

    It searches with a beam, and is read back if that table has been made. At the scale "converged", it is trained on
    the pairs of the masked translator and on concatenations; otherwise on a sixth of the pairs, for more epochs.
    """
    task, key = tasks.translation_at(setup.scale), "cross-entropy-longer"
    family, runs = family_of(task, setup.scale), setup.inside(task.name)
    measured = tasks.run_task(task, family, [Row(key, key)], "table-6.6", runs)[key]
    return [best_outputs(load_run(run), examples, "beam") for run in measured.runs]


# ------------------------------------------------------------------------------------------------- the dictionary


@cache
def letters() -> TaskData:
    """Read letters and phonemes of the words of the reproduction g2p, with its split."""
    dev, test = (Part(*spelling.words_and_pronunciations(part)) for part in ("dev", "test"))
    data = spelling.load_data()
    return TaskData(data.train, dev, test, data.sources)


@cache
def phonemes() -> TaskData:
    """Read the distinct sequences of at most 6 phonemes, without stress, split by their hashes.

    Of development and test sequences, only the lengths are used.
    """
    placed = [
        (split_by_hash(" ".join(sequence)), Example((), sequence))
        for sequence in phoneme_sequences(stress.cmu_entries())
    ]

    def part(name: str) -> Part:
        low, high = PHONEME_PARTS[name]
        examples = [example for place, example in placed if low <= place < high]
        return Part(examples, [None] * len(examples))

    train = [example for place, example in placed if place < PHONEME_PARTS["dev"][0]]
    return TaskData(train, part("dev"), part("test"), stress.cmu_version())


# ------------------------------------------------------------------------------------------------- the tasks

_TRANSLATOR = masked_settings(
    format="pairs", minimum_count=2, hidden_size=128, num_layers=2, feedforward_size=512, dropout=0.1, epochs=12.0,
    batch_size=64, learning_rate=1e-3, save_every=500,
)  # fmt: skip
# The sizes of Ghazvininejad et al. (EMNLP 2019), whose models the thesis used.
_PAPER_SIZED = _TRANSLATOR.with_changes(
    hidden_size=512, num_layers=6, num_heads=8, feedforward_size=2048, dropout=0.3, epochs=60.0,
    batch_size=128, learning_rate=5e-4,
)  # fmt: skip
_SPELLER = _TRANSLATOR.with_changes(source_units="characters", minimum_count=1, epochs=3.0)
_PHONEMES = masked_settings(minimum_count=1, epochs=8.0, save_every=500)

GERMAN = SamplerTask(
    "translation",
    "German to English (Tatoeba)",
    german,
    # Three epochs are too few to memorise pairs; without dropout, the likelihood of development data is higher.
    {
        "cpu": _TRANSLATOR.with_changes(dropout=0.0, epochs=3.0),
        "gpu": _PAPER_SIZED.with_changes(epochs=30.0),
        "converged": _TRANSLATOR.with_changes(evaluate_every=1000, patience=6),
    },
    {"cpu": Size(100, 2, longest=12), "gpu": Size(3_000, 5, longest=20), "converged": Size(500, 2, longest=20)},
    measure="BLEU",
    score=tasks.bleu_of_pieces,
    check=tasks.require_sacrebleu,
    note=bleu_signature,
    left_to_right=left_to_right,
)
"""Measured by BLEU of detokenised text against all references of a source."""
ROMANIAN = replace(
    GERMAN,
    name="translation-ro",
    title="Romanian to English (Tatoeba)",
    load=romanian,
    settings={
        "cpu": _TRANSLATOR.with_changes(epochs=30.0),
        "gpu": _PAPER_SIZED.with_changes(epochs=120.0),
        "converged": _TRANSLATOR.with_changes(epochs=60.0, evaluate_every=300, patience=6),
    },
    left_to_right=None,
)
"""The same with a smaller corpus and more epochs."""
SPELLING = SamplerTask(
    "g2p",
    "spelling to sound (CMU dictionary)",
    letters,
    {
        "cpu": _SPELLER,
        "gpu": _SPELLER.with_changes(hidden_size=256, num_layers=4, feedforward_size=1024, epochs=30.0),
        "converged": _SPELLER.with_changes(epochs=9.0, evaluate_every=1000, patience=6),
    },
    {"cpu": Size(200, 2), "gpu": Size(3_000, 5), "converged": Size(500, 2)},
    measure="word accuracy",
    score=spelling.words_right,
)
"""Measured by the share of words that get one of their pronunciations."""
PHONEMES = SamplerTask(
    "phonemes",
    "phoneme sequences (CMU dictionary)",
    phonemes,
    {
        "cpu": _PHONEMES,
        "gpu": _PHONEMES.with_changes(hidden_size=256, num_layers=4, feedforward_size=1024, epochs=30.0),
        "converged": _PHONEMES.with_changes(epochs=24.0, evaluate_every=1000, patience=6),
    },
    {"cpu": Size(150, 2), "gpu": Size(2_000, 5), "converged": Size(500, 2)},
)
"""Without sources and a measure; only energies, acceptance and novelty are reported."""
