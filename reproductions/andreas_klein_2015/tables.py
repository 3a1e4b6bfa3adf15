"""Andreas and Klein (2015), Tables 1 and 2: how much of the text must be normalised, and how strongly.

The published tables give BLEU, normalisation risk and the settings; the claims of the text about them are tested here.
See `reproductions.andreas_klein_2015.language_models` for data and systems.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reproductions import Setup
from reproductions.andreas_klein_2015.language_model import LanguageModelSettings
from reproductions.andreas_klein_2015.language_models import (
    PARTS,
    SIZES,
    Cell,
    Row,
    Translations,
    load_text,
    measure_rows,
    translations,
    tuned_on_dev,
)
from reproductions.andreas_klein_2015.reranking import Tuned, candidate_table
from reproductions.comparison import LEARNING_RATE, judge, no_worse, signature_of_seeds
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.tasks import require_sacrebleu
from reproductions.values import values_by_seed
from reproductions.verdicts import decide, interval_result
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import Signature

PLAIN = LanguageModelSettings()
CONTROLS = (
    Row("cross-entropy", "cross-entropy", PLAIN.replace(likelihood="normalized", alpha=0.0, fraction=1.0)),
    Row(
        "devlin",
        "normalised, α = 0.1 (Devlin)",
        PLAIN.replace(likelihood="normalized", alpha=0.1, fraction=1.0),
        {"BLEU": 20.1, "R": 2.7},
    ),
)
TABLE_1 = (
    Row("gamma-0", "γ = 0", PLAIN.replace(fraction=0.0)),
    Row("gamma-0.001", "γ = 0.001", PLAIN.replace(fraction=0.001)),
    Row("gamma-0.01", "γ = 0.01", PLAIN.replace(fraction=0.01)),
    Row("gamma-0.1", "γ = 0.1", PLAIN.replace(fraction=0.1)),
    Row("gamma-1", "γ = 1", PLAIN.replace(fraction=1.0)),
    *CONTROLS,
)
"""Normalised fraction, at alpha = 1."""
TABLE_2 = (
    Row("alpha-0.01", "α = 0.01", PLAIN.replace(alpha=0.01)),
    Row("alpha-0.1", "α = 0.1", PLAIN.replace(alpha=0.1)),
    replace(TABLE_1[3], name="α = 1"),
    Row("alpha-10", "α = 10", PLAIN.replace(alpha=10.0)),
    *CONTROLS,
)
"""Strength of the penalty, at gamma = 0.1; alpha = 1 shares its cells with Table 1."""


@dataclass(frozen=True)
class Measured:
    """Row with its measurements, one for each seed."""

    row: Row
    tuned: list[Tuned]  # weight and word bonus chosen on the development lists, and BLEU there
    bleu: list[Sums]  # on test
    risk: list[Sums]  # mean |log Z| on held-out text
    deviation: list[Sums]  # mean |log Z - mean| there
    loss: list[Sums]  # negative log-likelihood there, normalised
    seconds: list[float]  # of training
    learning_rate: float | None  # if chosen on the development lists
    place_of_rate: str  # among the rates tried: "lowest", "highest" or ""
    signature: Signature  # of all seeds


def measure(
    name: str, rows: Sequence[Row], cells: Mapping[str, Sequence[Cell]], lists: Translations
) -> tuple[dict[str, Measured], Sums]:
    """Tune every system on the development lists and measure it on test, and also the translator alone.

    The translator has a tuned word bonus too; otherwise, gains of longer outputs would be attributed to the language
    model.
    """

    def chosen(seconds: Iterable[Sequence[float]], choice: Tuned) -> Sums:
        ranked = candidate_table(lists.candidates["test"], seconds)
        places = ranked.best(choice.weight, word_bonus=choice.word_bonus)
        return Sums(lists.counts["test"].columns_NC[places], lists.counts["test"].combine)

    measured = {}
    for row in rows:
        runs = cells[row.key]
        tuned = [tuned_on_dev(lists, run.scores) for run in runs]
        measured[row.key] = Measured(
            row,
            tuned,
            [chosen(run.scores["test"], choice) for run, choice in zip(runs, tuned, strict=True)],
            [_mean_over_positions(run, lambda _, values: sum(map(abs, values))) for run in runs],
            [_deviation(run) for run in runs],
            [_mean_over_positions(run, lambda score, values: sum(values) - score) for run in runs],
            [run.train_seconds for run in runs],
            runs[0].learning_rate,
            runs[0].place_of_rate,
            signature_of_seeds([run.signature for run in runs], method=f"{name}: {row.name}"),
        )
    zeros = {part: [[0.0] * len(outputs) for outputs in lists.candidates[part]] for part in PARTS}
    return measured, chosen(zeros["test"], tuned_on_dev(lists, zeros))


def _deviation(run: Cell) -> Counts:
    mean = statistics.fmean(value for _, values in run.held_out for value in values)
    return _mean_over_positions(run, lambda _, values: sum(abs(value - mean) for value in values))


def _mean_over_positions(run: Cell, of: Callable[[float, list[float]], float]) -> Counts:
    """Return the mean over held-out positions, from the score of each sentence and log Z of its positions."""
    return Counts([of(*each) for each in run.held_out], [len(values) for _, values in run.held_out])


def about_as_fast(text: str, source: str, slow: Sequence[float], fast: Sequence[float], *, times: float) -> Claim:
    """Test that the fast system is ``times`` times as fast: the 95% interval of the ratio must lie within a quarter.

    The interval is Student's, of the logarithms of the ratios by seed; a quarter is a factor of 1.25 either way.
    """
    values, rule = (values_by_seed(slow), values_by_seed(fast)), f"about {times:g} times"
    verdict, numbers = decide(rule, *values)
    interval = "one seed, no interval" if len(numbers) == 1 else f"[{numbers[1]:.1f}, {numbers[2]:.1f}]"
    ratios = ", ".join(f"{ours / theirs:.1f}" for ours, theirs in zip(slow, fast, strict=True))
    evidence = (
        f"{statistics.fmean(slow):.0f} s against {statistics.fmean(fast):.0f} s: {numbers[0]:.1f} times "
        f"{interval}; by seed {ratios}"
    )
    return Claim(text, source, verdict, evidence, rule=rule, values=values, numbers=numbers)


def with_weight(claim: Claim, *rows: Measured) -> Claim:
    """Return a claim on translations, as not tested if a language model has weight 0, with which it ranks nothing."""
    unused = [(row.row.name, sum(tuned.weight == 0 for tuned in row.tuned), len(row.tuned)) for row in rows]
    zeros = ", ".join(f"{name} in {count} of {seeds} seeds" for name, count, seeds in unused if count)
    if not zeros:
        return claim
    return Claim(claim.text, claim.source, "not tested", f"weight 0: {zeros}; {claim.evidence}")


def table_1(setup: Setup) -> list[Outcome]:
    """Table 1: BLEU, risk and seconds by the fraction gamma of positions that are normalised, alpha = 1."""
    source = "Andreas and Klein (2015), Table 1 and section 5"
    measured, alone = _measured("andreas-klein-1", TABLE_1, setup)
    zero, tenth, full, devlin = (measured[key] for key in ("gamma-0", "gamma-0.1", "gamma-1", "devlin"))
    plain = [alone] * len(tenth.bleu)
    claims = [
        with_weight(no_worse("γ = 0.1 costs at most half a point of BLEU against γ = 1.", source,
                             tenth.bleu, full.bleu, prefix="γ = 0.1 minus γ = 1: "), tenth, full),
        with_weight(no_worse("γ = 0.1 costs at most half a point of BLEU against Devlin's objective (the paper: "
                             "0.1).", source, tenth.bleu, devlin.bleu, prefix="γ = 0.1 minus Devlin: "), tenth, devlin),
        about_as_fast("γ = 0.1 trains about ten times as fast as γ = 1.", source,
                      full.seconds, tenth.seconds, times=10),
        judge("Without any normaliser (γ = 0) the risk R is larger than with γ = 0.1.", source,
              zero.risk, tenth.risk, prefix="R of γ = 0 minus γ = 0.1: ", scale=1.0),
        with_weight(judge("γ = 0.1 translates better than γ = 0.", source,
                          tenth.bleu, zero.bleu, prefix="γ = 0.1 minus γ = 0: "), tenth, zero),
        judge("R is smaller with γ = 0.1 than under Devlin's objective.", source,
              devlin.risk, tenth.risk, prefix="R of Devlin minus γ = 0.1: ", scale=1.0),
        judge("log Z varies less about its mean with γ = 0.1 than under Devlin's objective.", "not in the paper",
              devlin.deviation, tenth.deviation, prefix="mean |log Z - mean|, Devlin minus γ = 0.1: ", scale=1.0),
        with_weight(judge("The language model (γ = 0.1) improves on the translator with a word bonus.",
                          "not in the paper", tenth.bleu, plain, prefix="γ = 0.1 minus none: "), tenth),
    ]  # fmt: skip
    return [_outcome("andreas-klein-1", "Table 1, by fraction normalised, α = 1", measured, alone, claims, setup)]


def table_2(setup: Setup) -> list[Outcome]:
    """Table 2: the same by the strength alpha of the penalty, gamma = 0.1."""
    source = "Andreas and Klein (2015), Table 2 and section 5"
    measured, alone = _measured("andreas-klein-2", TABLE_2, setup)
    weak, strong = measured["alpha-0.01"], measured["alpha-10"]
    middle = [measured[key] for key in ("alpha-0.1", "gamma-0.1")]
    best = max(middle, key=lambda row: statistics.fmean(tuned.value for tuned in row.tuned))
    name = best.row.name
    claims = [
        with_weight(judge("Too weak a penalty (α = 0.01) translates worse.", source,
                          best.bleu, weak.bleu, prefix=f"{name} minus α = 0.01: "), best, weak),
        with_weight(judge("Too strong a penalty (α = 10) translates worse.", source,
                          best.bleu, strong.bleu, prefix=f"{name} minus α = 10: "), best, strong),
        judge("With a small α the risk R grows large.", source,
              weak.risk, best.risk, prefix=f"R of α = 0.01 minus {name}: ", scale=1.0),
        judge("A strong penalty forces R closer to zero.", source,
              best.risk, strong.risk, prefix=f"R of {name} minus α = 10: ", scale=1.0),
        judge("log Z varies more with a small α, also about its mean.", "not in the paper",
              weak.deviation, best.deviation, prefix=f"mean |log Z - mean| of α = 0.01 minus {name}: ", scale=1.0),
    ]  # fmt: skip
    return [_outcome("andreas-klein-2", "Table 2, by strength, γ = 0.1", measured, alone, claims, setup)]


def _measured(name: str, rows: Sequence[Row], setup: Setup) -> tuple[dict[str, Measured], Sums]:
    # Before the translator is trained, so that anything missing is an error at once.
    require_sacrebleu()
    text = load_text(setup.scale)
    lists = translations(setup)
    cells = measure_rows(rows, text, lists, setup, size=SIZES[setup.scale])
    return measure(name, rows, cells, lists)


UNITS = {"BLEU": "%", "BLEU, dev": "%", "R": "nat", "mean |log Z - mean|": "nat", "training seconds": "s"}


def _outcome(
    name: str, title: str, measured: Mapping[str, Measured], alone: Sums, claims: Sequence[Claim], setup: Setup
) -> Outcome:
    first = next(iter(measured.values()))
    signature = replace(first.signature, method=f"{name}: no language model, word bonus", seeds=(0,))
    results = [interval_result("no language model, word bonus", "BLEU", alone, signature)]
    for row in measured.values():
        results += _results(row)
    return Outcome(name, Table(title, tuple(results), claims=tuple(claims)), {"runs": setup.folder})


def _results(row: Measured) -> list[Result]:
    def mean(measure: str, numbers: Sequence[float]) -> Result:
        values, unit = (values_by_seed(numbers),), UNITS.get(measure, "")
        return Result(row.row.name, measure, statistics.fmean(numbers), row.signature, unit=unit, values=values)

    def interval(measure: str, measured: Sequence[Sums]) -> Result:
        unit, published = UNITS[measure], row.row.published.get(measure)
        return interval_result(row.row.name, measure, measured, row.signature, unit=unit, published=published)

    loss = statistics.fmean(sums.value for sums in row.loss)
    results = [
        interval("BLEU", row.bleu),
        mean("BLEU, dev", [100 * tuned.value for tuned in row.tuned]),
        interval("R", row.risk),
        interval("mean |log Z - mean|", row.deviation),
        # Clipped, so that exp does not overflow.
        Result(row.row.name, "perplexity", math.exp(min(loss, 700.0)), row.signature, unit=""),
        mean("weight", [tuned.weight for tuned in row.tuned]),
        mean("training seconds", row.seconds),
    ]
    if row.learning_rate is not None:
        rate = row.learning_rate, row.signature
        results.append(Result(row.row.name, LEARNING_RATE, *rate, unit="", note=row.place_of_rate))
    return results
