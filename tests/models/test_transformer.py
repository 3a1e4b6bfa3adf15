"""The Transformer: against one in NumPy, its cache under hard and soft selections, and independence of the batch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracles
from oracles import TransformerOracle, transformer_case
from seqwise import InputError, tree
from seqwise.data import EncodedExample, collate
from seqwise.models import Transformer
from seqwise.models.transformer import sinusoids
from seqwise.objectives import direct_loss, gold_scores, hamming_cost
from seqwise.objectives.rescoring import output_scores
from seqwise.search import HardTopK, SoftTopK, backtrace, beam_search, global_, local

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


# ---------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("sizes", [{}, {"num_layers": 1, "num_heads": 4}, {"hidden_size": 5, "num_heads": 1}])
def test_teacher_forcing_equals_the_model_in_numpy(sizes: dict[str, int]) -> None:
    for seed in range(6):
        case = transformer_case(seed, **sizes)
        logits_BTV = case.forced_logits()
        for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
            expected = np.array(oracles.forced_logits(oracle, example.target_ids))
            np.testing.assert_allclose(oracles.numbers(logits_BTV[b, : len(expected)]), expected, atol=1e-10)


def test_teacher_forcing_equals_one_step_at_a_time_and_so_do_its_gradients() -> None:
    for seed in range(8):
        case = transformer_case(seed)
        weights = torch.randn(case.model.head.out_features, dtype=torch.float64)
        results = []
        for run in (
            case.model.teacher_forced,
            lambda context, targets_BT, case=case: case.stepped(context, targets_BT),
        ):
            case.model.zero_grad()
            features_BTH = run(case.model.encode(case.batch), case.batch.targets_BT)
            (case.model.head(features_BTH).square() @ weights).sum().backward()
            results.append([features_BTH, *(parameter.grad.clone() for parameter in case.model.parameters())])
        for at_once, by_step in zip(*results, strict=True):
            torch.testing.assert_close(at_once, by_step, **TOLERANCE)


def test_any_number_of_steps_has_its_places() -> None:
    case = transformer_case(0)
    targets_BT = torch.randint(4, (3, 300))
    context = case.model.encode(case.batch)
    torch.testing.assert_close(
        case.model.teacher_forced(context, targets_BT), case.stepped(context, targets_BT), **TOLERANCE
    )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-3), (torch.bfloat16, 1e-2)]
)
def test_places_are_told_apart_in_every_precision(dtype: torch.dtype, tolerance: float) -> None:
    """Half precision cannot count to 3000, so angles are never computed in it."""
    like = torch.zeros(7, dtype=dtype)
    codes_T = sinusoids(0, 3000, like)
    assert codes_T.dtype == dtype and codes_T.shape == (3000, 7)
    assert torch.equal(sinusoids(2999, 1, like)[0], codes_T[2999])
    expected = [[f(t / 10000 ** (i / 4)) for f in (math.sin, math.cos) for i in range(4)][:7] for t in range(3000)]
    torch.testing.assert_close(codes_T.double(), torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0)


def test_every_slot_steps_by_itself() -> None:
    """J slots at once give what each gives alone, and the slots stay in place."""
    case = transformer_case(1)
    context = case.model.encode(case.batch)
    inputs_B1D, state = case.model.start(context)
    inputs_BJD = torch.randn(3, 4, inputs_B1D.shape[-1], dtype=torch.float64)
    state_BJ = tree.map(lambda leaf: torch.randn(3, 4, leaf.shape[2], 5, leaf.shape[4], dtype=torch.float64), state)
    features_BJH, next_BJ = case.model.step(inputs_BJD, state_BJ, context, 5)
    for j in range(4):
        slot = tree.map(lambda leaf, j=j: leaf[:, j, None], state_BJ)
        features_B1H, next_B1 = case.model.step(inputs_BJD[:, j, None], slot, context, 5)
        torch.testing.assert_close(features_BJH[:, j, None], features_B1H, **TOLERANCE)
        for whole, alone in zip(next_BJ, next_B1, strict=True):
            for whole_leaf, alone_leaf in zip(whole, alone, strict=True):
                torch.testing.assert_close(whole_leaf[:, j, None], alone_leaf, **TOLERANCE)


def test_a_search_does_not_depend_on_its_batch() -> None:
    case = transformer_case(3, lengths=(2, 5, 1))
    num_steps_B = torch.tensor([4, 2, 3])
    selector = SoftTopK(3, 2.0)
    whole = beam_search(case.model, case.model.encode(case.batch), selector, num_steps=num_steps_B)
    for b, example in enumerate(case.examples):
        context = case.model.encode(collate([example]))
        alone = beam_search(case.model, context, selector, num_steps=num_steps_B[b, None])
        torch.testing.assert_close(whole.scores_BK[b, None], alone.scores_BK, **TOLERANCE)


def test_an_empty_source_is_one_padding_symbol_whatever_else_is_in_the_batch() -> None:
    case = transformer_case(4)
    empty = EncodedExample((), (1,))
    results = [case.forced_logits(collate([empty]))[0]]
    for source in ((), (1,), (1, 2, 3), (4, 4, 4, 4, 4)):
        results.append(case.forced_logits(collate([empty, EncodedExample(source, (1,))]))[0])
    expected = np.array(oracles.forced_logits(TransformerOracle(case.model, [0]), [1]))
    for logits_TV in results:
        np.testing.assert_allclose(oracles.numbers(logits_TV), expected, atol=1e-10)


def test_dropout_acts_in_training_only() -> None:
    case = transformer_case(0)
    model = Transformer(source_size=5, target_size=4, end=1, hidden_size=8, num_heads=2, dropout=0.5)
    for mode in (True, False):
        model.train(mode)
        contexts = [model.encode(case.batch) for _ in range(2)]
        features = [model.teacher_forced(contexts[0], case.batch.targets_BT) for _ in range(2)]
        assert torch.equal(contexts[0].memories[1][0], contexts[1].memories[1][0]) != mode
        assert torch.equal(*features) != mode


def test_a_new_model_is_uncertain_and_learns() -> None:
    """Scores start small beside log V, and a few steps overfit one batch."""
    model = Transformer(source_size=5, target_size=50, end=1, dropout=0.0)
    batch = collate([EncodedExample((1, 2), (7, 30, 1)), EncodedExample((2, 1), (30, 4, 7, 1))])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(30):
        logits_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT))
        losses.append(nn.functional.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten()))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert abs(losses[0].item() - math.log(50)) < 1.0
    assert losses[-1].item() < 0.05


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 6, "num_heads": 4}, "cannot be divided"),
        ({"num_layers": 0}, "at least 1"),
        ({"num_heads": 0}, "at least 1"),
    ],
)
def test_invalid_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Transformer(source_size=5, target_size=4, end=1, **sizes)


# ---------------------------------------------------------------------------------------- the cache as a state


def test_the_state_grows_by_one_step_and_follows_every_selection() -> None:
    case = transformer_case(1, num_heads=1)
    context = case.model.encode(case.batch)
    inputs_B1D, state = case.model.start(context)
    for step in range(3):
        assert [leaf.shape for layer in state for leaf in layer] == [(3, 1, 1, step, 4)] * 4
        _, state = case.model.step(inputs_B1D, state, context, step)
    four = tree.map(lambda leaf: torch.randn(3, 4, *leaf.shape[2:], dtype=torch.float64), state)
    parents_BK = torch.tensor([[3, 1], [0, 0], [2, 3]])
    one_hot_BKJ = nn.functional.one_hot(parents_BK, 4).double()
    for gathered, mixed in zip(tree.gather(four, parents_BK), tree.mix(four, one_hot_BKJ), strict=True):
        for gathered_leaf, mixed_leaf in zip(gathered, mixed, strict=True):
            torch.testing.assert_close(gathered_leaf, mixed_leaf, **TOLERANCE)


def test_the_relaxed_beam_is_algorithm_3() -> None:
    """Slot by slot, with caches that are mixed at every step."""
    compared = 0
    for seed, alpha in enumerate((0.5, 1.0, 5.0, 50.0)):
        case = transformer_case(seed)
        gold_BT = torch.randint(4, (3, 4))
        beam = beam_search(
            case.model,
            case.model.encode(case.batch),
            SoftTopK(3, alpha),
            num_steps=4,
            score=global_,
            cost=hamming_cost(gold_BT, 4),
        )
        for b, oracle in enumerate(case.oracles):
            cost = oracles.hamming(gold_BT[b].tolist(), 4)
            slots = oracles.soft_beam(oracle, k=3, alpha=alpha, num_steps=4, log_partition_weight=0.0, cost=cost)
            if min(slot.clearance for slot in slots) < 1e-6:
                continue
            compared += 1
            np.testing.assert_allclose(oracles.numbers(beam.scores_BK[b]), [slot.score for slot in slots], atol=1e-8)
            np.testing.assert_allclose(oracles.numbers(beam.costs_BK[b]), [slot.cost for slot in slots], atol=1e-8)
    assert compared >= 10


def test_the_relaxed_beam_tends_to_the_hard_beam_and_that_to_algorithm_1() -> None:
    compared = 0
    for seed in range(6):
        case = transformer_case(seed)
        context = case.model.encode(case.batch)
        hard = beam_search(case.model, context, HardTopK(3), num_steps=4)
        soft = beam_search(case.model, context, SoftTopK(3, 1e9), num_steps=4)
        for b, oracle in enumerate(case.oracles):
            expected = oracles.hard_beam(oracle, k=3, num_steps=4)
            assert backtrace(hard)[b].tolist() == [list(hypothesis.tokens) for hypothesis in expected]
            np.testing.assert_allclose(
                oracles.numbers(hard.scores_BK[b]), [hypothesis.score for hypothesis in expected], atol=1e-9
            )
            ranked = [extension.score for extension in oracles.hard_beam(oracle, k=4, num_steps=4)]
            if min(above - below for above, below in itertools.pairwise(ranked)) < 1e-3:
                continue
            compared += 1
            assert torch.equal(backtrace(soft)[b], backtrace(hard)[b])
            torch.testing.assert_close(soft.scores_BK[b], hard.scores_BK[b], atol=1e-6, rtol=0)
            for layer, other in zip(soft.state, hard.state, strict=True):
                for leaf, other_leaf in zip(layer, other, strict=True):
                    torch.testing.assert_close(leaf[b], other_leaf[b], atol=1e-4, rtol=0)
    assert compared >= 12


def test_outputs_are_scored_from_a_repeated_context() -> None:
    """The context is nested and still starts with the batch everywhere: all outputs of an input have probability 1."""
    case = transformer_case(2, target_size=3)
    every = [[*tokens, *[1] * (3 - len(tokens))] for tokens in oracles.all_outputs(case.oracles[0], 3)]
    outputs_BKT = torch.tensor([every] * 3)
    scores_BK = output_scores(case.model, case.model.encode(case.batch), outputs_BKT, local)
    torch.testing.assert_close(scores_BK.exp().sum(1), torch.ones(3, dtype=torch.float64), **TOLERANCE)
    gold = np.array([oracles.gold_score(case.oracles[1], tokens) for tokens in oracles.all_outputs(case.oracles[1], 3)])
    np.testing.assert_allclose(oracles.numbers(scores_BK[1]), gold, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("alpha", "scale"), [(1.5, 0.8), (100.0, 0.3)])
def test_gradients_through_the_relaxed_beam_are_those_of_finite_differences(alpha: float, scale: float) -> None:
    """Through mixed caches, to every parameter. Smaller weights at alpha = 100: nothing is one-hot."""
    case = transformer_case(3, target_size=3, lengths=(3, 1), scale=scale, num_layers=1)

    def loss(model: Any, batch: Any, values: Any) -> Tensor:
        context, cost = model.encode(batch), hamming_cost(torch.tensor([[0, 2, 1], [2, 1, 1]]), 3)
        beam = beam_search(model, context, SoftTopK(3, alpha), num_steps=3, score=global_, cost=cost)
        forced_BTV = model.head(model.teacher_forced(context, batch.targets_BT))
        return direct_loss(beam, alpha) + 0.1 * gold_scores(forced_BTV, batch.targets_BT, local).mean()

    names, parameters = zip(*case.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss(case.model, case.batch, {}), parameters)
    # Adding the same to all keys of a softmax changes nothing, so the biases of keys have none.
    assert all(float(g.abs().max()) > 1e-6 for name, g in zip(names, gradients, strict=True) if "key.bias" not in name)
    oracles.require_gradients(case, loss, rel=1e-4, abs=1e-5)


def test_bfloat16_searches_without_harm() -> None:
    case = transformer_case(0)
    case.model.bfloat16()
    context = case.model.encode(case.batch)
    beam = beam_search(case.model, context, SoftTopK(3, 1.0), num_steps=4)
    assert beam.scores_BK.dtype == torch.float32
    assert torch.isfinite(beam.scores_BK).all()
    beam.scores_BK.sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in case.model.parameters())
