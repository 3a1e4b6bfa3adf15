"""Conversion between key-value caches of Hugging Face models and nests of tensors that can be gathered and mixed.

Shapes: B batch, J slots, N heads, S source or prompt length, T steps so far, A size of a head; keys and values of one
layer are (B J, N, T, A) in a cache and (B, J, N, T, A) in a decoder state.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from seqwise import tree
from seqwise.errors import InputError
from seqwise.models.shared_cache import KeysValues

Layers = tuple[KeysValues, ...]
"""Keys and values for each layer."""


def require_plain_layers(config: Any, model_name: str) -> None:
    """Raise an InputError if layers with this config keep anything but keys and values.

    Those of attention within a window may be kept beyond it, where the mask hides them.
    """
    in_chunks = getattr(config, "attention_chunk_size", None) is not None
    kept = (DynamicLayer,) if in_chunks else (DynamicLayer, DynamicSlidingWindowLayer)
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in kept:
            raise _cannot_follow(model_name, f"a {type(layer).__name__}")


def cache_of(layers: Layers) -> Any:
    """Make a growing cache of these keys and values, (B, N, T, A) each, without copying them; of none, an empty one.

    It keeps all steps. The one that a model makes for itself forgets those that leave a sliding window.
    """
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def cache_argument(module: Any) -> str:
    """Return the name of the cache argument of a model's forward; ``past_key_values`` is the older name."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def cache_in(output: Any) -> Any:
    """Return the cache in the output of a model, under its newer or older name, or None."""
    fields = output.keys()
    return next((output[name] for name in ("cache", "past_key_values") if name in fields), None)


def layers_of(cache: Any, model_name: str) -> Layers:
    """Return the contents of a cache; raise an InputError unless it holds plain keys and values of all steps."""
    if type(cache) is not DynamicCache:
        kind = "no such cache" if cache is None else f"a {type(cache).__name__}"
        raise _cannot_follow(model_name, kind)
    for layer in cache.layers:
        if type(layer) is not DynamicLayer or not layer.is_initialized:
            raise _cannot_follow(model_name, f"a {type(layer).__name__}")
    if not cache.layers:
        raise _cannot_follow(model_name, "an empty cache")
    return tuple((layer.keys, layer.values) for layer in cache.layers)


def two_caches_of(cache: Any, model_name: str) -> tuple[Layers, Layers]:
    """Return the contents of an encoder-decoder's cache: those of its self-attention and cross-attention."""
    if type(cache) is not EncoderDecoderCache:
        raise _cannot_follow(model_name, "no such cache" if cache is None else f"a {type(cache).__name__}")
    return layers_of(cache.self_attention_cache, model_name), layers_of(cache.cross_attention_cache, model_name)


def no_steps(layers: Layers) -> Layers:
    """Make empty caches for one slot: (B, N, T, A) to (B, 1, N, 0, A)."""
    return tree.map(lambda leaf: leaf[:, None, :, :0], layers)


def per_slot(layers: Layers, num_slots: int) -> Layers:
    """Repeat the tensors of each input for all its slots: (B, ...) to (B J, ...), copied only if J > 1."""
    return tree.map(lambda leaf: leaf[:, None].expand(-1, num_slots, *leaf.shape[1:]).flatten(0, 1), layers)


class SlotCopies:
    """Keys and values shared by all slots, copied for each slot once instead of at every step of a search.

    For :mod:`seqwise.tree` it is a nest without tensors that is replaced by a new one, as other tensors need other
    copies.

    Example:
        >>> import torch
        >>> layers, copies = ((torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)),), SlotCopies()
        >>> copies.of(layers, 5) is copies.of(layers, 5)
        True
    """

    def __init__(self) -> None:
        self._layers: Layers = ()
        self._copies: dict[Hashable, Layers] = {}

    def of(self, layers: Layers, num_slots: int) -> Layers:
        """Return :func:`per_slot` of some layers, cached while the layers are the same."""
        if layers is not self._layers:
            self._layers, self._copies = layers, {}
        # What was copied without a graph must not end up in one, nor what has been written over since.
        leaves = [leaf for pair in layers for leaf in pair]
        states = tuple((leaf.requires_grad, 0 if leaf.is_inference() else leaf._version) for leaf in leaves)
        key = num_slots, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), states
        if key not in self._copies:
            self._copies[key] = per_slot(layers, num_slots)
        return self._copies[key]


tree.register_empty(SlotCopies)


def _cannot_follow(model_name: str, kind: str) -> InputError:
    return InputError(
        f"{model_name} keeps {kind}, and only plain keys and values of all steps can be gathered and mixed",
        hint="use a model with plain attention, over all steps or within a sliding window",
    )
