"""Training Hugging Face models by search-aware objectives, against their own Trainer and their own scores.

The oracles are ``Seq2SeqTrainer``, the model's own loss on unpadded rows, and objectives computed apart on batches that
are made by hand. Models are tiny, with random weights.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from letters import letter_tokenizer
from parameters import quick
from pretrained import word_tokenizer
from seqwise.data import Batch, EncodedExample, collate
from seqwise.errors import InputError
from seqwise.hugging_face import SearchAwareConfig, SearchAwareTrainer, step_model
from seqwise.hugging_face import trainer as trainer_module
from seqwise.hugging_face.configuration import OBJECTIVES
from seqwise.hugging_face.model_inputs import batch_from_inputs, target_labels
from seqwise.objectives import (
    BeamCRF,
    Objective,
    RelaxedBeam,
    ScheduledSampling,
    beam_crf_objective,
    cross_entropy_objective,
    hinge_objective,
    minimum_risk_objective,
    mixed_objective,
    relaxed_beam_objective,
    softmax_margin_objective,
)
from seqwise.objectives.beam_likelihood import dense_beam_objective, soft_dense_beam_objective
from seqwise.objectives.contrastive import noise_contrastive_objective, noise_log_probs
from seqwise.objectives.distillation import distillation_objective
from seqwise.objectives.risk import edit_distances
from seqwise.objectives.scheduled_sampling import scheduled_sampling_objective
from seqwise.objectives.self_normalization import (
    log_partition_objective,
    sampled_self_normalized_objective,
    self_normalized_objective,
    unnormalized_likelihood_objective,
)
from seqwise.objectives.violations import (
    beam_search_optimization_objective,
    early_update_objective,
    hard_beam_hinge_objective,
)
from seqwise.schedules import linear
from seqwise.search import global_, mean_squared_gap, trie
from seqwise.search.feeding import fed_logits_in_two_passes
from seqwise.search.language import members

transformers.logging.set_verbosity_error()

END, PAD, BOS, V = 0, 1, 2, 9
LETTERS = range(3, V)

SEQ2SEQ: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 24,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": BOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
    "dropout": 0.0,
}
T5: dict[str, Any] = {"vocab_size": V, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
GPT2: dict[str, Any] = {"vocab_size": V, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def made(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A model of a family with random weights, all of one seed the same."""
    torch.manual_seed(seed)
    t = transformers
    makers: dict[str, Callable[[], Any]] = {
        "Marian": lambda: t.MarianMTModel(t.MarianConfig(**SEQ2SEQ, scale_embedding=True, **options)),
        "BART": lambda: t.BartForConditionalGeneration(t.BartConfig(**(SEQ2SEQ | options))),
        "T5": lambda: t.T5ForConditionalGeneration(
            t.T5Config(**T5, dropout_rate=0.0, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=BOS)
        ),
        "GPT-2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(**GPT2, bos_token_id=BOS, eos_token_id=END, pad_token_id=PAD, **(NO_DROPOUT | options))
        ),
    }
    model = makers[name]().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # so large that the model has opinions
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


Pair = tuple[list[int], list[int]]


