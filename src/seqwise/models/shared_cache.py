"""Keys and values of all steps of a search, kept once for all slots of an input: a selection moves indices, not them.

Shapes: B batch, J slots before a selection, K after it, T steps so far, P columns of a prompt, C columns so far, N
heads, A size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqwise import tree

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer."""

# Columns that there is room for at first, beside those of a prompt.
ROOM = 128


class SharedCache:
    """Decoder state of a Transformer without gradients: the columns that steps wrote, and those of each slot.

    A step appends a column for each of its slots, and a slot knows the columns that it came by. Attention asks all
    columns of an input at once for all its slots, and :attr:`mask` hides from each the columns of the others. So a
    hard selection moves (B, J, T) integers, where copies of keys and values for each slot would be moved, and copied
    again to be lengthened, at every step. A soft selection makes such copies, :meth:`dense`, and mixes them.

    To :mod:`seqwise.tree` it is a leaf that follows by itself. What is written after it does not change it: two
    searches may go on from one.

    Attributes:
        columns_BJT: the column of every step of every slot, int64.

    Whenever there is no room, columns that no slot comes by any more are left out. Slots of a beam have most of their
    past in common, so that what is left is little more than one slot's, and never more than copies would have.

    Source: the back-pointers of beam search, followed to the first step; exact. Not implemented: keeping what is not
    finite to its slot. NaN and infinity times a weight of 0 is NaN for all slots of the input.

    Example:
        >>> nothing = torch.zeros(1, 2, 0, 3)  # of one input, two heads of size three
        >>> first = SharedCache.start([(nothing, nothing)]).step()
        >>> keys, values = first.put(0, torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3))
        >>> second = first.gather(torch.tensor([[0, 0]])).step()
        >>> second
        SharedCache(inputs=1, slots=2, steps=2, columns=3)
        >>> second.columns_BJT
        tensor([[[0, 1],
                 [0, 2]]])
        >>> second.mask
        tensor([[[[ True,  True, False],
                  [ True, False,  True]]]])
    """

    def __init__(self, store: _Store, columns_BJT: Tensor, num_columns: int, prompt_B1P: Tensor) -> None:
        self.columns_BJT = columns_BJT
        self._store, self._num_columns, self._prompt_B1P = store, num_columns, prompt_B1P
        self._mask: Tensor | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._store.leaves) // 2

    @staticmethod
    def start(layers: Sequence[KeysValues], mask_BP: Tensor | None = None) -> SharedCache:
        """Make a cache of no steps, for one slot of each input, after a prompt of P columns.

        Keys and values of the prompt, (B, N, P, A) for each layer, are copied; P may be 0, and a mask may hide columns.
        """
        keys = layers[0][0]
        batch_size, _, width, _ = keys.shape
        prompt_B1P = torch.ones(batch_size, 1, width, dtype=torch.bool, device=keys.device)
        if mask_BP is not None:
            prompt_B1P = mask_BP.bool()[:, None]
        columns_B1T = torch.empty(batch_size, 1, 0, dtype=torch.long, device=keys.device)
        return SharedCache(_Store([leaf for pair in layers for leaf in pair], width), columns_B1T, width, prompt_B1P)

    def __repr__(self) -> str:
        batch_size, num_slots, num_steps = self.columns_BJT.shape
        return f"SharedCache(inputs={batch_size}, slots={num_slots}, steps={num_steps}, columns={self._num_columns})"

    def __len__(self) -> int:
        """Number of steps that have been taken."""
        return self.columns_BJT.shape[2]

    def gather(self, parents_BK: Tensor) -> SharedCache:
        """Pass on what the parents came by to the new slots."""
        columns_BKT = tree.gather(self.columns_BJT, parents_BK)
        return SharedCache(self._store, columns_BKT, self._num_columns, self._prompt_B1P)

    def mix(self, weights_BKJ: Tensor) -> tuple[KeysValues, ...]:
        """Weighted sums of keys and values, (B, K, N, T, A) for each layer."""
        return tree.mix(self.dense(), weights_BKJ)

    def dense(self) -> tuple[KeysValues, ...]:
        """Keys and values of every slot, (B, J, N, T, A) for each layer, without those of the prompt."""
        shape_JT = self.columns_BJT.shape[1:]
        columns_BX = self.columns_BJT.flatten(1)
        leaves = [_columns_of(leaf, columns_BX).unflatten(2, shape_JT).transpose(1, 2) for leaf in self._store.leaves]
        return tuple(zip(leaves[::2], leaves[1::2], strict=True))

    def step(self) -> SharedCache:
        """Cache that the next step writes to, by :meth:`put`: this, and a new column for each slot."""
        batch_size, num_slots, _ = self.columns_BJT.shape
        end = self._num_columns + num_slots
        if end > self._store.room:
            return self._compact(num_slots).step()
        new_J = torch.arange(self._num_columns, end, device=self.columns_BJT.device)
        columns_BJT = torch.cat([self.columns_BJT, new_J[:, None].expand(batch_size, -1, 1)], dim=2)
        return SharedCache(self._store.extended(self._num_columns, end), columns_BJT, end, self._prompt_B1P)

    def _compact(self, more: int) -> SharedCache:
        """Leave out the columns that no slot came by, and make room for more."""
        columns_BX, width = self.columns_BJT.flatten(1), self._prompt_B1P.shape[2]
        used_BC = torch.arange(self._num_columns, device=columns_BX.device) < width
        used_BC = used_BC.repeat(len(columns_BX), 1).scatter_(1, columns_BX, True)
        if len(used_BC):
            width = int(used_BC.sum(1).max())
        # Inputs that use fewer keep some of the others, which stay hidden.
        kept_BW = used_BC.byte().argsort(dim=1, descending=True, stable=True)[:, :width]
        store = _Store([_columns_of(leaf, kept_BW) for leaf in self._store.leaves], width, more)
        columns_BJT = (used_BC.cumsum(1) - 1).gather(1, columns_BX).view_as(self.columns_BJT)
        return SharedCache(store, columns_BJT, width, self._prompt_B1P)

    def put(self, layer: int, keys_BNJA: Tensor, values_BNJA: Tensor) -> KeysValues:
        """Write what a layer makes of this step; its keys and values of all columns, (B, N, C, A), come back."""
        place, first = 2 * layer, self._num_columns - keys_BNJA.shape[2]
        return self._store.put(place, first, keys_BNJA), self._store.put(place + 1, first, values_BNJA)

    @property
    def mask(self) -> Tensor:
        """Mask of the columns that each slot came by, and of its prompt; bool (B, 1, J, C), for attention to all."""
        if self._mask is None:
            batch_size, num_slots, _ = self.columns_BJT.shape
            seen_BJC = self._prompt_B1P.new_zeros(batch_size, num_slots, self._num_columns)
            seen_BJC[:, :, : self._prompt_B1P.shape[2]] = self._prompt_B1P
            self._mask = seen_BJC.scatter_(2, self.columns_BJT, True)[:, None]
        return self._mask


