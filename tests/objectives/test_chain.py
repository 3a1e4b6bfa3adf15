"""Linear chains against enumeration and pytorch-crf, and as step models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import oracles
from oracles import log_sum_exp, randomised, tagger_case
from seqwise import InputError
from seqwise.data import EncodedExample, collate
from seqwise.decoding import Decoder, decode_examples
from seqwise.models import Chain, ChainTagger, linear_chain
from seqwise.objectives import beam_crf_objective, best_chain_output, chain_log_partition, chain_loss, chain_marginals
from seqwise.objectives import chain as chain_module
from seqwise.objectives.chain import chain_score, crf_objective
from seqwise.objectives.self_normalization import unnormalized_likelihood_objective
from seqwise.search import HardTopK, Score, SoftTopK, backtrace, beam_search, global_, interpolated, local, viterbi

TOLERANCE = {"atol": 1e-9, "rtol": 1e-9}
GRADIENT = {"atol": 1e-7, "rtol": 1e-7}


# ---------------------------------------------------------------------------------------- enumeration in Python


def scores_of_all(chain: Chain, b: int) -> dict[tuple[int, ...], float]:
    """Every output of an input, and its score, summed label by label."""
    labels, transitions = chain.scores_BTV[b].tolist(), chain.transitions_VV.tolist()
    found = {}
    for output in itertools.product(range(len(transitions)), repeat=int(chain.lengths_B[b])):
        total = sum(labels[step][label] for step, label in enumerate(output))
        found[output] = total + sum(transitions[i][j] for i, j in itertools.pairwise(output))
    return found


def random_chain(seed: int, *, scale: float = 2.0, lengths: tuple[int, ...] = (4, 1, 0, 3)) -> Chain:
    """Three labels, and inputs of several lengths, in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores_BTV = torch.randn(len(lengths), max(lengths), 3, generator=generator, dtype=torch.float64)
    transitions_VV = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    return Chain(scale * scores_BTV, scale * transitions_VV, torch.tensor(lengths))