def pairs(count: int, *, seed: int = 0, longest: int = 4) -> list[Pair]:
    """Words of letters and the same words backwards, without the end token."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        word = torch.randint(3, V, (length,), generator=generator).tolist()
        found.append((word, word[::-1]))
    return found


def rows(data: Sequence[Pair], name: str) -> list[dict[str, list[int]]]:
    """Examples as a data set has them."""
    if name == "GPT-2":
        return [{"input_ids": [BOS, *x, BOS, *y, END], "labels": [-100] * (len(x) + 2) + [*y, END]} for x, y in data]
    return [{"input_ids": [*x, END], "labels": [*y, END]} for x, y in data]


def encoded(data: Sequence[Pair], name: str) -> Batch:
    """The same examples as one batch of ours, made by hand."""
    source: Callable[[list[int]], tuple[int, ...]]
    source = (lambda x: (BOS, *x, BOS)) if name == "GPT-2" else (lambda x: (*x, END))
    return collate([EncodedExample(source(x), (*y, END)) for x, y in data])


def padded(examples: Sequence[Mapping[str, list[int]]], *, left: bool = False, fill: int = PAD) -> dict[str, Tensor]:
    """A collator that pads on either side."""
    batch = {}
    for name, filler in (("input_ids", fill), ("attention_mask", 0), ("labels", -100)):
        values = [one.get(name, [1] * len(one["input_ids"])) for one in examples]
        width = max(map(len, values))
        gaps = [[filler] * (width - len(one)) for one in values]
        batch[name] = torch.tensor([gap + one if left else one + gap for one, gap in zip(values, gaps, strict=True)])
    return batch


def trained(model: Any, data: Any, folder: Path, *, resume: Any = None, **options: Any) -> Any:
    """A trainer that has trained the model in place, quietly."""
    trainer = made_trainer(model, data, folder, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def made_trainer(
    model: Any,
    data: Any,
    folder: Path,
    *,
    kind: Any = SearchAwareTrainer,
    data_collator: Any = padded,
    callbacks: Any = None,
    eval_dataset: Any = None,
    processing_class: Any = None,
    compute_metrics: Any = None,
    **options: Any,
) -> Any:
    arguments = SearchAwareConfig if kind is SearchAwareTrainer else transformers.Seq2SeqTrainingArguments
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 5,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        "dataloader_pin_memory": False,
    }
    trainer = kind(
        model,
        arguments(str(folder), **(settings | options)),
        data_collator=data_collator,
        train_dataset=data,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
        processing_class=processing_class,
        compute_metrics=compute_metrics,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def require_same_weights(model: Any, other: Any, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=rtol, atol=atol)


def apart(model: Any, other: Any) -> float:
    found = [(a - b).detach().abs().max() for a, b in zip(model.parameters(), other.parameters(), strict=True)]
    return float(torch.stack(found).max())


# ---------------------------------------------------------------------------------------- the same as Seq2SeqTrainer


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Marian", "BART", "T5", "GPT-2"])
def test_cross_entropy_is_that_of_seq2seq_trainer_step_by_step(name: str, tmp_path: Path) -> None:
    data = rows(pairs(32), name)
    # In double precision, since Adam makes steps of what is nothing but rounding in a gradient of 0.
    ours, theirs = made(name, dtype=torch.float64), made(name, dtype=torch.float64)
    start = copy.deepcopy(ours)
    own = trained(theirs, data, tmp_path, kind=transformers.Seq2SeqTrainer)
    found = trained(ours, data, tmp_path)
    casting = name == "T5"  # to float32, in its norms
    assert losses(found) == pytest.approx(losses(own), rel=1e-4 if casting else 1e-6)
    require_same_weights(ours, theirs, rtol=0.0, atol=1e-3 if casting else 1e-6)
    assert apart(ours, start) > 0.02  # something was learnt
    assert "forward" not in vars(ours)  # and nothing was left behind


@pytest.mark.thorough
@pytest.mark.parametrize("passes", ["two-pass", "step-by-step"])
@pytest.mark.parametrize("name", ["Marian", "GPT-2"])
def test_scheduled_sampling_that_always_feeds_gold_is_cross_entropy(name: str, passes: str, tmp_path: Path) -> None:
    data = rows(pairs(16), name)
    sampled, plain, other = (made(name, dtype=torch.float64) for _ in range(3))
    options = {"objective": "scheduled-sampling", "feeding_passes": passes, "max_steps": 3}
    found = trained(sampled, data, tmp_path, gold_probability="1", **options)
    assert losses(found) == pytest.approx(losses(trained(plain, data, tmp_path, max_steps=3)), rel=1e-5)
    require_same_weights(sampled, plain, atol=1e-6)
    assert losses(trained(other, data, tmp_path, gold_probability="0", **options)) != pytest.approx(losses(found))


def test_evaluation_is_that_of_seq2seq_trainer(tmp_path: Path) -> None:
    model, data = made("Marian"), rows(pairs(12), "Marian")

    def measure(prediction: Any) -> dict[str, float]:
        right = (prediction.predictions[:, 1:3] == prediction.label_ids[:, :2]).mean()
        return {"right": float(right), "ids": float(prediction.predictions.sum())}

    options = {
        "eval_dataset": data,
        "compute_metrics": measure,
        "predict_with_generate": True,
        "generation_max_length": 7,
        "generation_num_beams": 2,
    }
    # During training, after it, and by the plain Trainer on the same weights.
    ours = made_trainer(model, data, tmp_path, objective="hinge", max_steps=2, eval_strategy="epoch", **options)
    ours.train()
    during = next(entry for entry in ours.state.log_history if "eval_loss" in entry)
    theirs = made_trainer(model, data, tmp_path, kind=transformers.Seq2SeqTrainer, **options)
    expected, found = theirs.evaluate(), ours.evaluate()
    for name in ("eval_loss", "eval_right", "eval_ids"):
        assert found[name] == expected[name]
    assert {"eval_loss", "eval_right"} <= during.keys()
    written = ours.predict(data).predictions
    assert (written == theirs.predict(data).predictions).all()


# ---------------------------------------------------------------------------------------- the objectives


def _z(weight: float, objective: Objective, fraction: float = 1.0) -> Objective:
    return mixed_objective([objective, log_partition_objective(fraction=fraction)], [1.0, weight])


def _noise_of(data: Sequence[Pair]) -> Tensor:
    counts = [1.0] * V
    for _, target in data:
        for token in [*target, END]:
            counts[token] += 1
    return noise_log_probs(torch.tensor(counts))


NOTHING = {"cross_entropy_weight": 0.0}
FIRST_STEP: dict[str, tuple[dict[str, Any], Callable[[Sequence[Pair], Any], Objective]]] = {
    "cross-entropy": ({}, lambda *_: cross_entropy_objective()),
    "cross-entropy, z-loss": (
        {"log_partition_weight": 0.5},
        lambda *_: self_normalized_objective(weight=0.5),
    ),
    "cross-entropy, smoothed, z-loss": (
        {"label_smoothing": 0.2, "log_partition_weight": 0.3},
        lambda *_: _z(0.3, cross_entropy_objective(label_smoothing=0.2)),
    ),
    "self-normalized": ({}, lambda *_: self_normalized_objective(weight=0.1)),
    "sampled-self-normalized": (
        {"log_partition_weight": 0.3, "log_partition_fraction": 0.4},
        lambda *_: sampled_self_normalized_objective(weight=0.3, fraction=0.4),
    ),
    "unnormalized-likelihood": (
        {"log_partition_fraction": 0.7},
        lambda *_: unnormalized_likelihood_objective(weight=0.1, fraction=0.7),
    ),
    "noise-contrastive": (
        {"noise_tokens": 4},
        lambda data, _: noise_contrastive_objective(_noise_of(data), num_noise=4),
    ),
    "scheduled-sampling": (
        {"feeding": "soft-sample", "gold_probability": "0.3"},
        lambda *_: scheduled_sampling_objective("soft-sample", fed=fed_logits_in_two_passes),
    ),
    "scheduled-sampling, singly": (
        {"feeding": "sample", "gold_probability": "0.3", "feeding_passes": "step-by-step"},
        lambda *_: scheduled_sampling_objective("sample"),
    ),
    "distillation": ({"beam_size": 3}, lambda _, model: distillation_objective(step_model(model).eval(), k=3)),
    "relaxed-beam": ({}, lambda *_: relaxed_beam_objective(k=5, cross_entropy_weight=0.1)),
    "relaxed-beam, global, gaps, z-loss": (
        {"score": "global", "beam_size": 2, "alpha_unit": "gaps", "log_partition_weight": 0.2, **NOTHING},
        lambda *_: _z(0.2, relaxed_beam_objective(k=2, score=global_, unit=mean_squared_gap)),
    ),
    "hinge": ({**NOTHING}, lambda *_: hinge_objective(k=5)),
    "hard-hinge": ({"beam_size": 2}, lambda *_: hard_beam_hinge_objective(k=2, cross_entropy_weight=0.1)),
    "beam-crf": (
        {"score": "global", "direct_loss_weight": 0.5, **NOTHING},
        lambda *_: mixed_objective(
            [beam_crf_objective(k=5, score="global"), relaxed_beam_objective(k=5, score=global_)], [1.0, 0.5]
        ),
    ),
    "dense-beam": ({"score": "global", **NOTHING}, lambda *_: dense_beam_objective(k=5, score="global")),
    "soft-dense-beam": ({"score": "global", **NOTHING}, lambda *_: soft_dense_beam_objective(k=5, score="global")),
    "early-update": ({"score": "global", **NOTHING}, lambda *_: early_update_objective(k=5, score="global")),
    "beam-search-optimization": (
        {"score": "global", **NOTHING},
        lambda *_: beam_search_optimization_objective(k=5, score="global"),
    ),
    "minimum-risk": (
        {"cost": "edit-distance", "beam_size": 4},
        lambda *_: minimum_risk_objective(k=4, cost=edit_distances, cross_entropy_weight=0.1),
    ),
    "softmax-margin": ({"score": "global", **NOTHING}, lambda *_: softmax_margin_objective(k=5, score="global")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", FIRST_STEP)
def test_the_loss_of_a_step_is_the_objective_computed_apart(case: str, tmp_path: Path) -> None:
    settings, objective_of = FIRST_STEP[case]
    name = "GPT-2" if case in ("relaxed-beam", "scheduled-sampling", "cross-entropy, z-loss") else "Marian"
    data, model = pairs(4, seed=5), made(name)
    examples, before = rows(data, name), copy.deepcopy(model).train()
    batches: list[Batch] = []
    states: list[Tensor] = []

    def collator(chosen: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        batches.append(encoded([data[examples.index(one)] for one in chosen], name))
        return padded(chosen)

    class Remember(transformers.TrainerCallback):
        def on_step_begin(self, *arguments: Any, **named: Any) -> None:
            states.append(torch.get_rng_state())

    options = {"alpha": "exponential(2, 9)", "max_steps": 2, "learning_rate": 1e-12}
    found = trained(
        model,
        examples,
        tmp_path,
        objective=case.split(",")[0],
        data_collator=collator,
        callbacks=[Remember()],
        **(options | settings),
    )
    expected, objective, adapted = [], objective_of(data, before), step_model(before)
    for step, (state, batch) in enumerate(zip(states, batches, strict=True)):
        torch.set_rng_state(state)
        values = {"alpha": 2.0 * 4.5 ** (step / 2), "gold_probability": 0.3}
        expected.append(float(objective(adapted, batch, values).detach()))
    assert losses(found) == pytest.approx(expected, rel=1e-4)
    assert expected[0] != 0


def test_every_objective_is_among_those() -> None:
    assert {case.split(",")[0] for case in FIRST_STEP} == set(OBJECTIVES)


# ---------------------------------------------------------------------------------------- z-loss


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["T5", "GPT-2"])
def test_z_loss_is_the_literal_one(name: str, tmp_path: Path) -> None:
    """Sums of exponentials of the model's own scores, row by row, without padding."""
    data, model = pairs(4), made(name)
    examples, before = rows(data, name), copy.deepcopy(model)
    if name == "GPT-2":  # without a prompt: the first token is predicted from nothing, and is none of the targets
        examples[0]["labels"] = examples[0]["input_ids"]
    entropy, squares, count = 0.0, 0.0, 0
    for example in examples:
        inputs = {key: torch.tensor([value]) for key, value in example.items()}
        with torch.no_grad():
            logits = before(**inputs).logits[0].tolist()
        shift = 1 if name == "GPT-2" else 0  # a causal model predicts the next label
        for place, label in enumerate(example["labels"]):
            if label >= 0 and place >= shift:
                log_z = math.log(sum(math.exp(score) for score in logits[place - shift]))
                entropy, squares, count = entropy + log_z - logits[place - shift][label], squares + log_z**2, count + 1
    expected = (entropy + 0.25 * squares) / count
    found = trained(model, examples, tmp_path, log_partition_weight=0.25, max_steps=1)
    assert losses(found) == pytest.approx([expected], rel=1e-4)
    assert squares / count > 0.5


