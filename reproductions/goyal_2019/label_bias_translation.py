"""Tables 5.4 to 5.6: local and global search-aware training of a translator; n-grams, lengths, and BLEU by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import rich.box
import rich.table

from reproductions.comparison import Measured, best_on_dev, compare, judge
from reproductions.corpora import readers as corpora
from reproductions.goyal_2019.label_bias import family_of, runs_of
from reproductions.goyal_2019.label_bias_tables import (
    CONTROLS,
    DISTILLED_START_HELPS,
    NORMALIZED,
    OURS,
    PLAIN,
    RAW_BEAM,
    SEARCHED,
    SOURCE,
    best_beats_longer,
    examined,
    published_rows,
    raw_beam_hurts,
)
from reproductions.outcome import HEADINGS, Outcome
from reproductions.tasks import TRANSLATION, Task, bleu_of_pieces, run_task, texts_of
from reproductions.workers import ProgressFactory
from seqwise.data.subwords import join_pieces
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.report import Claim, Result, Table
from seqwise.evaluation.translation import bins_by_length, bleu_length_ratio, ngram_overlap, subset
from seqwise.evaluation.verdicts import interval_result

Outputs = Sequence[tuple[str, ...]]
PUBLISHED = {
    "cross-entropy": {"greedy": 26.24, "beam": 27.62, "raw-beam": 4.30}, "direct-mixed": {"beam": 29.28},
    "direct-global": {"raw-beam": 26.24}, "self-normalized": {"greedy": 25.42, "beam": 26.63},
    "normalized-local": {"beam": 27.71}, "normalized-global": {"raw-beam": 29.27},
}  # fmt: skip
NAMES = {
    **PLAIN,
    **SEARCHED,
    **NORMALIZED,
    "normalized-local": "self-normalised, then local",
    "normalized-global": "self-normalised, then global",
    "distilled-global": "distilled, then global",
}
LOCAL, GLOBAL = ("direct-mixed", "normalized-local"), ("direct-global", "normalized-global", "distilled-global")


def table_5_4(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> list[Outcome]:
    """BLEU, from cross-entropy and from a self-normalised model."""
    measured = _measure(TRANSLATION, "table-5.4", folder, seeds, scale, progress)
    outcome = compare(
        "table-5.4", f"Table 5.4, {TRANSLATION.title}: BLEU", measured, measure=TRANSLATION.measure,
        controls=CONTROLS, claims=_claims_5_4(measured), files={"runs": runs_of(TRANSLATION, folder)},
    )  # fmt: skip
    return [outcome]


def _measure(
    task: Task, table: str, folder: Path, seeds: Sequence[int], scale: str, progress: ProgressFactory
) -> dict[str, Measured]:
    task.require()
    rows, systems = published_rows(NAMES, PUBLISHED), family_of(TRANSLATION, scale)
    return run_task(task, systems, rows, table, runs_of(task, folder), seeds=seeds, progress=progress)


def _claims_5_4(measured: Mapping[str, Measured]) -> list[Claim]:
    best = best_on_dev(measured, [*LOCAL, *GLOBAL])
    return [
        *examined(
            measured, SOURCE.format(4, 4),
            ("Search-aware and local beats cross-entropy, in a beam.", "direct-mixed", "cross-entropy"),
            ("From cross-entropy, local beats global.", "direct-mixed", "direct-global"),
            (
                "Global does better from a self-normalised start than from cross-entropy.",
                "normalized-global", "direct-global",
            ),
            ("From a self-normalised start, global beats local.", "normalized-global", "normalized-local"),
            ("Global, self-normalised first, beats cross-entropy in a beam.", "normalized-global", "cross-entropy"),
            ("Global from cross-entropy does worse than that cross-entropy.", "cross-entropy", "direct-global"),
            ("Local improves on its self-normalised start.", "normalized-local", "self-normalized"),
            ("Global improves on its self-normalised start.", "normalized-global", "self-normalized"),
            ("Self-normalising costs BLEU.", "cross-entropy", "self-normalized"),
        ),
        raw_beam_hurts(measured["cross-entropy"], RAW_BEAM),
        best_beats_longer(measured, best),
        *examined(measured, OURS, DISTILLED_START_HELPS),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- n-grams and lengths

# On the papers' development data; their three systems are a self-normalised start, and what follows it.
PUBLISHED_5_5 = {
    "beam": (63.5, 35.7, 21.8, 13.7, 0.931), "local": (66.9, 39.4, 22.7, 14.0, 0.918),
    "global": (65.0, 39.1, 23.2, 14.7, 0.959),
}  # fmt: skip
EDGES = (5, 8, 12)
"""Of source lengths in words: Tatoeba's sentences have 6.5 on average; the papers cut at 20, 30 and 40."""


