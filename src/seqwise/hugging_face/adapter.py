"""Base class of the adapters for seq2seq and causal models.

Shapes: B batch, J slots, T target length or steps so far, L queries of a call, N heads, A size of a head, D embedding,
H features, V vocabulary.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from seqwise import tree
from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.hugging_face.caches import (
    EMPTY,
    WITH_RECURRENCES,
    Layers,
    cache_argument,
    has_recurrences,
    require_plain_layers,
)
from seqwise.hugging_face.generation import SpecialTokens
from seqwise.hugging_face.heads import head_of, head_shape
from seqwise.hugging_face.positions import Limit, decoder_limits
from seqwise.hugging_face.sharding import Lockstep
from seqwise.models.fast_layers import fast_layers
from seqwise.models.heads import ForcedFirst
from seqwise.models.shared_cache import Past, SharedCache
from seqwise.search.language import Language


class HuggingFaceStepModel(nn.Module, ABC):
    """Base class of both adapters; made by :func:`~seqwise.hugging_face.step_model`."""

    end: int | None  # the token that ends an output
    language: Language | None  # restricts the outputs of searches

    def __init__(self, model: Any, tokens: SpecialTokens, scale: float) -> None:
        super().__init__()
        self.model: Any = model  # holds all weights
        self.end, self.first, self.forced_first, self.padding = tokens
        self.scale, self.training = scale, model.training
        self.language = None
        self.shares = False  # whether slots share their keys and values without gradients
        self.lockstep: Lockstep | None = None  # set if layers are sharded over processes
        self.steps_singly = True  # whether single steps are taken, not only all steps at once
        decoder_config, is_causal = model.get_decoder().config, not model.config.is_encoder_decoder
        allowed = (*WITH_RECURRENCES, *EMPTY) if is_causal else ()
        require_plain_layers(decoder_config, type(model).__name__, allowed=allowed)
        self.recurs = has_recurrences(decoder_config)  # whether a layer keeps anything but keys and values
        self._cache = cache_argument(model.get_decoder())
        self._takes_positions = "position_ids" in inspect.signature(model.get_decoder().forward).parameters
        head = head_of(model)
        # In a tuple, because as an attribute it would be registered, and the model's weights would appear twice.
        self._head = (head if self.forced_first is None else ForcedFirst(head, self.forced_first, width=self._width),)
        # So that the saved weights are those of the model, and load without this package.
        self.register_state_dict_post_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)

    @property
    def head(self) -> nn.Module:
        """Compute unnormalised scores of features: the model's linear layer and whatever it applies to the output."""
        return self._head[0]

    @property
    def embedding_VD(self) -> Tensor:
        """Input embedding of every output token, including a scale that the model applies outside of the embedding."""
        embedding = self._embedding
        if type(embedding) is nn.Embedding or getattr(embedding, "embed_scale", None) == 1.0:
            weight_VD: Tensor = embedding.weight
            return weight_VD
        # A look-up gives padding no gradient, and a mixture needs it.
        padding_of = {part: part.padding_idx for part in embedding.modules() if hasattr(part, "padding_idx")}
        try:
            for part in padding_of:
                part.padding_idx = None
            return self._embed(torch.arange(embedding.weight.shape[0], device=embedding.weight.device))
        finally:
            for part, padding in padding_of.items():
                part.padding_idx = padding

    @property
    def _width(self) -> int:
        """Number of features, without the mark of the first step."""
        return head_shape(self.model)[1]

    @property
    def _decoder(self) -> Any:
        return self.model.get_decoder()

    @property
    def _embedding(self) -> Any:
        return self._decoder.get_input_embeddings()

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self._embedding(tokens)
        return embedded

    @property
    def _name(self) -> str:
        return type(self.model).__name__

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether it trains with the model's gradient checkpointing.

        All steps at once are recomputed by layers, as in Transformers, and the single steps of a search by segments
        (``seqwise.search.segments``), since a recomputed layer drops its cache.
        """
        return self.model.training and bool(self._checkpointing_parts())

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enabled: bool) -> None:
        name = "checkpointing_enable" if enabled else "checkpointing_disable"
        # Transformers has renamed it; the older name warns.
        switch = getattr(self.model, f"activation_{name}", None) or getattr(self.model, f"gradient_{name}")
        try:
            switch()
        except ValueError:
            problem = f"gradient_checkpointing: a {self._name} cannot recompute its layers"
            raise InputError(problem, hint="leave it out") from None

    def _checkpointing_parts(self) -> list[Any]:
        return [part for part in self.model.modules() if getattr(part, "gradient_checkpointing", False)]

    @contextmanager
    def _caching(self) -> Iterator[None]:
        """Switch off gradient checkpointing by layers, which drops every cache."""
        parts = self._checkpointing_parts() if self.model.training else []
        for part in parts:
            part.gradient_checkpointing = False
        try:
            yield
        finally:
            for part in parts:
                part.gradient_checkpointing = True

    @contextmanager
    def _filling_cache(self) -> Iterator[None]:
        """Fill a cache with a source; if layers are sharded, only for searches, without gradients."""
        with self._caching(), torch.set_grad_enabled(torch.is_grad_enabled() and self.lockstep is None):
            yield

    def _random_state_restored(self) -> AbstractContextManager[None]:
        """Restore the random state after a step that only fills the cache.

        So the dropout of the decoder draws the same numbers with and without a cache. The state is not restored if PEFT
        adapters apply their own dropout before the cached keys and values.
        """
        parts = list(self._decoder.modules())
        devices = {parameter.device for part in parts for parameter in part.parameters(recurse=False)}
        adapted = any(hasattr(part, "base_layer") for part in parts)
        if adapted or any(device.type not in ("cpu", "cuda") for device in devices):
            return nullcontext()
        return torch.random.fork_rng([device for device in devices if device.type == "cuda"])

    @property
    def _drops_layers(self) -> bool:
        """Whether layer drop skips some layers and their caches at random."""
        return self.model.training and getattr(self._decoder, "layerdrop", 0.0) > 0

    @property
    def _continues_cache(self) -> bool:
        """Whether a pass over all steps can use the cache of a source; recurrences continue by single steps only."""
        return not (self.recurs or self.gradient_checkpointing or self._drops_layers or self.lockstep is not None)

    @property
    def _fills_cache(self) -> bool:
        """Whether sources are read into a cache, which single steps need."""
        return self._continues_cache or (self.steps_singly and not self._drops_layers)

    @property
    def _only_searches(self) -> bool:
        """Whether neither gradients nor attention dropout, which need copies, are active."""
        return not self.model.training and not torch.is_grad_enabled()

    def _require_cache(self) -> None:
        if self._drops_layers:
            raise InputError(
                f"{self._name} cannot take single steps while it trains with layer drop (decoder_layerdrop), which "
                "keeps no cache",
                hint="set model.get_decoder().layerdrop = 0.0, or use an objective that takes all steps at once",
            )

    def _require_positions(self, positions: int, what: str, limits: Sequence[Limit] | None = None) -> None:
        for limit, setting in self._position_limits if limits is None else limits:
            if positions > limit:
                raise InputError(
                    f"{what} needs {positions} positions, and {self._name} has {limit} ({setting})",
                    hint="use shorter sources, or fewer steps",
                )

    @property
    def _num_positions(self) -> int | None:
        """Number of positions; None for rotary or relative ones, which have no limit."""
        return min((limit for limit, _ in self._position_limits), default=None)

    @cached_property
    def _position_limits(self) -> list[Limit]:
        """Numbers of positions, each with the setting that limits it."""
        return decoder_limits(self._decoder, self.model.config)

    def _run(self, inputs_BLD: Tensor, **arguments: Any) -> Any:
        with fast_layers(self._decoder):
            return self._decoder(inputs_embeds=inputs_BLD, return_dict=True, **arguments)

    def _features(self, hidden_BLH: Tensor, num_first: int) -> Tensor:
        """Return features for the head; if the first token is forced, the first ``num_first`` of L are marked."""
        features = hidden_BLH if self.scale == 1.0 else hidden_BLH * self.scale
        if self.forced_first is None or num_first == 0:
            return features
        is_first = torch.zeros_like(features[..., :1])
        is_first[:, :num_first] = 1.0
        return torch.cat([features, is_first], dim=-1)

    def most_steps(self, source_ids: Sequence[int]) -> int | None:
        """Return the number of steps for which there are positions after a source; None without a limit."""
        return self._num_positions

    def start(self, context: Any) -> tuple[Tensor, Past]:
        """Return the embedding of the start token, or of the last token of the prompt, and an empty past."""
        self._require_forced_first()
        past = self.empty_cache(context) if self.shares and self._only_searches else context.empty
        return self._embed(self._first_tokens(context))[:, None], past

    def _require_forced_first(self) -> None:
        """Raise an InputError if no output of the language begins with the token that is forced."""
        if self.language is None or self.forced_first is None:
            return
        allowed_11C = self.language.allowed(self.language.start(1, torch.device("cpu")), None)
        if self.forced_first not in allowed_11C.flatten().tolist():
            raise InputError(
                f"{self._name} forces its first token to be {self.forced_first} (forced_bos_token_id), and no output "
                "of the language begins with it",
                hint="put it before every output (of an Automaton, by after()), or pass a generation_config without it",
            )

    def step(self, inputs_BJD: Tensor, state: Past, context: Any, step: int) -> tuple[Tensor, Past]:
        """Read the input embeddings; the past grows by one step, (B, J, N, T, A) to (B, J, N, T + 1, A)."""
        self._require_cache()
        if self.lockstep is not None:
            self.lockstep.announce()
        slots = inputs_BJD.shape[:2]
        if isinstance(state, SharedCache) and not self._only_searches:
            state = state.dense()
        grown: Past
        if isinstance(state, SharedCache):
            grown = state.step()
            # Sharded weights exist only during a pass.
            with fast_layers(self._decoder, context.packed if self.lockstep is None else None):
                hidden = self._shared_step(inputs_BJD, grown, context, step)
        else:
            with self._caching():
                hidden, layers = self._one_step(inputs_BJD, state, context, step)
            grown = tree.map(lambda leaf: leaf.unflatten(0, slots), layers)
        return self._features(hidden.unflatten(0, slots).squeeze(2), slots[1] if step == 0 else 0), grown

    def forced(self, context: Any, inputs_BTD: Tensor) -> Tensor:
        """Compute features along given embeddings, all steps at once, also with gradient checkpointing."""
        if inputs_BTD.shape[1] == 0:
            return inputs_BTD.new_zeros(len(inputs_BTD), 0, self._width)
        if self.lockstep is not None:
            self.lockstep.announce()
            self._one_row = inputs_BTD[:1, :1].detach(), tree.map(_first_row, context)
        return self._features(self._all_steps(inputs_BTD, context), 1)

    @torch.no_grad()
    def idle_pass(self) -> None:
        """Pass a token through all layers, which other processes wait for; leaves the random state unchanged."""
        inputs_BTD, context = self._one_row
        with self._random_state_restored():
            self._all_steps(inputs_BTD, context)

    def teacher_forced(self, context: Any, targets_BT: Tensor) -> Tensor:
        """Compute features along the gold outputs; positions after the end of a row are arbitrary.

        Raises an InputError for a target that does not begin with a forced first token.
        """
        if self.forced_first is not None and targets_BT.numel() > 0:
            first_B = targets_BT[:, 0]
            if bool(((first_B != self.forced_first) & (first_B >= 0)).any()):
                raise InputError(
                    f"{self._name} forces its first token to be {self.forced_first} (forced_bos_token_id), and a "
                    "target begins with another",
                    hint="put it before every target, or pass a generation_config without forced_bos_token_id",
                )
        # Inputs at ignored positions only affect positions that are ignored as well.
        fed_BT = torch.cat([self._first_tokens(context)[:, None], targets_BT[:, :-1].clamp(min=0)], dim=1)
        return self.forced(context, self._embed(fed_BT[:, : targets_BT.shape[1]]))

    @abstractmethod
    def encode(self, batch: Batch) -> Any:
        """Encode the sources once."""

    @abstractmethod
    def _first_tokens(self, context: Any) -> Tensor: ...

    @abstractmethod
    def empty_cache(self, context: Any) -> SharedCache:
        """Return the empty past that slots share."""

    @abstractmethod
    def _shared_step(self, inputs_BJD: Tensor, shared: SharedCache, context: Any, step: int) -> Tensor: ...

    @abstractmethod
    def _one_step(self, inputs_BJD: Tensor, state: Layers, context: Any, step: int) -> tuple[Tensor, Layers]: ...

    @abstractmethod
    def _all_steps(self, inputs_BTD: Tensor, context: Any) -> Tensor: ...


def _first_row(leaf: Any) -> Any:
    return leaf[:1].detach() if isinstance(leaf, Tensor) else leaf


def _without_prefix(module: nn.Module, weights: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    """Rename weights in a state dict: without the prefix of the attribute that holds the model."""
    _rename(weights, prefix + "model.", prefix)


def _with_prefix(module: nn.Module, weights: MutableMapping[str, Any], prefix: str, *others: Any) -> None:
    _rename(weights, prefix, prefix + "model.")


def _rename(weights: MutableMapping[str, Any], old: str, new: str) -> None:
    named = [(name, weights.pop(name)) for name in list(weights) if name.startswith(old)]
    weights.update({new + name.removeprefix(old): tensor for name, tensor in named})