@pytest.mark.thorough
def test_the_penalty_of_a_fraction_is_a_mean_over_each_such_subset() -> None:
    adapted, data = step_model(made("Marian")), pairs(2, seed=4)
    batch = encoded(data, "Marian")
    with torch.no_grad():
        logits = adapted.head(adapted.teacher_forced(adapted.encode(batch), batch.targets_BT))
    squares = [float(row.double().exp().sum().log() ** 2) for row in logits[batch.targets_BT >= 0]]
    count = math.ceil(0.3 * len(squares))
    assert 1 < count < len(squares)
    means = torch.tensor([sum(chosen) / count for chosen in combinations(squares, count)])
    objective = log_partition_objective(fraction=0.3)
    with torch.no_grad():
        drawn = torch.stack([objective(adapted, batch, {}) for _ in range(200)])
        whole = float(log_partition_objective()(adapted, batch, {}))
    assert float((drawn[:, None] - means).abs().amin(1).max()) < 1e-4
    assert len({round(float(value), 4) for value in drawn}) > len(means) / 2
    assert whole == pytest.approx(sum(squares) / len(squares), rel=1e-5)
    assert abs(float(drawn.mean()) - whole) < 4 * float(means.std()) / 200**0.5


# ---------------------------------------------------------------------------------------- how it is trained


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["cross-entropy", "relaxed-beam"])
def test_four_batches_of_four_are_one_of_sixteen(objective: str, tmp_path: Path) -> None:
    """The lengths differ, so that a mean of four means would be another loss."""
    data = rows(pairs(32, longest=6), "BART")
    options = {"objective": objective, "log_partition_weight": 0.1, "max_steps": 2, "beam_size": 2}
    models = [made("BART", dtype=torch.float64) for _ in range(3)]
    # What a model says of its own loss has nothing to do with ours.
    models[0].accepts_loss_kwargs = models[1].accepts_loss_kwargs = objective == "cross-entropy"
    one = trained(models[0], data, tmp_path, per_device_train_batch_size=16, **options)
    four = trained(models[1], data, tmp_path, gradient_accumulation_steps=4, **options)
    assert losses(four) == pytest.approx(losses(one), rel=1e-5)
    require_same_weights(models[0], models[1], atol=1e-6)
    trained(models[2], data, tmp_path, **options)  # other batches give other weights
    assert apart(models[0], models[2]) > 1e-3


PROCESSES = """
import os, sys
from pathlib import Path
import torch
from hugging_face.test_trainer import losses, made, pairs, rows, trained
torch.set_num_threads(1)
model, data = made("BART", dtype=torch.float64), rows(pairs(16, longest=6), "BART")
options = {"objective": "relaxed-beam", "beam_size": 2, "max_steps": 2, "log_partition_weight": 0.1}
size = 8 // int(os.environ.get("WORLD_SIZE", 1))
trainer = trained(model, data, Path(sys.argv[1]), per_device_train_batch_size=size, **options)
if int(os.environ.get("RANK", 0)) == 0:
    torch.save((losses(trainer), model.state_dict()), sys.argv[2])
"""


