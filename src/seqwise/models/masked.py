"""Masked models: a pair of LSTMs that read the context before and after a position, and a Transformer.

Shapes: N rows, T positions, M masked positions of all rows, V vocabulary, D embedding, H hidden size, F hidden size of
the head.

Rows may differ in length: ``IGNORE`` pads shorter ones, and scores do not depend on the padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.data.batches import IGNORE
from seqwise.devices import moved
from seqwise.errors import InputError
from seqwise.models.hub import HubModel
from seqwise.models.lstm_steps import backwards, run_lstm
from seqwise.models.products import Linear
from seqwise.models.transformer import EncoderLayer, add_positions, check_sizes, initialise


class MaskedLSTM(nn.Module, HubModel):
    """Masked model of two LSTMs, one over the tokens before a position and one, right to left, over those after it.

    ``f(., h(y\\t)) = W gelu(A [l_t; r_t] + a) + b``, with l_t the state of the first after y_1 .. y_{t-1}, r_t that of
    the second after y_T .. y_{t+1}, and zeros where there is nothing to read. A position never reads itself; the mask
    replaces the *other* masked positions. If one position of each row is masked, l_t depends only on the prefix and r_t
    only on the suffix.

    Args:
        vocab_size: number of tokens V that can stand at a position; the mask is one more, ``mask_id = V``.
        embedding_size: size D of a token's embedding, shared by both LSTMs.
        hidden_size: size H of each LSTM.
        feedforward_size: size F of the head's hidden layer.

    Source: Goyal's thesis (2021), section 6.2.3 ("bidirectional LSTMs"; sizes are not given). Not implemented: several
    layers, dropout.

    Example:
        >>> model = MaskedLSTM(vocab_size=5, embedding_size=4, hidden_size=8, feedforward_size=8)
        >>> model.masked_logits(torch.tensor([[0, 3, 2]]), torch.tensor([[True, False, True]])).shape
        torch.Size([2, 5])
    """

    def __init__(
        self, *, vocab_size: int, embedding_size: int = 32, hidden_size: int = 64, feedforward_size: int = 128
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.mask_id = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, embedding_size)
        self.before = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.after = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.combine = Linear(2 * hidden_size, feedforward_size)
        self.head = Linear(feedforward_size, vocab_size)

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Compute unnormalised scores (M, V) at the masked positions, in row-major order.

        Raises:
            InputError: shapes do not fit, padding is masked or precedes a token, a row has no tokens, or there is a
                context.
        """
        refuse_context(context)
        seen = seen_tokens(tokens_NT, masked_NT, mask_id=self.mask_id, device=self.embedding.weight.device)
        embedded_NTD = self.embedding(seen.tokens_NT)
        left_NTH, _ = run_lstm(self.before, embedded_NTD)
        right_NTH, _ = run_lstm(self.after, backwards(embedded_NTD, seen.real_NT))
        # Shifted by one, so that a position gets its neighbour's state and never reads itself.
        left_NTH = F.pad(left_NTH[:, :-1], (0, 0, 1, 0))
        right_NTH = backwards(F.pad(right_NTH[:, :-1], (0, 0, 1, 0)), seen.real_NT)
        features_MF = F.gelu(self.combine(torch.cat([left_NTH[seen.indices], right_NTH[seen.indices]], dim=-1)))
        return self.head(features_MF)


class MaskedTransformer(nn.Module, HubModel):
    """Masked language model: a Transformer that reads the masked sequence, and scores tokens at masked positions.

    ``x_t = sqrt(H) e_t + p_t`` with sinusoidal position codes p_t, the layers of
    :class:`~seqwise.models.transformer.Transformer`'s encoder, ``f(., h(y\\t)) = W LayerNorm(x_t) + b`` at the masked
    positions only.

    Args:
        vocab_size: number of tokens V that can stand at a position; the mask is one more, ``mask_id = V``.
        hidden_size: size H of embeddings, layers and features; a multiple of ``num_heads``.
        num_layers: number of layers.
        num_heads: number of heads of every attention.
        feedforward_size: hidden size of the feed-forward networks.
        dropout: rate on embeddings, inside and after each part, and on features.

    Raises:
        InputError: a size is less than 1, or the hidden size is not a multiple of the number of heads.

    Source: Devlin et al. (NAACL 2019), section 3; Goyal's thesis (2021), section 6.2. Not implemented:
    next-sentence prediction, embeddings shared with the head.

    Example:
        >>> model = MaskedTransformer(vocab_size=5, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=16)
        >>> model.masked_logits(torch.tensor([[0, 3, 2]]), torch.tensor([[True, False, True]])).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        vocab_size: int,
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
        check_sizes(vocab_size=vocab_size, num_layers=num_layers, **sizes)
        super().__init__()
        self.vocab_size = vocab_size
        self.mask_id = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, hidden_size)
        self.layers = nn.ModuleList(EncoderLayer(**sizes, dropout=dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.head = Linear(hidden_size, vocab_size)
        initialise(self, self.embedding.weight)

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Compute unnormalised scores (M, V) at the masked positions, in row-major order.

        Raises:
            InputError: shapes do not fit, padding is masked or precedes a token, a row has no tokens, or there is a
                context.
        """
        refuse_context(context)
        seen = seen_tokens(tokens_NT, masked_NT, mask_id=self.mask_id, device=self.embedding.weight.device)
        hidden_NTH = self.dropout(add_positions(self.embedding(seen.tokens_NT)))
        readable, wanted_NC = seen.readable(), seen.wanted_NC
        for layer in self.layers[:-1]:
            hidden_NTH = layer(hidden_NTH, readable)
        hidden_NCH = self.layers[-1](hidden_NTH, readable, wanted_NC)
        hidden_MH = hidden_NCH[seen.indices] if wanted_NC is None else hidden_NCH.flatten(0, 1)
        return self.head(self.dropout(self.norm(hidden_MH)))


