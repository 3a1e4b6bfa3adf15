"""Nested states: every leaf moves, and mixing by one-hot weights is gathering."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from seqwise import InputError, tree


def nested_state(batch_size: int, slots: int) -> dict:
    """Leaves of two, three and four dimensions in dictionaries, lists and tuples."""
    return {
        "h": torch.randn(batch_size, slots, 3, dtype=torch.float64),
        "layers": [
            (torch.randn(batch_size, slots, 2, 5, dtype=torch.float64), torch.randn(batch_size, slots)),
            (torch.randn(batch_size, slots, 1, 2, dtype=torch.float64), torch.randn(batch_size, slots, 4).half()),
        ],
    }


def leaves(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state
    return [leaf for part in parts for leaf in leaves(part)]


def test_gather_takes_the_named_slot_of_each_leaf() -> None:
    state, parents_BK = nested_state(3, 4), torch.randint(4, (3, 6))
    moved = tree.gather(state, parents_BK)
    assert [type(part) for part in moved["layers"]] == [tuple, tuple]
    for before, after in zip(leaves(state), leaves(moved), strict=True):
        assert after.shape == (3, 6, *before.shape[2:])
        for b in range(3):
            for k in range(6):
                assert torch.equal(after[b, k], before[b, int(parents_BK[b, k])])


def test_mix_sums_the_weighted_slots_of_each_leaf() -> None:
    state, weights_BKJ = nested_state(3, 4), torch.rand(3, 2, 4, dtype=torch.float64)
    for before, after in zip(leaves(state), leaves(tree.mix(state, weights_BKJ)), strict=True):
        assert after.shape == (3, 2, *before.shape[2:])
        assert after.dtype == before.dtype
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2}[before.dtype]
        for b in range(3):
            for k in range(2):
                expected = sum(float(weights_BKJ[b, k, j]) * before[b, j].double() for j in range(4))
                torch.testing.assert_close(after[b, k].double(), expected, atol=tolerance, rtol=tolerance)


def test_mixing_by_one_hot_weights_is_gathering() -> None:
    state, parents_BK = nested_state(3, 4), torch.randint(4, (3, 6))
    mixed = tree.mix(state, F.one_hot(parents_BK, 4).double())
    for soft, hard in zip(leaves(mixed), leaves(tree.gather(state, parents_BK)), strict=True):
        assert torch.equal(soft, hard)


def test_map_walks_several_states_together() -> None:
    state = nested_state(2, 2)
    doubled = tree.map(lambda a, b: a + b, state, state)
    for before, after in zip(leaves(state), leaves(doubled), strict=True):
        assert torch.equal(after, 2 * before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_a_leaf_that_cannot_be_mixed_is_named(dtype: torch.dtype) -> None:
    state = {"h": torch.zeros(1, 2, 3), "cache": [torch.zeros(1, 2), torch.zeros(1, 2, dtype=dtype)]}
    with pytest.raises(InputError) as caught:
        tree.mix(state, torch.ones(1, 1, 2))
    assert "['cache'][1]" in str(caught.value)
    assert str(dtype) in str(caught.value)
    # A hard selection may carry it.
    assert tree.gather(state, torch.tensor([[1]]))["cache"][1].dtype == dtype


def test_an_integer_at_the_root_is_named_too() -> None:
    with pytest.raises(InputError, match="root"):
        tree.mix(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 1, 2))