@pytest.mark.slow
def test_two_processes_are_one_with_batches_twice_as_large(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROCESSES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    for count, start in ((1, []), (2, ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"])):
        command = [sys.executable, *start, str(tmp_path / "train.py"), str(tmp_path), str(tmp_path / str(count))]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    (one, weights), (two, others) = (torch.load(tmp_path / name) for name in ("1", "2"))
    assert two == pytest.approx(one, rel=1e-6)
    torch.testing.assert_close(others, weights, rtol=0, atol=1e-7)


SAMPLED = {"objective": "scheduled-sampling", "feeding": "soft-sample", "log_partition_weight": 0.1}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (SAMPLED, {"log_partition_fraction": 0.5}),
        ({"objective": "distillation", "beam_size": 2}, {}),
    ],
    ids=["scheduled-sampling", "distillation"],
)
def test_a_resumed_training_ends_with_the_same_weights(
    objective: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """With dropout, a coin for each token, Gumbel noise, and positions drawn for the penalty."""
    data = rows(pairs(16), "Marian")
    settings = {
        **objective,
        **options,
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": 3,
        "alpha": "linear(1, 9)",
    }
    whole, resumed = made("Marian"), made("Marian")
    for model in (whole, resumed):
        model.config.dropout = model.model.decoder.dropout = model.model.encoder.dropout = 0.2
    first = trained(whole, data, tmp_path, **settings)
    again = trained(resumed, data, tmp_path, resume=str(tmp_path / "checkpoint-3"), **settings)
    require_same_weights(whole, resumed)
    assert losses(again) == losses(first)
    assert again.state.log_history[-2]["step"] == 6
    logged = [entry["alpha"] for entry in first.state.log_history if "alpha" in entry]
    if "feeding" in objective:
        assert logged == pytest.approx([1 + 8 * step / 6 for step in range(6)])
        chances = [entry["gold_probability"] for entry in again.state.log_history if "gold_probability" in entry]
        assert chances == pytest.approx([1 - step / 6 for step in range(6)])
    else:
        assert not logged


def test_schedules_are_reported_with_the_loss(tmp_path: Path) -> None:
    reported: list[dict[str, float]] = []

    class Report(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            reported.append(logs)

    options = {"objective": "relaxed-beam", "beam_size": 2, "alpha": "exponential(1, 16)", "max_steps": 4}
    trained(made("GPT-2"), rows(pairs(8), "GPT-2"), tmp_path, callbacks=[Report()], logging_steps=2, **options)
    assert [(logs["alpha"], "gold_probability" in logs) for logs in reported if "loss" in logs] == [
        (2, False),
        (8, False),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("problem", ["loss", "gradient norm"])
def test_a_step_that_is_not_finite_stops_the_training(problem: str, tmp_path: Path) -> None:
    model = made("BART")

    class Break(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step == 2 and problem == "loss":
                model.final_logits_bias[:] = math.nan
            elif state.global_step == 2:
                model.lm_head.weight.register_hook(lambda gradient: gradient * math.nan)

    options: dict[str, Any] = {"objective": "hinge", "beam_size": 2, "callbacks": [Break()]}
    trainer = made_trainer(model, rows(pairs(16), "BART"), tmp_path, gradient_accumulation_steps=2, **options)
    with pytest.raises(InputError, match=f"the {problem} is nan at step 3"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.thorough
@pytest.mark.parametrize("evaluated_before", [False, True])
def test_bfloat16_reaches_into_the_search(evaluated_before: bool, tmp_path: Path) -> None:
    """Also where accelerate has wrapped the model before the objective was there."""
    data, model, plain = rows(pairs(8), "Marian"), made("Marian"), made("Marian")
    options = {"objective": "relaxed-beam", "beam_size": 3, "max_steps": 3, "eval_dataset": data}
    exact = trained(plain, data, tmp_path, **options)
    trainer = made_trainer(model, data, tmp_path, bf16=True, **options)
    if evaluated_before:
        trainer.evaluate()
    types: set[torch.dtype] = set()

    def note(module: Any, inputs: Any, output: Tensor) -> None:
        if module.training:  # the adapter tries the model out beforehand, in its own precision
            types.add(output.dtype)

    hook = model.model.decoder.layers[0].fc1.register_forward_hook(note)
    trainer.train()
    hook.remove()
    assert types == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert losses(trainer) == pytest.approx(losses(exact), rel=0.1)
    assert losses(trainer) != losses(exact)
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_float16_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fp16: float16 needs a GPU, and there is none; leave it out"):
        made_trainer(made("Marian"), rows(pairs(8), "Marian"), tmp_path, fp16=True)


CHECKPOINTED = {
    "cross-entropy": {},
    "two-pass": {"objective": "scheduled-sampling", "feeding": "soft-greedy", "gold_probability": "0.5"},
    "relaxed-beam": {"objective": "relaxed-beam", "beam_size": 2},
    "minimum-risk": {"objective": "minimum-risk", "beam_size": 2},
}


# Without a cache a causal model reads prompt and target at once, and draws dropout for both in one: other numbers.
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "dropout"), [("BART", 0.0), ("BART", 0.3), ("GPT-2", 0.0)])
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_activation_checkpointing_changes_nothing_but_memory(
    name: str, case: str, dropout: float, tmp_path: Path
) -> None:
    data, model, plain = rows(pairs(8), name), made(name, dtype=torch.float64), made(name, dtype=torch.float64)
    for module in [*model.modules(), *plain.modules()]:
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
        elif dropout and isinstance(getattr(module, "dropout", None), float):  # a number that layers of BART have
            module.dropout = dropout
    options = {"max_steps": 2, **CHECKPOINTED[case]}
    found = trained(model, data, tmp_path, gradient_checkpointing=True, **options)
    assert losses(found) == pytest.approx(losses(trained(plain, data, tmp_path, **options)), rel=1e-6)
    require_same_weights(model, plain, atol=1e-6)
    # And it was done: layers are computed again on the way back.
    again: list[bool] = []
    inside = model.get_decoder().layers[0].fc1 if name == "BART" else model.transformer.h[0].mlp
    inside.register_forward_pre_hook(lambda *_: again.append(torch._C._current_graph_task_id() != -1))
    trained(model, data, tmp_path, gradient_checkpointing=True, **options)
    assert any(again)


def test_dropout_of_an_adapter_is_drawn_anew_each_time() -> None:
    """Before the keys and values of cross-attention, which a cache keeps: its random numbers are not put back."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=r".*decoder.*encoder_attn\.v_proj", lora_dropout=0.5, init_lora_weights=False
    )
    model = peft.get_peft_model(made("BART"), config).train()
    adapted, batch = step_model(model), collate([EncodedExample((1, 4, 2), ())])
    first, second = (adapted.encode(batch) for _ in range(2))
    assert torch.equal(first.hidden_BSH, second.hidden_BSH)
    assert not torch.equal(first.memory[0][1], second.memory[0][1])


@pytest.mark.thorough
def test_lists_and_datasets_are_the_same_with_the_collator_of_transformers(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tokenizer = word_tokenizer(mask=None)
    tokenizer.pad_token_id = PAD
    data = rows(pairs(12), "Marian")
    extra = [{**example, "text": "dropped"} for example in data]
    models = []
    for given in (data, extra, datasets.Dataset.from_list(extra)):
        models.append(made("Marian"))
        collator = transformers.DataCollatorForSeq2Seq(tokenizer, model=models[-1])
        options = {"data_collator": collator, "objective": "relaxed-beam", "beam_size": 2}
        trained(models[-1], given, tmp_path, max_steps=-1, num_train_epochs=2, **options)
    require_same_weights(models[0], models[1])
    require_same_weights(models[0], models[2])


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["cross-entropy", "relaxed-beam"])
@pytest.mark.parametrize("name", ["Marian", "GPT-2"])
def test_the_side_and_the_ids_of_padding_change_nothing(name: str, objective: str, tmp_path: Path) -> None:
    data = rows(pairs(16), name)
    if name == "GPT-2":  # without a prompt, the first token of each row is one
        data += [{"input_ids": one["input_ids"], "labels": one["input_ids"]} for one in data[:8]]
    models = [made(name) for _ in range(3)]
    options = {"objective": objective, "beam_size": 2, "max_steps": 3} if objective != "cross-entropy" else {}
    found = [
        losses(trained(model, data, tmp_path, data_collator=partial(padded, left=left, fill=fill), **options))
        for model, left, fill in zip(models, (False, True, True), (PAD, PAD, 5), strict=True)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == found[1]
    require_same_weights(models[1], models[2])


def test_adapters_are_trained_and_nothing_else(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, data = made("BART"), rows(pairs(8), "BART")
    before = copy.deepcopy(base)
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "out_proj"], task_type="SEQ_2_SEQ_LM")
    model = peft.get_peft_model(base, adapters)
    trained(model, data, tmp_path / "run", objective="relaxed-beam", beam_size=2, cross_entropy_weight=0.0).save_model()
    changed = {name: weight for name, weight in model.named_parameters() if "lora_B" in name}
    assert changed
    assert all(bool(weight.any()) for weight in changed.values())
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(before), tmp_path / "run")
    inputs = {"input_ids": torch.tensor([[4, 5, END]]), "labels": torch.tensor([[5, 4, END]])}
    with torch.no_grad():
        found, own = (one.eval()(**inputs).loss for one in (loaded, model))
        assert float(found) == float(own) != float(before.eval()(**inputs).loss)
    require_same_weights(model.unload(), before)


@pytest.mark.thorough
def test_search_aware_training_raises_held_out_accuracy_and_the_model_decodes_without_us(tmp_path: Path) -> None:
    model = made("GPT-2", seed=1)
    data, held_out = rows(pairs(400, seed=1, longest=3), "GPT-2"), pairs(60, seed=2, longest=3)
    options: dict[str, Any] = {"per_device_train_batch_size": 32, "lr_scheduler_type": "linear", "logging_steps": 20}
    trained(model, data, tmp_path, max_steps=40, **options)
    start = _right(model, held_out)
    search = {"objective": "relaxed-beam", "beam_size": 3, "alpha": "exponential(1, 8)", "cross_entropy_weight": 0.0}
    trainer = trained(model, data, tmp_path / "run", max_steps=90, **options, **search)
    assert _right(model, held_out) > start + 0.2
    trainer.save_model()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert type(loaded) is transformers.GPT2LMHeadModel
    require_same_weights(loaded, model)
    assert _right(loaded, held_out) == _right(model, held_out)


def _right(model: Any, data: Sequence[Pair]) -> float:
    """The share of outputs of transformers' own beam search that are right to the last token."""
    right, model = 0, model.eval()
    for source, target in data:
        prompt = torch.tensor([[BOS, *source, BOS]])
        written = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            num_beams=3,
            max_new_tokens=5,
            do_sample=False,
            length_penalty=0.0,
        )
        right += written[0, prompt.shape[1] :].tolist()[: len(target) + 1] == [*target, END]
    return right / len(data)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["BART", "GPT-2"])
def test_a_folder_is_trained_like_the_model_in_it(name: str, tmp_path: Path) -> None:
    made(name).save_pretrained(tmp_path / "start")
    model, data = made(name), rows(pairs(8), name)
    options: dict[str, Any] = {"objective": "relaxed-beam", "beam_size": 2, "max_steps": 2}
    trained(model, data, tmp_path, **options)
    for start in (str(tmp_path / "start"), tmp_path / "start"):
        trainer = trained(start, data, tmp_path, **options)
        require_same_weights(trainer.model, model)
    trainer.save_model(str(tmp_path / "end"))
    loaded = type(model).from_pretrained(tmp_path / "end")
    require_same_weights(loaded, model)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    config = SearchAwareConfig(str(tmp_path), use_cpu=True, report_to="none")
    made("GPT-2").save_pretrained(tmp_path / "pickled")
    weights = tmp_path / "pickled" / "model.safetensors"
    torch.save(made("GPT-2").state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(InputError, match=r"pickled: cannot be loaded as a model .*in safetensors"):
        SearchAwareTrainer(str(tmp_path / "pickled"), config)


@pytest.mark.parametrize("available", [False, True])
def test_memory_is_pinned_only_for_a_device_that_copies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_, **__: available)
    assert SearchAwareConfig(str(tmp_path), report_to="none").dataloader_pin_memory == available


@pytest.mark.thorough
def test_a_model_is_adapted_once_and_its_forward_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through two trainings, evaluation between steps, and the end token of a tokenizer."""
    adapted: list[Any] = []
    adapt = trainer_module.step_model
    monkeypatch.setattr(
        trainer_module, "step_model", lambda model, **named: adapted.append(model) or adapt(model, **named)
    )
    model, data = made("Marian"), rows(pairs(8), "Marian")
    options: dict[str, Any] = {"objective": "hinge", "beam_size": 2, "max_steps": 2, "eval_strategy": "steps"}
    trainer = made_trainer(model, data, tmp_path, eval_dataset=data, eval_steps=1, **options)
    forward = model.forward
    for _ in range(2):
        trainer.train()
        assert model.forward == forward and "forward" not in vars(model)
    assert adapted == [model]


@pytest.mark.thorough
def test_a_model_made_for_each_training_is_adapted_each_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": "relaxed-beam", "beam_size": 2, "max_steps": 2, "use_cpu": True}
    options |= {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    config = SearchAwareConfig(str(tmp_path), **options)
    data = rows(pairs(8), "Marian")
    trainer = SearchAwareTrainer(
        args=config, model_init=lambda: made("Marian"), data_collator=padded, train_dataset=data
    )
    trainer.remove_callback(transformers.PrinterCallback)
    weights = []
    for _ in range(2):
        trainer.train()
        weights.append(copy.deepcopy(trainer.model))
    require_same_weights(*weights)
    assert apart(weights[0], made("Marian")) > 1e-5


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "relaxed-beem"}, "objective must be one of .*'relaxed-beem'; did you mean 'relaxed-beam'"),
        ({"objective": ["hinge"]}, "objective must be a name or a mapping, got a list"),
        ({"objective": "crf"}, "crf needs scores that form a chain"),
        (
            {"objective": "hinge", "score": "globl"},
            "score must be one of local, global, renormalized, got 'globl'; did you mean 'global'",
        ),
        ({"objective": "hinge", "beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"log_partition_weight": -1.0}, "log_partition_weight must be at least 0"),
        ({"log_partition_weight": 1.0, "log_partition_fraction": 0.0}, "log_partition_fraction must be greater than 0"),
        ({"log_partition_fraction": 0.5}, "there is no penalty; give log_partition_weight"),
        (
            {"objective": "unnormalized-likelihood", "log_partition_weight": 0.0},
            "log_partition_weight must be greater than 0",
        ),
        ({"objective": "hinge", "alpha": "linear(1, -1)"}, "alpha must stay greater than 0"),
        ({"objective": "hinge", "alpha": "liner(1, 2)"}, "alpha: unknown schedule 'liner'"),
        ({"objective": "scheduled-sampling", "gold_probability": "2"}, "gold_probability must stay between 0 and 1"),
        ({"feeding": "sample"}, "feeding: has no effect here; leave it out, or use objective scheduled"),
        ({"objective": "beam-crf", "cost": "edit-distance"}, "cost: beam-crf does not use it"),
        ({"score": "global"}, "score: has no effect here"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: .*; give label_smoothing"),
        ({"label_smoothing": 0.1, "objective": "beam-crf"}, "label_smoothing: has no effect here"),
        ({"normalized_over": "everything"}, "normalized_over must be one of vocabulary, allowed"),
        ({"normalized_over": "allowed"}, "language: renormalised scores sum over .* there is none; give language"),
        (
            {"objective": "hinge", "score": "renormalized"},
            "language: renormalised scores sum over .* there is none; give language",
        ),
        ({"torch_compile": True}, "torch_compile: a search is not compiled"),
        ({"torch_compile_backend": "eager"}, "torch_compile_backend: a search is not compiled"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: a search looks embeddings up without the noise"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "deepspeed: it gathers weights where the model is called"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        SearchAwareConfig(str(tmp_path), use_cpu=True, **options)


def test_options_that_are_set_later_are_used_and_checked(tmp_path: Path) -> None:
    """As ``hyperparameter_search`` sets them; a refused one leaves all as it was."""
    config = SearchAwareConfig(str(tmp_path), use_cpu=True, objective="relaxed-beam", alpha=1.0, beam_size=2)
    config.alpha, config.beam_size, config.learning_rate = 50.0, 4, 0.5
    assert config.objective == config.minimised.objective == RelaxedBeam(k=4, alpha=50.0)
    for name, value, said in (
        ("alpha", -1.0, "alpha must stay greater than 0"),
        ("objective", "hinge", "it is chosen"),
    ):
        with pytest.raises(InputError, match=said):
            setattr(config, name, value)
    config.beam_size = 3
    assert config.objective == config.minimised.objective == RelaxedBeam(k=3, alpha=50.0) and config.alpha == 50.0
    config.alpha = None
    assert config.objective == RelaxedBeam(k=3)
    assert pickle.loads(pickle.dumps(config)).objective == config.objective
    trainer = made_trainer(made("Marian"), rows(pairs(8), "Marian"), tmp_path, objective="relaxed-beam", max_steps=1)
    trainer.args.alpha = 7.0
    trainer.train()
    assert trainer.values == {"alpha": 7.0}


def test_a_search_that_is_asked_for_later_takes_single_steps(tmp_path: Path) -> None:
    options = {"objective": "scheduled-sampling", "gold_probability": 0.5, "max_steps": 2}
    found = []
    for given in ("step-by-step", "two-pass"):
        trainer = made_trainer(made("Marian"), rows(pairs(8), "Marian"), tmp_path, **options, feeding_passes=given)
        trainer.args.feeding_passes = "step-by-step"
        trainer.train()
        assert trainer.adapted().steps_singly
        found.append(losses(trainer))
    assert found[0] == found[1]


def test_the_loss_of_evaluation_is_a_mean_over_targets(tmp_path: Path) -> None:
    """If every token has a label, the first one of a row is none the less no target of a causal model."""
    data = [{"input_ids": [BOS, 4, 5, END], "labels": [BOS, 4, 5, END]}, {"input_ids": [BOS, 7], "labels": [BOS, 7]}]
    model = made("GPT-2").eval()
    with torch.no_grad():
        parts = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([row["input_ids"]])).logits[0, :-1], torch.tensor(row["labels"][1:]), reduction="sum"
            )
            for row in data
        ]
    for options in ({}, {"predict_with_generate": True, "generation_max_length": 6}):
        trainer = made_trainer(model, data, tmp_path, compute_metrics=lambda _: {}, **options)
        assert trainer.evaluate(data)["eval_loss"] == pytest.approx(float(sum(parts)) / 4, abs=1e-5)
        assert trainer.predict(data).label_ids.max() > 0


def test_predictions_of_a_causal_model_continue_prompts_without_their_targets(tmp_path: Path) -> None:
    model, data = made("GPT-2").eval(), rows(pairs(5), "GPT-2")
    found = {}
    for left in (False, True):
        options = {"data_collator": partial(padded, left=left), "compute_metrics": lambda _: {}}
        trainer = made_trainer(model, data, tmp_path, predict_with_generate=True, generation_max_length=20, **options)
        found[left] = trainer.predict(data)
        wanted = made_trainer(model, data, tmp_path, **options).evaluate(data)["eval_loss"]
        assert found[left].metrics["test_loss"] == pytest.approx(wanted, abs=1e-5)
        shown = [[label for label in row if label >= 0] for row in found[left].label_ids.tolist()]
        assert shown == [[label for label in row["labels"] if label >= 0] for row in data]
    prompts = [row["input_ids"][: row["labels"].count(-100)] for row in data]
    width = max(map(len, prompts))
    for row, prompt in zip(found[False].predictions.tolist(), prompts, strict=True):
        assert row[width - len(prompt) : width] == prompt
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=20 - width)[0, len(prompt) :].tolist()
        assert row[width : width + len(alone)] == alone
    assert (found[True].predictions == found[False].predictions).all()


def test_a_loss_that_no_objective_has_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(vocab_size=V, **sizes, num_key_value_heads=2, output_router_logits=True)
    with pytest.raises(InputError, match="output_router_logits: the loss that balances experts"):
        made_trainer(transformers.MixtralForCausalLM(config), rows(pairs(4), "GPT-2"), tmp_path)


def test_an_objective_with_its_options_is_the_one_of_that_name(tmp_path: Path) -> None:
    named = SearchAwareConfig(str(tmp_path), use_cpu=True, objective="relaxed-beam", beam_size=3, alpha="linear(1, 4)")
    made_here = SearchAwareConfig(str(tmp_path), use_cpu=True, objective=RelaxedBeam(k=3, alpha=linear(1, 4)))
    assert named.objective == made_here.objective == RelaxedBeam(k=3, alpha=linear(1, 4))
    assert json.loads(made_here.to_json_string())["objective"] == "relaxed-beam"
    assert dataclasses.replace(named, seed=3).objective == named.objective
    assert pickle.loads(pickle.dumps(made_here)).minimised == named.minimised
    two_pass = SearchAwareConfig(str(tmp_path), use_cpu=True, objective="scheduled-sampling")
    assert two_pass.objective == ScheduledSampling(feeding_passes="two-pass")


EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"data": None}, "train_dataset: there is no training data"),
        ({"data": []}, "train_dataset: there is no training data"),
        ({"eval_dataset": [], **EVALUATED}, "eval_dataset is empty"),
        (
            {"metric_for_best_model": "bleu", **EVALUATED},
            "metric_for_best_model: 'bleu' needs compute_metrics",
        ),
        (
            {"callbacks": [transformers.EarlyStoppingCallback(2)]},
            "EarlyStoppingCallback: there is no development metric",
        ),
        (
            {"callbacks": [transformers.EarlyStoppingCallback(0)], "metric_for_best_model": "loss", **EVALUATED},
            "early_stopping_patience must be at least 1, got 0",
        ),
    ],
)
def test_missing_data_and_metrics_are_refused_before_the_first_step(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    data = rows(pairs(4), "Marian")
    trainer = made_trainer(made("Marian"), folder=tmp_path, **{"data": data, "eval_dataset": data, **options})
    with pytest.raises(InputError, match=problem):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"accuracy": 1.0}, r"'bleu' is not among the metrics \(eval_loss, eval_accuracy, .*eval_on_start=True"),
        ({"bleu": math.nan}, "'bleu' is nan after step 2; compute_metrics must return a finite number"),
    ],
)
def test_a_metric_that_cannot_choose_the_best_model_is_refused(
    metrics: dict[str, float], problem: str, tmp_path: Path
) -> None:
    data = rows(pairs(4), "Marian")
    options = {**EVALUATED, "metric_for_best_model": "bleu", "compute_metrics": lambda _: metrics}
    with pytest.raises(InputError, match=problem):
        trained(made("Marian"), data, tmp_path, eval_dataset=data, **options)


def test_a_trainer_wants_its_own_arguments_and_no_other_loss(tmp_path: Path) -> None:
    arguments = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(InputError, match="args is a Seq2SeqTrainingArguments; pass a SearchAwareConfig"):
        SearchAwareTrainer(made("Marian"), arguments)
    config = SearchAwareConfig(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(InputError, match="compute_loss_func would replace the objective"):
        SearchAwareTrainer(made("Marian"), config, compute_loss_func=lambda *_: 0.0)
    with pytest.raises(InputError, match="BertModel has no language model head"):
        SearchAwareTrainer(transformers.BertModel(transformers.BertConfig(num_hidden_layers=1)), config)


def test_searches_in_training_stay_in_the_language(tmp_path: Path) -> None:
    """The loss is that of the objective with the language, and gold outside is refused."""
    data = pairs(4, seed=5)
    inside = [*(tuple(target) for _, target in data), (3,), (4, 5), (5, 6, 7)]
    model, language = made("Marian"), trie(inside, end=END)
    adapted = step_model(copy.deepcopy(model).train())
    options: dict[str, Any] = {"objective": "softmax-margin", "score": "global", "max_steps": 1, **NOTHING}
    found = losses(trained(model, rows(data, "Marian"), tmp_path, language=language, learning_rate=1e-12, **options))
    expected = []
    for each in (language, None):
        adapted.language = each
        expected.append(
            float(softmax_margin_objective(k=5, score="global")(adapted, encoded(data, "Marian"), {}).detach())
        )
    assert found == pytest.approx(expected[:1], rel=1e-4)
    assert abs(expected[0] - expected[1]) > 0.01 * abs(expected[0])
    with pytest.raises(InputError, match="is not in the language"):
        trained(made("Marian"), rows(data, "Marian"), tmp_path, language=trie([(3,)], end=END), **options)


def test_cross_entropy_is_renormalised_in_the_language(tmp_path: Path) -> None:
    data = pairs(4, seed=5)
    language = trie([*(tuple(target) for _, target in data), (3,), (4, 5), (5, 6, 7)], end=END)
    model = made("Marian")
    adapted = step_model(copy.deepcopy(model).train())
    adapted.language = language
    options: dict[str, Any] = {"language": language, "max_steps": 1, "learning_rate": 1e-12}
    for over, score in (("allowed", "renormalized"), ("vocabulary", "local")):
        found = losses(trained(model, rows(data, "Marian"), tmp_path, normalized_over=over, **options))
        expected = cross_entropy_objective(score=score)(adapted, encoded(data, "Marian"), {})
        assert found == pytest.approx([float(expected.detach())], rel=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("longest", quick([None, 4, 7], None))
@pytest.mark.parametrize("name", ["Marian", "GPT-2"])
def test_evaluation_generates_inside_the_language(name: str, longest: int | None, beams: int, tmp_path: Path) -> None:
    """Every output is an item that fits, the best by the model's own beam; without the language none is."""
    model, data = made(name), pairs(6, longest=2)
    items = [(3, 4, 5, 6, 7, 8, 3), (7, 7), (8, 3, 8, 3)]
    prompts = 1 if name == "Marian" else max(row["labels"].count(-100) for row in rows(data, name))
    options: dict[str, Any] = {"predict_with_generate": True, "generation_num_beams": beams}
    if longest is not None:
        options["generation_max_length"] = prompts + longest
    found = {}
    for language in (trie(items, end=END), None):
        trainer = made_trainer(model, rows(data, name), tmp_path, language=language, **options)
        outputs = trainer.predict(rows(data, name)).predictions
        found[language is None] = [
            [int(token) for token in row[prompts:] if token not in (PAD, -100)] for row in outputs
        ]
    inside = [[*item, END] for item in items if len(item) < (longest or 20)]
    assert len(found[False]) == 6 and all(output in inside for output in found[False])
    assert not any(output in inside for output in found[True])
    if longest is None:  # as many tokens as generate has by default, if there are so many positions
        item = (4,) * (min(20, 24 - prompts) - 1)
        trainer = made_trainer(made(name), rows(data, name), tmp_path, language=trie([item], end=END), **options)
        outputs = trainer.predict(rows(data, name)).predictions
        assert [[int(token) for token in row[prompts : prompts + len(item) + 1]] for row in outputs] == [
            [*item, END]
        ] * 6
        trainer = made_trainer(made(name), rows(data, name), tmp_path, language=trie([(4, *item)], end=END), **options)
        with pytest.raises(InputError, match=rf"no output that a search of {len(item) + 1} steps can write"):
            trainer.predict(rows(data, name))


def test_a_language_may_be_a_pattern_of_the_tokenizers_texts(tmp_path: Path) -> None:
    pytest.importorskip("interegular")
    data = rows(pairs(4), "Marian")
    language = made_trainer(made("Marian"), data, tmp_path, processing_class=letter_tokenizer(), language="(a|b)( c)?")
    allowed = language.adapted().language.allowed(torch.zeros(1, 1).long(), 4)
    assert sorted(token for token in allowed.flatten().tolist() if token >= 0) == [4, 5]
    assert json.loads(language.args.to_json_string())["language"] == "(a|b)( c)?"
    config = SearchAwareConfig(str(tmp_path), language=trie([(3,)], end=END), use_cpu=True, report_to="none")
    assert json.loads(config.to_json_string())["language"] == "Automaton"
    with pytest.raises(InputError, match="a pattern needs a tokenizer"):
        made_trainer(made("Marian"), data, tmp_path, language="a")


def test_with_several_end_tokens_a_search_ends_with_that_of_the_tokenizer(tmp_path: Path) -> None:
    data, model = rows(pairs(8), "GPT-2"), made("GPT-2")
    model.generation_config.eos_token_id = [V - 1, END]
    with pytest.raises(InputError, match="has 2 end tokens"):
        made_trainer(model, data, tmp_path)
    options = {"objective": "relaxed-beam", "beam_size": 2, "processing_class": letter_tokenizer()}
    trainer = made_trainer(model, data, tmp_path, **options)
    trainer.train()
    assert trainer.adapted().end == END
    assert sorted(trainer.model.generation_config.eos_token_id) == [END, V - 1], "what generate ends with stays"


@pytest.mark.parametrize("forced", [None, 2])
def test_a_pattern_is_of_what_follows_the_special_tokens_of_a_target(forced: int | None, tmp_path: Path) -> None:
    """As those of a BART, which begin with the start token whether or not generation forces it."""
    pytest.importorskip("interegular")
    tokenizer, model = letter_tokenizer("<s> $A </s>"), made("Marian")
    model.generation_config.forced_bos_token_id = forced
    data = [{"input_ids": tokenizer("b").input_ids, "labels": tokenizer(text_target="a c").input_ids}] * 8
    options = {"objective": "relaxed-beam", "beam_size": 2, "processing_class": tokenizer}
    trainer = made_trainer(model, data, tmp_path, language="(a|b)( c)?", **options)
    trainer.train()
    assert data[0]["labels"] == [2, 4, 6, END]
    assert bool(members(trainer.adapted().language, torch.tensor([[2, 4, 6, END]])))
    assert not bool(members(trainer.adapted().language, torch.tensor([[4, 6, END, -1]])))


@pytest.mark.parametrize("objective", ["beam-crf", "minimum-risk"])
def test_a_beam_may_have_more_slots_than_there_are_outputs(objective: str, tmp_path: Path) -> None:
    """Those without an output do not begin with the first token that the model forces."""
    found = []
    outputs = 1 + (V - 1) * V  # of three steps, the first forced, and in the second one may end
    for k in (outputs, outputs + 4):
        model = made("BART")
        model.generation_config.forced_bos_token_id = 8
        settings = {"objective": objective, "beam_size": k, "max_steps": 1}
        data = [{"input_ids": [5, END], "labels": [8, END]}] * 2
        found += losses(trained(model, data, tmp_path, **settings))
    assert found[1] == pytest.approx(found[0]) and math.isfinite(found[0])


def test_noise_is_counted_on_labels_that_the_collator_makes(tmp_path: Path) -> None:
    data = [{"input_ids": [4, 5, 4, END]}] * 4
    collator = transformers.DataCollatorForLanguageModeling(letter_tokenizer(), mlm=False)
    options = {"objective": "noise-contrastive", "data_collator": collator, "max_steps": 1}
    trainer = made_trainer(made("GPT-2"), data, tmp_path, **options)
    trainer.train()
    # The first token of a row is never a target of a causal model.
    counts = torch.ones(V).index_add(0, torch.tensor([5, 4, END]), torch.full((3,), 4.0))
    torch.testing.assert_close(trainer._noise(trainer.adapted()), noise_log_probs(counts))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": [5, END], "labels": [V + 3, END]}, f"labels contain the token {V + 3}, and the model has {V}"),
        ({"input_ids": [5, END]}, "the inputs have no labels; tokenise the data"),
    ],
)
def test_labels_that_cannot_be_counted_as_noise_are_refused(row: Any, said: str, tmp_path: Path) -> None:
    def collate_some(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([one[name] for one in rows]) for name in rows[0]}

    options = {"objective": "noise-contrastive", "data_collator": collate_some, "max_steps": 1}
    with pytest.raises(InputError, match=said):
        made_trainer(made("Marian"), [row] * 4, tmp_path, **options).train()


