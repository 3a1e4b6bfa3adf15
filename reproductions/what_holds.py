"""Verdicts on ten ideas of the papers, from the paper's effect and ours, pooled over corpora, and from controls.

"Ours" is the paper's own comparison. Two controls stand beside it: one trained for about as long, each system with its
best decoder on development data ("equal time"); and the paper's baseline in the decoder of the new system ("same
decoder"). The verdict is `judge`; the pooled numbers are `pool`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from reproductions.report import Claim, Result, Table
from reproductions.result_files import SCALES, Tables
from reproductions.values import sums_of
from seqwise.evaluation.metrics import Estimate, paired_bootstrap

VERDICTS = ("confirmed", "smaller", "decoder, not training", "contradicted", "undecided")
"""Verdicts on an idea."""

HALF_95 = 1.96  # standard errors in half of a 95% interval
DETECTED = 1.96 + 0.84  # standard errors of an effect that a two-sided test at 5% detects with power 0.8


@dataclass(frozen=True)
class Side:
    """Side of a comparison."""

    # Names of rows, with * as a wildcard. Of several, the best by this measure on development data counts; if it was
    # not measured there, their mean.
    systems: tuple[str, ...]
    measure: str  # as in the file


@dataclass(frozen=True)
class Contrast:
    """Comparison of an idea on one corpus: first minus second."""

    table: str  # the name of the results
    # As in the paper's comparison.
    first: Side
    second: Side
    claim: str = ""  # text of the claim that tests this comparison; "" for none
    # Texts of the claims against controls, of which the smallest effect counts; without any, the result "minus best
    # control" of the first system counts.
    equal_time: tuple[str, ...] = ()


@dataclass(frozen=True)
class Idea:
    """Idea of a paper."""

    title: str  # in a few words
    source: str  # such as a table of a paper
    contrasts: tuple[Contrast, ...]  # one for each corpus
    unit: str = "points"  # "points", "nats", or "% of the time" for numbers that are ratios of seconds
    published: float | None = None  # the paper's effect, if the files do not have its numbers
    alone: bool = False  # whether there is no control


@dataclass(frozen=True)
class Evidence:
    """Evidence on an idea."""

    idea: Idea
    published: float  # the paper's effect, a mean over corpora
    # Pooled over corpora; None without such a control.
    ours: Estimate
    equal_time: Estimate | None
    same_decoder: Estimate | None
    tables: tuple[str, ...]  # names of the results
    scale: str  # "converged", "gpu" or "cpu"
    seeds: int  # of the table with the fewest
    verdict: str  # one of `VERDICTS`

    @property
    def strongest(self) -> Estimate | None:
        """Return the control that leaves the least of the effect."""
        controls = [control for control in (self.equal_time, self.same_decoder) if control is not None]
        return min(controls, key=lambda control: control.value, default=None)


# ---------------------------------------------------------------------------------------- the rule


def judge(
    published: float, ours: Estimate, *, equal_time: Estimate | None = None, same_decoder: Estimate | None = None
) -> str:
    """Return the verdict on an idea.

    - "contradicted": our interval lies below 0.
    - "decoder, not training": ours lies above 0, but it disappears in the same decoder.
    - "confirmed": ours lies above 0, is at least half of the paper's effect, and does not disappear at equal time.
    - "smaller": the paper's effect lies above our interval, or ours disappears at equal time.
    - "undecided": none of these. Our interval contains the paper's effect.

    An effect disappears under a control if less than half of it is left and the interval excludes the whole effect.
    """
    if ours.high < 0:
        return "contradicted"
    if ours.low > 0 and _disappears(ours, same_decoder):
        return "decoder, not training"
    if ours.low > 0 and ours.value >= published / 2:
        return "smaller" if _disappears(ours, equal_time) else "confirmed"
    return "smaller" if ours.high < published else "undecided"


def _disappears(ours: Estimate, control: Estimate | None) -> bool:
    return control is not None and control.value < ours.value / 2 and control.high < ours.value


def detectable(effect: Estimate) -> float:
    """Return the smallest true effect that a test of this precision would detect with power 0.8."""
    return DETECTED * (effect.high - effect.low) / (2 * HALF_95)


def pool(differences: Sequence[Estimate]) -> Estimate:
    """Return the mean over corpora, each with the same weight, with the interval of independent corpora.

    The distances of the ends from the mean are combined in quadrature, for each side separately.
    """
    count = len(differences)
    value = statistics.fmean(each.value for each in differences)
    below = math.hypot(*(each.value - each.low for each in differences)) / count
    above = math.hypot(*(each.high - each.value for each in differences)) / count
    return Estimate(value, value - below, value + above)


# ---------------------------------------------------------------------------------------- reading the files


def examine(idea: Idea, tables: Tables) -> Evidence | None:
    """Return the evidence on an idea at the best scale of its corpora; None without results."""
    scales = [scale for contrast in idea.contrasts for scale in tables.get(contrast.table, {})]
    if not scales:
        return None
    scale = min(scales, key=SCALES.index)
    made = [
        (contrast, tables[contrast.table][scale])
        for contrast in idea.contrasts
        if scale in tables.get(contrast.table, {})
    ]
    ours = pool([_ours(contrast, table, idea.unit) for contrast, table in made])
    equal_time = None if idea.alone else pool([_at_equal_time(contrast, table, idea.unit) for contrast, table in made])
    changed = any(contrast.first.measure != contrast.second.measure for contrast, _ in made) and idea.unit == "points"
    same_decoder = pool([_in_same_decoder(contrast, table, idea.unit) for contrast, table in made]) if changed else None
    published = idea.published
    if published is None:
        # If the corpora at this scale are not the paper's, other scales have the paper's numbers.
        others = [(each, table) for each in idea.contrasts for table in tables.get(each.table, {}).values()]
        published = statistics.fmean(_all_published(made) or _all_published(others))
    return Evidence(
        idea,
        published,
        ours,
        equal_time,
        same_decoder,
        tuple(contrast.table for contrast, _ in made),
        scale,
        min(max(len(result.signature.seeds) for result in table.results) for _, table in made),
        judge(published, ours, equal_time=equal_time, same_decoder=same_decoder),
    )


def _all_published(made: Sequence[tuple[Contrast, Table]]) -> list[float]:
    effects = (_published(contrast, table) for contrast, table in made)
    return [effect for effect in effects if effect is not None]


def _ours(contrast: Contrast, table: Table, unit: str) -> Estimate:
    if contrast.claim:
        return _of_claim(_claim(table, contrast.claim), unit)
    return _between(table, contrast.first, contrast.second)


def _at_equal_time(contrast: Contrast, table: Table, unit: str) -> Estimate:
    if contrast.equal_time:
        against_each = (_of_claim(_claim(table, text), unit) for text in contrast.equal_time)
        return min(against_each, key=lambda difference: difference.value)
    first = _chosen(table.results, contrast.first)[0]
    (against,) = (
        each for each in table.results if each.system == first.system and each.measure.endswith(" minus best control")
    )
    return _with_interval(against)


def _in_same_decoder(contrast: Contrast, table: Table, unit: str) -> Estimate:
    if contrast.first.measure == contrast.second.measure:
        return _ours(contrast, table, unit)
    return _between(table, contrast.first, Side(contrast.second.systems, contrast.first.measure))


def _claim(table: Table, text: str) -> Claim:
    (found,) = (claim for claim in table.claims if claim.text == text)
    return found


def _of_claim(claim: Claim, unit: str) -> Estimate:
    """Return the numbers of a claim in a unit."""
    numbers = [(100 if unit == "points" else 1) * number for number in claim.numbers[:3]]
    if unit == "% of the time":
        numbers = [100 - 100 / times for times in numbers]
    return Estimate(*numbers)


def _between(table: Table, first: Side, second: Side) -> Estimate:
    """Return first minus second, by a paired bootstrap of their values."""
    (one,), (other,) = _chosen(table.results, first), _chosen(table.results, second)
    value, low, high, _ = paired_bootstrap(sums_of(one.values[0]), sums_of(other.values[0]))
    return Estimate(100 * value, 100 * low, 100 * high)


def _with_interval(result: Result) -> Estimate:
    if result.low is None or result.high is None:
        raise ValueError(f"{result.system!r}, {result.measure!r} has no interval")
    return Estimate(result.value, result.low, result.high)


def _chosen(results: Sequence[Result], side: Side) -> list[Result]:
    """Return the row of a side that is best on development data, or all its rows if that was not measured."""

    def rows(measure: str) -> list[Result]:
        return [
            result
            for result in results
            if result.measure == measure and any(fnmatchcase(result.system, name) for name in side.systems)
        ]

    dev, test = rows(f"{side.measure}, dev"), rows(side.measure)
    if not dev:
        return test
    best = max(dev, key=lambda result: result.value).system
    return [result for result in test if result.system == best]


def _published(contrast: Contrast, table: Table) -> float | None:
    """Return the paper's effect, with rows chosen on its development data; None without such numbers."""
    papers = [replace(result, value=result.published) for result in table.results if result.published is not None]

    def of(side: Side) -> list[Result]:
        # A paper may not say which state of a chain it reports; its number is then given with one of ours.
        quantity = side.measure.partition(",")[0]
        same = [row for row in papers if row.measure.startswith(quantity)]
        beside = [row for row in same if any(fnmatchcase(row.system, name) for name in side.systems)]
        return _chosen(papers, side) or beside

    first, second = of(contrast.first), of(contrast.second)
    if not first or not second:
        return None
    return statistics.fmean(row.value for row in first) - statistics.fmean(row.value for row in second)


