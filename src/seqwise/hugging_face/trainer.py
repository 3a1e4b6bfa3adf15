"""Hugging Face Trainer with the whole search inside the forward that accelerate wraps."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    Seq2SeqTrainer,
)
from transformers.trainer_utils import align_special_tokens

from seqwise.data.batches import Batch, EncodedExample, collate
from seqwise.devices import require_precision
from seqwise.errors import InputError, first_line
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.configuration import SearchAwareConfig
from seqwise.hugging_face.generation import ended_by
from seqwise.hugging_face.language import InsideLanguage, text_language
from seqwise.hugging_face.model_inputs import NEEDED, batch_from_inputs, prompts_of, require_needed, target_labels
from seqwise.hugging_face.positions import configured_limit
from seqwise.hugging_face.sharding import (
    ONE_UNIT,
    Lockstep,
    classes_of_layers,
    finishing_together,
    gathered,
    is_sharded,
    shard,
)
from seqwise.hugging_face.step_model import step_model
from seqwise.hugging_face.tokens import before_targets
from seqwise.objectives.contrastive import smoothed_noise
from seqwise.objectives.objective import Objective
from seqwise.objectives.options import Context
from seqwise.objectives.settings import Distillation
from seqwise.search.language import require_members
from seqwise.training.sequence_trainer import SequenceTrainer, WithObjective


class SearchAwareTrainer(SequenceTrainer, Seq2SeqTrainer):
    """``Seq2SeqTrainer`` that trains any seq2seq or causal language model with the objectives of this package.

    Each training step minimises ``objective(model, batch, {name: schedule(t)})`` per token, with t the number of
    optimiser steps taken so far. With n gold tokens in a batch and N in all batches of the optimiser step (including
    those of other processes), its loss has weight n / N, so that 4 batches of 4 give the gradient of one of 16. The
    search, its decoder states and its embeddings are inside the model call that accelerate wraps, so that mixed
    precision and gradient reduction see one forward.

    ``Seq2SeqTrainer`` does everything else: evaluation (the model's own loss, cross-entropy, and ``compute_metrics``
    with ``predict_with_generate``), callbacks, ``report_to``, checkpoints, resumption, and saving a model that
    ``AutoModelForSeq2SeqLM`` or ``AutoModelForCausalLM`` loads and ``generate`` decodes.

    Args:
        model: a model with a language model head, also with PEFT adapters; or its name or folder, loaded from
            safetensors without remote code; or ``model_init``.
        args: a :class:`~seqwise.hugging_face.SearchAwareConfig`.
        others, named: see ``Seq2SeqTrainer``: collator, data sets (``datasets`` or lists of dicts), tokenizer, ...

    Data are as for ``Seq2SeqTrainer``: ``input_ids`` and ``labels``, padded on either side, with -100 where there is no
    label. For a causal model, tokens with a label are the target and those before it the prompt. If the objective
    searches, labels must end with the model's end token, and only there.

    Raises:
        InputError: ``args`` is not a SearchAwareConfig, ``compute_loss_func`` is given, ``fp16`` is on without
            a GPU, the model has a loss of its own for its router (``output_router_logits``), or it cannot be adapted,
            see :func:`~seqwise.hugging_face.step_model`; while training: the data are not as above, or the loss or
            gradient of a step is not finite.

    The values of the schedules are logged with the loss and depend on the global step, so a resumed training run ends
    with the same weights, bit for bit. Each process uses only one GPU.

    With ``fsdp=True`` and ``fsdp_config={"version": 2, "auto_wrap_policy": "NO_WRAP"}``, processes share the model as
    one unit (FSDP2): each holds its part of the weights and of the optimiser's state, and all weights and gradients
    only from the start of an objective to the end of its gradients, or while it evaluates. Saved models are whole; a
    checkpoint is resumed with FSDP, by any number of processes. With ``"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"``,
    each layer is a unit of its own, for models that do not fit one device and objectives whose gradients do not flow
    through single steps.

    Not implemented: FSDP in units of layers for other objectives; DeepSpeed, ``torch_compile``; targets with gaps
    (several turns of a dialogue); objectives that need inputs other than tokens; crash-safe checkpoints.

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

    def __init__(self, model: Any = None, args: Any = None, *others: Any, **named: Any) -> None:
        if not isinstance(args, SearchAwareConfig):
            raise InputError(f"args is a {type(args).__name__}", hint="pass a SearchAwareConfig")
        # On a CPU, accelerate would compute in float32.
        require_precision(args.device, bf16=args.bf16, fp16=args.fp16, has_lstm=False)
        if isinstance(model, (str, os.PathLike)):
            model = _from_pretrained(os.fspath(model))
        super().__init__(model, args, *others, **named)
        if self.compute_loss_func is not None:
            problem = "compute_loss_func would replace the objective"
            raise InputError(problem, hint="leave it out, or use Seq2SeqTrainer")
        if self.is_fsdp_enabled and not args.fsdp:
            problem = "FSDP is set by accelerate's launcher, whose settings are not those of the arguments"
            raise InputError(problem, hint=f"set it by the arguments: fsdp=True, {ONE_UNIT}")
        if getattr(self.model.config, "output_router_logits", False):
            problem = "output_router_logits: the loss that balances experts is no part of an objective"
            raise InputError(problem, hint="set model.config.output_router_logits = False")
        # Before a checkpoint is loaded: the teacher is the initial model.
        self._teacher: Any = copy.deepcopy(self.model) if isinstance(args.objective, Distillation) else None
        if isinstance(self.processing_class, (PreTrainedTokenizerBase, ProcessorMixin)):
            align_special_tokens(self.model, self.processing_class)  # as ``train`` does: the adapter reads them
        self._plain, self._adapted = self.model, self._adapt(self.model)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train like ``Seq2SeqTrainer``, after checking the inputs of training and evaluation."""
        self._require_evaluation()
        if self.train_dataset is None or _is_empty(self.train_dataset):
            raise InputError("train_dataset: there is no training data", hint="pass at least one example")
        self.adapted().steps_singly = self.args.objective.steps_singly  # an option may have been set since
        return super().train(*arguments, **named)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **generation: Any
    ) -> dict[str, float]:
        """Evaluate like ``Seq2SeqTrainer``; in training, the metric for the best model must exist and be finite."""
        metrics: dict[str, float] = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **generation)
        name = self.args.metric_for_best_model
        if self.is_in_train and name is not None and metric_key_prefix == "eval":
            value = metrics.get(f"eval_{name.removeprefix('eval_')}")
            if value is None:
                problem = f"metric_for_best_model: {name!r} is not among the metrics ({', '.join(metrics)})"
                raise InputError(problem, hint="name one of them; eval_on_start=True shows it before the first step")
            if not math.isfinite(value):
                problem = f"metric_for_best_model: {name!r} is {value} after step {self.state.global_step}"
                raise InputError(problem, hint="compute_metrics must return a finite number, or name another metric")
        return metrics

    def _require_evaluation(self) -> None:
        """Raise an InputError for problems that would otherwise appear only at the first evaluation."""
        evaluates, metric = self.args.eval_strategy != "no", self.args.metric_for_best_model
        parts = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        if evaluates and any(data is not None and _is_empty(data) for data in parts.values()):
            raise InputError("eval_dataset is empty", hint="pass at least one example, or set eval_strategy to 'no'")
        has_loss_alone = self.compute_metrics is None and "" in parts
        if evaluates and has_loss_alone and metric not in (None, "loss", "eval_loss"):
            problem = f"metric_for_best_model: {metric!r} needs compute_metrics"
            raise InputError(problem, hint="pass compute_metrics, or set metric_for_best_model to 'loss'")
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                patience = callback.early_stopping_patience
                if not patience >= 1:
                    raise InputError(f"early_stopping_patience must be at least 1, got {patience}")
                if not evaluates or metric is None:
                    problem = "EarlyStoppingCallback: there is no development metric"
                    raise InputError(problem, hint="pass eval_dataset, and set eval_strategy and metric_for_best_model")

    def adapted(self) -> HuggingFaceStepModel:
        """Return the trained model as a step model; it is adapted and checked once."""
        if self._plain is not self.model:  # ``model_init`` has made another
            self._plain, self._adapted = self.model, self._adapt(self.model)
        return self._adapted

    def _adapt(self, plain: Any) -> HuggingFaceStepModel:
        """Adapt a model, and set its language."""
        own = getattr(plain, "generation_config", None)  # without a head it has none, and step_model refuses it
        config = None if own is None else ended_by(own, self.processing_class)
        model, language = step_model(plain, generation_config=config), self.args.language
        model.steps_singly = self.args.objective.steps_singly
        if isinstance(language, str):
            if self.processing_class is None:
                raise InputError("language: a pattern needs a tokenizer", hint="pass processing_class")
            language = text_language(self.processing_class, language, end=model.end)
            if model.model.config.is_encoder_decoder:
                language = language.after(before_targets(self.processing_class, model.forced_first))
        model.language = language
        return model

    def batch_of(self, inputs: Mapping[str, Any]) -> Batch:
        """Convert the model's inputs to sources and targets; if the objective searches, targets must end once."""
        model = self.adapted()
        batch = batch_from_inputs(inputs, first=model.first if self._is_encoder_decoder else None)
        if len(batch) == 0 and model.lockstep is not None:
            # A placeholder without weight: this process too must take passes, which gather the layers.
            first = () if model.forced_first is None else (model.forced_first,)
            return collate([EncodedExample((model.end or 0,), (*first, model.end or 0))]).to(self.args.device)
        _require_known(model.model, batch)
        if model.language is not None and len(batch):
            require_members(model.language, batch.targets_BT)
        if self.args.objective.searches and model.end is not None and len(batch):
            _require_one_end(batch, model.end)
        return batch

    def weight_of(self, inputs: Mapping[str, Any]) -> float:
        """Return 0 if the batch is the placeholder of :meth:`batch_of`, else 1."""
        return 1.0 if self.adapted().lockstep is None else float(self.num_gold(inputs) > 0)

    def num_gold(self, inputs: Mapping[str, Any]) -> Tensor:
        """Count the labels that are targets; training raises an error for incomplete inputs."""
        if not {*NEEDED} <= {*inputs}:
            return torch.tensor(0)
        return (target_labels(inputs, causal=not self._is_encoder_decoder) >= 0).sum()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the objective weighted by the batch's share of gold tokens in training, else the model's own loss."""
        if return_outputs or not model.training:
            # Skips SequenceTrainer, for the Hugging Face Trainer.
            return super(SequenceTrainer, self).compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.is_fsdp_enabled:
            model = self._with_objective.train()
        adapted = self.adapted()
        language = adapted.language
        if self.weight_of(inputs) == 0:
            adapted.language = None  # which may not contain the placeholder
        try:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            adapted.language = language

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None, **generation: Any
    ) -> Any:
        """Predict like ``Seq2SeqTrainer``; with ``predict_with_generate``, inside the language.

        Causal models continue the prompts, the tokens before those with a label, which are padded on the left.
        """
        adapted, generates = self.adapted(), self.args.predict_with_generate and not prediction_loss_only
        language, generation = adapted.language, generation or dict(getattr(self, "_gen_kwargs", {}))
        if adapted.lockstep is not None:
            generation["synced_gpus"] = True
        if not self._is_encoder_decoder and inputs.get("labels") is not None:
            inputs = self._prepare_inputs(inputs)
            # Without the label of the first token, which is no target, but would be counted for the mean.
            counted = {**inputs, "labels": target_labels(inputs, causal=True)}
            only_loss = prediction_loss_only or generates
            loss, outputs, _ = super().prediction_step(model, counted, only_loss, ignore_keys)
            if generates:
                # A row has its target too, which must not be part of the prompt.
                prompts = prompts_of(inputs, self.model.generation_config.pad_token_id or 0)
                _, outputs, _ = self.prediction_step(model, prompts, False, ignore_keys, **generation)
            return loss, outputs, None if prediction_loss_only else inputs["labels"]
        if language is not None and generates:
            prompt_length = 1 if self._is_encoder_decoder else inputs["input_ids"].shape[1]
            longest = self._longest(generation, prompt_length)
            generation["logits_processor"] = [
                *(generation.get("logits_processor") or []),
                InsideLanguage(language, longest=longest),
            ]
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **generation)

    def _longest(self, generation: Mapping[str, Any], prompt_length: int) -> int:
        """Return the number of tokens at which ``generate`` stops."""
        config = generation.get("generation_config") or self.model.generation_config

        def setting(name: str) -> int | None:
            return getattr(config, name, None) if generation.get(name) is None else generation[name]

        new, longest = setting("max_new_tokens"), setting("max_length")
        if new is None and longest is not None:
            return longest
        limit = configured_limit(self.model.config) if new is None else None
        longest = prompt_length + (20 if new is None else new)  # as ``generate`` has it by default
        return longest if limit is None else min(longest, limit.positions)

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        # No public hook lets the module that a step calls (``model_wrapped``) differ from the one that is saved,
        # evaluated and generates (``model``).
        if not training:
            if self.is_fsdp_enabled and not is_sharded(self.model):
                self._shard_for_evaluation()
            return super()._wrap_model(model, training, dataloader)
        self.schedules = {
            name: schedule.over(self.state.max_steps) for name, schedule in self.args.objective.schedules.items()
        }
        with_objective = WithObjective(self.adapted(), self._objective())
        if self.is_fsdp_enabled:
            # Only the model itself can be sharded, prepared with its optimizer, and saved.
            with_objective.forward = gathered(self.model, with_objective.forward)  # type: ignore[method-assign]
            self._with_objective = with_objective
            return super()._wrap_model(model, training, dataloader)
        self.accelerator.prepare_model(self.model, evaluation_mode=True)  # evaluates in the precision of training
        return self.accelerator.prepare(with_objective)

    def _shard_for_evaluation(self) -> None:
        """Shard a model that is evaluated before it is trained; accelerate prepares it only with its optimizer."""
        self.create_optimizer()
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        self.model.generate = gathered(self.model, self.model.generate)

    def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
        """Create the optimizer like ``Seq2SeqTrainer``; with FSDP, of the model's shards."""
        if self.is_fsdp_enabled:
            adapted, plugin = self.adapted(), self.accelerator.state.fsdp_plugin  # adapted with the whole model
            layers = () if is_sharded(self.model) else classes_of_layers(self.model, plugin)
            shard(self.model, self.accelerator, layers)
            if layers:
                adapted.lockstep = Lockstep()
        return super().create_optimizer(*arguments, **named)

    def _save(self, *arguments: Any, **named: Any) -> None:
        # The arguments are pickled here, and schedules may be functions that cannot be; there is no public hook.
        args, self.args = self.args, self.args.picklable()
        try:
            super()._save(*arguments, **named)
        finally:
            self.args = args

    @property
    def _is_encoder_decoder(self) -> bool:
        return bool(self.adapted().model.config.is_encoder_decoder)

    def _objective(self) -> Objective:
        model = self.adapted()
        context = Context(
            end=model.end,
            log_noise_V=lambda: self._noise(model),
            teacher=lambda: self._adapt(self._teacher.to(self.args.device)).requires_grad_(False).eval(),
        )
        objective = self.args.minimised.build(context)
        lockstep = model.lockstep
        if lockstep is None:
            return objective
        return finishing_together(objective, lambda: lockstep.finish(model.idle_pass))

    def _noise(self, model: HuggingFaceStepModel) -> Tensor:
        """Compute log q of the tokens from their counts as gold in the training data."""
        data: Any = self.train_dataset
        if not hasattr(data, "__len__"):
            problem = "noise-contrastive estimation counts the labels beforehand, and the data set has no length"
            raise InputError(problem, hint="give one that can be read twice")
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")

        def gold(row: Mapping[str, Any]) -> Tensor:
            if self._is_encoder_decoder and "labels" in row:
                return torch.as_tensor(row["labels"], dtype=torch.long).flatten()
            # In causal models, the first token of a row is no target, and only the collator knows which one that is.
            inputs = collate([row])
            require_needed(inputs)
            return target_labels(inputs, causal=not self._is_encoder_decoder).flatten()

        def known(labels: Tensor) -> Tensor:
            _require_size("labels", labels, size)
            return labels

        size = len(model.model.get_output_embeddings().weight)
        return smoothed_noise((known(gold(data[place])) for place in range(len(data))), size)


