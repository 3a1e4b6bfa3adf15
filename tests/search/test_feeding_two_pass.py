"""Scheduled sampling in two passes: against loops that do the same, its gradients, its coin, and step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from oracles import Case, tagger_case, transformer_case, translation_case
from search.coins import assert_coins, token_zero
from seqwise import InputError
from seqwise.data import collate
from seqwise.objectives import cross_entropy
from seqwise.objectives.scheduled_sampling import scheduled_sampling_objective
from seqwise.search import (
    Candidates,
    Gumbel,
    HardTopK,
    SoftArgmax,
    fed_logits,
)
from seqwise.search.feeding import FEEDINGS, fed_logits_in_two_passes

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


CASES = [(tagger_case, "tagger"), (translation_case, "encoder-decoder"), (transformer_case, "transformer")]
each_model = pytest.mark.parametrize("make", [make for make, _ in CASES], ids=[name for _, name in CASES])


def two_pass(case: Case, gold_probability: float, otherwise: Any, seed: int = 0, targets_BT: Any = None) -> Tensor:
    return fed_logits_in_two_passes(
        case.model,
        case.model.encode(case.batch),
        case.batch.targets_BT if targets_BT is None else targets_BT,
        otherwise=otherwise,
        gold_probability=gold_probability,
        generator=torch.Generator().manual_seed(seed),
    )


class Watched:
    """A model that remembers the embeddings that its second pass was fed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.fed: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forced(self, context: Any, inputs_BTD: Tensor) -> Tensor:
        self.fed.append(inputs_BTD)
        return self.model.forced(context, inputs_BTD)


# ---------------------------------------------------------------------------------------- what is fed


@each_model
def test_a_model_runs_along_any_embeddings_as_it_steps(make: Any) -> None:
    case = make(2)
    context = case.model.encode(case.batch)
    inputs_B1D, state = case.model.start(context)
    length = case.batch.source_lengths_B.max() if case.model.end is None else 5
    inputs_BTD = torch.randn(3, int(length), inputs_B1D.shape[-1], dtype=torch.float64)
    columns = []
    for step in range(int(length)):
        features_B1H, state = case.model.step(inputs_BTD[:, step, None], state, context, step)
        columns.append(features_B1H)
    torch.testing.assert_close(case.model.forced(context, inputs_BTD), torch.cat(columns, 1), **TOLERANCE)


@each_model
def test_always_feeding_gold_is_teacher_forcing(make: Any) -> None:
    for seed, feeding in enumerate(FEEDINGS.values()):
        case = make(seed)
        torch.testing.assert_close(two_pass(case, 1.0, feeding(2.0)), case.forced_logits(), **TOLERANCE)


@each_model
def test_never_feeding_gold_is_feeding_what_the_first_pass_chose(make: Any) -> None:
    for seed in range(10):
        case = make(seed)
        watched = Watched(case.model)
        logits_BTV = two_pass(replace(case, model=watched), 0.0, HardTopK(1))
        first_B1D, _ = case.model.start(case.model.encode(case.batch))
        best_BP = case.forced_logits().argmax(-1)[:, :-1]
        assert torch.equal(watched.fed[0], torch.cat([first_B1D, case.model.embedding_VD[best_BP]], dim=1))
        # Teacher forcing along those tokens, whatever the last of them.
        along_BT = torch.cat([best_BP, best_BP[:, :1]], dim=1)
        expected = case.model.head(case.model.teacher_forced(case.model.encode(case.batch), along_BT))
        torch.testing.assert_close(logits_BTV, expected, **TOLERANCE)


@each_model
@pytest.mark.parametrize("alpha", [0.3, 2.5, 40.0])
def test_soft_choices_are_fed_as_the_loops_say(make: Any, alpha: float) -> None:
    """``softmax_alpha(f1_t) E`` after position t, and for a sample with the noise that the generator gives."""
    for seed in range(4):
        case = make(seed)
        fed_BP = {"soft-greedy": case.forced_logits()[:, :-1]}
        generator = torch.Generator().manual_seed(seed)
        shape = fed_BP["soft-greedy"].shape
        torch.rand(shape[0] * shape[1], generator=generator)  # the coins, which come first
        noise = Gumbel()(torch.zeros(shape[0] * shape[1], 1, shape[2], dtype=torch.float64), generator)
        for name, noise_BPV in (("soft-greedy", torch.zeros(shape)), ("soft-sample", noise.view(shape))):
            logits_BTV = two_pass(case, 0.0, FEEDINGS[name](alpha), seed=seed)
            for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
                along_gold = oracles.forced_logits(oracle, example.target_ids)
                fed, state = oracle.start()
                for step in range(len(example.target_ids)):
                    logits, state = oracle.step(fed, state, step)
                    np.testing.assert_allclose(oracles.numbers(logits_BTV[b, step]), logits, atol=1e-9)
                    if step < noise_BPV.shape[1]:
                        noisy = [f + g for f, g in zip(along_gold[step], noise_BPV[b, step].tolist(), strict=True)]
                        fed = oracles.mixed(list(oracle.embeddings), oracles.peaked_softmax(noisy, alpha))


