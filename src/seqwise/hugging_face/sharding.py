"""Models sharded over processes by FSDP version 2, as one unit or in units of layers.

A search calls the embedding, the decoder and the head one by one, and FSDP gathers the weights of a unit where the unit
itself is called. So the model is a unit, and what is called is a function of its parts. Layers may be units of their
own: each pass of the decoder gathers them in turn, in all processes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.objectives.objective import Objective
from seqwise.objectives.options import ObjectiveConfig

ONE_UNIT = "fsdp_config={'version': 2, 'auto_wrap_policy': 'NO_WRAP'}"
LAYERS = "TRANSFORMER_BASED_WRAP"


def not_shardable(plugin: Mapping[str, Any] | None, objective: ObjectiveConfig) -> InputError | None:
    """Return the error for unsupported settings of accelerate's FSDP plugin (None with XLA), or None."""
    if plugin is None:
        return InputError("fsdp_config: xla is not supported", hint=f"give {ONE_UNIT}")
    if plugin["fsdp_version"] != 2:
        problem = (
            f"fsdp: version {plugin['fsdp_version']} gathers weights at a call of the model; a search calls its parts"
        )
        return InputError(problem, hint=f"give {ONE_UNIT}")
    policy = plugin["auto_wrap_policy"]
    if policy not in ("NO_WRAP", LAYERS):
        problem = f"auto_wrap_policy {policy} makes units that are neither the model nor its layers"
        return InputError(f"fsdp_config: {problem}", hint=f"shard the model as one unit: {ONE_UNIT}")
    if policy == LAYERS and objective.unrolls:
        # Keys and values leave a layer beside its output, where FSDP does not see that they need gradients.
        problem = f"gradients of {objective.name} flow through single steps, which units of layers cannot follow"
        return InputError(f"fsdp: {problem}", hint=f"shard the model as one unit: {ONE_UNIT}")
    if plugin["state_dict_type"] != "FULL_STATE_DICT":
        problem = f"state_dict_type {plugin['state_dict_type']} saves no model that loads without FSDP"
        return InputError(f"fsdp_config: {problem}", hint="leave it out")
    for name in ("cpu_offload", "cpu_ram_efficient_loading", "activation_checkpointing"):
        if plugin.get(name):
            hint = "leave it out"
            if name == "activation_checkpointing":
                hint += "; the argument activation_checkpointing of SearchAwareConfig is supported"
            return InputError(f"fsdp_config: {name} is not supported", hint=hint)
    return None


def classes_of_layers(model: Any, plugin: Any) -> set[str]:
    """Return the class names of the layers that are units; none if the model is one unit.

    Raises:
        InputError: the model has no such layers, or skips some at random.
    """
    if plugin.auto_wrap_policy is None:
        return set()
    names = set(plugin.transformer_cls_names_to_wrap or getattr(model, "_no_split_modules", None) or ())
    known = {type(module).__name__ for module in model.modules()}
    if not names or names - known:
        what = f"has no {', '.join(sorted(names - known))}" if names else "does not name its layers"
        problem = f"fsdp_config: a {type(model).__name__} {what}"
        hint = "name the classes of its layers: fsdp_config={..., 'transformer_layer_cls_to_wrap': [...]}"
        raise InputError(problem, hint=hint)
    if any(getattr(module, "layerdrop", 0.0) > 0 for module in model.modules()):
        problem = "processes would skip different layers (layerdrop), and wait for each other"
        raise InputError(f"fsdp: {problem}", hint="set the model's layerdrop to 0, or shard it as one unit")
    plugin.set_auto_wrap_policy(model)  # as accelerate does, but before sharding changes the classes
    return names


def is_sharded(model: Any) -> bool:
    """Whether a model is sharded."""
    return isinstance(model, FSDPModule)


def shard(model: Any, accelerator: Any, layers: Collection[str] = ()) -> None:
    """Shard a model in place, as one unit beside the layers of some classes, in the precision of the accelerator.

    ``accelerator.prepare`` would shard its embedding and head apart, and leaves a model that is sharded as it is.
    """
    if is_sharded(model):
        model.reshard()  # an evaluation leaves it gathered, and an optimiser needs the shards
        return
    policy = accelerator.state.fsdp_plugin.mixed_precision_policy
    if policy is not None:
        policy = replace(policy, output_dtype=None)  # a loss stays as precise as it was computed
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)
    for module in [part for part in model.modules() if type(part).__name__ in layers] + [model]:
        fully_shard(module, mp_policy=policy or MixedPrecisionPolicy())


def gathered(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the parts of a sharded model, with all weights gathered from its call to its gradients."""
    name = "_seqwise_function_of_parts"
    setattr(model, name, function)
    register_fsdp_forward_method(model, name)
    wrapped: Callable[..., Any] = vars(model).pop(name)
    return wrapped


class Lockstep:
    """Passes of a decoder that processes take together, because each pass gathers its layers in all of them.

    Searches differ in length. A process announces each pass; one that has finished its objective takes idle passes
    until the others have finished as well. So every process gathers and frees the same layers in the same order.
    """

    def __init__(self) -> None:
        # A separate group, on the host, so that its messages are not mistaken for those of the weights.
        self._group = distributed.new_group(backend="gloo")

    def announce(self) -> None:
        """Wait until every process takes a pass, of its own or an idle one."""
        self._count(1)

    def finish(self, idle_pass: Callable[[], object]) -> None:
        """Take idle passes until no process takes one of its own."""
        while self._count(0):
            idle_pass()

    def _count(self, own: int) -> int:
        total = torch.tensor(own)
        distributed.all_reduce(total, group=self._group)
        return int(total)


def finishing_together(objective: Objective, finish: Callable[[], None]) -> Objective:
    """Return an objective that calls a function after its last pass."""

    def call(model: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        loss = objective(model, batch, values)
        finish()
        return loss

    return call
