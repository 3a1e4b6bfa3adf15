"""The trainer: stopped at any step it ends with the same weights, and it stops at the first loss that is no number."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from seqwise import models
from seqwise.data import Example, Vocabulary, encode_examples
from seqwise.data.batches import Batch, EncodedExample
from seqwise.errors import InputError
from seqwise.models.transformer import Transformer
from seqwise.objectives import CrossEntropy, cross_entropy_objective, relaxed_beam_objective
from seqwise.schedules import Schedule, linear
from seqwise.training.checkpoints import last_complete, seal
from seqwise.training.trainer import Progress, TrainingResult, fit

STEPS = 12
TRAIN = [EncodedExample(tuple((i * j) % 7 for j in range(1, 2 + i % 4)), ((i % 3),) * (1 + i % 4)) for i in range(20)]


class Tagger(nn.Module):
    """Small, but with dropout and with tied weights, which safetensors refuses to save as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 7)
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(7, 7)
        self.output.weight = self.embedding.weight


def noisy_cross_entropy(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
    scores = model.output(model.dropout(model.embedding(batch.sources_BS)))
    # All three generators take part, so each must be restored.
    noise = random.random() + float(np.random.rand())
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch.targets_BT.flatten())
    return loss * (values.get("alpha", 1.0) + 0.1 * noise)


def smooth_cross_entropy(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
    scores = model.output(model.embedding(batch.sources_BS))
    return nn.functional.cross_entropy(scores.flatten(0, 1), batch.targets_BT.flatten())


def stop_after(stop: int) -> Callable[[Progress], None]:
    """Interrupt a training run in the step after this one."""

    def interrupt(progress: Progress) -> None:
        if progress.step == stop + 1:
            raise KeyboardInterrupt

    return interrupt


def new_model() -> Tagger:
    torch.manual_seed(3)
    return Tagger()


def run(model: nn.Module, output: Path, **settings: Any) -> TrainingResult:
    given: dict[str, Any] = {
        "steps": STEPS, "batch_size": 4, "learning_rate": 0.05, "seed": 1, "save_every": 4, "warmup_steps": 2,
        "schedules": {"alpha": linear(1, 2, STEPS)}, "objective": noisy_cross_entropy, "train": TRAIN,
    }  # fmt: skip
    given |= settings
    return fit(model, given.pop("objective"), given.pop("train"), output=output, **given)


def log_lines(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def kept(output: Path) -> set[str]:
    return {path.name for path in (output / "checkpoints").iterdir()}


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0, check_device=False)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tagger, Path]:
    model, output = new_model(), tmp_path_factory.mktemp("whole")
    run(model, output)
    return model, output


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [4, 5, 6, 8, 11])
def test_stopped_at_any_step_the_objective_sees_each_step_once(
    stop: int, tmp_path: Path, uninterrupted: tuple[Tagger, Path]
) -> None:
    # 5 batches an epoch: a checkpoint at 5 lies on the border of two epochs.
    seen: list[tuple[int, list[int]]] = []

    def objective(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
        seen.append((round((values["alpha"] - 1) * STEPS), batch.indices_B.tolist()))
        return noisy_cross_entropy(model, batch, values)

    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path, objective=objective, on_progress=stop_after(stop), save_every=stop)
    before = seen[:stop]
    seen.clear()
    model = new_model()
    assert run(model, tmp_path, objective=objective, save_every=stop).resumed_from == stop
    steps = before + seen
    assert [step for step, _ in steps] == list(range(STEPS))
    for epoch in range(2):
        assert sorted(i for _, batch in steps[5 * epoch : 5 * epoch + 5] for i in batch) == list(range(20))
    assert [batch for _, batch in steps[:5]] != [batch for _, batch in steps[5:10]], "each epoch has its own order"
    assert_equal_weights(model, uninterrupted[0])


