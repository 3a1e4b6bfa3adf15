"""Hugging Face Trainer for whole sequences: the objective, including search, runs in the forward of one module.

``fit`` trains models of this package with it, ``SearchAwareTrainer`` those of Hugging Face. The Trainer does everything
else: optimiser, schedule, accumulation, mixed precision, distributed training, evaluation, callbacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, distributed, nn
from transformers import Trainer

from seqwise.data.batches import Batch
from seqwise.devices import at_least_float32, widest_float
from seqwise.errors import NotFiniteError
from seqwise.objectives.objective import Objective, SumOfMeans
from seqwise.schedules import Schedule


class WithObjective(nn.Module):
    """Model and objective as one module, whose forward is the loss; both may have parameters."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, batch: Batch, values: Mapping[str, float], num_items: Tensor | None = None, weight: float = 1.0
    ) -> dict[str, Tensor]:
        """Return the loss of a batch, weighted by its share of the gold tokens of an optimiser step.

        The sum over all batches of the step, including those of other processes, is the loss of one batch of all rows:
        a mean over ``n`` of ``N = num_items`` gold tokens has weight ``n / N``. Without ``num_items``, the loss is the
        mean over this batch. ``weight`` is 0 if no row of the batch counts. In an empty batch, every parameter gets a
        gradient of 0, as other processes expect.
        """
        if len(batch) == 0:
            zero = torch.stack([parameter.sum() * 0.0 for parameter in self.parameters()]).sum()
            return {"loss": at_least_float32(zero)}
        model: Any = self.model
        if num_items is None:
            return {"loss": at_least_float32(self.objective(model, batch, values))}
        num_gold = batch.target_lengths_B.sum() * weight
        if isinstance(self.objective, SumOfMeans) and _several_processes():
            # The denominator of each mean is known only now, and each process knows only that of its own rows.
            means = self.objective.means(model, batch, values)
            own_M = torch.stack([num_gold, *(mean.count * weight for mean in means)])
            own_M = own_M.to(widest_float(own_M.device))
            all_M = own_M.clone()
            distributed.all_reduce(all_M)
            shares_M = own_M[1:] / all_M[1:].clamp(min=1) * (all_M[0] / num_items.clamp(min=1))
            return {"loss": reduce(add, (mean.value * share for mean, share in zip(means, shares_M, strict=True)))}
        loss = at_least_float32(self.objective(model, batch, values))
        return {"loss": loss * num_gold / num_items.clamp(min=1)}  # there may be no gold token


class SequenceTrainer(Trainer):  # transformers exports it as Any
    """Trainer of a :class:`WithObjective`: each step minimises ``objective(model, batch, {name: schedule(t)})``.

    t is the number of optimiser steps taken so far. With n gold tokens in a batch and N in all batches that one step
    accumulates, in all processes, the loss of the batch has weight n / N. A loss or gradient that is not finite raises
    an error before the step. The collator's output has ``batch``, a :class:`~seqwise.data.Batch`, and ``weight``, 0 if
    it does not count; see :meth:`batch_of`.
    """

    args: Any
    control: Any
    model: Any
    optimizer: Any
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga = True  # the share of each batch takes the accumulation into account

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *arguments: Any,
        schedules: Mapping[str, Schedule] | None = None,
        **options: Any,
    ) -> None:
        # Reading the device makes the arguments count the GPUs. With more than one, the Trainer would use DataParallel,
        # which splits tensors, not batches, and copies a model without the methods that a search calls.
        _ = args.device
        args._n_gpu = min(args.n_gpu, 1)
        super().__init__(model, args, *arguments, **options)
        self.schedules = dict(schedules or {})
        self.values: dict[str, float] = {}  # of the schedules at the last step
        # Of the current optimiser step, over all processes, before clipping.
        self.loss, self.gradient_norm = math.nan, math.nan
        self._losses: list[Tensor] = []

    def batch_of(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the part of the collator's output that the objective reads."""
        batch: Batch = inputs["batch"]
        return batch.to(self.args.device)

    def weight_of(self, inputs: Mapping[str, Any]) -> float:
        """Return 0 if no row of the collator's output counts, else 1."""
        weight: float = inputs["weight"]
        return weight

    def num_gold(self, inputs: Mapping[str, Any]) -> Tensor:
        """Count the gold tokens of the collator's output."""
        counted: Tensor = inputs["batch"].target_lengths_B.sum() * inputs["weight"]
        return counted

    def not_finite_error(self, problem: str) -> NotFiniteError:
        """Return the error about a loss or gradient that is not finite."""
        hint = f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate"
        return NotFiniteError(problem, hint=hint)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | None]:
        """Return the batches of one optimiser step, and their number of gold tokens in all processes.

        The number is None if the step has only one batch.
        """
        self._losses = []
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        several = self.args.world_size > 1 and self.args.average_tokens_across_devices
        if not samples or (len(samples) == 1 and not several):
            return samples, None
        count = torch.stack([self.num_gold(inputs) for inputs in samples]).sum().to(device)
        return samples, self.accelerator.gather(count).sum() if several else count

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Tensor | None = None
    ) -> Any:
        """Return the objective of a batch, weighted in training by the batch's share of gold tokens."""
        self.values = {name: schedule(self.state.global_step) for name, schedule in self.schedules.items()}
        share = num_items_in_batch if model.training else None
        output = model(self.batch_of(inputs), self.values, share, self.weight_of(inputs))
        loss = output["loss"]
        if share is not None and self.args.world_size > 1 and self.args.average_tokens_across_devices:
            loss = loss * self.args.world_size  # gradients are averaged over processes
        if model.training:
            self._losses.append(loss.detach())
        return (loss, output) if return_outputs else loss

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log; add the values of the schedules to the loss of a training step."""
        super().log({**logs, **self.values} if "loss" in logs else logs, *arguments, **named)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # A private method, because no public one receives the norm of the gradients before the step.
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        loss = torch.stack(self._losses).sum()
        if self.args.world_size > 1:
            loss = self.accelerator.reduce(loss, reduction="mean")
        self.loss, self.gradient_norm = float(loss), float(norm)
        # In float16 a scaler skips steps whose gradient overflows.
        gradient_norm = 0.0 if self.accelerator.scaler else self.gradient_norm
        for name, value in (("loss", self.loss), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                raise self.not_finite_error(f"the {name} is {value} at step {self.state.global_step + 1}")
        return norm


def _several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
