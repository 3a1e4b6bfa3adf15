"""Conversion between caches of Hugging Face models and nests of tensors that can be gathered and mixed.

Shapes: B batch, J slots, N heads, S source or prompt length, T steps so far, A size of a head; keys and values of one
layer are (B J, N, T, A) in a cache and (B, J, N, T, A) in a decoder state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, EncoderDecoderCache, cache_utils
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from seqwise import tree
from seqwise.errors import InputError
from seqwise.models.shared_cache import KeysValues


class Recurrence(NamedTuple):
    """States of a layer with a recurrence, (B, ...) each."""

    convolved: tuple[Tensor, ...]  # the last inputs of its convolutions
    recurrent: tuple[Tensor, ...]  # its recurrent states
    keys_values: tuple[Tensor, ...]  # of attention beside the recurrence, or ()


Layers = tuple[Any, ...]
"""Cached tensors of each layer: keys and values (``KeysValues``), a :class:`Recurrence`, or ()."""

# Names of the cache in arguments and outputs: the current one, and the older ones of most models and of Mamba.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
# Entries of a cache for layers that keep nothing; older versions of Transformers have none.
EMPTY: tuple[Any, ...] = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))
WITH_RECURRENCES: tuple[Any, ...] = (
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)


def require_plain_layers(config: Any, model_name: str, *, allowed: tuple[Any, ...] = ()) -> None:
    """Raise an InputError if a layer keeps anything but keys and values, except for layers of the allowed types.

    Keys and values that leave a sliding window may be kept, since the mask hides them.
    """
    in_chunks = getattr(config, "attention_chunk_size", None) is not None
    plain = (DynamicLayer,) if in_chunks else (DynamicLayer, DynamicSlidingWindowLayer)
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in (*plain, *allowed):
            raise _cannot_follow(model_name, f"a {type(layer).__name__}")


def has_recurrences(config: Any) -> bool:
    """Whether a layer keeps the state of a recurrence, or nothing."""
    return any(isinstance(layer, (LinearAttentionLayer, *EMPTY)) for layer in DynamicCache(config=config).layers)


def cache_of(layers: Layers) -> Any:
    """Make a growing cache from the tensors of layers, (B, ...) each, without copying keys and values.

    Without layers, it is empty. It keeps all steps, while a model's own cache drops those that leave a sliding window.
    """
    cache = DynamicCache()
    for kept in layers:
        if isinstance(kept, Recurrence):
            cache.layers.append(_recurrent_layer(kept))
        else:
            cache.layers.append(_filled(DynamicLayer(), *kept) if kept else EMPTY[0]())
    return cache


def empty_cache_of(config: Any) -> Any:
    """Make an empty growing cache for a model with recurrences; its config determines the types of the layers."""
    cache = DynamicCache(config=config)
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[place] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return cache


def _filled(layer: Any, keys: Tensor, values: Tensor) -> Any:
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


def _recurrent_layer(kept: Recurrence) -> Any:
    number_of_states = max(len(kept.convolved), len(kept.recurrent))
    if kept.keys_values:
        layer = _filled(LinearAttentionAndFullAttentionLayer(number_of_states), *kept.keys_values)
    else:
        layer = LinearAttentionLayer(number_of_states)
    for number, state in enumerate(kept.convolved):
        layer.lazy_initialization(conv_states=state, state_idx=number)
        layer.has_previous_state[number] = True
    for number, state in enumerate(kept.recurrent):
        layer.lazy_initialization(recurrent_states=state, state_idx=number)
    # Cloned, because kernels for GPUs overwrite them.
    layer.conv_states.update((number, state.clone()) for number, state in enumerate(kept.convolved))
    layer.recurrent_states.update((number, state.clone()) for number, state in enumerate(kept.recurrent))
    return layer


class ReplacedStates(TorchFunctionMode):
    """Mode in which a model replaces the states in a cache that it would overwrite.

    So gradients flow through a recurrence, whose steps read a state before they overwrite it.

    Args:
        cache: the cache that is passed to the model.
        model_name: for messages.

    Raises:
        InputError: on exit, gradients are computed, and a state has none or was overwritten in another way.
    """

    def __init__(self, cache: Any, model_name: str) -> None:
        super().__init__()
        self.cache, self.model_name = cache, model_name
        self.initial = [states[number] for states, number in self._entries()]

    def _entries(self) -> Iterator[tuple[dict[int, Any], int]]:
        """Yield each state as the dictionary that holds it, and its key there."""
        for layer in self.cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                for states in (layer.conv_states, layer.recurrent_states):
                    yield from ((states, number) for number in states)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Replace a state instead of overwriting it; call every other function."""
        if func is Tensor.copy_:
            for states, number in self._entries():
                if states[number] is args[0]:
                    states[number] = args[1].to(args[0].dtype).expand_as(args[0])
                    return states[number]
        return func(*args, **(kwargs or {}))

    def __exit__(self, *exception: Any) -> None:
        """Check that states were replaced, if gradients are computed."""
        super().__exit__(*exception)
        if exception[0] is None and torch.is_grad_enabled():
            for before, (states, number) in zip(self.initial, self._entries(), strict=True):
                if before is None:
                    continue
                if states[number] is before or (before.requires_grad and not states[number].requires_grad):
                    raise InputError(
                        f"{self.model_name} computes the states of its recurrence without gradients",
                        hint="train it without the kernels that replace the functions of its recurrence",
                    )


