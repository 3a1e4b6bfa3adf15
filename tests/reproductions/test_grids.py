"""Grids of numbers: whole at the widths that terminals have, and the same cells in the terminal as on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reproducing import printed
from reproductions.grids import markdown_grid, numbers_of
from reproductions.report import Result, Table, load_table
from seqwise.evaluation.signature import Signature

RESULTS = Path(__file__).parents[2] / "results"
SIGNATURE = Signature("hinge, k = 3", (1, 2), "1a2b" * 16, "0.1.0", "2.13", "3.11", "CPU, 2 cores", "2026-01-31", "abc")


def table_of(num_measures: int) -> Table:
    results = [
        Result(system, f"measure {m}", 100 * m + 1 / 3, SIGNATURE, low=100 * m, high=100 * m + 0.8, published=50.4 + m)
        for system in ("greedy [bold]", "relaxed beam search with a rather long name, alpha = 10")
        for m in range(num_measures)
    ]
    return Table("Table 1 [of 2]", tuple(results))


@pytest.mark.parametrize("num_measures", [1, 5, 11])
def test_every_number_is_whole_and_no_line_is_too_wide(num_measures: int) -> None:
    for width in range(60, 122):
        text = printed(table_of(num_measures), width=width)
        assert max(map(len, text.splitlines())) <= width
        for m in range(num_measures):
            assert len(re.findall(rf"(?<!\d){100 * m + 1 / 3:.1f} ± 0\.4 \({50.4 + m:g}\)", text)) == 2
            assert f"measure {m}" in text
        assert "greedy [bold]" in text and "Table 1 [of 2]" in text and "…" not in text


def test_short_names_are_never_broken() -> None:
    table = Table("t", tuple(Result("one-system", f"measure {m}", m, SIGNATURE) for m in range(11)))
    for width in range(30, 122):
        lines = printed(table, width=width).splitlines()
        assert all(line.startswith("one-system ") for line in lines if line.startswith("one"))


def test_measures_stand_side_by_side_where_they_fit() -> None:
    def headings(num_measures: int, width: int) -> list[int]:
        lines = printed(table_of(num_measures), width=width).splitlines()
        return [line.count("measure") for line in lines if re.match(r" +measure", line)]

    assert headings(2, 80) == [2] and headings(11, 80) == [2, 2, 2, 2, 2, 1]
    assert headings(11, 1000) == [11]


@pytest.mark.parametrize("name", ["stress", "table-4.2", "table-6.4-translation", "figure-6.2-g2p", "figure-1"])
def test_the_terminal_has_the_cells_of_the_page(name: str) -> None:
    table = load_table(RESULTS / f"{name}.json")
    text = printed(table)
    titles, rows = numbers_of(table)
    assert max(map(len, text.splitlines())) <= 80 and "**" not in text
    for row in rows:
        for cell in row[1:]:
            assert cell.replace("**", "") in text
    page = markdown_grid(titles, rows)
    assert page.count("\n") == len(rows) + 2 and ("**" in page) == any("**" in cell for row in rows for cell in row)


def test_what_was_chosen_is_marked_and_further_measures_stay_in_the_file() -> None:
    table = load_table(RESULTS / "stress.json")
    titles, rows = numbers_of(table)
    assert titles[:3] == ["word accuracy, %", "greedy", "beam"]
    assert all(sum("**" in cell for cell in row) == 1 for row in rows)
    assert any("vowels right" in result.measure for result in table.results)
    assert not any("vowels right" in title or "dev" in title for title in titles)


def test_bars_in_names_do_not_end_a_cell_of_a_page() -> None:
    assert markdown_grid(("a|b", "c"), [("1", "|x|")]) == "| a\\|b | c |\n|---|---|\n| 1 | \\|x\\| |\n"
