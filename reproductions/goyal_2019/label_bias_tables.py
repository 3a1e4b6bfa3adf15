"""Tables 5.1 to 5.3: log Z and self-normalisation; local and global search-aware training of supertaggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from reproductions import Setup
from reproductions.comparison import (
    Measured,
    Statement,
    best_on_dev,
    compare,
    examine,
    examine_all,
    judge,
    no_worse,
    rows_of,
)
from reproductions.goyal_2018.exposure_bias import DIRECTIONS
from reproductions.goyal_2019.label_bias import family_of, runs_of
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result
from reproductions.tasks import Task, make_table, run_task, supertags, translation_at
from seqwise.evaluation.log_partitions import summarize_log_partitions
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.runs.loading import load_run
from seqwise.runs.measures import known_targets, log_partitions_of

Rows = Mapping[str, Measured]
CORPORA = ("pmb", "ewt", "erg")
"""Names of supertag corpora, the quickest first."""
SOURCE = "NAACL 2019, Table {}; thesis, Table 5.{}"
RAW_BEAM = "NAACL 2019, section 3.2"
OURS = "not in the papers"

# Decoder and number; systems with global scores are decoded by raw scores. The papers decode systems trained through
# the relaxed beam by that beam; here, a hard beam decodes all rows.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "uni": {
        "cross-entropy": {"greedy": 76.54, "beam": 77.76}, "direct-mixed": {"beam": 83.9},
        "direct-global": {"raw-beam": 83.93}, "self-normalized": {"greedy": 73.12, "beam": 73.83},
        "normalized-local": {"beam": 83.35}, "normalized-global": {"raw-beam": 85.50},
    },
    "bi": {
        "cross-entropy": {"greedy": 92.59, "beam": 93.29}, "direct-mixed": {"beam": 93.76},
        "direct-global": {"raw-beam": 93.73}, "self-normalized": {"greedy": 91.23, "beam": 91.94},
        "normalized-local": {"beam": 92.78}, "normalized-global": {"raw-beam": 92.63},
    },
}  # fmt: skip

# Key to name, for rows that several tables share.
PLAIN = {"cross-entropy": "cross-entropy", "cross-entropy-longer": "cross-entropy, longer"}
NORMALIZED = {"self-normalized": "self-normalised", "self-normalized-longer": "self-normalised, longer"}
SEARCHED = {"direct-mixed": "relaxed beam, local", "direct-global": "relaxed beam, global"}
FROM_CROSS_ENTROPY = {
    **PLAIN,
    **SEARCHED,
    "beam-crf": "beam CRF, global",
    "distilled": "distilled into raw scores",
    "distilled-global": "distilled, then relaxed beam, global",
}
FROM_NORMALIZED = {
    **PLAIN,
    **NORMALIZED,
    "normalized-local": "relaxed beam, local",
    "normalized-global": "relaxed beam, global",
    "direct-global": "relaxed beam, global, from cross-entropy",
}
CONTROLS = (*PLAIN, *NORMALIZED)


# ---------------------------------------------------------------------------------------- shared claims


def decoder_of(key: str) -> str:
    """Return the decoder of a system: a beam over the scores that it was trained with."""
    return "raw-beam" if key.endswith("global") else "beam"


def examined(measured: Rows, source: str, *statements: Statement) -> list[Claim]:
    """Test statements, with each system decoded by its decoder."""
    return examine_all(measured, source, *statements, decoder_of=decoder_of)


def best_beats_longer(measured: Mapping[str, Measured], best: Measured) -> Claim:
    """Test that the best of the searches beats the plain model trained for longer."""
    text = "The best search-aware row beats longer cross-entropy, each with its best decoder."
    return examine(text, OURS, best, measured["cross-entropy-longer"])


def raw_beam_hurts(plain: Measured, source: str) -> Claim:
    """Test that decoding by raw scores makes the plain model worse."""
    text = "Unnormalised decoding makes a plain model worse."
    return examine(text, source, plain, plain, decoders=("beam", "raw-beam"))


DISTILLED_START_HELPS = (
    "A distilled start (trained for longer) helps the relaxed beam with global scores.",
    "distilled-global", "direct-global",
)  # fmt: skip


# ---------------------------------------------------------------------------------------- supertags


def table_5_2(setup: Setup) -> Iterator[Outcome]:
    """Make Table 5.2: local and global normalisation through the relaxed beam, started from cross-entropy."""
    return _supertagging("5.2", FROM_CROSS_ENTROPY, _claims_5_2, setup)


def table_5_3(setup: Setup) -> Iterator[Outcome]:
    """Make Table 5.3: local and global normalisation through the relaxed beam, started from a self-normalised model."""
    return _supertagging("5.3", FROM_NORMALIZED, _claims_5_3, setup)


def _supertagging(
    number: str, names: Mapping[str, str], claims: Callable[..., list[Claim]], setup: Setup
) -> Iterator[Outcome]:
    """Make a table for each corpus and direction."""
    pairs = product(CORPORA, DIRECTIONS)
    tables = setup.chosen(
        {f"table-{number}-{name}-{direction}": (supertags(name), direction) for name, direction in pairs}
    )
    for task, _ in tables.values():
        task.require()
    for table, (task, direction) in tables.items():
        yield make_table(
            table,
            f"Table {number}, {task.title}, {DIRECTIONS[direction]}: {task.measure}",
            task,
            family_of(task, setup.scale, direction),
            rows_of(names, PUBLISHED[direction]),
            setup.inside(runs_of(task, setup.scale, direction)),
            controls=CONTROLS,
            claims=partial(claims, direction=direction),
        )


def _claims_5_2(measured: Mapping[str, Measured], direction: str) -> list[Claim]:
    source, plain = SOURCE.format(2, 2), measured["cross-entropy"]
    claims = examined(
        measured,
        source,
        ("Search-aware and local beats cross-entropy, in a beam.", "direct-mixed", "cross-entropy"),
        ("Search-aware and global beats cross-entropy, in a beam.", "direct-global", "cross-entropy"),
    )
    if direction == "bi":
        local, global_ = measured["direct-mixed"].test["beam"], measured["direct-global"].test["raw-beam"]
        text = "Where the input is seen whole, global is better than local by half a point at most."
        claims.append(no_worse(text, source, local, global_, prefix="local minus global: "))
    best = best_on_dev(measured, [key for key in measured if key not in (*CONTROLS, "distilled")])
    return [
        *claims,
        best_beats_longer(measured, best),
        examine(
            "The raw beam of plain cross-entropy beats its beam.", OURS, plain, plain, decoders=("raw-beam", "beam")
        ),
        *examined(measured, OURS, DISTILLED_START_HELPS),
    ]


def _claims_5_3(measured: Mapping[str, Measured], direction: str) -> list[Claim]:
    statements = [
        ("Self-normalising costs accuracy.", "cross-entropy", "self-normalized"),
        ("Local improves on its self-normalised start.", "normalized-local", "self-normalized"),
        ("Global improves on its self-normalised start.", "normalized-global", "self-normalized"),
    ]
    if direction == "uni":
        statements += [
            ("From a self-normalised start, global beats local.", "normalized-global", "normalized-local"),
            (
                "Global does better from a self-normalised start than from cross-entropy.",
                "normalized-global", "direct-global",
            ),
        ]  # fmt: skip
    best = best_on_dev(measured, ["normalized-local", "normalized-global"])
    return [
        *examined(measured, SOURCE.format(3, 3), *statements),
        examine(
            "The better of the two searches beats longer cross-entropy, each with its best decoder.",
            OURS, best, measured["cross-entropy-longer"],
        ),
        examine(
            "It beats the self-normalised model trained longer, each with its best decoder.",
            OURS, best, measured["self-normalized-longer"],
        ),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- log Z

SECTION = "NAACL 2019, section 4.3.2"
QUALITY = {"cross-entropy": 93.3, "self-normalized": 91.9}
BLEU = {"cross-entropy": 27.62, "self-normalized": 26.63}
# Mean and variance on training data, then on development data.
LOG_PARTITIONS = {
    "accuracy": {"cross-entropy": (21.08, 9.57, 21.96, 9.18), "self-normalized": (0.6, 0.29, 0.26, 0.08)},
    "BLEU": {"cross-entropy": (24.7, 115.4, 25.8, 129.1), "self-normalized": (0.65, 0.18, 0.7, 0.29)},
}
NAMES = {"cross-entropy": "cross-entropy", "self-normalized": "self-normalised"}
SAMPLE = 4000


def table_5_1(setup: Setup) -> Iterator[Outcome]:
    """Make Table 5.1: mean and variance of log Z with and without self-normalisation, and its cost.

    Taggers are bidirectional.
    """
    every = (*map(supertags, CORPORA), translation_at(setup.scale))
    tasks = setup.chosen({f"table-5.1-{task.name}": task for task in every})
    for task in tasks.values():
        task.require()
    for name, task in tasks.items():
        yield _log_partitions(name, task, setup)


def _log_partitions(table: str, task: Task, setup: Setup) -> Outcome:
    quality = {"accuracy": QUALITY, "BLEU": BLEU}[task.measure]
    rows = rows_of(NAMES, {key: {"beam": number} for key, number in quality.items()})
    runs = setup.inside(runs_of(task, setup.scale))
    measured = run_task(task, family_of(task, setup.scale), rows, table, runs)
    claims = [
        *examined(measured, SECTION, ("Self-normalising costs quality, slightly.", "cross-entropy", "self-normalized")),
        judge(
            "Self-normalising makes log Z much smaller: mean |log Z| on development data.", SOURCE.format(1, 1),
            *(_sizes(measured[key], task) for key in NAMES), prefix="cross-entropy minus self-normalised: ", scale=1.0,
        ),
        raw_beam_hurts(measured["cross-entropy"], RAW_BEAM if task.measure == "BLEU" else OURS),
    ]  # fmt: skip
    outcome = compare(
        table, f"Table 5.1, {task.title}: {task.measure} and log Z", measured, measure=task.measure,
        controls=["cross-entropy"], claims=claims, files={"runs": runs.folder},
    )  # fmt: skip
    results = [result for key in NAMES for result in _results_of(key, measured[key], task)]
    summary = "; ".join(f"{result.system}, {result.measure}: {result.value:.2f}" for result in results)
    whole = replace(outcome.table, results=(*outcome.table.results, *results))
    return replace(outcome, table=whole, lesson=f"{outcome.lesson}\n{summary}")


def _results_of(key: str, row: Measured, task: Task) -> list[Result]:
    """Return mean and variance of log Z on part of the training data and on development data, averaged over seeds."""
    published = LOG_PARTITIONS[task.measure][key]
    data = task.load_data()
    results = []
    for place, (part, examples) in enumerate({"train": data.train[:SAMPLE], "dev": data.dev}.items()):
        summaries = []
        for run in map(load_run, row.runs):
            encoded = run.codec.encode(known_targets(run, examples))
            summaries.append(summarize_log_partitions(log_partitions_of(run, encoded)))
        for offset, (name, unit) in enumerate((("mean", "nat"), ("variance", ""))):
            value = sum(getattr(summary, name) for summary in summaries) / len(summaries)
            results.append(
                Result(
                    row.row.name, f"{name} of log Z on {part}", value, row.signature,
                    published=published[2 * place + offset], unit=unit,
                )
            )  # fmt: skip
    return results


def _sizes(row: Measured, task: Task) -> list[Sums]:
    """Return |log Z| of the development data, a measurement for each seed."""
    sizes: list[Sums] = []
    for run in map(load_run, row.runs):
        encoded = run.codec.encode(known_targets(run, task.load_data().dev))
        lengths = [len(example.target_ids) for example in encoded]
        sums = [part.abs().sum().item() for part in log_partitions_of(run, encoded).split(lengths)]
        sizes.append(Counts(sums, lengths))
    return sizes