def test_the_log_has_every_step_with_its_schedules_and_learning_rate(uninterrupted: tuple[Tagger, Path]) -> None:
    lines = log_lines(uninterrupted[1])
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["alpha"] for line in lines] == pytest.approx([1 + t / STEPS for t in range(STEPS)])
    rates = [0.05 * min(t / 2, (STEPS - t) / (STEPS - 2)) for t in range(STEPS)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
    assert all(line["gradient_norm"] > 0 for line in lines)


def test_it_is_adamw_with_clipping_on_the_batches_of_the_sampler(tmp_path: Path) -> None:
    batches: list[Batch] = []

    def objective(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
        batches.append(batch.to("cpu"))
        return smooth_cross_entropy(model, batch, values)

    model, by_hand = new_model(), new_model()
    settings = {"decay": "constant", "warmup_steps": 0, "clip": 0.1, "weight_decay": 0.1}
    result = run(model, tmp_path, objective=objective, schedules=None, **settings)
    decayed = [by_hand.embedding.weight]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": [by_hand.output.bias], "weight_decay": 0.0}], lr=0.05
    )
    losses = []
    for batch in list(batches):
        loss = objective(by_hand, batch, {})
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimiser.step()
        losses.append(loss.item())
    for (name, a), b in zip(model.cpu().named_parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5), name
    assert result.mean_loss == pytest.approx(sum(losses[-(STEPS // 5) :]) / (STEPS // 5), rel=1e-5)
    assert result.steps == STEPS
    assert result.resumed_from is None


@pytest.mark.thorough
def test_parts_of_a_batch_have_the_gradient_of_the_batch(tmp_path: Path) -> None:
    """Rows of very different lengths, so that a mean of means would be another loss; 3 parts of 4 rows."""
    whole, parts = new_model().double(), new_model().double()
    options: dict[str, Any] = {"objective": smooth_cross_entropy, "schedules": None, "train": TRAIN[:18]}
    run(whole, tmp_path / "whole", **options)
    run(parts, tmp_path / "parts", gradient_accumulation_steps=3, **options)
    for (name, a), b in zip(whole.named_parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5, msg=name)
    expected, found = log_lines(tmp_path / "whole"), log_lines(tmp_path / "parts")
    for name in ("step", "loss", "gradient_norm", "learning_rate"):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in expected], rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [4, 7])
def test_resumed_in_parts_it_ends_with_the_same_weights(stop: int, tmp_path: Path) -> None:
    whole, resumed = new_model(), new_model()
    options: dict[str, Any] = {"gradient_accumulation_steps": 3, "save_every": stop}
    run(whole, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path / "resumed", on_progress=stop_after(stop), **options)
    assert run(resumed, tmp_path / "resumed", **options).resumed_from == stop
    assert_equal_weights(whole, resumed)
    with pytest.raises(InputError, match=r"other gradient_accumulation_steps \(3 then, 1 now\)"):
        run(new_model(), tmp_path / "resumed", save_every=stop)


@pytest.mark.thorough
def test_bfloat16_computes_in_it_and_keeps_weights_as_they_are(tmp_path: Path) -> None:
    types: set[torch.dtype] = set()

    def objective(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
        scores = model.output(model.embedding(batch.sources_BS))
        types.add(scores.dtype)
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch.targets_BT.flatten())

    exact, rounded = new_model(), new_model()
    run(exact, tmp_path / "exact", objective=objective)
    assert types == {torch.float32}
    types.clear()
    run(rounded, tmp_path / "rounded", objective=objective, bf16=True)
    assert types == {torch.bfloat16} and {p.dtype for p in rounded.parameters()} == {torch.float32}
    losses = [[line["loss"] for line in log_lines(tmp_path / name)] for name in ("exact", "rounded")]
    assert losses[1] == pytest.approx(losses[0], rel=0.05) and losses[1] != losses[0]


@pytest.mark.thorough
def test_a_search_trains_in_bfloat16(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "feedforward_size": 16, "num_layers": 1, "dropout": 0.0}
    train = [EncodedExample(one.source_ids, (*one.target_ids[:-1], 0)) for one in TRAIN]
    losses = []
    for bf16 in (False, True):
        torch.manual_seed(0)
        model, output = Transformer(source_size=7, target_size=3, end=0, **sizes), tmp_path / str(bf16)
        run(model, output, objective=relaxed_beam_objective(k=2), train=train, bf16=bf16, learning_rate=0.001)
        losses.append([line["loss"] for line in log_lines(output)])
    assert losses[1] == pytest.approx(losses[0], rel=0.1) and losses[1] != losses[0]


@pytest.mark.thorough
def test_with_gradient_checkpointing_a_search_trains_to_the_same_weights(tmp_path: Path) -> None:
    """It is on while it trains, and may change on resuming."""
    train = [EncodedExample((1, 2, 3) * 3, (1, 2, 1) * 3)] * 4
    sizes: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "feedforward_size": 8, "num_layers": 1}
    asked: list[bool] = []

    def objective(model: Any, batch: Batch, values: dict[str, float]) -> Tensor:
        asked.append(getattr(model, "gradient_checkpointing", False))
        return relaxed_beam_objective(k=2)(model, batch, values)

    def trained(output: Path, **options: Any) -> Any:
        torch.manual_seed(0)
        model: Any = Transformer(source_size=7, target_size=3, end=0, **sizes)
        run(model, output, objective=objective, train=train, **options)
        return model

    plain = trained(tmp_path / "plain")
    assert not any(asked)
    checkpointed = trained(tmp_path / "again", gradient_checkpointing=True)
    assert asked[-1] and not checkpointed.gradient_checkpointing
    assert log_lines(tmp_path / "again") == log_lines(tmp_path / "plain")
    torch.testing.assert_close(checkpointed.state_dict(), plain.state_dict(), rtol=0, atol=0)
    trained(tmp_path / "again")


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_not_a_number_stops_names_the_examples_and_keeps_the_last_checkpoint(what: str, tmp_path: Path) -> None:
    batches: list[list[int]] = []

    def objective(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
        batches.append(batch.indices_B.tolist())
        loss = noisy_cross_entropy(model, batch, values)
        if len(batches) < 8:
            return loss
        # The square root has value 0 and an infinite derivative at 0.
        return loss * math.nan if what == "loss" else loss + (0 * model.output.bias.sum()).sqrt()

    with pytest.raises(InputError) as error:
        run(new_model(), tmp_path, objective=objective, example_names=lambda index: f"train.tsv:{index + 1}")
    message = str(error.value)
    assert ("the loss is nan" if what == "loss" else "the gradient norm is") in message
    assert "at step 8" in message
    for index in batches[-1]:
        assert f"train.tsv:{index + 1}" in message
    assert "\n" not in message
    assert kept(tmp_path) == {"checkpoint-4"}
    assert last_complete(tmp_path / "checkpoints") is not None
    assert [line["step"] for line in log_lines(tmp_path)] == list(range(1, 8))


def test_progress_is_called_before_the_checkpoint_of_its_step(tmp_path: Path) -> None:
    """What is written down at a step outlasts a kill in the save of that step, or the step is made again."""
    told: dict[int, bool] = {}

    def note(progress: Progress) -> None:
        told[progress.step] = any((tmp_path / "checkpoints").glob(f"*checkpoint-{progress.step}*"))

    run(new_model(), tmp_path, on_progress=note)
    assert told == dict.fromkeys(range(1, STEPS + 1), False)
    assert f"checkpoint-{STEPS}" in kept(tmp_path)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    model = new_model()

    def poison(progress: Progress) -> None:
        if progress.step == 8:
            with torch.no_grad():
                model.output.bias[0] = math.inf

    with pytest.raises(InputError, match=r"the weights output\.bias are not finite after step 8"):
        run(model, tmp_path, on_progress=poison)
    assert kept(tmp_path) == {"checkpoint-4"}


def test_an_interrupt_says_on_one_line_how_to_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path, on_progress=interrupt)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "stopped at step 6 of 12" in captured.err
    assert "checkpoint-4 is kept; run the same command again to continue" in captured.err


def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = new_model()
    result = run(first, tmp_path)
    again = new_model()
    called: list[Progress] = []
    repeated = run(again, tmp_path, on_progress=called.append)
    assert not called
    assert (repeated.steps, repeated.resumed_from, repeated.mean_loss) == (STEPS, STEPS, result.mean_loss)
    assert_equal_weights(first, again)
    others: list[tuple[str, Any]] = [
        ("seed", 2), ("learning_rate", 0.1), ("steps", 20), ("train", TRAIN[1:]), ("clip", math.inf),
        ("schedules", {"alpha": linear(1, 3, STEPS)}), ("schedules", {}),
        ("schedules", {"alpha": lambda step: 1.0 + (step == STEPS - 1)}), ("objective", smooth_cross_entropy),
    ]  # fmt: skip
    for name, value in others:
        said = "other " + {"train": "training data"}.get(name, name)
        with pytest.raises(InputError, match=said):
            run(new_model(), tmp_path, **{name: value})
    with pytest.raises(InputError, match="other training data"):  # which is why there are other steps
        run(new_model(), tmp_path, train=TRAIN[1:], steps=20)
    with pytest.raises(InputError, match=r"another model .*size mismatch"):
        run(nn.ModuleDict({"embedding": nn.Embedding(7, 3), "output": nn.Linear(7, 7)}), tmp_path)
    with pytest.raises(InputError, match=r"another model .*Unexpected key"):
        run(nn.ModuleDict({"embedding": nn.Embedding(7, 7)}), tmp_path)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rates": {"output": 0.1}}, "rates"),
        ({"evaluate": lambda: 1.0}, "measure_every"),
        ({"fingerprints": {"development data": "x"}}, "development data"),
    ],
    ids=["rates", "evaluate", "fingerprints"],
)
def test_an_option_that_is_left_out_on_resuming_is_missed(option: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path, on_progress=stop_after(3), save_every=2, **option)
    with pytest.raises(InputError, match=f"made with other {said}"):
        run(new_model(), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="threads and instructions matter on a CPU only")
