"""Transformer encoder-decoder as a step model, with its key-value cache as decoder state.

Shapes: B batch, J slots, S source length, T target length, L queries, N heads, A size of a head, H hidden size, which
is also the size D of a fed embedding and that of the features, V output vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.attention import attention
from seqwise.models.hub import HubModel
from seqwise.models.products import Linear
from seqwise.models.recurrent import shifted_right
from seqwise.models.shared_cache import KeysValues, Past, SharedCache, additive


class TransformerContext(NamedTuple):
    """Encoded sources: keys and values of each decoder layer, (B, N, S, A) each, and the mask of real positions."""

    memories: tuple[KeysValues, ...]
    mask_BS: Tensor
    lengths_B: Tensor


def sinusoids(first: int, count: int, like: Tensor) -> Tensor:
    """Return the codes of ``count`` positions from ``first`` on, (count, size of ``like``), with its device and type.

    ``[sin(t r_0), ..., sin(t r_{n-1}), cos(t r_0), ..., cos(t r_{n-1})]``, ``r_i = 10000^(-i / n)``, n half the size.

    Source: Vaswani et al. (2017), section 3.5; sines and cosines alternate there, which only permutes dimensions.
    """
    size = like.shape[-1]
    half = (size + 1) // 2
    # Half precision is too coarse: above 256, bfloat16 does not have every integer.
    dtype = torch.promote_types(like.dtype, torch.float32)
    rates_R = torch.exp(torch.arange(half, device=like.device, dtype=dtype) * (-math.log(10000.0) / half))
    angles_TR = torch.arange(first, first + count, device=like.device, dtype=dtype)[:, None] * rates_R
    return torch.cat([angles_TR.sin(), angles_TR.cos()], dim=-1)[:, :size].to(like.dtype)


def add_positions(embedded: Tensor, first: int = 0) -> Tensor:
    """Add position codes to embeddings (..., T, H): ``sqrt(H) e_t + p_{first + t}``."""
    return math.sqrt(embedded.shape[-1]) * embedded + sinusoids(first, embedded.shape[-2], embedded)


def check_sizes(*, hidden_size: int, num_heads: int, **others: int) -> None:
    """Raise an InputError for sizes below 1, or a hidden size that is not a multiple of the number of heads."""
    for name, size in {"hidden_size": hidden_size, "num_heads": num_heads, **others}.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}")
    if hidden_size % num_heads != 0:
        raise InputError(
            f"hidden_size {hidden_size} cannot be divided among num_heads {num_heads}",
            hint=f"use a multiple of {num_heads}",
        )


def initialise(model: nn.Module, *embeddings: Tensor) -> None:
    """Initialise a Transformer: linear layers by Glorot's rule with zero biases, embeddings with norm about 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    # ``add_positions`` multiplies them by sqrt(H), which makes them as large as the position codes.
    for embedding in embeddings:
        nn.init.normal_(embedding, std=embedding.shape[-1] ** -0.5)


class Attention(nn.Module):
    """Multi-head attention in two parts: :meth:`read` makes keys and values, which can be cached; a call attends."""

    def __init__(self, *, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(hidden_size, hidden_size)
        self.key = Linear(hidden_size, hidden_size)
        self.value = Linear(hidden_size, hidden_size)
        self.output = Linear(hidden_size, hidden_size)

    def _heads(self, projected: Tensor) -> Tensor:
        """Split heads: (..., L, H) to (..., N, L, A)."""
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)

    def read(self, hidden: Tensor) -> KeysValues:
        """Compute keys and values (..., N, L, A) of hidden vectors (..., L, H)."""
        return self._heads(self.key(hidden)), self._heads(self.value(hidden))

    def forward(self, hidden: Tensor, keys_values: KeysValues, mask: Tensor | None = None) -> Tensor:
        """Attend from each hidden vector (..., L, H) to the keys; a mask that is false or -inf hides a key."""
        queries, (keys, values) = self._heads(self.query(hidden)), keys_values
        # Four dimensions, because the fused kernels take no others.
        attended = attention(queries.flatten(0, -4), keys.flatten(0, -4), values.flatten(0, -4), mask)
        return self.output(attended.transpose(1, 2).reshape(hidden.shape))


