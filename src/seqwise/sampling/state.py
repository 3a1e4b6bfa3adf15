"""States of chains, with cached energies and masked scores of every position.

Shapes: B chains, T positions, V vocabulary, N some of the chains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from seqwise.devices import moved
from seqwise.errors import InputError
from seqwise.models.protocols import require_evaluation_mode
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import Energy, rows_of, single_mask_logits


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Evaluated sequences: B sequences of one length with their energies and scores."""

    tokens_BT: Tensor  # int64
    energy_B: Tensor  # float64, at temperature 1
    energy_BT: Tensor  # float64, the models' share of it at each position
    logits: tuple[Tensor, ...]  # of each model (B, T, V), each position masked alone

    def take(self, rows_N: Tensor) -> Self:
        """Select sequences, int64 (N,), with their caches."""
        return replace(
            self,
            tokens_BT=self.tokens_BT[rows_N],
            energy_B=self.energy_B[rows_N],
            energy_BT=self.energy_BT[rows_N],
            logits=rows_of(self.logits, rows_N),
        )


@dataclass(frozen=True, eq=False)
class ChainState(Evaluated):
    """State of B chains of one length, with cached energies and scores.

    Scores and context are on the device of the models, all else on the CPU.

    Attributes:
        tokens_BT: int64, current sequences.
        energy_B: float64, their energy at temperature 1.
        energy_BT: float64, the models' part of it at each position.
        logits: for each of ``energy.models``, the scores (B, T, V) of these tokens, each position masked alone.
        energy: the energy of the cached values; a kernel for another energy evaluates the tokens again.
        free_BT: bool, positions that may change.
        chain_B: int64, number of each chain, which determines its random numbers.
        sweep: number of sweeps made.
        context: context of the models: None, or a nest of tensors whose first dimension is B.
    """

    energy: Energy
    free_BT: Tensor
    chain_B: Tensor
    sweep: int = 0
    context: Any = None

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def take(self, rows_N: Tensor) -> Self:
        """Select chains, int64 (N,), with their caches."""
        return replace(
            super().take(rows_N),
            free_BT=self.free_BT[rows_N],
            chain_B=self.chain_B[rows_N],
            context=rows_of(self.context, rows_N),
        )

    def under(self, energy: Energy) -> ChainState:
        """Return a mutable copy, re-evaluated if the energy differs."""
        own = self if energy == self.energy else evaluate(energy, self.tokens_BT, self.context)
        return replace(
            self,
            tokens_BT=own.tokens_BT.clone(),
            energy_B=own.energy_B.clone(),
            energy_BT=own.energy_BT.clone(),
            logits=tuple(logits_BTV.clone() for logits_BTV in own.logits),
            energy=energy,
        )

    def put(self, rows_N: Tensor, new: Evaluated) -> None:
        """Update some chains in place; only for a state of :meth:`under`."""
        self.tokens_BT[rows_N] = new.tokens_BT
        self.energy_B[rows_N] = new.energy_B
        self.energy_BT[rows_N] = new.energy_BT
        for own_BTV, new_NTV in zip(self.logits, new.logits, strict=True):
            own_BTV[moved(rows_N, own_BTV.device)] = new_NTV


@dataclass(frozen=True, eq=False)
class Info:
    """Record of a transition; counts of successive transitions add up.

    Attributes:
        proposals_B: int64, number of proposals.
        accepted_B: int64, accepted proposals, including those equal to the state.
        novel_B: int64, accepted proposals that change the state.
        passes_B: int64, masked sequences that a model has read.
        invariant: whether the transition leaves the target invariant; false for burn-in, and for transitions that
            follow no energy.
    """

    proposals_B: Tensor
    accepted_B: Tensor
    novel_B: Tensor
    passes_B: Tensor
    invariant: bool = True

    @classmethod
    def none(cls, state: ChainState, *, invariant: bool = True) -> Info:
        """Return counts of 0 for every chain."""
        zero_B = torch.zeros_like(state.chain_B)
        return cls(zero_B, zero_B, zero_B, zero_B, invariant)

    def __add__(self, other: Info) -> Info:
        return Info(
            self.proposals_B + other.proposals_B,
            self.accepted_B + other.accepted_B,
            self.novel_B + other.novel_B,
            self.passes_B + other.passes_B,
            self.invariant and other.invariant,
        )


