"""Hugging Face encoder-decoder as a step model.

Shapes: B batch, J slots, S source length, T target length, N heads, A size of a head, D embedding, H hidden size.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from seqwise import tree
from seqwise.data.batches import Batch
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.caches import Layers, SlotCopies, cache_in, cache_of, layers_of, no_steps, two_caches_of
from seqwise.hugging_face.positions import Limit, configured_limit
from seqwise.hugging_face.shared_attention import SharedCall, shared_call
from seqwise.hugging_face.sparse_attention import attend_as_first, switching_part
from seqwise.models.fast_layers import PackedLayers, fast_layers
from seqwise.models.shared_cache import SharedCache


class FirstStep(NamedTuple):
    """Result of the decoder's first step, which is the same for all outputs of a source."""

    hidden_B1H: Tensor
    own: Layers  # keys and values of its self-attention, (B, N, 1, A)


class Source(NamedTuple):
    """Encoded sources of an encoder-decoder."""

    hidden_BSH: Tensor  # outputs of the encoder
    mask_BS: Tensor  # 1 at source tokens
    lengths_B: Tensor
    memory: Layers  # keys and values of the cross-attention, (B, N, S, A); () if single steps cannot be taken
    empty: Layers  # the decoder's own keys and values before its first step
    first: FirstStep | tuple[()]  # () if it has to be repeated
    copies: SlotCopies  # of the memory, for several slots
    packed: PackedLayers


class Seq2SeqModel(HuggingFaceStepModel):
    """Encoder-decoder as a step model; made by :func:`~seqwise.hugging_face.step_model`."""

    def encode(self, batch: Batch) -> Source:
        """Encode the sources: keys and values for every cross-attention."""
        lengths_B1 = batch.source_lengths_B.clamp(min=1)[:, None]
        tokens_BS = batch.sources_BS
        if tokens_BS.shape[1] == 0:
            tokens_BS = tokens_BS.new_zeros(len(tokens_BS), 1)
        self._require_positions(tokens_BS.shape[1], "the longest source", self._source_limits)
        # Some encoders skip padding when they count positions.
        padding = getattr(self.model.config, "pad_token_id", None) or 0
        is_real_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device) < lengths_B1
        tokens_BS, mask_BS = tokens_BS.masked_fill(~is_real_BS, padding), is_real_BS.long()
        encoder = self.model.get_encoder()
        attend_as_first(self._switching, tokens_BS.shape[1])
        with fast_layers(encoder):
            hidden_BSH = encoder(input_ids=tokens_BS, attention_mask=mask_BS, return_dict=True).last_hidden_state
        if not self._fills_cache:
            return Source(hidden_BSH, mask_BS, batch.source_lengths_B, (), (), (), SlotCopies(), PackedLayers())
        # The first step, to fill the cache of the cross-attention.
        with self._random_state_restored(), self._filling_cache():
            output = self._run(
                self._embed(tokens_BS.new_full((len(tokens_BS), 1), self.first)),
                encoder_hidden_states=hidden_BSH,
                encoder_attention_mask=mask_BS,
                use_cache=True,
                **{self._cache: EncoderDecoderCache(cache_of(()), cache_of(()))},
            )
        own, memory = two_caches_of(cache_in(output), self._name)
        # Processes that wait for each other take a pass for every step.
        keeps_first = self.shares and self._only_searches and self.lockstep is None
        first = FirstStep(output.last_hidden_state, own) if keeps_first else ()
        lengths_B, empty = batch.source_lengths_B, no_steps(own)
        return Source(hidden_BSH, mask_BS, lengths_B, memory, empty, first, SlotCopies(), PackedLayers())

    @cached_property
    def _switching(self) -> Any:
        return switching_part(self.model)

    @cached_property
    def _source_limits(self) -> list[Limit]:
        """Numbers of positions of the encoder, which are the decoder's unless the configuration has its own."""
        own = configured_limit(self.model.config, "encoder")
        return [own] if own is not None and "encoder" in own.setting else self._position_limits

    def _first_tokens(self, context: Source) -> Tensor:
        return torch.full_like(context.lengths_B, self.first)

    def empty_cache(self, context: Source) -> SharedCache:
        """Return the empty past that slots share."""
        return SharedCache.start(tree.map(lambda leaf: leaf.squeeze(1), context.empty))

    def _shared_step(self, inputs_BJD: Tensor, shared: SharedCache, context: Source, step: int) -> Tensor:
        if isinstance(context.first, FirstStep) and inputs_BJD.shape[1] == 1 and step == 0:
            for layer, (keys_BN1A, values_BN1A) in enumerate(context.first.own):
                shared.put(layer, keys_BN1A, values_BN1A)
            return context.first.hidden_B1H
        call = SharedCall(shared, num_seen=step, memory=context.memory, is_real_BS=context.mask_BS.bool())
        with shared_call(self._decoder, call):
            return self._stepped(inputs_BJD, EncoderDecoderCache(call.cache, call.memory), None, context, step)

    def _one_step(self, inputs_BJD: Tensor, state: Layers, context: Source, step: int) -> tuple[Tensor, Layers]:
        num_slots = inputs_BJD.shape[1]
        own = cache_of(tree.map(lambda leaf: leaf.flatten(0, 1), state))
        cache = EncoderDecoderCache(own, cache_of(context.copies.of(context.memory, num_slots)))
        mask = context.mask_BS.repeat_interleave(num_slots, dim=0)
        return self._stepped(inputs_BJD, cache, mask, context, step), layers_of(own, self._name)

    def _stepped(
        self, inputs_BJD: Tensor, cache: EncoderDecoderCache, mask: Tensor | None, context: Source, step: int
    ) -> Tensor:
        self._require_positions(step + 1, f"step {step + 1}")
        rows = inputs_BJD.shape[0] * inputs_BJD.shape[1]
        # Only the shape is read, since the cross-attention has its keys and values.
        shape_only = context.hidden_BSH.new_zeros(()).expand(rows, *context.hidden_BSH.shape[1:])
        hidden: Tensor = self._run(
            inputs_BJD.flatten(0, 1)[:, None],
            encoder_hidden_states=shape_only,
            encoder_attention_mask=mask,
            use_cache=True,
            **{self._cache: cache},
        ).last_hidden_state
        return hidden

    def _all_steps(self, inputs_BTD: Tensor, context: Source) -> Tensor:
        self._require_positions(inputs_BTD.shape[1], "the longest target")
        keeps = bool(context.memory) and self._continues_cache
        cache = EncoderDecoderCache(cache_of(()), cache_of(context.memory)) if keeps else None
        hidden_BTH: Tensor = self._run(
            inputs_BTD,
            encoder_hidden_states=context.hidden_BSH,
            encoder_attention_mask=context.mask_BS,
            use_cache=cache is not None,
            **{self._cache: cache},
        ).last_hidden_state
        return hidden_BTH
