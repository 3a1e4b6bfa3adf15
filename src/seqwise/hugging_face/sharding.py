"""Models sharded over processes by FSDP version 2, as one unit that is gathered around a whole objective.

A search calls the embedding, the decoder and the head one by one, and FSDP gathers the weights of a unit where the unit
itself is called. So the unit is the model, and what is called is a function of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from seqwise.errors import InputError

ONE_UNIT = "fsdp_config={'version': 2, 'auto_wrap_policy': 'NO_WRAP'}"


def not_shardable(plugin: Mapping[str, Any] | None) -> InputError | None:
    """Return the error for settings of accelerate's FSDP plugin, None with XLA, other than those of one unit."""
    if plugin is None:
        return InputError("fsdp_config: xla is not supported", hint=f"give {ONE_UNIT}")
    if plugin["fsdp_version"] != 2:
        problem = (
            f"fsdp: version {plugin['fsdp_version']} gathers weights at a call of the model; a search calls its parts"
        )
        return InputError(problem, hint=f"give {ONE_UNIT}")
    if plugin["auto_wrap_policy"] != "NO_WRAP":
        problem = "units of layers gather at every step, so processes whose searches differ in length would block"
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


def is_sharded(model: Any) -> bool:
    """Whether a model is sharded."""
    return isinstance(model, FSDPModule)


def shard(model: Any, accelerator: Any) -> None:
    """Shard a model in place, as one unit, in the precision of the accelerator.

    ``accelerator.prepare`` would shard its embedding and head apart, and leaves a model that is sharded as it is.
    """
    if is_sharded(model):
        model.reshard()  # an evaluation leaves it gathered, and an optimiser is given the shards
        return
    policy = accelerator.state.fsdp_plugin.mixed_precision_policy
    if policy is not None:
        policy = replace(policy, output_dtype=None)  # a loss stays as precise as it was computed
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)
    fully_shard(model, mp_policy=policy or MixedPrecisionPolicy())


def gathered(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the parts of a sharded model, with all weights gathered from its call to its gradients."""
    name = "_seqwise_function_of_parts"
    setattr(model, name, function)
    register_fsdp_forward_method(model, name)
    whole: Callable[..., Any] = vars(model).pop(name)
    return whole
