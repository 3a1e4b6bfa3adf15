"""Attention function for Hugging Face decoders that reads one cache for all slots of an input.

Shapes: B batch, J slots, N heads, G of them for each head of keys, C columns of keys, S source length, A size of a
head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from seqwise.hugging_face.caches import Layers, cache_of
from seqwise.models.attention import attention, batched_attention
from seqwise.models.shared_cache import SharedCache, additive

NAME = "seqwise_shared_cache"
# Arguments that attention may get and ignore, because the shared cache has its own positions and mask.
IGNORED = ("position_ids", "cache_position", "use_cache", "is_causal", "return_dict", "sliding_window")
PLAIN = (causal_mask_function, bidirectional_mask_function)


class SharedCall:
    """One step of a decoder for J slots of each input, which writes to their shared cache."""

    def __init__(
        self, shared: SharedCache, *, num_seen: int, memory: Layers = (), is_real_BS: Tensor | None = None
    ) -> None:
        self.shared, self.num_slots, self.is_over = shared, shared.columns_BJT.shape[1], False
        # The decoder gets these as the caches of its self-attention and cross-attention, and as its masks, by window.
        # A mask that it computes from them is another tensor, and raises.
        self.cache = DynamicCache()
        self.cache.layers.extend(_CacheLayer(self, layer, num_seen) for layer in range(shared.num_layers))
        self.memory, self._memory_keys = cache_of(memory), [keys for keys, _ in memory]
        self._windows: dict[int | None, Tensor] = {}
        self._memory_mask = None if is_real_BS is None else is_real_BS[:, None, None]
        self._own_keys: Tensor | None = None
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        self._biased = torch.empty(0), torch.empty(0)

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (B J, N, 1, A), and return all of them, (B, N, C, A)."""
        slots = (-1, self.num_slots)
        self._own_keys, all_values = self.shared.put(
            layer,
            keys.squeeze(2).unflatten(0, slots).transpose(1, 2),
            values.squeeze(2).unflatten(0, slots).transpose(1, 2),
        )
        return self._own_keys, all_values

    def placeholder(self, window: int | None) -> Tensor:
        """Return a tensor in place of the decoder's mask, within a window or over all steps."""
        return self._windows.setdefault(window, torch.zeros(1, 1, 1, 1))

    def window_of(self, mask: Tensor | None) -> int | None:
        """Return the window of a placeholder; any other mask raises a NotImplementedError."""
        if mask is None:
            return None
        for window, placeholder in self._windows.items():
            if mask is placeholder:
                return window
        raise NotImplementedError("attention with a mask of its own")

    def mask(self, keys: Tensor, num_heads: int, dtype: torch.dtype, *, window: int | None) -> Tensor | None:
        """Return the additive mask for some keys, or None; it broadcasts to (B, 1, J G, C), heads within slots."""
        mask: Tensor | None
        if any(keys is own for own in self._memory_keys):
            rows, mask = 0, self._memory_mask  # one row for all slots
        elif self._are_own(keys):
            rows, mask = num_heads, self.shared.mask(window)
        else:
            raise NotImplementedError("attention to keys that were not cached")
        key = rows, window
        if mask is not None and key not in self._masks:
            self._masks[key] = additive(mask.repeat_interleave(rows, dim=2) if rows > 1 else mask, dtype)
        return self._masks.get(key)

    def _are_own(self, keys: Tensor) -> bool:
        """Whether keys are those of the shared cache, or computed from them by column, as in latent attention."""
        own = self._own_keys
        return own is not None and (keys is own or (not self._memory_keys and keys.shape[2] == own.shape[2]))

    def biased(self, mask: Tensor | None, keys: Tensor, bias_1N1C: Tensor) -> Tensor:
        """Add a bias by the position of keys to the mask; the bias is in the order of the steps."""
        if not self._are_own(keys):
            return bias_1N1C if mask is None else mask + bias_1N1C
        assert mask is not None
        known, biased = self._biased
        if known is not bias_1N1C:  # layers may share it
            biased = mask + bias_1N1C[0, :, 0][:, self.shared.steps_BC()].transpose(0, 1)[:, :, None]
            self._biased = bias_1N1C, biased
        return biased


class _CacheLayer(DynamicLayer):
    """Layer of the cache of a :class:`SharedCall`."""

    _layer_type = None  # so that Transformers does not create it for its own caches

    def __init__(self, call: SharedCall, layer: int, num_seen: int) -> None:
        super().__init__()
        self.call, self.layer, self.num_seen, self.is_initialized = call, layer, num_seen, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **others: Any) -> tuple[Tensor, Tensor]:
        """Write the layer's keys and values of this step to the shared cache, and return those of all columns."""
        return self.call.put(self.layer, key_states, value_states)

    def get_seq_length(self) -> int:
        """Return the number of positions before this step."""
        return self.num_seen