def _require_known(model: Any, batch: Batch) -> None:
    """Raise an InputError for ids that the model does not have; torch's error names neither the input nor the id."""
    parts = {"input_ids": model.get_input_embeddings(), "labels": model.get_output_embeddings()}
    for (name, part), ids in zip(parts.items(), (batch.sources_BS, batch.targets_BT), strict=True):
        _require_size(name, ids, part.weight.shape[0])


def _require_size(name: str, ids: Tensor, size: int) -> None:
    if ids.numel() and int(ids.max()) >= size:
        problem = f"{name} contain the token {int(ids.max())}, and the model has {size}"
        raise InputError(problem, hint="use the model's own tokenizer, or call model.resize_token_embeddings")


def _require_one_end(batch: Batch, end: int) -> None:
    """Raise an InputError for targets that do not end with the end token, or have it before."""
    last_B = batch.target_lengths_B - 1
    ends_BT = batch.targets_BT == end
    ended_B = ends_BT.gather(1, last_B[:, None])[:, 0]
    early_B = (ends_BT & (torch.arange(ends_BT.shape[1], device=last_B.device) < last_B[:, None])).any(1)
    if bool((ended_B & ~early_B).all()):
        return
    if bool(ended_B.all()):
        problem = f"a target goes on after the end token {end} (eos_token_id), where every search ends"
        raise InputError(problem, hint="end each target once; split those that are several texts")
    raise InputError(
        f"a target does not end with the end token {end} (eos_token_id), and a search that ends there is compared "
        "with it",
        hint="end all labels with it, or set model.generation_config.eos_token_id and the tokenizer's eos_token to "
        "None",
    )


def _is_empty(data: Any) -> bool:
    """Whether a data set is known to be empty; one without a length may not be."""
    return hasattr(data, "__len__") and len(data) == 0


def _from_pretrained(name: str) -> Any:
    """Load a model with its head, from safetensors, without remote code."""
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return kind.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        problem = f"cannot be loaded as a model ({first_line(error)})"
        raise InputError(problem, path=name, hint="give a model with a language model head, in safetensors") from error
