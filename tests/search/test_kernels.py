"""The relaxed beam without its weights: equal to the plain form, and never certified wrongly.

The plain form (``expanded``) is held to loops over Python floats in ``test_selection.py`` and ``test_beam.py``; here
the forms that hold less are held to it, in float64, and the certificate to sums over sorted Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recording import LargestTensor
from seqwise.data import EncodedExample, collate
from seqwise.data.batches import Batch
from seqwise.models import EncoderDecoder, Tagger, Transformer, products
from seqwise.models.deferred_linear import DeferredLinear, exp_
from seqwise.objectives import direct_loss, gold_scores, hamming_cost, hinge_loss
from seqwise.objectives.objective import search_targets, teacher_forced_logits
from seqwise.search import (
    Beam,
    Candidates,
    HardTopK,
    Score,
    SoftSelection,
    SoftTopK,
    beam_search,
    cost_augmented,
    edit_distance_cost,
    global_,
    interpolated,
    local,
    mean_squared_gap,
    shifted,
    unroll,
)
from seqwise.search.large_vocabulary.blocks import best_candidates, block_maxima, excluded_mass_bound
from seqwise.search.large_vocabulary.relaxed import default_tolerance
from seqwise.search.large_vocabulary.scan import Choice, Scan, certify
from seqwise.search.operators import AlphaUnit, of_scores
from seqwise.search.selection import SummedSelection, token_sums
from seqwise.search.selectors import Form, automatic, expanded, summed

V = 140  # two blocks of 64 tokens and 12 single ones
CERTIFIED, DENSE = summed(tolerance=1e-13, most=40), summed(tolerance=-1, most=40)
each_form = pytest.mark.parametrize("form", [CERTIFIED, DENSE], ids=["certified", "dense"])
Model = Tagger | EncoderDecoder | Transformer


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def a_batch(vocabulary: int = V) -> Batch:
    draw = np.random.default_rng(3)
    rows = [(tuple(draw.integers(0, 7, n)), tuple(draw.integers(0, vocabulary, n))) for n in (3, 1, 4)]
    return collate([EncodedExample(source, target) for source, target in rows])


def a_model(name: str, *, scale: float = 6.0, vocabulary: int = V, seed: int = 0) -> Model:
    """A random model, whose scores lie the further apart the larger the scale is."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"source_size": 7, "target_size": vocabulary, "dropout": 0.0}
    model: Model
    if name == "tagger":
        model = Tagger(**sizes, embedding_size=4, hidden_size=6, label_embedding_size=5)
    elif name == "encoder-decoder":
        model = EncoderDecoder(**sizes, end=2, embedding_size=4, hidden_size=6)
    else:
        model = Transformer(**sizes, end=2, hidden_size=8, num_heads=2, feedforward_size=8)
    with torch.no_grad():
        model.head.weight.mul_(scale)
        model.head.bias.mul_(scale)
        if model.end is not None:  # outputs should end, and some before the last step
            model.head.bias[model.end] += 0.6 * scale
    return model


def batch_for(model: Model) -> Batch:
    return a_batch(len(model.embedding_VD)).to(next(model.parameters()).device)


def search(
    model: Model, form: Form, *, k: int = 3, alpha: float = 2.0, score: Score = local, unit: AlphaUnit = of_scores
) -> Beam:
    batch = batch_for(model)
    gold_BT, num_steps_B = search_targets(batch, model.end)
    # Every token costs something else: if all wrong ones cost the same, the loss of a bad model has hardly a gradient.
    weights_V = torch.linspace(0.5, 2.5, len(model.embedding_VD))
    cost, selector = hamming_cost(gold_BT, len(weights_V), weights_V), SoftTopK(k, alpha, unit, form)
    return beam_search(model, model.encode(batch), selector, num_steps=num_steps_B, score=score, cost=cost)


def loss_of(model: Model, form: Form, kind: str = "direct", **options: Any) -> Tensor:
    alpha = options.get("alpha", 2.0)
    if kind == "direct":
        return direct_loss(search(model, form, **options), alpha)
    batch, score = batch_for(model), options.pop("score", local)
    logits_BTV = teacher_forced_logits(model, model.encode(batch), batch)
    beam = search(model, form, score=cost_augmented(score), **options)
    return hinge_loss(beam, gold_scores(logits_BTV, batch.targets_BT, score) - 20.0, alpha)


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(names, parameters, found, strict=True)}


def assert_same(one: Tensor, other: Tensor, model: nn.Module, tolerance: float = 1e-9, least: float = 1e-4) -> None:
    assert abs(one.item() - other.item()) <= tolerance
    expected = gradients(one, model)
    for name, found in gradients(other, model).items():
        scale = 1 + expected[name].abs().max()
        assert (found - expected[name]).abs().max() <= tolerance * scale, name
    assert any(gradient.abs().max() > least for gradient in expected.values())


