"""Targets of sampling: energies of whole sequences, from a masked model's scores and functions of the tokens.

With y\\t for the sequence y whose position t is masked, and f for the model's scores there:

    E_raw(y) = - sum_t f(y_t, y\\t)            E_local(y) = - sum_t log softmax(f(., y\\t))[y_t]

Both are sums over positions of a function of the masked scores at every position, which samplers cache for the current
sequence. A target at temperature T is p(y) proportional to exp(-E(y) / T).

Masked scores and what is computed of them stay on the model's device; sequences and energies are on the CPU.

Shapes: B sequences, T positions, V vocabulary, M masked positions in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise import tree
from seqwise.data.batches import IGNORE
from seqwise.devices import device_of, moved
from seqwise.errors import InputError
from seqwise.models.heads import log_partition
from seqwise.models.protocols import MaskedModel
from seqwise.names import Pieces

MAX_ROWS = 1024
"""Default number of masked sequences per call of a model."""


@dataclass(frozen=True, eq=False)
class ModelTerm:
    """``weight * sum_t positions(tokens, logits)[t]``, over the masked scores of one model."""

    model: MaskedModel
    positions: Callable[[Tensor, Tensor], Tensor]
    weight: float = 1.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelTerm) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[int, Callable[[Tensor, Tensor], Tensor], float]:
        # The model by identity: what compares by value, such as a dataclass of tensors, has no truth value.
        return id(self.model), self.positions, self.weight


@dataclass(frozen=True)
class SequenceTerm:
    """``weight * function(tokens)``, without a pass of a model."""

    function: Callable[[Tensor], Tensor]
    weight: float = 1.0


@dataclass(frozen=True)
class Energy:
    """Weighted sum of energies, by ``+`` and ``weight * energy``.

    Its terms come from :func:`raw_energy`, :func:`local_energy`, :func:`sequence_energy` and :func:`constraint`.
    Energies are equal if they have equal terms with the same model and function objects.

    Attributes:
        model_terms: sums over positions; terms with the same model object share its passes.
        sequence_terms: functions of the tokens.
        max_rows: number of masked sequences per call of a model.
    """

    model_terms: tuple[ModelTerm, ...] = ()
    sequence_terms: tuple[SequenceTerm, ...] = ()
    max_rows: int = field(default=MAX_ROWS, compare=False)

    def __add__(self, other: Energy) -> Energy:
        return Energy(
            (*self.model_terms, *other.model_terms),
            (*self.sequence_terms, *other.sequence_terms),
            min(self.max_rows, other.max_rows),
        )

    def __rmul__(self, weight: float) -> Energy:
        if not math.isfinite(weight) or weight == 0:
            raise InputError(f"the weight of an energy must be finite and not 0, got {weight}")
        return Energy(
            tuple(replace(term, weight=weight * term.weight) for term in self.model_terms),
            tuple(replace(term, weight=weight * term.weight) for term in self.sequence_terms),
            self.max_rows,
        )

    @property
    def models(self) -> tuple[MaskedModel, ...]:
        """The distinct models, in the order of their first terms."""
        return tuple({id(term.model): term.model for term in self.model_terms}.values())

    def place_of(self, model: MaskedModel) -> int | None:
        """Return the index of a model in :attr:`models`, or None."""
        return next((place for place, own in enumerate(self.models) if own is model), None)

    def of_sequences(self, tokens_BT: Tensor) -> Tensor:
        """Compute the sum of the functions of the tokens, float64 (B,), on the CPU."""
        energy_B = torch.zeros(len(tokens_BT), dtype=torch.float64)
        for term in self.sequence_terms:
            value_B = term.weight * term.function(tokens_BT).cpu().double()
            if value_B.shape != energy_B.shape:  # broadcast, it would depend on the batch
                problem = f"an energy of {len(tokens_BT)} sequences has the shape {list(value_B.shape)}"
                raise InputError(problem, hint="return one number for each sequence, each of its own tokens only")
            if bool((value_B.isnan() | (value_B == -torch.inf)).any()):
                raise InputError(
                    "the energy of a sequence is NaN or minus infinity",
                    hint="constraints must be finite or plus infinity; do not subtract a constraint of infinite weight",
                )
            energy_B = energy_B + value_B
        return energy_B

    def of_positions(self, tokens_BT: Tensor, logits: tuple[Tensor, ...]) -> Tensor:
        """Compute the models' energy at each position, float64 (B, T), on the CPU, from their scores (B, T, V)."""
        energy_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
        of_model = {id(model): logits_BTV for model, logits_BTV in zip(self.models, logits, strict=True)}
        for term in self.model_terms:
            logits_BTV = of_model[id(term.model)]
            energy_BT += term.weight * term.positions(moved(tokens_BT, logits_BTV.device), logits_BTV).cpu().double()
        return energy_BT


