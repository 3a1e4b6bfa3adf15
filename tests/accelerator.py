"""The device that tests compute on beside the CPU: a GPU where there is one, else one that is pretended.

On a GPU, waits of the host are those that CUDA reports, and random numbers are drawn on the CPU, so that results can be
compared with the CPU's.
"""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from seqwise import devices

__all__ = ["NAME", "Waits", "device"]

Waits = collections.Counter[str]

_aten = torch.ops.aten
_DRAWS = {
    _aten.rand, _aten.rand_like, _aten.randn, _aten.randperm, _aten.randint, _aten.multinomial, _aten.bernoulli,
    _aten.bernoulli_, _aten.exponential_, _aten.uniform_, _aten.normal_, _aten.native_dropout,
}  # fmt: skip


class _DrawnOnCPU(TorchDispatchMode):
    """Inside, operators that draw random numbers for the GPU do so on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        lies = [value.device for value in tree_iter((args, kwargs)) if isinstance(value, Tensor) and value.is_cuda]
        if target is not None and torch.device(target).type == "cuda":
            lies.append(torch.device(target))
        if func.overloadpacket not in _DRAWS or not lies:
            return func(*args, **kwargs)
        if target is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        found = func(*tree_map_only(Tensor, Tensor.cpu, args), **tree_map_only(Tensor, Tensor.cpu, kwargs))
        if func.__name__.split(".")[0].endswith("_"):
            return args[0].copy_(found)
        return tree_map_only(Tensor, lambda value: value.to(lies[0]), found)


@contextlib.contextmanager
def _gpu(*, float64: bool = True) -> Iterator[Waits]:
    """Yields how often the host waited, by place."""
    waits: Waits = collections.Counter()

    def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            waits[f"{filename}:{lineno}"] += 1

    if not float64:
        devices.WITHOUT_FLOAT64.add("cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(), _DrawnOnCPU():
            warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
            warnings.showwarning = show
            yield waits
    finally:
        torch.cuda.set_sync_debug_mode("default")
        devices.WITHOUT_FLOAT64.discard("cuda")


if torch.cuda.is_available():
    NAME, device = "cuda", _gpu
else:
    from pretended import NAME, device
