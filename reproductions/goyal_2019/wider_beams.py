"""Footnotes 3 and 4 of NAACL 2019: with beams of 10 (tagging) and of 5 (translation) the results are similar.

The systems are those of Tables 5.2 to 5.4, trained and searched there with narrower beams. They are searched again, but
not trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reproductions import Setup
from reproductions.cells import CellJob, fingerprint_of, run_cells
from reproductions.comparison import Measured, judge, no_worse, rows_of
from reproductions.goyal_2018.exposure_bias import DIRECTIONS
from reproductions.goyal_2019.label_bias import family_of, runs_of
from reproductions.goyal_2019.label_bias_tables import decoder_of
from reproductions.outcome import HEADINGS, Outcome
from reproductions.report import Claim, Result, Table
from reproductions.systems import Data, best_outputs
from reproductions.tasks import Task, run_task, supertags, translation_at
from reproductions.verdicts import difference_result, interval_result
from reproductions.workers import Report
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.signature import sha256_of_examples
from seqwise.runs.loading import load_run

NAMES = {
    "cross-entropy": "cross-entropy",
    "direct-mixed": "relaxed beam, local",
    "direct-global": "relaxed beam, global",
    "self-normalized": "self-normalised",
    "normalized-local": "self-normalised, then local",
    "normalized-global": "self-normalised, then global",
}
"""Systems of the papers, by key."""


@dataclass(frozen=True)
class Searched:
    """System decoded by both beams, with a measurement of the test data for each seed."""

    measured: Measured
    decoder: str
    narrow: list[Sums]
    wide: list[Sums]


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Search the supertaggers of the PMB with a beam of 10, and the translators with one of 5.

    Source: Goyal et al. (NAACL 2019), footnotes 3 and 4. Not implemented: training with these beams.
    """
    translation, tagging = translation_at(setup.scale), supertags("pmb")
    tables: dict[str, tuple[str, Task, int, int, str]] = {
        **{
            f"wider-beams-pmb-{key}": (f"{tagging.title}, {name}", tagging, 10, 3, key)
            for key, name in DIRECTIONS.items()
        },
        "wider-beams-translation": (translation.title, translation, 5, 4, "bi"),
    }
    chosen = setup.chosen(tables)
    for _, task, *_ in chosen.values():
        task.require()
    for name, (title, task, wide, footnote, direction) in chosen.items():
        yield _table(name, title, task, wide, footnote, setup, direction)


def _table(name: str, title: str, task: Task, wide: int, footnote: int, setup: Setup, direction: str) -> Outcome:
    runs = setup.inside(runs_of(task, setup.scale, direction))
    measured = run_task(task, family_of(task, setup.scale, direction), rows_of(NAMES), name, runs)
    systems = search(measured, task, wide, setup)
    narrow = load_run(measured["cross-entropy"].runs[0]).settings.beam_size
    source = f"NAACL 2019, footnote {footnote}"
    title = f"{source}, {title}: {task.measure} in a beam of {wide}"
    results = [result for system in systems.values() for result in _results(system, task.measure, narrow, wide)]
    table = Table(title, tuple(results), claims=tuple(examine(systems, source, wide)))
    return Outcome(name, table, {"runs": runs.folder})


def search(measured: Mapping[str, Measured], task: Task, wide: int, setup: Setup) -> dict[str, Searched]:
    """Search the runs of each system with a wider beam, or read the outputs back."""
    data = sha256_of_examples(task.load_data().test)
    cells = [
        CellJob(
            f"{run}: beam of {wide}",
            run / f"{decoder_of(key)}-{wide}.json",
            partial(_fingerprint, run, data, decoder_of(key), wide),
            partial(_search_run, run, decoder_of(key), wide, task.load_data),
        )
        for key, row in measured.items()
        for run in row.runs
    ]
    records = iter(run_cells(cells, progress=setup.progress))

    def count(row: Measured) -> list[Sums]:
        outputs = (next(records)["outputs"] for _ in row.runs)
        return [task.count("test", [tuple(tokens) for tokens in each]) for each in outputs]

    return {key: Searched(row, decoder_of(key), row.test[decoder_of(key)], count(row)) for key, row in measured.items()}


def _fingerprint(run: Path, data: str, decoder: str, wide: int) -> str:
    return fingerprint_of((run / "model" / "manifest.json").read_text("utf-8"), data, decoder, str(wide))


def _search_run(folder: Path, decoder: str, wide: int, load_data: Callable[[], Data], report: Report) -> dict[str, Any]:
    """Return the best outputs of the test data."""
    return {"outputs": best_outputs(load_run(folder), load_data().test, decoder, beam_size=wide)}


def examine(systems: Mapping[str, Searched], source: str, wide: int) -> list[Claim]:
    """Test that results are similar: no system loses much, and the findings of the tables hold again."""

    def beats(text: str, better: str, worse: str) -> Claim:
        first, second = systems[better], systems[worse]
        return judge(text, source, first.wide, second.wide, prefix=f"{NAMES[better]} minus {NAMES[worse]}: ")

    return [
        *(
            no_worse(
                f"{NAMES[key]}: a beam of {wide} is worse by half a point at most.", source, system.wide, system.narrow,
                prefix="wider minus narrower: ",
            )
            for key, system in systems.items()
        ),
        beats(f"With a beam of {wide} as well, local beats cross-entropy.", "direct-mixed", "cross-entropy"),
        beats(
            f"With a beam of {wide} as well, global beats its self-normalised start.",
            "normalized-global", "self-normalized",
        ),
        beats(
            f"With a beam of {wide} as well, global beats local from a self-normalised start.",
            "normalized-global", "normalized-local",
        ),
    ]  # fmt: skip


def _results(system: Searched, measure: str, narrow: int, wide: int) -> list[Result]:
    name, signature, note = system.measured.row.name, system.measured.signature, HEADINGS[system.decoder]
    return [
        interval_result(name, f"beam of {narrow}: {measure}", system.narrow, signature, note=note),
        interval_result(name, f"beam of {wide}: {measure}", system.wide, signature, note=note),
        difference_result(name, f"{measure}, wider minus narrower", system.wide, system.narrow, signature),
    ]
