"""A decoder of transformers reads one cache for all slots of an input, by an attention function of ours.

Shapes: B batch, J slots, N heads, G of them for each head of keys, C columns of keys, S source length, A size of a
head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from seqwise.models.shared_cache import SharedCache

__all__ = ["SharedCall", "shared_call"]

NAME = "seqwise_shared_cache"
# What attention may be told and needs not know, as masks, positions and places are those of the shared cache.
KNOWN = ("position_ids", "cache_position", "use_cache", "is_causal", "return_dict")


class SharedCall:
    """One step of a decoder for J slots of each input.

    Attributes:
        shared: the cache of all slots, into which the step writes.
        cache: what the decoder takes for its cache; it asks for the length, and hands over new keys and values.
    """

    def __init__(self, shared: SharedCache, num_layers: int, num_seen: int, memory_mask: Tensor | None) -> None:
        """Begin a step.

        Args:
            shared: the cache into which it writes.
            num_layers: of the decoder.
            num_seen: how many positions there are before it.
            memory_mask: 0 where a source token is, minus infinity elsewhere, (B, 1, 1, S); for cross-attention.
        """
        self.shared, self.num_slots = shared, shared.columns_BJT.shape[1]
        self._memory_mask, self._is_own = memory_mask, False
        self.cache = DynamicCache()
        self.cache.layers.extend(_CacheLayer(self, layer, num_seen) for layer in range(num_layers))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (B J, N, 1, A), and return all of them, (B, N, C, A)."""
        self._is_own = True  # attention to them comes next
        slots = (-1, self.num_slots)
        return self.shared.put(
            layer,
            keys.squeeze(2).unflatten(0, slots).transpose(1, 2),
            values.squeeze(2).unflatten(0, slots).transpose(1, 2),
        )

    def mask(self) -> Tensor | None:
        """Which columns slots see in the attention that comes next."""
        is_own, self._is_own = self._is_own, False
        return self.shared.mask if is_own else self._memory_mask


class _CacheLayer(DynamicLayer):
    """The place of one layer in the cache of a :class:`SharedCall`."""

    _layer_type = None

    def __init__(self, call: SharedCall, layer: int, num_seen: int) -> None:
        super().__init__()
        self.call, self.layer, self.num_seen, self.is_initialized = call, layer, num_seen, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **others: Any) -> tuple[Tensor, Tensor]:
        """Hand over what the layer makes of this step."""
        return self.call.put(self.layer, key_states, value_states)

    def get_seq_length(self) -> int:
        """How many positions there are before this step."""
        return self.num_seen


_CALL: ContextVar[SharedCall | None] = ContextVar("the step that is being taken", default=None)
# By decoder: in how many threads it is taking a step, and what its attention is otherwise.
_STEPPING: dict[int, tuple[int, str]] = {}
_LOCK = Lock()


@contextmanager
def shared_call(decoder: Any, call: SharedCall) -> Iterator[None]:
    """Let attention in a decoder be that of this step; whatever other threads do in the meantime is left alone."""
    config, token = decoder.config, _CALL.set(call)
    with _LOCK:
        others, before = _STEPPING.get(id(config), (0, config._attn_implementation))
        _STEPPING[id(config)] = (others + 1, before)
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _LOCK:
            here, before = _STEPPING.pop(id(config))
            if here > 1:
                _STEPPING[id(config)] = (here - 1, before)
            else:
                config._attn_implementation = before
        _CALL.reset(token)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one query for each slot, (B J, N, 1, A), to keys (B, N / G, C, A) that the slots share.

    Returns:
        What was found, (B J, 1, N, A), as transformers wants it.

    Raises:
        NotImplementedError: the module's attention is more than that.
    """
    call = _CALL.get()
    if call is None:  # the same model in another thread
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    unknown = [name for name, what in others.items() if what is not None and what is not False and name not in KNOWN]
    if unknown or dropout or query.shape[2] != 1:
        raise NotImplementedError(f"attention with {', '.join(unknown) or 'dropout or several queries'}")
    shape_JGA = (call.num_slots, query.shape[1] // key.shape[1], query.shape[3])
    mask = call.mask()
    if shape_JGA[1] > 1 and mask is not None and mask.shape[2] > 1:
        mask = mask.repeat_interleave(shape_JGA[1], dim=2)
    # Heads that read the same keys are more queries of them, as the slots are.
    queries = query.reshape(len(key), call.num_slots, key.shape[1], *shape_JGA[1:]).transpose(1, 2).flatten(2, 3)
    found = F.scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return found.unflatten(2, shape_JGA[:2]).transpose(1, 2).reshape(len(query), 1, query.shape[1], -1), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