def picked(hidden_BTH: Tensor, wanted_BL: Tensor | None) -> Tensor:
    """Return the vectors at some positions of each row, (B, L, H); by default at all."""
    if wanted_BL is None:
        return hidden_BTH
    return hidden_BTH.gather(1, wanted_BL[:, :, None].expand(-1, -1, hidden_BTH.shape[2]))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, with pre-normalisation and residual connections."""

    def __init__(self, *, hidden_size: int, num_heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.own_norm = nn.LayerNorm(hidden_size)
        self.own = Attention(hidden_size=hidden_size, num_heads=num_heads)
        self.feedforward = _feedforward(hidden_size, feedforward_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_BSH: Tensor, mask_B11S: Tensor, wanted_BL: Tensor | None = None) -> Tensor:
        """Compute all positions, or only the wanted ones; the others only need keys and values, a sixth of the work."""
        normal_BSH = self.own_norm(hidden_BSH)
        memory = self.own.read(normal_BSH)
        hidden_BLH, normal_BLH = picked(hidden_BSH, wanted_BL), picked(normal_BSH, wanted_BL)
        hidden_BLH = hidden_BLH + self.dropout(self.own(normal_BLH, memory, mask_B11S))
        return hidden_BLH + self.dropout(self.feedforward(hidden_BLH))


class DecoderLayer(nn.Module):
    """Self-attention over the output so far, attention to the source, and a feed-forward network."""

    def __init__(self, *, hidden_size: int, num_heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.own_norm = nn.LayerNorm(hidden_size)
        self.own = Attention(hidden_size=hidden_size, num_heads=num_heads)
        self.cross_norm = nn.LayerNorm(hidden_size)
        self.cross = Attention(hidden_size=hidden_size, num_heads=num_heads)
        self.feedforward = _feedforward(hidden_size, feedforward_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def step(
        self, hidden_BJH: Tensor, cache: KeysValues, memory: KeysValues, mask_B11S: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """Take a step of every slot, and append its keys and values: (B, J, N, T, A) to (B, J, N, T + 1, A)."""
        normal_BJ1H = self.own_norm(hidden_BJH).unsqueeze(2)
        new_keys, new_values = self.own.read(normal_BJ1H)
        cache = torch.cat([cache[0], new_keys], dim=-2), torch.cat([cache[1], new_values], dim=-2)
        hidden_BJH = hidden_BJH + self.dropout(self.own(normal_BJ1H, cache).squeeze(2))
        return self._after_own(hidden_BJH, memory, mask_B11S), cache

    def forward(
        self,
        hidden_BTH: Tensor,
        own_mask: Tensor,
        memory: KeysValues,
        mask_B11S: Tensor,
        wanted_BL: Tensor | None = None,
    ) -> Tensor:
        """Take all steps at once; a false ``own_mask``, (T, T) or (B, 1, 1, T), hides a position of the output.

        With ``wanted_BL``, compute only these positions; the others only need keys and values, a seventh of the work.
        """
        normal_BTH = self.own_norm(hidden_BTH)
        own_memory = self.own.read(normal_BTH)
        hidden_BLH, normal_BLH = picked(hidden_BTH, wanted_BL), picked(normal_BTH, wanted_BL)
        hidden_BLH = hidden_BLH + self.dropout(self.own(normal_BLH, own_memory, own_mask))
        return self._after_own(hidden_BLH, memory, mask_B11S)

    def shared_step(
        self,
        hidden_BJH: Tensor,
        layer: int,
        shared: SharedCache,
        mask_B1JC: Tensor,
        memory: KeysValues,
        mask_B11S: Tensor,
    ) -> Tensor:
        """Take a step with one cache for all slots, and write this layer's keys and values to it."""
        normal_BJH = self.own_norm(hidden_BJH)
        cache = shared.put(layer, *self.own.read(normal_BJH))
        hidden_BJH = hidden_BJH + self.dropout(self.own(normal_BJH, cache, mask_B1JC))
        return self._after_own(hidden_BJH, memory, mask_B11S)

    def _after_own(self, hidden_BLH: Tensor, memory: KeysValues, mask_B11S: Tensor) -> Tensor:
        """Attend to the source, for all slots of a step or all steps of an output, and feed forward."""
        hidden_BLH = hidden_BLH + self.dropout(self.cross(self.cross_norm(hidden_BLH), memory, mask_B11S))
        return hidden_BLH + self.dropout(self.feedforward(hidden_BLH))