# ---------------------------------------------------------------------------------------- the ideas

_FEEDINGS = tuple(f"alpha-soft {kind}" for kind in ("greedy, *", "sample, *"))
_UNI = tuple((corpus, f"{corpus}-uni") for corpus in ("pmb", "ewt", "erg"))
_LABELS = "{}: accuracy"
_MEASURED = {"table-3.1-ner": "greedy: macro F1", "table-3.1-translation": "greedy: BLEU"}
_SAMPLED = {"translation": "BLEU", "g2p": "word accuracy"}

IDEAS = (
    Idea(
        "Scheduled sampling beats cross-entropy (greedy search)",
        "thesis, Table 3.1",
        tuple(
            Contrast(
                table, Side(("scheduled sampling, *",), measure), Side(("cross-entropy",), measure),
                "Scheduled sampling improves on cross-entropy.",
                ("Hard scheduled sampling, with its best decoder, beats longer cross-entropy.",),
            )
            for table, measure in _MEASURED.items()
        ),
    ),
    Idea(
        "Relaxed scheduled sampling beats the hard one (greedy search)",
        "thesis, Table 3.1",
        tuple(
            Contrast(
                table, Side(_FEEDINGS, measure), Side(("scheduled sampling, *",), measure),
                "Relaxed scheduled sampling improves on the hard one.",
                ("Relaxed scheduled sampling, with its best decoder, beats longer cross-entropy.",),
            )
            for table, measure in _MEASURED.items()
        ),
    ),
    Idea(
        "The direct loss through the relaxed beam beats cross-entropy",
        "AAAI 2018, Tables 1 and 2",
        (
            *(
                Contrast(
                    table,
                    Side(("direct loss, annealed",), _LABELS.format("beam")),
                    Side(("cross-entropy",), _LABELS.format("beam")),
                    "The direct loss improves a beam's result over cross-entropy's.",
                )
                for table in ("table-4.1", "table-4.1-uni")
            ),
            Contrast(
                "table-4.2", Side(("direct loss, annealed",), "beam: macro F1"),
                Side(("cross-entropy",), "greedy: macro F1"),
                "The direct loss with a beam improves on cross-entropy searched greedily.",
            ),
        ),
    ),
    Idea(
        "Left to right, search-aware local training beats cross-entropy",
        "NAACL 2019, Table 2",
        tuple(
            Contrast(
                f"table-5.2-{name}", Side(("relaxed beam, local",), _LABELS.format("beam")),
                Side(("cross-entropy",), _LABELS.format("beam")),
                "Search-aware and local beats cross-entropy, in a beam.",
            )
            for _, name in _UNI
        ),
    ),
    Idea(
        "Left to right, self-normalised first, global beats local",
        "NAACL 2019, Table 3",
        tuple(
            Contrast(
                f"table-5.3-{name}", Side(("relaxed beam, global",), _LABELS.format("raw beam")),
                Side(("relaxed beam, local",), _LABELS.format("beam")),
                "From a self-normalised start, global beats local.",
            )
            for _, name in _UNI
        ),
    ),
    Idea(
        "In translation, self-normalised first, global beats cross-entropy",
        "NAACL 2019, Table 4",
        (
            Contrast(
                "table-5.4", Side(("self-normalised, then global",), "raw beam: BLEU"),
                Side(("cross-entropy",), "beam: BLEU"),
                "Global, self-normalised first, beats cross-entropy in a beam.",
            ),
        ),
    ),
    Idea(
        "γ = 0.1 saves nine tenths of the training time of γ = 1",
        "Andreas and Klein (2015), Table 1",
        (
            Contrast(
                "andreas-klein-1", Side(("γ = 0.1",), "training seconds"), Side(("γ = 1",), "training seconds"),
                "γ = 0.1 trains about ten times as fast as γ = 1.",
            ),
        ),
        "% of the time",
        published=90.0,
        alone=True,
    ),
    Idea(
        "Pseudolikelihood models data better than an MLM (E_raw)",
        "thesis, Table 6.1",
        (
            Contrast(
                "table-6.1", Side(("*",), "MLM, raw"), Side(("*",), "PLL"),
                "Pseudolikelihood models the data better than an MLM, read as E_raw.",
                ("So it does where the MLM is read as E_local.",),
            ),
            Contrast(
                "table-6.1-phonemes", Side(("*",), "MLM, raw"), Side(("*",), "PLL"),
                "Phonemes: pseudolikelihood models the data better than an MLM, read as E_raw.",
                ("Phonemes: so it does where the MLM is read as E_local.",),
            ),
        ),
        "nats",
    ),
    Idea(
        "Metropolis-Hastings beats degenerate Gibbs (all temperatures)",
        "thesis, Table 6.2",
        tuple(
            Contrast(
                f"table-6.2-{task}", Side(("MH, local, T = *",), f"{measure}, samples"),
                Side(("Gibbs, T = *",), f"{measure}, samples"),
                f"MH beats degenerate Gibbs in {measure} (all temperatures).",
                (f"MH beats degenerate Gibbs in {measure} at T = 0.5.",),
            )
            for task, measure in _SAMPLED.items()
        ),
    ),
    Idea(
        "Annealed Metropolis-Hastings (raw) beats Mask-Predict",
        "thesis, Table 6.6",
        tuple(
            Contrast(
                f"table-6.6-{task}", Side(("MH, raw, annealed by *",), f"{measure}, last state"),
                Side(("Mask-Predict",), f"{measure}, last state"),
                "MH (raw) beats Mask-Predict with one length, by last states.",
                (
                    "MH (raw) beats Mask-Predict with one length, by last states.",
                    "MH (raw) beats Mask-Predict with as many passes, by last states.",
                    "MH (raw) beats many drawn Mask-Predicts, by states of the lowest energy.",
                ),
            )
            for task, measure in {**_SAMPLED, "translation-ro": "BLEU"}.items()
        ),
    ),
)  # fmt: skip
"""Rows of the page."""
