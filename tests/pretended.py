"""A device that is not there: tensors that claim to lie elsewhere, over CPU memory.

As on a GPU, tensors of two devices do not mix, and some calls let the host wait until the device has done all that was
asked of it. The first raises an error here, the second is counted::

    with device(float64=False) as waits:
        model.to(NAME)
        objective(model, batch.to(NAME), values).backward()
    assert sum(waits.values()) <= 2, waits

Numbers are those of the CPU, so results can be compared exactly. What it cannot show: kernels, memory and speed of a
real device.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_iter, tree_map_only

from seqwise import devices

NAME = "pretended"
PACKAGE = str(Path(devices.__file__).parent) + "/"

_aten = torch.ops.aten
_HOST_MAY_GIVE = {  # indices, lengths of packed sequences, and a state of generators, as on a GPU
    _aten.index.Tensor: 1,
    _aten.index_put.default: 1,
    _aten.index_put_.default: 1,
    _aten._index_put_impl_.default: 1,
    _aten._pack_padded_sequence.default: 1,
    _aten._pad_packed_sequence.default: 1,
    _aten.lstm.data: 1,
}
_NO_SCALAR = {_aten.cat.default, _aten.stack.default, _aten.gather.default, _aten.masked_scatter.default}
_COPIES = {_aten.copy_.default, _aten._copy_from.default, _aten._copy_from_and_resize.default}
_WAITS = {  # the size of the result, or the result itself, is a matter of the values
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.bincount.default,
    _aten.equal.default,
    _aten.repeat_interleave.Tensor,
}

Waits = collections.Counter[str]
_waits: Waits = collections.Counter()
_has_float64 = True
_is_there = False


class Refused(RuntimeError):
    """What a real device would have refused."""


class _Tensor(Tensor):
    """Values in ``inner``, on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Tensor:
        if inner.dtype in (torch.float64, torch.complex128) and not _has_float64:
            raise Refused(f"the device has no 64-bit floats: {_place()}")
        made: _Tensor = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    # With these, ``module.to`` replaces parameters as a whole.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, *_: Any) -> _Tensor:
        return _Tensor(inner["inner"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{NAME}({self.inner!r})"

    def __deepcopy__(self, memo: Any) -> Any:
        copied = _Tensor(self.detach().inner.clone()).requires_grad_(self.requires_grad)
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    def tolist(self) -> Any:
        _wait("tolist")
        return self.detach().inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise Refused(f"numpy() of a tensor on a device: {_place()}")


@contextlib.contextmanager
def device(*, float64: bool = True) -> Iterator[Waits]:
    """Inside, torch has the device; yields how often the host waited for it, by place of the package and call."""
    global _has_float64, _is_there
    _waits.clear()
    _has_float64, _is_there = float64, True
    if not float64:
        devices.WITHOUT_FLOAT64.add(NAME)
    try:
        yield _waits
    finally:
        devices.WITHOUT_FLOAT64.discard(NAME)
        _has_float64, _is_there = True, False


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    given = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    own = [value for value in given if isinstance(value, _Tensor)]
    target = kwargs.get("device")
    goes_to_host = target is not None and torch.device(target).type == "cpu"
    if func in _COPIES:
        return _copied(func, args, kwargs)
    if own:
        _refuse_host(func, args, given)
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise Refused(f"{func} on the device with a generator of the CPU: {_place()}")
    if own and (func in _WAITS or goes_to_host or _mask_among_indices(func, args)):
        _wait(func.__name__.split(".")[0])
    if func is _aten._to_copy.default and not own and not kwargs.get("non_blocking"):
        _wait("copy to the device")
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known: dict[int, _Tensor] = {}

    def bare(value: _Tensor) -> Tensor:
        known[id(value.inner)] = value
        return value.inner

    here = _OWN_KERNELS.get(func, func)
    results = here(*tree_map_only(_Tensor, bare, args), **tree_map_only(_Tensor, bare, kwargs))
    if goes_to_host:
        return results
    if func is _aten._pack_padded_sequence.default:
        return _Tensor(results[0]), results[1]  # sizes of its batches stay on the CPU
    return tree_map_only(Tensor, lambda value: known[id(value)] if id(value) in known else _Tensor(value), results)


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    """Of which torch has kernels for devices only."""
    gates = sum([bias for bias in biases if bias is not None], inputs + hidden)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell + i * g
    return o * cell.tanh(), cell, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    of_hidden: Tensor | None, of_cell: Tensor | None, before: Tensor, cell: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    of_hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    of_cell = torch.zeros_like(cell) if of_cell is None else of_cell
    of_cell = of_cell + of_hidden * o * (1 - cell.tanh() ** 2)
    of_o = of_hidden * cell.tanh() * o * (1 - o)
    of_gates = torch.cat(
        [of_cell * g * i * (1 - i), of_cell * before * f * (1 - f), of_cell * i * (1 - g * g), of_o], 1
    )
    return of_gates, of_cell * f, of_gates.sum(0)


_OWN_KERNELS = {
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
}


def _copied(func: Any, args: Any, kwargs: Any) -> Any:
    """``destination.copy_(source)``, or the same with the two exchanged."""
    source, destination = (args[1], args[0]) if func is _aten.copy_.default else (args[0], args[1])
    to_host = not isinstance(destination, _Tensor)
    from_host = not isinstance(source, _Tensor)
    waits_not = (args[2] if len(args) > 2 else kwargs.get("non_blocking", False)) and from_host
    if (to_host or from_host) and not waits_not and source.numel():
        _wait("copy to the host" if to_host else "copy to the device")
    bare = [value.inner if isinstance(value, _Tensor) else value for value in (destination, source)]
    bare[0].copy_(bare[1])
    return destination


def _refuse_host(func: Any, args: Any, given: list[Tensor]) -> None:
    """Raise where a tensor of the CPU stands beside one of the device; numbers without a dimension may."""
    strangers = [value for value in given if not isinstance(value, _Tensor)]
    if func in _HOST_MAY_GIVE:
        data = args[0], args[2] if func is not _aten.index.Tensor and len(args) > 2 else None
        strangers = [value for value in data if isinstance(value, Tensor) and not isinstance(value, _Tensor)]
        if func not in (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default):
            strangers = []
        for index in args[1] if isinstance(args[1], list | tuple) and func is not _aten.lstm.data else ():
            if isinstance(index, Tensor) and not isinstance(index, _Tensor):
                _wait("index on the host")
    refused = [value for value in strangers if value.dim() > 0 or func in _NO_SCALAR]
    if refused:
        raise Refused(f"{func} of the device with CPU tensors {[tuple(x.shape) for x in refused]}: {_place()}")


def _mask_among_indices(func: Any, args: Any) -> bool:
    """Whether places have to be counted first: an index of bools, unless one number is written there."""
    if func not in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default):
        return False
    masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
    return bool(masks) and not (func is not _aten.index.Tensor and args[2].numel() == 1)


def _wait(what: str) -> None:
    _waits[f"{_place()} {what}"] += 1


def _place() -> str:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
    return "outside"


class _Module:
    """``torch.pretended``: what torch asks of a device's module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return _is_there

    def is_bf16_supported(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(_is_there)

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        torch.set_rng_state(state)

    def device(self, index: Any) -> Any:
        return contextlib.nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _made(func: Any) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Tensor:
        return _Tensor(func(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": None}))

    return make


def _copy_of_scalars(*args: Any, **kwargs: Any) -> Tensor:
    return _copied(_aten.copy_.default, args, kwargs)


# What torch calls below the tensor's own dispatch; everything else that makes a tensor is made of these.
backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _made(_aten.empty.memory_format), "PrivateUse1")
_library.impl("empty_strided", _made(_aten.empty_strided.default), "PrivateUse1")
_library.impl("copy_", _copy_of_scalars, "PrivateUse1")
