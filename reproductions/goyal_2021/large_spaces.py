"""Two-LSTM masked models as energies on spaces too large for a table: exact log Z in blocks, true conditionals.

Shapes: B sequences, T positions, V vocabulary, K tokens of the set of a position, H hidden size, F hidden size of the
head, P prefixes and S suffixes of a position, A and C the numbers in a part of these.

A block is a product of T sets of tokens. Its tensors are laid out so that nothing is copied twice: the head is one
matrix product with contexts as columns, its rows for the set of a position are added to the scores of the block through
a view, and the local scores are the raw ones minus T small tables, broadcast.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.models.lstm_steps import LSTMState, lstm_step
from seqwise.models.masked import MaskedLSTM

CONTEXTS_AT_ONCE = 4096
STATES_AT_ONCE = 1024
"""Numbers whose features, and whose gates, fit in the cache of a core."""
LARGEST_EXPONENT = 60.0
"""Largest exponent of e, well within the range of float32."""

_State = tuple[Tensor, Tensor]
"""Hidden and cell states with the states as columns: (H, P)."""


class Readings(NamedTuple):
    """Values for the two energies that a masked model defines, E_raw and E_local."""

    raw: Tensor
    local: Tensor


def sequence_scores(model: MaskedLSTM, tokens_BT: Tensor) -> Readings:
    """Return minus both energies, ``sum_t f(y_t, h(y\\t))`` and ``sum_t log p_mlm(y_t | y\\t)``, (B,) each.

    One pass of each LSTM suffices, since no position reads itself. MLM training minimises minus the mean of the local
    scores. Source: Goyal's thesis (2021), sections 6.2.1 and 6.2.4. Not implemented: padding.
    """
    logits_BTV = masked_logits(model, tokens_BT)
    raw_B, local_B = (
        table_BTV.gather(-1, tokens_BT[..., None]).sum((1, 2)) for table_BTV in (logits_BTV, logits_BTV.log_softmax(-1))
    )
    return Readings(raw_B, local_B)


def masked_logits(model: MaskedLSTM, tokens_BT: Tensor) -> Tensor:
    """Return the scores ``f(., h(y\\t))`` at each position, which do not depend on its own token: (B, T, V)."""
    embedded_BTD = model.embedding(tokens_BT)
    left_BTH, _ = _read(model.before, embedded_BTD[:, :-1])
    right_BTH, _ = _read(model.after, embedded_BTD[:, 1:].flip(1))
    features_BTF = F.gelu(model.combine(torch.cat([left_BTH, right_BTH.flip(1)], dim=-1)))
    return model.head(features_BTF)


class _Side(NamedTuple):
    """One side of a position: its LSTM, and the positions in the order in which the LSTM reads them."""

    lstm: nn.LSTM
    weights_FH: Tensor
    state: LSTMState
    places: range


def true_conditionals(model: MaskedLSTM, tokens_BT: Tensor, place: int) -> Tensor:
    """Return ``log p(w | y\\t)``, (B, V): the softmax over w of ``-E_raw(y with y_t = w)``, at one position t.

    One LSTM reads the V variants from the position on, while the states of the other are the same for all; the head
    scores one token at every other position. Source: Goyal's thesis (2021), section 6.2.2, item 2.
    """
    length = tokens_BT.shape[1]
    embedded_BTD = model.embedding(tokens_BT)
    left_BPH, before = _read(model.before, embedded_BTD[:, :place])
    right_BSH, after = _read(model.after, embedded_BTD[:, place + 1 :].flip(1))
    left_FH, right_FH = model.combine.weight.chunk(2, dim=-1)
    features_BF = F.linear(before[0], left_FH, model.combine.bias) + F.linear(after[0], right_FH)
    scores_BV = model.head(F.gelu(features_BF))
    # The other side of a neighbour is the state before it, which does not depend on the variants.
    rightwards = _Side(model.before, left_FH, before, range(place + 1, length))
    leftwards = _Side(model.after, right_FH, after, range(place - 1, -1, -1))
    for side, others_BXH, weights_FH in ((rightwards, right_BSH, right_FH), (leftwards, left_BPH, left_FH)):
        if side.places:
            fixed_BXF = F.linear(others_BXH[:, :-1].flip(1), weights_FH, model.combine.bias)
            scores_BV = scores_BV + _variant_scores(model, tokens_BT, embedded_BTD, side, fixed_BXF)
    return scores_BV.log_softmax(-1)


def _variant_scores(
    model: MaskedLSTM, tokens_BT: Tensor, embedded_BTD: Tensor, side: _Side, fixed_BXF: Tensor
) -> Tensor:
    """Sum the scores of the tokens on one side of a position, for each token at the position: (B, V).

    The biases of the head are left out, because they are the same for all V.
    """
    hidden_BH, cell_BH = side.state
    state = lstm_step(
        side.lstm, model.embedding.weight[None, : model.vocab_size], (hidden_BH[:, None], cell_BH[:, None])
    )
    total_BV = fixed_BXF.new_zeros(len(tokens_BT), model.vocab_size)
    for number, place in enumerate(side.places):
        if number:
            state = lstm_step(side.lstm, embedded_BTD[:, side.places[number - 1], None], state)
        features_BVF = F.gelu(F.linear(state[0], side.weights_FH) + fixed_BXF[:, number, None])
        weights_BF1 = model.head.weight[tokens_BT[:, place], :, None]
        total_BV = total_BV + (features_BVF @ weights_BF1)[..., 0]
    return total_BV


def _read(lstm: nn.LSTM, inputs_BXD: Tensor) -> tuple[Tensor, LSTMState]:
    """Return the states (B, X + 1, H) before the first input and after each, and the last state as a whole."""
    zeros_BH = inputs_BXD.new_zeros(len(inputs_BXD), lstm.hidden_size)
    if not inputs_BXD.shape[1]:
        return zeros_BH[:, None], (zeros_BH, zeros_BH)
    outputs_BXH, (hidden_1BH, cell_1BH) = lstm(inputs_BXD)
    return torch.cat([zeros_BH[:, None], outputs_BXH], dim=1), (hidden_1BH[0], cell_1BH[0])


def product_blocks(vocab_size: int, length: int, *, tokens_at_once: int) -> list[tuple[Tensor, ...]]:
    """Split all V^T sequences into products of T token sets, for :func:`log_partitions_of_block`.

    The first and the last position have all tokens, so that the LSTMs read the longest contexts only once. The other
    positions are divided into sets of K tokens, and their contexts are evaluated V / K times.
    """
    tokens_V = torch.arange(vocab_size)
    sets = [(tokens_V,) if place in (0, length - 1) else tokens_V.split(tokens_at_once) for place in range(length)]
    return list(itertools.product(*sets))


@torch.no_grad()
def log_partitions_of_block(model: MaskedLSTM, choices: Sequence[Tensor]) -> Readings:
    """Return ``log sum_y exp(-E(y))`` over the sequences of a block, of both energies in one pass.

    The logsumexp over all blocks of :func:`product_blocks` is log Z. Sums of exponentials are float64. Memory: one
    number for each sequence of the block, 1 / K of one for each context of a position, and the states of prefixes and
    suffixes of T - 2 tokens. With 39 phonemes, T = 6 and sets of 13 that is 0.3 GB in float32, in each of 81 blocks.

    Source: Goyal's thesis (2021), section 6.2.3, which computes log Z "exactly" without saying how.
    """
    sizes = [len(tokens_K) for tokens_K in choices]
    scores = model.head.weight.new_zeros(sizes)
    norms = []
    befores = _levels(model, model.before, choices[:-2])
    # Right to left; what is read last comes first in the order of the suffixes.
    afters = _levels(model, model.after, choices[:1:-1])
    for place, tokens_K in enumerate(choices):
        norm = scores.new_empty([*sizes[:place], 1, *sizes[place + 1 :]])
        for features_FAC, scores_KAC, norm_AC in _contexts(model, choices, place, befores, afters, scores, norm):
            logits_VC = torch.addmm(model.head.bias[:, None], model.head.weight, F.gelu(features_FAC.flatten(1)))
            scores_KAC += logits_VC[tokens_K].view(scores_KAC.shape)
            norm_AC.copy_(_log_normalizers(logits_VC).view(norm_AC.shape))
        norms.append(norm.expand(sizes))
    return _summed(scores, norms)


def _contexts(
    model: MaskedLSTM,
    choices: Sequence[Tensor],
    place: int,
    befores: Sequence[_State],
    afters: Sequence[_State],
    scores: Tensor,
    norm: Tensor,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the contexts of a position in parts: inputs of the head's activation (F, A, C), and outputs to fill.

    The latter are views (K, A, C) of the scores and (A, C) of the log-normalisers.
    """
    left_FH, right_FH = model.combine.weight.chunk(2, dim=-1)
    bias_F1 = model.combine.bias[:, None]
    length = len(choices)
    if length > 1 and place == 0:
        # Suffixes of T - 1 tokens are too many to keep, so those of T - 2 are extended a few at a time.
        scores_KAS = scores.view(len(choices[0]), len(choices[1]), -1)
        norm_AS = norm.view(len(choices[1]), -1)
        for part, hidden_HAC in _extended(model, model.after, afters[-1], choices[1]):
            features_FAC = torch.addmm(bias_F1, right_FH, hidden_HAC.flatten(1)).view(-1, *hidden_HAC.shape[1:])
            yield features_FAC, scores_KAS[..., part], norm_AS[:, part]
    elif length > 1 and place == length - 1:
        scores_PAK = scores.view(-1, len(choices[-2]), len(choices[-1]))
        norm_PA = norm.view(-1, len(choices[-2]))
        for part, hidden_HAC in _extended(model, model.before, befores[-1], choices[-2]):
            features_FAC = torch.addmm(bias_F1, left_FH, hidden_HAC.flatten(1)).view(-1, *hidden_HAC.shape[1:])
            yield features_FAC, scores_PAK[part].permute(2, 1, 0), norm_PA[part].T
    else:
        left_FP = torch.addmm(bias_F1, left_FH, befores[place][0])
        right_FS = right_FH @ afters[length - 1 - place][0]
        shape = (left_FP.shape[1], len(choices[place]), right_FS.shape[1])
        scores_KPS, norm_PS = scores.view(shape).transpose(0, 1), norm.view(shape[0], shape[2])
        for prefixes, suffixes in _tiles(shape[0], shape[2]):
            features_FAC = left_FP[:, prefixes, None] + right_FS[:, None, suffixes]
            yield features_FAC, scores_KPS[:, prefixes, suffixes], norm_PS[prefixes, suffixes]