def test_noise_is_counted_as_the_collator_makes_it(tmp_path: Path) -> None:
    """Rows that only the collator turns into what the model reads: prompt and target in one, or without a target."""

    def joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        (prompt, target) = zip(*((row["input_ids"], row["labels"]) for row in rows), strict=True)
        return {
            "input_ids": torch.tensor([p + t for p, t in zip(prompt, target, strict=True)]),
            "labels": torch.tensor([[-100] * len(p) + t for p, t in zip(prompt, target, strict=True)]),
        }

    def noise(kind: str, data: list[Any], **options: Any) -> torch.Tensor:
        options |= {"objective": "noise-contrastive", "max_steps": 1}
        trainer = made_trainer(made(kind), data, tmp_path / kind, **options)
        trainer.train()
        return trainer._noise(trainer.adapted())

    data = [{"input_ids": [3, 4], "labels": [5, 6, END], "attention_mask": None}] * 2
    counts = torch.ones(V).index_add(0, torch.tensor([5, 6, END]), torch.full((3,), 2.0))
    torch.testing.assert_close(noise("GPT-2", data, data_collator=joined), noise_log_probs(counts))
    rows = [{"input_ids": [5, END], "labels": [8, END]}, {"input_ids": [6, END], "labels": []}]
    counts = torch.ones(V).index_add(0, torch.tensor([8, END]), torch.ones(2))
    torch.testing.assert_close(noise("Marian", rows), noise_log_probs(counts))


