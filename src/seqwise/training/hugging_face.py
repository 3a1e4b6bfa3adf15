"""The Hugging Face Trainer, fitted to our batches, our checkpoints and an objective that runs whole inside forward.

Nothing here is for callers: ``trainer.fit`` is.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from seqwise.data.batches import Batch, BucketBatchSampler, EncodedExample, collate
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.objectives.objective import Objective
from seqwise.training.checkpoints import prune, seal
from seqwise.training.schedules import Schedule

__all__ = ["SETTINGS", "WEIGHTS", "Progress", "SequenceTrainer", "StepBatches", "WithObjective"]

SETTINGS = "settings.json"
"""In a checkpoint: what it was trained with, so that it is not continued with something else."""

WEIGHTS = "model.safetensors"
"""In a checkpoint: the weights."""


@dataclass(frozen=True)
class Progress:
    """One step as it was taken: its number from 1, and what it was taken with."""

    step: int
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    schedules: dict[str, float]
    seconds: float


class WithObjective(nn.Module):
    """The objective inside forward, where the Trainer wants the loss to be made."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, values: dict[str, float]) -> dict[str, Tensor]:
        return {"loss": self.objective(cast(StepModel, self.model), batch, values)}


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
        log: TextIO,
        on_progress: Callable[[Progress], None] | None,
        example_names: Callable[[int], str] | None,
    ) -> None:
        # Reading the device makes the arguments look for GPUs. More than one would mean DataParallel, which splits
        # tensors and not our batches.
        _ = arguments.device
        arguments._n_gpu = min(arguments.n_gpu, 1)
        if arguments.world_size > 1:
            raise InputError("training in several processes is not supported", mend="start one process")
        super().__init__(model, arguments)
        self.remove_callback(PrinterCallback)
        self.add_callback(_AfterStep(self))
        self.batches, self.clip, self.schedules, self.settings = batches, clip, schedules, settings
        self.log_file, self.on_progress = log, on_progress
        self.example_names = example_names or (lambda index: f"example {index}")
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradient_norm: Tensor | None = None
        self.progress: Progress | None = None
        self.started = time.monotonic()

    def get_train_dataloader(self) -> DataLoader[Any]:
        # A generator of its own: a loader without one draws from torch's, once an iteration more after a resume.
        examples: Any = self.batches.examples
        return DataLoader(examples, batch_sampler=self.batches, collate_fn=_collate, generator=torch.Generator())

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        step = self.state.global_step
        values = {name: schedule(step) for name, schedule in self.schedules.items()}
        batch = inputs["batch"].to(self.args.device)
        # Each thing here that looks simpler than the Trainer's own saves a tenth of a millisecond a step: train()
        # walks all modules, and accelerate's backward searches the disk for an optional package each time.
        if not self.model.model.training:
            self.model.train()
        loss: Tensor = model(batch, values)["loss"]
        loss.backward()
        self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        loss = loss.detach()
        # One transfer for both numbers.
        loss_value, norm = torch.stack((loss.float(), self.gradient_norm.float())).tolist()
        if not (math.isfinite(loss_value) and math.isfinite(norm)):
            self._refuse(step, batch, loss_value, norm)
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

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

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

    def _refuse(self, step: int, batch: Batch, loss: float, norm: float) -> None:
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        names = [self.example_names(index) for index in batch.indices_B.tolist()]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InputError(
            f"{what} at step {step + 1}, on {shown}",
            mend=f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate or "
            "look at these examples",
        )


def _collate(items: list[tuple[int, EncodedExample]]) -> dict[str, Batch]:
    # The Trainer looks into each batch by key.
    return {"batch": collate(items)}


class _AfterStep(TrainerCallback):
    """Logs each step; seals each checkpoint after its last file is written, and only then removes older ones."""

    def __init__(self, trainer: SequenceTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed state brings its own interval along.
        state.save_steps = args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        progress = self.trainer.progress
        assert progress is not None
        line = {"step": progress.step, "loss": progress.loss, "learning_rate": progress.learning_rate}
        line |= {"gradient_norm": progress.gradient_norm, **progress.schedules}
        self.trainer.log_file.write(json.dumps(line) + "\n")
        self.trainer.log_file.flush()
        if self.trainer.on_progress is not None:
            self.trainer.on_progress(progress)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoints = Path(args.output_dir)
        # The log must reach the disk before the checkpoint that says these steps are done.
        os.fsync(self.trainer.log_file.fileno())
        seal(checkpoints / f"checkpoint-{state.global_step}")
        prune(checkpoints)