@pytest.fixture(params=["scaled", "logarithms"])
def recursion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either recursion on the same chains."""
    if request.param == "logarithms":
        monkeypatch.setattr(chain_module, "_can_be_scaled", lambda chain: False)
    return str(request.param)


def test_everything_equals_enumeration(recursion: str) -> None:
    for seed, scale in itertools.product(range(5), (0.5, 2.0, 30.0)):
        chain = random_chain(seed, scale=scale)
        log_partition_B, marginals_BTV = chain_log_partition(chain), chain_marginals(chain)
        best_B, outputs_BT = best_chain_output(chain)
        for b, length in enumerate(chain.lengths_B.tolist()):
            every = scores_of_all(chain, b)
            total = log_sum_exp(list(every.values()))
            assert log_partition_B[b].item() == pytest.approx(total, abs=1e-9, rel=1e-12)
            for step in range(4):
                for label in range(3):
                    expected = sum(
                        math.exp(s - total) for output, s in every.items() if step < length and output[step] == label
                    )
                    assert marginals_BTV[b, step, label].item() == pytest.approx(expected, abs=1e-9)
            highest = max(every, key=every.__getitem__)
            assert tuple(outputs_BT[b, :length].tolist()) == highest
            assert best_B[b].item() == pytest.approx(every[highest], abs=1e-9)
            assert bool((outputs_BT[b, length:] == -100).all())
        drawn = [list(output) for output in (max(scores_of_all(chain, b)) for b in range(4))]
        gold_BT = torch.tensor([row + [-100] * (4 - len(row)) for row in drawn])
        expected_B = [scores_of_all(chain, b)[tuple(row)] for b, row in enumerate(drawn)]
        torch.testing.assert_close(chain_score(chain, gold_BT), torch.tensor(expected_B, dtype=torch.float64))
        losses_B = chain_log_partition(chain) - torch.tensor(expected_B, dtype=torch.float64)
        torch.testing.assert_close(chain_loss(chain, gold_BT), losses_B, **TOLERANCE)


@pytest.mark.thorough
def test_gradients_equal_those_of_the_enumerated_sum(recursion: str) -> None:
    """The oracle's gradient is autograd's through a logsumexp over all outputs; the inputs are weighted unequally."""
    weights_B = torch.tensor([1.0, -2.0, 5.0, 0.3], dtype=torch.float64)
    for seed in range(5):
        chain = random_chain(seed)
        ours, theirs = ([leaf.clone().requires_grad_() for leaf in chain[:2]] for _ in range(2))
        (chain_log_partition(Chain(*ours, chain.lengths_B)) * weights_B).sum().backward()
        total = torch.zeros((), dtype=torch.float64)
        for b, length in enumerate(chain.lengths_B.tolist()):
            outputs = [
                sum((theirs[0][b, t, y] for t, y in enumerate(output)), torch.zeros((), dtype=torch.float64))
                + sum(theirs[1][i, j] for i, j in itertools.pairwise(output))
                for output in itertools.product(range(3), repeat=length)
            ]
            total = total + weights_B[b] * torch.stack(outputs).logsumexp(0)
        total.backward()
        for mine, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, expected.grad, **GRADIENT)
        torch.autograd.gradcheck(
            lambda u, a, lengths_B=chain.lengths_B: chain_log_partition(Chain(u, a, lengths_B)), ours
        )
        gold_BT = torch.zeros(4, 4, dtype=torch.long)
        torch.autograd.gradcheck(
            lambda u, a, lengths_B=chain.lengths_B, y=gold_BT: chain_loss(Chain(u, a, lengths_B), y), ours
        )


def test_beginnings_and_ends_are_labels_scores(recursion: str) -> None:
    chain = random_chain(3, lengths=(3, 1, 2))
    start_V, end_V = torch.randn(2, 3, dtype=torch.float64)
    folded = linear_chain(*chain, start_V=start_V, end_V=end_V)
    for b in range(3):
        totals = [s + start_V[y[0]].item() + end_V[y[-1]].item() for y, s in scores_of_all(chain, b).items()]
        assert chain_log_partition(folded)[b].item() == pytest.approx(log_sum_exp(totals), abs=1e-9)


# ---------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 60.0, 80.0, 1e3, 1e30])
def test_large_scores_neither_overflow_nor_vanish(dtype: torch.dtype, size: float) -> None:
    """The label that wins at a position has to leave by the worst transition: scores pull as hard as transitions.

    What underflows in the middle of a path must not be missed at its end.
    """
    for seed in range(10):
        chain = random_chain(seed, scale=1.0)
        spread_VV = size * (torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 0.5)
        exact = Chain((3 * size * chain.scores_BTV).to(dtype).double(), spread_VV.to(dtype).double(), chain.lengths_B)
        asked = Chain(exact.scores_BTV.to(dtype), exact.transitions_VV.to(dtype), chain.lengths_B)
        found_B = chain_log_partition(asked)
        assert found_B.dtype == dtype
        for b in range(4):
            values = list(scores_of_all(exact, b).values())
            largest = max(abs(v) for v in [*values, *exact.scores_BTV[b].flatten().tolist(), 1.0])
            error = abs(found_B[b].item() - log_sum_exp(values))
            assert error <= 40 * torch.finfo(dtype).eps * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("far", [-3e3, 3e3])
def test_what_all_scores_share_adds_to_the_log_partition_alone(dtype: torch.dtype, far: float) -> None:
    """The fast recursion, whose guards against overflow nothing else needs: exponentials of 3,000 are infinite."""
    near = random_chain(1, scale=1.0)
    offsets_1T = far * torch.tensor([[1.0, 0.0, 2.0, 1.0]], dtype=torch.float64)
    counted_BT = torch.arange(4) < near.lengths_B[:, None]
    scores_BTV = (near.scores_BTV + offsets_1T[..., None]).masked_fill(~counted_BT[..., None], torch.inf)
    shifted = Chain(scores_BTV.to(dtype), (near.transitions_VV + far).to(dtype), near.lengths_B)
    assert chain_module._can_be_scaled(shifted)
    leaves = [leaf.requires_grad_() for leaf in shifted[:2]]
    found_B = chain_log_partition(shifted)
    added_B = (offsets_1T * counted_BT).sum(1) + far * (near.lengths_B - 1).clamp(min=0)
    error = 100 * torch.finfo(dtype).eps * abs(far)
    assert torch.allclose(found_B.double(), chain_log_partition(near) + added_B, rtol=0, atol=error)
    found_B.sum().backward()
    assert leaves[0].grad is not None and leaves[1].grad is not None
    assert torch.allclose(leaves[0].grad.double(), chain_marginals(near), rtol=0, atol=error)
    assert bool(torch.isfinite(leaves[1].grad).all())


def rescued_chain(span: float, dtype: torch.dtype = torch.float32) -> Chain:
    """From label 0 to label 1, both forced by their scores: by 0, which costs ``span`` once, or by 1, twice."""
    scores_BTV = torch.tensor([[[0.0, -1e4], [0.0, 0.0], [-1e4, 0.0]]], dtype=dtype)
    return Chain(scores_BTV, torch.tensor([[0.0, -span], [-span, -span]], dtype=dtype), torch.tensor([3]))


@pytest.mark.parametrize("span", [1.0, 50.0, 65.0, 70.0, 87.0, 96.0, 100.0, 1000.0])
def test_a_path_that_looks_hopeless_half_way_is_not_lost(span: float) -> None:
    chain = rescued_chain(span)
    leaves = [leaf.requires_grad_() for leaf in chain[:2]]
    log_partition_B = chain_log_partition(chain)
    assert log_partition_B.item() == pytest.approx(log_sum_exp([-span, -2 * span]), rel=1e-6)
    log_partition_B.sum().backward()
    share = 1 / (1 + math.exp(-span))
    assert leaves[0].grad is not None and leaves[0].grad[0, 1].tolist() == pytest.approx([share, 1 - share], abs=1e-6)
    assert leaves[1].grad is not None and leaves[1].grad[0, 1].item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("span", [20.0, 33.0, 36.0, 50.0, 65.0, 70.0])
def test_a_label_that_is_cheap_to_enter_and_to_leave_is_not_lost(span: float) -> None:
    """0 -> 1 -> 3 costs nothing but a label's score of -2 span + 10, which vanishes beside that of label 2 at first."""
    transitions_VV = torch.full((4, 4), -span)
    transitions_VV[0, 1] = transitions_VV[1, 3] = 0.0
    scores_BTV = torch.full((1, 3, 4), -1e3)
    scores_BTV[0, 0, 0] = scores_BTV[0, 1, 2] = scores_BTV[0, 2, 3] = 0.0
    scores_BTV[0, 1, 1] = 10 - 2 * span
    chain = Chain(scores_BTV, transitions_VV, torch.tensor([3]))
    assert chain_log_partition(chain).item() == pytest.approx(log_sum_exp([10 - 2 * span, -2 * span]), rel=1e-6)
    share = 1 / (1 + math.exp(-10))
    assert chain_marginals(chain)[0, 1].tolist() == pytest.approx([0.0, share, 1 - share, 0.0], abs=1e-6)