def raw_energy(model: MaskedModel, *, max_rows: int = MAX_ROWS) -> Energy:
    """Make the energy of the model's unnormalised scores: ``E(y) = - sum_t f(y_t, y without t)``.

    Args:
        model: a masked model in evaluation mode. Masked training does not determine an offset of each position's
            scores, which may depend on the other tokens; this energy depends on it, :func:`local_energy` does not.
        max_rows: number of masked sequences per call of the model.

    Source: Goyal (2021), section 6.2.

    Example:
        >>> from seqwise.sampling import table_model
        >>> len(raw_energy(table_model(num_positions=2, vocab_size=3)).models)
        1
    """
    return Energy((ModelTerm(model, _raw_positions),), max_rows=checked_rows(max_rows))


def local_energy(model: MaskedModel, *, max_rows: int = MAX_ROWS) -> Energy:
    """Make the negative pseudo-log-likelihood: ``E(y) = - sum_t log softmax(f(., y without t))[y_t]``.

    Args:
        model: a masked model in evaluation mode.
        max_rows: number of masked sequences per call of the model.

    Source: Goyal (2021), section 6.2.

    Example:
        >>> from seqwise.sampling import table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3)) + 2.0 * constraint(contains(1))
        >>> target.of_sequences(torch.tensor([[1, 0], [0, 2]]))
        tensor([0., inf], dtype=torch.float64)
    """
    return Energy((ModelTerm(model, _local_positions),), max_rows=checked_rows(max_rows))


def sequence_energy(function: Callable[[Tensor], Tensor]) -> Energy:
    """Make an energy from any function of the tokens, such as a classifier's negative log-probability.

    Args:
        function: maps (B, T) int64 to (B,), each row independently; plus infinity excludes a sequence.

    Example:
        >>> sequence_energy(lambda tokens_BT: tokens_BT.sum(1)).of_sequences(torch.tensor([[1, 2]]))
        tensor([3.], dtype=torch.float64)
    """
    return Energy(sequence_terms=(SequenceTerm(function),))


def constraint(holds: Callable[[Tensor], Tensor], *, penalty: float = math.inf) -> Energy:
    """Make an energy that is zero if a condition holds, and a penalty otherwise.

    Args:
        holds: maps (B, T) int64 to (B,) bool.
        penalty: penalty in nats; infinity, the default, makes a hard constraint.

    Raises:
        InputError: the penalty is not greater than 0.

    Example:
        >>> even = constraint(lambda tokens_BT: tokens_BT.sum(1) % 2 == 0, penalty=5.0)
        >>> even.of_sequences(torch.tensor([[1, 2], [1, 1]]))
        tensor([5., 0.], dtype=torch.float64)
    """
    if not penalty > 0:
        raise InputError(f"the penalty of a constraint must be greater than 0, got {penalty}")

    def function(tokens_BT: Tensor) -> Tensor:
        zero_B = torch.zeros(len(tokens_BT), dtype=torch.float64)
        return zero_B.masked_fill(~holds(tokens_BT).cpu(), penalty)

    return sequence_energy(function)


