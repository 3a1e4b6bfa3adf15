"""Headroom for training inside a language, against sums over all tokens in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from oracles import EncoderDecoderOracle, TaggerOracle, forced_logits
from seqwise import InputError
from seqwise.data.batches import EncodedExample
from seqwise.decoding import Hypothesis
from seqwise.evaluation.headroom import TrainingHeadroom, training_headroom
from seqwise.evaluation.metrics import Counts
from seqwise.models import EncoderDecoder, Tagger
from seqwise.runs.findings import _about_training
from seqwise.search import trie

Ids = tuple[int, ...]
SOURCES = [EncodedExample(source, ()) for source in ((1, 2, 4), (3, 3, 1), (2, 2, 2))]
REFERENCES = [[(0, 2, 2)], [(2, 2, 2)], [(1, 1, 0), (0, 1, 2), (2, 0, 0)]]
OUTPUTS = [(0, 1, 2), (0, 2, 2), (1, 1, 0)]


def tagger() -> Any:
    torch.manual_seed(3)
    sizes = {"embedding_size": 4, "hidden_size": 8, "label_embedding_size": 2}
    model = Tagger(source_size=5, target_size=3, **sizes).double()
    model.language = trie(OUTPUTS)
    return model


def writer() -> Any:
    """Its end token is 0."""
    torch.manual_seed(4)
    model = EncoderDecoder(source_size=5, target_size=3, embedding_size=4, hidden_size=8, end=0).double()
    model.language = trie([(1, 1), (2, 2)], end=0)
    return model


def mass_outside(oracle: Any, outputs: list[Ids], gold: Ids) -> list[float]:
    """By step, one minus the probabilities of the tokens that continue some output of the language."""
    masses = []
    for step, scores in enumerate(forced_logits(oracle, gold)):
        weights = [math.exp(score) for score in scores]
        allowed = {output[step] for output in outputs if output[:step] == gold[:step] and len(output) > step}
        masses.append(1 - math.fsum(weights[token] for token in allowed) / math.fsum(weights))
    return masses


def beam(*outputs: Ids) -> list[Hypothesis]:
    return [Hypothesis(output, -float(place), True) for place, output in enumerate(outputs)]


BEAMS = {
    "beam": [beam((0, 1, 2), (0, 2, 2)), beam((0, 1, 2)), beam((1, 1, 0), (0, 1, 2))],
    "raw-beam": [beam((1, 1, 0), (0, 1, 2)), beam((0, 1, 2)), beam((0, 2, 2), (0, 1, 2))],
}


def test_the_mass_outside_is_that_of_the_tokens_that_continue_no_output() -> None:
    """The second input has no gold output in the language, the third two."""
    model = tagger()
    headroom = training_headroom(model, SOURCES, REFERENCES, BEAMS)
    assert headroom is not None
    inside = [(0, (0, 2, 2)), (2, (1, 1, 0)), (2, (0, 1, 2))]
    oracles = [TaggerOracle(model, source.source_ids) for source in SOURCES]
    masses = [mass for place, gold in inside for mass in mass_outside(oracles[place], OUTPUTS, gold)]
    assert len(headroom.outside) == 2
    assert headroom.outside.value == pytest.approx(math.fsum(masses) / 9, rel=1e-9)
    assert {name: share.value for name, share in headroom.best.items()} == {"beam": 0.5, "raw-beam": 0.0}
    assert {name: share.value for name, share in headroom.oracle.items()} == {"beam": 1.0, "raw-beam": 0.5}


def test_the_end_token_is_a_step_and_no_part_of_a_hypothesis() -> None:
    model, outputs = writer(), [(1, 1, 0), (2, 2, 0)]
    headroom = training_headroom(model, SOURCES[:1], [[(2, 2, 0)]], {"beam": [beam((1, 1), (2, 2))]})
    assert headroom is not None
    masses = mass_outside(EncoderDecoderOracle(model, SOURCES[0].source_ids), outputs, (2, 2, 0))
    assert headroom.outside.value == pytest.approx(math.fsum(masses) / 3, rel=1e-9)
    assert (headroom.best["beam"].value, headroom.oracle["beam"].value) == (0.0, 1.0)


def test_without_a_gold_output_inside_there_is_nothing_to_measure() -> None:
    assert training_headroom(tagger(), SOURCES[:1], [[(2, 2, 2)]], {"beam": [beam((0, 1, 2))]}) is None
    model = tagger()
    model.language = None
    with pytest.raises(InputError, match="the model has no language"):
        training_headroom(model, SOURCES[:1], [[(0, 1, 2)]], {})


@pytest.mark.parametrize(
    ("outside", "says"),
    [(0.004, "changes little; gold is the best output for 25%"), (0.3, "30% of the mass is on excluded tokens")],
)
def test_the_room_is_put_into_words(outside: float, says: str) -> None:
    best, kept = Counts([1, 0, 0, 0]), Counts([1, 1, 1, 0])
    headroom = TrainingHeadroom(Counts([outside] * 4), {"beam": best}, {"beam": kept})
    found = _about_training(headroom, 5)
    assert says in found and "can move it up in 50%, and keep it in the beam in 25%" in found
    assert "beam" not in _about_training(headroom, 1)
