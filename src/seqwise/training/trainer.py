"""Training loop for every model: the Hugging Face Trainer, with the whole objective inside forward.

After a crash at any moment and a restart, training ends with the same weights, bit for bit, as an uninterrupted run
(with the same number of threads, instructions of the CPU and versions; a warning says if they differ). In addition to
the Trainer, this requires crash-safe checkpoints (``checkpoints``), a sequence of batches that depends only on the
seed, schedules that read the global step, and an error if the settings differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import re
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral, Real
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainerState, TrainingArguments

from seqwise.data.batches import BatchSampler, EncodedExample, collate
from seqwise.data.durable import write_atomically
from seqwise.data.records import is_number, read_json_lines
from seqwise.devices import require_precision
from seqwise.errors import InputError, NotFiniteError, warn
from seqwise.objectives.objective import Objective
from seqwise.schedules import AnySchedule, Schedule, parse_schedule
from seqwise.training.arguments import (
    DECAYS,
    check_arguments,
    check_objective,
    check_patience,
    check_rates,
    check_targets,
)
from seqwise.training.checkpoints import (
    MEASUREMENTS,
    discard_incomplete,
    last_complete,
    load_model_file,
    prune,
)
from seqwise.training.description import describe
from seqwise.training.processes import (
    from_main_process,
    init_process_group,
    is_main_process,
    local_device,
    rank,
    world_size,
)
from seqwise.training.reporting import require_integrations
from seqwise.training.resumable import (
    MACHINE,
    SETTINGS,
    WEIGHTS,
    ResumableTrainer,
    has_ended,
    machine,
    require_state,
)
from seqwise.training.sequence_trainer import SequenceTrainer, WithObjective

_START_AGAIN = "give another output folder, or remove this one to start again"
_RESTORE = f"restore the file, {_START_AGAIN}"
_REPORT_EVERY = 10  # steps
_MOST_IN_MEAN = 100  # steps in TrainingResult.mean_loss

NOT_FINITE = "not-finite.json"
"""File next to the log with the batch whose loss or gradient was not finite."""


@dataclass(frozen=True)
class Progress:
    """Step of training."""

    step: int  # from 1
    steps: int  # of the whole training run
    loss: float  # of its batch, before the step
    learning_rate: float  # of the step
    gradient_norm: float  # before clipping
    schedules: dict[str, float]  # their values
    seconds: float  # since this call began to train
    measured: Mapping[str, float] = field(default_factory=dict)  # the last measurement; empty before the first one
    seconds_left: float = 0.0  # estimate for all steps; includes measurements after the first one
    earliest_end: float = 0.0  # estimate until early stopping may occur; without patience, seconds_left


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training run.

    Attributes:
        steps: total number of optimiser steps, including those before a resume.
        seconds: wall-clock time of this call.
        mean_loss: mean over the last fifth of the steps, at most 100, the same with and without a resume.
        resumed_from: step of the checkpoint that this call started from, or None.
        best_step: step whose weights the model has, chosen by the development metric; None for the last step.
        best_metric: development metric at that step.
    """

    steps: int
    seconds: float
    mean_loss: float
    resumed_from: int | None
    best_step: int | None = None
    best_metric: float | None = None


