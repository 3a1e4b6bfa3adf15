"""The Triton kernel that scans scores, on a GPU or in its interpreter: its numbers, and a relaxed beam on them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (pip install triton)")

# Triton decides when it is imported whether it interprets, so each test has a process of its own.
PRELUDE = """
import math, torch
from seqwise.search.large_vocabulary.triton import scan_rows
torch.manual_seed(0)
place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""

NUMBERS = """
for rows, vocabulary in ((3, 64), (2, 63), (1, 1), (4, 4096), (3, 4097), (2, 10_000), (0, 100)):
    scores_NV = 5 * torch.randn(rows, vocabulary, device=place)
    maxima_NM, log_partition_N = scan_rows(scores_NV)
    full = vocabulary // 64
    assert maxima_NM.shape == (rows, full)
    assert torch.equal(maxima_NM, scores_NV[:, : 64 * full].unflatten(1, (full, 64)).amax(2) if full else maxima_NM)
    for row, found in zip(scores_NV.double().tolist(), log_partition_N.tolist()):
        assert abs(math.log(math.fsum(map(math.exp, row))) - found) < 1e-5
wide_NV = torch.randn(3, 300, device=place)
assert torch.equal(scan_rows(wide_NV[:, :200])[1], scan_rows(wide_NV[:, :200].clone())[1])  # rows that lie apart
huge_NV = torch.full((2, 5000), -torch.inf, device=place)
huge_NV[0, 4999] = 3e38
maxima_NM, log_partition_N = scan_rows(huge_NV)
assert log_partition_N.tolist() == [huge_NV[0, 4999].item(), -math.inf] and (maxima_NM[1] == -torch.inf).all()
broken_NV = torch.zeros(2, 5000, device=place)
broken_NV[1, 70] = torch.nan
maxima_NM, log_partition_N = scan_rows(broken_NV)
assert maxima_NM.isnan().nonzero().tolist() == [[1, 1]] and log_partition_N.isnan().tolist() == [False, True]
"""

# The search as it is on a GPU beside the search as it is on a CPU, both in float32: losses and gradients.
BEAMS = """
import sys
sys.path.insert(0, sys.argv[1])
from seqwise.search import HardTopK, beam_search, backtrace, global_, local
from seqwise.search.large_vocabulary import blocks, triton
from seqwise.search.selectors import (summed)
from search.test_kernels import a_batch, a_model, gradients, loss_of

calls, real = [], triton.scan_rows
triton.scan_rows = lambda scores_NV: calls.append(scores_NV.shape) or real(scores_NV)
for name in ("tagger", "encoder-decoder", "transformer"):
    for kind, score, scale, tolerance in (("direct", local, 14.0, 1e-7), ("hinge", global_, 8.0, 1e-7),
                                          ("hinge", local, 8.0, -1.0)):
        scale = scale if name == "tagger" else scale / 4  # they end too soon else, and nothing has a gradient
        model, form = a_model(name, scale=scale, vocabulary=4200).to(place), summed(tolerance=tolerance)
        found = []
        for fits in (lambda _: False, lambda _: True):
            calls.clear()
            blocks.fits_one_pass = fits
            loss, batch = loss_of(model, form, kind, score=score, alpha=4.0), a_batch(4200).to(place)
            with torch.no_grad():
                beam = beam_search(model, model.encode(batch), HardTopK(3), num_steps=4, score=score)
            found.append((loss.item(), gradients(loss, model), backtrace(beam), beam.scores_BK))
        assert calls and all(len(shape) == 2 and shape[1] == 4200 for shape in calls)
        (expected, by_name, tokens_BKT, scores_BK), (value, others, *hard_beam) = found
        assert torch.equal(hard_beam[0], tokens_BKT) and torch.allclose(hard_beam[1], scores_BK, atol=1e-4)
        assert abs(value - expected) < 1e-4 * max(1.0, abs(expected)), (name, kind, value, expected)
        for parameter, gradient in by_name.items():
            most = (others[parameter] - gradient).abs().max().item()
            assert most <= 2e-3 * (1 + gradient.abs().max().item()), (name, kind, parameter, most)
        assert any(gradient.abs().max() > 1e-4 for gradient in by_name.values())
"""


def run(program: str) -> None:
    command = [sys.executable, "-c", PRELUDE + program, str(Path(__file__).parents[1])]
    where = os.environ if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, env=where, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_maxima_and_log_partitions_are_those_of_the_scores() -> None:
    run(NUMBERS)


def test_a_relaxed_beam_is_the_same_through_the_kernel() -> None:
    run(BEAMS)