@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_ids_beyond_the_vocabulary_are_refused(name: str, tmp_path: Path) -> None:
    data = [{"input_ids": [3, END], "labels": [3, END]} | {name: [V, END]}] * 4
    with pytest.raises(InputError, match=f"{name} contain the token {V}, and the model has {V}"):
        trained(made("Marian"), data, tmp_path, max_steps=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([3, 4], "a target does not end with the end token 0"),
        ([3, END, 4, END], "a target goes on after the end token 0"),
        ([3, 4, END, END], "a target goes on after the end token 0"),
    ],
)
def test_targets_that_do_not_end_once_are_refused_by_a_search_and_by_nothing_else(
    labels: list[int], said: str, tmp_path: Path
) -> None:
    data = [{"input_ids": [3, END], "labels": labels}, {"input_ids": [3, END], "labels": [3, 4, 4, 3, END]}] * 2
    with pytest.raises(InputError, match=said):
        trained(made("Marian"), data, tmp_path, objective="hinge", max_steps=1)
    assert len(losses(trained(made("Marian"), data, tmp_path, max_steps=1))) == 1


@pytest.mark.thorough
def test_rows_without_a_label_play_no_part(tmp_path: Path) -> None:
    data, empty = rows(pairs(3), "Marian"), {"input_ids": [3, END], "labels": [-100]}
    models = [made("Marian", dtype=torch.float64) for _ in range(3)]
    options: dict[str, Any] = {"objective": "relaxed-beam", "beam_size": 2, "max_steps": 2}
    without, with_empty = (trained(m, d, tmp_path, **options) for m, d in zip(models, (data, [*data, empty])))  # noqa: B905
    assert losses(with_empty) == pytest.approx(losses(without), rel=1e-6)
    require_same_weights(models[0], models[1], atol=1e-6)
    accumulated = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}  # batches of nothing
    trained(models[2], [*data, empty], tmp_path, **(options | accumulated))
    require_same_weights(models[0], models[2], atol=1e-6)