@each_model
def test_soft_choices_tend_to_hard_ones(make: Any) -> None:
    for hard, soft in (("greedy", "soft-greedy"), ("sample", "soft-sample")):
        case = make(7)
        sharp, chosen = (two_pass(case, 0.3, FEEDINGS[name](1e7), seed=5) for name in (soft, hard))
        torch.testing.assert_close(sharp, chosen, atol=1e-6, rtol=0)
        assert not torch.allclose(chosen, case.forced_logits())


def test_samples_come_from_the_scores_of_the_first_pass() -> None:
    """One input, many times in the batch: how often each token is fed at each position."""
    case = tagger_case(3, lengths=(3,), scale=0.5)
    many = collate([case.examples[0] for i in range(4000)])
    watched = Watched(case.model)
    two_pass(replace(case, model=watched, batch=many), 0.0, FEEDINGS["sample"](1.0), seed=1)
    shares_PV = case.forced_logits().softmax(-1)[0, :-1]
    for position, shares_V in enumerate(shares_PV):
        for token, share in enumerate(shares_V.tolist()):
            fed = (watched.fed[0][:, position + 1] == case.model.embedding_VD[token]).all(-1).double().mean()
            assert abs(float(fed) - share) < 5 * math.sqrt(share * (1 - share) / 4000)


def test_padding_and_the_rest_of_the_batch_play_no_part() -> None:
    for make, _ in CASES:
        case = make(2)
        whole = two_pass(case, 0.0, SoftArgmax(2.0))
        assert torch.isfinite(whole).all()
        for b, example in enumerate(case.examples):
            alone = two_pass(replace(case, batch=collate([example])), 0.0, SoftArgmax(2.0))
            torch.testing.assert_close(alone[0], whole[b, : alone.shape[1]], **TOLERANCE)


# ---------------------------------------------------------------------------------------- beside the step-by-step form


@each_model
@pytest.mark.parametrize("name", ["greedy", "soft-greedy"])
def test_the_two_forms_agree_for_two_positions_and_then_part(make: Any, name: str) -> None:
    """The second choice is the first that depends on what was fed before."""
    parted = 0
    for seed in range(10):
        case = make(seed)
        otherwise = FEEDINGS[name](1.5)
        context, targets_BT = case.model.encode(case.batch), torch.randint(4, (3, 4))
        stepwise = fed_logits(case.model, context, targets_BT, otherwise=otherwise, gold_probability=0.0)
        at_once = two_pass(case, 0.0, otherwise, targets_BT=targets_BT)
        torch.testing.assert_close(at_once[:, :2], stepwise[:, :2], **TOLERANCE)
        parted += not torch.allclose(at_once[:, 2:], stepwise[:, 2:])
    assert parted >= 3


class WithoutPrefix:
    """Scores and features that depend on the position only; it remembers all that it is fed."""

    end = None

    def __init__(self, scores_TV: Tensor) -> None:
        self.scores_TV = scores_TV
        self.embedding_VD = torch.randn(scores_TV.shape[1], 3, dtype=torch.float64)
        self.fed: list[Tensor] = []

    def start(self, context: int) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(context, 1, 3, dtype=torch.float64)
        return zeros, zeros

    def step(self, inputs_BJD: Tensor, state: Tensor, context: int, step: int) -> tuple[Tensor, Tensor]:
        self.fed.append(inputs_BJD)
        return self.scores_TV[step].expand(*inputs_BJD.shape[:2], -1), state

    def head(self, features: Tensor) -> Tensor:
        return features

    def forced(self, context: int, inputs_BTD: Tensor) -> Tensor:
        self.fed.append(inputs_BTD)
        return self.scores_TV[: inputs_BTD.shape[1]].expand(context, -1, -1)

    def teacher_forced(self, context: int, targets_BT: Tensor) -> Tensor:
        return self.scores_TV[: targets_BT.shape[1]].expand(context, -1, -1)


