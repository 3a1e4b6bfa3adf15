"""Spelling to sound on the CMU dictionary: the systems of the stress table with outputs of varying length.

An attention encoder-decoder maps letters to phonemes. Every pronunciation of a word is a training pair, and at test
time any of them is right. Words have 2 to 10 letters and are split by a hash of their spelling.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from reproductions import Setup
from reproductions.beyond.stress import cmu_entries, cmu_version
from reproductions.corpora.lexicons import read_spelling, split_by_hash
from reproductions.figures import draw_by_decoder
from reproductions.outcome import Measure, Outcome, build_outcome
from reproductions.report import Table
from reproductions.systems import Cell, Data, System, run_systems
from seqwise.data.readers import Example
from seqwise.evaluation.metrics import Counts, length_ratio, token_error_rate, word_error_rate
from seqwise.runs.measures import references_by_source
from seqwise.runs.settings import train_settings

PARTS = {"dev": (0.90, 0.95), "test": (0.95, 1.0)}
EVERY = 3  # one in this many words of each part is used if both parts are decoded for many systems


@cache
def _lexicon() -> list[Example]:
    return read_spelling(cmu_entries())


def load_data() -> Data:
    """Read 90% of the words for training, and 5%, each once, for testing; the other 5% are development data."""
    train = [example for example in _lexicon() if split_by_hash(example.key) < PARTS["dev"][0]]
    return Data(train=train, test=words_and_pronunciations("test")[0], sources=cmu_version())


@cache
def load_both_parts() -> Data:
    """Read all training pairs, and every third word of each of the other parts."""
    dev, test = (words_and_pronunciations(part)[0][::EVERY] for part in ("dev", "test"))
    return Data(train=load_data().train, dev=dev, test=test, sources=cmu_version())


def words_right(outputs: Sequence[tuple[str, ...]], pronunciations: Sequence[Sequence[tuple[str, ...]]]) -> Counts:
    """Return the share of words that got one of their pronunciations."""
    return Counts(1 - word_error_rate(outputs, pronunciations).numerators_N)


def words_of_part_right(part: str, outputs: Sequence[tuple[str, ...]]) -> Counts:
    """Return the same for the words of :func:`load_both_parts`."""
    return words_right(outputs, _pronunciations(part))


@cache
def _pronunciations(part: str) -> list[list[tuple[str, ...]]]:
    return words_and_pronunciations(part)[1][::EVERY]


def words_and_pronunciations(part: str) -> tuple[list[Example], list[list[tuple[str, ...]]]]:
    """Return each word of a part once, and all of its pronunciations."""
    low, high = PARTS[part]
    examples = [example for example in _lexicon() if low <= split_by_hash(example.key) < high]
    return references_by_source(examples)


START = train_settings(
    task="transduce", source_units="characters", minimum_count=1, embedding_size=64, hidden_size=128,
    dropout=0.0, objective="cross-entropy", epochs=4.4, learning_rate=3e-3, beam_size=3, save_every=500,
)  # fmt: skip
"""Settings of the cross-entropy stage that other systems start from."""


def systems(seed: int) -> list[System]:
    """Return the systems of the stress table, with bidirectional encoders."""
    start = START.with_changes(seed=seed)
    longer = start.with_changes(epochs=2.5, learning_rate=1e-3)
    sampling = longer.with_changes(objective="scheduled-sampling", epochs=1.5, gold_probability="linear(1, 0.5)")
    search = longer.with_changes(
        objective="relaxed-beam", epochs=0.8, alpha="exponential(1, 8)", cross_entropy_weight=0.1, learning_rate=5e-4
    )
    normalized = start.with_changes(objective="self-normalized")
    return [
        System("cross-entropy", "cross-entropy", start),
        System("self-normalised", "self-normalized", normalized),
        System("relaxed beam, global", "global-from-ce", search.with_changes(score="global"), "cross-entropy"),
        System(
            "… from self-normalised",
            "global-from-self-normalized",
            search.with_changes(score="global"),
            "self-normalized",
        ),
        System("relaxed beam, local", "relaxed-local", search, "cross-entropy"),
        System("cross-entropy, longer", "cross-entropy-longer", longer, "cross-entropy"),
        System("scheduled sampling", "scheduled-sampling", sampling, "cross-entropy"),
    ]


ORDER = (
    "cross-entropy", "cross-entropy-longer", "scheduled-sampling", "self-normalized", "relaxed-local", "global-from-ce",
    "global-from-self-normalized",
)  # fmt: skip


def reproduce(setup: Setup) -> list[Outcome]:
    """Train all systems, decode each in four ways, and describe the effect of the raw beam on lengths."""
    _, gold = words_and_pronunciations("test")
    trained = run_systems(systems(setup.seed), load_data, setup.folder, progress=setup.progress)
    cells = {key: trained[key] for key in ORDER}
    measures = [
        Measure("word error", lambda outputs: word_error_rate(outputs, gold)),
        Measure("phoneme error", lambda outputs: token_error_rate(outputs, gold)),
        Measure("length ratio", lambda outputs: length_ratio(outputs, [options[0] for options in gold]), unit=""),
    ]
    figure = setup.folder / "g2p.png"
    best = shlex.quote(str(cells["cross-entropy"].run))
    outcome = build_outcome(
        "g2p",
        f"Spelling to sound, CMU dictionary, {len(gold):,} test words",
        cells,
        measures,
        lesson=_lesson(cells, measures[0], measures[2]),
        files={"figure": figure, "runs": setup.folder},
        hints=(f"seqwise predict {best} colonel", f"seqwise predict {best} colonel --decoder raw-beam"),
    )
    draw(outcome.table, figure)
    return [outcome]


def draw(table: Table, path: Path) -> None:
    """Draw the word error rate of each system with each decoder."""
    title = "Spelling to sound: word error rate (test, %; lower is better)"
    draw_by_decoder(table, "word error", path, title=title)


def _lesson(cells: dict[str, Cell], word_error: Measure, ratio: Measure) -> str:
    def of(measure: Measure, key: str, decoder: str) -> float:
        return measure.scaled(measure.count(cells[key].outputs[decoder]).value)

    plain, raw = of(word_error, "cross-entropy", "beam"), of(word_error, "cross-entropy", "raw-beam")
    longer = of(word_error, "cross-entropy-longer", "beam")
    cured = of(word_error, "self-normalized", "raw-beam")
    searched = min(
        of(word_error, key, decoder)
        for key in ("relaxed-local", "global-from-ce", "global-from-self-normalized")
        for decoder in cells[key].outputs
    )
    verdict = "does not beat" if searched >= longer else "beats"
    return (
        f"With outputs of varying length, raw scores of a plain model collapse: word error {plain:.1f}% becomes "
        f"{raw:.1f}%, outputs {of(ratio, 'cross-entropy', 'raw-beam'):.2f} times as long, because each further token "
        f"adds log Z, {cells['cross-entropy'].mean_log_partition:.1f} nats on average. Self-normalisation prevents "
        f"this ({cured:.1f}%). Training through the search ({searched:.1f}% at best) {verdict} more cross-entropy "
        f"({longer:.1f}%) here: with the whole source in view there is no label bias to undo."
    )
