"""Gold scores and a few log Z of a linear head: against autograd's, which takes every step by itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.objectives.linear_head import gold_scores_and_log_partitions

Leaves = tuple[Tensor, Tensor, Tensor | None]
TARGETS_N = torch.tensor([3, 0, 3, 8, 1])


def problem(*, with_bias: bool = True, dtype: torch.dtype = torch.float64) -> Leaves:
    draw = torch.Generator().manual_seed(0)
    features_NH, weight_VH, bias_V = (
        torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype) for size in ((5, 4), (9, 4), (9,))
    )
    return features_NH, weight_VH, bias_V if with_bias else None


def by_autograd(
    features_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, drawn_M: Tensor
) -> tuple[Tensor, Tensor]:
    logits_NV = F.linear(features_NH, weight_VH, bias_V)
    return logits_NV.gather(1, TARGETS_N[:, None])[:, 0], logits_NV.logsumexp(-1)[drawn_M]


def gradients(found: tuple[Tensor, Tensor], leaves: list[Tensor]) -> list[Tensor]:
    gold_N, log_partition_M = found
    loss = (gold_N * torch.arange(5)).sum() + log_partition_M.square().sum()
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


@pytest.mark.parametrize("drawn", [[0, 1, 2, 3, 4], [4, 2], []])
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_equals_autograd(drawn: list[int], with_bias: bool) -> None:
    drawn_M, given = torch.tensor(drawn, dtype=torch.long), problem(with_bias=with_bias)
    leaves = [leaf.requires_grad_() for leaf in given if leaf is not None]
    found = gold_scores_and_log_partitions(*given, TARGETS_N, drawn_M)
    expected = by_autograd(*given, drawn_M)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_what_is_frozen_is_left_alone(wanted: int) -> None:
    given, drawn_M = problem(), torch.tensor([1, 3])
    leaf = given[wanted]
    assert leaf is not None
    leaf.requires_grad_()
    found = gradients(gold_scores_and_log_partitions(*given, TARGETS_N, drawn_M), [leaf])
    torch.testing.assert_close(found, gradients(by_autograd(*given, drawn_M), [leaf]))


def test_a_graph_may_be_used_again() -> None:
    given, drawn_M = problem(), torch.tensor([1, 3])
    leaf = given[1].requires_grad_()
    loss = gold_scores_and_log_partitions(*given, TARGETS_N, drawn_M)[1].sum()
    once, again = (torch.autograd.grad(loss, leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize("excluded", [[2, 5], list(range(9))], ids=["two tokens", "all tokens"])
def test_excluded_tokens_have_no_share(excluded: list[int]) -> None:
    features_NH, weight_VH, bias_V = problem()
    assert bias_V is not None
    bias_V[excluded] = -math.inf
    leaves = [leaf.requires_grad_() for leaf in (features_NH, weight_VH, bias_V)]
    _, log_partition_M = gold_scores_and_log_partitions(*leaves, TARGETS_N, torch.arange(5))
    torch.testing.assert_close(log_partition_M, by_autograd(*leaves, torch.arange(5))[1])
    assert bool((log_partition_M == -math.inf).all()) is (len(excluded) == 9)
    for gradient in torch.autograd.grad(log_partition_M.sum(), leaves):
        assert bool(torch.isfinite(gradient).all())
        if len(gradient) == 9:
            assert bool((gradient[excluded] == 0).all())


def test_scores_of_16_bits_are_added_up_in_32() -> None:
    given, drawn_M = problem(dtype=torch.bfloat16), torch.tensor([0, 2])
    leaves = [leaf.requires_grad_() for leaf in given if leaf is not None]
    found = gold_scores_and_log_partitions(*given, TARGETS_N, drawn_M)
    assert found[1].dtype == torch.float32
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = gradients(by_autograd(*exact, drawn_M), exact)  # type: ignore[arg-type]
    for leaf, one, other in zip(leaves, gradients(found, leaves), expected, strict=True):
        assert one.dtype == leaf.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, atol=0.1, rtol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        of_floats = problem(dtype=torch.float32)
        leaf = of_floats[0].requires_grad_()
        _, log_partition_M = gold_scores_and_log_partitions(*of_floats, TARGETS_N, drawn_M)
    assert log_partition_M.dtype == torch.float32
    assert bool(torch.isfinite(torch.autograd.grad(log_partition_M.sum(), leaf)[0]).all())