@pytest.mark.parametrize("name", ["greedy", "soft-greedy"])
def test_without_a_prefix_the_two_forms_agree_in_scores_and_in_what_is_fed(name: str) -> None:
    model = WithoutPrefix(torch.randn(6, 5, dtype=torch.float64))
    results = []
    for form in (fed_logits, fed_logits_in_two_passes):
        model.fed.clear()
        logits_BTV = form(
            model, 4, torch.zeros(4, 6, dtype=torch.long), otherwise=FEEDINGS[name](1.5), gold_probability=0.0
        )
        results.append((logits_BTV, torch.cat(model.fed, dim=1)))
    for stepwise, at_once in zip(*results, strict=True):
        torch.testing.assert_close(stepwise, at_once, **TOLERANCE)


# ---------------------------------------------------------------------------------------- gradients


class Loss(nn.Module):
    """Cross-entropy of the second pass, as a module so that gradcheck can vary its parameters."""

    def __init__(self, case: Case, otherwise: Any, gold_probability: float) -> None:
        super().__init__()
        self.model, self.case, self.otherwise, self.gold_probability = case.model, case, otherwise, gold_probability

    def forward(self) -> Tensor:
        logits_BTV = two_pass(replace(self.case, model=self.model), self.gold_probability, self.otherwise, seed=4)
        return cross_entropy(logits_BTV, self.case.batch.targets_BT)

    def of_weights(self, weights_N: Tensor) -> Tensor:
        """The loss of all parameters as one vector."""
        values, start = {}, 0
        for name, parameter in self.named_parameters():
            values[name] = weights_N[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return torch.func.functional_call(self, values, ())


def detached(otherwise: Any) -> Any:
    """The same choice as a constant, as if the first pass had run without a graph."""

    def choose(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> Any:
        selection, carry = otherwise(candidates, carry, generator)
        return replace(selection, token_weights_BKX=selection.token_weights_BKX.detach()), carry

    return choose


@each_model
@pytest.mark.parametrize("name", ["soft-greedy", "soft-sample"])
def test_gradients_of_soft_choices_flow_through_both_passes(make: Any, name: str) -> None:
    otherwise = FEEDINGS[name](2.0)
    case = make(8)
    whole, part = (Loss(case, choice, 0.3) for choice in (otherwise, detached(otherwise)))
    weights_N = torch.cat([parameter.detach().flatten() for parameter in whole.parameters()]).requires_grad_()
    assert torch.autograd.gradcheck(whole.of_weights, weights_N, fast_mode=True, eps=1e-7, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(part.of_weights(weights_N), whole.of_weights(weights_N), **TOLERANCE)
    # With the first pass as a constant, the loss is the same and its slope wrong.
    gradient_N, detached_N = (torch.autograd.grad(loss.of_weights(weights_N), weights_N)[0] for loss in (whole, part))
    direction_N = nn.functional.normalize(gradient_N - detached_N, dim=0)
    with torch.no_grad():
        above, below = (whole.of_weights(weights_N + change * direction_N) for change in (1e-6, -1e-6))
    slope = float(above - below) / 2e-6
    assert slope == pytest.approx(float(gradient_N @ direction_N), abs=1e-6)
    assert abs(slope - float(detached_N @ direction_N)) > 1e-2


@each_model
@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_hard_choices_carry_no_gradient(make: Any, name: str) -> None:
    """The gradient is that of the second pass along the tokens that were chosen, as if they had been given."""
    case = make(8)
    chosen = []

    def spied(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> Any:
        selection, carry = FEEDINGS[name](1.0)(candidates, carry, generator)
        chosen.append(selection)
        return selection, carry

    case.model.zero_grad()
    two_pass(case, 0.0, spied, seed=3).square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in case.model.parameters()]
    targets_BT = case.batch.targets_BT
    along_BP = chosen[0].tokens_BK.view(targets_BT.shape[0], -1)
    along_BT = torch.cat([along_BP, targets_BT[:, -1:]], dim=1)
    case.model.zero_grad()
    context = case.model.encode(case.batch)
    case.model.head(case.model.teacher_forced(context, along_BT)).square().sum().backward()
    for gradient, parameter in zip(gradients, case.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, **TOLERANCE)


# ---------------------------------------------------------------------------------------- the coin


@pytest.mark.parametrize("probability", [0.3, 0.8])
def test_the_coin_is_tossed_for_each_token_of_each_input(probability: float) -> None:
    B, T = 3000, 6
    model = WithoutPrefix(torch.zeros(T, 2, dtype=torch.float64))
    model.embedding_VD = torch.eye(2, 3, dtype=torch.float64)
    logits_BTV = fed_logits_in_two_passes(
        model,
        B,
        torch.ones(B, T, dtype=torch.long),
        otherwise=token_zero,
        gold_probability=probability,
        generator=torch.Generator().manual_seed(1),
    )
    assert logits_BTV.shape == (B, T, 2)
    assert (model.fed[0][:, 0] == 0).all()
    was_gold = model.fed[0][:, 1:, 1]
    assert torch.equal(was_gold + model.fed[0][:, 1:, 0], torch.ones(B, T - 1).double())
    assert_coins(was_gold, probability)


def test_where_the_coin_says_gold_the_gold_token_of_that_position_is_fed() -> None:
    """Every token fed is gold's at its own place or the choice, and both occur."""
    case = transformer_case(1)
    targets_BT = torch.tensor([[0, 3, 2, 1, 3, 2], [2, 0, 1, 3, 0, 1], [3, 1, 0, 2, 1, 0]])
    watched = Watched(case.model)
    two_pass(replace(case, model=watched), 0.5, token_zero, seed=1, targets_BT=targets_BT)
    gold_BPD, zero_D = case.model.embedding_VD[targets_BT[:, :-1]], case.model.embedding_VD[0]
    is_gold, is_zero = (watched.fed[0][:, 1:] == gold_BPD).all(-1), (watched.fed[0][:, 1:] == zero_D).all(-1)
    assert (is_gold | is_zero).all()
    assert not is_gold.all() and not is_zero.all()


@each_model
def test_the_same_generator_gives_the_same_feeding(make: Any) -> None:
    case = make(1)
    sampled = FEEDINGS["soft-sample"](1.0)
    assert torch.equal(two_pass(case, 0.5, sampled, seed=4), two_pass(case, 0.5, sampled, seed=4))
    assert not torch.equal(two_pass(case, 0.5, sampled, seed=4), two_pass(case, 0.5, sampled, seed=5))


# ---------------------------------------------------------------------------------------- the objective


@each_model
def test_the_objective_is_the_cross_entropy_of_the_second_pass(make: Any) -> None:
    case = make(5)
    targets_BT = torch.randint(4, (3, 4))
    case = replace(case, batch=replace(case.batch, targets_BT=targets_BT, target_lengths_B=torch.full((3,), 4)))
    for name in ("greedy", "soft-greedy"):
        loss = scheduled_sampling_objective(name, fed=fed_logits_in_two_passes)(
            case.model, case.batch, {"gold_probability": 0.0, "alpha": 3.0}
        )
        expected = cross_entropy(two_pass(case, 0.0, FEEDINGS[name](3.0)), case.batch.targets_BT)
        torch.testing.assert_close(loss, expected, **TOLERANCE)
    stepwise = scheduled_sampling_objective(name)(case.model, case.batch, {"gold_probability": 0.0, "alpha": 3.0})
    assert abs(float(loss.detach() - stepwise.detach())) > 1e-6


# ---------------------------------------------------------------------------------------- bad arguments, and small ones


@pytest.mark.parametrize("form", [fed_logits, fed_logits_in_two_passes])
@pytest.mark.parametrize(
    ("probability", "otherwise", "message"),
    [(p, HardTopK(1), "between 0 and 1") for p in (-0.1, 1.1, math.nan)] + [(0.5, HardTopK(3), "keeps 3")],
)
def test_bad_arguments_are_refused(form: Any, probability: float, otherwise: Any, message: str) -> None:
    case = tagger_case(0)
    context, targets_BT = case.model.encode(case.batch), case.batch.targets_BT
    with pytest.raises(InputError, match=message):
        form(case.model, context, targets_BT, otherwise=otherwise, gold_probability=probability)


def test_a_model_that_only_steps_is_refused() -> None:
    model = oracles.ManyModels(2, num_tokens=3, end=None, seed=0)
    with pytest.raises(InputError, match="one step at a time"):
        fed_logits_in_two_passes(
            model, None, torch.zeros(2, 3, dtype=torch.long), otherwise=HardTopK(1), gold_probability=0.5
        )


@each_model
def test_one_gold_token_or_none_needs_no_choice(make: Any) -> None:
    case = make(0)
    for length in (0, 1):
        targets_BT = torch.zeros(3, length, dtype=torch.long)
        logits_BTV = two_pass(case, 0.0, HardTopK(1), targets_BT=targets_BT)
        assert logits_BTV.shape == (3, length, case.vocabulary_size)
    forced = case.model.head(case.model.teacher_forced(case.model.encode(case.batch), case.batch.targets_BT[:, :1]))
    torch.testing.assert_close(logits_BTV, forced, **TOLERANCE)
