"""Bias of masking, against enumeration in plain Python, and its estimate from draws."""

from __future__ import annotations

import math

import pytest
import torch

import oracles
from seqwise import InputError
from seqwise.decoding import steps_for
from seqwise.evaluation.masking import list_outputs, masking_bias
from seqwise.search import trie

OUTPUTS = [(2,), (0, 3), (2, 2), (2, 0, 3), (3, 3, 2), (3, 0, 0)]
CASE = oracles.translation_case(1, lengths=(2, 3), scale=1.5)


def laws(row: int) -> tuple[float, dict[tuple[int, ...], tuple[float, float]]]:
    """p(y in L), and the masked and conditional probability of each output, with its end token."""
    whole, found, total = [(*output, 1) for output in OUTPUTS], {}, 0.0
    for output in whole:
        joint, masked = 1.0, 1.0
        for step, logits in enumerate(oracles.forced_logits(CASE.oracles[row], output)):
            probs = [math.exp(logit - oracles.log_sum_exp(logits)) for logit in logits]
            allowed = {other[step] for other in whole if other[:step] == output[:step]}
            joint *= probs[output[step]]
            masked *= probs[output[step]] / sum(probs[token] for token in allowed)
        total += joint
        found[output] = masked, joint
    return total, {output: (masked, joint / total) for output, (masked, joint) in found.items()}


def test_listed_outputs_give_exact_distances_and_shifts() -> None:
    CASE.model.language = trie(OUTPUTS, end=1)
    bias = masking_bias(CASE.model, CASE.examples)
    assert bias.listed == (len(OUTPUTS),) * 2 and bias.interval is None
    masses: dict[tuple[int, ...], list[float]] = {}
    for row in range(2):
        total, law = laws(row)
        assert bias.inside[row] == pytest.approx(total)
        assert bias.distances[row] == pytest.approx(sum(abs(q - p) for q, p in law.values()) / 2)
        for output, pair in law.items():
            for length in range(1, len(output) + 1):
                sums = masses.setdefault(output[:length], [0.0, 0.0])
                sums[:] = [mass + part / 2 for mass, part in zip(sums, pair, strict=True)]
    assert bias.distance == pytest.approx(sum(bias.distances) / 2)
    for shift in bias.shifts:
        assert [shift.masked, shift.conditional] == pytest.approx(masses[shift.prefix])
    largest = max(masses.values(), key=lambda pair: abs(pair[0] - pair[1]))
    assert abs(bias.shifts[0].gain) == pytest.approx(abs(largest[0] - largest[1]))
    for place, shift in enumerate(bias.shifts):
        for other in bias.shifts[:place]:
            length = min(len(shift.prefix), len(other.prefix))
            assert shift.gain * other.gain <= 0 or shift.prefix[:length] != other.prefix[:length]


def test_draws_estimate_what_is_not_listed() -> None:
    CASE.model.language = trie(OUTPUTS, end=1)
    exact = masking_bias(CASE.model, CASE.examples)
    drawn = masking_bias(CASE.model, CASE.examples, most_outputs=2, num_draws=3000)
    assert drawn.listed == (None, None) and drawn.interval is not None
    for row in range(2):
        assert 0 < drawn.errors[row] < 0.02
        assert abs(drawn.distances[row] - exact.distances[row]) < 4 * drawn.errors[row]
        assert drawn.inside[row] == pytest.approx(exact.inside[row], rel=0.1)
    low, high = drawn.interval
    half = 1.96 * math.hypot(*drawn.errors) / 2
    assert (low, high) == pytest.approx((drawn.distance - half, drawn.distance + half))
    by_prefix = {shift.prefix: shift.gain for shift in exact.shifts}
    assert all(abs(by_prefix.get(shift.prefix, shift.gain) - shift.gain) < 0.05 for shift in drawn.shifts)


@pytest.mark.parametrize("outputs", [[(0, 1), (0, 2), (2, 0), (2, 2)], [(0, 1), (2, 1), (2, 0), (2, 2)]])
def test_outputs_without_a_probability_count(outputs: list[tuple[int, ...]]) -> None:
    """The model never writes 1: masking renormalises the rest, and gets stuck where nothing else is allowed."""
    case = oracles.tagger_case(0, target_size=3, lengths=(2,))
    with torch.no_grad():
        case.model.head.bias[1] = -math.inf
    case.model.language, masked, joint = trie(outputs), [], []
    for output in outputs:
        first, last = (
            [0.0 if token == 1 else math.exp(logit) for token, logit in enumerate(logits)]
            for logits in oracles.forced_logits(case.oracles[0], output)
        )
        joint.append(first[output[0]] / sum(first) * last[output[1]] / sum(last))
        then = sum(last[other[1]] for other in outputs if other[0] == output[0])
        masked.append(first[output[0]] / (first[0] + first[2]) * (last[output[1]] / then if then else 0.0))
    apart = sum(abs(q - p / sum(joint)) for q, p in zip(masked, joint, strict=True)) + 1 - sum(masked)
    bias = masking_bias(case.model, case.examples)
    assert bias.inside == pytest.approx((sum(joint),)) and bias.distance == pytest.approx(apart / 2, abs=1e-12)
    drawn = masking_bias(case.model, case.examples, most_outputs=2, num_draws=3000)
    assert drawn.inside == pytest.approx((sum(joint),), rel=0.1)
    assert abs(drawn.distance - bias.distance) < 4 * drawn.errors[0] + 1e-9


def test_outputs_are_listed_that_fit() -> None:
    language = trie(OUTPUTS, end=1)
    for num_steps in (2, 3, 4):
        fitting = [(*output, *[1] * (num_steps - len(output))) for output in OUTPUTS if len(output) < num_steps]
        listed = list_outputs(language, num_steps)
        assert listed is not None and sorted(map(tuple, listed.tolist())) == sorted(fitting)
    assert list_outputs(language, 4, most=5) is None


def test_what_cannot_be_measured_is_refused() -> None:
    CASE.model.language = None
    with pytest.raises(InputError, match="the model has no language"):
        masking_bias(CASE.model, CASE.examples)
    case = oracles.tagger_case(0, target_size=3, lengths=(2,))
    with torch.no_grad():
        case.model.head.bias[1] = -math.inf
    case.model.language = trie([(0, 1), (2, 1)])
    for most in (2000, 1):
        with pytest.raises(InputError, match="probability 0"):
            masking_bias(case.model, case.examples, most_outputs=most, num_draws=20)
    CASE.model.language = trie([(2,) * 40], end=1)
    assert steps_for(CASE.examples[0].source_ids, CASE.model) < 40
    with pytest.raises(InputError, match="has no output that a search of"):
        masking_bias(CASE.model, CASE.examples)
