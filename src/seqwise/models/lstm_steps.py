"""LSTMs over whole sequences, and single LSTM steps that share one gradient of the weights.

Shapes: B batch, J slots, S source length, D embedding of an output token, M encoder output, H hidden size, G = 4 H
gates in torch's order (input, forget, cell, output), X = D + H inputs of a step's product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqwise.models.deferred_linear import DeferredLinear
from seqwise.models.products import fast_linear

LSTMState = tuple[Tensor, Tensor]
"""Hidden and cell state of each slot, (B, J, H)."""

# Number of weights from which their gradient is deferred; with fewer, autograd is faster. Under autocast it never is,
# since autograd handles products that are rounded to 16 bits.
LARGE = 2**17


def run_lstm(lstm: nn.LSTM, *inputs: Any) -> Any:
    """Call ``nn.LSTM``, also for gradients in evaluation mode, which cuDNN does not compute.

    Example:
        >>> outputs_BSH, _ = run_lstm(nn.LSTM(2, 3, batch_first=True), torch.zeros(1, 4, 2))
        >>> outputs_BSH.shape
        torch.Size([1, 4, 3])
    """
    if lstm.training or not torch.is_grad_enabled() or not lstm.weight_ih_l0.is_cuda:
        return lstm(*inputs)
    with torch.backends.cudnn.flags(enabled=False):  # torch's own kernels
        return lstm(*inputs)


def read_both_ways(lstm: nn.LSTM, embedded_BSE: Tensor, lengths_B: Tensor) -> Tensor:
    """Run a one-layer bidirectional ``nn.LSTM`` whose backward direction begins at each length, and return (B, S, 2H).

    A GPU reads a packed batch in one call. A CPU would read it token by token; there, each direction reads a padded
    batch, which trains 2 to 7 times as fast. Outputs at padding are meaningless.

    Example:
        >>> lstm = nn.LSTM(2, 3, batch_first=True, bidirectional=True)
        >>> read_both_ways(lstm, torch.zeros(2, 4, 2), torch.tensor([4, 1])).shape
        torch.Size([2, 4, 6])
    """
    num_tokens = embedded_BSE.shape[1]
    if embedded_BSE.is_cuda:
        host_B = lengths_B.cpu()
        if bool((host_B == num_tokens).all()):  # packing is slow
            return run_lstm(lstm, embedded_BSE)[0]
        packed = pack_padded_sequence(embedded_BSE, host_B, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(run_lstm(lstm, packed)[0], batch_first=True, total_length=num_tokens)[0]
    real_BS = torch.arange(num_tokens, device=lengths_B.device) < lengths_B[:, None]
    forward, backward = lstm.all_weights
    left_BSH = _run_direction(lstm, forward, embedded_BSE)
    right_BSH = backwards(_run_direction(lstm, backward, backwards(embedded_BSE, real_BS)), real_BS)
    return torch.cat([left_BSH, right_BSH], dim=-1)


def _run_direction(lstm: nn.LSTM, weights: Sequence[Tensor], inputs_BSE: Tensor) -> Tensor:
    zeros_1BH = inputs_BSE.new_zeros(1, len(inputs_BSE), lstm.hidden_size)
    return torch.lstm(inputs_BSE, (zeros_1BH, zeros_1BH), tuple(weights), True, 1, 0.0, lstm.training, False, True)[0]


def backwards(vectors_BSX: Tensor, real_BS: Tensor | None) -> Tensor:
    """Reverse each row up to its length; padding keeps its place."""
    if real_BS is None:
        return vectors_BSX.flip(1)
    columns_S = torch.arange(real_BS.shape[1], device=real_BS.device)
    sources_BS = torch.where(real_BS, real_BS.sum(1, keepdim=True) - 1 - columns_S, columns_S)
    return vectors_BSX.gather(1, sources_BS[:, :, None].expand_as(vectors_BSX))


def lstm_step(lstm: nn.LSTM, inputs_BJD: Tensor, state: LSTMState) -> LSTMState:
    """Take one step of a one-layer ``nn.LSTM`` for every slot, with its own weights.

    ``g = W_x x + b_x + W_h h + b_h``, then ``lstm_cell``. Dimensions of size 1 are broadcast over slots or inputs.
    """
    input_GD, hidden_GH, input_bias_G, hidden_bias_G = lstm.all_weights[0]
    hidden_BJH, cell_BJH = state
    gates_BJG = F.linear(inputs_BJD, input_GD, input_bias_G) + F.linear(hidden_BJH, hidden_GH, hidden_bias_G)
    return lstm_cell(gates_BJG, cell_BJH.expand(*gates_BJG.shape[:2], -1))


def lstm_cell(gates_BJG: Tensor, cell_BJH: Tensor) -> LSTMState:
    """Compute ``c' = sigmoid(f) c + sigmoid(i) tanh(n)`` and ``h' = sigmoid(o) tanh(c')`` from gates g = [i, f, n, o].

    Source: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000).
    """
    enter_BJH, forget_BJH, new_BJH, leave_BJH = gates_BJG.chunk(4, dim=-1)
    cell_BJH = forget_BJH.sigmoid() * cell_BJH + enter_BJH.sigmoid() * new_BJH.tanh()
    return leave_BJH.sigmoid() * cell_BJH.tanh(), cell_BJH


# Tensors, the version of each, and whether it required a gradient.
_Versions = tuple[tuple[Tensor, int, bool], ...]


class _Prepared(NamedTuple):
    """Weights of an LSTM, prepared for single steps, and the tensors that they were computed from."""

    versions: _Versions
    mode: tuple[bool, bool]
    product: Callable[[Tensor], Tensor]
    added_BG: tuple[Tensor, ...]


class LSTMSteps:
    """Products shared by all steps along one context, computed on first use.

    They are recomputed after a change of the weights, and when gradients are switched on or off.

    Not implemented: second derivatives, from ``LARGE`` weights on.
    """

    def __init__(self) -> None:
        self._prepared: _Prepared | None = None

    def step(
        self, lstm: nn.LSTM, inputs_BJD: Tensor, state: LSTMState, memory_BSM: Tensor | None = None, position: int = 0
    ) -> LSTMState:
        """Take an ``lstm_step``; with a memory, the LSTM also reads the encoder's output at a position.

        The LSTM's input has size D, or D + M with a memory, all of which is multiplied at the first step.
        """
        prepared = self._prepare(lstm, inputs_BJD, memory_BSM)
        hidden_BJH, cell_BJH = state
        inputs_BJX = torch.cat([inputs_BJD, hidden_BJH], dim=-1)
        return lstm_cell(prepared.product(inputs_BJX) + prepared.added_BG[position][:, None], cell_BJH)

    def _prepare(self, lstm: nn.LSTM, inputs_BJD: Tensor, memory_BSM: Tensor | None) -> _Prepared:
        weights = [*lstm.all_weights[0], *([] if memory_BSM is None else [memory_BSM])]
        # Weights may be changed in place, or be new tensors at every call.
        versions = tuple((x, 0 if x.is_inference() else x._version, x.requires_grad) for x in weights)
        mode = torch.is_grad_enabled(), torch.is_autocast_enabled(inputs_BJD.device.type)
        if self._prepared is None or self._prepared.mode != mode or not _same(self._prepared.versions, versions):
            self._prepared = _prepared(versions, mode, inputs_BJD.shape[-1])
        return self._prepared


def _same(old: _Versions, new: _Versions) -> bool:
    pairs = zip(old, new, strict=False)
    return len(old) == len(new) and all(a[0] is b[0] and a[1:] == b[1:] for a, b in pairs)


def _prepared(versions: _Versions, mode: tuple[bool, bool], input_size: int) -> _Prepared:
    input_weights, hidden_GH, input_bias_G, hidden_bias_G, *memory = (weight for weight, _, _ in versions)
    # Split, not sliced: backward joins the two gradients; of slices, it would add each to zeros of the whole size.
    input_GD, memory_GM = input_weights.split([input_size, input_weights.shape[1] - input_size], dim=1)
    weight_GX, bias_G = torch.cat([input_GD, hidden_GH], dim=1), input_bias_G + hidden_bias_G
    # Unbound for the same reason.
    added_BG = F.linear(memory[0], memory_GM, bias_G).unbind(1) if memory else (bias_G[None],)
    grad_enabled, autocast = mode
    if autocast or weight_GX.numel() < LARGE or not (grad_enabled and weight_GX.requires_grad):
        return _Prepared(versions, mode, lambda rows: fast_linear(rows, weight_GX, None), added_BG)
    return _Prepared(versions, mode, DeferredLinear(weight_GX), added_BG)
