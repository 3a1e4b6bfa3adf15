"""log Z and mean rows in pieces, against float64 arithmetic that does neither."""

from __future__ import annotations

import pytest
import torch

from seqwise.search.large_vocabulary import normalizers as module
from seqwise.search.large_vocabulary.normalizers import log_partition, mean_rows

INFINITY = torch.inf


def scores(scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits_BJV = scale * torch.randn(3, 4, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits_BJV[0, 1, 5:] = -INFINITY
    return logits_BJV.to(dtype)


@pytest.mark.parametrize("piece", [1, 40, 100, 2**17])
@pytest.mark.parametrize("scale", [1.0, 12.0, 500.0])
def test_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, piece: int, scale: float) -> None:
    """Scores as they are, and such as overflow or vanish."""
    monkeypatch.setattr(module, "PIECE", piece)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        logits_BJV, weight_VH = scores(scale, dtype), torch.randn(37, 6, dtype=dtype)
        exact = logits_BJV.double().logsumexp(-1)
        found = log_partition(logits_BJV, logits_BJV.amax(-1))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
        rows = mean_rows(logits_BJV.flatten(0, 1), found.flatten(), weight_VH)
        exact_rows = logits_BJV.double().softmax(-1).flatten(0, 1) @ weight_VH.double()
        # An error of log Z is one of the softmax.
        slack = tolerance * max(1.0, float(exact.abs().max()))
        torch.testing.assert_close(rows.double(), exact_rows, rtol=slack, atol=slack)


def test_slots_without_a_token_and_what_is_not_a_number() -> None:
    for scale in (1.0, 500.0):
        logits_BJV = scores(scale)
        logits_BJV[1, 2], logits_BJV[2, 0, 3] = -INFINITY, torch.nan
        found = log_partition(logits_BJV, logits_BJV.amax(-1))
        assert found[1, 2] == -INFINITY and found[2, 0].isnan() and found.isfinite().sum() == 10
        known = found.masked_fill(found == -INFINITY, 0.0).flatten()
        rows = mean_rows(logits_BJV.flatten(0, 1), known, torch.ones(37, 2))
        assert rows[6].eq(0).all() and rows[8].isnan().all() and rows.isfinite().all(1).sum() == 11
    assert log_partition(torch.zeros(0, 2, 5), torch.zeros(0, 2)).shape == (0, 2)