class Kernel(Protocol):
    """Transition of every chain: ``state, info = kernel(draws, state)``.

    It does not modify the given state, and never changes positions that are not free. A chain without free positions
    does not move and draws nothing.
    """

    def __call__(self, draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        """Return the next state, and the record of the transition."""
        ...


@torch.no_grad()
def evaluate(energy: Energy, tokens_BT: Tensor, context: Any = None) -> Evaluated:
    """Evaluate sequences from scratch: T passes of each model for each."""
    tokens_BT = tokens_BT.cpu()
    every_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    options: dict[str, Any] = {"context": context, "max_rows": energy.max_rows}
    logits = tuple(
        single_mask_logits(model, tokens_BT, every_BT, **options).unflatten(0, tokens_BT.shape)
        for model in energy.models
    )
    energy_BT = energy.of_positions(tokens_BT, logits)
    return Evaluated(tokens_BT, energy_BT.sum(1) + energy.of_sequences(tokens_BT), energy_BT, logits)


def start_chains(
    energy: Energy,
    tokens_BT: Tensor,
    *,
    free_BT: Tensor | None = None,
    context: Any = None,
    chain_B: Tensor | None = None,
) -> ChainState:
    """Make the initial state of chains at given sequences.

    Args:
        energy: target of the chains.
        tokens_BT: int64, sequences of one length, with tokens that the models score.
        free_BT: bool, positions that may change; by default all. Samples are conditioned on the tokens at the others.
        context: context of the models: None, or a nest of tensors whose first dimension is B.
        chain_B: int64, number of each chain, which determines its random numbers; by default 0 to B-1. Chains of
            different batches, for example of different lengths, are independent if these differ.

    Returns:
        The state of B chains before their first sweep, with the scores of every position, in B T passes per model.

    Raises:
        InputError: the tokens cannot be used, a model is in training mode, or an energy is infinite.

    Example:
        >>> from seqwise.sampling import local_energy, table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3))
        >>> state = start_chains(target, torch.tensor([[0, 2], [1, 1]]))
        >>> len(state), state.logits[0].shape
        (2, torch.Size([2, 2, 3]))
    """
    if tokens_BT.dim() != 2 or tokens_BT.dtype != torch.int64 or tokens_BT.shape[1] == 0:
        shape = list(tokens_BT.shape)
        raise InputError(f"chains start from int64 tokens of shape (chains, positions), got {tokens_BT.dtype} {shape}")
    tokens_BT = tokens_BT.cpu()
    for model in energy.models:
        require_evaluation_mode(model)
        outside_BT = (tokens_BT < 0) | (tokens_BT >= model.vocab_size)
        if bool(outside_BT.any()):
            raise InputError(
                f"token {int(tokens_BT[outside_BT][0])} of an initial sequence is not one of the"
                f" {model.vocab_size} that the model scores",
                hint="fill masked positions first, for example with mask_predict",
            )
    free_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if free_BT is None else free_BT.cpu()
    chain_B = torch.arange(len(tokens_BT)) if chain_B is None else chain_B.cpu()
    if free_BT.shape != tokens_BT.shape or chain_B.shape != tokens_BT.shape[:1]:
        raise InputError(
            f"tokens of shape {list(tokens_BT.shape)} do not fit free positions of shape {list(free_BT.shape)} and"
            f" chain numbers of shape {list(chain_B.shape)}"
        )
    own = evaluate(energy, tokens_BT, context)
    infinite_B = ~own.energy_B.isfinite()
    if bool(infinite_B.any()):
        raise InputError(
            f"the energy of {int(infinite_B.sum())} of {len(infinite_B)} initial sequences is not finite",
            hint="start from sequences that keep the hard constraints",
        )
    return ChainState(
        own.tokens_BT, own.energy_B, own.energy_BT, own.logits, energy, free_BT.bool(), chain_B, context=context
    )
