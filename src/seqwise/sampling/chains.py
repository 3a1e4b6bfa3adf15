"""Many chains for many sweeps: seeded chain by chain, watched sweep by sweep, and continued after an interruption.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from seqwise.data.durable import rename_durably
from seqwise.errors import InputError
from seqwise.sampling.draws import SeededDraws
from seqwise.sampling.energies import Energy, rows_of
from seqwise.sampling.state import ChainState, Info, Kernel, evaluate

__all__ = ["Chains", "load_chains", "sample_chains", "save_chains"]


@dataclass(frozen=True, eq=False)
class Chains:
    """What chains went through.

    Attributes:
        state: where they are now; hand it to :func:`sample_chains` again to go on.
        tokens_SBT: int64, after each sweep.
        energy_SB: float64, after each sweep, at temperature 1.
        proposals_SB: int64, proposals made in each sweep.
        accepted_SB: int64, proposals accepted, those that equal the state included.
        novel_SB: int64, proposals accepted that change the state.
        passes_SB: int64, masked sequences that a model was given.
        invariant_S: bool; false for sweeps that only warm up, or follow no energy.
        seconds: how long it took.
    """

    state: ChainState
    tokens_SBT: Tensor
    energy_SB: Tensor
    proposals_SB: Tensor
    accepted_SB: Tensor
    novel_SB: Tensor
    passes_SB: Tensor
    invariant_S: Tensor
    seconds: float

    def __len__(self) -> int:
        return len(self.invariant_S)

    def take(self, rows_N: Tensor) -> Chains:
        """Some of the chains, int64 (N,), with what they went through; the time is that of all."""
        return Chains(
            self.state.take(rows_N),
            self.tokens_SBT[:, rows_N],
            self.energy_SB[:, rows_N],
            self.proposals_SB[:, rows_N],
            self.accepted_SB[:, rows_N],
            self.novel_SB[:, rows_N],
            self.passes_SB[:, rows_N],
            self.invariant_S,
            self.seconds,
        )


@torch.no_grad()
def sample_chains(
    kernel: Kernel,
    init: ChainState,
    num_sweeps: int,
    *,
    seed: int = 0,
    progress: Callable[[ChainState, Info], None] | None = None,
) -> Chains:
    """Run a kernel again and again on many chains.

    The random numbers of a chain depend on the seed, on ``init.chain_B`` and on the number of the sweep. So a chain
    goes the same way alone and among others, as far as the model's scores do not depend on the batch (matrix products
    of other sizes may round differently), and a run that is continued goes the way of one that never stopped.

    Args:
        kernel: one sweep.
        init: from :func:`~seqwise.sampling.state.start_chains`, :func:`load_chains` or an earlier run.
        num_sweeps: how many more sweeps.
        seed: of all random numbers.
        progress: called after each sweep with the state and what the sweep did.

    Returns:
        Every sweep; ``init`` itself is not among them.

    Raises:
        InputError: the number of sweeps is negative.

    Example:
        >>> from seqwise.sampling import local, masked_conditionals, metropolis_hastings, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target = local(model)
        >>> kernel = metropolis_hastings(target, masked_conditionals(model))
        >>> chains = sample_chains(kernel, start_chains(target, torch.zeros(2, 3).long()), 5, seed=1)
        >>> chains.tokens_SBT.shape, chains.state.sweep
        (torch.Size([5, 2, 3]), 5)
    """
    if num_sweeps < 0:
        raise InputError(f"the number of sweeps must be at least 0, got {num_sweeps}")
    state, began = init, time.perf_counter()
    states, infos = [], []
    for _ in range(num_sweeps):
        state, info = kernel(SeededDraws(seed, state.chain_B, sweep=state.sweep), state)
        state = replace(state, sweep=state.sweep + 1)
        states.append((state.tokens_BT, state.energy_B))
        infos.append(info)
        if progress is not None:
            progress(state, info)

    def stacked(parts: list[Tensor], like: Tensor) -> Tensor:
        return torch.stack(parts) if parts else like.new_zeros(0, *like.shape)

    return Chains(
        state,
        stacked([tokens_BT for tokens_BT, _ in states], state.tokens_BT),
        stacked([energy_B for _, energy_B in states], state.energy_B),
        stacked([info.proposals_B for info in infos], state.chain_B),
        stacked([info.accepted_B for info in infos], state.chain_B),
        stacked([info.novel_B for info in infos], state.chain_B),
        stacked([info.passes_B for info in infos], state.chain_B),
        torch.tensor([info.invariant for info in infos], dtype=torch.bool),
        time.perf_counter() - began,
    )


def save_chains(path: str | os.PathLike[str], state: ChainState) -> None:
    """Write where chains are to a safetensors file; after a crash the file is the old one or the new one.

    Args:
        path: replaced if it is there.
        state: all of it but the energy and the context.

    Example:
        >>> import tempfile
        >>> from seqwise.sampling import local, start_chains, table_model
        >>> target = local(table_model(num_positions=2, vocab_size=3))
        >>> path = Path(tempfile.mkdtemp()) / "chains.safetensors"
        >>> save_chains(path, start_chains(target, torch.tensor([[0, 2]])))
        >>> load_chains(path, target).tokens_BT
        tensor([[0, 2]])
    """
    tensors = {name: getattr(state, name) for name in _SAVED}
    tensors |= {f"logits.{number}": logits_BTV for number, logits_BTV in enumerate(state.logits)}
    partial = Path(f"{os.fspath(path)}.part")
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        partial,
        metadata={"kind": "seqwise chains", "sweep": str(state.sweep)},
    )
    rename_durably(partial, Path(path))


_SAVED = ("tokens_BT", "energy_B", "energy_BT", "free_BT", "chain_B")


@torch.no_grad()
def load_chains(
    path: str | os.PathLike[str], energy: Energy, *, context: Any = None, device: str = "cpu"
) -> ChainState:
    """Read what :func:`save_chains` has written.

    Args:
        path: the file.
        energy: that of the run, which the file does not hold. One sequence is evaluated to see that it is the same.
        context: that of the run.
        device: where the tensors go.

    Raises:
        InputError: the file cannot be read, holds something else, or belongs to another energy.

    Example: see :func:`save_chains`.
    """
    try:
        with safe_open(os.fspath(path), framework="pt", device=device) as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"the chains cannot be read: {error}", path=path, mend="start the chains anew") from error
    logits = tuple(
        tensors[f"logits.{number}"] for number in range(len(tensors) - len(_SAVED)) if f"logits.{number}" in tensors
    )
    if metadata.get("kind") != "seqwise chains" or not set(_SAVED) <= set(tensors):
        raise InputError("the file does not hold chains", path=path)
    state = ChainState(
        tensors["tokens_BT"],
        tensors["energy_B"],
        tensors["energy_BT"],
        logits,
        energy,
        tensors["free_BT"],
        tensors["chain_B"],
        int(metadata["sweep"]),
        context,
    )
    first_1 = torch.zeros(min(1, len(state)), dtype=torch.int64, device=state.tokens_BT.device)
    energy_1, _, logits_1 = evaluate(energy, state.tokens_BT[first_1], rows_of(context, first_1))
    same = [own_BTV[first_1].shape == new.shape for own_BTV, new in zip(logits, logits_1, strict=False)]
    if (
        len(logits) != len(logits_1)
        or not all(same)
        or not torch.allclose(energy_1, state.energy_B[first_1], rtol=1e-4, atol=1e-3)
    ):
        raise InputError(
            "the energy of the first chain is not what the file says",
            path=path,
            mend="load with the model, the energy and the context of the run",
        )
    return state
