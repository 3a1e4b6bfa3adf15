"""The pages made of results/*.json: every file is on one, what is missing is named, and theorems are no claims."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from reproductions.make_pages import pages
from reproductions.report import Claim, Result, Table, load_table, save_table
from reproductions.result_files import CHAPTERS, NAMES, Chapter, file_stem, load_tables
from reproductions.result_pages import chapter_page
from reproductions.result_settings import settings_line
from reproductions.verdicts import difference_result, interval_result
from seqwise.evaluation.metrics import Counts
from seqwise.evaluation.signature import sign

ROOT = Path(__file__).parents[2]
MOST_BYTES = 60_000  # of a page
SIGNATURE = sign("m", seeds=[0, 1], data="0" * 64)
CHAPTER = Chapter("page", "A chapter", {"Table 4.1": ("table-4.1", "table-4.1-uni"), "Table 4.2": ("table-4.2",)})


def table(*claims: Claim) -> Table:
    """Two systems, one of them with the paper's number."""
    right, wrong = Counts([1, 1, 0, 1] * 20), Counts([1, 0, 0, 0] * 20)
    results = (
        interval_result("control", "beam: right", wrong, SIGNATURE, published=82.4, note="chosen on dev"),
        Result("control", "beam: right, dev", 12.3, SIGNATURE),
        interval_result("control", "raw beam: right", right, SIGNATURE),
        difference_result("better", "right minus best control", right, wrong, SIGNATURE),
    )
    return Table("Table 4.1, a task: right", results, claims=claims)


def shown(**by_name: Mapping[str, Table]) -> str:
    named = {name.replace("_", "-").replace("4-", "4."): by_scale for name, by_scale in by_name.items()}
    return chapter_page(CHAPTER, {name: named.get(name, {}) for name in NAMES})


@pytest.mark.thorough
def test_the_pages_are_those_of_the_committed_results() -> None:
    made = pages(ROOT / "results")
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"make figures writes {name}"
    assert {path.name for path in (ROOT / "docs" / "results").iterdir()} == {f"{one.page}.md" for one in CHAPTERS}
    generated = {name: text for name, text in made.items() if name.startswith(("results", "what-holds"))}
    assert {name: size for name, text in generated.items() if (size := len(text.encode())) > MOST_BYTES} == {}
    for path in (ROOT / "results").glob("table-*.json"):
        assert any(f"`{path.stem}`" in text for text in made.values()), path.name


def test_results_that_no_page_shows_are_refused(tmp_path: Path) -> None:
    for name in ("table-3.2", "table-3.2-converged", "reliability"):
        shutil.copy(ROOT / "results" / "table-3.2.json", tmp_path / f"{name}.json")
    tables = load_tables(tmp_path)
    assert list(tables["table-3.2"]) == ["converged", "cpu"] and not tables["table-3.1-ner"]
    shutil.copy(ROOT / "results" / "table-3.2.json", tmp_path / "table-9.9.json")
    with pytest.raises(SystemExit, match=r"no page shows table-9\.9"):
        load_tables(tmp_path)


def test_names_of_scales_are_told_from_names_of_tables() -> None:
    stems = [file_stem(name, scale) for name in NAMES for scale in ("converged", "gpu", "cpu")]
    assert len(set(stems)) == len(stems)


def test_missing_files_are_named() -> None:
    page = shown(table_4_1={"cpu": table()})
    assert "- `results/table-4.1-uni.json`: `python -m reproductions table-4.1 --results results` makes it." in page
    assert "`results/table-4.1.json`:" not in page and "## Table 4.2" not in page


def test_a_table_has_its_settings_and_the_numbers_of_test() -> None:
    page = shown(table_4_1={"cpu": table()})
    assert settings_line("table-4.1", "cpu") in page and "k = 3" in page
    assert "| control | **25.0 ± 10.0** (82.4) | 75.0 |" in page and "12.3" not in page
    assert re.search(r"\| better \|  \|  \| \+50\.0 \[[\d.]+, [\d.]+\]\* \|", page)


def test_each_scale_has_a_table_and_settings_of_its_own() -> None:
    page = shown(table_4_1={"converged": table(), "cpu": table()})
    assert "(`table-4.1`, 2 seeds" in page and "(`table-4.1-converged`, 2 seeds" in page
    assert page.index("`table-4.1`, 2") < page.index("`table-4.1-converged`, 2")
    assert settings_line("table-4.1", "converged") in page


def test_claims_of_several_files_share_a_row() -> None:
    claims = [
        Claim("This helps, in BLEU.", "the paper", "holds", "a 2.0 against b 1.0: +1.2 [0.7, 1.7], p < 0.001"),
        Claim(
            "This helps, in word accuracy.", "the paper", "not seen", "a 2.0 against b 1.0: +0.2 [-0.7, 1.1], p = 0.8"
        ),
    ]
    page = shown(table_4_1={"cpu": table(claims[0])}, table_4_1_uni={"cpu": table(claims[1])})
    assert "| This helps, in quality. | **holds**: +1.2 [0.7, 1.7] | not seen: +0.2 [-0.7, 1.1] |" in page


