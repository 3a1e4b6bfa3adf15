"""Tables 5.1 to 5.3: log Z and self-normalisation; local and global search-aware training of supertaggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seqwise.evaluation.log_partitions import LogPartitionSummary, summarize_log_partitions
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.report import Claim, Result
from seqwise.recipes.comparison import Measured, Row, best_on_dev, compare, examine, judge, no_worse
from seqwise.recipes.label_bias import family_of
from seqwise.recipes.outcome import Outcome
from seqwise.recipes.systems import ProgressFactory
from seqwise.recipes.tasks import TRANSLATION, Task, run_task, supertags
from seqwise.runs.measures import known_targets, log_partitions_of
from seqwise.runs.run import load_run

__all__ = ["CORPORA", "runs_of", "table_5_1", "table_5_2", "table_5_3"]

CORPORA = ("pmb", "ewt", "erg")
"""Names of supertag corpora, the quickest first."""
DIRECTIONS = {"uni": "left to right", "bi": "both ways"}
SOURCE = "NAACL 2019, Table {}; thesis, Table 5.{}"
OURS = "not in the papers"

# Decoder and number; a system of global scores is searched by its own, raw ones. The papers search what was trained
# through the relaxed beam with that beam and print its labels; a hard beam stands for it here, as for the other rows.
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
FROM_CROSS_ENTROPY = {
    "cross-entropy": "cross-entropy",
    "cross-entropy-longer": "cross-entropy, longer",
    "direct-mixed": "relaxed beam, local",
    "direct-global": "relaxed beam, global",
    "beam-crf": "beam CRF, global",
    "distilled": "distilled into raw scores",
    "distilled-global": "distilled, then relaxed beam, global",
}
FROM_NORMALIZED = {
    "cross-entropy": "cross-entropy",
    "cross-entropy-longer": "cross-entropy, longer",
    "self-normalized": "self-normalised",
    "self-normalized-longer": "self-normalised, longer",
    "normalized-local": "relaxed beam, local",
    "normalized-global": "relaxed beam, global",
    "direct-global": "relaxed beam, global, from cross-entropy",
}
CONTROLS = ("cross-entropy", "cross-entropy-longer", "self-normalized", "self-normalized-longer")
BEAMS = ("beam", "beam")


def runs_of(task: Task, folder: Path, direction: str) -> Path:
    """The folder of a task's runs, in which a tagger that reads left to right has its own."""
    return folder / (f"{task.name}-left-to-right" if direction == "uni" else task.name)


