"""Combinators, which make kernels from kernels.

Kernels that leave a target invariant also do so in sequence, or chosen independently of the state. So block sizes can
be mixed and annealed freely; annealing the target is only for burn-in, and is flagged as such.

Shapes: B chains, V kernels to choose from, P pairs of neighbouring temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.draws import Draws
from seqwise.sampling.state import ChainState, Info, Kernel


def cycle(*kernels: Kernel) -> Kernel:
    """Apply one or more kernels in sequence.

    Raises:
        InputError: there are no kernels.

    Example:
        >>> from seqwise.sampling import SeededDraws, anywhere, local_energy, masked_conditionals, metropolis_hastings
        >>> from seqwise.sampling import start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target, proposal = local_energy(model), masked_conditionals(model)
        >>> singles, pairs = (metropolis_hastings(target, proposal, visits=anywhere([size])) for size in (1, 2))
        >>> state = start_chains(target, torch.zeros(1, 3).long())
        >>> cycle(singles, pairs)(SeededDraws(0, state.chain_B, sweep=0), state)[1].proposals_B
        tensor([2])
    """
    if not kernels:
        raise InputError("there is no kernel to run")

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        state, info = kernels[0](draws, state)
        for following in kernels[1:]:
            state, more = following(draws, state)
            info += more
        return state, info

    return kernel


def repeat(kernel: Kernel, times: int) -> Kernel:
    """Apply a kernel a number of times in a row, at least once.

    Example:
        >>> kernel = repeat(lambda draws, state: (state, Info.none(state)), 3)
    """
    return cycle(*[kernel] * times)


def mixture(kernels: Sequence[Kernel], weights: Sequence[float] | None = None) -> Kernel:
    """Apply one of several kernels, drawn for each chain and sweep.

    Args:
        kernels: kernels that treat chains independently, unlike parallel tempering.
        weights: weights greater than 0, in any unit; by default equal.

    Raises:
        InputError: there are no kernels, or the weights do not fit.

    Example:
        >>> stay = lambda draws, state: (state, Info.none(state))
        >>> kernel = mixture([stay, stay], weights=[1, 3])
    """
    shares = [1.0] * len(kernels) if weights is None else list(weights)
    if not kernels or len(shares) != len(kernels) or not all(0 < share < math.inf for share in shares):
        raise InputError(f"{len(kernels)} kernels cannot be mixed with the weights {shares}")

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        free_BT, info = state.free_BT, None
        log_weights_V = torch.tensor(shares, dtype=torch.float64).log()
        choice_B = draws.categorical(log_weights_V.expand(len(state), -1), free_BT.any(1))
        for number, part in enumerate(kernels):
            # A chain without a free position does not move and draws nothing.
            chosen_B1 = (choice_B == number)[:, None]
            state, more = part(draws, replace(state, free_BT=free_BT & chosen_B1))
            info = more if info is None else info + more
        assert info is not None
        return replace(state, free_BT=free_BT), info

    return kernel


def by_sweep(kernels: Sequence[Kernel]) -> Kernel:
    """Use the first kernel in the first sweep, the second in the second, and the last one from then on."""
    if not kernels:
        raise InputError("there is no kernel to run")

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        return kernels[min(state.sweep, len(kernels) - 1)](draws, state)

    return kernel


def burn_in(kernel: Kernel) -> Kernel:
    """Flag transitions as burn-in, which diagnostics exclude.

    Example:
        >>> kernel = burn_in(lambda draws, state: (state, Info.none(state)))
    """

    def flagged(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        state, info = kernel(draws, state)
        return state, replace(info, invariant=False)

    return flagged


def anneal_blocks(kernel_of: Callable[[int], Kernel], sizes: Sequence[int]) -> Kernel:
    """Use one block size per sweep, the last one from then on. All sweeps count, as the target does not change.

    Source: Goyal (2021), section 6.5.

    Example:
        >>> from seqwise.sampling import in_order, local_energy, masked_conditionals, metropolis_hastings, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target, proposal = local_energy(model), masked_conditionals(model)
        >>> kernel = anneal_blocks(lambda b: metropolis_hastings(target, proposal, visits=in_order(b)), [3, 2, 1])
    """
    made = {size: kernel_of(size) for size in sizes}
    return by_sweep([made[size] for size in sizes])


def anneal_target(kernel_of: Callable[[float], Kernel], temperatures: Sequence[float]) -> Kernel:
    """Use one temperature of the target per sweep, the last one from then on; sweeps before it are flagged as burn-in.

    Raises:
        InputError: there are no temperatures.

    Source: Goyal (2021), section 6.6.

    Example:
        >>> from seqwise.sampling import local_energy, masked_conditionals, metropolis_hastings, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target, proposal = local_energy(model), masked_conditionals(model)
        >>> kernel = anneal_target(lambda t: metropolis_hastings(target, proposal, temperature=t), [1.0, 0.98, 0.96])
    """
    if not temperatures:
        raise InputError("there is no temperature to sample at")
    warm = len(temperatures) - 1
    last = kernel_of(temperatures[-1])

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        # A kernel of a long schedule is built only in its sweep.
        made = burn_in(kernel_of(temperatures[state.sweep])) if state.sweep < warm else last
        return made(draws, state)

    return kernel


def parallel_tempering(kernel_of: Callable[[Tensor], Kernel], temperatures: Sequence[float]) -> Kernel:
    """Run chains at several temperatures that exchange states; the first temperature is the target's.

    After each replica's own transition, neighbours i and j exchange states with probability ``min(1, exp((1 / T_i - 1 /
    T_j) (E_i - E_j)))``: first the pairs (0, 1), (2, 3), ..., then (1, 2), (3, 4), .... This leaves the product of all
    replicas' targets unchanged.

    Args:
        kernel_of: maps temperatures (B,) to a kernel.
        temperatures: temperatures of R replicas, greater than 0.

    Returns:
        A kernel for a state of :func:`replicas`; get the samples with :func:`coldest`. The counts are of each replica's
        own transitions.

    Raises:
        InputError: there are no temperatures; in a sweep, if the number of chains is not a multiple of R.

    Source: Geyer (1991); Swendsen and Wang (1986).

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, metropolis_hastings
        >>> from seqwise.sampling import start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> target, proposal = local_energy(model), masked_conditionals(model, temperature=2.0)
        >>> hot = parallel_tempering(lambda t_B: metropolis_hastings(target, proposal, temperature=t_B), [1.0, 2.0])
        >>> state = replicas(start_chains(target, torch.zeros(5, 3).long()), 2)
        >>> state, _ = hot(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> coldest(state, 2).tokens_BT.shape
        torch.Size([5, 3])
    """
    num_replicas = len(temperatures)
    if num_replicas < 1 or not all(value > 0 for value in temperatures):
        raise InputError(f"parallel tempering needs temperatures greater than 0, got {list(temperatures)}")

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        if len(state) % num_replicas:
            raise InputError(
                f"{len(state)} chains do not divide among {num_replicas} temperatures", hint="use replicas"
            )
        ladder = torch.tensor(temperatures, dtype=torch.float64)
        temperature_B = ladder.repeat(len(state) // num_replicas)
        state, info = kernel_of(temperature_B)(draws, state)
        state = state.under(state.energy)
        replica_B = torch.arange(len(state)) % num_replicas
        for parity in (0, 1):
            first_B = (replica_B % 2 == parity) & (replica_B < num_replicas - 1) & state.free_BT.any(1)
            log_accept_B = (1 / temperature_B - 1 / temperature_B.roll(-1)) * (state.energy_B - state.energy_B.roll(-1))
            first_P = (draws.accepts(log_accept_B, first_B) & first_B).nonzero().flatten()
            here_N, there_N = torch.cat([first_P, first_P + 1]), torch.cat([first_P + 1, first_P])
            if len(here_N):
                state.put(here_N, state.take(there_N))
        return state, info

    return kernel


def replicas(state: ChainState, count: int) -> ChainState:
    """Repeat each chain a number of times, next to each other, with separate random numbers.

    Raises:
        InputError: the count is less than 1.

    Example:
        >>> from seqwise.sampling import local_energy, start_chains, table_model
        >>> state = start_chains(local_energy(table_model(num_positions=1, vocab_size=2)), torch.tensor([[0], [1]]))
        >>> replicas(state, 2).tokens_BT.flatten(), coldest(replicas(state, 2), 2).tokens_BT.flatten()
        (tensor([0, 0, 1, 1]), tensor([0, 1]))
    """
    if count < 1:
        raise InputError(f"the number of replicas must be at least 1, got {count}")
    rows_N = torch.arange(len(state)).repeat_interleave(count)
    own_N = torch.arange(len(rows_N)) % count
    return replace(state.take(rows_N), chain_B=state.chain_B[rows_N] * count + own_N)


def coldest(state: ChainState, count: int) -> ChainState:
    """Return the first replica of each group, the one at the first temperature.

    Example: see :func:`replicas`.
    """
    return state.take(torch.arange(0, len(state), count))