def test_another_machine_is_said_once_when_training_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in (4, 8):
        with pytest.raises(KeyboardInterrupt):
            run(new_model(), tmp_path, on_progress=stop_after(stop))
        assert "resumed with" not in capfd.readouterr().err
    (folder, threads) = tmp_path / "checkpoints" / "checkpoint-8", torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEW")
    run(new_model(), tmp_path)
    said = capfd.readouterr().err
    assert said.startswith(f"seqwise: {folder}: resumed with other threads ({threads} then, {threads + 1} now), instr")
    assert "'NEW' now); an uninterrupted run may end with different weights" in said
    assert said.count("\n") == 1
    monkeypatch.undo()
    run(new_model(), tmp_path)  # the run has ended, so nothing depends on the machine any more
    assert capfd.readouterr().err == ""


def test_damage_of_logs_after_the_checkpoint_is_cut_off(tmp_path: Path, uninterrupted: tuple[Tagger, Path]) -> None:
    options: dict[str, Any] = {"measure": lambda values: {"x": 1.0}, "measure_every": 2}
    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path, on_progress=stop_after(6), **options)
    for name in ("log.jsonl", "measurements.jsonl"):
        with (tmp_path / name).open("ab") as log:
            log.write(b"\0\xff\n" if name == "log.jsonl" else b"\0")
    model = new_model()
    assert run(model, tmp_path, **options).resumed_from == 4
    assert_equal_weights(model, uninterrupted[0])
    assert log_lines(tmp_path) == log_lines(uninterrupted[1])
    measured = [json.loads(line)["step"] for line in (tmp_path / "measurements.jsonl").read_text().splitlines()]
    assert measured == [2, 4, 6, 8, 10, 12]