def table_5_5(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> list[Outcome]:
    """n-gram overlap for n = 1 to 4, and the ratio of lengths."""
    measures = {f"{n}-gram overlap": partial(_overlap, n) for n in range(1, 5)} | {"length ratio": _ratio}
    published = {
        (kind, name): number for kind, row in PUBLISHED_5_5.items() for name, number in zip(measures, row, strict=True)
    }
    return [_by_measure("5.5", "n-grams and lengths", measures, published, folder, seeds, scale, progress)]


def table_5_6(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> list[Outcome]:
    """BLEU by the length of the source."""
    TRANSLATION.require()
    names = bins_by_length(_source_lengths("test"), EDGES)
    measures = {f"BLEU, source {name}": partial(_bleu_of_bin, name) for name in names}
    return [_by_measure("5.6", "BLEU by source length in words", measures, {}, folder, seeds, scale, progress)]


def _by_measure(
    number: str,
    title: str,
    measures: Mapping[str, Callable[[str, Outputs], Sums]],
    published: Mapping[tuple[str, str], float],
    folder: Path,
    seeds: Sequence[int],
    scale: str,
    progress: ProgressFactory,
) -> Outcome:
    """The papers' three systems, which start from a self-normalised one, and longer cross-entropy."""
    name = f"table-{number}"
    shown = {
        "beam": ("self-normalized", "beam"),
        "local": ("normalized-local", "beam"),
        "global": ("normalized-global", "raw-beam"),
        "longer": ("cross-entropy-longer", "beam"),
    }
    results: list[Result] = []
    claims: list[Claim] = []
    for measure, count in measures.items():
        task = replace(TRANSLATION, count=count, measure=measure)
        found = _measure(task, name, folder, seeds, scale, progress)
        for kind, (key, decoder) in shown.items():
            one = found[key]
            unit = "" if count is _ratio else "%"
            for part, measured in (("dev", one.dev), ("test", one.test)):
                results.append(
                    interval_result(
                        f"{one.row.name} ({HEADINGS[decoder]})", measure if part == "test" else f"{measure}, dev",
                        measured[decoder], one.signature, unit=unit,
                        published=published.get((kind, measure)) if part == "dev" else None,
                    )
                )  # fmt: skip
        claims.append(_global_and_local(measure, number, found))
    table = Table(f"Table {number}, {TRANSLATION.title}: {title}", tuple(results), claims=tuple(claims))
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    return Outcome(name, table, _grid(table), lesson, {"runs": runs_of(TRANSLATION, folder)})


# What the papers see: longer outputs, fewer right words and pairs of words, more right triples and quadruples.
WORSE = ("1-gram overlap", "2-gram overlap")


def _global_and_local(measure: str, number: str, found: Mapping[str, Measured]) -> Claim:
    """The papers' observation on global against local scores, both from a self-normalised start."""
    global_, local = found["normalized-global"].test["raw-beam"], found["normalized-local"].test["beam"]
    source, scale = SOURCE.format(number[-1], number[-1]), 1.0 if measure == "length ratio" else 100.0
    if measure in WORSE:
        text = f"Global has less {measure} than local."
        return judge(text, source, local, global_, said="local minus global: ", scale=scale)
    text = f"Global has more than local: {measure}."
    return judge(text, source, global_, local, said="global minus local: ", scale=scale)


def _grid(table: Table) -> rich.table.Table:
    """Systems down, measures across; in brackets the paper's numbers."""
    grid = rich.table.Table(title=table.title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False)
    grid.caption = "on test; in brackets, where there are any, the papers' numbers, which are of their development data"
    grid.caption_justify = "left"
    found = {(result.system, result.measure): result for result in table.results}
    measures = list(dict.fromkeys(measure for _, measure in found if not measure.endswith(", dev")))
    grid.add_column("system", overflow="fold")
    for measure in measures:
        grid.add_column(measure, justify="right")
    for system in dict.fromkeys(system for system, _ in found):
        grid.add_row(system, *(_text(found[system, name], found[system, f"{name}, dev"]) for name in measures))
    return grid


def _text(test: Result, dev: Result) -> str:
    form = ".1f" if test.unit == "%" else ".3f"
    ours = f"{test.value:{form}}"
    return ours if dev.published is None else f"{ours}\n({dev.published:{form}})"


def _overlap(n: int, part: str, outputs: Outputs) -> Sums:
    return ngram_overlap(texts_of(outputs), corpora.translation_references(part), n)


def _ratio(part: str, outputs: Outputs) -> Sums:
    return bleu_length_ratio(texts_of(outputs), corpora.translation_references(part))


def _bleu_of_bin(name: str, part: str, outputs: Outputs) -> Sums:
    counted = bleu_of_pieces(outputs, corpora.translation_references(part))
    return subset(counted, bins_by_length(_source_lengths(part), EDGES)[name])


def _source_lengths(part: str) -> list[int]:
    """In words, not pieces."""
    data = corpora.translation()
    examples = {"dev": data.dev, "test": data.test}[part]
    return [len(join_pieces(example.source).split()) for example in examples]
