"""Conditional masked model: a Transformer that reads a source and predicts the length of the target.

Shapes: B sources, S positions of the longest source, N targets (the rows of a context), T positions of the longest
target, M masked positions of all targets, L the greatest target length, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.hub import HubModel
from seqwise.models.masked import seen_tokens
from seqwise.models.products import Linear
from seqwise.models.shared_cache import KeysValues
from seqwise.models.transformer import DecoderLayer, EncoderLayer, add_positions, check_sizes, initialise


class ConditionalContext(NamedTuple):
    """Encoding of B sources; B is the first dimension of each tensor, so rows can be selected and repeated.

    Attributes:
        memories: keys and values of [LENGTH] and the source for each decoder layer, (B, heads, 1 + S, A) each.
        mask_BS: bool (B, 1 + S), true at real positions.
        length_log_probs_BL: log-probability that the target has length l, at index l - 1, l = 1 .. L.
    """

    memories: tuple[KeysValues, ...]
    mask_BS: Tensor
    length_log_probs_BL: Tensor


class ConditionalMaskedTransformer(nn.Module, HubModel):
    """Conditional masked language model: source encoder, bidirectional decoder and length predictor.

    The encoder reads ``[LENGTH] x_1 .. x_S`` and gives ``m_0 .. m_S``. ``p(l | x) = softmax(U m_0 + c)_l``, l = 1 .. L.
    ``f(., h(y\\t, x)) = W LayerNorm(z_t) + b``, with z the output of a decoder in which every position attends to
    all positions of the target, masks included, and to all of m. Layers, position codes and initial weights are those
    of :class:`~seqwise.models.transformer.Transformer`.

    Args:
        source_size: number of source symbols; [LENGTH] is one more.
        vocab_size: number of tokens V that can stand at a position; the mask is one more, ``mask_id = V``.
        max_length: the greatest target length L.
        hidden_size: size H of embeddings, layers and features; a multiple of ``num_heads``.
        num_layers: number of layers of the encoder, and of the decoder.
        num_heads: number of heads of every attention.
        feedforward_size: hidden size of the feed-forward networks.
        dropout: rate on embeddings, inside and after each part, and on features.

    Raises:
        InputError: a size is less than 1, or the hidden size is not a multiple of the number of heads.

    Source: Ghazvininejad et al. (EMNLP 2019), sections 2.1 and 2.3; Goyal's thesis (2021), section 6.5. Not
    implemented: embeddings shared between source, target and head.

    Example:
        >>> model = ConditionalMaskedTransformer(source_size=7, vocab_size=5, max_length=9, hidden_size=8, num_heads=2)
        >>> context = model.encode(torch.tensor([[6, 2, 1, 3]]), torch.tensor([4]))
        >>> context.length_log_probs_BL.shape
        torch.Size([1, 9])
        >>> model.masked_logits(torch.tensor([[0, 3, 2]]), torch.tensor([[True, False, True]]), context).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        source_size: int,
        vocab_size: int,
        max_length: int,
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
        others = {"source_size": source_size, "vocab_size": vocab_size, "max_length": max_length}
        check_sizes(num_layers=num_layers, **others, **sizes)
        super().__init__()
        self.vocab_size = vocab_size
        self.mask_id = vocab_size
        self.max_length = max_length
        self.source_embedding = nn.Embedding(source_size, hidden_size)
        self.length_symbol_H = nn.Parameter(torch.empty(hidden_size))
        self.encoder = nn.ModuleList(EncoderLayer(**sizes, dropout=dropout) for _ in range(num_layers))
        self.encoder_norm = nn.LayerNorm(hidden_size)
        self.length_head = Linear(hidden_size, max_length)
        self.target_embedding = nn.Embedding(vocab_size + 1, hidden_size)
        self.decoder = nn.ModuleList(DecoderLayer(**sizes, dropout=dropout) for _ in range(num_layers))
        self.decoder_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.head = Linear(hidden_size, vocab_size)
        initialise(self, self.source_embedding.weight, self.length_symbol_H, self.target_embedding.weight)

    def encode(self, sources_BS: Tensor, source_lengths_B: Tensor) -> ConditionalContext:
        """Encode the sources: keys and values for every decoder layer, and the distribution of the length.

        Args:
            sources_BS: int64, padded with any source symbol.
            source_lengths_B: int64; later positions of a row are not read. An empty source is [LENGTH] alone.

        Raises:
            InputError: shapes do not fit, or a length is not in 0 .. S.
        """
        if sources_BS.ndim != 2 or source_lengths_B.shape != sources_BS.shape[:1]:
            raise InputError(
                f"sources {tuple(sources_BS.shape)} and their lengths {tuple(source_lengths_B.shape)} do not fit",
                hint="give tensors (B, S) and (B,)",
            )
        outside_B = (source_lengths_B < 0) | (source_lengths_B > sources_BS.shape[1])
        if bool(outside_B.any()):
            length = int(source_lengths_B[outside_B][0])
            raise InputError(
                f"a source length is {length}, and there are {sources_BS.shape[1]} positions",
                hint="give lengths from 0 to the number of positions",
            )
        columns_S = torch.arange(1 + sources_BS.shape[1], device=sources_BS.device)
        mask_BS = columns_S <= source_lengths_B[:, None]
        length_symbol_B1H = self.length_symbol_H.expand(len(sources_BS), 1, -1)
        embedded_BSH = torch.cat([length_symbol_B1H, self.source_embedding(sources_BS)], dim=1)
        hidden_BSH = self.dropout(add_positions(embedded_BSH))
        for layer in self.encoder:
            hidden_BSH = layer(hidden_BSH, mask_BS[:, None, None])
        memory_BSH = self.encoder_norm(hidden_BSH)
        length_log_probs_BL = F.log_softmax(self.length_head(self.dropout(memory_BSH[:, 0])), dim=-1)
        memories = tuple(layer.cross.read(memory_BSH) for layer in self._decoder_layers())
        return ConditionalContext(memories, mask_BS, length_log_probs_BL)

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Compute unnormalised scores (M, V) at the masked positions, in row-major order.

        The context is the result of :meth:`encode`, with one row for each row of tokens.

        Raises:
            InputError: shapes do not fit, padding is masked or precedes a token, a row has no tokens, or the context
                is missing or has a different number of rows.
        """
        if not isinstance(context, ConditionalContext):
            raise InputError("this masked model needs a source", hint="pass the result of encode")
        device = self.target_embedding.weight.device
        seen = seen_tokens(tokens_NT, masked_NT, mask_id=self.mask_id, device=device)
        if len(context.mask_BS) != len(tokens_NT):
            raise InputError(
                f"{len(tokens_NT)} sequences with {len(context.mask_BS)} sources",
                hint="give each sequence a row of the context",
            )
        hidden_NTH = self.dropout(add_positions(self.target_embedding(seen.tokens_NT)))
        readable, source_N11S, wanted_NC = seen.readable(), context.mask_BS[:, None, None], seen.wanted_NC
        *layers, last = zip(self._decoder_layers(), context.memories, strict=True)
        for layer, memory in layers:
            hidden_NTH = layer(hidden_NTH, readable, memory, source_N11S)
        layer, memory = last
        hidden_NCH = layer(hidden_NTH, readable, memory, source_N11S, wanted_NC)
        hidden_MH = hidden_NCH[seen.indices] if wanted_NC is None else hidden_NCH.flatten(0, 1)
        return self.head(self.dropout(self.decoder_norm(hidden_MH)))

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)
