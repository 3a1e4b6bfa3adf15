"""Recorders of what torch computes and what models are given, for tests of how much is held or computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqwise.models.protocols import MaskedModel


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


class RecordedRows:
    """A masked model that records how many sequences each call is given."""

    def __init__(self, model: MaskedModel) -> None:
        self.model, self.vocab_size, self.rows = model, model.vocab_size, list[int]()

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        self.rows.append(len(tokens_NT))
        return self.model.masked_logits(tokens_NT, masked_NT, context)
