"""Look-ahead of an encoder that reads from left to right: an LSTM reads a window of later words backwards.

Shapes: B batch, S source length, N look-ahead, H encoder output, X vector of a word, W output of the window's LSTM,
G = 4 W gates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.lstm_steps import lstm_cell

NO_LOOK_AHEAD = "an encoder that reads its source both ways has no look-ahead"

Waiting = tuple[Tensor, Tensor]
"""Encoder outputs (B, N, H) and vectors (B, N, X) of words that wait for later ones."""


def require_look_ahead(look_ahead: int) -> None:
    """Raise an InputError for a negative look-ahead."""
    if look_ahead < 0:
        raise InputError(f"look_ahead must be at least 0, got {look_ahead}")


class LookAhead(nn.Module):
    """Look-ahead of N words: concatenates each encoder output h_i with what an LSTM reads from word i + N back to i.

    ``m_i = [h_i; b_i]``, where b_i is the last state of an LSTM that starts from zeros and reads the vectors ``x_{i+N},
    ..., x_i``, or ``x_S, ..., x_i`` if fewer than N words follow. From ``N = S - 1`` on, b is the backward direction
    of a bidirectional LSTM. Reading costs N + 1 steps for each word, all words at once.

    Source: not in the papers; the idea is that of latency-controlled bidirectional LSTMs, Zhang et al. (ICASSP 2016).

    Example:
        >>> ahead = LookAhead(2, 3, look_ahead=1)
        >>> outputs_BSH, vectors_BSX = torch.zeros(1, 4, 5), torch.zeros(1, 4, 2)
        >>> ahead(outputs_BSH, vectors_BSX, torch.tensor([4])).shape  # H + W = 8
        torch.Size([1, 4, 8])
        >>> memory_BSM, waiting = ahead.read(outputs_BSH, vectors_BSX, None)  # the last word waits
        >>> memory_BSM.shape, ahead.read_end(waiting)[0].shape
        (torch.Size([1, 3, 8]), torch.Size([1, 1, 8]))
    """

    def __init__(self, vector_size: int, output_size: int, *, look_ahead: int) -> None:
        super().__init__()
        self.size = look_ahead
        self.lstm = nn.LSTM(vector_size, output_size, batch_first=True)

    def forward(self, outputs_BSH: Tensor, vectors_BSX: Tensor, lengths_B: Tensor) -> Tensor:
        """Return m of whole sources, (B, S, H + W)."""
        ended_BSX = F.pad(vectors_BSX, (0, 0, 0, self.size))
        real_BS = torch.arange(ended_BSX.shape[1], device=lengths_B.device) < lengths_B[:, None]
        ended_BSX = ended_BSX.masked_fill(~real_BS[..., None], 0.0)  # padding may be anything, even NaN
        return torch.cat([outputs_BSH, self._read_back(ended_BSX, real_BS)], dim=-1)

    def read(self, outputs_BSH: Tensor, vectors_BSX: Tensor, waiting: Waiting | None) -> tuple[Tensor, Waiting]:
        """Return m of the words that N of the words so far follow, and the words that wait."""
        if waiting is not None:
            outputs_BSH = torch.cat([waiting[0], outputs_BSH], dim=1)
            vectors_BSX = torch.cat([waiting[1], vectors_BSX], dim=1)
        num_read = max(vectors_BSX.shape[1] - self.size, 0)
        memory_BSM = torch.cat([outputs_BSH[:, :num_read], self._read_back(vectors_BSX)], dim=-1)
        # A view would keep all words.
        return memory_BSM, (outputs_BSH[:, num_read:].clone(), vectors_BSX[:, num_read:].clone())

    def read_end(self, waiting: Waiting) -> tuple[Tensor, Waiting]:
        """Return m of the words that wait, after which no word comes; none waits any more."""
        outputs_BNH, vectors_BNX = waiting
        lengths_B = torch.full((len(outputs_BNH),), outputs_BNH.shape[1], device=outputs_BNH.device)
        return self(outputs_BNH, vectors_BNX, lengths_B), (outputs_BNH[:, :0], vectors_BNX[:, :0])

    def _read_back(self, vectors_BSX: Tensor, real_BS: Tensor | None = None) -> Tensor:
        """Return b of all words but the last N; the state stays zero at vectors that are not real, which come last."""
        input_GX, hidden_GW, input_bias_G, hidden_bias_G = self.lstm.all_weights[0]
        gates_BSG = F.linear(vectors_BSX, input_GX, input_bias_G + hidden_bias_G)
        num_outputs = max(vectors_BSX.shape[1] - self.size, 0)
        hidden_BSW = cell_BSW = vectors_BSX.new_zeros(len(vectors_BSX), num_outputs, self.lstm.hidden_size)
        if not num_outputs:
            return hidden_BSW
        for later in range(self.size, -1, -1):
            read = slice(later, later + num_outputs)
            hidden_BSW, cell_BSW = lstm_cell(gates_BSG[:, read] + F.linear(hidden_BSW, hidden_GW), cell_BSW)
            if real_BS is not None:
                hidden_BSW, cell_BSW = (leaf * real_BS[:, read, None] for leaf in (hidden_BSW, cell_BSW))
        return hidden_BSW