def test_forbidden_transitions_and_labels() -> None:
    chain = random_chain(0, lengths=(4, 2))
    chain.transitions_VV[0, 1] = chain.transitions_VV[2, 2] = -torch.inf
    chain.scores_BTV[0, 2, 1] = -torch.inf
    leaves = [leaf.requires_grad_() for leaf in chain[:2]]
    log_partition_B = chain_log_partition(chain)
    for b in range(2):
        allowed = [s for s in scores_of_all(chain, b).values() if s > -math.inf]
        assert log_partition_B[b].item() == pytest.approx(log_sum_exp(allowed), abs=1e-9)
    log_partition_B.sum().backward()
    assert all(leaf.grad is not None and bool(torch.isfinite(leaf.grad).all()) for leaf in leaves)
    assert leaves[1].grad is not None and leaves[1].grad[0, 1] == 0
    best_B, outputs_BT = best_chain_output(chain)
    every = scores_of_all(chain, 0)
    assert every[tuple(outputs_BT[0].tolist())] == pytest.approx(max(every.values())) == best_B[0].item()


def test_where_every_output_is_forbidden() -> None:
    chain = Chain(torch.zeros(2, 2, 2), torch.full((2, 2), -torch.inf), torch.tensor([2, 1]))
    scores_BTV = chain.scores_BTV.requires_grad_()
    log_partition_B = chain_log_partition(chain)
    assert log_partition_B[0] == -torch.inf and log_partition_B[1].item() == pytest.approx(math.log(2))
    log_partition_B[1:].sum().backward()
    assert scores_BTV.grad is not None and scores_BTV.grad[:, 0].tolist() == [[0, 0], [0.5, 0.5]]
    assert chain_marginals(chain)[0].abs().sum() == 0
    # By labels rather than by transitions.
    blocked = Chain(torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.tensor([3, 1]))
    blocked.scores_BTV[:, 1] = -torch.inf
    assert chain_log_partition(blocked).tolist() == [-torch.inf, pytest.approx(math.log(2))]
    assert chain_marginals(blocked)[:, 0].tolist() == [[0, 0], [0.5, 0.5]]


