"""Recorders of what torch computes, for tests that say how much may be held at a time, or computed in all."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """The most numbers behind a tensor that any operation returns, backward pass included."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


class NumbersComputed(TorchDispatchMode):
    """How many numbers all operations return together: what takes time, without a clock."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.count += sum(tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, Tensor))
        return result
