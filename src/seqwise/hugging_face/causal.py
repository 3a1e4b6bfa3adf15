"""Hugging Face causal language model as a step model that continues a prompt.

Shapes: B batch, J slots, S prompt length, P = S - 1 prompt tokens before the last, T target length, N heads, A size of
a head, D embedding, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from seqwise import tree
from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.caches import (
    Layers,
    ReplacedStates,
    cache_in,
    cache_of,
    empty_cache_of,
    layers_of,
    map_layers,
    no_steps,
)
from seqwise.hugging_face.shared_attention import SharedCall, shared_call
from seqwise.models.fast_layers import PackedLayers, fast_layers
from seqwise.models.shared_cache import SharedCache


class Prompt(NamedTuple):
    """Prompts of a causal model."""

    tokens_BS: Tensor  # padded on the left
    mask_BP: Tensor  # 1 at prompt tokens, without the last, which is the input of the first step
    lengths_B: Tensor
    memory: Layers  # tensors of all prompt tokens but the last, (B, N, P, A); () if single steps cannot be taken
    empty: Layers  # tensors of the output before its first step
    packed: PackedLayers


class CausalModel(HuggingFaceStepModel):
    """Causal language model that continues a prompt step by step; made by :func:`~seqwise.hugging_face.step_model`.

    Prompts are read with padding on the right, where a causal model does not see it. Their cache is then shifted to the
    right, so that steps follow the prompt without a gap; the attention mask hides the columns before it. A model with
    recurrences reads them with padding on the left, which its own mask keeps out of their states.
    """

    def encode(self, batch: Batch) -> Prompt:
        """Read the prompts, which must not be empty, without their last tokens, the inputs of the first step."""
        tokens_BS, lengths_B = batch.sources_BS, batch.source_lengths_B
        if tokens_BS.shape[1] == 0 or bool((lengths_B < 1).any()):
            raise InputError(
                f"{self._name} continues a prompt, and a source is empty",
                hint="begin every source with the model's start token",
            )
        self._require_positions(tokens_BS.shape[1], "the longest prompt")
        before = tokens_BS.shape[1] - 1
        gaps_B1 = tokens_BS.shape[1] - lengths_B[:, None]
        columns_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        tokens_BS = tokens_BS.masked_fill(columns_S >= lengths_B[:, None], 0)
        from_BS = (columns_S - gaps_B1) % tokens_BS.shape[1]
        shifted_BS, mask_BP = tokens_BS.gather(1, from_BS), (columns_S[:before] >= gaps_B1).long()
        if not self._fills_cache:
            return Prompt(shifted_BS, mask_BP, lengths_B, (), (), PackedLayers())
        if self.recurs:
            memory = self._read_after_padding(shifted_BS, mask_BP)
            return Prompt(shifted_BS, mask_BP, lengths_B, memory, no_steps(memory), PackedLayers())
        # At least one token, since an empty cache has no shapes.
        with self._filling_cache(), fast_layers(self._decoder):
            output = self._decoder(
                input_ids=tokens_BS[:, : max(before, 1)],
                use_cache=True,
                return_dict=True,
                **{self._cache: cache_of(())},
            )
        read = layers_of(cache_in(output), self._name)
        from_BP = (columns_S[:before] - gaps_B1) % max(before, 1)

        def shifted(leaf_BNPA: Tensor) -> Tensor:
            return leaf_BNPA.take_along_dim(from_BP[:, None, :, None], dim=2)

        return Prompt(shifted_BS, mask_BP, lengths_B, tree.map(shifted, read), no_steps(read), PackedLayers())

    def _read_after_padding(self, tokens_BP: Tensor, mask_BP: Tensor) -> Layers:
        """Read prompts with padding on the left, which leaves recurrent states at their initial values."""
        before = mask_BP.shape[1]
        # At least one token, since an empty cache has no shapes.
        mask_BC = mask_BP if before else mask_BP.new_ones(len(mask_BP), 1)
        placement = self._placement(mask_BC, _positions_in(mask_BC))
        cache = empty_cache_of(self._decoder.config)
        with self._filling_cache():
            self._run_cached(self._embed(tokens_BP[:, : max(before, 1)]), cache, placement)
        is_empty_B = mask_BP.sum(1) == 0

        def states(leaf: Tensor) -> Tensor:
            return leaf.masked_fill(is_empty_B.view(-1, *[1] * (leaf.dim() - 1)), 0.0)

        return map_layers(lambda leaf: leaf[:, :, :before], states, layers_of(cache, self._name))

    def most_steps(self, source_ids: Sequence[int]) -> int | None:
        """Return the number of steps with positions after the prompt, whose last token is the first step's input."""
        limit = self._num_positions
        return None if limit is None else limit - len(source_ids) + 1

    def _first_tokens(self, context: Prompt) -> Tensor:
        return context.tokens_BS[:, -1]

    def _placement_of_steps(self, context: Prompt, num_slots: int, first: int, count: int) -> dict[str, Tensor]:
        """Return the mask over the prompt and all steps, and the positions of ``count`` steps from ``first`` on."""
        mask_BP, device = context.mask_BP, context.mask_BP.device
        mask_BA = torch.cat([mask_BP, mask_BP.new_ones(len(mask_BP), first + count)], dim=1)
        positions_BL = (context.lengths_B - 1)[:, None] + torch.arange(first, first + count, device=device)
        placement = self._placement(mask_BA, positions_BL)
        return {name: rows.repeat_interleave(num_slots, dim=0) for name, rows in placement.items()}

    def _placement(self, mask_BA: Tensor, positions_BL: Tensor) -> dict[str, Tensor]:
        """Return the mask and positions as arguments; models that take no positions derive them from the mask."""
        return {"attention_mask": mask_BA} | ({"position_ids": positions_BL} if self._takes_positions else {})

    def empty_cache(self, context: Prompt) -> SharedCache:
        """Return the empty past that slots share, with the prompt."""
        return SharedCache.start(context.memory, context.mask_BP)

    def _shared_step(self, inputs_BJD: Tensor, shared: SharedCache, context: Prompt, step: int) -> Tensor:
        num_seen = context.mask_BP.shape[1] + step
        self._require_positions(num_seen + 1, f"step {step + 1}")
        call = SharedCall(shared, num_seen=num_seen)
        placement = self._placement_of_steps(context, inputs_BJD.shape[1], step, 1)
        if self._takes_positions:
            # The shared cache has its own mask; this one would make the host wait for the GPU.
            del placement["attention_mask"]
        with shared_call(self._decoder, call):
            return self._run_cached(inputs_BJD.flatten(0, 1)[:, None], call.cache, placement)

    def _one_step(self, inputs_BJD: Tensor, state: Layers, context: Prompt, step: int) -> tuple[Tensor, Layers]:
        before, num_slots = context.mask_BP.shape[1], inputs_BJD.shape[1]
        self._require_positions(before + step + 1, f"step {step + 1}")

        def after_prompt(prompt: Tensor, steps: Tensor) -> Tensor:
            return torch.cat([prompt[:, None].expand(-1, num_slots, *prompt.shape[1:]), steps], dim=-2).flatten(0, 1)

        # Recurrent states already include the prompt.
        cache = cache_of(map_layers(after_prompt, lambda _, leaf: leaf.flatten(0, 1), context.memory, state))
        placement = self._placement_of_steps(context, num_slots, step, 1)
        if not any(isinstance(layer, DynamicLayer) for layer in cache.layers):
            del placement["attention_mask"]  # there are no columns to mask
        hidden = self._run_cached(inputs_BJD.flatten(0, 1)[:, None], cache, placement)
        return hidden, map_layers(lambda leaf: leaf[:, :, before:], lambda leaf: leaf, layers_of(cache, self._name))

    def _run_cached(self, inputs_BLD: Tensor, cache: DynamicCache, placement: dict[str, Tensor]) -> Tensor:
        with ReplacedStates(cache, self._name) if self.recurs else nullcontext():
            output = self._run(inputs_BLD, use_cache=True, **{self._cache: cache}, **placement)
        hidden_BLH: Tensor = output.last_hidden_state
        return hidden_BLH

    def _all_steps(self, inputs_BTD: Tensor, context: Prompt) -> Tensor:
        before, num_steps = context.mask_BP.shape[1], inputs_BTD.shape[1]
        self._require_positions(before + num_steps, "the longest target")
        placement = self._placement_of_steps(context, 1, 0, num_steps)
        if context.memory and self._continues_cache:
            return self._run_cached(inputs_BTD, cache_of(context.memory), placement)
        # Without a cache, the prompt is read in the same pass.
        if "position_ids" in placement:
            placement["position_ids"] = torch.cat([_positions_in(context.mask_BP), placement["position_ids"]], dim=1)
        prompt_BPD = self._embed(context.tokens_BS[:, :before])
        output = self._run(torch.cat([prompt_BPD, inputs_BTD], dim=1), use_cache=False, **placement)
        hidden_BTH: Tensor = output.last_hidden_state[:, before:]
        return hidden_BTH


def _positions_in(mask_BP: Tensor) -> Tensor:
    """Count the tokens of prompts that are padded on the left, from 0; 0 for padding."""
    return (mask_BP.cumsum(1) - 1).clamp(min=0)
