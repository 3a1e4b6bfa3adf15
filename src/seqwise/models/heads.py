"""Heads, which map features to scores: detection of linear heads, a head that forces a token, and log Z of scores.

Shapes: H features, V vocabulary, N rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from seqwise.devices import at_least_float32
from seqwise.models.products import Linear

# Number of scores that fit the CPU's cache, and number of scores from which it pays to keep them there.
IN_CACHE, MANY = 2**18, 2**12


def log_partition(scores: Tensor) -> Tensor:
    """Compute log Z of rows of scores, (..., V) to (...), as ``logsumexp`` does, in float32 or better.

    On a CPU, without gradients, blocks of many rows go through one buffer in the cache. ``logsumexp`` makes more
    passes, over newly allocated memory, and takes ten times as long if many exponentials underflow.

    Example:
        >>> log_partition(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    if torch.is_grad_enabled() or scores.device.type != "cpu" or scores.numel() < MANY:
        return at_least_float32(scores).logsumexp(-1)
    rows_NV = scores.reshape(-1, scores.shape[-1])
    num_rows = min(len(rows_NV), max(1, IN_CACHE // scores.shape[-1]))
    buffer, parts = torch.empty_like(at_least_float32(rows_NV[:num_rows])), []
    for block_NV in map(at_least_float32, rows_NV.split(num_rows)):
        highest_N = block_NV.amax(-1)
        log_probs_NV = torch.log_softmax(block_NV, -1, out=buffer[: len(block_NV)])
        parts.append(torch.where(highest_N.isinf(), highest_N, highest_N - log_probs_NV.amax(-1)))
    return torch.cat(parts).view(scores.shape[:-1])


class LinearOverLayer(nn.Linear, ABC):
    """Head ``f = W h + b`` that calls a linear layer of another model, and adds a constant.

    Subclasses may define ``forward``, but it must compute exactly this.
    """

    @property
    @abstractmethod
    def layer(self) -> nn.Module:
        """The layer that is called, with its hooks."""


class ForcedFirst(nn.Module):
    """Head that forces the first token: ``f = 0`` for it, minus infinity for the others.

    It reads one feature in addition to the ``width`` features of the wrapped head: 1 at the first step, else 0.
    Features without it belong to later steps.

    Example:
        >>> head = ForcedFirst(nn.Linear(2, 3), 1, width=2)
        >>> head(torch.tensor([0.5, 0.5, 1.0]))  # the last feature marks the first step
        tensor([-inf, 0., -inf], grad_fn=<WhereBackward0>)
    """

    def __init__(self, head: nn.Module, token: int, *, width: int) -> None:
        super().__init__()
        self._head = (head,)  # in a tuple, so that the module is not registered
        self.token, self.width = token, width

    @property
    def after_first(self) -> nn.Module:
        """The head of all later steps."""
        return self._head[0]

    def forward(self, features: Tensor) -> Tensor:
        """Compute scores of features, with or without the one that marks the first step."""
        scores: Tensor = self._head[0](features[..., : self.width])
        if features.shape[-1] == self.width:
            return scores
        only_V = scores.new_full(scores.shape[-1:], -torch.inf)
        only_V[self.token] = 0.0
        return torch.where(features[..., -1:] > 0, only_V, scores)


def linear_weights(head: Callable[[Tensor], Tensor], num_features: int) -> tuple[Tensor, Tensor | None] | None:
    """Return W and b of a head that computes exactly ``f = W h + b`` in one precision, else None.

    Heads with hooks do not qualify, nor do subclasses of ``nn.Linear`` with their own ``forward``. The number of
    features matters for ``ForcedFirst``, which reads one less after the first step.
    """
    if not isinstance(head, nn.Module) or _is_patched(head):
        return None
    if isinstance(head, ForcedFirst) and num_features == head.width:
        return linear_weights(head.after_first, num_features)
    if not isinstance(head, nn.Linear):
        return None
    if isinstance(head, LinearOverLayer):
        if linear_weights(head.layer, num_features) is None:
            return None
        # The bias may have another precision than the weights, and one product needs the same for both.
        weight_VH, bias_V = head.weight, head.bias
        return (weight_VH, bias_V) if bias_V is None or bias_V.dtype == weight_VH.dtype else None
    return (head.weight, head.bias) if type(head).forward in (nn.Linear.forward, Linear.forward) else None


def _is_patched(module: nn.Module) -> bool:
    """Whether the module has hooks or a replaced ``forward``."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)
