"""The Hugging Face Trainer, fitted to our batches, our checkpoints and an objective that runs whole inside forward.

Nothing here is for callers: ``trainer.fit`` is.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import safe_globals

from seqwise.data.batches import Batch, BucketBatchSampler, EncodedExample
from seqwise.data.durable import write_atomically
from seqwise.errors import InputError
from seqwise.objectives.objective import Objective
from seqwise.training.checkpoints import UNFINISHED, checkpoint_step, keep_checkpoint, saving
from seqwise.training.joint import collate_share, joint_loss, loss_of_share, seed_own_noise
from seqwise.training.processes import is_first
from seqwise.training.schedules import Schedule

__all__ = [
    "NOT_FINITE",
    "SETTINGS",
    "WEIGHTS",
    "Progress",
    "SequenceTrainer",
    "StepBatches",
    "WithObjective",
    "not_finite",
    "require_state",
]

SETTINGS = "settings.json"
"""In a checkpoint: what it was trained with, so that it is not continued with something else."""

WEIGHTS = "model.safetensors"
"""In a checkpoint: the weights."""

NOT_FINITE = "not-finite.json"
"""Beside the log: the batch on which a training came to a loss or a gradient that is no number."""


@dataclass(frozen=True)
class Progress:
    """One step as it was taken.

    Attributes:
        step: its number, from 1.
        steps: of the whole training.
        loss: of its batch, before the step.
        learning_rate: that it was taken with.
        gradient_norm: before the gradient was clipped.
        schedules: their values.
        seconds: since this call began to train.
        measured: the last measurement, by title; empty before the first one.
        seconds_left: estimated, measurements included; at least so many where ``measured`` is empty and some are due.
    """

    step: int
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    schedules: dict[str, float]
    seconds: float
    measured: Mapping[str, float] = field(default_factory=dict)
    seconds_left: float = 0.0


def not_finite(step: int, loss: float, gradient_norm: float) -> str | None:
    """Describe the loss or the gradient norm of a step, counted from 1, that is infinite or NaN; None if neither is.

    Example:
        >>> not_finite(3, float("nan"), 1.0)
        'the loss is nan at step 3'
    """
    for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
        if not math.isfinite(value):
            return f"the {name} is {value} at step {step}"
    return None


class WithObjective(nn.Module):
    """The objective inside forward, where the Trainer wants the loss to be made."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, values: dict[str, float], weight: float = 1.0) -> dict[str, Tensor]:
        return {"loss": loss_of_share(self.objective, self.model, batch, values, weight=weight)}


