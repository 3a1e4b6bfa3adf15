"""From beams to outputs: tracing back, ranking, stopping early, and independence of the batch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import oracles
from oracles import Case, ManyModels, tagger_case, translation_case
from seqwise import InputError, decoding
from seqwise.data import EncodedExample, collate
from seqwise.decoding import (
    DECODERS,
    Decoder,
    Hypothesis,
    backtrace,
    decode,
    decode_examples,
    evaluation_mode,
    hypotheses,
)
from seqwise.models import Tagger
from seqwise.search import (
    Beam,
    HardTopK,
    SoftTopK,
    beam_search,
    global_,
    interpolated,
    local,
    renormalized,
    viterbi,
)
from seqwise.search.beam import HELD

CASES = {"tagger": tagger_case, "encoder-decoder": translation_case}


def steps_of(case: Case) -> torch.Tensor:
    """A tagger writes a label for each symbol; a translation gets three steps more than its source has."""
    return case.batch.source_lengths_B + (0 if case.model.end is None else 3)


def cut(tokens: list[int], end: int | None) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)


def approximately(outputs: list[Hypothesis]) -> list[tuple[tuple[int, ...], Any, bool]]:
    return [(output.tokens, pytest.approx(output.score, abs=1e-10), output.finished) for output in outputs]


def plain(outputs: list[Hypothesis]) -> list[tuple[tuple[int, ...], float, bool]]:
    return [(output.tokens, output.score, output.finished) for output in outputs]


# ---------------------------------------------------------------------------------------- against loops


def test_backtrace_follows_the_pointers() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        B, sizes = 2, [1, *draw.integers(1, 5, draw.integers(1, 6)).tolist()]
        parents = [draw.integers(0, before, (B, now)) for before, now in itertools.pairwise(sizes)]
        tokens = [draw.integers(0, 9, (B, now)) for now in sizes[1:]]
        zeros = torch.zeros(B, sizes[-1])
        beam = Beam(
            zeros,
            zeros,
            zeros,
            zeros,
            None,
            tuple(map(torch.from_numpy, parents)),
            tuple(map(torch.from_numpy, tokens)),
        )
        for b in range(B):
            for k in range(sizes[-1]):
                slot, path = k, []
                for step in reversed(range(len(tokens))):
                    path.append(int(tokens[step][b, slot]))
                    slot = int(parents[step][b, slot])
                assert backtrace(beam)[b, k].tolist() == path[::-1]


@pytest.mark.thorough
@pytest.mark.parametrize("score", [local, global_, interpolated(0.5)], ids=["local", "global", "interpolated"])
@pytest.mark.parametrize("name", CASES)
def test_decoding_equals_algorithm_1(name: str, score: Any) -> None:
    for seed in range(10):
        case = CASES[name](seed)
        num_steps_B = steps_of(case)
        for p in (0.0, 0.7):
            found = decode(
                case.model,
                case.model.encode(case.batch),
                Decoder(HardTopK(4), score),
                num_steps=num_steps_B,
                n_best=4,
                length_normalization=p,
            )
            for b, oracle in enumerate(case.oracles):
                kept = oracles.hard_beam(
                    oracle,
                    k=4,
                    num_steps=int(num_steps_B[b]),
                    log_partition_weight=score.log_partition_weight,
                )
                expected = []
                for hypothesis in kept:
                    words = cut(list(hypothesis.tokens), oracle.end)
                    expected.append(
                        Hypothesis(
                            words,
                            hypothesis.score / max(len(words) + (oracle.end in hypothesis.tokens), 1) ** p,
                            oracle.end is None or hypothesis.finished,
                        )
                    )
                expected.sort(key=lambda output: -output.score)
                assert plain(found[b]) == approximately(expected)


def test_a_wide_beam_finds_the_best_output_of_all() -> None:
    for seed in range(10):
        case = translation_case(seed, target_size=3)
        (best,) = zip(
            *decode(case.model, case.model.encode(case.batch), Decoder(HardTopK(64), local), num_steps=4), strict=True
        )
        for output, oracle in zip(best, case.oracles, strict=True):
            scores = {tokens: oracles.gold_score(oracle, tokens) for tokens in oracles.all_outputs(oracle, 4)}
            winner = max(scores, key=scores.__getitem__)
            assert output.tokens == cut(list(winner), oracle.end)
            assert output.finished == (winner[-1] == oracle.end)
            assert output.score == pytest.approx(scores[winner], abs=1e-10)


# ---------------------------------------------------------------------------------------- ranking


def made_beam(scores: list[float], outputs: list[list[int]]) -> Beam:
    """A beam of one input in which slot k wrote outputs[k]."""
    zeros_1K = torch.zeros(1, len(scores))
    slots = torch.arange(len(scores))[None]
    return Beam(
        torch.tensor([scores], dtype=torch.float64),
        zeros_1K,
        zeros_1K,
        zeros_1K,
        None,
        (slots,) * len(outputs[0]),
        tuple(torch.tensor([column]) for column in zip(*outputs, strict=True)),
    )


def test_outputs_are_distinct_and_best_first() -> None:
    beam = made_beam([-1.0, -2.0, -3.0, -0.5, -math.inf], [[5, 6, 9], [7, 9, 9], [5, 6, 9], [9, 9, 9], [1, 1, 1]])
    (found,) = hypotheses(beam, end=9, n_best=10)
    assert found == [Hypothesis((), -0.5, True), Hypothesis((5, 6), -1.0, True), Hypothesis((7,), -2.0, True)]
    assert hypotheses(beam, end=9, n_best=2) == [found[:2]]
    assert hypotheses(beam, end=9) == [found[:1]]


def test_tied_outputs_are_ordered_by_slot() -> None:
    """As in a stream, where the best slot is the first of the best."""
    beam = made_beam([-1.0, -1.0, -2.0, -1.0, -2.0], [[5], [6], [7], [5], [8]])
    (found,) = hypotheses(beam, end=None, n_best=10)
    assert [output.tokens for output in found] == [(5,), (6,), (7,), (8,)]


def test_length_normalisation_divides_by_a_power_of_the_length_with_its_end() -> None:
    beam = made_beam([-1.0, -1.8, -4.8], [[9, 9, 9], [5, 6, 9], [5, 6, 7]])
    (found,) = hypotheses(beam, end=9, n_best=3, length_normalization=1.0)
    assert found == [
        Hypothesis((5, 6), pytest.approx(-0.6), True),
        Hypothesis((), -1.0, True),
        Hypothesis((5, 6, 7), pytest.approx(-1.6), False),
    ]
    (found,) = hypotheses(beam, end=9, n_best=3, length_normalization=2.0)
    assert [output.tokens for output in found] == [(5, 6), (5, 6, 7), ()]


def test_held_steps_are_no_tokens() -> None:
    beam = made_beam([-1.0], [[3, 4, HELD, HELD]])
    assert hypotheses(beam, end=None) == [[Hypothesis((3, 4), -1.0, True)]]
    assert hypotheses(beam, end=9) == [[Hypothesis((3, 4), -1.0, False)]]


def test_nothing_alive_gives_no_output() -> None:
    assert hypotheses(made_beam([-math.inf], [[1]]), end=None) == [[]]


def test_a_search_that_keeps_no_hypothesis_has_no_output() -> None:
    case = tagger_case(0)

    def excluding(candidates: Any, carry: Any, generator: Any) -> Any:
        none_BX = torch.arange(candidates.scores_BJW[0].numel()).expand(len(candidates.scores_BJW), -1)
        return HardTopK(2)(candidates.without(none_BX), carry, generator)

    context = case.model.encode(case.batch)
    outputs = decode(case.model, context, Decoder(excluding, local), num_steps=steps_of(case))
    assert outputs == [[]] * len(case.examples)


def test_a_model_in_training_mode_is_refused() -> None:
    model = Tagger(source_size=5, target_size=3).train()
    context = model.encode(collate([EncodedExample((1, 2), ())]))
    with pytest.raises(InputError, match="training mode"):
        decode(model, context, "greedy", num_steps=2)


@pytest.mark.parametrize("n_best", [0, -1])
def test_no_output_at_all_is_refused(n_best: int) -> None:
    with pytest.raises(InputError, match=str(n_best)):
        hypotheses(made_beam([-1.0], [[1]]), end=None, n_best=n_best)


# ---------------------------------------------------------------------------------------- stopping early


class Counting(ManyModels):
    """Random models that prefer to end, and count the steps they are asked for."""

    steps = 0

    def step(self, *arguments: Any) -> Any:
        self.steps += 1
        return super().step(*arguments)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        logits = super().head(features)
        return logits + 5.0 * torch.nn.functional.one_hot(torch.tensor(self.end), logits.shape[-1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "selector",
    [HardTopK(3), HardTopK(1), SoftTopK(3, 1e7), SoftTopK(3, 2.0)],
    ids=["beam", "greedy", "sharp soft beam", "soft beam"],
)
@pytest.mark.parametrize("every", [1, 8])
def test_stopping_early_changes_nothing(monkeypatch: pytest.MonkeyPatch, selector: Any, every: int) -> None:
    """Whether one looks after every step, or seldom, as on a GPU."""
    monkeypatch.setattr(decoding, "worth_reading", lambda values, step: step % every == 0)
    stopped = 0
    for seed in range(20):
        model = Counting(5, num_tokens=4, end=2, seed=seed)
        found = decode(model, None, Decoder(selector, local), num_steps=25, n_best=3)
        steps, model.steps = model.steps, 0
        beam = beam_search(model, None, selector, num_steps=25)
        assert model.steps == 25 and (steps == 25 or steps % every == 0)
        stopped += steps < 25
        for early, late in zip(found, hypotheses(beam, end=2, n_best=3), strict=True):
            assert plain(early) == approximately(late)
    # A soft beam goes on mixing the scores of slots that have ended, so it may not be stopped.
    assert stopped >= 10 or isinstance(selector, SoftTopK)


# ---------------------------------------------------------------------------------------- the batch


@pytest.mark.thorough
@pytest.mark.parametrize("decoder_name", DECODERS)
@pytest.mark.parametrize("name", CASES)
def test_outputs_do_not_depend_on_the_batch(name: str, decoder_name: str) -> None:
    draw = np.random.default_rng(3)
    decoder = DECODERS[decoder_name](3, 2.0, local)
    for seed in range(25):
        case = CASES[name](200 + seed)

        def outputs(examples: list[EncodedExample], case: Case = case) -> list[list[Hypothesis]]:
            batch = collate(examples)
            num_steps_B = batch.source_lengths_B + (0 if case.model.end is None else 3)
            found = decode(case.model, case.model.encode(batch), decoder, num_steps=num_steps_B, n_best=3)
            # By their tokens: slots of a soft beam may score alike, and then rounding says which comes first.
            return [sorted(best, key=lambda hypothesis: hypothesis.tokens) for best in found]

        whole = outputs(case.examples)
        order = draw.permutation(3).tolist()
        longest = EncodedExample((1,) * 9, (0,))
        shuffled = outputs([longest, *(case.examples[b] for b in order)])
        for row, b in enumerate(order):
            assert plain(shuffled[row + 1]) == approximately(whole[b])
        assert plain(outputs([case.examples[seed % 3]])[0]) == approximately(whole[seed % 3])


def test_the_named_decoders_have_their_selectors_and_scores() -> None:
    for seed in range(5):
        case = tagger_case(seed)
        context, steps = case.model.encode(case.batch), case.batch.source_lengths_B
        expected = {
            "greedy": Decoder(HardTopK(1), local),
            "beam": Decoder(HardTopK(3), local),
            "renormalized-beam": Decoder(HardTopK(3), renormalized),
            "interpolated-beam": Decoder(HardTopK(3), interpolated(0.5)),
            "raw-beam": Decoder(HardTopK(3), global_),
            "soft-beam": Decoder(SoftTopK(3, 2.0), global_),
            "viterbi": Decoder(viterbi, global_),
        }
        assert set(expected) == set(DECODERS)
        for name, decoder in expected.items():
            assert DECODERS[name](3, 2.0, global_) == decoder
            assert decode(case.model, context, decoder, num_steps=steps)
    with pytest.raises(InputError, match="-2"):
        decode(case.model, context, expected["beam"], num_steps=-2)


def modes(model: torch.nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def test_evaluation_mode_ends_whatever_happens() -> None:
    model = tagger_case(0).model.train()
    frozen = next(part for part in model.modules() if isinstance(part, torch.nn.Dropout)).eval()
    before = modes(model)
    assert any(before) and not all(before)
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        assert not any(modes(model))
        _ = 1 / 0
    assert modes(model) == before and not frozen.training
    with evaluation_mode(model), evaluation_mode(model):
        assert not any(modes(model))
    assert modes(model) == before
    with evaluation_mode(ManyModels(2, num_tokens=3, end=None, seed=0)):
        pass  # a step model need not be a module


def test_a_decoding_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    case = tagger_case(0)
    before = modes(case.model.train())
    decoder = Decoder(HardTopK(2), local)
    decode_examples(case.model, case.examples, decoder)
    assert modes(case.model) == before

    def broken(*arguments: object, **options: object) -> None:
        assert not any(modes(case.model))
        raise KeyboardInterrupt

    monkeypatch.setattr("seqwise.decoding.decode", broken)
    with pytest.raises(KeyboardInterrupt):
        decode_examples(case.model, case.examples, decoder)
    assert modes(case.model) == before


def test_decoding_keeps_no_graph() -> None:
    case, with_graph = tagger_case(0), list[bool]()
    case.model.head.register_forward_hook(lambda *_: with_graph.append(torch.is_grad_enabled()))
    context = case.model.encode(case.batch)
    decode(case.model, context, Decoder(SoftTopK(2, 1.0), local), num_steps=case.batch.source_lengths_B)
    assert with_graph and not any(with_graph)


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "viterbi"])  # which needs a chain
def test_a_decoder_may_be_named(name: Any) -> None:
    case = tagger_case(0)
    context = case.model.encode(case.batch)
    found = [
        decode(case.model, context, decoder, num_steps=steps_of(case))
        for decoder in (name, DECODERS[name](5, 1.0, local))
    ]
    assert found[0] == found[1]


def test_a_decoder_of_another_name_is_refused() -> None:
    with pytest.raises(InputError, match="no decoder is called 'bean'; choose one of greedy, beam"):
        decode_examples(tagger_case(0).model, [EncodedExample((1,), ())], "bean")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["greedy", "beam", "raw-beam", "soft-beam"])
@pytest.mark.parametrize("case", CASES)
def test_scores_that_are_not_numbers_are_refused(case: str, name: Any) -> None:
    """Every comparison passes over them, so that any output would be the best."""
    broken = CASES[case](0)
    with torch.no_grad():
        for weights in broken.model.parameters():
            weights.fill_(math.nan)
    with pytest.raises(InputError, match="the model's scores are not numbers; check its weights"):
        decode_examples(broken.model, broken.examples, name)