def test_logs_without_a_checkpoint_are_written_again(tmp_path: Path) -> None:
    for name in ("log.jsonl", "measurements.jsonl"):
        (tmp_path / name).write_bytes(b"\0\0\n")
    run(new_model(), tmp_path)
    assert [line["step"] for line in log_lines(tmp_path)] == [*range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.jsonl", b"nonsense\n", r"log\.jsonl:1: not a JSON object; restore the file, give another"),
        ("log.jsonl", b"\0\n", r"log\.jsonl:1: not a JSON object"),
        ("log.jsonl", b"\xff\n", r"log\.jsonl: the file cannot be read"),
        ("log.jsonl", b'{"step": 2, "loss": 1.0}\n', r"log\.jsonl:1: not the line of step 1"),
        ("log.jsonl", b'{"step": 1}\n', r"log\.jsonl:1: not the line of step 1"),
        ("log.jsonl", b"", r"log\.jsonl: lines of the first 12 steps are missing"),
        ("log.jsonl", None, r"log\.jsonl: the file cannot be read; restore the file"),
        ("measurements.jsonl", b"[1]\n", r"measurements\.jsonl:1: not a JSON object"),
        ("measurements.jsonl", b'{"step": "1"}\n', r"measurements\.jsonl: the measurement of step 6, the best, is mis"),
        (
            "measurements.jsonl",
            None,
            r"measurements\.jsonl: the measurement of step 6, the best, is missing; leave out measure",
        ),
    ],
)
def test_damaged_logs_of_steps_before_the_checkpoint_are_refused_in_one_line(
    name: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"measure": lambda values: {"x": 1.0}, "measure_every": 6, "evaluate": lambda: 1.0}
    run(new_model(), tmp_path, **options)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        run(new_model(), tmp_path, **options)


