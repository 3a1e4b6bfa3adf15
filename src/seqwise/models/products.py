"""Products ``W h + b`` without gradients by oneDNN, and those of a search with a packed W.

Shapes: D size of a row, V outputs (vocabulary).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# oneDNN is faster from LARGE weights on, with FEW to MANY rows. Matrices of more than LARGEST weights are not copied.
LARGE, LARGEST = 2**19, 2**22
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
        if (
            _LINEAR is None
            or not is_large
            or not FEW <= num_rows <= MANY
            or not _is_plain(rows, self._weight_VD, self._bias_V)
        ):
            return fast_linear(rows, self._weight_VD, self._bias_V)
        self._num_products += 1
        if self._num_products == PATIENCE + 1 and _PACK is not None and self._weight_VD.numel() <= LARGEST:
            self._packed = _PACK(self._weight_VD)
        return _LINEAR(rows, self._packed, self._bias_V, "none", [], "")


@cache
def blas_is_slow() -> bool:
    """Whether torch's BLAS does not use the processor's widest vectors: MKL on AMD processors with AVX-512.

    There, oneDNN is faster.
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
    if _LINEAR is None or not worthwhile or not _is_plain(rows, weight_VD, bias_V) or not blas_is_slow():
        return F.linear(rows, weight_VD, bias_V)
    return _LINEAR(rows, weight_VD, bias_V, "none", [], "")


def _is_plain(rows: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> bool:
    """Whether oneDNN computes the same: 32 bits, a CPU, and tensors that no library has wrapped or traces."""
    if rows.device.type != "cpu" or torch.is_autocast_enabled("cpu") or rows.shape[-1] != weight_VD.shape[-1]:
        return False
    if not rows.dtype == weight_VD.dtype == torch.float32 or type(weight_VD) not in (Tensor, nn.Parameter):
        return False
    # It ignores the stride of a bias.
    if bias_V is not None and not (
        bias_V.dtype == rows.dtype and bias_V.shape == weight_VD.shape[:1] and bias_V.is_contiguous()
    ):
        return False
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is None


class Linear(nn.Linear):
    """Linear layer that is computed by :func:`fast_linear`.

    Example:
        >>> Linear(2, 3)(torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """

    def forward(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b``, (..., D) to (..., V)."""
        return fast_linear(rows, self.weight, self.bias)