def _log_normalizers(logits_VC: Tensor) -> Tensor:
    low, high = logits_VC.aminmax()
    # If no exponential can overflow or vanish, two passes over the memory are enough.
    if low > -LARGEST_EXPONENT and high < LARGEST_EXPONENT:
        return logits_VC.exp_().sum(0).log()
    return logits_VC.logsumexp(0)


def _tiles(num_prefixes: int, num_suffixes: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of prefixes and suffixes, as many at a time as stay in the cache."""
    suffixes_at_once = min(num_suffixes, CONTEXTS_AT_ONCE)
    prefixes_at_once = max(1, CONTEXTS_AT_ONCE // num_suffixes)
    for first in range(0, num_prefixes, prefixes_at_once):
        for start in range(0, num_suffixes, suffixes_at_once):
            yield slice(first, first + prefixes_at_once), slice(start, start + suffixes_at_once)


def _levels(model: MaskedLSTM, lstm: nn.LSTM, choices: Sequence[Tensor]) -> list[_State]:
    """Return the states of an LSTM after all sequences of 0, 1, .. tokens, in lexicographic order of the text."""
    zeros_H1 = model.head.weight.new_zeros(lstm.hidden_size, 1)
    levels: list[_State] = [(zeros_H1, zeros_H1)]
    for tokens_K in choices:
        hidden_HP, cell_HP = levels[-1]
        parts = [
            _branch(model, lstm, part, tokens_K)
            for part in zip(hidden_HP.split(STATES_AT_ONCE, 1), cell_HP.split(STATES_AT_ONCE, 1), strict=True)
        ]
        hidden, cell = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
        if lstm is model.before:  # a prefix grows at its end, a suffix at its front
            hidden, cell = hidden.transpose(1, 2), cell.transpose(1, 2)
        levels.append((hidden.flatten(1), cell.flatten(1)))
    return levels


def _extended(model: MaskedLSTM, lstm: nn.LSTM, state: _State, tokens_K: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the hidden states after one more token, a few parents at a time: their slice, and (H, K, P')."""
    hidden_HP, cell_HP = state
    at_once = max(1, STATES_AT_ONCE // len(tokens_K))
    for start in range(0, hidden_HP.shape[1], at_once):
        part = slice(start, start + at_once)
        yield part, _branch(model, lstm, (hidden_HP[:, part], cell_HP[:, part]), tokens_K)[0]


def _branch(model: MaskedLSTM, lstm: nn.LSTM, state: _State, tokens_K: Tensor) -> _State:
    """Read each token after each state: (H, K, P), with the states as columns.

    The same as :func:`~seqwise.models.lstm_steps.lstm_step`, laid out so that every gate is contiguous and the long
    dimension, that of the states, is the last.
    """
    input_GD, hidden_GH, input_bias_G, hidden_bias_G = lstm.all_weights[0]
    hidden_HP, cell_HP = state
    of_tokens_GK = torch.addmm(input_bias_G[:, None], input_GD, model.embedding(tokens_K).T)
    of_states_GP = torch.addmm(hidden_bias_G[:, None], hidden_GH, hidden_HP)
    gates_GKP = of_tokens_GK[:, :, None] + of_states_GP[:, None]
    enter_HKP, forget_HKP, new_HKP, leave_HKP = gates_GKP.chunk(4)
    cell_HKP = forget_HKP.sigmoid_().mul_(cell_HP[:, None]).addcmul_(enter_HKP.sigmoid_(), new_HKP.tanh_())
    return leave_HKP.sigmoid_().mul_(cell_HKP.tanh()), cell_HKP


def _summed(scores: Tensor, norms: Sequence[Tensor]) -> Readings:
    """Return the logsumexp of the raw scores, and of those less the log-normalisers; scores are overwritten."""
    raw, local = [], []
    # In parts by the first two tokens, each of which stays in the cache while it is read a dozen times.
    for first in itertools.product(*(range(size) for size in scores.shape[:2])):
        part = scores[first]
        raw.append(_logsumexp(part))
        for norm in norms:
            part -= norm[first]
        local.append(_logsumexp(part))
    return Readings(torch.stack(raw).logsumexp(0), torch.stack(local).logsumexp(0))


def _logsumexp(scores: Tensor) -> Tensor:
    greatest = scores.max()
    return (scores - greatest).exp_().sum(dtype=torch.float64).log() + greatest