def fit(
    model: nn.Module,
    objective: Objective,
    train: Sequence[EncodedExample],
    *,
    output: str | os.PathLike[str],
    steps: int,
    learning_rate: float,
    seed: int,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    rates: Mapping[str, float] | None = None,
    warmup_steps: int = 0,
    decay: str = "linear",
    clip: float = 1.0,
    weight_decay: float = 0.0,
    gradient_accumulation_steps: int = 1,
    gradient_checkpointing: bool = False,
    bf16: bool = False,
    fp16: bool = False,
    save_every: int = 500,
    schedules: Mapping[str, AnySchedule] | None = None,
    measure: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None,
    measure_every: int = 100,
    evaluate: Callable[[], float] | None = None,
    patience: int | None = None,
    fingerprints: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    example_names: Callable[[int], str] | None = None,
    report_to: str | Sequence[str] = (),
) -> TrainingResult:
    """Train a model in place with AdamW, resuming from the last complete checkpoint in ``output`` if there is one.

    Each step minimises ``objective(model, batch, {name: schedule(t)})`` at t = 0, 1, ..., steps - 1; the gradient is
    clipped to norm ``clip``. The model is moved to the GPU, if any. Python's, NumPy's and torch's global generators are
    seeded for the training and restored afterwards.

    Args:
        model: any module; its weights are trained in place, and its train / eval mode is restored.
        objective: the scalar loss of a batch. If it is a module, its parameters are trained too. A checkpoint records
            its name and the plain values that it was made with, and is refused with another objective.
        train: the examples; batches have examples of similar length, and an epoch has each example once.
        output: a folder for ``log.jsonl`` (one line per step) and ``checkpoints`` (the last two complete ones).
        steps: total number of optimiser steps.
        learning_rate: peak learning rate.
        seed: seed of the batches, dropout and other noise.
        batch_size: examples per batch.
        batch_tokens: replaces ``batch_size``: tokens per batch, counted on the longer side with padding.
        rates: peak learning rates of parts of the model, by prefixes of their weights' names.
        warmup_steps: steps of linear warm-up from 0.
        decay: decay of the learning rate after the warm-up: "linear" or "cosine" to 0, "constant", or "inverse_sqrt",
            which divides it by the root of ``step / warmup_steps`` (without a warm-up, of ``1 + step / 10000``).
        clip: maximum norm of the gradient, ``math.inf`` for no limit.
        weight_decay: decoupled weight decay; biases and norms have none.
        gradient_accumulation_steps: number of parts of a batch, to save memory; the gradient is that of the batch.
        gradient_checkpointing: to save memory, recompute the steps of a search in the backward pass, by segments
            (``seqwise.search.segments``), and, in Hugging Face models, the layers of all steps at once. It may be
            changed on resuming.
        bf16: autocast to bfloat16, for LSTMs only on GPUs; weights keep their precision.
        fp16: autocast to float16 with loss scaling, only on GPUs.
        save_every: steps between checkpoints; there is always one at the end.
        schedules: name -> number, text such as "linear(1, 10)", or function of the step. Relaxed beams read ``alpha``,
            scheduled sampling ``gold_probability``; each objective documents its schedules.
        measure: called every ``measure_every`` steps with the values of the schedules; its result is a line of
            ``measurements.jsonl`` in ``output``. It must not change the model or use the global random generators.
        measure_every: steps between two calls; the last one is after the last step.
        evaluate: returns the development metric of the model, higher is better; called when ``measure`` is, under the
            same conditions, and followed by a checkpoint. The model ends with its best weights.
        patience: early stopping after this many evaluations without improvement.
        fingerprints: fingerprints, by name, of other inputs such as "development data"; a checkpoint with different
            ones is refused.
        on_progress: called after each step, before its checkpoint.
        example_names: returns the name of an example by index for error messages, such as "file:line".
        report_to: integrations of the Hugging Face Trainer that also get losses, learning rates, measurements and the
            development metric, such as "tensorboard" (into ``checkpoints/runs``) or "wandb"; one or several.

    Returns:
        Steps, seconds, mean loss and the step of the resume. The caller saves the model.

    Raises:
        InputError: a setting is out of range, or an integration is not installed; the checkpoint in output was made
            with a different objective, settings, data or model; the loss or gradient is not finite (names the step and
            the examples, which ``not-finite.json`` in ``output`` holds; the last checkpoint stays); a checkpoint cannot
            be written; a token id is outside the model's vocabularies, or a tagger gets different numbers of labels and
            tokens.

    Example:
        >>> import tempfile
        >>> class Table(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scores = nn.Embedding(4, 3)
        >>> def cross_entropy(model, batch, values):
        ...     scores_BSV = model.scores(batch.sources_BS)
        ...     return nn.functional.cross_entropy(scores_BSV.flatten(0, 1), batch.targets_BT.flatten())
        >>> train = [EncodedExample((i, 3), (i, 0)) for i in range(3)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fit(Table(), cross_entropy, train, output=folder, steps=60, batch_size=3,
        ...                  learning_rate=0.2, seed=0)
        >>> result.steps, result.resumed_from
        (60, None)

    With torchrun, several processes train one model, with the settings of a single process: each has its share of every
    batch, and the gradient is that of the batch, ``sum_p (n_p / N) grad_p`` with ``n_p`` of the N gold tokens in
    process p. So an objective must be a mean over gold tokens, or a ``SumOfMeans``. Parts of a batch are weighted in
    the same way. (A SumOfMeans is weighted exactly over processes, and over parts by their gold tokens.) Only noise
    differs between processes. Rank 0 writes, and calls ``measure`` and ``on_progress``; all processes must see
    ``output``.

    Not implemented: models that do not fit on one GPU.
    """
    output = Path(output)
    if isinstance(report_to, str):
        report_to = () if report_to == "none" else (report_to,)
    options: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "learning_rate": learning_rate,
        "seed": seed,
        "decay": decay,
        "warmup_steps": warmup_steps,
        "clip": clip,
        "weight_decay": weight_decay,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "bf16": bf16,
        "fp16": fp16,
    }
    require_integrations(report_to)
    check_objective(objective)
    check_arguments(**options, save_every=save_every, measure_every=measure_every)
    if output.exists() and not output.is_dir():
        raise InputError("the output is a file", path=output, hint="name a folder")
    require_precision(local_device(), bf16=bf16, fp16=fp16, has_lstm=_has_own_lstm(model))
    parsed = {name: parse_schedule(schedule).over(steps) for name, schedule in (schedules or {}).items()}
    check_patience(patience, evaluates=evaluate is not None)
    save_every, measure_every, patience = map(_plain, (save_every, measure_every, patience))
    if evaluate is not None:
        options |= {"measure_every": measure_every, "patience": patience}
    options = {name: _plain(value) for name, value in options.items()}
    if rates:
        check_rates(model, rates)
        options["rates"] = dict(rates)
    if fingerprints:
        options["fingerprints"] = dict(fingerprints)
    started = time.monotonic()
    lengths = [example.lengths for example in train]
    sampler = BatchSampler(lengths, batch_size=batch_size, batch_tokens=batch_tokens, seed=seed)
    batches = StepBatches(train, sampler, steps=steps, parts=gradient_accumulation_steps)
    settings = _settings_of(options, train, parsed, objective)
    wrapped = WithObjective(model, objective)
    checkpoints, log_path = output / "checkpoints", output / "log.jsonl"
    check_targets(model, train, example_names or _numbered)
    init_process_group()
    state = from_main_process(lambda: _begin(checkpoints, log_path, settings, measures=measure is not None))
    resumed_from = None if state is None else state.global_step
    if resumed_from is not None:
        _load_weights(wrapped, checkpoints / f"checkpoint-{resumed_from}")
    if state is None or not has_ended(state):
        arguments = _arguments(checkpoints, settings, save_every, report_to)
        own_log = log_path if is_main_process() else Path(os.devnull)
        checkpointing = _with_checkpointing(model) if gradient_checkpointing else contextlib.nullcontext()
        with _restoring(model), checkpointing, own_log.open("a", encoding="utf-8") as log:
            trainer = _FitTrainer(
                wrapped,
                arguments,
                batches,
                schedules=parsed,
                settings=settings,
                rates=rates or {},
                log=log,
                metric=evaluate,
                example_names=example_names or _numbered,
            )
            trainer.add_callback(_AfterStep(trainer, measure, measure_every, patience, on_progress))
            if patience is not None:
                trainer.add_callback(EarlyStoppingCallback(patience))
            _run(trainer, checkpoints, resumed_from)
        state = trainer.state
    mean_loss = from_main_process(lambda: _mean_loss(log_path))
    best_step = state.best_global_step
    if best_step is not None:
        _load_weights(wrapped, checkpoints / f"checkpoint-{best_step}")
    seconds = time.monotonic() - started
    return TrainingResult(state.global_step, seconds, mean_loss, resumed_from, best_step, state.best_metric)


