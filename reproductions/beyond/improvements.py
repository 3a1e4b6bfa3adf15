"""Variants of the winning search objectives, tried on development data, and the objectives for outputs of any length.

Labels left to right: each variant starts from the weights that the winners start from (scheduled sampling; see
:mod:`reproductions.beyond.search_objectives`, whose runs are shared) and trains for about as long, unless its name says
otherwise. All choices are made on development data; the best variant is then compared with the better of the two
winners on test data, once. Spelling to sound: the likelihoods over a beam, and the relaxed beam with two costs, against
longer cross-entropy, as in the other tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from reproductions import Setup
from reproductions.beyond.search_objectives import CORPORA, SEARCHED, TITLE, beat_the_best, family
from reproductions.beyond.spelling import START, load_both_parts, words_of_part_right
from reproductions.comparison import Measured, best_on_dev, examine, rows_of
from reproductions.outcome import HEADINGS, Outcome
from reproductions.report import Claim, Result, Table
from reproductions.systems import System, systems_of
from reproductions.tasks import Task, make_table, run_task
from reproductions.verdicts import difference_result, interval_result
from seqwise.runs.settings import Settings

TAGGED = ("pmb", "ner")
WINNERS = ("dense-beam", "beam-crf")
RELAXED = "relaxed-beam"
"""Shown for comparison with its variant."""
VARIANTS = {
    "dense-beam-k10": "dense beam loss, k = 10",
    "beam-crf-k10": "beam CRF, k = 10",
    "dense-beam-twice": "dense beam loss, twice as long",
    "beam-crf-after-dense": "dense beam loss, then beam CRF (twice as long)",
    "soft-dense-beam-gaps": "soft dense beam loss, alpha by gaps",
    "beam-crf-direct": "beam CRF + 0.5 direct loss",
    "relaxed-beam-gaps": "relaxed beam, alpha by gaps",
}


def variants(start: Settings, epochs: Mapping[str, float], seed: int) -> dict[str, System]:
    """Return the family of the search objectives, followed by every variant."""
    systems = family(start, epochs, seed)
    dense, crf, relaxed = (systems[key].settings for key in (*WINNERS, RELAXED))
    by_gaps = {"alpha_unit": "gaps", "alpha": "exponential(1, 10)"}
    # A beam of 10 takes almost twice the time of one of 5, the relaxed beam three times that of the beam CRF.
    made: dict[str, tuple[Settings, str | None]] = {
        "dense-beam-k10": (dense.with_changes(beam_size=10, epochs=0.6 * dense.epochs), "sampling"),
        "beam-crf-k10": (crf.with_changes(beam_size=10, epochs=0.6 * crf.epochs), "sampling"),
        "dense-beam-twice": (dense.with_changes(epochs=2 * dense.epochs), "sampling"),
        "beam-crf-after-dense": (crf, "dense-beam"),
        "soft-dense-beam-gaps": (
            dense.with_changes(objective="soft-dense-beam", epochs=relaxed.epochs, **by_gaps), "sampling",
        ),
        "beam-crf-direct": (
            crf.with_changes(direct_loss_weight=0.5, alpha=relaxed.alpha, epochs=0.4 * crf.epochs), "sampling",
        ),
        "relaxed-beam-gaps": (relaxed.with_changes(**by_gaps), "sampling"),
    }  # fmt: skip
    return {**systems, **systems_of(made, seed)}


# ---------------------------------------------------------------------------------------- spelling to sound

# The words of the reproduction g2p, a third of them decoded, with a measure that is better when it is higher.
SPELLING = Task(
    "g2p",
    "spelling to sound (CMU dictionary)",
    "word accuracy",
    load_both_parts,
    words_of_part_right,
    decoders=("greedy", "beam", "raw-beam"),
)
SPELLING_CONTROLS = {"cross-entropy": "cross-entropy", "cross-entropy-longer": "cross-entropy, longer"}
SPELLING_ROWS = {
    "self-normalized": "self-normalised",
    "dense-beam-local": "dense beam loss, local",
    "beam-crf-local": "beam CRF, local",
    "dense-beam-global": "self-normalised, then dense beam loss, global",
    "beam-crf-global": "self-normalised, then beam CRF, global",
    "relaxed-hamming": "relaxed beam, local, Hamming cost",
    "relaxed-edit": "relaxed beam, local, edit distance",
}


def spelling_family(seed: int) -> dict[str, System]:
    """Return the systems of spelling to sound for one seed; all that follow a start train for about the same time."""
    start = START.with_changes(seed=seed, epochs=1.5)
    longer = start.with_changes(epochs=0.7, learning_rate=1.5e-3)
    search = start.with_changes(learning_rate=5e-4)
    dense = search.with_changes(objective="dense-beam", epochs=0.25, cross_entropy_weight=0.0)
    crf = search.with_changes(objective="beam-crf", epochs=0.22)
    relaxed = search.with_changes(objective="relaxed-beam", epochs=0.16, alpha="exponential(1, 8)")
    stages: dict[str, tuple[Settings, str | None]] = {
        "cross-entropy": (start, None),
        "self-normalized": (start.with_changes(objective="self-normalized"), None),
        "cross-entropy-longer": (longer, "cross-entropy"),
        "dense-beam-local": (dense, "cross-entropy"),
        "beam-crf-local": (crf, "cross-entropy"),
        "dense-beam-global": (dense.with_changes(score="global"), "self-normalized"),
        "beam-crf-global": (crf.with_changes(score="global"), "self-normalized"),
        "relaxed-hamming": (relaxed, "cross-entropy"),
        "relaxed-edit": (relaxed.with_changes(cost="edit-distance"), "cross-entropy"),
    }
    return systems_of(stages, seed)


def _spelling_claims(measured: Mapping[str, Measured]) -> list[Claim]:
    control = best_on_dev(measured, SPELLING_CONTROLS)
    plain = measured["cross-entropy"]
    return [
        *beat_the_best(measured, control, [key for key in SPELLING_ROWS if key != "self-normalized"]),
        examine(
            "The edit distance as cost beats the Hamming cost where one insertion shifts all that follows.",
            "here", measured["relaxed-edit"], measured["relaxed-hamming"],
        ),
        examine(
            "The raw beam of plain cross-entropy is worse than its beam where outputs have lengths of their own.",
            "here", plain, plain, decoders=("beam", "raw-beam"),
        ),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- tables


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Try the variants on development data and test the best of them once; then make the table of spelling."""
    tasks = [CORPORA[name][0] for name in TAGGED] + [SPELLING]
    for task in tasks:
        task.require()
    names = {**{key: SEARCHED[key] for key in (*WINNERS, RELAXED)}, **VARIANTS}
    for name in TAGGED:
        task, start, epochs = CORPORA[name]
        table, runs = f"improvements-{name}", setup.inside(name)
        measured = run_task(task, partial(variants, start, epochs), rows_of(names), table, runs)
        yield on_dev(table, f"Improvements on the winners, {task.title}", measured, task.measure, runs.folder)
    yield make_table(
        "improvements-g2p",
        TITLE.format(SPELLING.title),
        SPELLING,
        spelling_family,
        rows_of({**SPELLING_CONTROLS, **SPELLING_ROWS}),
        setup.inside(SPELLING.name),
        controls=SPELLING_CONTROLS,
        claims=_spelling_claims,
    )


def on_dev(name: str, title: str, measured: Mapping[str, Measured], measure: str, folder: Path) -> Outcome:
    """Compare every row with the winner on development data, and the best variant with it on test data."""
    winner = best_on_dev(measured, WINNERS)
    best = best_on_dev(measured, [key for key in measured if key not in (*WINNERS, RELAXED)])
    results: list[Result] = []
    for row in measured.values():
        ours, theirs = row.dev[row.chosen], winner.dev[winner.chosen]
        note = f"{HEADINGS[row.chosen]}, chosen on dev"
        results += [
            interval_result(row.row.name, f"{measure}, dev", ours, row.signature, note=note),
            Result(row.row.name, "training seconds, all stages", row.train_seconds, row.signature, unit="s"),
        ]
        if row is not winner:
            results.append(difference_result(
                row.row.name, f"{measure}, dev, minus winner", ours, theirs, row.signature,
                note=f"winner: {winner.row.name} ({HEADINGS[winner.chosen]})",
            ))  # fmt: skip
    claim = examine(f"On test, “{best.row.name}” beats “{winner.row.name}”.", "here", best, winner)
    return Outcome(name, Table(title, tuple(results), claims=(claim,)), {"runs": folder})