def _feedforward(hidden_size: int, feedforward_size: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(hidden_size),
        Linear(hidden_size, feedforward_size),
        nn.ReLU(),
        nn.Dropout(dropout),
        Linear(feedforward_size, hidden_size),
    )


class Transformer(nn.Module, HubModel):
    """Transformer encoder-decoder with pre-normalisation and sinusoidal position codes.

    ``x_t = sqrt(H) e_t + p_t``; in each layer ``x <- x + part(LayerNorm(x))``, where the parts of the decoder are
    self-attention, attention to the encoder's output, and a feed-forward network; ``features = LayerNorm(x)`` and
    ``f(features, w) = W_w . features + b_w``. The state holds, for each layer, the keys and values of all steps so far,
    (B, J, N, T, A) each. A hard selection gathers them and a soft one mixes them, like an LSTM's state.

    Args:
        source_size: number of source symbols.
        target_size: number of output symbols V, end token included.
        end: id of the token that ends an output.
        hidden_size: size H of embeddings, layers and features; a multiple of ``num_heads``.
        num_layers: number of layers of the encoder, and of the decoder.
        num_heads: number of heads of every attention.
        feedforward_size: hidden size of the feed-forward networks.
        dropout: rate on embeddings, inside and after each part, and on features; attention weights are not dropped.

    Raises:
        InputError: a size is less than 1, or the hidden size is not a multiple of the number of heads.

    Source: Vaswani et al. (2017), with the pre-normalisation of Xiong et al. (2020). Not implemented: embeddings shared
    between source, target and head; relative positions; in training, a cache that is not copied at every step (a
    selection at step T costs T times as much as for an LSTM of this size).

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> model = Transformer(source_size=5, target_size=3, end=2, hidden_size=8, num_heads=2, feedforward_size=16)
        >>> batch = collate([EncodedExample((1, 4), (0, 1, 2))])
        >>> model.head(model.teacher_forced(model.encode(batch), batch.targets_BT)).shape  # f, (B, T, V)
        torch.Size([1, 3, 3])
    """

    end: int | None

    def __init__(
        self,
        *,
        source_size: int,
        target_size: int,
        end: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        feedforward_size: int = 512,
        dropout: float = 0.1,
    ) -> None:
        sizes: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_heads": num_heads,
            "feedforward_size": feedforward_size,
        }
        check_sizes(num_layers=num_layers, **sizes)
        super().__init__()
        self.end = end
        self.source_embedding = nn.Embedding(source_size, hidden_size)
        self.encoder = nn.ModuleList(EncoderLayer(**sizes, dropout=dropout) for _ in range(num_layers))
        self.encoder_norm = nn.LayerNorm(hidden_size)
        self.first_input_D = nn.Parameter(torch.empty(hidden_size))
        self.target_embedding = nn.Embedding(target_size, hidden_size)
        self.decoder = nn.ModuleList(DecoderLayer(**sizes, dropout=dropout) for _ in range(num_layers))
        self.decoder_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.head = Linear(hidden_size, target_size)
        initialise(self, self.source_embedding.weight, self.target_embedding.weight, self.first_input_D)

    @property
    def embedding_VD(self) -> Tensor:
        """The output embeddings."""
        return self.target_embedding.weight

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def encode(self, batch: Batch) -> TransformerContext:
        """Encode the sources: keys and values for every decoder layer."""
        sources_BS = batch.sources_BS
        if sources_BS.shape[1] == 0:
            sources_BS = sources_BS.new_zeros(len(sources_BS), 1)
        # An empty source is read as one padding symbol, whatever else is in the batch.
        lengths_B1 = batch.source_lengths_B.clamp(min=1)[:, None]
        mask_BS = torch.arange(sources_BS.shape[1], device=sources_BS.device) < lengths_B1
        mask_B11S = mask_BS[:, None, None]
        hidden_BSH = self.dropout(add_positions(self.source_embedding(sources_BS)))
        for layer in self.encoder:
            hidden_BSH = layer(hidden_BSH, mask_B11S)
        memory_BSH = self.encoder_norm(hidden_BSH)
        return TransformerContext(
            tuple(layer.cross.read(memory_BSH) for layer in self._decoder_layers()), mask_BS, batch.source_lengths_B
        )

    def start(self, context: TransformerContext) -> tuple[Tensor, Past]:
        """Return the learned first input and, for each layer, empty keys and values."""
        batch_size = context.mask_BS.shape[0]
        empty = tuple((keys_BNSA[:, :, :0], values_BNSA[:, :, :0]) for keys_BNSA, values_BNSA in context.memories)
        state: Past = tuple((keys[:, None], values[:, None]) for keys, values in empty)
        if not torch.is_grad_enabled():
            state = SharedCache.start(empty)
        return self.first_input_D.expand(batch_size, 1, -1), state

    def step(self, inputs_BJD: Tensor, state: Past, context: TransformerContext, step: int) -> tuple[Tensor, Past]:
        """Read the input embeddings at position ``step``; the state grows by one step."""
        hidden_BJH = self.dropout(add_positions(inputs_BJD[:, :, None], step).squeeze(2))
        mask_B11S = context.mask_BS[:, None, None]
        if isinstance(state, SharedCache) and torch.is_grad_enabled():
            state = state.dense()
        if isinstance(state, SharedCache):
            grown = state.step()
            own_B1JC, mask_B11S = (additive(mask, hidden_BJH.dtype) for mask in (grown.mask(), mask_B11S))
            for number, (layer, memory) in enumerate(zip(self._decoder_layers(), context.memories, strict=True)):
                hidden_BJH = layer.shared_step(hidden_BJH, number, grown, own_B1JC, memory, mask_B11S)
            return self.dropout(self.decoder_norm(hidden_BJH)), grown
        caches = []
        for layer, cache, memory in zip(self._decoder_layers(), state, context.memories, strict=True):
            hidden_BJH, longer = layer.step(hidden_BJH, cache, memory, mask_B11S)
            caches.append(longer)
        return self.dropout(self.decoder_norm(hidden_BJH)), tuple(caches)

    def forced(self, context: TransformerContext, inputs_BTD: Tensor) -> Tensor:
        """Compute features along given embeddings, all steps at once."""
        num_steps = inputs_BTD.shape[1]
        past_TT = torch.ones(num_steps, num_steps, dtype=torch.bool, device=inputs_BTD.device).tril()
        hidden_BTH = self.dropout(add_positions(inputs_BTD))
        mask_B11S = context.mask_BS[:, None, None]
        for layer, memory in zip(self.decoder, context.memories, strict=True):
            hidden_BTH = layer(hidden_BTH, past_TT, memory, mask_B11S)
        return self.dropout(self.decoder_norm(hidden_BTH))

    def teacher_forced(self, context: TransformerContext, targets_BT: Tensor) -> Tensor:
        """Compute features along the gold outputs; positions after the end of a row are arbitrary."""
        return self.forced(context, shifted_right(self.first_input_D, self.target_embedding, targets_BT))
