"""Scheduled sampling: its two ends, what is fed between them, the coin, and its relaxations against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from oracles import Case, tagger_case, translation_case
from search.coins import assert_coins, token_zero
from seqwise.search import (
    Candidates,
    Gumbel,
    HardTopK,
    SoftArgmax,
    fed_logits,
    global_,
    unroll,
)
from seqwise.search.feeding import FEEDINGS, GoldOr

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
CASES = [(tagger_case, "tagger"), (translation_case, "encoder-decoder")]


def feed(case: Case, gold_probability: float, otherwise: Any, seed: int = 0) -> Tensor:
    return fed_logits(
        case.model,
        case.model.encode(case.batch),
        case.batch.targets_BT,
        otherwise=otherwise,
        gold_probability=gold_probability,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize(("make", "name"), CASES, ids=[name for _, name in CASES])
def test_always_feeding_gold_is_teacher_forcing(make: Any, name: str) -> None:
    for seed, feeding in enumerate(FEEDINGS.values()):
        case = make(seed)
        real_BT = case.batch.targets_BT >= 0
        forced_BTV = case.forced_logits()
        torch.testing.assert_close(feed(case, 1.0, feeding(2.0))[real_BT], forced_BTV[real_BT], **TOLERANCE)


@pytest.mark.parametrize(("make", "name"), CASES, ids=[name for _, name in CASES])
def test_never_feeding_gold_is_greedy_decoding(make: Any, name: str) -> None:
    """Of a search that the end token does not stop: the loss is taken at every gold position."""
    for seed in range(10):
        case = make(seed)
        logits_BTV = feed(case, 0.0, HardTopK(1))
        for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
            fed, state = oracle.start()
            for step in range(len(example.target_ids)):
                logits, state = oracle.step(fed, state, step)
                np.testing.assert_allclose(oracles.numbers(logits_BTV[b, step]), logits, atol=1e-10)
                fed = oracle.embeddings[int(np.argmax(logits))]


@pytest.mark.parametrize(("make", "name"), CASES, ids=[name for _, name in CASES])
def test_the_soft_argmax_is_fed_as_the_loop_says(make: Any, name: str) -> None:
    """softmax_alpha(f_{t-1}) E, alpha not 1."""
    for seed, alpha in enumerate((0.3, 1.0, 2.5, 40.0)):
        case = make(seed)
        logits_BTV = feed(case, 0.0, SoftArgmax(alpha))
        for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
            fed, state = oracle.start()
            for step in range(len(example.target_ids)):
                logits, state = oracle.step(fed, state, step)
                np.testing.assert_allclose(oracles.numbers(logits_BTV[b, step]), logits, atol=1e-10)
                fed = oracles.mixed(list(oracle.embeddings), oracles.peaked_softmax(logits, alpha))


def test_the_soft_sample_feeds_the_noisy_softmax() -> None:
    """With the noise that the generator gives, and towards the sampled token's embedding as alpha grows."""
    case = tagger_case(7, lengths=(4, 4))
    chosen = []

    def spied(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> Any:
        chosen.append(SoftArgmax(2.0, noise=Gumbel())(candidates, None, generator)[0])
        return chosen[-1], carry

    logits_BTV = feed(case, 0.0, spied, seed=3)
    generator = torch.Generator().manual_seed(3)
    for step, selection in enumerate(chosen):
        torch.rand(2, generator=generator)  # the coin, which comes first
        noisy_B1V = Gumbel()(logits_BTV[:, step, None], generator)
        expected = [oracles.peaked_softmax(row, 2.0) for row in noisy_B1V[:, 0].tolist()]
        torch.testing.assert_close(
            selection.token_weights_BKX[:, 0], torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0
        )
    hard, soft = (feed(case, 0.0, FEEDINGS[name](1e6), seed=11) for name in ("sample", "soft-sample"))
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)


