"""Products ``W h + b`` without gradients by oneDNN: those of a search with a packed W, and those of linear layers.

Shapes: D size of a row, V outputs (vocabulary).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise import tree

# oneDNN is faster from LARGE weights on, with FEW to MANY rows. Matrices of more than LARGEST weights are not copied.
LARGE, LARGEST, MOST_PACKED = 2**19, 2**22, 2**26
FEW, MANY = 3, 256
# Number of products before the weights are copied in packed form: at least as many are then expected to follow.
PATIENCE = 2
# On a processor whose widest vectors torch's BLAS does not use, oneDNN is faster from this many multiplications on.
WORTHWHILE = 2**20


def _of_onednn(name: str) -> Callable[..., Tensor] | None:
    return getattr(torch.ops.mkldnn, name, None) if torch.backends.mkldnn.is_available() else None


_LINEAR, _PACK = _of_onednn("_linear_pointwise"), _of_onednn("_reorder_linear_weight")


class Products:
    """Products of a constant matrix with few rows at a time.

    On CPUs, torch computes float32 products with its BLAS, which packs the matrix anew for each; with a few dozen rows
    and thousands of columns, packing takes up to as long as the product. The two oneDNN operations that compiled models
    call avoid this; ``torch.nn`` does not expose them. Without them, the product is the usual one.
    """

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None) -> None:
        self._weight_VD, self._bias_V, self._num_products = weight_VD, bias_V, 0
        self._packed = weight_VD

    def __call__(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b``, (..., D) to (..., V)."""
        size, num_rows = self._weight_VD.numel(), rows[..., 0].numel()
        is_large = size >= LARGE or (size * num_rows >= WORTHWHILE and blas_is_slow())
        if _LINEAR is None or not is_large or not FEW <= num_rows <= MANY or not _is_plain(rows, self._weight_VD):
            return fast_linear(rows, self._weight_VD, self._bias_V)
        self._num_products += 1
        if self._num_products == PATIENCE + 1 and _PACK is not None and self._weight_VD.numel() <= LARGEST:
            self._packed = _PACK(self._weight_VD)
        return _LINEAR(rows, self._packed, self._bias_V, "none", [], "")


@cache
def blas_is_slow() -> bool:
    """Whether torch's BLAS does not use the processor's widest vectors: MKL on AMD processors with AVX-512.

    There, oneDNN takes half of the time or less.
    """
    if _LINEAR is None or not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:  # the platform module does not read it on Linux
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        described = platform.processor()
    return "AuthenticAMD" in described


def fast_linear(rows: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Compute ``F.linear``, on CPUs without gradients by oneDNN where that is faster."""
    worthwhile = rows.numel() * len(weight_VD) >= WORTHWHILE and rows.dim() > 1 and not torch.is_grad_enabled()
    if _LINEAR is None or not worthwhile or not _is_plain(rows, weight_VD) or not blas_is_slow():
        return F.linear(rows, weight_VD, bias_V)
    return _LINEAR(rows, weight_VD, bias_V, "none", [], "")


def _is_plain(rows: Tensor, weight_VD: Tensor) -> bool:
    """Whether a product is of 32 bits on a CPU, with weights that no library has wrapped."""
    on_cpu = rows.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and rows.dtype == weight_VD.dtype == torch.float32 and type(weight_VD) in (Tensor, nn.Parameter)


class Linear(nn.Linear):
    """Linear layer that is computed by :func:`fast_linear`.

    Example:
        >>> Linear(2, 3)(torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """

    def forward(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b``, (..., D) to (..., V)."""
        return fast_linear(rows, self.weight, self.bias)


class PackedLayers:
    """Packed weights of the layers that a search calls at every step, of at most ``MOST_PACKED`` weights.

    For :mod:`seqwise.tree` it is an empty nest, which every map replaces by a new one.
    """

    def __init__(self) -> None:
        self._products: dict[nn.Module, Products] = {}
        self._num_weights = 0

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
_Layers = list[tuple[MutableMapping[str, Any], Callable[[Tensor], Tensor]]]
_LAYERS: WeakKeyDictionary[nn.Module, _Layers] = WeakKeyDictionary()


@contextmanager
def fast_layers(module: nn.Module, packed: PackedLayers | None = None) -> Iterator[None]:
    """Compute the linear layers of a module by :func:`fast_linear` in this context, without gradients.

    Layers whose ``forward`` another library has replaced stay as they are, and so do compiled modules. Hooks are
    called as ever. Other threads may use the module meanwhile.

    Args:
        module: the module that is called.
        packed: keeps packed weights for the next calls, which must have the same weights.
    """
    is_compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    if torch.is_grad_enabled() or is_compiled or not blas_is_slow():
        yield
        return
    if module not in _LAYERS:
        forwards = ((layer, _FORWARDS.get(_name_of(layer))) for layer in module.modules())
        _LAYERS[module] = [(vars(layer), partial(forward, layer)) for layer, forward in forwards if forward is not None]
    replaced = [(own, forward) for own, forward in _LAYERS[module] if "forward" not in own]
    for own, forward in replaced:
        own["forward"] = forward
    before = _PACKED.set(packed or _PACKED.get())
    try:
        yield
    finally:
        _PACKED.reset(before)
        for own, _ in replaced:
            own.pop("forward", None)


def _name_of(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__name__}"


def _linear(layer: Any, rows: Tensor) -> Tensor:
    return _product(layer, layer.weight, rows)


def _convolution(layer: Any, rows: Tensor) -> Tensor:
    return _product(layer, layer.weight.T, rows)


def _product(layer: Any, weight_VD: Tensor, rows: Tensor) -> Tensor:
    packed = _PACKED.get()
    if packed is None or torch.is_grad_enabled():
        return fast_linear(rows, weight_VD, layer.bias)
    return packed.of(layer, weight_VD)(rows)


# The second is a linear layer with the transposed matrix: that of GPT-2.
_FORWARDS = {"torch.nn.modules.linear.Linear": _linear, "transformers.pytorch_utils.Conv1D": _convolution}
