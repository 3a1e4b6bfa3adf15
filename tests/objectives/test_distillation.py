"""Distillation of a local model into raw scores: the loss in Python, its limits and fixed point, and the warm start."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import oracles
from oracles import Case, Normalized, log_sum_exp, tagger_case, translation_case, until_end
from seqwise import InputError
from seqwise.data import write_columns
from seqwise.data.synthetic import label_bias_toy
from seqwise.objectives.distillation import _union, distillation_loss, distillation_objective
from seqwise.objectives.objective import search_targets
from seqwise.objectives.rescoring import beam_outputs
from seqwise.runs import Settings, load_run, train_settings
from seqwise.runs.inputs import read_examples
from seqwise.runs.settings import load_settings, require_data
from seqwise.runs.sizing import sized
from seqwise.runs.training import train_run
from seqwise.search import global_, local
from seqwise.training.trainer import Progress

CASES = {"tagger": tagger_case, "encoder-decoder": translation_case}
each_model = pytest.mark.parametrize("name", CASES)


def a_case(name: str, seed: int) -> Case:
    case: Case = CASES[name](seed, target_size=3, lengths=(3, 1, 2))
    return case


def kl_by_loop(teacher: Any, student: Any, outputs: list[tuple[int, ...]]) -> float:
    """KL of the student's raw scores from the teacher's log-probabilities, both renormalised over a list of outputs."""

    def scores(oracle: Any, is_local: bool) -> list[float]:
        found = []
        for output in outputs:
            rows = oracles.forced_logits(oracle, output)
            found.append(
                sum(row[y] - (log_sum_exp(row) if is_local else 0) for row, y in zip(rows, output, strict=True))
            )
        return found

    q, p = scores(teacher, True), scores(student, False)
    log_q, log_p = ([value - log_sum_exp(values) for value in values] for values in (q, p))
    return sum(math.exp(a) * (a - b) for a, b in zip(log_q, log_p, strict=True))


@each_model
@pytest.mark.parametrize("k", [1, 2, 4, 81])
def test_the_objective_equals_loops_over_both_beams(name: str, k: int) -> None:
    """With k = 81 both beams hold everything, and this is the exact KL."""
    for seed in range(4):
        teacher, student = a_case(name, seed), a_case(name, seed + 100)
        _, num_steps_B = search_targets(teacher.batch, teacher.model.end)
        total, sizes = 0.0, []
        for theirs, own, steps in zip(teacher.oracles, oracles_of(student, teacher), num_steps_B.tolist(), strict=True):
            found = oracles.hard_beam(theirs, k=k, num_steps=steps)
            found += oracles.hard_beam(own, k=k, num_steps=steps, log_partition_weight=0.0)
            outputs = sorted({until_end(hypothesis.tokens, theirs.end) for hypothesis in found})
            total += kl_by_loop(theirs, own, outputs)
            sizes.append(len(outputs))
        loss = distillation_objective(teacher.model, k=k)(student.model, teacher.batch, {})
        assert loss.item() == pytest.approx(total / int(teacher.batch.target_lengths_B.sum()), abs=1e-9)
        if k == 81 and name == "tagger":
            assert sizes == [27, 3, 9]


def oracles_of(student: Case, teacher: Case) -> list[Any]:
    """The student in NumPy, on the teacher's sources."""
    kind = type(teacher.oracles[0])
    return [kind(student.model, example.source_ids) for example in teacher.examples]


@each_model
@pytest.mark.parametrize("k", [1, 3, 81])
def test_a_student_that_scores_by_log_probability_has_nothing_to_learn(name: str, k: int) -> None:
    for seed in range(4):
        case = a_case(name, seed)
        objective = distillation_objective(case.model, k=k)
        student: Any = Normalized(copy.deepcopy(case.model), 0.0)
        loss = objective(student, case.batch, {})
        assert abs(loss.item()) < 1e-12
        found = torch.autograd.grad(loss, list(student.model.parameters()), allow_unused=True)
        assert all(one is None or bool((one.abs() < 1e-10).all()) for one in found)
        # The teacher's own raw scores are another matter.
        if k > 1:
            assert objective(case.model, case.batch, {}).item() > 1e-6
    if name == "tagger":  # all outputs are equally long, so that a constant a step is one a sequence
        assert abs(objective(Normalized(case.model, 2.5), case.batch, {}).item()) < 1e-12  # type: ignore[arg-type]


@each_model
def test_gradients_are_those_of_differences_and_only_the_student_has_them(name: str) -> None:
    teacher, student = a_case(name, 0), a_case(name, 1).model
    # Full beams: the set does not depend on the weights, so that differences are smooth.
    objective = distillation_objective(teacher.model, k=81)
    loss = objective(student, teacher.batch, {})
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.model.parameters())
    weight = student.head.weight
    for place in ((0, 0), (2, 1)):
        values = []
        for change in (1e-5, -1e-5):
            with torch.no_grad():
                weight[place] += change
                values.append(objective(student, teacher.batch, {}).item())
                weight[place] -= change
        assert weight.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8)
        assert abs(weight.grad[place].item()) > 1e-4