def contains(*tokens: int) -> Callable[[Tensor], Tensor]:
    """Make the condition that a sequence contains the given tokens in a row, for :func:`constraint`.

    It maps (B, T) int64 to (B,) bool. For "must not contain", negate it: ``lambda y: ~contains(3)(y)``.

    Raises:
        InputError: there are no tokens.

    Example:
        >>> contains(1, 2)(torch.tensor([[0, 1, 2], [2, 1, 0]]))
        tensor([ True, False])
    """
    if not tokens:
        raise InputError("contains() needs at least one token")

    def holds(tokens_BT: Tensor) -> Tensor:
        if tokens_BT.shape[1] < len(tokens):
            return torch.zeros(len(tokens_BT), dtype=torch.bool, device=tokens_BT.device)
        phrase_K = torch.tensor(tokens, device=tokens_BT.device)
        return (tokens_BT.unfold(1, len(phrase_K), 1) == phrase_K).all(-1).any(-1)

    return holds


def single_mask_logits(
    model: MaskedModel, tokens_BT: Tensor, scored_BT: Tensor, *, context: Any = None, max_rows: int = MAX_ROWS
) -> Tensor:
    """Compute the scores (M, V) at M positions, each masked alone: one row for each."""
    tokens_BT = tokens_BT.cpu()
    rows_M, places_M = scored_BT.cpu().nonzero(as_tuple=True)
    parts = [
        model.masked_logits(tokens_BT[rows_N], F.one_hot(places_N, tokens_BT.shape[1]).bool(), rows_of(context, rows_N))
        for rows_N, places_N in zip(rows_M.split(max_rows), places_M.split(max_rows), strict=True)
        if len(rows_N)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, model.vocab_size, device=device_of(model))


def joint_logits(
    model: MaskedModel, tokens_BT: Tensor, masked_BT: Tensor, *, context: Any = None, max_rows: int = MAX_ROWS
) -> Tensor:
    """Compute the scores (M, V) at M positions, masked together in each sequence: one row per sequence."""
    tokens_BT, masked_BT = tokens_BT.cpu(), masked_BT.cpu()
    rows_N = masked_BT.any(1).nonzero().flatten()
    parts = [
        model.masked_logits(tokens_BT[part], masked_BT[part], rows_of(context, part))
        for part in rows_N.split(max_rows)
        if len(part)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, model.vocab_size, device=device_of(model))


def pseudo_log_likelihood(
    model: MaskedModel,
    tokens_BT: Tensor,
    *,
    words_BT: Tensor | None = None,
    pieces: Pieces = "original",
    scored_BT: Tensor | None = None,
    context: Any = None,
    max_rows: int = MAX_ROWS,
) -> Tensor:
    """Compute ``log p(y_t | unmasked tokens)`` at each position; with one mask per pass, the sum is ``-E_local``.

    Args:
        model: a masked model in evaluation mode.
        tokens_BT: int64; ``IGNORE`` after the end of shorter sequences, if the model takes it.
        words_BT: int64, equal at the tokens of a word and nowhere else; by default each token is a word.
        pieces: tokens masked with the scored one: "original" none, "within-word-l2r" the rest of its word,
            "whole-word" the whole word.
        scored_BT: bool, positions to score; by default all tokens.
        context: see :func:`single_mask_logits`.
        max_rows: number of masked sequences per call of the model, whose scores are held.

    Returns:
        (B, T), in nats; NaN at positions that are not scored. ``sum(1)`` is the pseudo-log-likelihood of each sequence,
        ``exp(-mean())`` the pseudo-perplexity.

    Source: Salazar et al. (ACL 2020); Goyal (2021), section 6.2; Kauf and Ivanova (ACL 2023), for words.

    Example:
        >>> from seqwise.sampling import table_model
        >>> pseudo_log_likelihood(table_model(num_positions=2, vocab_size=3), torch.tensor([[0, 1]])).shape
        torch.Size([1, 2])
    """
    log_probs_BT: Tensor | None = None
    passes = scored_passes(
        model, tokens_BT, words_BT=words_BT, pieces=pieces, scored_BT=scored_BT, context=context, max_rows=max_rows
    )
    for rows_A, places_A, values_A in list(passes):  # read only after all passes have been queued
        if log_probs_BT is None:
            log_probs_BT = values_A.new_full(tokens_BT.shape, math.nan, device="cpu")
        log_probs_BT[rows_A, places_A] = values_A.cpu()
    return (torch.full(tokens_BT.shape, math.nan) if log_probs_BT is None else log_probs_BT).to(tokens_BT.device)


