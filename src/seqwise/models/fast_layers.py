"""Linear layers of other libraries' models by oneDNN: their ``forward`` is replaced during a call.

Shapes: D size of a row, V outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqwise import tree
from seqwise.models.products import Products, blas_is_slow, fast_linear

MOST_PACKED = 2**26
"""Largest number of weights that a search packs."""

Replaced = list[tuple[MutableMapping[str, Any], Callable[[Tensor], Tensor]]]
"""Attributes of layers, and the ``forward`` of each."""


class PackedLayers:
    """Layers that a search calls at every step, with packed weights: at most ``MOST_PACKED`` of them.

    For :mod:`seqwise.tree` it is an empty nest, which every map replaces by a new one.
    """

    def __init__(self) -> None:
        self._layers: dict[nn.Module, Replaced] = {}
        self._products: dict[nn.Module, Products] = {}
        self._num_weights = 0

    def __reduce__(self) -> tuple[type[PackedLayers], tuple[()]]:
        return PackedLayers, ()

    def layers_of(self, module: nn.Module) -> Replaced:
        """Return the linear layers of a module."""
        if module not in self._layers:
            self._layers[module] = _layers_of(module)
        return self._layers[module]

    def of(self, layer: Any, weight_VD: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product with the weights of a layer."""
        if layer not in self._products:
            if self._num_weights + weight_VD.numel() > MOST_PACKED:
                return partial(fast_linear, weight_VD=weight_VD, bias_V=layer.bias)
            self._num_weights += weight_VD.numel()
            self._products[layer] = Products(weight_VD, layer.bias)
        return self._products[layer]


tree.register_empty(PackedLayers)

_PACKED: ContextVar[PackedLayers | None] = ContextVar("packed layers of the current search", default=None)


@contextmanager
def fast_layers(module: nn.Module, packed: PackedLayers | None = None) -> Iterator[None]:
    """Compute the linear layers of a module by :func:`~seqwise.models.products.fast_linear` in this context.

    Only without gradients, on a CPU, in 32 bits, where torch's BLAS is slow. Layers whose ``forward`` another library
    has replaced stay as they are, and so do modules with a compiled part. Hooks are called as ever. Other threads may
    call the module meanwhile; a copy that they make of it keeps the replaced functions, which compute the same.

    Args:
        module: the module that is called.
        packed: keeps the layers and their packed weights for the next calls, which must have the same weights.
    """
    if torch.is_grad_enabled() or _PACKED.get() is not None or not blas_is_slow() or not _is_float_on_cpu(module):
        yield
        return
    layers = _layers_of(module) if packed is None else packed.layers_of(module)
    replaced = [(own, forward) for own, forward in layers if "forward" not in own]
    for own, forward in replaced:
        own["forward"] = forward
    before = _PACKED.set(packed)
    try:
        yield
    finally:
        _PACKED.reset(before)
        for own, forward in replaced:
            if own.get("forward") is forward:
                del own["forward"]


def _is_float_on_cpu(module: nn.Module) -> bool:
    weight = next(module.parameters(), None)
    return weight is not None and weight.device.type == "cpu" and weight.dtype == torch.float32


def _layers_of(module: nn.Module) -> Replaced:
    found: Replaced = []
    if "forward" in vars(module):
        return found
    for layer in module.modules():
        if hasattr(layer, "_orig_mod") or getattr(layer, "_compiled_call_impl", None) is not None:
            return []
        forward = _FORWARDS.get(f"{type(layer).__module__}.{type(layer).__name__}")
        if forward is not None:
            found.append((vars(layer), partial(forward, layer)))
    return found


def _linear(layer: Any, rows: Tensor) -> Tensor:
    return _product(layer, layer.weight, rows)


def _convolution(layer: Any, rows: Tensor) -> Tensor:
    return _product(layer, layer.weight.T, rows)


def _product(layer: Any, weight_VD: Tensor, rows: Tensor) -> Tensor:
    packed = None if torch.compiler.is_compiling() else _PACKED.get()
    if packed is None or torch.is_grad_enabled():
        return fast_linear(rows, weight_VD, layer.bias)
    return packed.of(layer, weight_VD)(rows)


# The second is a linear layer with the transposed matrix: that of GPT-2.
_FORWARDS = {"torch.nn.modules.linear.Linear": _linear, "transformers.pytorch_utils.Conv1D": _convolution}
