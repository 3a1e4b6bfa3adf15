"""Masked models as energies on enumerable spaces: likelihood, pseudolikelihood, MLM and the KL projection, exactly.

Shapes: N = V^T sequences in lexicographic order, T positions, C = V^(T-1) contexts of a position (every prefix with
every suffix, lexicographic), V vocabulary, K tokens of one set of a position, P prefixes, S suffixes, H hidden size, F
hidden size of the head.

All objectives are functions of two tables: ``logits_TCV[t, c]``, the model's scores f(., h(y\\t)) in each context, and
``weights_N``, the share of each sequence in the data. Given the true distribution as weights, they are the expected
values of the objectives, without sampling error.

Source: Goyal's thesis (2021), sections 6.2.1 (energies), 6.2.2 (objectives) and 6.2.4 (E_local).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.lstm_steps import LSTMState, lstm_step
from seqwise.models.masked import MaskedLSTM

PAIRS_AT_ONCE = 2**12

Fitted = TypeVar("Fitted")
"""Result of a fit."""

EnergyLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From ``logits_TCV`` and ``weights_N`` to nats per sequence, a tensor without dimensions."""
Scores: TypeAlias = Callable[[Tensor], Tensor]
"""From ``logits_TCV`` to ``scores_N``, minus the energy of each sequence: :func:`raw_scores`, :func:`local_scores`."""