def scored_passes(
    model: MaskedModel,
    tokens_BT: Tensor,
    *,
    words_BT: Tensor | None = None,
    pieces: Pieces = "original",
    scored_BT: Tensor | None = None,
    context: Any = None,
    max_rows: int = MAX_ROWS,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield rows, positions and log-probabilities of each pass of :func:`pseudo_log_likelihood`, (A,) each.

    The log-probabilities are on the device of the model, which may still be computing them.
    """
    tokens_BT = tokens_BT.cpu()
    positions_T = torch.arange(tokens_BT.shape[1])
    words_BT = positions_T.expand_as(tokens_BT) if words_BT is None else words_BT.cpu()
    scored_BT = tokens_BT != IGNORE if scored_BT is None else scored_BT.cpu()
    passes_BT = scored_BT
    if pieces == "whole-word":
        # The scored tokens of a word share a pass: that of the first of them.
        shared_BTT = (words_BT[:, :, None] == words_BT[:, None, :]) & scored_BT[:, None, :]
        passes_BT = scored_BT & (shared_BTT.int().argmax(-1) == positions_T)
    rows_M, places_M = passes_BT.nonzero(as_tuple=True)
    for first in range(0, len(rows_M), checked_rows(max_rows)):
        rows_N, places_N = rows_M[first : first + max_rows], places_M[first : first + max_rows]
        masked_NT = positions_T == places_N[:, None]
        if pieces != "original":
            masked_NT = words_BT[rows_N] == words_BT[rows_N, places_N][:, None]
        if pieces == "within-word-l2r":
            masked_NT &= positions_T >= places_N[:, None]
        logits_KV = model.masked_logits(tokens_BT[rows_N], masked_NT, rows_of(context, rows_N))
        parts_K, masked_K = masked_NT.nonzero(as_tuple=True)
        scored_K = scored_BT[rows_N[parts_K], masked_K] if pieces == "whole-word" else masked_K == places_N[parts_K]
        rows_A, places_A = rows_N[parts_K[scored_K]], masked_K[scored_K]
        if not bool(scored_K.all()):
            logits_KV = logits_KV[moved(scored_K.nonzero().flatten(), logits_KV.device)]
        yield rows_A, places_A, -_local_positions(moved(tokens_BT[rows_A, places_A], logits_KV.device), logits_KV)


def rows_of(context: Any, rows_N: Tensor) -> Any:
    """Select rows of a model's context: index each tensor along its first dimension; None stays None."""
    return None if context is None else tree.map(lambda leaf: leaf[moved(rows_N, leaf.device)], context)


def _raw_positions(tokens: Tensor, logits: Tensor) -> Tensor:
    return -logits.gather(-1, tokens[..., None]).squeeze(-1)


def _local_positions(tokens: Tensor, logits: Tensor) -> Tensor:
    return log_partition(logits) + _raw_positions(tokens, logits)


def require_allowed(allowed_V: Tensor | None, vocab_size: int) -> None:
    """Raise an :class:`InputError` if allowed tokens are not a mask of the vocabulary, or none is allowed."""
    if allowed_V is None:
        return
    if allowed_V.shape != (vocab_size,) or allowed_V.dtype != torch.bool or not bool(allowed_V.any()):
        raise InputError(
            f"the allowed tokens must be a bool mask of {vocab_size} tokens, at least one of them true, got"
            f" {allowed_V.dtype} of shape {list(allowed_V.shape)} with {int(allowed_V.sum())} true"
        )


def checked_rows(max_rows: int) -> int:
    """Check that the number of sequences per call is at least 1, and return it."""
    if max_rows < 1:
        raise InputError(f"the number of rows per call of a model must be at least 1, got {max_rows}")
    return max_rows


ENERGIES: dict[str, Callable[..., Energy]] = {"local": local_energy, "raw": raw_energy}
"""Energies of a model, by their names in settings."""
