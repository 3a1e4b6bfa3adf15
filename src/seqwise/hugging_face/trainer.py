"""The Trainer of transformers with the whole search inside the forward that accelerate wraps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainer

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.configuration import SearchAwareConfig
from seqwise.hugging_face.model_inputs import NEEDED, batch_from_inputs, target_labels
from seqwise.hugging_face.step_model import step_model
from seqwise.objectives.by_name import log_partition_objective, objective_by_name
from seqwise.objectives.contrastive import noise_log_probs
from seqwise.objectives.objective import Objective, mixed_objective
from seqwise.training.hugging_face import not_finite
from seqwise.training.schedules import Schedule, schedule_in_range

__all__ = ["SearchAwareTrainer"]


@dataclass(frozen=True)
class _Task:
    """What one call of ``train`` minimises.

    Args:
        model: the trained model as a step model.
        objective: of it.
        schedules: what changes while it trains.
        searches: whether targets must end with the end token.
    """

    model: HuggingFaceStepModel
    objective: Objective
    schedules: dict[str, Schedule]
    searches: bool

    @property
    def first(self) -> int | None:
        """What the decoder of an encoder-decoder starts from."""
        return self.model.first if self.model.model.config.is_encoder_decoder else None

    def batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Inputs of the model as sources and targets."""
        batch = batch_from_inputs(inputs, first=self.first)
        if self.searches and self.model.end is not None and len(batch):
            last_B = batch.targets_BT.gather(1, batch.target_lengths_B[:, None] - 1)[:, 0]
            if bool((last_B != self.model.end).any()):
                raise InputError(
                    f"a target does not end with the end token {self.model.end} (eos_token_id), and a search that "
                    "ends there is compared with it",
                    mend="end all labels with it, or set model.generation_config.eos_token_id to None",
                )
        return batch


