"""The benchmark of growth: its exponents, what it varies, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import scaling
from seqwise.search import SoftTopK, beam_search


def test_the_exponent_is_that_of_the_larger_half() -> None:
    values = (1, 2, 4, 8, 16, 32)
    assert scaling.exponent(values, [7.0, 7.0, 7.0, *(3 * value**1.5 for value in values[3:])]) == pytest.approx(1.5)


@pytest.mark.parametrize("curve", scaling.CURVES, ids=lambda curve: f"{curve.varied}, {curve.model}, {curve.search}")
def test_searches_have_the_size_of_their_curve(curve: scaling.Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(*arguments: object, **options: object) -> object:
        beam = beam_search(*arguments, **options)  # type: ignore[arg-type]
        seen.append((*beam.scores_BK.shape, len(beam.tokens)))
        return beam

    monkeypatch.setattr(scaling, "beam_search", watched)
    size = curve.sizes()[1]
    system = scaling.system_of(curve, size, 0)
    loss = system.loss()
    assert seen == [(size.B, min(size.k, size.V), size.T)]
    assert loss.requires_grad is (curve.search != scaling.HARD)


def test_scores_that_lie_apart_are_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else both curves would be one."""
    size, kept = scaling.Size(k=8, V=4_000), {}
    for search in (scaling.RELAXED, scaling.CERTIFIED):
        (curve,) = [each for each in scaling.CURVES if (each.varied, each.search) == ("k", search)]
        selections = []
        call = SoftTopK.__call__

        def watched(selector: SoftTopK, *arguments: object, call=call, selections=selections) -> object:  # type: ignore[no-untyped-def]
            found = call(selector, *arguments)  # type: ignore[arg-type]
            selections.append(found[0])
            return found

        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(SoftTopK, "__call__", watched)
            scaling.system_of(curve, size, 0).loss()
        parts = [make() for each in selections for _, make in getattr(each, "parts", ())]
        kept[search] = sum(part.token_ids_BX is not None for part in parts) / max(1, len(parts))
    assert kept[scaling.CERTIFIED] > 0.8 > 0.2 > kept[scaling.RELAXED], kept


def test_the_table_has_a_line_for_each_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scaling.main(["--only", "B", "--points", "3", "--rounds", "1", "--output", str(tmp_path / "found.json")])
    assert [row["search"] for row in found["rows"]] == [scaling.HARD, scaling.RELAXED]
    lines = scaling.table(found).splitlines()
    assert len(lines) == 2 + len(found["rows"]) + 1 and lines[0] == "B, milliseconds (k = 4, V = 1,000, T = 16)"