@pytest.mark.parametrize(
    "claim, shown_as",
    [
        (Claim("A beats b.", "s", "reversed", "a 1.0 against b 2.0: -1.0 [-1.5, -0.5], p < 0.001, 0 of 3 seeds above"),
         "**reversed**: -1.0 [-1.5, -0.5]"),
        (Claim("The best row beats b.", "s", "holds", "a 2.0 against b 1.0: +1.0 [0.5, 1.5], p < 0.001"),
         "**holds**: a 2.0 against b 1.0: +1.0 [0.5, 1.5]"),
        (Claim("A beats b.", "s", "holds", "d = 1: +1.0 [0.5, 1.5]; d = 2: +2.0 [1.0, 3.0]"),
         "**holds**: d = 1: +1.0 [0.5, 1.5]; d = 2: +2.0 [1.0, 3.0]"),
        (Claim("The set is convex.", "s", "holds", "below 0: at 401 points", kind="theorem"), "below 0: at 401 points"),
    ],
)  # fmt: skip
def test_evidence_is_as_short_as_the_claim_allows(claim: Claim, shown_as: str) -> None:
    assert f"| {claim.text} | {shown_as} |" in shown(table_4_1={"cpu": table(claim)})


def test_verdicts_that_holms_correction_takes_back_hold_alone() -> None:
    tests = (("A", "holds", 0.01), ("B", "reversed", 0.04), ("C", "holds", 0.03), ("D", "not seen", 0.6))
    claims = [
        Claim(
            f"{name} takes at most half.", "s", verdict, f"a 2.0 against b 1.0: +1.0 [0.5, 1.5], p = {p_value:.3f}",
            rule="better", numbers=(1.0, 0.5, 1.5, p_value),
        )
        for name, verdict, p_value in tests
    ]  # fmt: skip
    # Four tests: .01 becomes .04, and .03 becomes .09, as does the larger .04.
    margin = replace(claims[1], text="E is no worse.", rule="no worse by 0.5")
    page = shown(table_4_1={"cpu": table(*claims, margin)})
    said = "takes at most half. |"
    assert f"| A {said} **holds**: +1.0" in page and f"| B {said} reversed alone: +1.0" in page
    assert f"| C {said} holds alone: +1.0" in page and f"| D {said} not seen: +1.0" in page
    assert "| E is no worse. | **reversed**: +1.0" in page
    assert f"| B {said} **reversed**: +1.0" in shown(table_4_1={"cpu": table(claims[1])})


def test_of_a_claim_about_several_tests_the_largest_p_value_counts() -> None:
    """It holds where all of them do; corrected for the other claim, the second test is no longer significant."""
    evidence = "d = 1: +1.0 [0.5, 1.5], p = 0.001; d = 2: +1.0 [0.1, 1.9], p = 0.040"
    numbers = (1.0, 0.5, 1.5, 0.001, 1.0, 0.1, 1.9, 0.04)
    claim = Claim("It helps everywhere.", "s", "holds", evidence, rule="better everywhere", numbers=numbers)
    page = shown(table_4_1={"cpu": table(claim, replace(claim, text="So does it there."))})
    assert "| It helps everywhere. | holds alone: d = 1" in page


def test_theorems_and_figures_are_not_counted_as_claims() -> None:
    claims = [Claim(f"The {kind}.", "section 3", "holds", "seen", kind=kind) for kind in ("claim", "theorem", "figure")]
    claimed, _, checked = shown(table_4_1={"cpu": table(*claims)}).partition("| theorem or figure, checked |")
    assert "The claim." in claimed and "The theorem." not in claimed
    assert "| The theorem. | seen |" in checked and "| The figure. | seen |" in checked and "The claim." not in checked


@pytest.mark.parametrize(
    ("machines", "mixed"), [("A, 2 cores; B, 2 cores", True), ("A, 1 core; A, 2 cores", False), ("A, 2 cores", False)]
)
def test_seconds_of_several_machines_are_said_to_be_so(machines: str, mixed: bool) -> None:
    signature = replace(SIGNATURE, machine=machines)
    whole = table()
    whole = replace(whole, results=tuple(replace(one, signature=signature) for one in whole.results))
    said = f"Seconds are from several machines, which differ in speed: {machines}."
    assert (said in shown(table_4_1={"cpu": whole})) == mixed


def test_what_is_shown_can_be_read_back(tmp_path: Path) -> None:
    save_table(table(), tmp_path / "table-4.1.json")
    assert load_tables(tmp_path)["table-4.1"] == {"cpu": load_table(tmp_path / "table-4.1.json")}


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_read_from_the_code(name: str) -> None:
    line = settings_line(name, "cpu")
    assert line == "" or line.endswith(".")
    # Tables of trained systems have one.
    assert line or name in ("figure-1", "figure-3.1", "figure-6.1", "raw-scores")