@contextmanager
def selections() -> Iterator[list[Any]]:
    """What SoftTopK selected."""
    seen: list[Any] = []
    call = SoftTopK.__call__

    def watched(self: SoftTopK, candidates: Candidates, carry: Any, generator: Any) -> Any:
        selection, carry = call(self, candidates, carry, generator)
        seen.append(selection)
        return selection, carry

    SoftTopK.__call__ = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        SoftTopK.__call__ = call  # type: ignore[method-assign]


def certified_share(seen: list[Any]) -> float:
    """Of all inputs and steps."""
    few = total = 0
    for selection in seen:
        for inputs_I, make in selection.parts:
            total += len(inputs_I)
            few += 0 if make().token_ids_BX is None else len(inputs_I)
    return few / total


# ---------------------------------------------------------------------------------------- equal to the plain form

CASES = [
    (name, score, k, alpha, scale, unit, kind)
    for place, name in enumerate(["tagger", "encoder-decoder", "transformer"])
    for score, k, alpha, scale, unit, kind in [
        (local, 3, 3.0, 14.0, of_scores, "direct"),
        (local, 5, 30.0, 3.0, mean_squared_gap, "hinge"),
        (global_, (1, 2, 4)[place], 4.0, 8.0, of_scores, "hinge"),
        (global_, 3, 9.0, 2.0, mean_squared_gap, "direct"),
        (interpolated(0.5), (4, 1, 2)[place], 200.0, 3.0, of_scores, "direct"),
        (interpolated(0.5), 2, 0.1, 1.0, of_scores, "hinge"),
    ]
]


@pytest.mark.thorough
@each_form
@pytest.mark.parametrize(("name", "score", "k", "alpha", "scale", "unit", "kind"), CASES)
def test_values_and_gradients_equal_the_plain_form(
    form: Form, name: str, score: Score, k: int, alpha: float, scale: float, unit: AlphaUnit, kind: str
) -> None:
    model, options = a_model(name, scale=scale), {"score": score, "k": k, "alpha": alpha, "unit": unit}
    expected = loss_of(model, expanded, kind, **options)
    with selections() as seen:
        found = loss_of(model, form, kind, **options)
    share = certified_share(seen)
    assert (share == 0.0) is (form is DENSE or alpha < 1)
    assert_same(expected, found, model)
    plain, other = search(model, expanded, **options), search(model, form, **options)
    for part in ("scores_BK", "costs_BK", "finished_BK", "inputs_BKD"):
        torch.testing.assert_close(getattr(other, part), getattr(plain, part), atol=1e-9, rtol=1e-9)


@each_form
def test_a_constant_is_taken_off_every_token_but_after_the_end(form: Form) -> None:
    model, options = a_model("encoder-decoder"), {"score": shifted(0.7), "k": 3, "alpha": 3.0}
    with selections() as seen:
        found = loss_of(model, form, **options)
    assert (certified_share(seen) > 0.5) is (form is CERTIFIED)
    assert_same(loss_of(model, expanded, **options), found, model)
    assert search(model, expanded, **options).finished_BK.max() > 0.5


def test_the_default_tolerance_of_float64_is_finer_than_that_of_float32() -> None:
    """60 candidates that together weigh some 1e-8 of the mass are not left out."""
    scores_BJV = torch.full((1, 1, 200), -50.0)
    scores_BJV[0, 0, :2], scores_BJV[0, 0, 70:130] = torch.tensor([0.0, -0.1]), -4.7
    assert 1e-9 < 60 * math.exp(-(4.7**2)) < 1e-7
    found, plain = (
        SoftTopK(2, 1.0, form=form)(a_step(scores_BJV), None, None)[0].scores_BK for form in (summed(), expanded)
    )
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-11)


def a_step(scores_BJV: Tensor) -> Candidates:
    """Candidates of a linear head, one hot feature for each slot, which a search would feed."""
    batch_size, num_slots, vocabulary = scores_BJV.shape
    head = nn.Linear(num_slots, vocabulary)
    with torch.no_grad():
        head.weight.copy_(scores_BJV[0].T)
        head.bias.zero_()
    return Candidates(
        prefix_scores_BJ=torch.zeros(batch_size, num_slots),
        features_BJH=torch.eye(num_slots).expand(batch_size, -1, -1),
        head=head,
        score=global_,
        finished_BJ=torch.zeros(batch_size, num_slots),
        embedding_VD=torch.zeros(vocabulary, 1),
    )


@each_form
def test_a_cost_that_is_learned_has_its_gradient(form: Form) -> None:
    model, costs_BV = a_model("tagger"), torch.rand(3, V, requires_grad=True)

    def gradient(chosen: Form) -> Tensor:
        selector = SoftTopK(3, 2.0, form=chosen)
        beam = beam_search(
            model,
            model.encode(a_batch()),
            selector,
            num_steps=2,
            score=cost_augmented(global_),
            cost=lambda _: costs_BV,
        )
        return torch.autograd.grad(direct_loss(beam, 2.0), costs_BV)[0]

    expected = gradient(expanded)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(gradient(form), expected, rtol=1e-9, atol=1e-12)