class StepBatches(Dataset[dict[str, Any]]):
    """Batches of all steps for this process, by number: epoch after epoch, each in ``parts``.

    To the Trainer this is one long epoch, so it can skip to any step and need not set the epoch of our sampler.
    """

    def __init__(self, train: Sequence[EncodedExample], sampler: BatchSampler, *, steps: int, parts: int = 1) -> None:
        self.train, self.steps, self.parts = train, steps, parts
        self._sampler = sampler
        self._epoch, self._order = -1, list[list[int]]()

    def __len__(self) -> int:
        return self.steps * self.parts

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a part of the batch of a step, and the indices of all rows of the batch."""
        step, part = divmod(number, self.parts)
        epoch, place = divmod(step, len(self._sampler))
        if epoch != self._epoch:
            self._sampler.set_epoch(epoch)
            self._epoch, self._order = epoch, list(self._sampler)
        indices = self._order[place]
        own = indices[rank() + world_size() * part :: world_size() * self.parts]
        # A process without rows takes one of weight 0, because the others wait for its gradient.
        rows = own or indices[:1]
        batch = collate([self.train[index] for index in rows], indices=rows)
        return {"batch": batch, "weight": 1.0 if own else 0.0, "indices": indices}


class _FitTrainer(ResumableTrainer, SequenceTrainer):
    """SequenceTrainer on our batches, with learning rates by part and a log of every step."""

    def __init__(
        self,
        model: WithObjective,
        arguments: TrainingArguments,
        batches: StepBatches,
        *,
        schedules: Mapping[str, Schedule],
        settings: Mapping[str, Any],
        rates: Mapping[str, float],
        log: TextIO,
        metric: Callable[[], float] | None,
        example_names: Callable[[int], str],
    ) -> None:
        # The metric has its own data, but the Trainer requires an evaluation set.
        super().__init__(model, arguments, train_dataset=batches, eval_dataset=(), schedules=schedules)
        self.remove_callback(PrinterCallback)
        self.settings, self.rates, self.log_file = settings, rates, log
        self.metric, self.example_names = metric, example_names
        self.measured: dict[str, float] = {}  # the last measurement, by title
        self._indices: list[int] = []

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Each process picks its rows itself. The loader has its own generator, because otherwise it would draw from
        # the global one, once more after a resume.
        batches: Any = self.train_dataset
        return DataLoader(batches, batch_size=1, collate_fn=itemgetter(0), generator=torch.Generator())

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        if model.training:
            self._indices = inputs["indices"]
            _seed_own_noise(self.args.seed, self.state.global_step, len(self._losses))
        try:
            return super().compute_loss(model, inputs, *arguments, **named)
        except (IndexError, torch.AcceleratorError) as error:  # of an embedding; GPUs report it some steps later
            if not re.search("out of range in self|device-side assert", str(error)):
                raise
            names = ", ".join(self.example_names(index) for index in inputs["indices"][:8])
            before = "" if isinstance(error, IndexError) else " or in a batch before"
            problem = f"an id lies outside the model's vocabularies, in one of these{before}: {names}"
            raise InputError(problem, hint="make the model with the sizes of the vocabularies") from error

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        if self.metric is None:
            metrics: dict[str, float] = super().evaluate(*arguments, **named)
            return metrics
        metric: Any = from_main_process(self.metric)
        try:
            is_finite = math.isfinite(metric)
        except (TypeError, ValueError):  # not a number, or a tensor of several
            is_finite = False
        if not is_finite:
            problem = f"the development metric is {metric!r} after step {self.state.global_step}"
            raise NotFiniteError(problem, hint="evaluate must return a finite number")
        metrics = {"eval_metric": float(metric), **{f"eval_{title}": value for title, value in self.measured.items()}}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        # Without weight decay, one group suffices, with one kernel launch per step.
        if self.args.weight_decay == 0:
            return [name for name, _ in model.named_parameters()]
        names: list[str] = super().get_decay_parameter_names(model)
        return names

    def create_optimizer(self, *arguments: Any) -> Any:
        optimizer = super().create_optimizer(*arguments)
        if self.rates:
            optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in self._by_rate(group)]
        return optimizer

    def _by_rate(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Split an optimiser group by learning rate; weights with the group's own rate come first."""
        rate_of = {id(weight): group["lr"] for weight in group["params"]}
        for prefix, rate in self.rates.items():
            rate_of |= {id(p): rate for name, p in self.model.model.named_parameters() if name.startswith(prefix)}
        rates = dict.fromkeys([group["lr"], *self.rates.values()])
        parts = {rate: [weight for weight in group["params"] if rate_of[id(weight)] == rate] for rate in rates}
        return [{**group, "lr": rate, "params": weights} for rate, weights in parts.items() if weights]

    def not_finite_error(self, problem: str) -> NotFiniteError:
        names = [self.example_names(index) for index in self._indices]
        examples = [
            {"name": name, "source_ids": example.source_ids, "target_ids": example.target_ids}
            for name, example in zip(names, (self.train_dataset.train[index] for index in self._indices), strict=True)
        ]
        step = self.state.global_step + 1
        record = {"step": step, "what": problem, "schedules": self.values, "examples": examples}
        path = Path(self.args.output_dir).with_name(NOT_FINITE)
        if is_main_process():
            write_atomically(path, json.dumps(record, indent=1) + "\n")
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return NotFiniteError(
            f"{problem}, on {shown}",
            hint=f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate or "
            f"look at these examples, which are in {path}",
        )


