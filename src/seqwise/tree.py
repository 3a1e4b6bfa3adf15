"""Operations on decoder states, which are nested tensors.

A state is a tensor, or tuples, lists and dictionaries of tensors to any depth (an LSTM's ``(h, c)``, a key-value cache
by layer). Every leaf starts with the dimensions B (batch) and J (slots of the beam). Any other leaf has its own methods
``gather(parents_BK)`` and ``mix(weights_BKJ)``.

Shapes: B batch, J slots before a selection, K slots after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree

from seqwise.errors import InputError

__all__ = ["flatten", "gather", "map", "mix"]

State = TypeVar("State")


def map(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply a function to corresponding leaves, and keep the nesting.

    Args:
        function: maps one leaf of each state to a leaf of the result.
        state: the first state; the result has its nesting.
        others: further states with the same nesting.

    Example:
        >>> map(lambda leaf: leaf + 1, {"h": torch.zeros(1, 2)})
        {'h': tensor([[1., 1.]])}
    """
    if isinstance(state, torch.Tensor):  # for a single leaf, pytree would take as long as the operation
        return cast(State, function(state, *others))
    return _pytree.tree_map(function, state, *others)


def flatten(state: State) -> tuple[list[Any], Callable[[Sequence[Any]], State]]:
    """Return the leaves of a state, and a function that builds a state of the same nesting from other leaves.

    Example:
        >>> leaves, rebuild = flatten({"h": (1, 2)})
        >>> leaves, rebuild([3, 4])
        ([1, 2], {'h': (3, 4)})
    """
    leaves, nesting = _pytree.tree_flatten(state)
    return leaves, lambda others: cast(State, _pytree.tree_unflatten(others, nesting))


def register_empty(kind: type) -> None:
    """Register a class as a pytree node without leaves; :func:`map` replaces each instance by ``kind()``.

    Args:
        kind: the class, such as a cache of values that the rest of the state determines.

    Example:
        >>> class Notes: ...
        >>> register_empty(Notes)
        >>> notes = Notes()
        >>> map(lambda leaf: leaf + 1, (torch.zeros(1), notes))[1] is notes
        False
    """
    _pytree.register_pytree_node(kind, lambda _: ([], None), lambda *_: kind())


def gather(state: State, parents_BK: Tensor) -> State:
    """Select slots: ``out[b, k] = state[b, parents[b, k]]`` on every leaf.

    Args:
        state: leaves of shape (B, J, ...).
        parents_BK: int64 slot indices in [0, J).

    Returns:
        The same nesting with leaves of shape (B, K, ...).

    Example:
        >>> gather(torch.tensor([[10.0, 20.0]]), torch.tensor([[1, 1, 0]]))
        tensor([[20., 20., 10.]])
    """
    rows_B1 = torch.arange(parents_BK.shape[0], device=parents_BK.device)[:, None]

    def gather_leaf(leaf: Any) -> Any:
        return leaf[rows_B1, parents_BK] if isinstance(leaf, Tensor) else leaf.gather(parents_BK)

    return map(gather_leaf, state)


def mix(state: State, weights_BKJ: Tensor) -> State:
    """Mix slots: ``out[b, k] = sum_j weights[b, k, j] state[b, j]`` on every leaf.

    With one-hot weights this is :func:`gather` (thesis, Algorithm 3, lines 14-16).

    Args:
        state: floating-point leaves of shape (B, J, ...).
        weights_BKJ: back-pointer weights.

    Returns:
        The same nesting with leaves of shape (B, K, ...).

    Raises:
        InputError: a leaf is not floating point; averages of counters or flags are meaningless.

    Example:
        >>> mix(torch.tensor([[10.0, 20.0]]), torch.tensor([[[0.5, 0.5]]]))
        tensor([[15.]])
    """

    def mix_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf.mix(weights_BKJ)
        if not leaf.is_floating_point():
            raise _not_mixed(state)
        flat_BJF = leaf.flatten(2) if leaf.dim() > 2 else leaf.unsqueeze(-1)
        mixed_BKF = torch.bmm(weights_BKJ.to(leaf.dtype), flat_BJF)
        # Even a reshape to the same shape adds a node to the graph: 4% of a step of a small model.
        return mixed_BKF if leaf.dim() == 3 else mixed_BKF.reshape(*weights_BKJ.shape[:2], *leaf.shape[2:])

    return map(mix_leaf, state)


def _not_mixed(state: Any) -> InputError:
    """Return the error about a leaf that is not floating point."""
    leaves, _ = _pytree.tree_flatten_with_path(state)
    path, leaf = next(
        (path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_floating_point()
    )
    return InputError(
        f"the decoder state at '{_pytree.keystr(path) or 'its root'}' is {leaf.dtype}, which cannot be mixed",
        hint="carry it as floating-point mass, or keep it out of the state",
    )