def test_inputs_of_one_step_may_take_different_ways() -> None:
    model, options = a_model("encoder-decoder", scale=5.0), {"k": 3, "alpha": 3.0}
    with selections() as seen:
        found = loss_of(model, CERTIFIED, **options)
    assert any(len(selection.parts) == 2 for selection in seen) and 0 < certified_share(seen) < 1
    assert_same(loss_of(model, expanded, **options), found, model)


@each_form
def test_a_head_that_is_not_linear_is_expanded_again(form: Form) -> None:
    model = a_model("tagger")
    linear = model.head
    model.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), linear)  # type: ignore[assignment]
    with selections() as seen:
        found = loss_of(model, form)
    assert certified_share(seen) == 0.0
    assert_same(loss_of(model, expanded), found, model)


def test_a_head_with_a_hook_is_called() -> None:
    model = a_model("tagger")
    model.head.register_forward_hook(lambda module, args, output: output * 0.5)
    assert_same(loss_of(model, expanded), loss_of(model, CERTIFIED), model)


@pytest.mark.parametrize("score", [local, cost_augmented(local)], ids=["beside", "in the scores"])
@each_form
def test_a_cost_that_knows_the_prefix(form: Form, score: Score) -> None:
    model, batch = a_model("encoder-decoder"), a_batch()
    gold_BT, num_steps_B = search_targets(batch, model.end)

    def loss(chosen: Form) -> Tensor:
        cost, selector = edit_distance_cost(gold_BT, V, end=2), SoftTopK(3, 2.0, form=chosen)
        beam = beam_search(model, model.encode(batch), selector, num_steps=num_steps_B, cost=cost, score=score)
        return direct_loss(beam, 2.0)

    assert_same(loss(expanded), loss(form), model)