class SearchAwareTrainer(Seq2SeqTrainer):
    """``Seq2SeqTrainer`` for any seq2seq or causal language model, by any objective of this package.

    Each training step minimises ``objective(model, batch, {name: schedule(t)})`` per token, t being the optimiser steps
    taken so far: with n gold tokens in a batch and N in all batches that one optimiser step accumulates (and in those
    of other processes), its loss is weighted by n / N, so that 4 batches of 4 give the gradient of one of 16. The
    search, its decoder states and its embeddings are all inside the call of the model that accelerate wraps, so that
    mixed precision and gradient reduction see one forward.

    Everything else is ``Seq2SeqTrainer``'s: evaluation (the model's own loss, which is cross-entropy, and
    ``compute_metrics`` with ``predict_with_generate``), callbacks, ``report_to``, checkpoints, resumption, the saved
    model, which ``AutoModelForSeq2SeqLM`` or ``AutoModelForCausalLM`` loads and ``generate`` decodes.

    Args:
        model: with a language model head, or one with adapters of PEFT; or ``model_init``.
        args: a :class:`~seqwise.hugging_face.SearchAwareConfig`.
        others, named: as of ``Seq2SeqTrainer``: collator, data sets (``datasets`` or lists of dicts), tokenizer, ...

    The data are as for ``Seq2SeqTrainer``: ``input_ids`` and ``labels``, padded on either side, -100 where there is no
    label. Of a causal model what has a label is the target and what stands before it the prompt. Labels end with the
    model's end token where the objective searches.

    Raises:
        InputError: ``args`` is no SearchAwareConfig, ``compute_loss_func`` is given, or the model cannot be adapted, as
            of :func:`~seqwise.hugging_face.step_model`; while training: the data are not as above, or the loss or the
            gradient of a step is not finite.

    The values of the schedules are logged with the loss, and follow the global step: a resumed training ends with the
    same weights, bit for bit. On one machine only one GPU is used by one process.

    Not implemented: FSDP, DeepSpeed, ``torch_compile``, label smoothing; activation checkpointing inside a search;
    targets with gaps (several turns of a dialogue); objectives that need other inputs than tokens; checkpoints that
    survive a kill while they are written.

    Example:
        >>> import tempfile
        >>> from transformers import MarianConfig, MarianMTModel, PrinterCallback
        >>> sizes = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 8}
        >>> heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
        >>> model = MarianMTModel(MarianConfig(**sizes, **heads, eos_token_id=0, decoder_start_token_id=8))
        >>> config = SearchAwareConfig(
        ...     tempfile.mkdtemp(), objective="relaxed-beam", beam_size=2, alpha="linear(1, 4)", max_steps=2,
        ...     report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", use_cpu=True,
        ... )
        >>> train = [{"input_ids": [3, 4, 0], "labels": [4, 3, 0]}] * 8
        >>> def pad(rows):
        ...     return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
        >>> trainer = SearchAwareTrainer(model, config, data_collator=pad, train_dataset=train)
        >>> trainer.remove_callback(PrinterCallback)
        >>> trainer.train().global_step
        2
    """

    args: Any
    model_accepts_loss_kwargs: bool

    def __init__(self, model: Any = None, args: Any = None, *others: Any, **named: Any) -> None:
        if not isinstance(args, SearchAwareConfig):
            raise InputError(f"args is a {type(args).__name__}", mend="pass a SearchAwareConfig")
        # Reading the device makes the arguments look for GPUs. More than one would mean DataParallel, which copies a
        # model and leaves its parts, that a search calls, where they are.
        _ = args.device
        args._n_gpu = min(args.n_gpu, 1)
        super().__init__(model, args, *others, **named)
        if self.compute_loss_func is not None:
            problem = "compute_loss_func would take the place of the objective"
            raise InputError(problem, mend="leave it out, or use Seq2SeqTrainer")
        self._task: _Task | None = None
        self._values: dict[str, float] = {}
        self._losses: list[Tensor] = []
        # Before a checkpoint is loaded: the teacher is what training started from.
        self._teacher: Any = copy.deepcopy(self.model) if args.objective == "distillation" else None
        self._adapted(self.model)  # refuses a model now that would be refused at the first step

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train; see ``Seq2SeqTrainer.train``."""
        self._task = None  # built at the first step, when the model and its special tokens are settled
        self._losses = []
        return super().train(*arguments, **named)

    def get_batch_samples(self, *arguments: Any, **named: Any) -> tuple[list[Any], Any]:
        """The batches of one optimiser step, and how many gold tokens they have in all."""
        samples, _ = super().get_batch_samples(*arguments, **named)
        causal = self._current_task().first is None
        targets = [{"labels": target_labels(one, causal=causal)} for one in samples if {*NEEDED} <= {*one}]
        with self._loss_is_weighted():
            return samples, self._get_num_items_in_batch(targets, self.args.device)

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        """One batch; see ``Trainer.training_step``."""
        with self._loss_is_weighted():
            loss: Tensor = super().training_step(*arguments, **named)
        self._losses.append(loss.float())
        return loss

    def _get_grad_norm(self, *arguments: Any, **named: Any) -> Any:
        norm = super()._get_grad_norm(*arguments, **named)
        loss, self._losses = float(sum(self._losses)), []
        # In float16 a scaler skips steps whose gradient overflows.
        problem = not_finite(self.state.global_step + 1, loss, 0.0 if self.accelerator.scaler else float(norm))
        if problem is not None:
            mend = f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate"
            raise InputError(problem, mend=mend)
        return norm

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """In training the objective, weighted by the batch's share of gold tokens; elsewhere the model's own loss."""
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        task = self._current_task()
        self._values = {name: schedule(self.state.global_step) for name, schedule in task.schedules.items()}

        def forward(batch: Batch, values: Mapping[str, float]) -> dict[str, Tensor]:
            # Once more, since accelerate wraps what was the model's forward before.
            with self.accelerator.autocast():
                if len(batch) == 0:  # and yet every parameter takes part, as other processes expect
                    return {"loss": torch.stack([p.sum() * 0.0 for p in self.model.parameters()]).sum()}
                loss = task.objective(task.model, batch, values)
            return {"loss": loss.to(torch.promote_types(loss.dtype, torch.float32))}

        batch = task.batch(inputs)
        with _forward_is(self.model, forward):
            loss: Tensor = model(batch, self._values)["loss"]
        if num_items_in_batch is not None:
            loss = loss * (batch.target_lengths_B.sum() / num_items_in_batch)
            if self.args.average_tokens_across_devices:  # gradients are averaged over processes
                loss = loss * self.accelerator.num_processes
        return loss

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log; beside the loss of a training step, the values of the schedules that it was taken with."""
        super().log({**logs, **self._values} if "loss" in logs else logs, *arguments, **named)

    def _save(self, *arguments: Any, **named: Any) -> None:
        """Save; the arguments are pickled, which not every function of the step can be."""
        args, self.args = self.args, self.args.picklable()
        try:
            super()._save(*arguments, **named)
        finally:
            self.args = args

    @contextmanager
    def _loss_is_weighted(self) -> Iterator[None]:
        """For a while, let the Trainer take the loss for one that heeds how many tokens there are in all.

        What the model itself says of that is true of its own loss, in evaluation.
        """
        accepts = self.model_accepts_loss_kwargs
        self.model_accepts_loss_kwargs = True
        try:
            yield
        finally:
            self.model_accepts_loss_kwargs = accepts

    def _current_task(self) -> _Task:
        if self._task is None:
            config, model = self.args, self._adapted(self.model)
            objective = objective_by_name(
                config.objective_settings(),
                end=model.end,
                log_noise_V=lambda: self._noise(model),
                teacher=lambda: self._adapted(self._teacher).requires_grad_(False).eval(),
            )
            if config.adds_penalty:
                penalty = log_partition_objective(fraction=config.log_partition_fraction)
                objective = mixed_objective([objective, penalty], [1.0, config.penalty_weight])
            schedules = {
                name: schedule_in_range(name, getattr(config, name), total_steps=self.state.max_steps)
                for name in config.schedules
            }
            self._task = _Task(model, objective, schedules, config.searches)
        return self._task

    def _adapted(self, model: Any) -> HuggingFaceStepModel:
        # Without what accelerate may have wrapped around the forward: in half precision the two cannot agree.
        with _forward_is(model, MethodType(type(model).forward, model)):
            return step_model(model)

    def _noise(self, model: HuggingFaceStepModel) -> Tensor:
        """log q of the tokens, by how often they are gold in the training data."""
        counts_V = torch.ones(len(model.embedding_VD))  # once more each: what is never gold has to be held down too
        data: Any = self.train_dataset
        if not hasattr(data, "__len__"):
            problem = "noise-contrastive estimation counts the labels beforehand, and the data set has no length"
            raise InputError(problem, mend="give one that can be read twice")
        for place in range(len(data)):
            labels_T = torch.as_tensor(data[place]["labels"], dtype=torch.long)
            counts_V += torch.bincount(labels_T[labels_T >= 0], minlength=len(counts_V))
        return noise_log_probs(counts_V)


@contextmanager
def _forward_is(model: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """For a while, let a call of the model, and of whatever is wrapped around it, call this function."""
    wrapped = vars(model).get("forward")
    model.forward = function
    try:
        yield
    finally:
        if wrapped is None:
            del model.forward
        else:
            model.forward = wrapped
