"""Table 6.1 and Figure 6.1: verdicts on made-up numbers, small runs of both recipes, one real row of each."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import rich.progress
import torch
from rich.console import Console

from seqwise.data import palindromes
from seqwise.evaluation.report import load_table, save_table
from seqwise.recipes import figure_6_1, table_6_1
from seqwise.recipes.figure_6_1 import METHODS, Curves
from seqwise.recipes.table_6_1 import ROWS, Cell, estimate, judge_by_seed, train_and_dev


@contextlib.contextmanager
def no_progress() -> Iterator[rich.progress.Progress]:
    with rich.progress.Progress(disable=True) as bars:
        yield bars


def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of three steps: the recipes as they are, but quick."""
    for module in (table_6_1, figure_6_1):
        whole = module.fit_enumerated
        monkeypatch.setattr(module, "fit_enumerated", lambda *given, whole=whole, **how: whole(*given, **how, steps=3))


# ------------------------------------------------------------------ tests over seeds


def test_students_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, standard error 1 / sqrt(3), t of two degrees of freedom 4.303.
    mean, low, high = estimate([1.0, 2.0, 3.0])
    assert mean == 2 and low == pytest.approx(2 - 4.303 / math.sqrt(3)) and high == pytest.approx(4 - low)
    assert estimate([1.5]) == (1.5, None, None)
    # Eight seeds, wider than their own t of 2.365 would give.
    _, low, _ = estimate([0.0, 1.0] * 4)
    assert low == pytest.approx(0.5 - 2.776 * math.sqrt(2 / 7) / math.sqrt(8))


def test_verdicts_are_paired_by_seed() -> None:
    # Seeds differ by far more than the two systems do.
    noisy = [1.0, 5.0, 9.0]
    better = judge_by_seed("c", "s", [value + 0.1 for value in noisy], noisy, said="x: ")
    assert better.verdict == "holds" and better.evidence.startswith("x: +0.100 [0.1") and "3 of 3" in better.evidence
    assert judge_by_seed("c", "s", noisy, [value + 0.1 for value in noisy]).verdict == "reversed"
    unclear = judge_by_seed("c", "s", [1.2, 5.0, 9.1], [1.0, 5.1, 9.0])
    assert unclear.verdict == "not seen" and "2 of 3 seeds above" in unclear.evidence
    assert judge_by_seed("c", "s", [9.0], [1.0]).verdict == "not seen"


def made_up(**by_measure: list[float]) -> list[Cell]:
    """All rows alike but for the 10k ones, where everything is nearer to 5."""
    names = {"LL": "LL", "PLL": "PLL", "raw": "MLM, raw", "local": "MLM, local"}
    return [
        Cell(row, 5.0, {
            names[key]: [5 + (value - 5) / (2 if row.size == 10_000 else 1) for value in values]
            for key, values in by_measure.items()
        })
        for row in ROWS
    ]  # fmt: skip


def test_claims_of_the_table() -> None:
    as_published = made_up(LL=[5.5, 5.6], PLL=[5.7, 5.8], raw=[9.9, 10.0], local=[6.6, 6.7])
    claims = table_6_1.examine(as_published)
    assert [claim.verdict for claim in claims] == ["holds"] * 8 + ["reversed"]
    assert "6 above 0" in claims[0].evidence and "5.9643 nats in closed form" in claims[-1].evidence
    turned = made_up(LL=[6.6, 6.7], PLL=[5.7, 5.8], raw=[5.5, 5.6], local=[5.6, 5.7])
    # Every comparison the other way round, and the gaps, now negative, grow towards 0.
    assert [claim.verdict for claim in table_6_1.examine(turned)] == ["reversed"] * 9


def curves(**by_method: list[float]) -> Curves:
    """Two sizes; at the larger, everything is half as far from 5."""
    keys = dict(zip(("kl", "both", "pll", "start"), METHODS, strict=True))
    found = {
        (keys[key], size): [5 + (value - 5) * part for value in values]
        for key, values in by_method.items()
        for size, part in ((100, 1.0), (1_000, 0.5))
    }
    return Curves("made up", 5.0, {"raw": [9.0, 9.1], "local": [8.0, 8.1]}, found)


def test_claims_of_the_figure() -> None:
    as_published = curves(kl=[5.02, 5.03], both=[5.2, 5.22], pll=[7.0, 7.1], start=[7.2, 7.3])
    assert [claim.verdict for claim in figure_6_1.examine(as_published)] == ["holds"] * 8
    turned = curves(kl=[9.2, 9.3], both=[8.0, 8.1], pll=[6.0, 6.1], start=[6.3, 6.4])
    assert [claim.verdict for claim in figure_6_1.examine(turned)] == ["reversed"] * 8
    far = replace(as_published, entropy=4.8)
    assert figure_6_1.examine(far)[-1].verdict == "reversed"


