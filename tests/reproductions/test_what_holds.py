"""The rule of the verdicts at its borders, the pooling against other arithmetic, and what is read from which file."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reproductions.corpora import readers as corpora_readers
from reproductions.report import Claim, Result, Table
from reproductions.values import values_of
from reproductions.verdicts import interval_result
from reproductions.what_holds import IDEAS, VERDICTS, Contrast, Idea, Side, detectable, examine, judge, pool
from reproductions.what_holds_page import CORPORA, draw, page
from seqwise.evaluation.metrics import Counts, Estimate, paired_bootstrap
from seqwise.evaluation.signature import sign

PAPER = 2.0


@pytest.mark.parametrize(
    "ours, equal_time, same_decoder, verdict",
    [
        # The sign, and half of the paper's effect.
        ((1.0, 0.1, 1.9), None, None, "confirmed"),
        ((0.99, 0.1, 1.88), None, None, "smaller"),
        ((0.99, 0.1, 2.1), None, None, "undecided"),
        ((3.0, 0.0, 6.0), None, None, "undecided"),
        ((3.0, 0.01, 6.0), None, None, "confirmed"),
        # The paper's effect is excluded, or not.
        ((0.5, -0.9, 1.99), None, None, "smaller"),
        ((0.5, -0.9, 2.0), None, None, "undecided"),
        ((-0.5, -1.0, 0.0), None, None, "smaller"),
        ((-0.5, -1.0, -0.01), None, None, "contradicted"),
        # What is left at equal time: less than half of ours, and all of it excluded.
        ((1.5, 0.5, 2.5), (0.75, 0.0, 1.4), None, "confirmed"),
        ((1.5, 0.5, 2.5), (0.74, 0.0, 1.49), None, "smaller"),
        ((1.5, 0.5, 2.5), (0.74, 0.0, 1.5), None, "confirmed"),
        # What is left in the same decoder goes first.
        ((1.5, 0.5, 2.5), (-1.0, -2.0, 0.0), (0.0, -0.5, 0.5), "decoder, not training"),
        ((0.8, 0.5, 1.1), None, (0.0, -0.5, 0.5), "decoder, not training"),
        ((0.8, -0.1, 1.7), None, (0.0, -0.5, 0.5), "smaller"),
        ((1.5, 0.5, 2.5), None, (0.0, -2.0, 2.0), "confirmed"),
        ((-1.5, -2.5, -0.5), None, (-3.0, -4.0, -2.0), "contradicted"),
    ],
)
def test_verdicts_at_their_borders(
    ours: tuple[float, float, float],
    equal_time: tuple[float, float, float] | None,
    same_decoder: tuple[float, float, float] | None,
    verdict: str,
) -> None:
    controls = {
        name: None if control is None else Estimate(*control)
        for name, control in (("equal_time", equal_time), ("same_decoder", same_decoder))
    }
    assert judge(PAPER, Estimate(*ours), **controls) == verdict
    assert verdict in VERDICTS


def test_the_pooled_interval_is_that_of_a_mean_of_independent_corpora() -> None:
    corpora = [Estimate(1.0, -1.0, 3.0), Estimate(4.0, 3.5, 4.5), Estimate(-2.0, -5.0, 1.0)]
    pooled = pool(corpora)
    errors = [(one.high - one.low) / (2 * 1.96) for one in corpora]
    half = 1.96 * math.sqrt(sum(error**2 for error in errors)) / 3
    assert (pooled.value, pooled.low, pooled.high) == pytest.approx((1.0, 1.0 - half, 1.0 + half))
    # The same by drawing each corpus again.
    generator = random.Random(0)
    means = sorted(
        statistics.fmean(generator.gauss(one.value, error) for one, error in zip(corpora, errors, strict=True))
        for _ in range(20_000)
    )
    assert (means[500], means[19_500]) == pytest.approx((pooled.low, pooled.high), abs=0.05)


def test_each_side_of_a_lopsided_interval_is_pooled_on_its_own() -> None:
    pooled = pool([Estimate(1.0, 0.0, 5.0), Estimate(1.0, 0.0, 1.0)])
    assert (pooled.low, pooled.high) == pytest.approx((1.0 - math.sqrt(2) / 2, 3.0))
    assert pool([Estimate(0.3, 0.1, 0.9)]) == Estimate(0.3, pytest.approx(0.1), pytest.approx(0.9))


def test_what_could_have_been_seen_is_seen_four_times_in_five() -> None:
    error = 0.7
    difference = Estimate(5.0, 5.0 - 1.96 * error, 5.0 + 1.96 * error)
    seen = 1 - statistics.NormalDist(detectable(difference), error).cdf(1.96 * error)
    assert seen == pytest.approx(0.8, abs=0.002)


# ---------------------------------------------------------------------------------------- from files

BEAM, RAW = "beam: accuracy", "raw beam: accuracy"
TEXT = "The new one beats the old one."


def right(seed: int, share: float) -> Counts:
    generator = random.Random(seed)
    return Counts([int(generator.random() < share) for _ in range(300)])


NEW = [right(seed, 0.8) for seed in (0, 1)]
OLD = [right(seed, 0.7) for seed in (2, 3)]
OLD_RAW = [right(seed, 0.79) for seed in (4, 5)]


def table(*, published: Sequence[float] = (84.0, 82.0), claims: Sequence[Claim] = ()) -> Table:
    """A new system in a raw beam, and an old one in both beams."""
    signature = sign("m", seeds=[0, 1], data="0" * 64)

    def row(system: str, measure: str, runs: Sequence[Counts], paper: float | None = None) -> Result:
        return interval_result(system, measure, runs, signature, published=paper)

    results = (
        row("new", RAW, NEW, published[0]),
        row("old", BEAM, OLD, published[1]),
        row("old", RAW, OLD_RAW),
        Result("new", "accuracy minus best control", 0.5, signature, low=-1.0, high=2.0, p_value=0.5),
    )
    return Table("t", results, claims=tuple(claims))


def idea(*names: str, claim: str = "") -> Idea:
    sides = Side(("new",), RAW), Side(("old",), BEAM)
    return Idea("An idea", "a paper", tuple(Contrast(name, *sides, claim) for name in names))


def test_numbers_are_those_of_a_paired_bootstrap_where_a_file_has_values() -> None:
    found = examine(idea("a"), {"a": {"cpu": table()}})
    assert found is not None
    for difference, old in ((found.ours, OLD), (found.same_decoder, OLD_RAW)):
        assert difference is not None
        expected = paired_bootstrap(NEW, old)
        assert (difference.value, difference.low, difference.high) == pytest.approx(
            tuple(100 * number for number in expected[:3])
        )
    assert found.equal_time == Estimate(0.5, -1.0, 2.0)
    assert found.published == pytest.approx(2.0) and found.seeds == 2


@pytest.mark.parametrize(
    "claim, unit, expected",
    [
        (Claim(TEXT, "s", "holds", "e", numbers=(0.012, -0.007, 0.017, 0.1)), "points", (1.2, -0.7, 1.7)),
        (Claim(TEXT, "s", "holds", "e", numbers=(1.2, -0.7, 1.7)), "nats", (1.2, -0.7, 1.7)),
        (Claim(TEXT, "s", "holds", "e", numbers=(8.0, 5.0, 10.0)), "% of the time", (87.5, 80.0, 90.0)),
    ],
)  # fmt: skip
def test_a_claim_is_read_in_its_unit(claim: Claim, unit: str, expected: tuple[float, float, float]) -> None:
    asked = replace(idea("a", claim=TEXT), unit=unit)
    found = examine(asked, {"a": {"cpu": table(claims=[claim])}})
    assert found is not None
    assert (found.ours.value, found.ours.low, found.ours.high) == pytest.approx(expected)


def test_of_several_controls_the_one_counts_that_leaves_the_least() -> None:
    claims = [Claim(f"It beats {name}.", "s", "holds", "e", numbers=(value, value - 1, value + 1, 0.1))
              for name, value in (("a", 0.12), ("b", -0.02), ("c", 0.03))]  # fmt: skip
    asked = idea("t", claim="It beats a.")
    contrast = replace(asked.contrasts[0], equal_time=tuple(claim.text for claim in claims))
    found = examine(replace(asked, contrasts=(contrast,)), {"t": {"cpu": table(claims=claims)}})
    assert found is not None and found.equal_time is not None
    assert found.ours.value == pytest.approx(12.0) and found.equal_time.value == pytest.approx(-2.0)


def test_converged_results_take_the_place_of_all_quick_ones() -> None:
    quick, converged = table(), table(published=(86.0, 82.0))
    tables = {"a": {"cpu": quick}, "b": {"converged": converged, "cpu": quick}}
    found = examine(idea("a", "b"), tables)
    assert found is not None and (found.tables, found.scale, found.published) == (("b",), "converged", 4.0)
    found = examine(idea("a", "b"), {**tables, "b": {"cpu": quick}})
    assert found is not None and (found.tables, found.scale) == (("a", "b"), "cpu")
    assert examine(idea("c"), tables) is None


def test_the_papers_row_is_the_best_of_its_own_development_data() -> None:
    signature = sign("m", seeds=[0], data="0" * 64)

    def rows(system: str, dev: float, test: float, ours: float) -> list[Result]:
        return [
            Result(system, "beam: right, dev", ours, signature, published=dev),
            Result(system, "beam: right", ours, signature, published=test, values=(values_of(Counts([ours / 100])),)),
        ]

    results = (*rows("soft, one", 90.0, 70.0, 50.0), *rows("soft, two", 80.0, 75.0, 60.0), *rows("hard", 70, 69, 40))
    sides = Side(("soft, *",), "beam: right"), Side(("hard",), "beam: right")
    asked = Idea("An idea", "a paper", (Contrast("a", *sides),), alone=True)
    found = examine(asked, {"a": {"cpu": Table("t", results)}})
    assert found is not None and found.published == pytest.approx(1.0) and found.ours.value == pytest.approx(20.0)


# ---------------------------------------------------------------------------------------- the page


def test_the_page_has_a_row_for_each_idea_with_results_or_without(tmp_path: Path) -> None:
    empty: Mapping[str, Mapping[str, Table]] = {name: {} for name in _names()}
    rows = [line for line in page(empty).splitlines() if "| no results |" in line]
    assert len(rows) == len(IDEAS) == 10


def _names() -> list[str]:
    from reproductions.result_files import NAMES

    return list(NAMES)


def test_a_plot_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("reproductions.what_holds_page.IDEAS", (idea("a"),))
    draw({"a": {"cpu": table()}}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.thorough
def test_sizes_of_training_data_are_those_of_the_corpora(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    tokens = {
        sum(len(one.target) for one in data.train)
        for data in (corpora_readers.named_entities(), *map(corpora_readers.supertags, ("pmb", "ewt", "erg")))
    }
    shown = [corpus.amounts[0].replace(",", "") for corpus in CORPORA]
    assert {int(amount.removesuffix(" tokens")) for amount in shown if amount.endswith(" tokens")} == tokens
    (pairs,) = (re.match(r"(\d+) pairs", amount) for amount in shown if "pairs" in amount)
    assert pairs is not None and int(pairs[1]) == len(corpora_readers.translation_text().train)
