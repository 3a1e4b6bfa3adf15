"""Attention against a loop over queries in NumPy, however it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import oracles
from seqwise.models import attention as module
from seqwise.models.attention import attention


@pytest.fixture(autouse=True)
def slow_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of whole batches are worth it, on every machine."""
    monkeypatch.setattr(module, "blas_is_slow", lambda: True)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("kind", ["none", "hidden", "added", "both"])
def test_it_is_the_mixture_of_values(monkeypatch: pytest.MonkeyPatch, kind: str, small: bool) -> None:
    """For every mask, and every shape that a mask may have; without gradients and with them."""
    monkeypatch.setattr(module, "MOST_KEYS", 256 if small else 0)
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, size, 4, generator=draw, dtype=torch.float64) for size in (5, 6, 6))
    for shape in ((2, 1, 1, 6), (2, 1, 5, 6), (1, 3, 5, 6), (5, 6)):
        hidden = torch.rand(shape, generator=draw) < 0.4
        hidden[..., 0] = False
        added = torch.randn(shape, generator=draw, dtype=torch.float64) if kind != "hidden" else torch.zeros(shape)
        mask = {"none": None, "hidden": ~hidden, "added": added, "both": added.masked_fill(hidden, -torch.inf)}[kind]
        full = torch.zeros(2, 3, 5, 6, dtype=torch.float64)
        if mask is not None:
            full = full + (torch.zeros(shape).masked_fill(hidden, -torch.inf) if kind == "hidden" else mask)
        for scale in (None, 0.3):
            with torch.no_grad():
                found = attention(queries, keys, values, mask, scale=scale)
            q, k, v, m = (oracles.numbers(each) for each in (queries, keys, values, full))
            for b, n, i in np.ndindex(2, 3, 5):
                products = np.array([sum(q[b, n, i] * k[b, n, c]) for c in range(6)])
                scores = (0.5 if scale is None else scale) * products + m[b, n, i]
                weights = np.exp(scores - max(scores))
                expected = sum(w * row for w, row in zip(weights / weights.sum(), v[b, n], strict=True))
                np.testing.assert_allclose(oracles.numbers(found[b, n, i]), expected, atol=1e-12)
            torch.testing.assert_close(attention(queries, keys, values, mask, scale=scale), found, atol=1e-12, rtol=0)


def test_which_attention_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU whose BLAS is slow, without gradients, in 32 bits or more, with few keys: all others go to torch."""
    calls: list[int] = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *given, **named: calls.append(1) or real(*given, **named)
    )

    def by_torch(num_queries: int, num_keys: int, dtype: torch.dtype = torch.float32) -> bool:
        before = len(calls)
        attention(*(torch.zeros(1, 2, size, 4, dtype=dtype) for size in (num_queries, num_keys, num_keys)))
        return len(calls) > before

    with torch.no_grad():
        assert not by_torch(3, 256) and by_torch(3, 257) and by_torch(2**13, 256)
        assert by_torch(3, 5, torch.bfloat16) and not by_torch(3, 5, torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert by_torch(3, 5)
        monkeypatch.setattr(module, "blas_is_slow", lambda: False)
        assert by_torch(3, 5)
    monkeypatch.setattr(module, "blas_is_slow", lambda: True)
    assert by_torch(3, 5)