def test_the_union_holds_each_output_once() -> None:
    for seed in range(5):
        teacher, student = (a_case("encoder-decoder", seed + shift).model for shift in (0, 50))
        batch = a_case("encoder-decoder", seed).batch
        lists = [
            beam_outputs(model, model.encode(batch), k=k, num_steps_B=torch.tensor([4, 2, 3]), score=score)
            for model, k, score in ((teacher, 3, local), (student, 5, global_))
        ]
        outputs_BNT, live_BN = _union(*lists, teacher.end)
        for b in range(3):
            found = [until_end(tuple(row), teacher.end) for row in outputs_BNT[b][live_BN[b]].tolist()]
            wanted = {until_end(tuple(row), teacher.end) for rows, live in lists for row in rows[b][live[b]].tolist()}
            assert len(found) == len(set(found)) and set(found) == wanted


def test_what_the_teacher_excludes_makes_no_nan() -> None:
    teacher_BN = torch.tensor([[0.0, -torch.inf, -1e4, 1.0]])
    student_BN = torch.tensor([[0.5, 1.0, -torch.inf, 7.0]], requires_grad=True)
    loss_B = distillation_loss(teacher_BN, student_BN, torch.tensor([[True, True, True, False]]))
    # q is all on the first, and p shares between the first and the second.
    assert loss_B.item() == pytest.approx(math.log(1 + math.exp(0.5)), abs=1e-6)
    loss_B.sum().backward()
    assert student_BN.grad is not None and bool(torch.isfinite(student_BN.grad).all()) and student_BN.grad[0, 3] == 0
    assert distillation_loss(teacher_BN, student_BN, torch.zeros(1, 4, dtype=torch.bool)).item() == 0


def test_a_beam_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        distillation_objective(tagger_case(0).model, k=0)


# ---------------------------------------------------------------------------------------- as a warm start


@pytest.fixture
def toy(tmp_path: Path) -> Settings:
    """Settings of a run in three stages on a toy, seconds long."""
    examples = label_bias_toy(96, length=4, generator=torch.Generator().manual_seed(0))
    write_columns(tmp_path / "toy.conll", examples)
    return train_settings(
        train=tmp_path / "toy.conll", encoder="left-to-right", minimum_count=1, hidden_size=8, embedding_size=8,
        label_embedding_size=4, batch_size=32, objective="beam-crf", score="global", warm_start="distilled",
        warm_start_epochs=2.0, epochs=1.0, beam_size=3, save_every=2, warm_start_learning_rate=0.02,
    )  # fmt: skip


def test_the_distilled_warm_start_is_three_stages(toy: Settings) -> None:
    found = [(stage.folder, stage.settings.objective.name, stage.settings.epochs) for stage in toy.stages()]
    assert found == [("warm-start", "cross-entropy", 2.0), ("distillation", "distillation", 1.0), ("", "beam-crf", 1.0)]
    assert toy.stages()[-1].settings == toy


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.mark.thorough
def test_killed_and_resumed_the_teacher_and_the_weights_are_the_same(toy: Settings, tmp_path: Path) -> None:
    train_run(toy, tmp_path / "whole")

    class Killed(BaseException):
        """Not caught by anything on the way."""

    killed = 0

    def kill_at(stage: str, step: int) -> Any:
        def on_progress(at_stage: str, progress: Progress) -> None:
            if (at_stage, progress.step) == (stage, step):
                raise Killed

        return on_progress

    # Before and after a checkpoint of the distillation, whose third and last step makes one too.
    for stage, step in (("warm start", 5), ("distillation", 1), ("distillation", 3), ("training", 1)):
        with pytest.raises(Killed):
            train_run(toy, tmp_path / "killed", on_progress=kill_at(stage, step))
        killed += 1
    train_run(toy, tmp_path / "killed")
    assert killed == 4 and weights(tmp_path / "killed") == weights(tmp_path / "whole")
    train_run(toy.with_changes(seed=1), tmp_path / "other")
    assert weights(tmp_path / "other") != weights(tmp_path / "whole")
    assert load_run(tmp_path / "killed").settings == sized(toy, read_examples(toy, toy.train))


@pytest.mark.thorough
def test_distillation_by_itself_ends_where_the_stage_of_the_warm_start_does(toy: Settings, tmp_path: Path) -> None:
    """As an objective it starts from cross-entropy, which is its teacher."""
    alone = toy.with_changes(objective="distillation", warm_start="cross-entropy", learning_rate=0.01, epochs=1.0)
    train_run(alone, tmp_path / "alone")
    train_run(toy, tmp_path / "whole")
    logs = [(tmp_path / path / "log.jsonl").read_text() for path in ("alone", "whole/distillation")]
    assert logs[0] == logs[1] and len(logs[0].splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": "local"}, "warm_start: distilled prepares raw scores"),
        ({"objective": "distillation"}, "warm_start: distillation needs a teacher, a local model"),
        ({"objective": "distillation", "warm_start": "none"}, "warm_start: distillation needs a teacher"),
        ({"objective": "distillation", "warm_start": "cross-entropy", "warm_start_epochs": 0.0}, "warm_start_epochs"),
    ],
)
def test_settings_that_leave_nothing_to_distil(toy: Settings, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        require_data(toy.with_changes(**change))


def test_the_line_of_a_bad_warm_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("objective: beam-crf\nwarm_start: distilled\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: warm_start: distilled"):
        load_settings(tmp_path / "s.yaml", {})
