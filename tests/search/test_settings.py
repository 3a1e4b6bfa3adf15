"""The settings of costs, of the unit of alpha, and of mixing, as objectives: equal to those made by hand."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from pkgutil import iter_modules
from typing import Any

import pytest
import torch

from oracles import Case, tagger_case, translation_case
from seqwise import objectives
from seqwise.data import Vocabulary
from seqwise.objectives import (
    Objective,
    beam_crf_objective,
    hamming_cost,
    hinge_objective,
    minimum_risk_objective,
    mixed_objective,
    relaxed_beam_objective,
)
from seqwise.objectives.beam_likelihood import soft_dense_beam_objective
from seqwise.objectives.risk import edit_distances
from seqwise.objectives.violations import hard_beam_hinge_objective
from seqwise.runs.settings import train_settings
from seqwise.runs.training import context_of
from seqwise.search import edit_distance_cost, local, mean_squared_gap

# Outputs in which an edit distance is not a Hamming distance.
TRANSDUCER, TAGGER = translation_case(5), tagger_case(3)
EDITS = partial(edit_distance_cost, end=1)
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
SAME = {"k": 3, "cross_entropy_weight": 0.0}
MADE: dict[str, tuple[Case, dict[str, Any], Objective]] = {
    "relaxed": (
        TRANSDUCER, {"objective": "relaxed-beam", "cost": "edit-distance"}, relaxed_beam_objective(cost=EDITS, **SAME),
    ),
    "relaxed tagger": (
        TAGGER, {"objective": "relaxed-beam", "cost": "edit-distance", "alpha_unit": "gaps"},
        relaxed_beam_objective(cost=edit_distance_cost, unit=mean_squared_gap, **SAME),
    ),
    "hinge": (TRANSDUCER, {"objective": "hinge", "cost": "edit-distance"}, hinge_objective(cost=EDITS, **SAME)),
    "hard-hinge": (
        TRANSDUCER, {"objective": "hard-hinge", "cost": "edit-distance"}, hard_beam_hinge_objective(cost=EDITS, **SAME),
    ),
    "risk": (
        TRANSDUCER, {"objective": "minimum-risk", "cost": "edit-distance"},
        minimum_risk_objective(cost=edit_distances, **SAME),
    ),
    "soft dense": (
        TAGGER, {"objective": "soft-dense-beam", "alpha_unit": "gaps", "score": "global"},
        soft_dense_beam_objective(score="global", unit=mean_squared_gap, **SAME),
    ),
    "mixed, labels": (
        TAGGER, {"objective": "beam-crf", "direct_loss_weight": 0.5, "wrong_label_costs": "b=3"},
        mixed_objective(
            [
                beam_crf_objective(score=local, **SAME),
                relaxed_beam_objective(k=3, cost=partial(hamming_cost, weights=torch.tensor([1.0, 1.0, 3.0, 1.0]))),
            ],
            [1.0, 0.5],
        ),
    ),
    "mixed": (
        TRANSDUCER,
        {"objective": "beam-crf", "direct_loss_weight": 0.5, "cost": "edit-distance", "alpha_unit": "gaps"},
        mixed_objective(
            [
                beam_crf_objective(score=local, **SAME),
                relaxed_beam_objective(k=3, cost=EDITS, unit=mean_squared_gap),
            ],
            [1.0, 0.5],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "settings", "objective"), MADE.values(), ids=MADE)
def test_settings_make_the_objective(case: Case, settings: dict[str, Any], objective: Objective) -> None:
    end = case.model.end
    labels = Vocabulary(("a", "$", "b", "c"), end=None if end is None else "$")
    assert labels.end_id == end
    built = train_settings(beam_size=3, cross_entropy_weight=0.0, **settings).objective.build(context_of(labels))
    name, score = settings["objective"], settings.get("score", "local")
    plain = train_settings(beam_size=3, cross_entropy_weight=0.0, objective=name, score=score).objective.build()
    values = {"alpha": 1.3}
    found = built(case.model, case.batch, values)
    torch.testing.assert_close(found, objective(case.model, case.batch, values), atol=0, rtol=0)
    assert float(found) != float(plain(case.model, case.batch, values))


def test_functions_and_settings_have_the_same_default_score() -> None:
    modules = [importlib.import_module(f"seqwise.objectives.{each.name}") for each in iter_modules(objectives.__path__)]
    made = {name: value for module in modules for name, value in vars(module).items() if name.endswith("_objective")}
    scores = {
        name: parameters["score"].default
        for name, function in made.items()
        if "score" in (parameters := inspect.signature(function).parameters) and not name.startswith("_")
    }
    assert "beam_crf_objective" in scores and set(scores.values()) == {local}
    assert train_settings(objective="beam-crf").objective.score == "local"