def test_schedules_that_agree_at_both_ends_are_told_apart(tmp_path: Path) -> None:
    values = [[1.0, 5.5, *[10.0] * STEPS], [1.0, 5.6, *[10.0] * STEPS]]
    alphas: list[Any] = [linear(1, 10, 2), linear(1, 10, 1), values[1].__getitem__]
    with pytest.raises(KeyboardInterrupt):
        run(new_model(), tmp_path, schedules={"alpha": alphas[0]}, on_progress=stop_after(3), save_every=2)
    for alpha in alphas[1:]:
        with pytest.raises(InputError, match="made with other schedules"):
            run(new_model(), tmp_path, schedules={"alpha": alpha})

    class Table(Schedule):
        """The same values, without the text of a schedule; the text of a function may differ between processes."""

        def __call__(self, step: float) -> float:
            return values[0][int(step)]

    assert run(new_model(), tmp_path, schedules={"alpha": Table()}).resumed_from == 2


def test_parts_of_a_batch_may_have_no_gold_token(tmp_path: Path) -> None:
    def objective(model: Any, batch: Batch, values: Any) -> Tensor:
        return model.output.weight.square().sum() + 0.0 * batch.target_lengths_B.sum()

    empty = [EncodedExample((1, 2), ())] * 4
    options: dict[str, Any] = {"steps": 2, "batch_size": 4, "learning_rate": 0.1, "seed": 0}
    result = fit(new_model(), objective, empty, output=tmp_path, gradient_accumulation_steps=2, **options)
    assert result.steps == 2 and result.mean_loss == 0.0