@pytest.mark.parametrize("size", ["relaxed.GROUP", "chunked.CHUNK"])
def test_inputs_in_groups_and_in_chunks(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model("encoder-decoder")
    expected = loss_of(model, expanded)
    monkeypatch.setattr(f"seqwise.search.large_vocabulary.{size}", 3 * V)
    for form in (CERTIFIED, DENSE):
        assert_same(expected, loss_of(model, form), model)


# ---------------------------------------------------------------------------------------- awkward scores


def awkward(name: str) -> Tagger:
    model = a_model("tagger")
    assert isinstance(model, Tagger)
    with torch.no_grad():
        if name == "ties":  # every score four times: exact ties share their mass
            model.head.weight.copy_(model.head.weight[: V // 4].repeat(4, 1))
            model.head.bias.copy_(model.head.bias[: V // 4].repeat(4))
        elif name == "forbidden":
            model.head.bias[1::2] = -torch.inf
        elif name == "two-live":  # fewer candidates than k
            model.head.bias[2:] = -torch.inf
        elif name == "flat":
            model.head.weight.mul_(1e-6)
            model.head.bias.zero_()
    return model


@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@each_form
@pytest.mark.parametrize("name", ["ties", "forbidden", "two-live", "flat"])
def test_awkward_scores(name: str, form: Form, score: Score) -> None:
    model = awkward(name)
    with selections() as seen:
        found = loss_of(model, form, k=5, score=score)
    if name == "flat":
        assert certified_share(seen) == 0.0
    expected = loss_of(model, expanded, k=5, score=score)
    if name == "ties":  # whichever of the tied ones is called the maximum, together they have the same gradient
        assert found.item() == pytest.approx(expected.item(), abs=1e-10)
        ours, theirs = gradients(found, model), gradients(expected, model)
        for part in ours:
            of_token = part.startswith("head")
            one, other = (g[part].unflatten(0, (4, -1)).sum(0) if of_token else g[part] for g in (ours, theirs))
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    else:
        assert_same(expected, found, model, least=1e-8 if name == "flat" else 1e-4)
    plain, other = search(model, expanded, k=5, score=score), search(model, form, k=5, score=score)
    torch.testing.assert_close(other.scores_BK, plain.scores_BK, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@pytest.mark.parametrize("name", ["ties", "forbidden", "two-live", "flat"])
def test_awkward_scores_in_the_passes_of_a_device(name: str, score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    """All new slots together, in chunks of two inputs and one, and maxima by one sort."""
    for module in ("chunked", "scan"):
        monkeypatch.setattr(f"seqwise.search.large_vocabulary.{module}.passes_are_cheap", lambda _: False)
    monkeypatch.setattr("seqwise.search.large_vocabulary.chunked.LARGE_CHUNK", 2 * 5 * 5 * V)
    test_awkward_scores(name, DENSE, score)


@pytest.mark.parametrize("alpha", [1e-37, 1e37])
@pytest.mark.parametrize("name", ["ties", "forbidden", "two-live", "flat"])
def test_extreme_alphas_lose_no_mass_and_give_none_away(name: str, alpha: float) -> None:
    """All with a weight weigh the same: costs say whether what is forbidden has none, and whether all add up to 1."""
    model = awkward(name)
    if name == "flat":
        with torch.no_grad():
            model.head.weight.zero_()
    options: dict[str, Any] = {"k": 2, "alpha": alpha}
    plain, found = search(model, expanded, **options), search(model, DENSE, **options)
    torch.testing.assert_close(found.costs_BK, plain.costs_BK)
    torch.testing.assert_close(found.scores_BK, plain.scores_BK)


@pytest.mark.parametrize("learned", [True, False], ids=["features learned", "features given"])
@each_form
def test_dead_and_finished_slots(form: Form, learned: bool) -> None:
    """One step from slots of which one is dead, one has ended, one in part; and an input in which all are dead."""
    torch.manual_seed(1)
    head, embedding_VD = nn.Linear(4, V), torch.randn(V, 3, requires_grad=True)
    prefix_BJ = torch.tensor([[0.0, -0.1, -torch.inf, -0.3]]).repeat(2, 1)
    prefix_BJ[1] = -torch.inf
    finished_BJ = torch.tensor([[0.0, 1.0, 0.0, 0.3]]).repeat(2, 1).requires_grad_()
    features_BJH = (3 * torch.randn(2, 4, 4)).requires_grad_(learned)
    cost_BV = torch.rand(2, V)

    def outcome(chosen: Form) -> tuple[Tensor, ...]:
        candidates = Candidates(
            prefix_scores_BJ=prefix_BJ,
            features_BJH=features_BJH,
            head=head,
            score=local,
            cost=cost_BV,
            recompute_cost=lambda: cost_BV,
            finished_BJ=finished_BJ,
            end=2,
            embedding_VD=embedding_VD,
        )
        hard = HardTopK(5)(candidates, None, None)[0]
        selection = SoftTopK(5, 60.0, form=chosen)(replace(candidates), None, None)[0]
        assert isinstance(selection, SummedSelection) is (chosen is not expanded)
        assert chosen is expanded or certified_share([selection]) == (1.0 if chosen is CERTIFIED else 0.0)
        assert selection.parents_BK[0, :3].tolist() == hard.parents_BK[0, :3].tolist()
        assert selection.tokens_BK[0, :3].tolist() == hard.tokens_BK[0, :3].tolist()
        rest = (
            selection.expect(cost_BV),
            selection.token_mass(2),
            selection.token_masses(torch.tensor([[2, 5], [7, 2]])),
        )
        live_BK = selection.scores_BK.masked_fill(selection.scores_BK == -torch.inf, -99.0)
        sums = token_sums(selection, candidates.token_values)
        return live_BK, selection.embed(embedding_VD), selection.follow(prefix_BJ.clamp(min=-9)), *rest, *sums

    expected, found = outcome(expanded), outcome(form)
    inputs = *([features_BJH] if learned else []), finished_BJ, embedding_VD, head.weight, head.bias
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-10, rtol=1e-10)
        weights = torch.randn_like(one)
        asked = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        both = [torch.autograd.grad((x * weights).sum(), inputs, **asked) for x in (one, other)]
        for ours, theirs in zip(*both, strict=True):
            assert theirs.isfinite().all()
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@each_form
@pytest.mark.parametrize("score", [local, cost_augmented(interpolated(0.5))], ids=["local", "augmented"])
def test_gradcheck(form: Form, score: Score) -> None:
    torch.manual_seed(2)
    cost_BV = torch.rand(2, 70)

    def outcome(
        features: Tensor, weight: Tensor, bias: Tensor, embedding: Tensor, prefix: Tensor, ended: Tensor
    ) -> Any:
        head = nn.Linear(3, 70)
        del head.weight, head.bias
        head.weight, head.bias = weight, bias  # type: ignore[assignment]
        candidates = Candidates(
            prefix_scores_BJ=prefix,
            features_BJH=features,
            head=head,
            score=score,
            cost=cost_BV,
            recompute_cost=lambda: cost_BV,
            finished_BJ=ended,
            end=1,
            step=0,
            embedding_VD=embedding,
        )
        selection = SoftTopK(3, 3.0, mean_squared_gap, form)(candidates, None, None)[0]
        return selection.scores_BK, *token_sums(selection, candidates.token_values)

    inputs = [torch.randn(2, 2, 3) * 2, torch.randn(70, 3) * 3, torch.randn(70), torch.randn(70, 2), torch.randn(2, 2)]
    ended = torch.tensor([[0.0, 0.2], [0.6, 0.1]])
    assert torch.autograd.gradcheck(outcome, [x.requires_grad_() for x in (*inputs, ended)], fast_mode=True)


# ---------------------------------------------------------------------------------------- the certificate


def adversaries(draw: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores of 2 slots x 200 tokens and what is added to each slot."""
    offsets_BJ = torch.from_numpy(draw.normal(0, 1, (1, 2)))
    for scale in (0.0, 1e-9, 0.1, 3.0, 100.0):
        scores_BJV = torch.from_numpy(draw.normal(0, scale, (1, 2, 200)))
        yield scores_BJV, offsets_BJ
        yield scores_BJV.round(), torch.zeros_like(offsets_BJ)  # ties
        outlier_BJV = scores_BJV.clone()
        outlier_BJV[:, 1, 64:128] += 3 * scale  # one block far above
        yield outlier_BJV, offsets_BJ
        forbidden_BJV = scores_BJV.masked_fill(torch.from_numpy(draw.random((1, 2, 200)) < 0.97), -torch.inf)
        yield forbidden_BJV, offsets_BJ
        yield scores_BJV, torch.tensor([[0.0, -torch.inf]])
        yield scores_BJV.clamp(max=float(scores_BJV.flatten().sort().values[-4])), offsets_BJ  # the best are tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_is_never_below_the_mass_that_is_left_out(dtype: torch.dtype) -> None:
    draw, certified, nearest = np.random.default_rng(5), 0, 0.0
    for _ in range(6):
        for scores_BJV, offsets_BJ in adversaries(draw):
            scores_BJV, offsets_BJ = scores_BJV.to(dtype), offsets_BJ.to(dtype)
            extra_BE = scores_BJV[..., 0] + torch.from_numpy(draw.normal(0, 1, (1, 2))).to(dtype)
            everything = [*(scores_BJV + offsets_BJ[..., None]).flatten().tolist(), *extra_BE.flatten().tolist()]
            ranked, none = sorted(everything, reverse=True), torch.zeros(1, dtype=torch.long)
            k, n = int(draw.integers(1, 6)), int(draw.integers(6, 60))
            alpha = float(10 ** draw.uniform(-6, 4))
            blocks = block_maxima(scores_BJV, offsets_BJ, extra_BE)
            best = best_candidates(blocks, none, n)
            assert best.scores_BX[0].tolist() == ranked[:n]
            bound = float(excluded_mass_bound(blocks, none, best, k, torch.tensor([alpha], dtype=torch.float64)))
            for maximum in ranked[:k]:
                if maximum == -math.inf:
                    continue
                masses = [0.0 if s == -math.inf else math.exp(-alpha * (s - maximum) ** 2) for s in ranked]
                left_out = math.fsum(masses[n:]) / math.fsum(masses)
                assert left_out <= bound
                nearest = max(nearest, left_out / bound if bound else 1.0)
            certified += bound <= 1e-7
    assert certified > 20
    assert nearest > 0.5  # and no bound that says nothing


@pytest.mark.thorough
@pytest.mark.parametrize("tolerance", [1e-12, 1e-7, 1e-3])
def test_what_is_certified_leaves_out_no_more_than_the_tolerance(tolerance: float) -> None:
    draw, certified, narrow = np.random.default_rng(7), 0, 0
    for _ in range(6):
        for scores_BJV, offsets_BJ in adversaries(draw):
            zeros_BJ, k, alpha = torch.zeros(1, 2), int(draw.integers(1, 6)), float(10 ** draw.uniform(-2, 3))
            candidates = Candidates.of_scores(scores_BJV, prefix_scores_BJ=offsets_BJ)
            scan = Scan(scores_BJV.clone(), None, zeros_BJ, None)
            allowed = tolerance
            if draw.random() < 0.5:  # just as much as the first few leave
                allowed = 1.0001 * certify(candidates, scan, Choice(k, alpha, of_scores, 1e9, 32)).bound_B.item()
            kept = certify(candidates, scan, Choice(k, alpha, of_scores, allowed, 100))
            if not kept.bound_B.item() <= allowed:
                continue
            certified += 1
            ranked = sorted((scores_BJV + offsets_BJ[..., None]).flatten().tolist(), reverse=True)
            n = int(kept.kept_BX.sum())
            narrow += n < 32
            assert kept.best.scores_BX[kept.kept_BX].tolist() == ranked[:n]
            for maximum in ranked[:k]:
                if maximum > -math.inf:
                    masses = [0.0 if s == -math.inf else math.exp(-alpha * (s - maximum) ** 2) for s in ranked]
                    assert math.fsum(masses[n:]) <= allowed  # and what they sum to is 1 or more
    assert certified > 30 and narrow > 20


@pytest.mark.parametrize("vocabulary", [7, 64, 200, 256])
@pytest.mark.parametrize("n", [1, 3, 6, 19])
def test_the_best_candidates_are_those_of_a_sort(vocabulary: int, n: int) -> None:
    """Of blocks, single tokens, extra candidates, and where fewer live than are asked for."""
    values_BJV, offsets_BJ, extra_BE = torch.randn(2, 3, vocabulary), torch.randn(2, 3), torch.randn(2, 3)
    values_BJV[1, :, : vocabulary - 2], extra_BE[1, 0] = -math.inf, -math.inf
    for extra in (extra_BE, extra_BE[:, :0]):
        best = best_candidates(block_maxima(values_BJV, offsets_BJ, extra), torch.tensor([1, 0]), n)
        for row, b in enumerate((1, 0)):
            all_scores = torch.cat([(values_BJV[b] + offsets_BJ[b, :, None]).flatten(), extra[b]])
            assert best.scores_BX[row].tolist() == all_scores.sort(descending=True).values[:n].tolist()
            found = list(zip(*(values[row].tolist() for values in best), strict=True))
            for score, slot, token in found:
                assert -1 <= token < vocabulary
                own = extra[b, slot] if token < 0 else values_BJV[b, slot, token] + offsets_BJ[b, slot]
                assert score == own or score == -math.inf
            live = [where for score, *where in found if score > -math.inf]
            assert len({tuple(where) for where in live}) == len(live)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_reach_the_scores(bad: float) -> None:
    model = a_model("tagger")
    with torch.no_grad():
        model.head.bias[100] = bad
    plain, found = search(model, expanded), search(model, CERTIFIED)
    assert plain.scores_BK.isnan().any() and found.scores_BK.isnan().any()


def test_the_default_tolerance_of_float32_moves_gradients_by_no_more_than_it_says() -> None:
    """In float64, where truncation is all that differs, so that the processor's rounding plays no part.

    A step leaves out a mass of at most tol for each of its k choices. Candidate i passes on p_i (1 + 2 alpha gap_i)
    times what its score is worth, and mass tol among n candidates is cut where alpha gap^2 = ln(n / tol). So the
    relative change is of the order of tol (1 + 2 sqrt(alpha ln(n / tol))) for each of the k T choices of a search.
    """
    model, k, alpha, tolerance = a_model("encoder-decoder", scale=6.0), 3, 2.0, default_tolerance(torch.float32)
    with selections() as seen:
        ours = gradients(loss_of(model, summed(tolerance=tolerance), k=k, alpha=alpha), model)
    assert certified_share(seen) > 0.5
    exact = gradients(loss_of(model, expanded, k=k, alpha=alpha), model)
    per_choice = tolerance * (1 + 2 * math.sqrt(alpha * math.log(k * V / tolerance)))
    largest = max(gradient.abs().max() for gradient in exact.values())
    changes = [(ours[name] - gradient).abs().max() for name, gradient in exact.items()]
    assert 0 < max(changes) <= k * len(seen) * per_choice * largest


def test_float32_rounds_the_few_candidates_no_worse_than_all() -> None:
    """Rounding is what float32 adds to the same truncated sum; the plain form's is its largest over eight roundings.

    One comparison with one rounding of the plain form would depend on the processor: how a library orders its sums
    moves either error by a factor of six. So the weights are moved by one unit in the last place, eight times.
    """
    torch.set_default_dtype(torch.float32)
    model = a_model("encoder-decoder", scale=6.0)
    ours, weights = gradients(loss_of(model, summed(), alpha=2.0), model), deepcopy(model.state_dict())
    roundings = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                units = torch.randint(-1, 2, parameter.shape, generator=generator)
                parameter.copy_(weights[name] * (1 + torch.finfo(torch.float32).eps * units))
        roundings.append(gradients(loss_of(model, expanded, alpha=2.0), model))
    model.load_state_dict(weights)
    torch.set_default_dtype(torch.float64)
    exact = gradients(loss_of(model.double(), expanded, alpha=2.0), model)
    cut = gradients(loss_of(model, summed(tolerance=default_tolerance(torch.float32)), alpha=2.0), model)
    for name, gradient in exact.items():
        noise = max((rounded[name] - gradient).abs().max() for rounded in roundings)
        assert (ours[name] - cut[name]).abs().max() <= 3 * noise, name


@pytest.mark.parametrize("alpha", [1.0, 300.0])
@pytest.mark.parametrize("unit", [of_scores, mean_squared_gap])
def test_gaps_to_excluded_candidates_do_not_overflow_in_float32(unit: AlphaUnit, alpha: float) -> None:
    """All scores equal: a dead or ended slot lies 1e18 below, times the root of alpha over a unit of 1e-8."""
    model = a_model("encoder-decoder")
    with torch.no_grad():
        model.head.weight.mul_(1e-3)
        model.head.bias.zero_()
        model.head.bias[3] = -torch.inf
    options: dict[str, Any] = {"score": global_, "unit": unit, "alpha": alpha}
    exact = gradients(loss_of(model, expanded, **options), model)
    torch.set_default_dtype(torch.float32)
    found = gradients(1e3 * loss_of(model.float(), DENSE, **options), model)
    for name, gradient in exact.items():
        assert found[name].isfinite().all(), name
        largest = max(g.abs().max() for g in exact.values())
        assert (found[name] / 1e3 - gradient).abs().max() <= 2e-2 * largest, name


def test_exponentials_that_underflow_are_exactly_0() -> None:
    for dtype, lowest in ((torch.float32, -60.0), (torch.float64, -600.0)):
        found = exp_(torch.tensor([0.0, -1.0, lowest, -1e5, -torch.inf, torch.nan], dtype=dtype))
        torch.testing.assert_close(found[:2], torch.tensor([1.0, math.exp(-1.0)], dtype=dtype))
        assert found[2:5].tolist() == [0.0, 0.0, 0.0] and found[5].isnan()


# ---------------------------------------------------------------------------------------- what is held


@pytest.mark.thorough
@pytest.mark.parametrize("score", [local, global_], ids=["local", "global"])
@each_form
@pytest.mark.parametrize("name", ["tagger", "encoder-decoder", "transformer"])
def test_nothing_of_size_v_is_saved_nor_k_times_k_times_v_ever_made(name: str, form: Form, score: Score) -> None:
    vocabulary, k = 997, 3
    model = a_model(name, vocabulary=vocabulary)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.append(tensor)
        return tensor

    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, form, k=k, score=score)
        loss.backward()
    assert saved and not [tensor.shape for tensor in saved if vocabulary in tensor.shape]
    assert max(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in saved) < 3 * vocabulary
    assert largest.numbers <= 3 * k * vocabulary  # 3 inputs


def test_the_plain_form_does_hold_them() -> None:
    """So that the test above can fail."""
    with LargestTensor() as largest:
        loss_of(a_model("tagger", vocabulary=997), expanded)
    assert largest.numbers >= 3 * 3 * 3 * 997


# ---------------------------------------------------------------------------------------- deferred gradients


@each_form
def test_a_graph_may_be_used_again(form: Form) -> None:
    model = a_model("tagger")
    loss = loss_of(model, form)
    once = gradients(loss, model)
    # A backward pass that stops short of the weights leaves nothing behind for the next.
    torch.autograd.grad(loss, [model.first_input_D], retain_graph=True)  # type: ignore[union-attr,list-item]
    again = gradients(loss, model)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(again[name], once[name], atol=1e-14, rtol=1e-12)
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, once[name], atol=1e-14, rtol=1e-12)


@each_form
def test_several_beams_in_one_graph(form: Form) -> None:
    model = a_model("encoder-decoder")

    def both(chosen: Form) -> Tensor:
        one, other = loss_of(model, chosen, k=2), loss_of(model, chosen, "hinge", k=3, score=global_)
        return one * other + other

    assert_same(both(expanded), both(form), model)


def frozen(name: str) -> Callable[[Model], None]:
    def freeze(model: Model) -> None:
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(not parameter_name.startswith(name))

    return freeze


def tied(model: Model) -> None:
    model.target_embedding.weight = model.head.weight  # type: ignore[union-attr]


def without_bias(model: Model) -> None:
    model.head.bias = None  # type: ignore[assignment]


def all_but_the_head_frozen(model: Model) -> None:
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name.startswith("head"))


@each_form
@pytest.mark.parametrize(
    "change",
    [
        frozen("head"),
        frozen("head.weight"),
        frozen("head.bias"),
        frozen("target_embedding"),
        all_but_the_head_frozen,
        tied,
        without_bias,
    ],
    ids=["head", "head weight", "head bias", "embedding", "all but the head", "tied", "no bias"],
)
def test_weights_without_gradient_tied_or_missing(change: Callable[[Model], None], form: Form) -> None:
    model = a_model("encoder-decoder")
    if change is tied:
        model = EncoderDecoder(source_size=7, target_size=V, end=2, embedding_size=6, hidden_size=6, dropout=0.0)
    change(model)
    assert_same(loss_of(model, expanded, alpha=9.0), loss_of(model, form, alpha=9.0), model)


@each_form
def test_without_gradients_there_is_no_graph(form: Form) -> None:
    model = a_model("tagger")
    with torch.no_grad():
        found = search(model, form)
    assert not found.scores_BK.requires_grad
    torch.testing.assert_close(found.scores_BK, search(model, expanded).scores_BK, atol=1e-9, rtol=1e-9)


def test_weights_that_changed_since_are_refused() -> None:
    model = a_model("tagger")
    loss = loss_of(model, CERTIFIED)
    with torch.no_grad():
        model.head.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.parametrize("form", [summed(), DENSE], ids=["certified", "dense"])
def test_autocast_is_the_same_in_both_passes(form: Form) -> None:
    torch.set_default_dtype(torch.float32)
    model = a_model("tagger")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
        except RuntimeError:
            pytest.skip("this processor has no LSTM in bfloat16")
        expected, found = loss_of(model, expanded), loss_of(model, form)
    one, other = gradients(expected, model), gradients(found, model)
    for name, gradient in one.items():
        assert (other[name] - gradient).norm() <= 0.1 * gradient.norm() + 1e-5, name


def test_gradients_follow_autocast_and_their_sum_is_not_rounded_to_16_bits() -> None:
    torch.set_default_dtype(torch.float32)
    draw, steps = torch.Generator().manual_seed(0), 200
    gradients_SNV, rows_SND = (torch.randint(-3, 4, (steps, 4, n), generator=draw).float() for n in (30, 8))
    weight = torch.nn.Parameter(torch.randn(30, 8, generator=draw))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = DeferredLinear(weight)
    assert linear.of_gradient(gradients_SNV[0]).dtype == torch.bfloat16

    def note(_: Tensor) -> None:
        for gradient_NV, rows_ND in zip(gradients_SNV, rows_SND, strict=True):
            linear.note_product(gradient_NV, rows_ND)

    assert linear.anchor is not None
    linear.anchor.register_hook(note)
    linear.anchor.backward()
    # 16 bits hold the integers of each product, at most 36, but not those of their sum.
    exact_VD = torch.einsum("snv,snd->vd", gradients_SNV.double(), rows_SND.double())
    assert exact_VD.abs().max() > 256
    assert weight.grad is not None and torch.equal(weight.grad.double(), exact_VD)


# ---------------------------------------------------------------------------------------- the choice


def test_the_form_is_chosen_by_size_and_by_scores_already_expanded() -> None:
    def kinds(vocabulary: int) -> set[type]:
        with selections() as seen, torch.no_grad():
            search(a_model("tagger", vocabulary=vocabulary), automatic)
        return {type(selection) for selection in seen}

    assert SoftTopK(3, 1.0).form is automatic
    assert kinds(30) == {SoftSelection}
    assert SoftSelection not in kinds(5000)
    model, batch = a_model("tagger", vocabulary=5000), a_batch()
    steps = unroll(model, model.encode(batch), SoftTopK(2, 1.0), num_steps=1)
    candidates = next(steps).candidates
    assert candidates.many
    assert not isinstance(SoftTopK(2, 1.0)(candidates, None, None)[0], SoftSelection)
    assert candidates.scores_BJV.shape == (3, 1, 5000) and not candidates.many
    assert isinstance(SoftTopK(2, 1.0)(candidates, None, None)[0], SoftSelection)  # it is all there already
    few = candidates.without(torch.zeros(3, 1, dtype=torch.long))
    assert isinstance(SoftTopK(2, 1.0)(few, None, None)[0], SoftSelection)


@each_form
def test_a_forced_token(form: Form) -> None:
    model, batch = a_model("tagger"), a_batch()
    mask_B, tokens_B = torch.tensor([True, False, True]), torch.tensor([4, 5, 6])
    cost = hamming_cost(batch.targets_BT, V)

    def outcome(chosen: Form) -> tuple[Tensor, ...]:
        step = next(unroll(model, model.encode(batch), SoftTopK(1, 2.0, form=chosen), num_steps=1, cost=cost))
        selection = step.selection.forced(mask_B, tokens_B)
        masses = selection.token_mass(6), selection.token_masses(torch.tensor([[4, 0], [5, 1], [6, 2]]))
        rest = selection.scores_BK, selection.tokens_BK, selection.parents_BK, selection.embed(model.embedding_VD)
        return *rest, selection.expect(cost(0)), *masses, *token_sums(selection, step.candidates.token_values)

    for expected, found in zip(outcome(expanded), outcome(form), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_large_products_are_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By oneDNN, before and after it has laid out the weights, or not; and gradients through a whole search."""
    if products._LINEAR is None:
        pytest.skip("torch has no oneDNN here")
    torch.set_default_dtype(torch.float32)
    draw = torch.Generator().manual_seed(0)
    calls, real = [], products._LINEAR
    monkeypatch.setattr(products, "_LINEAR", lambda rows, *rest: calls.append(rest[0]) or real(rows, *rest))
    weight_VD, bias_V = torch.randn(5000, 256, generator=draw), torch.randn(5000, generator=draw)
    for weight in (weight_VD, weight_VD.T.contiguous().T):
        for bias in (bias_V, None):
            of_this, before = products.Products(weight, bias), len(calls)
            for shape in ((3, 256), (2, 3, 256), (1, 256), (0, 256), (7, 256), (2, 150, 256), (250, 256)):
                rows = torch.randn(*shape, generator=draw)
                found, exact = of_this(rows), rows.double() @ weight_VD.double().T
                exact = exact if bias is None else exact + bias.double()
                torch.testing.assert_close(found.double(), exact, atol=2e-4, rtol=1e-4)
            # Not of one row, none, or hundreds; and the copy of the weights is made once.
            assert [each is weight for each in calls[before:]] == [True, True, False, False]
            assert calls[-1] is calls[-2]
    before = len(calls)
    products.Products(weight_VD.double(), None)(torch.ones(5, 256).double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.Products(weight_VD, None)(torch.ones(5, 256)).dtype == torch.bfloat16
    assert len(calls) == before
    monkeypatch.setattr(products, "LARGE", 1)
    model = a_model("tagger", scale=14.0).float()
    found = loss_of(model, CERTIFIED)
    gradients_found = gradients(found, model)
    assert len(calls) > before + products.PATIENCE
    monkeypatch.setattr(products, "_LINEAR", None)
    usual = loss_of(model, CERTIFIED)
    assert found.item() == pytest.approx(usual.item(), abs=1e-5)
    for name, gradient in gradients(usual, model).items():
        torch.testing.assert_close(gradients_found[name], gradient, atol=1e-4, rtol=1e-3)