def test_padding_plays_no_part(recursion: str) -> None:
    chain = random_chain(1)
    transitions_VV = chain.transitions_VV.clone().requires_grad_()
    chain_log_partition(chain._replace(transitions_VV=transitions_VV)).sum().backward()
    for filling in (1e30, -torch.inf, torch.nan):
        padded = chain.scores_BTV.clone()
        padded[torch.arange(4) >= chain.lengths_B[:, None]] = filling
        again = Chain(padded.requires_grad_(), chain.transitions_VV.clone().requires_grad_(), chain.lengths_B)
        torch.testing.assert_close(chain_log_partition(again), chain_log_partition(chain))
        torch.testing.assert_close(chain_marginals(again), chain_marginals(chain))
        chain_log_partition(again).sum().backward()
        assert padded.grad is not None and bool(torch.isfinite(padded.grad).all())
        torch.testing.assert_close(again.transitions_VV.grad, transitions_VV.grad)


def test_empty_chains() -> None:
    chain = Chain(torch.zeros(2, 0, 3), torch.zeros(3, 3), torch.tensor([0, 0]))
    assert chain_log_partition(chain).tolist() == [0, 0]
    assert chain_marginals(chain).shape == (2, 0, 3) and best_chain_output(chain)[1].shape == (2, 0)
    assert chain_loss(chain, torch.zeros(2, 0, dtype=torch.long)).tolist() == [0, 0]


def test_half_precision_is_computed_in_single() -> None:
    chain = random_chain(2)
    half = Chain(chain.scores_BTV.bfloat16(), chain.transitions_VV.bfloat16(), chain.lengths_B)
    single = Chain(half.scores_BTV.float(), half.transitions_VV.float(), chain.lengths_B)
    assert torch.equal(chain_log_partition(half), chain_log_partition(single))
    gold_BT = torch.zeros(chain.scores_BTV.shape[:2], dtype=torch.long)
    assert torch.equal(chain_loss(half, gold_BT), chain_loss(single, gold_BT))
    for mine, other in zip(best_chain_output(half), best_chain_output(single), strict=True):
        assert torch.equal(mine, other)
    mixed, double = (
        single._replace(scores_BTV=single.scores_BTV.double()),
        Chain(*(x.double() for x in single[:2]), single[2]),
    )
    assert torch.equal(chain_marginals(mixed), chain_marginals(double))
    assert torch.equal(chain_log_partition(mixed), chain_log_partition(double))