@pytest.mark.thorough
def test_the_best_weights_are_restored_and_patience_ends_the_run(tmp_path: Path) -> None:
    """Every second step is evaluated: 1, 3, 2, 3, 2.5 (no better than the first 3, in three evaluations)."""
    values = {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0, 10: 2.5, 12: 9.0}
    model, weights, steps = new_model(), dict[int, dict[str, Tensor]](), [0]

    def note(progress: Progress) -> None:
        steps[0] = progress.step
        weights[progress.step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def evaluate() -> float:
        return values[steps[0]]

    options: dict[str, Any] = {"measure_every": 2, "save_every": 5, "on_progress": note}
    result = run(model, tmp_path / "early", evaluate=evaluate, patience=3, **options)
    assert (result.steps, result.best_step, result.best_metric) == (10, 4, 3.0)
    assert len(log_lines(tmp_path / "early")) == 10
    assert kept(tmp_path / "early") == {"checkpoint-4", "checkpoint-8", "checkpoint-10"}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[4][name]), name
    assert not torch.equal(weights[4]["output.bias"], weights[10]["output.bias"])
    again = new_model()
    repeated = run(again, tmp_path / "early", evaluate=lambda: 1 / 0, patience=3, **{**options, "on_progress": None})
    assert (repeated.steps, repeated.best_step, repeated.best_metric) == (10, 4, 3.0)
    assert_equal_weights(again, model)
    with pytest.raises(InputError, match=r"other patience \(3 then, 2 now\)"):
        run(new_model(), tmp_path / "early", evaluate=evaluate, patience=2, **options)
    later = run(model, tmp_path / "late", evaluate=evaluate, **options)
    assert (later.steps, later.best_step, later.best_metric) == (12, 12, 9.0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_killed_and_resumed_at_random_steps_the_same_weights_are_the_best(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    options: dict[str, Any] = {"measure_every": 2, "save_every": draw.choice([1, 3, 5]), "patience": 2}
    options["steps"] = 24
    reference: list[Tensor] = []

    def note(progress: Progress) -> None:
        if progress.step == 11:
            reference.append(followed.embedding.weight.detach().clone())

    followed = new_model()
    run(followed, tmp_path / "followed", steps=24, on_progress=note)

    class Killed(BaseException):
        pass

    def start(output: Path, calls: float) -> tuple[Tagger, TrainingResult | None]:
        """Train until so many steps and evaluations are begun."""
        model, left = new_model(), [calls]

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        def evaluate() -> float:
            count()
            return -float((model.embedding.weight.detach() - reference[0]).norm())

        try:
            return model, run(model, output, evaluate=evaluate, on_progress=lambda _: count(), **options)
        except Killed:
            return model, None

    whole, expected = start(tmp_path / "whole", math.inf)
    assert expected is not None and expected.best_step is not None
    assert expected.best_step in (10, 12) and expected.steps == expected.best_step + 4
    found, kills = None, 0
    while found is None:
        calls = draw.randrange(1, 9) if kills < 12 else math.inf
        resumed, found = start(tmp_path / "killed", calls)
        kills += 1
    assert kills > 2
    assert_equal_weights(resumed, whole)
    for name in ("steps", "mean_loss", "best_step", "best_metric"):
        assert getattr(found, name) == getattr(expected, name)
    assert log_lines(tmp_path / "killed") == log_lines(tmp_path / "whole")
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole")


def test_nan_metrics_and_invalid_patience_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the development metric is nan after step 2"):
        run(new_model(), tmp_path / "nan", evaluate=lambda: math.nan, measure_every=2)
    with pytest.raises(InputError, match="patience: there is no development metric"):
        run(new_model(), tmp_path / "never", patience=1)
    with pytest.raises(InputError, match="patience must be at least 1, got 0"):
        run(new_model(), tmp_path / "never", patience=0, evaluate=lambda: 1.0)
    with pytest.raises(InputError, match=r"patience must be an integer, got 1\.5"):
        run(new_model(), tmp_path / "never", patience=1.5, evaluate=lambda: 1.0)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("value", [None, "0.5", {"F1": 0.5}, torch.zeros(2)])
def test_a_development_metric_that_is_not_one_number_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"the development metric is .* after step 2; evaluate must return a finite"):
        run(new_model(), tmp_path / "run", evaluate=lambda: value, measure_every=2)


@pytest.mark.thorough
def test_a_run_leaves_no_state_behind(
    tmp_path: Path, uninterrupted: tuple[Tagger, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    expected = random.random(), np.random.rand(), torch.rand(3)
    random.seed(5), np.random.seed(6)
    other = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "dropout": nn.Dropout(), "output": nn.Linear(4, 5)}).eval()

    def objective(model: Any, batch: Batch, values: dict[str, float]) -> Tensor:
        assert model.training
        model = model["output"](model["dropout"](model["embedding"](batch.sources_BS)))
        return nn.functional.cross_entropy(model.flatten(0, 1), batch.targets_BT.flatten())

    model = new_model()
    torch.manual_seed(7)
    level = transformers.logging.get_verbosity(), logging.getLogger().level
    run(other, tmp_path / "other", objective=objective, seed=9, batch_size=7, schedules=None)
    run(model, tmp_path / "model")
    assert_equal_weights(model, uninterrupted[0])
    assert not other.training
    assert random.random() == expected[0]
    assert np.random.rand() == expected[1]
    assert torch.equal(torch.rand(3), expected[2])
    assert level == (transformers.logging.get_verbosity(), logging.getLogger().level)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("batch_size", 0), ("learning_rate", 0.0), ("learning_rate", math.nan), ("seed", -1),
     ("seed", 2**32), ("save_every", 0), ("clip", 0.0), ("warmup_steps", -1), ("weight_decay", -0.1),
     ("gradient_accumulation_steps", 0), ("batch_size", 2.5), ("steps", 2.5), ("gradient_accumulation_steps", 1.5),
     ("learning_rate", "0.1"), ("seed", None), ("decay", None),
     ("decay", "liner")],
)  # fmt: skip
def test_settings_out_of_range_are_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}|did you mean 'linear'"):
        run(new_model(), tmp_path / "never", **{name: value})
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (CrossEntropy(), r"objective: a CrossEntropy is not a function; pass .*, such as CrossEntropy\(\)\.build\(\)"),
        (CrossEntropy, "CrossEntropy'> is not a function"),
        ("cross-entropy", "objective: 'cross-entropy' is not a function"),
    ],
)
def test_settings_of_an_objective_are_not_an_objective(objective: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        run(new_model(), tmp_path / "never", objective=objective)
    assert not (tmp_path / "never").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="file: the output is a file; name a folder"):
        run(new_model(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_one_integration_and_whole_numbers_of_numpy_are_accepted(tmp_path: Path) -> None:
    assert run(new_model(), tmp_path / "run", report_to="none", steps=np.int64(2), batch_size=np.int64(4)).steps == 2
    numbers = {"learning_rate": np.float32(0.01), "measure_every": np.int64(1), "patience": np.int64(3)}
    assert run(new_model(), tmp_path / "other", evaluate=lambda: 0.0, **numbers).steps > 0
    with pytest.raises(InputError, match="report_to: the Trainer has no integration 'tensorbord'"):
        run(new_model(), tmp_path / "run", report_to="tensorbord")


def test_a_sealed_checkpoint_from_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "checkpoint-4"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("?")
    seal(folder)
    with pytest.raises(InputError, match=r"settings\.json"):
        run(new_model(), tmp_path)


def test_importing_seqwise_or_its_training_package_does_not_import_transformers() -> None:
    code = "import sys, seqwise, seqwise.training, seqwise.schedules; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("written", "meant"), [("linear(1, 2)", linear(1, 2, STEPS)), (1.5, lambda step: 1.5), ("1.5", lambda step: 1.5)]
)
@pytest.mark.parametrize("kind", [str, Path])
def test_schedules_and_folders_may_be_plain_values(written: Any, meant: Any, kind: Any, tmp_path: Path) -> None:
    model, other = new_model(), new_model()
    run(model, kind(tmp_path / "plain"), schedules={"alpha": written}, steps=STEPS)
    run(other, tmp_path / "function", schedules={"alpha": meant}, steps=STEPS)
    assert [line["alpha"] for line in log_lines(tmp_path / "plain")] == [meant(step) for step in range(STEPS)]
    assert_equal_weights(model, other)


@pytest.mark.thorough
def test_labels_that_end_with_an_end_token_are_refused_by_a_tagger(tmp_path: Path) -> None:
    labels = Vocabulary(("</s>", "A", "B"), end="</s>")
    data = encode_examples([Example(("x",), ("A",)), Example(("x", "x"), ("A", "B"))], Vocabulary(("x",)), labels)
    for objective in (cross_entropy_objective(), relaxed_beam_objective(k=2)):
        for tagger in (models.Tagger, models.ChainTagger):
            model = tagger(source_size=1, target_size=3)
            with pytest.raises(InputError, match=r"a label for each token: .* without end='</s>'"):
                run(model, tmp_path / f"{tagger.__name__}", objective=objective, train=data)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which computes in float16")
def test_half_precision_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fp16: float16 needs a GPU"):
        run(new_model(), tmp_path / "never", fp16=True)
    with pytest.raises(InputError, match="bf16: without a GPU, an LSTM does not compute in bfloat16"):
        run(models.Tagger(source_size=7, target_size=3), tmp_path / "never", bf16=True)
    assert not (tmp_path / "never").exists()
    model = new_model()
    model.other = nn.LSTM(2, 2)  # which may get packed sequences
    assert run(model, tmp_path / "run", bf16=True).steps == STEPS


@pytest.mark.parametrize(
    ("message", "raised", "said"),
    [
        ("CUDA error: device-side assert triggered", InputError, "in one of these or in a batch before: example"),
        ("CUDA error: an illegal memory access was encountered", torch.AcceleratorError, "illegal memory"),
    ],
)
def test_an_index_error_of_a_gpu_is_distinguished_from_other_errors(
    message: str, raised: type[Exception], said: str, tmp_path: Path
) -> None:
    def objective(model: Tagger, batch: Batch, values: dict[str, float]) -> Tensor:
        raise torch.AcceleratorError(message)

    with pytest.raises(raised, match=said):
        run(new_model(), tmp_path / "run", objective=objective)


@pytest.mark.parametrize("objective", [cross_entropy_objective(), relaxed_beam_objective(k=2)])
def test_examples_that_do_not_fit_the_model_are_refused(objective: Any, tmp_path: Path) -> None:
    good = EncodedExample((0, 1), (0, 1))
    for tagger in (models.Tagger, models.ChainTagger):
        for bad, said in (
            (EncodedExample((0, 1), (0, 3)), "example 1 has the target id 3, the model 3 targets; make"),
            (EncodedExample((0, 2), (0, 1)), "an id lies outside the model's vocabularies, in one of these"),
            (EncodedExample((0, 1), (0,)), "example 1 has 1 labels for 2 tokens; a tagger writes a label for each"),
            (EncodedExample((0,), (0, 1)), "example 1 has 2 labels for 1 tokens"),
        ):
            if bad.source_ids == (0, 2) and torch.cuda.is_available():
                continue  # a process whose GPU has refused an index can do nothing with it any more
            with pytest.raises(InputError, match=said):
                run(tagger(source_size=2, target_size=3), tmp_path / "run", objective=objective, train=[good, bad])