def test_gradients_flow_through_soft_choices_only() -> None:
    case = tagger_case(8)
    for name, flows in {"greedy": False, "sample": False, "soft-greedy": True, "soft-sample": True}.items():
        case.model.zero_grad()
        logits_BTV = feed(case, 0.0, FEEDINGS[name](1.0))
        # The second step depends on the head's bias through its own scores, and through the first step's choice.
        (logits_BTV[:, 1] - case.model.head.bias).sum().backward()
        assert bool(case.model.head.bias.grad.abs().max() > 1e-6) == flows, name


# ---------------------------------------------------------------------------------------- the coin


class Echo:
    """Its scores are what it is fed: one-hot gold, or one-hot token 0."""

    end = None
    embedding_VD = torch.eye(2)

    def start(self, context: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(len(context), 1, 2)
        return zeros, zeros

    def step(self, inputs_BJD: Tensor, state: Tensor, context: Any, step: int) -> tuple[Tensor, Tensor]:
        return inputs_BJD, state

    def head(self, features: Tensor) -> Tensor:
        return features


@pytest.mark.parametrize("probability", [0.3, 0.8])
def test_the_coin_is_tossed_for_each_token_of_each_input(probability: float) -> None:
    B, T = 3000, 6
    gold_BT = torch.ones(B, T, dtype=torch.long)
    generator = torch.Generator().manual_seed(1)
    logits_BTV = fed_logits(
        Echo(), gold_BT, gold_BT, otherwise=token_zero, gold_probability=probability, generator=generator
    )
    assert (logits_BTV[:, 0] == 0).all()
    was_gold = logits_BTV[:, 1:, 1].double()  # what step t was fed in place of token t - 1
    assert torch.equal(was_gold + logits_BTV[:, 1:, 0], torch.ones(B, T - 1).double())
    assert_coins(was_gold, probability)


def test_the_same_generator_gives_the_same_feeding() -> None:
    case = tagger_case(1, lengths=(4, 4, 4))
    sampled = FEEDINGS["sample"](1.0)
    assert torch.equal(feed(case, 0.5, sampled, seed=4), feed(case, 0.5, sampled, seed=4))
    assert not torch.equal(feed(case, 0.5, sampled, seed=4), feed(case, 0.5, sampled, seed=5))


def test_padding_is_fed_without_harm() -> None:
    case = tagger_case(2, lengths=(4, 1))
    logits_BTV = feed(case, 1.0, HardTopK(1))
    assert torch.isfinite(logits_BTV).all()
    alone = fed_logits(
        case.model,
        case.model.encode(case.batch),
        case.batch.targets_BT.clamp(min=0),
        otherwise=HardTopK(1),
        gold_probability=1.0,
    )
    torch.testing.assert_close(logits_BTV, alone, **TOLERANCE)


def test_the_wrapped_selector_keeps_its_own_scores() -> None:
    """Gold takes the place of the token, not of the score: the search with a coin of 0 is the search without."""
    case = tagger_case(3, lengths=(3, 3))
    context = case.model.encode(case.batch)
    plain, wrapped = (
        [step.beam for step in unroll(case.model, context, selector, num_steps=3, score=global_)]
        for selector in (SoftArgmax(1.0), GoldOr(SoftArgmax(1.0), case.batch.targets_BT, 0.0))
    )
    for one, other in zip(plain, wrapped, strict=True):
        assert torch.equal(one.scores_BK, other.scores_BK)
        assert torch.equal(one.inputs_BKD, other.inputs_BKD)


def test_no_gold_tokens_give_no_scores() -> None:
    case = tagger_case(0)
    targets_BT = torch.zeros(3, 0, dtype=torch.long)
    logits_BTV = fed_logits(
        case.model, case.model.encode(case.batch), targets_BT, otherwise=HardTopK(1), gold_probability=0.5
    )
    assert logits_BTV.shape == (3, 0, case.vocabulary_size)