@pytest.mark.parametrize(
    ("transitions", "lengths", "said"),
    [
        ((3, 2), [1], "transitions"),
        ((2, 2), [1, 1], "lengths"),
        ((2, 2), [4], "between 0 and 3"),
        ((2, 2), [-1], "between 0 and 3"),
    ],
)
def test_shapes_that_do_not_fit(transitions: tuple[int, int], lengths: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        linear_chain(torch.zeros(1, 3, 2), torch.zeros(transitions), torch.tensor(lengths))


@pytest.mark.parametrize(
    ("scores", "ends", "said"),
    [
        ((3, 2), {}, r"got \(3, 2\), \(2, 2\), \(1,\)$"),
        ((1, 3, 2), {"start_V": torch.zeros(3)}, r"got .*, \(1,\), \(3,\)$"),
        ((1, 3, 2), {"start_V": torch.zeros(2), "end_V": torch.zeros(1)}, r"got .*, \(2,\), \(1,\)$"),
    ],
)
def test_shapes_of_scores_that_do_not_fit(scores: tuple[int, ...], ends: dict[str, Tensor], said: str) -> None:
    with pytest.raises(InputError, match=said):
        linear_chain(torch.zeros(scores), torch.zeros(2, 2), torch.tensor([1]), **ends)


# ---------------------------------------------------------------------------------------- a peer


def test_pytorch_crf_agrees() -> None:
    torchcrf = pytest.importorskip("torchcrf", reason="pip install pytorch-crf==0.7.2")
    peer = torchcrf.CRF(4, batch_first=True).double()
    torch.nn.init.normal_(peer.transitions)
    scores_BTV = torch.randn(6, 5, 4, dtype=torch.float64, requires_grad=True)
    lengths_B, gold_BT = torch.tensor([5, 1, 3, 2, 4, 5]), torch.randint(4, (6, 5))
    mask_BT = torch.arange(5) < lengths_B[:, None]
    chain = linear_chain(
        scores_BTV, peer.transitions, lengths_B, start_V=peer.start_transitions, end_V=peer.end_transitions
    )
    leaves = (scores_BTV, *peer.parameters())
    theirs_B = -peer(scores_BTV, gold_BT, mask=mask_BT, reduction="none")
    torch.testing.assert_close(chain_loss(chain, gold_BT), theirs_B, **TOLERANCE)
    for mine, expected in zip(
        torch.autograd.grad(chain_loss(chain, gold_BT).sum(), leaves),
        torch.autograd.grad(theirs_B.sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, **GRADIENT)
    outputs_BT = best_chain_output(chain)[1]
    assert [row[:length].tolist() for row, length in zip(outputs_BT, lengths_B, strict=True)] == peer.decode(
        scores_BTV, mask_BT
    )


# ---------------------------------------------------------------------------------------- the chain as a step model


class ChainOracle:
    """seqwise.ChainTagger on one source, in NumPy."""

    end = None

    def __init__(self, model: ChainTagger, source: tuple[int, ...]) -> None:
        weight, bias = oracles.numbers(model.label_scores.weight), oracles.numbers(model.label_scores.bias)
        self.labels = [weight @ memory + bias for memory in oracles.encoded(model.encoder, source)]
        self.embeddings, self.first = oracles.numbers(model.transitions.weight), oracles.numbers(model.first_input_D)

    def start(self) -> tuple[Any, None]:
        return self.first, None

    def step(self, fed: Any, state: None, step: int) -> tuple[list[float], None]:
        return list(self.labels[step] + fed), None


class Case:
    """A random chain tagger with a ragged batch."""

    def __init__(self, seed: int, *, lengths: tuple[int, ...] = (3, 1, 4), num_labels: int = 3) -> None:
        model = ChainTagger(source_size=5, target_size=num_labels, embedding_size=3, hidden_size=4, bidirectional=True)
        self.model: ChainTagger = randomised(model, seed, 1.0)
        generator = torch.Generator().manual_seed(seed)

        def draw(size: int, length: int) -> tuple[int, ...]:
            return tuple(torch.randint(size, (length,), generator=generator).tolist())

        self.examples = [EncodedExample(draw(5, n), draw(num_labels, n)) for n in lengths]
        self.batch = collate(self.examples)
        self.oracles = [ChainOracle(self.model, example.source_ids) for example in self.examples]


def cases() -> Iterator[Case]:
    yield from (Case(seed) for seed in range(4))


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    leaves = list(model.parameters())
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=True)]


def assert_same(model: Any, first: Tensor, second: Tensor) -> None:
    """Values to 1e-9, gradients by every weight to 1e-7, and not all of those 0."""
    torch.testing.assert_close(first, second, **TOLERANCE)
    pairs = list(zip(gradients(model, first), gradients(model, second), strict=True))
    assert any(bool((mine.abs() > 1e-3).any()) for mine, _ in pairs)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, **GRADIENT)


def test_the_tagger_equals_the_one_in_numpy_forced_and_step_by_step() -> None:
    for case in cases():
        model, targets_BT = case.model, case.batch.targets_BT
        context = model.encode(case.batch)
        forced_BTV = model.head(model.teacher_forced(context, targets_BT))
        for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
            expected = torch.tensor(oracles.forced_logits(oracle, example.target_ids), dtype=torch.float64)
            torch.testing.assert_close(forced_BTV[b, : len(expected)], expected, **TOLERANCE)
        inputs_B1D, state = model.start(context)
        for step in range(targets_BT.shape[1]):
            features_B1V, state = model.step(inputs_B1D, state, context, step)
            torch.testing.assert_close(model.head(features_B1V)[:, 0], forced_BTV[:, step], **TOLERANCE)
            inputs_B1D = model.embedding_VD[targets_BT[:, step, None].clamp(min=0)]
        with pytest.raises(InputError, match="step 4 of a tagger has no source position"):
            model.step(inputs_B1D, state, context, 4)