_CALL: ContextVar[SharedCall | None] = ContextVar("current step", default=None)
# By id of the decoder's config: current steps, the config's own attention, and the config.
_STEPPING: dict[int, tuple[set[SharedCall], str, Any]] = {}
_LOCK = Lock()


@contextmanager
def shared_call(decoder: Any, call: SharedCall) -> Iterator[None]:
    """Use the shared attention in a decoder for this step only; other calls and threads keep their own.

    The config sets the attention of a decoder for all threads: a concurrent forward in another thread also reaches
    ``attend`` and ``mask_of``, which fall back to its own mask and its own attention if that is registered by name.
    "eager" is not, and becomes torch's there.
    """
    config = decoder.config
    try:
        with _LOCK:
            calls, _, _ = _STEPPING.setdefault(id(config), (set(), config._attn_implementation, config))
            calls.add(call)
            config._attn_implementation = NAME
        _CALL.set(call)
        yield
    finally:
        call.is_over = True
        _CALL.set(None)
        with _LOCK:
            calls, before, _ = _STEPPING[id(config)]
            calls.discard(call)
            if not calls:
                config._attn_implementation = before
                del _STEPPING[id(config)]


def _current() -> SharedCall | None:
    call = _CALL.get()
    return None if call is None or call.is_over else call


def _own_attention(config: Any) -> str:
    """Return the name of a decoder's own attention."""
    _, before, _ = _STEPPING.get(id(config), (None, config._attn_implementation, None))
    return before if before != NAME else "sdpa"


def mask_of(
    *, config: Any = None, mask_function: Any = causal_mask_function, local_size: int | None = None, **others: Any
) -> Any:
    """Return the mask that a decoder requests; a shared step gets a placeholder tensor."""
    call = _current()
    if call is None:
        name = _own_attention(config)
        others |= {"config": config, "mask_function": mask_function, "local_size": local_size}
        mask = AttentionMaskInterface()[name](**others)
        # The mask of "eager" is the lowest number, to which torch's attention may not add a negative score.
        return mask.clamp(min=max(torch.finfo(mask.dtype).min / 2, -1e30)) if name == "eager" else mask
    if mask_function not in PLAIN and local_size is None:
        raise NotImplementedError("attention to parts")
    return call.placeholder(local_size)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Any]:
    """Compute attention of one query per slot, (B J, N, 1, A), to keys (B, N / G, C, A) that the slots share.

    Returns (B J, 1, N, A), as Transformers expects; a module with more complex attention raises a
    NotImplementedError.
    """
    call = _current()
    if call is None:
        own = AttentionInterface().get_interface(_own_attention(module.config), sdpa_attention_forward)
        attended, weights = own(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others)
        return attended, weights
    window = call.window_of(attention_mask)
    position_bias, softcap, sinks_H = (others.pop(name, None) for name in ("position_bias", "softcap", "s_aux"))
    unknown = [name for name, value in others.items() if not (name in IGNORED or value is None or value is False)]
    if others.get("sliding_window") != window:  # a mask of one kind and attention of another, such as in chunks
        unknown.append("another sliding_window than that of its mask")
    if not (softcap is None and sinks_H is None) and _own_attention(module.config) == "sdpa":
        unknown.append("a soft cap or sinks, which torch's attention ignores")
    if position_bias is not None and query.shape[1] != key.shape[1]:
        unknown.append("a bias for each of the heads that share their keys")
    if unknown or dropout or query.shape[2] != 1:
        raise NotImplementedError(f"attention with {', '.join(unknown) or 'dropout or several queries'}")
    shape_JGA = (call.num_slots, query.shape[1] // key.shape[1], query.shape[3])
    # Heads that share keys are further queries to them, like slots.
    queries = query.reshape(len(key), call.num_slots, key.shape[1], *shape_JGA[1:]).transpose(1, 2).flatten(2, 3)
    mask = call.mask(key, shape_JGA[1], query.dtype, window=window)
    if position_bias is not None:
        mask = call.biased(mask, key, position_bias.to(query.dtype))
    if softcap is None and sinks_H is None:
        attended = attention(queries, key, value, mask, scale=scaling)
    else:
        sinks_N1G = None if sinks_H is None else sinks_H.view(key.shape[1], 1, -1)
        attended = batched_attention(queries, key, value, mask, scale=scaling, softcap=softcap, sinks_N1G=sinks_N1G)
    return attended.unflatten(2, shape_JGA[:2]).transpose(1, 2).reshape(len(query), 1, query.shape[1], -1), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask_of)
