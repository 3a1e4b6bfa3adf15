"""Numbers at the edge: finite values and gradients, or an error that names what is wrong; never a silent NaN."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Case, tagger_case, translation_case
from reliability.test_damaged_checkpoints import Table, cross_entropy
from seqwise import InputError, peaked_softmax, soft_top_k
from seqwise.configuration import OneOf
from seqwise.data import EncodedExample, Vocabulary, collate
from seqwise.data.batches import Batch
from seqwise.models import Transformer
from seqwise.objectives import ObjectiveConfig
from seqwise.objectives.search_aware import direct_loss, hinge_loss
from seqwise.runs.training import context_of
from seqwise.search import Beam, SoftTopK, beam_search, global_, local
from seqwise.search.operators import mean_squared_gap
from seqwise.training.trainer import fit

FINITE = "values and gradients finite"
ALPHAS = [10.0**power for power in range(-30, 31, 6)]
SCALES = [1e-8, 1.0, 1e4, 1e10]


def rows(scale: float, dtype: torch.dtype) -> Tensor:
    """Scores with everything that is allowed in them: ties, what is excluded, and a row of nothing else."""
    scores_BJV = scale * torch.randn(5, 2, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    scores_BJV[1, 0] = -torch.inf
    scores_BJV[2] = -torch.inf
    scores_BJV[3] = scale
    scores_BJV[4, :, 1:] = -torch.inf
    return scores_BJV.requires_grad_()


def require_finite(loss: Tensor, *of: Tensor) -> None:
    assert bool(torch.isfinite(loss).all())
    for gradient in torch.autograd.grad(loss.sum(), of, allow_unused=True):
        assert gradient is None or bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selections_at_any_alpha(dtype: torch.dtype, promise: Any) -> None:
    weigh = torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    for alpha in ALPHAS:
        for scale in SCALES:
            scores_BJV = rows(scale, dtype)
            dead_B = (scores_BJV == -torch.inf).flatten(1).all(1)
            peaked_BN = peaked_softmax(scores_BJV.flatten(1), alpha)
            soft_BKJV = soft_top_k(scores_BJV, 3, alpha)
            for weights in (peaked_BN, soft_BKJV[:, 0].flatten(1)):
                torch.testing.assert_close(weights.sum(1), (~dead_B).to(dtype))
            require_finite((peaked_BN * weigh.flatten()).sum() + (soft_BKJV * weigh).sum(), scores_BJV)
            best_BM = scores_BJV.flatten(1).sort(descending=True).values[:, :4]
            unit_B = mean_squared_gap(best_BM, torch.ones_like(best_BM))
            assert bool((unit_B > 0).all())
            require_finite(unit_B, scores_BJV)
    promise("alpha from 1e-30 to 1e30, scores to 1e10", len(ALPHAS) * len(SCALES), f"{FINITE}, weights sum to one")


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("score", [local, global_])
def test_relaxed_beams_at_any_alpha(alpha: float, score: Any) -> None:
    case = translation_case(0)
    for unit in ({}, {"unit": mean_squared_gap}):
        steps_B = torch.tensor([0, 1, 4])
        cost = lambda step: torch.ones(3, 4, dtype=torch.float64)  # noqa: E731
        beam = beam_search(
            case.model,
            case.model.encode(case.batch),
            SoftTopK(3, alpha, **unit),
            num_steps=steps_B,
            score=score,
            cost=cost,
        )
        loss = direct_loss(beam, alpha) + hinge_loss(beam, torch.zeros(3, dtype=torch.float64), alpha)
        require_finite(loss, *case.model.parameters())


def test_a_beam_without_live_slots() -> None:
    dead_BK = torch.full((2, 3), -torch.inf, requires_grad=True)
    zeros_BK = torch.zeros(2, 3)
    beam = Beam(dead_BK, zeros_BK, zeros_BK, zeros_BK, None)
    for alpha in (ALPHAS[0], 1.0, ALPHAS[-1]):
        require_finite(direct_loss(beam, alpha) + hinge_loss(beam, torch.zeros(2), alpha), dead_BK)


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_an_invalid_alpha_is_named(alpha: float) -> None:
    case = tagger_case(0)
    beam = Beam(*[torch.zeros(1, 2)] * 4, None)
    for call in (
        lambda: peaked_softmax(torch.zeros(3), alpha),
        lambda: soft_top_k(torch.zeros(1, 1, 3), 1, alpha),
        lambda: beam_search(case.model, case.model.encode(case.batch), SoftTopK(2, alpha), num_steps=1),
        lambda: direct_loss(beam, alpha),
        lambda: hinge_loss(beam, torch.zeros(1), alpha),
    ):
        with pytest.raises(InputError, match="alpha"):
            call()


TAGGER = Vocabulary(("a", "b", "c", "d"))
WRITER = Vocabulary(("a", "</s>", "c", "d"), end="</s>")


def batches(case: Case) -> dict[str, Batch]:
    """Batches with hardly anything in them."""
    writes = case.model.end is not None
    nothing, one = ((1,), (1,)) if writes else ((), ()), ((2,), (0, 1)) if writes else ((2,), (0,))
    short = [EncodedExample(*nothing), EncodedExample(*one), *case.examples]
    found = {"lengths 0 and 1": collate(short), "one": collate([EncodedExample(*one)])}
    if not writes:
        found["all padding"] = collate([EncodedExample((), ()), EncodedExample((), ())])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["tagger", "encoder-decoder", "transformer"])
@pytest.mark.parametrize("name", [name for name in OneOf(ObjectiveConfig).members if name != "crf"])
def test_objectives_on_nearly_empty_batches(kind: str, name: Any, promise: Any) -> None:
    case, labels = (tagger_case(1), TAGGER) if kind == "tagger" else (translation_case(1), WRITER)
    if kind == "transformer":  # alone in half precision: torch has no such LSTM on every processor
        sizes: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "feedforward_size": 6, "dropout": 0.0}
        case = replace(case, model=Transformer(source_size=5, target_size=4, end=1, hidden_size=4, **sizes))
    kind_of_objective = OneOf(ObjectiveConfig).members[name]
    score = {"score": "global"} if "score" in kind_of_objective.model_fields and "optimization" not in name else {}
    objective = kind_of_objective(**score).build(context_of(labels, encoded=case.examples, start=case.model))
    for what, batch in batches(case).items():
        for alpha in (1e-30, 1.0, 1e30):
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "transformer"):
                loss = objective(case.model, batch, {"alpha": alpha, "gold_probability": 0.5})
            assert bool(torch.isfinite(loss)), (what, alpha)
            if loss.requires_grad:
                require_finite(loss, *case.model.parameters())
    promise(
        "objectives on lengths 0 and 1, all padding, bfloat16, alpha from 1e-30 to 1e30", len(batches(case)) * 3, FINITE
    )


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="example"):
        collate([])


@pytest.mark.thorough
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_training_stops_at_the_first_bad_step_and_keeps_its_batch(bad: float, tmp_path: Path, promise: Any) -> None:
    steps: list[list[int]] = []

    def objective(model: Any, batch: Batch, values: dict[str, float]) -> Tensor:
        steps.append(batch.indices_B.tolist())
        return cross_entropy(model, batch, values) * (bad if len(steps) == 3 else 1.0)

    examples = [EncodedExample((i % 5, 1), (i % 3, 0)) for i in range(8)]
    given: dict[str, Any] = {"steps": 4, "batch_size": 4, "learning_rate": 0.1, "seed": 0, "save_every": 2}
    with pytest.raises(InputError, match=r"at step 3, on line 1\d.*not-finite\.json"):
        fit(Table(), objective, examples, output=tmp_path, example_names=lambda i: f"line {10 + i}", **given)
    assert len(steps) == 3
    found = json.loads((tmp_path / "not-finite.json").read_text())
    assert found["step"] == 3 and "the loss is" in found["what"]
    assert [one["name"] for one in found["examples"]] == [f"line {10 + index}" for index in steps[-1]]
    for one, index in zip(found["examples"], steps[-1], strict=True):
        assert (tuple(one["source_ids"]), tuple(one["target_ids"])) == (
            examples[index].source_ids,
            examples[index].target_ids,
        )
    assert fit(Table(), objective, examples, output=tmp_path, **given).resumed_from == 2
    assert not (tmp_path / "not-finite.json").exists()
    promise(
        "a loss that is NaN or infinite", 1, "training stops at that step, names the batch, keeps it and the checkpoint"
    )
