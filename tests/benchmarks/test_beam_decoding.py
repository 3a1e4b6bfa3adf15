"""The benchmark of beam search: all systems write the same outputs, and its floor counts the products that are made."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as benchmarks
from benchmarks import beam_decoding
from seqwise.hugging_face import step_model
from seqwise.models import attention, products

TINY = ["--shapes", "tiny Marian", "tiny T5", "--rounds", "1"]


def no_engine(*_: Any) -> AbstractContextManager[None]:
    return nullcontext()


def test_both_write_the_same_outputs_and_the_engine_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_decoding, "own_process", no_engine)
    result = beam_decoding.main([*TINY, "--output", str(tmp_path / "found.json")])
    assert [row["shape"] for row in result["rows"]] == TINY[1:3]
    assert all(row["same_tokens"]["generate"] == 1 for row in result["rows"])
    assert all(row["against_generate"] > 0 and row["against_engine"] is None for row in result["rows"])
    assert result["engine"] is None and all("`generate`" in ratio.label for ratio in beam_decoding.ratios(result))
    assert "ctranslate2" not in beam_decoding.table(result)
    marian, t5 = (set(row["seconds_by_round"]) for row in result["rows"])
    assert t5 == {"generate", "seqwise"}
    if torch.backends.quantized.engine != "none":
        assert marian == t5 | {beam_decoding.INT8} and result["rows"][0]["int8_against_float32"] > 0


def test_without_int8_layers_of_torch_their_row_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_decoding, "own_process", no_engine)
    monkeypatch.setitem(sys.modules, "torch.ao.quantization", None)
    (row,) = beam_decoding.main([*TINY[:2], *TINY[3:], "--output", str(tmp_path / "found.json")])["rows"]
    assert set(row["seconds_by_round"]) == {"generate", "seqwise"} and row["int8_against_float32"] is None


@pytest.mark.thorough
def test_the_engine_itself(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2==4.8.5")
    result = beam_decoding.main([*TINY, "--output", str(tmp_path / "found.json")])
    marian, t5 = result["rows"]
    assert marian["same_tokens"][beam_decoding.ENGINE] == t5["same_tokens"][beam_decoding.ENGINE] == 1
    assert beam_decoding.ENGINE_INT8 in marian["seconds_by_round"] and marian["against_engine"] > 0
    assert result["engine"].startswith("ctranslate2 4")


def test_equal_outputs_are_counted_in_any_order() -> None:
    ours = [[(1, 2), (3, 4)], [(5, 6), (7, 8)]]
    assert beam_decoding.same(ours, [[(3, 4), (1, 2)], [(5, 6), (8, 7)]]) == 0.75


def test_every_ratio_has_its_own_label_and_the_target_of_its_shape() -> None:
    row = {"against_generate": 1.5, "against_engine": 0.5, "int8_against_engine": 0.75}
    result = {"rows": [{"shape": name} | row for name in beam_decoding.ALL]}
    found = beam_decoding.ratios(result)
    assert len({ratio.label for ratio in found}) == len(found) == 3 * len(beam_decoding.ALL)
    for shape, *targets in zip(beam_decoding.ALL.values(), found[::3], found[1::3], found[2::3], strict=True):
        assert [ratio.least for ratio in targets] == [shape.least, shape.least_of_engine, None]


def test_the_shape_of_a_gpu_is_known() -> None:
    assert benchmarks.ON_A_DEVICE["beam_decoding"][1] in beam_decoding.OTHERS


@pytest.mark.parametrize("name", ["tiny Marian", "tiny T5"])
def test_the_floor_counts_the_products_of_a_step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By the counter of torch, without those of its own attention, a small part here that only some releases count."""
    monkeypatch.setattr(attention, "MOST_KEYS", 0)
    monkeypatch.setattr(products, "WORTHWHILE", 2**40)
    shape = replace(beam_decoding.ALL[name], layers=4, hidden=64)
    adapted = step_model(beam_decoding.model_of(shape, 0))
    sources_BS = torch.randint(3, 400, (shape.batch, shape.source_length))
    counts, expected = [], []
    for steps in (6, 7):
        longer = replace(shape, steps=steps)
        with FlopCounterMode(display=False) as counted:
            beam_decoding.by_seqwise(adapted, sources_BS, longer)
        by_operation = counted.get_flop_counts()["Global"]
        counts.append(sum(flops for operation, flops in by_operation.items() if "attention" not in str(operation)))
        tokens = shape.batch * shape.num_outputs * steps
        expected.append(tokens * beam_decoding.operations_of_a_token(longer))
    assert counts[1] - counts[0] == pytest.approx(expected[1] - expected[0], rel=0.03)