class StepBatches(Sampler[list[int]]):
    """The batches of all steps as one sequence, epoch after epoch.

    One long epoch for the Trainer: it can then skip to any step, and does not need to find our sampler to set its
    epoch (it looks inside two kinds of wrappers, and trains on the same order again where it finds none).
    """

    def __init__(self, train: Sequence[EncodedExample], *, batch_size: int, seed: int, steps: int) -> None:
        self.examples = list(enumerate(train))
        self.steps = steps
        self.epochs = BucketBatchSampler([example.lengths for example in train], batch_size, seed)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        left = self.steps
        for epoch in range(-(-self.steps // len(self.epochs))):
            self.epochs.set_epoch(epoch)
            for batch in self.epochs:
                if left == 0:
                    return
                left -= 1
                yield batch


class SequenceTrainer(Trainer):  # transformers exports it as Any
    """The Trainer with our batches, our weights file and a step that looks at its loss before it is used."""

    def __init__(
        self,
        model: WithObjective,
        arguments: TrainingArguments,
        batches: StepBatches,
        *,
        clip: float,
        schedules: dict[str, Schedule],
        settings: dict[str, Any],
        rates: Mapping[str, float],
        log: TextIO,
        on_progress: Callable[[Progress], None] | None,
        example_names: Callable[[int], str] | None,
    ) -> None:
        # Reading the device makes the arguments look for GPUs. More than one would mean DataParallel, which splits
        # tensors and not our batches.
        _ = arguments.device
        arguments._n_gpu = min(arguments.n_gpu, 1)
        super().__init__(model, arguments)
        self.remove_callback(PrinterCallback)
        self.add_callback(_AfterStep(self))
        self.batches, self.clip, self.schedules, self.settings = batches, clip, schedules, settings
        self.rates = rates
        self.log_file, self.on_progress = log, on_progress
        self.example_names = example_names or (lambda index: f"example {index}")
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradient_norm: Tensor | None = None
        self.progress: Progress | None = None
        self.started = time.monotonic()

    def get_train_dataloader(self) -> DataLoader[Any]:
        # A generator of its own: a loader without one draws from torch's, once an iteration more after a resume.
        examples: Any = self.batches.examples
        return DataLoader(examples, batch_sampler=self.batches, collate_fn=collate_share, generator=torch.Generator())

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        step = self.state.global_step
        values = {name: schedule(step) for name, schedule in self.schedules.items()}
        batch = inputs["batch"].to(self.args.device)
        # Each thing here that looks simpler than the Trainer's own saves a tenth of a millisecond a step: train()
        # walks all modules, and accelerate's backward searches the disk for an optional package each time.
        if not self.model.model.training:
            self.model.train()
        seed_own_noise(self.args.seed, step)
        loss: Tensor = model(batch, values, inputs["weight"])["loss"]
        loss.backward()
        self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        loss = joint_loss(loss.detach())
        # One transfer for both numbers.
        loss_value, norm = torch.stack((loss.float(), self.gradient_norm.float())).tolist()
        problem = not_finite(step + 1, loss_value, norm)
        if problem is not None:
            self._refuse(step, inputs["indices"], values, problem)
        rate = self.optimizer.param_groups[0]["lr"]
        seconds = time.monotonic() - self.started
        self.progress = Progress(step + 1, self.args.max_steps, loss_value, rate, norm, values, seconds)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor | None:
        # The Trainer would compute it a second time.
        return self.gradient_norm

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        # One group, and so one kernel a step, where the groups would not differ.
        if self.args.weight_decay == 0:
            return [name for name, _ in model.named_parameters()]
        names: list[str] = super().get_decay_parameter_names(model)
        return names

    def create_optimizer(self, *arguments: Any) -> Any:
        made = super().create_optimizer(*arguments)
        if self.rates:
            groups = [part for group in made.param_groups for part in self._by_rate(group)]
            made.param_groups[:] = groups
        return made

    def _by_rate(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group of the optimiser as one for each learning rate of its weights, what keeps the group's own first."""
        own = {id(weight): group["lr"] for weight in group["params"]}
        for part, rate in self.rates.items():
            own |= {id(p): rate for name, p in self.model.model.named_parameters() if name.startswith(part)}
        rates = dict.fromkeys([group["lr"], *self.rates.values()])
        found = [{**group, "lr": rate, "params": [p for p in group["params"] if own[id(p)] == rate]} for rate in rates]
        return [one for one in found if one["params"]]

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def store_flos(self) -> None:
        # The Trainer would ask all processes for them, and only the first one saves.
        pass

    def _get_output_dir(self, trial: Any) -> str:
        # Where the Trainer makes the folder of a checkpoint, which has another name until it is complete.
        return str(Path(self.args.output_dir) / UNFINISHED)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if not is_first():
            return  # the next step waits for the first process
        checkpoints = Path(self.args.output_dir)
        with saving(checkpoints / f"checkpoint-{self.state.global_step}"):
            super()._save_checkpoint(model, trial)
            # The log must reach the disk before the checkpoint that says these steps are done.
            os.fsync(self.log_file.fileno())
            keep_checkpoint(checkpoints, self.state.global_step)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # Named after its process where there are several, whose noise does not depend on it: one may go on.
        named = Path(output_dir) / f"rng_state_{self.args.process_index}.pth"
        if named.exists():
            named.rename(named.with_name(_GENERATORS))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _loading(checkpoint, _OPTIMIZER, _SCHEDULER):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _loading(checkpoint, _GENERATORS):
            super()._load_rng_state(checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        for name, tensor in weights.items():
            # The last step's loss was finite, what the step made of the weights may not be.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise InputError(
                    f"the weights {name.removeprefix('model.')} are not finite after step {self.state.global_step}",
                    mend=f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate",
                )
        folder = Path(str(output_dir or self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        # Cloned, because safetensors refuses tensors that share memory, as tied embeddings do.
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
        (folder / SETTINGS).write_text(json.dumps(self.settings, sort_keys=True), encoding="utf-8")

    def _refuse(self, step: int, indices: list[int], values: dict[str, float], problem: str) -> None:
        names = [self.example_names(index) for index in indices]
        examples = [
            {"name": self.example_names(index), "source_ids": one.source_ids, "target_ids": one.target_ids}
            for index, one in (self.batches.examples[index] for index in indices)
        ]
        record = {"step": step + 1, "what": problem, "schedules": values, "examples": examples}
        path = Path(self.args.output_dir).with_name(NOT_FINITE)
        if is_first():
            write_atomically(path, json.dumps(record, indent=1) + "\n")
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InputError(
            f"{problem}, on {shown}",
            mend=f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate or "
            f"look at these examples, which are in {path}",
        )


_OPTIMIZER, _SCHEDULER, _GENERATORS, _STATE = "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"


def require_state(folder: Path) -> None:
    """See that a checkpoint has all that the Trainer goes on from; what is missing it passes over without a word.

    Raises:
        InputError: a file is missing, or the Trainer's own state is that of another step.
    """
    mend = "remove the checkpoint, and the same command continues from the one before it"
    for name in (_OPTIMIZER, _SCHEDULER, _GENERATORS, _STATE):
        if not (folder / name).is_file():
            raise InputError("the checkpoint lacks this file", path=folder / name, mend=mend)
    try:
        step = TrainerState.load_from_json(str(folder / _STATE)).global_step
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"no state of a training ({error})", path=folder / _STATE, mend=mend) from error
    if step != checkpoint_step(folder):
        raise InputError(f"the state is that of step {step!r}", path=folder / _STATE, mend=mend)


@contextmanager
def _loading(checkpoint: str | None, *names: str) -> Iterator[None]:
    """Say in one line which file of a checkpoint cannot be loaded; those that torch reads are never executed."""
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        folder = Path(str(checkpoint))
        path = next((folder / name for name in names if not _is_plain(folder / name)), folder)
        said = (str(error).splitlines() or [type(error).__name__])[0]
        mend = "remove the checkpoint, and the same command continues from the one before it"
        raise InputError(f"cannot be loaded as plain data ({said})", path=path, mend=mend) from error


def _is_plain(path: Path) -> bool:
    try:
        with safe_globals():
            torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a file from outside may fail in any way
        return False
    return True


class _AfterStep(TrainerCallback):
    """Logs each step."""

    def __init__(self, trainer: SequenceTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed state brings its own interval along.
        state.save_steps = args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not is_first():
            return
        progress = self.trainer.progress
        assert progress is not None
        line = {"step": progress.step, "loss": progress.loss, "learning_rate": progress.learning_rate}
        line |= {"gradient_norm": progress.gradient_norm, **progress.schedules}
        self.trainer.log_file.write(json.dumps(line) + "\n")
        self.trainer.log_file.flush()
        if self.trainer.on_progress is not None:
            self.trainer.on_progress(progress)