def table_5_2(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Iterator[Outcome]:
    """Local and global normalisation through the relaxed beam, started from cross-entropy."""
    for name in CORPORA:
        supertags(name).require()
    for name in CORPORA:
        for direction in DIRECTIONS:
            yield _supertagging("5.2", name, direction, FROM_CROSS_ENTROPY, folder, seeds, scale, progress)


def table_5_3(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Iterator[Outcome]:
    """The same, started from a self-normalised model."""
    for name in CORPORA:
        supertags(name).require()
    for name in CORPORA:
        for direction in DIRECTIONS:
            yield _supertagging("5.3", name, direction, FROM_NORMALIZED, folder, seeds, scale, progress)


def _supertagging(
    number: str,
    name: str,
    direction: str,
    names: Mapping[str, str],
    folder: Path,
    seeds: Sequence[int],
    scale: str,
    progress: ProgressFactory,
) -> Outcome:
    task = supertags(name)
    published = PUBLISHED[direction]
    rows = [
        Row(key, title, {(decoder, "test"): value for decoder, value in published.get(key, {}).items()})
        for key, title in names.items()
    ]
    runs, table = runs_of(task, folder, direction), f"table-{number}-{name}-{direction}"
    systems = family_of(task, scale, direction)
    measured = run_task(task, systems, rows, table, runs, seeds=seeds, progress=progress)
    claims = {"5.2": _claims_5_2, "5.3": _claims_5_3}[number](measured, direction)
    return compare(
        table,
        f"Table {number}, {task.title}, {DIRECTIONS[direction]}: {task.measure}",
        measured,
        measure=task.measure,
        controls=[key for key in CONTROLS if key in measured],
        claims=claims,
        files={"runs": runs},
    )


def _claims_5_2(measured: Mapping[str, Measured], direction: str) -> list[Claim]:
    source = SOURCE.format(2, 2)
    plain, local, global_ = (measured[key] for key in ("cross-entropy", "direct-mixed", "direct-global"))
    best = best_on_dev(measured, [key for key in measured if key not in (*CONTROLS, "distilled")])
    claims = [
        examine("Search-aware and local beats cross-entropy, in a beam.", source, local, plain, decoders=BEAMS),
        examine(
            "Search-aware and global beats cross-entropy, in a beam.",
            source, global_, plain, decoders=("raw-beam", "beam"),
        ),
    ]  # fmt: skip
    if direction == "bi":
        claims.append(
            no_worse(
                "Where the input is seen whole, global is better than local by half a point at most.",
                source, local.test["beam"], global_.test["raw-beam"], said="local minus global: ",
            )
        )  # fmt: skip
    return [
        *claims,
        examine(
            "The best search-aware row beats longer cross-entropy, each with its best decoder.",
            OURS, best, measured["cross-entropy-longer"],
        ),
        examine(
            "The raw beam of plain cross-entropy beats its beam.", OURS, plain, plain, decoders=("raw-beam", "beam")
        ),
        examine(
            "A distilled start (trained for longer) helps the relaxed beam with global scores.",
            OURS, measured["distilled-global"], global_, decoders=("raw-beam", "raw-beam"),
        ),
    ]  # fmt: skip


def _claims_5_3(measured: Mapping[str, Measured], direction: str) -> list[Claim]:
    source = SOURCE.format(3, 3)
    local, global_, other = (measured[key] for key in ("normalized-local", "normalized-global", "direct-global"))
    plain, normalized = measured["cross-entropy"], measured["self-normalized"]
    raws = ("raw-beam", "raw-beam")
    claims = [
        examine("Self-normalising costs accuracy.", source, plain, normalized, decoders=BEAMS),
        examine("Local improves on its self-normalised start.", source, local, normalized, decoders=BEAMS),
        examine(
            "Global improves on its self-normalised start.", source, global_, normalized, decoders=("raw-beam", "beam")
        ),
    ]
    if direction == "uni":
        claims += [
            examine(
                "From a self-normalised start, global beats local.",
                source, global_, local, decoders=("raw-beam", "beam"),
            ),
            examine(
                "Global does better from a self-normalised start than from cross-entropy.",
                source, global_, other, decoders=raws,
            ),
        ]  # fmt: skip
    best = best_on_dev(measured, ["normalized-local", "normalized-global"])
    longer = measured["cross-entropy-longer"]
    return [
        *claims,
        examine(
            "The better of the two searches beats longer cross-entropy, each with its best decoder.", OURS, best, longer
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
    "labels right": {"cross-entropy": (21.08, 9.57, 21.96, 9.18), "self-normalized": (0.6, 0.29, 0.26, 0.08)},
    "BLEU": {"cross-entropy": (24.7, 115.4, 25.8, 129.1), "self-normalized": (0.65, 0.18, 0.7, 0.29)},
}
NAMES = {"cross-entropy": "cross-entropy", "self-normalized": "self-normalised"}
SAMPLE = 4000


def table_5_1(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Iterator[Outcome]:
    """Mean and variance of log Z, with and without self-normalisation, and what it costs."""
    for task in (supertags("pmb"), TRANSLATION):
        task.require()
    for task in (supertags("pmb"), TRANSLATION):
        yield _log_partitions(task, folder, seeds, scale, progress)


def _log_partitions(task: Task, folder: Path, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> Outcome:
    quality = {"labels right": QUALITY, "BLEU": BLEU}[task.measure]
    rows = [Row(key, name, {("beam", "test"): quality[key]}) for key, name in NAMES.items()]
    runs, table = folder / task.name, f"table-5.1-{task.name}"
    measured = run_task(task, family_of(task, scale), rows, table, runs, seeds=seeds, progress=progress)
    plain, normalized = measured["cross-entropy"], measured["self-normalized"]
    worse = examine("Self-normalising costs quality, slightly.", SECTION, plain, normalized, decoders=BEAMS)
    smaller = judge(
        "Self-normalising makes log Z much smaller: mean |log Z| on development data.", SOURCE.format(1, 1),
        *(_sizes(key, task, runs, seeds) for key in NAMES), said="cross-entropy minus self-normalised: ", scale=1.0,
    )  # fmt: skip
    raw = examine(
        "Unnormalised decoding makes a plain model worse.",
        "NAACL 2019, section 3.2" if task.measure == "BLEU" else OURS, plain, plain, decoders=("beam", "raw-beam"),
    )  # fmt: skip
    outcome = compare(
        table, f"Table 5.1, {task.title}: {task.measure} and log Z", measured, measure=task.measure,
        controls=["cross-entropy"], claims=[worse, smaller, raw], files={"runs": runs},
    )  # fmt: skip
    results = [
        result for key in NAMES for result in _results_of(key, measured[key], task, runs, seeds)
    ]  # fmt: skip
    summary = "; ".join(f"{result.system}, {result.measure}: {result.value:.2f}" for result in results)
    whole = replace(outcome.table, results=(*outcome.table.results, *results))
    return replace(outcome, table=whole, lesson=f"{outcome.lesson}\n{summary}")


def _results_of(key: str, one: Measured, task: Task, runs: Path, seeds: Sequence[int]) -> list[Result]:
    """Mean and variance on some of the training data and on the development data, means over the seeds."""
    published = LOG_PARTITIONS[task.measure][key]
    results = []
    for place, part in enumerate(("train", "dev")):
        found = [_summary(runs / f"seed-{seed}" / key, task, part) for seed in seeds]
        for offset, (name, unit) in enumerate((("mean", "nat"), ("variance", ""))):
            value = sum(getattr(summary, name) for summary in found) / len(found)
            results.append(
                Result(
                    one.row.name, f"{name} of log Z on {part}", value, one.signature,
                    published=published[2 * place + offset], unit=unit,
                )
            )  # fmt: skip
    return results


def _sizes(key: str, task: Task, runs: Path, seeds: Sequence[int]) -> list[Sums]:
    """|log Z| of the development data, a measurement for each seed."""
    found: list[Sums] = []
    for seed in seeds:
        run = load_run(runs / f"seed-{seed}" / key)
        encoded = run.encode(known_targets(run, task.load_data().dev))
        lengths = [len(one.target_ids) for one in encoded]
        found.append(
            Counts([part.abs().sum().item() for part in log_partitions_of(run, encoded).split(lengths)], lengths)
        )
    return found


def _summary(run_folder: Path, task: Task, part: str) -> LogPartitionSummary:
    run, data = load_run(run_folder), task.load_data()
    examples = {"train": data.train[:SAMPLE], "dev": data.dev}[part]
    return summarize_log_partitions(log_partitions_of(run, run.encode(known_targets(run, examples))))