# ------------------------------------------------------------------ data


def test_a_fifth_of_the_sequences_decides_when_to_stop() -> None:
    train_N, dev_N = train_and_dev(palindromes(), 1_000, seed=0)
    assert torch.allclose(800 * train_N, (800 * train_N).round(), atol=1e-3) and abs(train_N.sum() - 1) < 1e-5
    assert torch.allclose(200 * dev_N, (200 * dev_N).round(), atol=1e-3) and abs(dev_N.sum() - 1) < 1e-5
    again, _ = train_and_dev(palindromes(), 1_000, seed=0)
    other, _ = train_and_dev(palindromes(), 1_000, seed=1)
    assert torch.equal(train_N, again) and not torch.equal(train_N, other)


def test_new_models_leave_the_global_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, other = table_6_1.new_model(5, seed=1), table_6_1.new_model(5, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# ------------------------------------------------------------------ small runs


def test_table_6_1_is_made_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_fits(monkeypatch)
    threads = torch.get_num_threads()
    (outcome,) = table_6_1.reproduce(tmp_path, seeds=[3, 4], scale="cpu", progress=no_progress)
    assert torch.get_num_threads() == threads
    save_table(outcome.table, tmp_path / "table-6.1.json")
    assert load_table(tmp_path / "table-6.1.json") == outcome.table
    found = {(result.system, result.measure): result for result in outcome.table.results}
    assert len(found) == len(ROWS) * 7
    assert found["p-1k", "entropy"].value == pytest.approx(5.9643, abs=5e-5)
    assert "5.32" in found["p-1k", "entropy"].note and found["p-1k", "entropy"].published == 5.32
    assert found["p-10k", "PLL"].published == 6.57 and found["p-10k", "PLL"].unit == "nat"
    assert found["h-1k", "LL"].signature.seeds == (3, 4)
    assert found["p-1k", "LL"].signature.data == found["p-10k", "LL"].signature.data
    assert found["p-1k", "LL"].signature.data != found["h-1k", "LL"].signature.data
    for result in found.values():
        assert result.measure == "entropy" or result.low < result.value < result.high
        if result.measure in table_6_1.NLL:  # no model has less than the entropy
            assert result.value > found[result.system, "entropy"].value
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(outcome.picture)
    text = console.export_text()
    assert "5.9643" in text and "(6.74)" in text and "…" not in text


def test_figure_6_1_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    short_fits(monkeypatch)
    monkeypatch.setattr(figure_6_1, "SIZES", (100, 200))
    monkeypatch.setattr(figure_6_1, "MLM_SIZE", 1_000)
    (outcome,) = figure_6_1.reproduce(tmp_path, seeds=[0, 1], scale="cpu", progress=no_progress)
    figure = outcome.files["figure"].read_bytes()
    assert figure.startswith(b"\x89PNG") and 10_000 < len(figure) < 300_000
    save_table(outcome.table, tmp_path / "figure-6.1.json")
    assert load_table(tmp_path / "figure-6.1.json") == outcome.table
    found = {(result.system, result.measure): result.value for result in outcome.table.results}
    assert len(found) == 2 * (1 + 2 + 4 * 2)
    assert all(value >= found[system, "entropy"] for (system, _), value in found.items())
    assert len(outcome.table.claims) == 2 * 8


def test_the_methods_start_where_they_should() -> None:
    mlm = table_6_1.new_model(5, seed=0)
    for method in METHODS:
        model, loss = figure_6_1._start(method, mlm, palindromes(), seed=9)
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), mlm.parameters(), strict=True))
        assert same == (method != "PLL") and model is not mlm
        assert callable(loss)


# ------------------------------------------------------------------ the real thing


def test_the_order_of_the_objectives_on_a_thousand_palindromes() -> None:
    found = table_6_1.measure(palindromes(), 1_000, seed=0)
    assert palindromes().entropy < found["LL"] < found["PLL"] < found["MLM, local"] < found["MLM, raw"]
    assert found["LL"] < 6.5 and found["PLL"] < 6.9


@pytest.mark.slow
def test_the_projection_needs_a_hundred_sequences() -> None:
    read, found = figure_6_1.measure(palindromes(), [100], seed=0)
    entropy = palindromes().entropy
    assert entropy < found["KL", 100] < entropy + 0.1
    assert found["KL", 100] < found["KL + PLL", 100] < found["PLL", 100]
    assert found["PLL", 100] > entropy + 1 and found[METHODS[3], 100] > entropy + 0.5
    assert entropy + 0.3 < read["local"] < read["raw"]