class Seen(NamedTuple):
    """Input of a masked model, on its device.

    Attributes:
        tokens_NT: tokens with the mask at masked positions and padding.
        real_NT: bool, false at padding; None if no row is padded.
        indices: rows and columns of the masked positions, (M,) each, in row-major order.
        wanted_NC: masked positions of each row if every row has C of them, some but not all; else None. Samplers and
            pseudo-log-likelihoods mask in this way; the last layer then skips all other positions.
    """

    tokens_NT: Tensor
    real_NT: Tensor | None
    indices: tuple[Tensor, Tensor]
    wanted_NC: Tensor | None

    def readable(self) -> Tensor:
        """Return the attention mask of a sequence: (N, 1, 1, T), or all true, (1, 1, 1, T), if no row is padded."""
        if self.real_NT is None:
            width = self.tokens_NT.shape[1]
            return torch.ones(1, 1, 1, width, dtype=torch.bool, device=self.tokens_NT.device)
        return self.real_NT[:, None, None]


def seen_tokens(tokens_NT: Tensor, masked_NT: Tensor, *, mask_id: int, device: torch.device) -> Seen:
    """Check tokens and masked positions on the CPU, and return the input of a model on a device.

    If both are already on the CPU, the host does not wait for the device.
    """
    if tokens_NT.ndim != 2 or tokens_NT.shape != masked_NT.shape or masked_NT.dtype != torch.bool:
        raise InputError(
            f"tokens {tuple(tokens_NT.shape)} and masked {tuple(masked_NT.shape)} ({masked_NT.dtype}) do not fit",
            hint="give two tensors (N, T), the second of bools",
        )
    if tokens_NT.shape[1] == 0:
        raise InputError("a sequence without a token has no position to score", hint="leave empty sequences out")
    tokens_NT, masked_NT = tokens_NT.cpu(), masked_NT.cpu()
    rows_M, columns_M = masked_NT.nonzero(as_tuple=True)
    indices = moved(rows_M, device), moved(columns_M, device)
    wanted_NC = _by_row(masked_NT, indices[1])
    padding_NT = tokens_NT == IGNORE
    if not bool(padding_NT.any()):
        return Seen(moved(tokens_NT.masked_fill(masked_NT, mask_id), device), None, indices, wanted_NC)
    if bool(padding_NT[:, 0].any()):
        row = int(padding_NT[:, 0].nonzero()[0])
        raise InputError(f"row {row} starts with padding ({IGNORE})", hint="leave empty sequences out; pad at the end")
    if bool((padding_NT[:, :-1] & ~padding_NT[:, 1:]).any()):
        row = int((padding_NT[:, :-1] & ~padding_NT[:, 1:]).any(1).nonzero()[0])
        raise InputError(f"row {row} has padding ({IGNORE}) before a token", hint="pad at the end of a row only")
    if bool((padding_NT & masked_NT).any()):
        row = int((padding_NT & masked_NT).any(1).nonzero()[0])
        raise InputError(f"row {row} has masked padding ({IGNORE})", hint="mask positions that hold a token")
    seen_NT = moved(tokens_NT.masked_fill(masked_NT | padding_NT, mask_id), device)
    return Seen(seen_NT, moved(~padding_NT, device), indices, wanted_NC)


def _by_row(masked_NT: Tensor, columns_M: Tensor) -> Tensor | None:
    """Return ``Seen.wanted_NC``."""
    if masked_NT.shape[0] == 0:
        return None
    count = int(masked_NT[0].sum())
    if not 0 < count < masked_NT.shape[1] or bool((masked_NT.sum(1) != count).any()):
        return None
    return columns_M.view(-1, count)


def refuse_context(context: Any) -> None:
    """Raise an InputError for a context, which models without a source do not read."""
    if context is not None:
        raise InputError("this masked model reads no context", hint="omit the context")
