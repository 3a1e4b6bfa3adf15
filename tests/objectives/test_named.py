"""Named objectives: each option that one lists reaches its loss, in value or in what is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracles import Case, tagger_case, translation_case
from seqwise import InputError
from seqwise.configuration import OneOf
from seqwise.models import ChainTagger
from seqwise.objectives import (
    CRF,
    BeamCRF,
    Distillation,
    Hinge,
    MinimumRisk,
    NoiseContrastive,
    ObjectiveConfig,
    RelaxedBeam,
)
from seqwise.objectives.contrastive import noise_log_probs
from seqwise.objectives.options import Context, parse_label_costs
from seqwise.objectives.search_aware import hamming_cost
from seqwise.search import trie

MEMBERS = OneOf(ObjectiveConfig).members
TOKENS = ("a", "$", "b", "c")
OTHER: dict[str, Any] = {
    "k": 4, "score": "global", "cost": "edit-distance", "unit": "gaps", "cross_entropy_weight": 0.7,
    "direct_loss_weight": 0.5, "wrong_label_costs": "b=3,c=2", "weight": 0.6, "fraction": 0.4, "noise_tokens": 3,
    "feeding": "sample", "alpha": "3", "commit_delay": 0, "gold_probability": "0.4", "label_smoothing": 0.3,
    "normalized_over": "allowed",
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    # Read where relaxed-beam loss is added, or where what is fed is soft.
    "beam-crf": {"direct_loss_weight": 0.5},
    "dense-beam": {"direct_loss_weight": 0.5},
    "soft-dense-beam": {"direct_loss_weight": 0.5},
    "scheduled-sampling": {"feeding": "soft-greedy"},
}
SAME_LOSS = {("scheduled-sampling", "feeding_passes")}
"""Another way to the objective; tests/search/test_feeding_two_pass.py compares the two."""


CASES = [translation_case(seed) for seed in range(5, 9)] + [tagger_case(seed) for seed in range(2)]


def loss_of(objective: ObjectiveConfig, case: Case) -> float:
    end = case.model.end
    context = Context(
        end,
        TOKENS,
        lambda: noise_log_probs(torch.ones(4)).double(),
        lambda: translation_case(11).model.eval(),
    )
    torch.manual_seed(3)
    values = {name: schedule.over(10)(5) for name, schedule in objective.schedules.items()}
    return float(objective.build(context)(case.model, case.batch, values))


def options() -> list[tuple[str, str]]:
    return [(name, option) for name, kind in MEMBERS.items() for option in kind.model_fields if option != "name"]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "option"), [pair for pair in options() if pair not in SAME_LOSS])
def test_each_option_reaches_the_loss(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = BESIDE.get(name, {})
    beside = {key: value for key, value in beside.items() if key != option}
    k = {"k": 1 if option == "k" else 2} if "k" in MEMBERS[name].model_fields else {}
    plain = MEMBERS[name](**k, **beside)
    other = MEMBERS[name](**{**{key: getattr(plain, key) for key in plain.model_fields_set}, option: OTHER[option]})
    cases = [case for case in CASES if case.model.end is None or option != "commit_delay"]
    if option == "normalized_over":
        for case in cases:
            golds = [[token for token in each.target_ids if token != case.model.end] for each in case.examples]
            monkeypatch.setattr(case.model, "language", trie(golds, end=case.model.end), raising=False)
    losses = [(loss_of(plain, case), loss_of(other, case)) for case in cases]
    assert any(abs(first - second) > 1e-9 for first, second in losses)


def test_every_option_is_tried() -> None:
    assert {option for _, option in options()} <= {*OTHER, "feeding_passes"}


def test_a_schedule_is_listed_where_it_is_read() -> None:
    assert set(Hinge().schedules) == {"alpha"} and BeamCRF().schedules == {}
    assert set(BeamCRF(direct_loss_weight=1.0).schedules) == {"alpha"}
    assert {name for name, kind in MEMBERS.items() if "gold_probability" in kind().schedules} == {"scheduled-sampling"}


def test_an_objective_without_what_it_needs_is_refused() -> None:
    for objective in (Distillation(), NoiseContrastive()):
        with pytest.raises(InputError, match="needs"):
            objective.build()
    case = tagger_case(3)
    with pytest.raises(InputError, match="chain"):
        CRF().build()(case.model, case.batch, {})
    assert not isinstance(case.model, ChainTagger)


def test_options_of_added_loss_are_refused_without_it() -> None:
    with pytest.raises(InputError, match=r"^cost: beam-crf does not use it; leave it out, or give direct_loss"):
        BeamCRF(cost="edit-distance")
    with pytest.raises(InputError, match=r"^wrong_label_costs: dense-beam does not use it"):
        MEMBERS["dense-beam"](wrong_label_costs="a=2")
    with pytest.raises(InputError, match="edit-distance weighs all labels alike"):
        Hinge(cost="edit-distance", wrong_label_costs="a=2")


@pytest.mark.parametrize("score", ["local", "global"])
def test_added_loss_is_that_of_a_relaxed_beam_of_the_same_size_and_score(score: str) -> None:
    case, shared = tagger_case(5), {"k": 2, "score": score, "alpha": "2", "unit": "gaps", "wrong_label_costs": "b=3"}
    plain = loss_of(BeamCRF(k=2, score=score), case)
    relaxed = loss_of(RelaxedBeam(**shared, cross_entropy_weight=0.0), case)
    for weight in (0.5, 1.0, 2.0):
        both = loss_of(BeamCRF(**shared, direct_loss_weight=weight), case)
        assert both == pytest.approx(plain + weight * relaxed, rel=1e-9)
    assert relaxed > 1e-3


def test_gradients_flow_through_steps_where_a_search_is_not_rescored() -> None:
    rescored = {"beam-crf", "distillation", "minimum-risk", "softmax-margin"}
    singly = {name for name, kind in MEMBERS.items() if kind.searches} | {"scheduled-sampling"}
    assert {name for name, kind in MEMBERS.items() if kind().steps_singly} == singly
    assert {name for name, kind in MEMBERS.items() if kind().unrolls} == singly - rescored
    assert BeamCRF(direct_loss_weight=0.5).unrolls
    assert not MEMBERS["scheduled-sampling"](feeding_passes="two-pass").unrolls


@pytest.mark.parametrize(
    "text", ["O", "O=", "=2", "O=0", "O=-1", "O=inf", "O=nan", "O=x", "O 2", "O=2,V", "O=2,V=1,O=2"]
)
def test_invalid_costs_of_labels_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^wrong_label_costs: .*(is not the cost of a label|has two costs)"):
        Hinge(wrong_label_costs=text)


def test_costs_of_labels_are_read_and_the_others_cost_one() -> None:
    """A label may contain "="; a comma at the end does no harm."""
    assert parse_label_costs(" a=b=2, c = .5,") == {"a=b": 2.0, "c": 0.5} and parse_label_costs("") == {}
    case = tagger_case(3)
    context = Context(tokens=("N", "V", "O=", "X"))
    cost = Hinge(wrong_label_costs="V=2,O==.5").token_cost(context)["cost"](case.batch.targets_BT, 4)
    expected = hamming_cost(case.batch.targets_BT, 4, weights=torch.tensor([1.0, 2.0, 0.5, 1.0]))
    assert Hinge().token_cost(context) == {}
    for step in range(case.batch.targets_BT.shape[1]):
        assert torch.equal(cost(step), expected(step))


def test_the_unit_names_what_is_added() -> None:
    plain = BeamCRF(cross_entropy_weight=0.0).loss_unit("label")
    assert (
        BeamCRF(cross_entropy_weight=0.0, direct_loss_weight=0.25).loss_unit("label").startswith(f"{plain}, + 0.25 x")
    )
    assert BeamCRF(cross_entropy_weight=0.5).loss_unit("label").startswith(f"{plain}, + 0.5 x")


def test_the_unit_of_a_loss_tells_costs_apart() -> None:
    for kind in (RelaxedBeam, MinimumRisk):
        assert "wrong labels" in kind().loss_unit("label") and "wrong tokens" in kind().loss_unit("token")
        edits = kind(cost="edit-distance").loss_unit("label")
        assert "edits" in edits and "wrong" not in edits
    weighted = RelaxedBeam(wrong_label_costs="O=2").loss_unit("label")
    assert "wrong" not in weighted and "edits" not in weighted


def test_a_label_that_does_not_exist_is_named() -> None:
    context = Context(None, ("N", "V"), None, None)
    with pytest.raises(InputError, match="'M'"):
        Hinge(wrong_label_costs="V=2,M=3").token_cost(context)