def cache_argument(module: Any) -> str:
    """Return the name of the cache argument of a model's forward."""
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[1])


def cache_in(output: Any) -> Any:
    """Return the cache in the output of a model, or None."""
    fields = output.keys()
    return next((output[name] for name in CACHE_NAMES if name in fields), None)


def layers_of(cache: Any, model_name: str) -> Layers:
    """Return the tensors of a cache; raise an InputError for other kinds of caches and layers."""
    if type(cache) is not DynamicCache:
        raise _cannot_follow(model_name, _kind_of(cache))
    if not cache.layers:
        raise _cannot_follow(model_name, "an empty cache")
    return tuple(_tensors_of(layer, model_name) for layer in cache.layers)


def _tensors_of(layer: Any, model_name: str) -> KeysValues | Recurrence | tuple[()]:
    if isinstance(layer, EMPTY):
        return ()
    with_attention = isinstance(layer, DynamicLayer)
    keeps_all = type(layer) in (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
    if not keeps_all or (with_attention and not layer.is_initialized):
        raise _cannot_follow(model_name, f"a {type(layer).__name__}")
    if not isinstance(layer, LinearAttentionLayer):
        return layer.keys, layer.values
    convolved, recurrent = (
        tuple(state for state in states.values() if state is not None)
        for states in (layer.conv_states, layer.recurrent_states)
    )
    return Recurrence(convolved, recurrent, (layer.keys, layer.values) if with_attention else ())


def map_layers(
    columns: Callable[..., Tensor], states: Callable[..., Tensor], layers: Layers, *others: Layers
) -> Layers:
    """Map the tensors of layers: keys and values, which have columns, by one function, and recurrent states by another.

    Example:
        >>> layers = ((torch.ones(1), torch.ones(1)), Recurrence((), (torch.ones(1),), ()))
        >>> map_layers(lambda leaf: leaf * 2, lambda leaf: leaf * 3, layers)
        ((tensor([2.]), tensor([2.])), Recurrence(convolved=(), recurrent=(tensor([3.]),), keys_values=()))
    """

    def of_layer(kept: Any, *same: Any) -> Any:
        if not isinstance(kept, Recurrence):
            return tree.map(columns, kept, *same)
        fields = zip((states, states, columns), zip(kept, *same, strict=True), strict=True)
        return Recurrence(*(tree.map(function, *parts) for function, parts in fields))

    return tuple(of_layer(*same) for same in zip(layers, *others, strict=True))


def two_caches_of(cache: Any, model_name: str) -> tuple[Layers, Layers]:
    """Return the contents of an encoder-decoder's cache: those of its self-attention and cross-attention."""
    if type(cache) is not EncoderDecoderCache:
        raise _cannot_follow(model_name, _kind_of(cache))
    return layers_of(cache.self_attention_cache, model_name), layers_of(cache.cross_attention_cache, model_name)


def no_steps(layers: Layers) -> Layers:
    """Return the tensors of one slot before its first step: no columns, (B, 1, N, 0, A), and the recurrent states."""
    return map_layers(lambda leaf: leaf[:, None, :, :0], lambda leaf: leaf[:, None], layers)


def per_slot(layers: Layers, num_slots: int) -> Layers:
    """Repeat the tensors of each input for all its slots: (B, ...) to (B J, ...), copied only if J > 1."""
    return tree.map(lambda leaf: leaf[:, None].expand(-1, num_slots, *leaf.shape[1:]).flatten(0, 1), layers)


class SlotCopies:
    """Keys and values shared by all slots, copied for each slot once instead of at every step of a search.

    For :mod:`seqwise.tree` it is an empty nest, which every map replaces by a new one: other tensors need other copies.

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
        # Copies made without a graph must not be used in one, nor copies of tensors that have been overwritten since.
        leaves = [leaf for pair in layers for leaf in pair]
        versions = tuple((leaf.requires_grad, 0 if leaf.is_inference() else leaf._version) for leaf in leaves)
        key = num_slots, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), versions
        if key not in self._copies:
            self._copies[key] = per_slot(layers, num_slots)
        return self._copies[key]


tree.register_empty(SlotCopies)


def _kind_of(cache: Any) -> str:
    return "no such cache" if cache is None else f"a {type(cache).__name__}"


def _cannot_follow(model_name: str, kind: str) -> InputError:
    return InputError(
        f"{model_name} keeps {kind}, which cannot be gathered and mixed as keys and values of all steps can",
        hint="use a model with plain attention, over all steps or within a sliding window",
    )
