"""Product ``W h + b`` at every step of a search without gradients, by oneDNN with a packed W.

Shapes: D size of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

# oneDNN is faster from LARGE weights on, with FEW to MANY rows. Matrices of more than LARGEST weights are not copied.
LARGE, LARGEST = 2**19, 2**22
FEW, MANY = 3, 256
# Number of products before the weights are copied in packed form: at least as many are then expected to follow.
PATIENCE = 2


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
        self._is_large_float = weight_VD.dtype == torch.float32 and weight_VD.numel() >= LARGE

    def __call__(self, rows: Tensor) -> Tensor:
        """Compute ``W h + b``, (..., D) to (..., V)."""
        on_cpu = rows.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        suited = on_cpu and self._is_large_float and rows.dtype == torch.float32
        if _LINEAR is None or not suited or not FEW <= rows[..., 0].numel() <= MANY:
            return F.linear(rows, self._weight_VD, self._bias_V)
        self._num_products += 1
        if self._num_products == PATIENCE + 1 and _PACK is not None and self._weight_VD.numel() <= LARGEST:
            self._packed = _PACK(self._weight_VD)
        return _LINEAR(rows, self._packed, self._bias_V, "none", [], "")
