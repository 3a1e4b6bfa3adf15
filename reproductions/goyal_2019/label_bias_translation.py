"""Tables 5.4 to 5.6: local and global search-aware training of a translator; n-grams, lengths, and BLEU by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from reproductions import Setup
from reproductions.comparison import Measured, best_on_dev, judge, measure_rows, rows_of
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
    raw_beam_hurts,
)
from reproductions.outcome import HEADINGS, Outcome
from reproductions.report import Claim, Result, Table
from reproductions.tasks import Task, bleu_of_pieces, make_table, texts_of, train_task, translation_at
from reproductions.verdicts import interval_result
from seqwise.data.subwords import join_pieces
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.translation import MAX_ORDER, bins_by_length, bleu

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


def table_5_4(setup: Setup) -> list[Outcome]:
    """Make Table 5.4: BLEU of systems that start from cross-entropy and from a self-normalised model."""
    task = translation_at(setup.scale)
    family, runs = family_of(task, setup.scale), setup.inside(runs_of(task, setup.scale))
    title, rows = f"Table 5.4, {task.title}: BLEU", rows_of(NAMES, PUBLISHED)
    return [make_table("table-5.4", title, task, family, rows, runs, controls=CONTROLS, claims=_claims_5_4)]


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

# On the papers' development data; their three systems are a self-normalised start and two that start from it.
PUBLISHED_5_5 = {
    "beam": (63.5, 35.7, 21.8, 13.7, 0.931), "local": (66.9, 39.4, 22.7, 14.0, 0.918),
    "global": (65.0, 39.1, 23.2, 14.7, 0.959),
}  # fmt: skip
# Also on development data, by source length in words.
PUBLISHED_5_6 = {
    "beam": (29.36, 25.73, 24.71, 24.50), "local": (32.35, 26.95, 25.39, 25.2), "global": (33.21, 28.08, 26.75, 26.41),
}  # fmt: skip
PUBLISHED_BINS = ("0-20", "20-30", "30-40", "40+")


def _edges(scale: str) -> tuple[int, ...]:
    """Return the bin edges of source lengths in words; the papers' edges need concatenations.

    Tatoeba's sentences have 6.5 words on average.
    """
    return (20, 30, 40) if scale == "converged" else (5, 8, 12)


def table_5_5(setup: Setup) -> list[Outcome]:
    """Make Table 5.5: n-gram overlap for n = 1 to 4, and length ratio, on sentences without concatenations."""
    measures = {f"{n}-gram overlap": partial(_overlap, n) for n in range(1, 5)} | {"length ratio": _ratio}
    published = {
        (kind, name): number for kind, row in PUBLISHED_5_5.items() for name, number in zip(measures, row, strict=True)
    }
    return [_by_measure("5.5", "n-grams and lengths", measures, published, setup)]


def table_5_6(setup: Setup) -> list[Outcome]:
    """Make Table 5.6: BLEU by source length; at the scale "converged", long sources are concatenations."""
    task, edges = translation_at(setup.scale), _edges(setup.scale)
    names = bins_by_length(_source_lengths(task, "test"), edges)
    measures = {f"BLEU, source {name}": partial(_bleu_of_bin, task, edges, name) for name in names}
    published = {
        (kind, f"BLEU, source {name}"): number
        for kind, row in PUBLISHED_5_6.items()
        for name, number in zip(PUBLISHED_BINS, row, strict=True)
    }
    return [_by_measure("5.6", "BLEU by source length in words", measures, published, setup)]


SHOWN = {
    "beam": ("self-normalized", "beam"),
    "local": ("normalized-local", "beam"),
    "global": ("normalized-global", "raw-beam"),
    "longer": ("cross-entropy-longer", "beam"),
}
"""The papers' three systems, which start from a self-normalised one, and longer cross-entropy; key and decoder."""


def _by_measure(
    number: str,
    title: str,
    measures: Mapping[str, Callable[[str, Outputs], Sums]],
    published: Mapping[tuple[str, str], float],
    setup: Setup,
) -> Outcome:
    """Make a table of the same systems by several measures."""
    task = translation_at(setup.scale)
    name, runs = f"table-{number}", setup.inside(runs_of(task, setup.scale))
    rows = rows_of(NAMES, PUBLISHED)
    cells = train_task(task, family_of(task, setup.scale), rows, name, runs)
    results: list[Result] = []
    claims: list[Claim] = []
    for measure, count in measures.items():
        dev, test = (partial(count, part) for part in ("dev", "test"))
        measured = measure_rows(name, rows, cells, setup.seeds, dev=dev, test=test)
        for kind, (key, decoder) in SHOWN.items():
            row = measured[key]
            unit = "" if count is _ratio else "%"
            for ending, part in ((", dev", row.dev), ("", row.test)):
                results.append(
                    interval_result(
                        f"{row.row.name} ({HEADINGS[decoder]})", f"{measure}{ending}", part[decoder], row.signature,
                        unit=unit, published=published.get((kind, measure)) if ending else None,
                    )
                )  # fmt: skip
        claims.append(_global_and_local(measure, number, measured))
    table = Table(f"Table {number}, {task.title}: {title}", tuple(results), claims=tuple(claims))
    return Outcome(name, table, {"runs": runs.folder})


# The papers observe longer outputs, fewer matching unigrams and bigrams, and more matching trigrams and 4-grams.
WORSE = ("1-gram overlap", "2-gram overlap")


def _global_and_local(measure: str, number: str, found: Mapping[str, Measured]) -> Claim:
    """Test the papers' observation on global against local scores, both from a self-normalised start."""
    global_, local = found["normalized-global"].test["raw-beam"], found["normalized-local"].test["beam"]
    source, scale = SOURCE.format(number[-1], number[-1]), 1.0 if measure == "length ratio" else 100.0
    if measure in WORSE:
        text = f"Global has less {measure} than local."
        return judge(text, source, local, global_, prefix="local minus global: ", scale=scale)
    text = f"Global has more than local: {measure}."
    return judge(text, source, global_, local, prefix="global minus local: ", scale=scale)


def _overlap(n: int, part: str, outputs: Outputs) -> Sums:
    """Return the clipped n-gram precision: p_n of BLEU, without smoothing or brevity penalty."""
    columns_NC = bleu(*_sentences(part, outputs)).columns_NC
    return Counts(columns_NC[:, 1 + n], columns_NC[:, 1 + MAX_ORDER + n])


def _ratio(part: str, outputs: Outputs) -> Sums:
    """Return the length of the outputs divided by that of the closest references, in tokens of sacrebleu."""
    columns_NC = bleu(*_sentences(part, outputs)).columns_NC
    return Counts(columns_NC[:, 0], columns_NC[:, 1])


def _sentences(part: str, outputs: Outputs) -> tuple[list[str], list[list[str]]]:
    """Return the texts of sentences, which come before concatenations, and their references."""
    references = corpora.translation_references(part)
    return texts_of(outputs[: len(references)]), references


def _bleu_of_bin(task: Task, edges: Sequence[int], name: str, part: str, outputs: Outputs) -> Sums:
    places = bins_by_length(_source_lengths(task, part), edges)[name]
    references = corpora.long_translation_references(part)
    return bleu_of_pieces([outputs[place] for place in places], [references[place] for place in places])


def _source_lengths(task: Task, part: str) -> list[int]:
    """Return the lengths of sources in words, not pieces."""
    data = task.load_data()
    examples = {"dev": data.dev, "test": data.test}[part]
    return [len(join_pieces(example.source).split()) for example in examples]