def new_model(vocab_size: int, *, seed: int, **sizes: int) -> MaskedLSTM:
    """Return a model with weights drawn from a seed; the global random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MaskedLSTM(vocab_size=vocab_size, **sizes)


def enumerated_logits(model: MaskedLSTM, length: int) -> Tensor:
    """Return a masked model's scores at each position in every context, ``logits_TCV``, with gradients.

    One LSTM step for each prefix and each suffix, and one evaluation of the head for each pair of them.
    """
    zeros_1H = model.combine.weight.new_zeros(1, model.before.hidden_size)
    prefixes, suffixes = [(zeros_1H, zeros_1H)], [(zeros_1H, zeros_1H)]
    for _ in range(length - 1):
        hidden_PVH, cell_PVH = _branch(model, model.before, prefixes[-1])
        prefixes.append((hidden_PVH.flatten(0, 1), cell_PVH.flatten(0, 1)))
        hidden_SVH, cell_SVH = _branch(model, model.after, suffixes[-1])
        # The token that is read last is the first of its suffix.
        suffixes.append((hidden_SVH.transpose(0, 1).flatten(0, 1), cell_SVH.transpose(0, 1).flatten(0, 1)))
    left_weights, right_weights = model.combine.weight.chunk(2, dim=-1)
    tables = []
    for (left_PH, _), (right_SH, _) in zip(prefixes, reversed(suffixes), strict=True):
        left_PF = F.linear(left_PH, left_weights, model.combine.bias)
        tables.append(_pairs(model, left_PF, F.linear(right_SH, right_weights)).flatten(0, 1))
    return torch.stack(tables)


def _branch(model: MaskedLSTM, lstm: nn.LSTM, state: LSTMState) -> LSTMState:
    """Follow each state by each token, (P, V, H): the token's and the state's parts of the gates are shared."""
    hidden_PH, cell_PH = state
    tokens_V = torch.arange(model.vocab_size, device=hidden_PH.device)
    return lstm_step(lstm, model.embedding(tokens_V)[None], (hidden_PH[:, None], cell_PH[:, None]))


def _pairs(model: MaskedLSTM, left_PF: Tensor, right_SF: Tensor) -> Tensor:
    """Score every prefix with every suffix, (P, S, V), as many pairs at a time as fit the cache."""
    dim, long, short = (0, left_PF, right_SF) if len(left_PF) >= len(right_SF) else (1, right_SF, left_PF)
    parts = long.split(max(1, PAIRS_AT_ONCE // len(short)))
    sides = ((part, right_SF) if dim == 0 else (left_PF, part) for part in parts)
    return torch.cat([model.head(F.gelu(left[:, None] + right)) for left, right in sides], dim=dim)


def raw_scores(logits_TCV: Tensor) -> Tensor:
    """Return ``-E_raw(y) = sum_t f(y_t, h(y\\t))`` of every sequence: (N,).

    A constant c(y\\t) added to the scores of all tokens in one context changes E_raw but no conditional of the MLM. MLM
    training leaves it free, so it does not identify E_raw; it does identify E_local (:func:`local_scores`).
    """
    size = logits_TCV.shape[-1]
    return torch.stack(
        [_placed(logits_CV.view(size**place, -1, size)) for place, logits_CV in enumerate(logits_TCV)]
    ).sum(0)


def _placed(table_PSK: Tensor) -> Tensor:
    """Reorder a table of one position from (prefix, suffix, token) to sequences: prefix, token, suffix."""
    return table_PSK.transpose(1, 2).flatten()


def local_scores(logits_TCV: Tensor) -> Tensor:
    """Return ``-E_local(y) = sum_t log p_mlm(y_t | y\\t)`` of every sequence, ``p_mlm = softmax(f)``: (N,)."""
    return raw_scores(logits_TCV.log_softmax(-1))


def likelihood_loss(logits_TCV: Tensor, weights_N: Tensor, *, scores: Scores = raw_scores) -> Tensor:
    """Return the exact negative log-likelihood (LL), ``log sum_y exp(-E(y)) + sum_y w(y) E(y)``, in nats per sequence.

    With the true distribution as weights, this is the cross-entropy of the model, which is at least the entropy.
    """
    scores_N = scores(logits_TCV)
    return scores_N.logsumexp(0) - (weights_N.to(scores_N) * scores_N).sum()


def pseudolikelihood_loss(logits_TCV: Tensor, weights_N: Tensor, *, scores: Scores = raw_scores) -> Tensor:
    """Return the exact negative pseudolikelihood (PLL), ``-sum_y w(y) sum_t log p(y_t | y\\t)``, by true conditionals.

    ``p(w | y\\t) = softmax over w of -E(y with y_t = w)`` needs V energies per conditional, all of which are known.
    """
    scores_N = scores(logits_TCV)
    length, _, size = logits_TCV.shape
    conditionals_TCV = _true_conditionals(scores_N, length, size)
    return -(weights_N.to(scores_N) * raw_scores(conditionals_TCV)).sum()


def masked_loss(logits_TCV: Tensor, weights_N: Tensor) -> Tensor:
    """Return the MLM objective, by the free conditionals: ``-sum_y w(y) sum_t log p_mlm(y_t | y\\t)``.

    It is T times the expectation over one masked position, which MLM training minimises.
    """
    scores_N = local_scores(logits_TCV)
    return -(weights_N.to(scores_N) * scores_N).sum()


def projection_loss(teacher_TCV: Tensor, *, pseudolikelihood_weight: float = 0.0) -> EnergyLoss:
    """Return the loss of the KL projection of an MLM: its free conditionals are targets of the true conditionals.

    ``sum_y w(y) sum_t KL(p_mlm(. | y\\t) || p(. | y\\t; theta))``, plus, with a weight, the pseudolikelihood of y.
    """
    teacher_TCV = teacher_TCV.detach().log_softmax(-1)
    probs_TCV = teacher_TCV.exp()

    def loss(logits_TCV: Tensor, weights_N: Tensor) -> Tensor:
        length, _, size = logits_TCV.shape
        conditionals_TCV = _true_conditionals(raw_scores(logits_TCV), length, size)
        divergence_TC = (probs_TCV.to(logits_TCV) * (teacher_TCV.to(logits_TCV) - conditionals_TCV)).sum(-1)
        weights_TC = _by_context(weights_N.to(logits_TCV), length, size).sum(-1)
        found = (weights_TC * divergence_TC).sum()
        if pseudolikelihood_weight:
            found = found + pseudolikelihood_weight * pseudolikelihood_loss(logits_TCV, weights_N)
        return found

    return loss


def _by_context(table_N: Tensor, length: int, size: int) -> Tensor:
    """Reorder a table of sequences as (T, C, V): for each position, by its context and its token."""
    return torch.stack([table_N.view(size**place, size, -1).transpose(1, 2).flatten(0, 1) for place in range(length)])


def _true_conditionals(scores_N: Tensor, length: int, size: int) -> Tensor:
    """Return ``log p(w | y\\t)``, (T, C, V)."""
    return _by_context(scores_N, length, size).log_softmax(-1)


@dataclass(frozen=True)
class Fit:
    """Course of training."""

    steps: int  # number, including those after the best one
    best_step: int  # whose weights were kept; 0 for the initial ones
    loss: float  # the objective on the development data at that step, in nats per sequence
    learning_rate: float  # the best one tried


def fit_enumerated(
    model: MaskedLSTM,
    loss: EnergyLoss,
    *,
    length: int,
    train_N: Tensor,
    dev_N: Tensor,
    steps: int = 350,
    patience: int = 40,
    learning_rates: Sequence[float] = (6e-3,),
    weight_decay: float = 1e-2,
    largest_gradient: float = 1.0,
) -> Fit:
    """Train on a whole enumerable space at every step, with early stopping on the objective itself.

    AdamW on the exact gradient of ``loss(logits, train_N)``, with its norm clipped. Every learning rate starts from the
    same weights, and its training ends ``patience`` steps after its best. The model keeps the weights with the lowest
    ``loss(logits, dev_N)`` of all.
    """

    def fit(rate: float) -> Fit:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=weight_decay)
        best, best_step, best_weights = float("inf"), 0, copy.deepcopy(model.state_dict())
        for step in range(steps + 1):
            # One pass serves both: the development loss is that of the weights before this step.
            logits_TCV = enumerated_logits(model, length)
            with torch.no_grad():
                found = loss(logits_TCV, dev_N).item()
            if not found < float("inf"):
                raise InputError(f"the loss is {found} at step {step}", hint="take a smaller learning rate")
            if found < best:
                best, best_step, best_weights = found, step, copy.deepcopy(model.state_dict())
            if step == steps or step - best_step >= patience:
                break
            optimizer.zero_grad()
            loss(logits_TCV, train_N).backward()
            nn.utils.clip_grad_norm_(model.parameters(), largest_gradient)
            optimizer.step()
        model.load_state_dict(best_weights)
        return Fit(step, best_step, best, rate)

    return fit_at_best_rate(model, learning_rates, fit, loss=lambda fitted: fitted.loss)


def fit_at_best_rate(
    model: nn.Module, rates: Sequence[float], fit: Callable[[float], Fitted], *, loss: Callable[[Fitted], float]
) -> Fitted:
    """Fit a model from the same weights at each learning rate, and keep the weights with the lowest loss."""
    initial, fits = copy.deepcopy(model.state_dict()), []
    for rate in rates:
        model.load_state_dict(initial)
        fits.append((fit(rate), copy.deepcopy(model.state_dict())))
    best, weights = min(fits, key=lambda each: loss(each[0]))
    model.load_state_dict(weights)
    return best