# ---------------------------------------------------------------------------------------- inputs as batches


def _inputs(**given: list[list[int]]) -> dict[str, Tensor]:
    return {name: torch.tensor(values) for name, values in given.items()}


def test_prompts_and_targets_of_causal_rows() -> None:
    inputs = _inputs(
        input_ids=[[9, 9, 5, 6, 7, 0], [5, 6, 7, 8, 0, 9], [4, 3, 9, 9, 9, 9]],
        attention_mask=[[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]],
        # Without a prompt; with one, and a token behind the target; and with nothing to learn.
        labels=[[-100, -100, 5, 6, 7, 0], [-100, -100, -100, 8, -100, -100], [-100] * 6],
    )
    batch = batch_from_inputs(inputs, first=None)
    assert batch.sources_BS.tolist() == [[5, 0, 0], [5, 6, 7]]
    assert batch.source_lengths_B.tolist() == [1, 3]
    assert batch.targets_BT.tolist() == [[6, 7, 0], [8, -100, -100]]
    assert batch.target_lengths_B.tolist() == [3, 1]
    assert batch.indices_B.tolist() == [0, 1]
    assert (target_labels(inputs, causal=True) >= 0).sum(1).tolist() == [3, 1, 0]


def test_sources_and_targets_of_an_encoder_decoder() -> None:
    given = {"input_ids": [[0, 5, 6], [4, 4, 4]], "labels": [[-100, 7, 0], [8, 7, 0]]}
    # Of labels that are padded on the left, the first is fed padding by transformers, which plays no part here.
    inputs = _inputs(**given, attention_mask=[[0, 1, 1], [1, 1, 1]], decoder_input_ids=[[2, 1, 7], [2, 8, 7]])
    batch = batch_from_inputs(inputs, first=2)
    assert (batch.sources_BS.tolist(), batch.source_lengths_B.tolist()) == ([[5, 6, 0], [4, 4, 4]], [2, 3])
    assert batch.targets_BT.tolist() == [[7, 0, -100], [8, 7, 0]]
    without_mask = batch_from_inputs(_inputs(**given), first=2)
    assert without_mask.source_lengths_B.tolist() == [3, 3]


