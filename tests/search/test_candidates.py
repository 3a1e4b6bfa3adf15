"""Candidates of one step: scores that take a constant off each token, and those of some of the inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from oracles import Normalized, hard_beam, tagger_case, translation_case
from seqwise import InputError
from seqwise.decoding import Decoder, decode
from seqwise.search import Candidates, HardTopK, beam_search, global_, local, shifted
from seqwise.search.language import Allowed


@torch.no_grad()
def test_where_log_z_is_one_constant_the_shifted_search_is_the_local_one() -> None:
    case = translation_case(0, lengths=(3, 4, 2))
    context, model = case.model.encode(case.batch), Normalized(case.model, 5.0)
    steps = torch.tensor([5, 6, 4])
    found = beam_search(model, context, HardTopK(4), num_steps=steps, score=shifted(5.0))
    wanted = beam_search(case.model, context, HardTopK(4), num_steps=steps, score=local)
    torch.testing.assert_close(found.scores_BK, wanted.scores_BK, rtol=0, atol=1e-10)
    assert all(torch.equal(one, other) for one, other in zip(found.tokens, wanted.tokens, strict=True))
    raw = decode(model, context, Decoder(HardTopK(4), global_), num_steps=steps)
    assert [len(best[0].tokens) for best in raw] == steps.tolist(), "5 nats a token: raw scores never end"


@torch.no_grad()
@pytest.mark.parametrize("constant", [-1.5, 0.8])
def test_a_shifted_beam_takes_the_constant_off_every_token_up_to_the_end_token(constant: float) -> None:
    case = translation_case(4, lengths=(3, 4, 2))
    beam = beam_search(case.model, case.model.encode(case.batch), HardTopK(3), num_steps=4, score=shifted(constant))
    for row, oracle in enumerate(case.oracles):
        oracle.weight = oracle.weight.copy()
        oracle.bias = oracle.bias - constant
        expected = [one.score for one in hard_beam(oracle, k=3, num_steps=4, log_partition_weight=0.0)]
        assert beam.scores_BK[row].tolist() == pytest.approx(expected, abs=1e-10)


@torch.no_grad()
def test_where_lengths_are_fixed_a_constant_changes_no_order() -> None:
    case = tagger_case(4)
    context, steps = case.model.encode(case.batch), case.batch.source_lengths_B
    one, other = (
        beam_search(case.model, context, HardTopK(4), num_steps=steps, score=score) for score in (global_, shifted(3.0))
    )
    assert all(torch.equal(a, b) for a, b in zip(one.tokens, other.tokens, strict=True))
    torch.testing.assert_close(one.scores_BK - 3.0 * steps[:, None], other.scores_BK, rtol=0, atol=1e-10)


def test_a_constant_and_log_z_can_both_be_taken_off() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(replace(local, constant=2.0)(logits), logits.log_softmax(-1) - 2.0)
    assert shifted(0.0)(logits) is logits
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError, match="must be finite"):
            shifted(bad)


@pytest.mark.parametrize("allowed", [None, torch.tensor([[[0, 2], [1, -1]], [[3, 1], [2, 0]], [[2, 3], [0, 1]]])])
def test_candidates_of_some_inputs_are_those_of_all_inputs(allowed: torch.Tensor | None) -> None:
    """In the given order, with excluded candidates and allowed tokens."""
    some = replace(
        Candidates.of_scores(torch.randn(3, 2, 4), prefix_scores_BJ=torch.randn(3, 2)),
        cost=torch.rand(3, 4),
        score=replace(global_, cost_weight=1.0),
        allowed=None if allowed is None else Allowed.of(allowed),
    ).without(torch.tensor([[1], [6], [3]]))
    order_I = torch.tensor([2, 0])
    assert torch.equal(some.of_inputs(order_I).scores_BJW, some.scores_BJW[order_I])
    assert (some.scores_BJW == -torch.inf).flatten(1).any(1).all()
    with_graph_BJW = replace(some, excluded_BX=None).scores_BJW
    with torch.no_grad():  # a linear head would be looked up by rows
        assert torch.equal(replace(some, excluded_BX=None).scores_BJW, with_graph_BJW)
    again = replace(some, recompute_cost=lambda: some.cost).of_inputs(order_I).recompute_cost
    assert again is not None and some.cost is not None and torch.equal(again(), some.cost[order_I])
    assert some.of_inputs(order_I).recompute_cost is None
