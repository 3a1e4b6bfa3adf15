"""Runs of many chains for many sweeps, seeded by chain, traced by sweep, and resumable.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from seqwise.data.durable import rename_durably
from seqwise.errors import InputError
from seqwise.sampling.draws import SeededDraws
from seqwise.sampling.energies import Energy, rows_of
from seqwise.sampling.state import ChainState, Info, Kernel, evaluate


@dataclass(frozen=True, eq=False)
class Trace:
    """Trace of chains of one length: energies, counts and sequences of each sweep.

    Attributes:
        energy_SB: float64, energy after each sweep, at temperature 1.
        proposals_SB: int64, number of proposals in each sweep.
        accepted_SB: int64, accepted proposals, including those equal to the state.
        novel_SB: int64, accepted proposals that change the state.
        passes_SB: int64, masked sequences that a model has read.
        invariant_S: bool; false for burn-in sweeps, and for sweeps that follow no energy.
        tokens: int64 (B, T), for each sweep whose sequences are kept; sweeps are counted from 1.
        seconds: duration of these sweeps; NaN for sweeps read from a file.
        last: the state after the last sweep; None for a trace read without it.
    """

    energy_SB: Tensor
    proposals_SB: Tensor
    accepted_SB: Tensor
    novel_SB: Tensor
    passes_SB: Tensor
    invariant_S: Tensor
    tokens: Mapping[int, Tensor] = field(default_factory=dict)
    seconds: float = math.nan
    last: ChainState | None = None

    def __len__(self) -> int:
        return len(self.invariant_S)

    @classmethod
    def none(cls, state: ChainState) -> Trace:
        """Return the empty trace of chains before their first sweep."""
        none_SB = state.chain_B.new_zeros(0, len(state))
        invariant_S = torch.zeros(0, dtype=torch.bool)
        return cls(none_SB.double(), none_SB, none_SB, none_SB, none_SB, invariant_S, {}, 0.0, state)

    def __add__(self, later: Trace) -> Trace:
        """Append later sweeps of the same chains."""
        stacked = {name: torch.cat([getattr(self, name), getattr(later, name)]) for name in (*PER_CHAIN, "invariant_S")}
        tokens = {**self.tokens, **{len(self) + sweep: tokens_BT for sweep, tokens_BT in later.tokens.items()}}
        return Trace(**stacked, tokens=tokens, seconds=self.seconds + later.seconds, last=later.last)

    @property
    def state(self) -> ChainState:
        """The state after the last sweep; pass it to :func:`sample_chains` to continue."""
        if self.last is None:
            raise InputError("the trace has no state to continue from")
        return self.last

    @cached_property
    def tokens_SBT(self) -> Tensor:
        """Int64, tokens after each sweep whose sequences are kept: all sweeps in a trace of :func:`sample_chains`."""
        kept = [self.tokens[sweep] for sweep in sorted(self.tokens)]
        return torch.stack(kept) if kept else self.state.tokens_BT.new_zeros(0, *self.state.tokens_BT.shape)

    def take(self, rows_N: Tensor) -> Trace:
        """Select chains, int64 (N,); the time remains that of all chains."""
        return replace(
            self,
            **{name: getattr(self, name)[:, rows_N] for name in PER_CHAIN},
            tokens={sweep: tokens_BT[rows_N] for sweep, tokens_BT in self.tokens.items()},
            last=None if self.last is None else self.last.take(rows_N),
        )

    def coldest(self, count: int) -> Trace:
        """Select the first replica of each group, with the passes of the whole group: the cost of its samples."""
        if count == 1:
            return self
        passes_SB = self.passes_SB.unflatten(1, (-1, count)).sum(2)
        rows_N = torch.arange(0, self.energy_SB.shape[1], count)
        return replace(self.take(rows_N), passes_SB=passes_SB)

    def keep(self, wanted: Callable[[int], bool]) -> Trace:
        """Return the trace with the sequences of the wanted sweeps only, counted from 1."""
        return replace(self, tokens={sweep: tokens for sweep, tokens in self.tokens.items() if wanted(sweep)})


class Tally(NamedTuple):
    """Counts over sweeps and chains: proposals, accepted ones, ones that changed the state, and forward passes."""

    proposals: int
    accepted: int
    novel: int
    passes: int

    @property
    def acceptance(self) -> float:
        """Share of accepted proposals, including those equal to the state; 0 without proposals."""
        return self.accepted / max(self.proposals, 1)

    @property
    def novelty(self) -> float:
        """Share of proposals that were accepted and changed the state; 0 without proposals."""
        return self.novel / max(self.proposals, 1)


def tally(traces: Sequence[Trace], *, sweeps: slice = slice(None)) -> Tally:
    """Sum the counts of some sweeps of all chains."""
    return Tally(*(sum(int(getattr(trace, f"{name}_SB")[sweeps].sum()) for trace in traces) for name in Tally._fields))


PER_CHAIN = ("energy_SB", "proposals_SB", "accepted_SB", "novel_SB", "passes_SB")
"""Fields of a trace with a value for each sweep and chain."""


@torch.no_grad()
def sample_chains(
    kernel: Kernel,
    init: ChainState,
    num_sweeps: int,
    *,
    seed: int = 0,
    progress: Callable[[ChainState, Info], None] | None = None,
) -> Trace:
    """Run a kernel for many sweeps on many chains.

    The random numbers of a chain depend on the seed, ``init.chain_B`` and the number of the sweep. So a chain takes the
    same path alone and in a batch, if the model's scores do not depend on the batch (matrix products of different sizes
    may round differently), and also when it is resumed.

    Args:
        kernel: kernel that makes a sweep.
        init: state from :func:`~seqwise.sampling.state.start_chains`, :func:`load_chains` or an earlier run.
        num_sweeps: number of further sweeps, 0 or more.
        seed: random seed.
        progress: called after each sweep with the state and the record of the sweep.

    Returns:
        The trace of all sweeps, without ``init``.

    Raises:
        InputError: the number of sweeps is negative.

    Example:
        >>> from seqwise.sampling import local_energy, masked_conditionals, metropolis_hastings
        >>> from seqwise.sampling import start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target = local_energy(model)
        >>> kernel = metropolis_hastings(target, masked_conditionals(model))
        >>> chains = sample_chains(kernel, start_chains(target, torch.zeros(2, 3).long()), 5, seed=1)
        >>> chains.tokens_SBT.shape, chains.state.sweep
        (torch.Size([5, 2, 3]), 5)
    """
    if num_sweeps < 0:
        raise InputError(f"the number of sweeps must be at least 0, got {num_sweeps}")
    if num_sweeps == 0:
        return Trace.none(init)
    state, began = init, time.perf_counter()
    tokens: dict[int, Tensor] = {}
    energies, infos = [], []
    for sweep in range(1, num_sweeps + 1):
        state, info = kernel(SeededDraws(seed, state.chain_B, sweep=state.sweep), state)
        state = replace(state, sweep=state.sweep + 1)
        tokens[sweep] = state.tokens_BT
        energies.append(state.energy_B)
        infos.append(info)
        if progress is not None:
            progress(state, info)

    return Trace(
        torch.stack(energies),
        torch.stack([info.proposals_B for info in infos]),
        torch.stack([info.accepted_B for info in infos]),
        torch.stack([info.novel_B for info in infos]),
        torch.stack([info.passes_B for info in infos]),
        torch.tensor([info.invariant for info in infos], dtype=torch.bool),
        tokens,
        time.perf_counter() - began,
        state,
    )


def save_chains(path: str | os.PathLike[str], state: ChainState) -> None:
    """Save the states of chains to a safetensors file, atomically, without energy and context.

    Raises:
        InputError: the chains are of another kind, such as those of :func:`~seqwise.sampling.regrow_suffix`.

    Example:
        >>> import tempfile
        >>> from seqwise.sampling import local_energy, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3))
        >>> path = Path(tempfile.mkdtemp()) / "chains.safetensors"
        >>> save_chains(path, start_chains(target, torch.tensor([[0, 2]])))
        >>> load_chains(path, target).tokens_BT
        tensor([[0, 2]])
    """
    if len(fields(state)) > len(fields(ChainState)):  # such as one in a language, whose energy depends on the context
        problem = f"a {type(state).__name__} holds more than a file of chains"
        raise InputError(problem, path=path, hint="save its tokens, and start again from them with start_within")
    tensors = {name: getattr(state, name) for name in _SAVED}
    tensors |= {f"logits.{number}": logits_BTV for number, logits_BTV in enumerate(state.logits)}
    # One entry of metadata: safetensors would order several differently from call to call, and equal states give equal
    # files.
    packed = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={_SWEEP: str(state.sweep)},
    )
    partial = Path(f"{os.fspath(path)}.part")
    partial.write_bytes(packed)  # an OSError on a full disk, unlike save_file
    rename_durably(partial, Path(path))


_SWEEP = "sweep of seqwise chains"
_SAVED = ("tokens_BT", "energy_B", "energy_BT", "free_BT", "chain_B")


@torch.no_grad()
def load_chains(path: str | os.PathLike[str], energy: Energy, *, context: Any = None) -> ChainState:
    """Load states saved by :func:`save_chains`.

    Args:
        path: the file.
        energy: energy of the run, which the file does not contain. It is checked on one sequence, and scores are put
            on the device of its models.
        context: context of the run.

    Raises:
        InputError: the file cannot be read, is of another kind, or belongs to another energy.
    """
    try:
        with safe_open(os.fspath(path), framework="pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"the chains cannot be read: {error}", path=path, hint="start the chains again") from error
    names = (f"logits.{number}" for number in range(len(tensors) - len(_SAVED)))
    logits = tuple(tensors[name] for name in names if name in tensors)
    if _SWEEP not in metadata or not set(_SAVED) <= set(tensors):
        raise InputError("the file does not hold chains", path=path)
    saved = {name: tensors[name] for name in _SAVED}
    state = ChainState(**saved, logits=logits, energy=energy, sweep=int(metadata[_SWEEP]), context=context)
    first_1 = torch.zeros(min(1, len(state)), dtype=torch.int64)
    first, known = state.take(first_1), evaluate(energy, state.tokens_BT[first_1], rows_of(context, first_1))
    same = [own_1TV.shape for own_1TV in first.logits] == [new_1TV.shape for new_1TV in known.logits]
    if not same or not torch.allclose(known.energy_B, first.energy_B, rtol=1e-4, atol=1e-3):
        raise InputError(
            "the energy of the first chain differs from the file",
            path=path,
            hint="load with the model, the energy and the context of the run",
        )
    placed = tuple(own.to(new_1TV.device) for own, new_1TV in zip(logits, known.logits, strict=True))
    return replace(state, logits=placed)
