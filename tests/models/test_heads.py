"""Log Z of scores against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqwise.models import heads
from seqwise.models.heads import log_partition


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 3, 7), (11, 60), (1, 1), (5, 50)])
@pytest.mark.parametrize("in_cache", [50, 10**9])
def test_log_z_in_blocks_of_rows(
    monkeypatch: pytest.MonkeyPatch, in_cache: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Rows that fill a block or not, and longer ones; with excluded tokens, also all of them, and without numbers."""
    monkeypatch.setattr(heads, "IN_CACHE", in_cache)
    monkeypatch.setattr(heads, "MANY", min(in_cache, heads.MANY))
    scores = 30 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype) + 100
    for special in (None, -torch.inf, torch.inf, torch.nan):
        if special is not None:
            scores.view(-1, shape[-1])[-1, 0] = special
        with torch.no_grad(), np.errstate(invalid="ignore"):
            found = log_partition(scores)
            wanted = np.logaddexp.reduce(scores.double().numpy(), axis=-1)
        # Rounded once more than a sum of the same numbers: by a part of the largest.
        np.testing.assert_allclose(found.double().numpy(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=0)
    scores[:] = -torch.inf
    with torch.no_grad():
        assert (log_partition(scores) == -torch.inf).all()


def test_log_z_has_gradients() -> None:
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    log_partition(scores).sum().backward()
    torch.testing.assert_close(scores.grad, scores.detach().softmax(-1))