class _AfterStep(TrainerCallback):
    """Callback that logs each step, and measures and reports at intervals, before the step's checkpoint."""

    def __init__(
        self,
        trainer: _FitTrainer,
        measure: Callable[[Mapping[str, float]], Mapping[str, float]] | None,
        measure_every: int,
        patience: int | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.trainer, self.measure, self.measure_every, self.on_progress = trainer, measure, measure_every, on_progress
        self.patience = patience
        self.rate, self.steps_here, self.started = 0.0, 0, time.monotonic()
        self.measuring: list[float] = []  # seconds, of each measurement of this call

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed state has the old interval.
        state.save_steps = args.save_steps

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rate = kwargs["optimizer"].param_groups[0]["lr"]

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = True  # keeps the best weights, and no evaluation is repeated after a resume

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not is_main_process():
            return
        trainer, step, steps = self.trainer, state.global_step, args.max_steps
        values = dict(trainer.values)
        line = {"step": step, "loss": trainer.loss, "learning_rate": self.rate}
        line |= {"gradient_norm": trainer.gradient_norm, **values}
        trainer.log_file.write(json.dumps(line) + "\n")
        trainer.log_file.flush()
        self.steps_here += 1
        seconds = time.monotonic() - self.started
        pace = (seconds - sum(self.measuring)) / self.steps_here
        if self.measure is not None and (step % self.measure_every == 0 or step == steps):
            self._measure(step, values)
        if self.on_progress is None:
            return
        earliest, left = self._time_left(state, steps, pace)
        self.on_progress(
            Progress(
                step,
                steps,
                trainer.loss,
                self.rate,
                trainer.gradient_norm,
                values,
                seconds,
                measured=dict(trainer.measured),
                seconds_left=left,
                earliest_end=earliest,
            )
        )

    def _time_left(self, state: Any, steps: int, pace: float) -> tuple[float, float]:
        """Estimate the seconds to the earliest end and to the last step, from the duration of a step.

        Early stopping ends a training run ``patience`` measurements after the best one; before the first measurement,
        the next one counts as the best. The duration of a measurement is known after the first one.
        """
        step, every = state.global_step, self.measure_every
        a_measurement = statistics.fmean(self.measuring) if self.measuring else 0.0

        def seconds_to(end: int) -> float:
            measurements = end // every - step // every + (end == steps and steps % every > 0 and step < steps)
            return pace * (end - step) + measurements * a_measurement

        if self.measure is None or self.patience is None:
            earliest = steps
        else:
            earliest = min(steps, max(step, (state.best_global_step or every) + self.patience * every))
        return seconds_to(earliest), seconds_to(steps)

    def _measure(self, step: int, values: dict[str, float]) -> None:
        assert self.measure is not None
        started = time.monotonic()
        self.trainer.measured = dict(self.measure(values))
        self.measuring.append(time.monotonic() - started)
        path = Path(self.trainer.args.output_dir).with_name(MEASUREMENTS)
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"step": step, **self.trainer.measured}) + "\n")
            log.flush()
            os.fsync(log.fileno())  # before the checkpoint of this step


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers, which JSON does not have, to Python's."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _has_own_lstm(model: nn.Module) -> bool:
    """Whether a model contains an LSTM of this package; others may get packed sequences, which work in bfloat16."""
    own = (module for module in model.modules() if type(module).__module__.startswith("seqwise."))
    return any(isinstance(child, nn.LSTM) for module in own for child in module.children())


