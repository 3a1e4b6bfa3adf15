"""Cache of keys and values shared by all slots of an input: a selection moves indices, not keys and values.

Shapes: B batch, J slots before a selection, K after it, T steps so far, P columns of a prompt, C columns so far, N
heads, A size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqwise import tree

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer."""

# Columns by which a buffer grows at least.
MIN_NEW_COLUMNS = 128


class SharedCache:
    """Decoder state of a Transformer without gradients: columns written so far, and the column indices of each slot.

    A step appends a column for each slot, and each slot keeps the indices of the columns on its path. All slots of an
    input attend to all columns at once, and :meth:`mask` hides from each slot the columns of the others. A hard
    selection therefore moves (B, J, T) integers; separate keys and values for each slot would have to be moved and
    extended at every step. A soft selection makes separate copies, :meth:`dense`, and mixes them.

    For :mod:`seqwise.tree` it is a leaf with its own methods. Later writes do not change it, so two searches may
    continue from the same cache.

    Attributes:
        columns_BJT: the column of every step of every slot, int64.

    When it is full, columns on no slot's path are removed. Slots of a beam share most of their past, so the rest is
    little more than the path of one slot, and never more than separate copies.

    Source: the back-pointers of beam search, followed to the first step; exact. Not implemented: isolating slots that
    are not finite. NaN or infinity times a weight of 0 is NaN for all slots of the input.

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
        >>> second.mask()
        tensor([[[[ True,  True, False],
                  [ True, False,  True]]]])
    """

    def __init__(self, store: _Store, columns_BJT: Tensor, num_columns: int, prompt_B1P: Tensor) -> None:
        self.columns_BJT = columns_BJT
        self._store, self._num_columns, self._prompt_B1P = store, num_columns, prompt_B1P
        self._masks: dict[int | None, Tensor] = {}

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._store.leaves) // 2

    @staticmethod
    def start(layers: Sequence[KeysValues], mask_BP: Tensor | None = None) -> SharedCache:
        """Make an empty cache for one slot of each input, after a prompt of P columns.

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
        """Number of steps taken."""
        return self.columns_BJT.shape[2]

    def gather(self, parents_BK: Tensor) -> SharedCache:
        """Give each new slot the path of its parent."""
        columns_BKT = tree.gather(self.columns_BJT, parents_BK)
        return SharedCache(self._store, columns_BKT, self._num_columns, self._prompt_B1P)

    def mix(self, weights_BKJ: Tensor) -> tuple[KeysValues, ...]:
        """Return weighted sums of keys and values, (B, K, N, T, A) for each layer."""
        return tree.mix(self.dense(), weights_BKJ)

    def dense(self) -> tuple[KeysValues, ...]:
        """Return keys and values of every slot, (B, J, N, T, A) for each layer, without those of the prompt."""
        shape_JT = self.columns_BJT.shape[1:]
        columns_BX = self.columns_BJT.flatten(1)
        leaves = [_columns_of(leaf, columns_BX).unflatten(2, shape_JT).transpose(1, 2) for leaf in self._store.leaves]
        return tuple(zip(leaves[::2], leaves[1::2], strict=True))

    def step(self) -> SharedCache:
        """Return a cache with a new column for each slot, which the next step writes by :meth:`put`."""
        batch_size, num_slots, _ = self.columns_BJT.shape
        end = self._num_columns + num_slots
        if end > self._store.capacity:
            return self._compact(num_slots).step()
        new_J = torch.arange(self._num_columns, end, device=self.columns_BJT.device)
        columns_BJT = torch.cat([self.columns_BJT, new_J[:, None].expand(batch_size, -1, 1)], dim=2)
        return SharedCache(self._store.extended(self._num_columns, end), columns_BJT, end, self._prompt_B1P)

    def _compact(self, num_new: int) -> SharedCache:
        """Remove columns that are on no slot's path, and reserve new ones."""
        columns_BX, width = self.columns_BJT.flatten(1), self._prompt_B1P.shape[2]
        used_BC = torch.arange(self._num_columns, device=columns_BX.device) < width
        used_BC = used_BC.repeat(len(columns_BX), 1).scatter_(1, columns_BX, True)
        if len(used_BC):
            width = int(used_BC.sum(1).max())
        # Inputs that use fewer columns keep some unused ones, which stay hidden.
        kept_BW = used_BC.byte().argsort(dim=1, descending=True, stable=True)[:, :width]
        store = _Store([_columns_of(leaf, kept_BW) for leaf in self._store.leaves], width, num_new)
        columns_BJT = (used_BC.cumsum(1) - 1).gather(1, columns_BX).view_as(self.columns_BJT)
        return SharedCache(store, columns_BJT, width, self._prompt_B1P)

    def put(self, layer: int, keys_BNJA: Tensor, values_BNJA: Tensor) -> KeysValues:
        """Write a layer's keys and values of this step; return those of all columns, (B, N, C, A)."""
        first = self._num_columns - keys_BNJA.shape[2]
        return self._store.put(2 * layer, first, keys_BNJA), self._store.put(2 * layer + 1, first, values_BNJA)

    def mask(self, window: int | None = None) -> Tensor:
        """Return the attention mask over all columns: true on each slot's path and its prompt; bool (B, 1, J, C).

        With a window of W, only the last W steps and prompt columns are visible, the newest included, as in
        sliding-window attention. The mask is computed once.
        """
        if window not in self._masks:
            batch_size, num_slots, num_steps = self.columns_BJT.shape
            width = self._prompt_B1P.shape[2]
            hidden = 0 if window is None else max(width + num_steps - window, 0)  # the oldest columns of a slot
            mask_BJC = self._prompt_B1P.new_zeros(batch_size, num_slots, self._num_columns)
            mask_BJC[:, :, hidden:width] = self._prompt_B1P[:, :, hidden:]
            visible_BJT = self.columns_BJT[:, :, max(hidden - width, 0) :]
            self._masks[window] = mask_BJC.scatter_(2, visible_BJT, True)[:, None]
        return self._masks[window]

    def steps_BC(self) -> Tensor:
        """Return the step at which each column was written, int64; 0 for columns on no slot's path.

        Raises:
            NotImplementedError: there is a prompt, whose columns no step has written.
        """
        if self._prompt_B1P.shape[2]:
            raise NotImplementedError("steps of the columns of a prompt")
        steps_BX = torch.arange(len(self), device=self.columns_BJT.device).expand_as(self.columns_BJT).flatten(1)
        return steps_BX.new_zeros(len(steps_BX), self._num_columns).scatter_(1, self.columns_BJT.flatten(1), steps_BX)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a mask is true and minus infinity elsewhere, for all layers to add to their attention scores.

    Torch's attention would convert a boolean mask at every call, and its kernel for GPUs copies masks whose rows do not
    start at multiples of 16; here they do.

    Example:
        >>> additive(torch.tensor([[True, False]]), torch.float32)
        tensor([[0., -inf]])
    """
    columns = mask.shape[-1]
    padded = torch.full((*mask.shape[:-1], -(-columns // 16) * 16), -torch.inf, dtype=dtype, device=mask.device)
    return padded[..., :columns].masked_fill_(mask, 0.0)


Past = SharedCache | tuple[KeysValues, ...]
"""Past of a Transformer: one cache for all slots, or keys and values (B, J, N, T, A) for each layer."""


class _Store:
    """Buffer of keys and values (B, N, capacity, A), which successive steps fill column by column."""

    def __init__(self, leaves: Sequence[Tensor], num_columns: int, num_new: int = 0) -> None:
        # It grows by half at least, so that all copies together take no longer than writing the columns.
        self.num_columns, self.capacity = num_columns, num_columns + max(MIN_NEW_COLUMNS, num_new, num_columns // 2)
        self.leaves = [_with_capacity(leaf[:, :, :num_columns], self.capacity) for leaf in leaves]

    def extended(self, num_columns: int, end: int) -> _Store:
        """Return this buffer if nothing is written after these columns, else a copy of them."""
        # Tensors made in inference mode cannot be changed outside of it.
        read_only = not torch.is_inference_mode_enabled() and any(leaf.is_inference() for leaf in self.leaves)
        store = self
        if read_only or self.num_columns != num_columns:
            store = _Store(self.leaves, num_columns, end - num_columns)
        store.num_columns = end
        return store

    def put(self, index: int, first: int, new_BNJA: Tensor) -> Tensor:
        """Write some columns of one leaf, and return all columns up to their end."""
        end = first + new_BNJA.shape[2]
        if new_BNJA.dtype != self.leaves[index].dtype:  # a prompt read with another precision, as by autocast
            common = torch.promote_types(new_BNJA.dtype, self.leaves[index].dtype)
            self.leaves[index], new_BNJA = self.leaves[index].to(common), new_BNJA.to(common)
        self.leaves[index][:, :, first:end] = new_BNJA
        return self.leaves[index][:, :, :end]


def _columns_of(leaf_BNCA: Tensor, columns_BX: Tensor) -> Tensor:
    """Return some columns of each input, (B, N, X, A); indexing rows of a matrix is many times faster than elements."""
    batch_size, num_heads, capacity, size = leaf_BNCA.shape
    first_BN = torch.arange(batch_size * num_heads, device=leaf_BNCA.device).view(batch_size, num_heads) * capacity
    rows_BNX = first_BN[..., None] + columns_BX[:, None]
    return leaf_BNCA.view(-1, size).index_select(0, rows_BNX.flatten()).view(*rows_BNX.shape, size)


def _with_capacity(leaf_BNCA: Tensor, capacity: int) -> Tensor:
    batch_size, num_heads, width, size = leaf_BNCA.shape
    buffer = leaf_BNCA.new_empty(batch_size, num_heads, capacity, size)
    buffer[:, :, :width] = leaf_BNCA
    return buffer