Past = SharedCache | tuple[KeysValues, ...]
"""Inputs of a Transformer so far: one cache for all slots, or keys and values (B, J, N, T, A) of each layer."""


class _Store:
    """Keys and values (B, N, room, A), of which the first columns have been written, by one step after another."""

    def __init__(self, leaves: Sequence[Tensor], num_columns: int, more: int = 0) -> None:
        # Half as many again, so that making room costs no more than what is written.
        self.num_columns, self.room = num_columns, num_columns + max(ROOM, more, num_columns // 2)
        self.leaves = [_with_room(leaf[:, :, :num_columns], self.room) for leaf in leaves]

    def extended(self, num_columns: int, end: int) -> _Store:
        """This, if nobody has written behind these columns, else a copy of them; to be written as far as the end."""
        # What was made in inference mode cannot be written outside of it.
        foreign = not torch.is_inference_mode_enabled() and any(leaf.is_inference() for leaf in self.leaves)
        store = self
        if foreign or self.num_columns != num_columns:
            store = _Store(self.leaves, num_columns, end - num_columns)
        store.num_columns = end
        return store

    def put(self, place: int, first: int, new_BNJA: Tensor) -> Tensor:
        """Write some columns of one of the leaves, and return what is there up to their end."""
        end = first + new_BNJA.shape[2]
        if new_BNJA.dtype != self.leaves[place].dtype:  # of what was read with another precision, as by autocast
            both = torch.promote_types(new_BNJA.dtype, self.leaves[place].dtype)
            self.leaves[place], new_BNJA = self.leaves[place].to(both), new_BNJA.to(both)
        self.leaves[place][:, :, first:end] = new_BNJA
        return self.leaves[place][:, :, :end]


def _columns_of(leaf_BNCA: Tensor, columns_BX: Tensor) -> Tensor:
    """Some columns of each input, (B, N, X, A); as rows of a matrix, which is many times faster than by element."""
    batch_size, num_heads, room, size = leaf_BNCA.shape
    first_BN = torch.arange(batch_size * num_heads, device=leaf_BNCA.device).view(batch_size, num_heads) * room
    rows_BNX = first_BN[..., None] + columns_BX[:, None]
    return leaf_BNCA.view(-1, size).index_select(0, rows_BNX.flatten()).view(*rows_BNX.shape, size)


def _with_room(leaf_BNCA: Tensor, room: int) -> Tensor:
    batch_size, num_heads, width, size = leaf_BNCA.shape
    roomy = leaf_BNCA.new_empty(batch_size, num_heads, room, size)
    roomy[:, :, :width] = leaf_BNCA
    return roomy