def _seed_own_noise(seed: int, step: int, part: int) -> None:
    """Give each of several processes its own noise, which depends only on the step.

    A single process uses one stream of random numbers from the first step to the last.
    """
    if world_size() > 1:
        digest = hashlib.sha256(f"{seed}/{step}/{rank()}{f'/{part}' if part else ''}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _begin(checkpoints: Path, log_path: Path, settings: Mapping[str, Any], *, measures: bool) -> TrainerState | None:
    """Prepare a training run, or remove everything after its last complete checkpoint; return its state."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    discard_incomplete(checkpoints)
    folder, state = last_complete(checkpoints), None
    if folder is not None:
        then = _require_same_settings(folder, settings)
        state = require_state(folder)
        if not has_ended(state):
            _warn_of_another_machine(folder, then)
        # A killed process may have saved this checkpoint without removing older ones.
        prune(checkpoints, best=state.best_global_step)
    steps, best_step = (0, None) if state is None else (state.global_step, state.best_global_step)
    _truncate_logs(log_path, steps, best_step=best_step if measures else None)
    log_path.with_name(NOT_FINITE).unlink(missing_ok=True)
    return state


def _settings_of(
    options: Mapping[str, Any],
    train: Sequence[EncodedExample],
    schedules: Mapping[str, Schedule],
    objective: Objective,
) -> dict[str, Any]:
    """Return the settings that a checkpoint records, so that it is not resumed with others."""
    steps = options["steps"]
    return {
        "data": _fingerprint(train),  # first, because different data often mean a different number of steps
        **options,
        "clip": repr(options["clip"]),  # JSON has no infinity
        "schedules": {name: _described(schedule, steps) for name, schedule in schedules.items()},
        "objective": describe(objective),
    }


def _described(schedule: Schedule, steps: int) -> str:
    """Describe a schedule by its values, since the text of a function may hold its address."""
    values = array("d", (schedule(step) for step in range(steps)))
    return f"{values[0]:g} to {values[-1]:g} ({hashlib.sha256(values.tobytes()).hexdigest()[:8]})"


def _arguments(
    checkpoints: Path, settings: Mapping[str, Any], save_every: int, report_to: Sequence[str]
) -> TrainingArguments:
    """Make the Trainer's arguments; a callback logs steps to ``log.jsonl``."""
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings["steps"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type=DECAYS[settings["decay"]],
        warmup_steps=settings["warmup_steps"],
        weight_decay=settings["weight_decay"],
        max_grad_norm=float(settings["clip"]),
        gradient_accumulation_steps=settings["gradient_accumulation_steps"],
        bf16=settings["bf16"],
        fp16=settings["fp16"],
        eval_strategy="steps" if "patience" in settings else "no",
        eval_steps=settings.get("measure_every"),
        metric_for_best_model="metric" if "patience" in settings else None,
        greater_is_better=True,
        restore_callback_states_from_checkpoint=settings.get("patience") is not None,
        seed=settings["seed"],
        save_strategy="steps",
        save_steps=save_every,
        logging_strategy="steps" if report_to else "no",
        logging_steps=_REPORT_EVERY,
        logging_nan_inf_filter=False,
        report_to=list(report_to) or "none",
        run_name=str(checkpoints.parent),
        disable_tqdm=True,
        log_level="error",
        remove_unused_columns=False,
        use_cpu=local_device().type == "cpu",
    )


def _run(trainer: _FitTrainer, checkpoints: Path, resumed_from: int | None) -> None:
    folder = None if resumed_from is None else str(checkpoints / f"checkpoint-{resumed_from}")
    try:
        trainer.train(resume_from_checkpoint=folder)
    except KeyboardInterrupt:
        last = last_complete(checkpoints)
        kept, purpose = ("no checkpoint yet", "start again") if last is None else (f"{last} is kept", "continue")
        step = f"stopped at step {trainer.state.global_step} of {trainer.args.max_steps}"
        print(f"{step}: {kept}; run the same command again to {purpose}", file=sys.stderr)
        raise


def require_same_data(output: Path, train: Sequence[EncodedExample], fingerprints: Mapping[str, str]) -> None:
    """Raise an InputError if data differ from those of the training run in a folder, before changing the folder."""
    folder = last_complete(output / "checkpoints")
    if folder is not None:
        parts = {"data": _fingerprint(train), "fingerprints": dict(fingerprints)}
        _require_same_settings(folder, parts, only=parts)


def _require_same_settings(
    folder: Path, settings: Mapping[str, Any], *, only: Collection[str] | None = None
) -> Mapping[str, Any]:
    """Return the machine that made a checkpoint; raise an InputError if its settings, all or some, were different."""
    try:
        saved = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = f"not a checkpoint of seqwise: {SETTINGS} cannot be read"
        raise InputError(problem, path=folder, hint=_START_AGAIN) from error
    then: Mapping[str, Any] = saved.pop(MACHINE, {})
    saved = {name: value for name, value in saved.items() if only is None or name in only}
    changed = next(_differences(saved, settings), None)
    if changed is not None:
        raise InputError(f"the checkpoint was made with other {changed}", path=folder, hint=_START_AGAIN)
    return then


def _warn_of_another_machine(folder: Path, then: Mapping[str, Any]) -> None:
    changed = ", ".join(_differences(then, machine()))
    if changed:
        warn(f"{folder}: resumed with other {changed}; an uninterrupted run may end with different weights")


def _differences(saved: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield names of settings or inputs that differ, with both values of settings; a missing one is None."""
    given = json.loads(json.dumps(settings))
    for name in dict.fromkeys([*given, *saved]):
        then, now = saved.get(name), given.get(name)
        if name == "fingerprints":
            then, now = then or {}, now or {}
            yield from (part for part in {**then, **now} if then.get(part) != now.get(part))
        elif then != now:
            yield "training data" if name == "data" else f"{name} ({then!r} then, {now!r} now)"


def _load_weights(wrapped: WithObjective, folder: Path) -> None:
    try:
        # The Trainer loads them again, but ignores missing and unexpected names.
        wrapped.load_state_dict(load_model_file(folder / WEIGHTS), strict=True)
    except RuntimeError as error:
        problem = f"the checkpoint is of another model ({' '.join(str(error).split())})"
        raise InputError(problem, path=folder, hint=_START_AGAIN) from error


def _numbered(index: int) -> str:
    return f"example {index}"


def _fingerprint(train: Sequence[EncodedExample]) -> str:
    digest = hashlib.sha256()
    for example in train:
        digest.update(array("q", (*example.lengths, *example.source_ids, *example.target_ids)).tobytes())
    return digest.hexdigest()


def _truncate_logs(path: Path, steps: int, *, best_step: int | None) -> None:
    """Keep the lines of the first ``steps`` steps, which must be complete, and the measurement of the best step.

    Later ones will be repeated, and may be damaged by the crash.
    """
    measurements = path.with_name(MEASUREMENTS)
    if not steps:
        path.unlink(missing_ok=True)
        measurements.unlink(missing_ok=True)
        return
    if path.exists():
        with path.open("r+b") as log:
            log.truncate(sum(map(len, islice(log, steps))))
    if len(read_losses(path)) < steps:
        raise InputError(f"lines of the first {steps} steps are missing", path=path, hint=_RESTORE)
    lines = [line for _, line in read_json_lines(measurements, hint=_RESTORE)] if measurements.exists() else []
    kept = [line for line in lines if is_number(line.get("step")) and line["step"] <= steps]
    if best_step is not None and best_step not in (line["step"] for line in kept):
        problem = f"the measurement of step {best_step}, the best, is missing"
        raise InputError(problem, path=measurements, hint=f"leave out measure, {_RESTORE}")
    text = "".join(json.dumps(line) + "\n" for line in kept)
    if measurements.exists() and text != measurements.read_text(encoding="utf-8"):
        write_atomically(measurements, text)


def read_losses(path: Path) -> list[float]:
    """Read the loss of each step from a log of :func:`fit`, and check that its lines are steps 1, 2, ..."""
    losses = []
    for number, line in read_json_lines(path, hint=_RESTORE):
        if line.get("step") != number or not is_number(line.get("loss")):
            raise InputError(f"not the line of step {number}", path=path, line=number, hint=_RESTORE)
        losses.append(line["loss"])
    return losses


def _mean_loss(path: Path) -> float:
    losses = read_losses(path)
    losses = losses[-min(_MOST_IN_MEAN, max(1, len(losses) // 5)) :]
    return math.fsum(losses) / len(losses) if losses else math.nan


@contextlib.contextmanager
def _with_checkpointing(model: Any) -> Iterator[None]:
    """Turn gradient checkpointing of a model on, and restore it afterwards."""
    before = getattr(model, "gradient_checkpointing", False)
    model.gradient_checkpointing = True
    try:
        yield
    finally:
        model.gradient_checkpointing = before


@contextlib.contextmanager
def _restoring(model: nn.Module) -> Iterator[None]:
    """Restore the model's mode, the global generators and the level of logging afterwards."""
    was_training = model.training
    python, numpy, verbosity = random.getstate(), np.random.get_state(), transformers.logging.get_verbosity()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        model.train(was_training)
        random.setstate(python)
        np.random.set_state(numpy)
        transformers.logging.set_verbosity(verbosity)