def test_a_saved_chain_tagger_is_loaded_back(tmp_path: Any) -> None:
    case = Case(0)
    model = case.model.float()
    model.save_pretrained(tmp_path)
    again = ChainTagger.from_pretrained(tmp_path)
    assert not again.training
    assert torch.equal(again.encode(case.batch).scores_BSV, model.encode(case.batch).scores_BSV)


def test_a_full_beam_is_the_viterbi_algorithm() -> None:
    for case in cases():
        context = case.model.encode(case.batch)
        best_B, outputs_BT = best_chain_output(case.model.chain(context))
        beam = beam_search(case.model, context, HardTopK(3**4), num_steps=context.lengths_B, score=global_)
        torch.testing.assert_close(beam.scores_BK[:, 0], best_B, **TOLERANCE)
        assert torch.equal(backtrace(beam)[:, 0].clamp(min=-1), outputs_BT.clamp(min=-1))
        decoded = decode_examples(case.model, case.examples, Decoder(HardTopK(3**4), global_))
        assert [best[0].tokens for best in decoded] == [
            tuple(row[:length].tolist()) for row, length in zip(outputs_BT, context.lengths_B, strict=True)
        ]


@pytest.mark.parametrize("score", [local, global_, interpolated(0.5)])
def test_viterbi_is_a_selection_that_finds_the_best_of_all_outputs(score: Score) -> None:
    for case in cases():
        found = decode_examples(case.model, case.examples, Decoder(viterbi, score), n_best=99)
        for example, outputs in zip(case.examples, found, strict=True):
            (all_of_them,) = decode_examples(case.model, [example], Decoder(HardTopK(3**4), score), n_best=3**4)
            assert len(all_of_them) == 3 ** len(example.source_ids)
            assert outputs[0].tokens == all_of_them[0].tokens
            # The others: of each last label the best, which the list of all outputs has first.
            firsts = {one.tokens[-1]: one for one in reversed(all_of_them)}
            expected = sorted(firsts.values(), key=lambda one: -one.score)
            assert [one.tokens for one in outputs] == [one.tokens for one in expected]
            assert [one.score for one in outputs] == pytest.approx([one.score for one in expected], rel=1e-12)


def test_the_relaxed_beam_goes_through_a_chain() -> None:
    case = Case(1)
    beam = beam_search(
        case.model,
        case.model.encode(case.batch),
        SoftTopK(3, 2.0),
        num_steps=case.batch.target_lengths_B,
        score=global_,
    )
    found = gradients(case.model, beam.scores_BK.sum())
    assert all(bool(torch.isfinite(gradient).all()) for gradient in found)
    assert any(bool((gradient != 0).any()) for gradient in found)


def test_the_exact_objective_is_that_of_the_full_beam_and_of_enumeration() -> None:
    for case in cases():
        exact = crf_objective()(case.model, case.batch, {})
        expected = 0.0
        for oracle, example in zip(case.oracles, case.examples, strict=True):
            scores = {
                output: sum(row[y] for row, y in zip(oracles.forced_logits(oracle, output), output, strict=True))
                for output in itertools.product(range(3), repeat=len(example.source_ids))
            }
            expected += log_sum_exp(list(scores.values())) - scores[example.target_ids]
        assert exact.item() == pytest.approx(expected / 8, abs=1e-9)  # 8 labels in all
        assert_same(case.model, exact, beam_crf_objective(k=3**4, score="global")(case.model, case.batch, {}))


def test_a_model_without_a_chain_is_refused() -> None:
    case = tagger_case(0)
    with pytest.raises(InputError, match="scores that form a chain, which those of Tagger do not; use a ChainTagger"):
        crf_objective()(case.model, case.batch, {})


def test_single_scores_of_a_chain_are_its_features() -> None:
    """Its head is the identity; the unnormalised likelihood of all gold positions, from the logits by hand."""
    case = Case(2)
    model, targets_BT = case.model, case.batch.targets_BT
    logits_BTV = model.teacher_forced(model.encode(case.batch), targets_BT)
    expected, count = 0.0, 0
    for logits_TV, targets_T in zip(logits_BTV.tolist(), targets_BT.tolist(), strict=True):
        for logits_V, target in zip(logits_TV, targets_T, strict=True):
            if target >= 0:
                expected += 0.3 * log_sum_exp(logits_V) ** 2 - logits_V[target]
                count += 1
    found = unnormalized_likelihood_objective(weight=0.3, fraction=1.0)(model, case.batch, {})
    assert found.item() == pytest.approx(expected / count, abs=1e-9)
