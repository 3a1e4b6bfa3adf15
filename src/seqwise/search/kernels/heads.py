"""Which heads are ``f = W h + b`` and nothing else, so that single scores can be had.

Shapes: H features, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

__all__ = ["FirstStepHead", "LinearOverLayer", "head_of_step", "linear_weights"]


class LinearOverLayer(nn.Linear, ABC):
    """A head ``f = W h + b`` that asks a linear layer of somebody else's model, and adds a constant to its answer.

    Its ``forward`` is its own; that it computes no more than this is promised by being of this class.
    """

    @property
    @abstractmethod
    def layer(self) -> nn.Module:
        """What is asked, with whatever hooks it has."""


class FirstStepHead(nn.Module, ABC):
    """A head that is another one after the first step of a search, where features have one dimension less."""

    @property
    @abstractmethod
    def after_first(self) -> nn.Module:
        """The head of all other steps."""


def head_of_step(head: Callable[[Tensor], Tensor], step: int) -> Callable[[Tensor], Tensor]:
    """The head that a step of a search reads its features with.

    Example:
        >>> head = nn.Linear(2, 3)
        >>> head_of_step(head, 1) is head
        True
    """
    if step == 0 or not isinstance(head, FirstStepHead) or _is_changed(head):
        return head
    return head.after_first


def linear_weights(head: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None] | None:
    """W and b of a head that does ``f = W h + b`` in one precision and nothing else, or None.

    A head with hooks, or of a class that computes something else from weights of that name, is no such head.

    Example:
        >>> linear_weights(nn.Linear(2, 3, bias=False))[0].shape, linear_weights(nn.Identity())
        (torch.Size([3, 2]), None)
    """
    if not isinstance(head, nn.Linear) or _is_changed(head):
        return None
    if isinstance(head, LinearOverLayer):
        # The constant may be of another precision than the layer's weights, which no single product takes.
        weight_VH, bias_V = head.weight, head.bias
        is_one = linear_weights(head.layer) is not None and (bias_V is None or bias_V.dtype == weight_VH.dtype)
        return (weight_VH, bias_V) if is_one else None
    return (head.weight, head.bias) if type(head).forward is nn.Linear.forward else None


def _is_changed(module: nn.Module) -> bool:
    """Whether somebody has given it hooks, or another ``forward``."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)