@pytest.mark.parametrize("first", [2, None])
def test_a_batch_without_columns_has_no_rows_to_learn(first: int | None) -> None:
    nothing = torch.zeros(2, 0, dtype=torch.long)
    assert len(batch_from_inputs({"input_ids": nothing, "labels": nothing}, first=first)) == 0
    if first is not None:
        batch = batch_from_inputs({"input_ids": nothing, **_inputs(labels=[[7, 0], [0, -100]])}, first=first)
        assert (batch.source_lengths_B.tolist(), batch.target_lengths_B.tolist()) == ([0, 0], [2, 1])


def test_any_negative_label_is_none(tmp_path: Path) -> None:
    """Labels of an accumulated step are counted before they are read, and both must agree."""
    data = rows([([3], [4]), ([5, 6, 7], [7, 6, 5])], "BART")
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 1}

    def with_minus_one(examples: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        inputs = padded(examples)
        return {**inputs, "labels": inputs["labels"].clamp(min=-1)}

    found, expected = (
        losses(trained(made("BART"), data * 2, tmp_path, data_collator=collator, **options))
        for collator in (with_minus_one, padded)
    )
    assert found == pytest.approx(expected)


MASK = {"attention_mask": [[1, 1, 1]]}
ROW = {"input_ids": [[5, 6, 7]], "labels": [[-100, 6, 7]]}


@pytest.mark.parametrize(
    ("given", "first", "said"),
    [
        ({"labels": [[6]]}, 2, "the inputs have no input_ids"),
        ({"input_ids": [[6]]}, 2, "the inputs have no labels"),
        ({**ROW, "token_type_ids": [[0, 0, 0]]}, None, "have token_type_ids, which a search would not read"),
        ({**ROW, "labels": [[-100, 7, 6]]}, None, "labels of a causal model must be its input_ids"),
        ({**ROW, "labels": [[-100, 6]]}, None, "labels have 2 columns and input_ids 3"),
        ({"input_ids": [[4, 5, 6, 7]], "labels": [[-100, 5, -100, 7]]}, None, "labels have a gap"),
        ({**ROW, "labels": [[6, -100, 7]]}, 2, "labels have a gap"),
        ({**ROW, "attention_mask": [[1, 0, 1]]}, 2, "attention_mask has a gap"),
        ({**ROW, **MASK, "labels": [[6, 7, 0]], "decoder_input_ids": [[3, 6, 7]]}, 2, "after the start token 2"),
        ({**ROW, **MASK, "labels": [[6, 7, 0]], "decoder_input_ids": [[2, 6, 6]]}, 2, "after the start token 2"),
        ({**ROW, "attention_mask": [[[1, 1, 1]]]}, None, "attention_mask has 3 dimensions"),
    ],
)
def test_inputs_that_would_be_read_wrongly_are_refused(given: Any, first: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        batch_from_inputs(_inputs(**given), first=first)


def test_the_configuration_can_be_written_down(tmp_path: Path) -> None:
    config = SearchAwareConfig(str(tmp_path), objective="hinge", alpha="linear(1, 4)", use_cpu=True, report_to="none")
    assert json.loads(config.to_json_string())["alpha"] == "linear(1, 4)"
    parsed, *_ = transformers.HfArgumentParser(SearchAwareConfig).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--objective", "beam-crf", "--score", "global", "--log_partition_weight", "0.5"]
    )
    assert parsed.objective == BeamCRF(score="global")
    assert parsed.minimised.adds_penalty and parsed.minimised.weight == 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [2.0, lambda step: 2.0])
def test_a_schedule_may_be_a_number_or_a_function(alpha: Any, tmp_path: Path) -> None:
    model, other = made("Marian"), made("Marian")
    options: dict[str, Any] = {"objective": "relaxed-beam", "beam_size": 2, "max_steps": 2, "save_strategy": "steps"}
    trainer = trained(model, rows(pairs(8), "Marian"), tmp_path / "plain", alpha=alpha, save_steps=1, **options)
    trained(other, rows(pairs(8), "Marian"), tmp_path / "text", alpha="2", save_steps=1, **options)
    require_same_weights(model, other)
    assert trainer.args.alpha is alpha
    saved = torch.load(tmp_path / "plain" / "checkpoint-2" / "training_args.bin", weights_only=False)
    assert (saved.alpha == alpha) if isinstance(alpha, float) else ("lambda" in saved.alpha)
    json.loads(trainer.args.to_json_string())
