"""Tests of samplers: exact or estimated transition matrices on small spaces, and their properties.

Kernels of this package request each random choice by its probabilities (:class:`~seqwise.sampling.draws.Draws`). Here a
kernel runs once for every outcome of its choices, from all states at once, and the product of the probabilities gives
the exact matrix. Any other sampler runs many times instead, and is tested by standard errors.

Shapes: N states, B = N G chains, with G chains per state, T positions, V vocabulary or choices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.sampling.state import ChainState, Kernel
from seqwise.sampling.unmasking import Partial, Unmasking

MOST_SEQUENCES = 1_000_000
"""Largest V^T for a table of all sequences."""


def boltzmann(energy_N: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute the target, ``p = softmax(-E / T)``, float64 (N,), from the energies of all sequences.

    Example:
        >>> boltzmann(torch.tensor([0.0, 0.0])).tolist()
        [0.5, 0.5]
    """
    return (-energy_N.double() / temperature).softmax(0)


@torch.no_grad()
def transition_matrix(kernel: Kernel, states: ChainState, *, chains_per_state: int = 1) -> Tensor:
    """Compute the exact probability of every transition between listed states.

    This takes one run of the kernel for every outcome of its choices: V^T 2^T for a sweep of Metropolis-Hastings over T
    positions.

    Args:
        kernel: kernel that requests all its choices from its draws.
        states: one chain for each state, or ``chains_per_state`` next to each other.
        chains_per_state: more than 1 if chains interact, such as the temperatures of parallel tempering.

    Returns:
        (N, N), float64, from the row to the column.

    Raises:
        InputError: two states are equal, the kernel leaves the set of states, or it draws other random numbers (of
            torch, numpy or Python, or any that change its result when it runs again).

    Example:
        >>> from seqwise.sampling import every_sequence
        >>> from seqwise.sampling import anywhere, local_energy, masked_conditionals, metropolis_hastings, start_chains
        >>> model = table_model(num_positions=2, vocab_size=2)
        >>> states = start_chains(local_energy(model), every_sequence(2, 2))
        >>> kernel = metropolis_hastings(local_energy(model), masked_conditionals(model), visits=anywhere())
        >>> bool((transition_matrix(kernel, states).sum(1) - 1).abs().max() < 1e-14)
        True
    """
    group = chains_per_state
    places = {key: place for place, key in enumerate(_keys(states.tokens_BT, group))}
    if len(places) * group != len(states):
        raise InputError("two of the listed states are the same")
    matrix_NN = torch.zeros(len(places), len(places), dtype=torch.float64)
    path: list[int] = []
    generators, runs = _random_states(), list[tuple[list[int], Tensor, Tensor]]()
    while True:
        draws = _OnePath(path, len(places), group)
        try:
            after = kernel(draws, states)[0].tokens_BT
        except _Impossible:
            # No state has these outcomes, so all paths with this prefix have probability 0 and add nothing. They are
            # skipped, because the next path changes the last choice, which ruled out the last state.
            pass
        else:
            runs = [*runs[:1], (list(path), after, draws.weight_N)]
            for row, (key, weight) in enumerate(zip(_keys(after, group), draws.weight_N.tolist(), strict=True)):
                if weight == 0:
                    continue
                if key not in places:
                    raise InputError(f"the kernel leads to {key}, which is not among the states")
                matrix_NN[row, places[key]] += weight
        # The next path: the last choice with another option takes it, and later choices are dropped.
        path = [*path, *[0] * (len(draws.options) - len(path))][: len(draws.options)]
        while path and path[-1] == draws.options[-1] - 1:
            path.pop()
            draws.options.pop()
        if not path:
            break
        path[-1] += 1
    changed = [name for name, before in generators.items() if _random_states()[name] != before]
    # The first path and the last one: chains that reject everything may stay, those that accept everything move.
    if not changed and not all(_repeats(kernel, states, group, *run) for run in 3 * runs):
        changed = ["its result for the same choices"]
    if changed:
        raise InputError(
            f"the kernel draws its own random numbers ({changed[0]} changed), so its matrix is unknown",
            hint="take every random choice from draws, or estimate with simulated_matrix",
        )
    return matrix_NN


@dataclass(frozen=True, eq=False)
class UnmaskingLaw:
    """Result of :func:`unmasking_law`.

    Attributes:
        probs_N: float64, probability of every sequence, in the order of :func:`every_sequence`.
        passes: expected number of passes of the model.
    """

    probs_N: Tensor
    passes: float


@torch.no_grad()
def unmasking_law(decoder: Unmasking, length: int) -> UnmaskingLaw:
    """Compute the exact output distribution of a decoder of masked diffusion models.

    It follows every choice, and merges paths with the same partially masked sequence after each iteration.

    Args:
        decoder: decoder of :mod:`seqwise.sampling.unmasking`.
        length: T; all positions are free.

    Raises:
        InputError: there are too many sequences.

    Not implemented: contexts, positions that are not free.

    Example:
        >>> from seqwise.sampling import masked_conditionals, random_unmasking
        >>> model = table_model(num_positions=2, vocab_size=2)
        >>> law = unmasking_law(random_unmasking(masked_conditionals(model), num_iterations=1), 2)
        >>> law.probs_N.shape, law.passes
        (torch.Size([4]), 1.0)
    """
    size = decoder.model.vocab_size
    partials = every_sequence(size + 1, length)  # token V stands for a mask
    probs_P = torch.zeros(len(partials), dtype=torch.float64)
    probs_P[-1] = 1.0
    powers_T = (size + 1) ** torch.arange(length - 1, -1, -1)
    masked_PT, free_PT = partials == size, torch.ones_like(partials, dtype=torch.bool)
    passes = 0.0
    for iteration in range(1, decoder.most_iterations(free_PT) + 1):
        if decoder.num_iterations is None:  # decoding ends when nothing is masked
            probs_P, ended_P = probs_P * masked_PT.any(1), probs_P * ~masked_PT.any(1)
        else:
            ended_P = torch.zeros_like(probs_P)
        rows_B = probs_P.nonzero().flatten()
        passes += float((probs_P * masked_PT.any(1)).sum())
        start = Partial(partials[rows_B].clamp(max=size - 1), masked_PT[rows_B], free_PT[rows_B])
        after, origin_N, weight_N = _every_outcome(decoder, start, iteration)
        number_N = (after.tokens_BT.masked_fill(after.masked_BT, size) * powers_T).sum(1)
        probs_P = ended_P.index_add(0, number_N, probs_P[rows_B][origin_N] * weight_N)
    complete_N = (~masked_PT.any(1)).nonzero().flatten()
    return UnmaskingLaw(probs_P[complete_N], passes)


def _every_outcome(decoder: Unmasking, start: Partial, iteration: int) -> tuple[Partial, Tensor, Tensor]:
    """Run an iteration for every outcome; return the results, their origins and their probabilities."""
    logits_BTV = decoder.scores(start)
    origin_N, chosen_ND = torch.arange(len(start.tokens_BT)), torch.zeros(len(start.tokens_BT), 0).long()
    weight_N = torch.ones(len(origin_N), dtype=torch.float64)
    while True:
        draws = _Known(chosen_ND)
        try:
            after = decoder.rule(draws, start.take(origin_N), logits_BTV[origin_N], iteration)
        except _Unknown as choice:
            parent_M, option_M = choice.probs_NV.nonzero(as_tuple=True)
            weight_N = weight_N[parent_M] * choice.probs_NV[parent_M, option_M]
            origin_N, chosen_ND = origin_N[parent_M], torch.cat([chosen_ND[parent_M], option_M[:, None]], 1)
        else:
            return after, origin_N, weight_N


class _Unknown(Exception):
    """Open choice, with the probabilities of its options."""

    def __init__(self, probs_NV: Tensor) -> None:
        self.probs_NV = probs_NV


class _Followed:
    """Draws whose every choice ``_choose`` makes, given its probabilities (B, V)."""

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        return self._choose(log_weights_BV.double().softmax(-1), live_B)

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        accept_B = log_probs_B.double().exp().clamp(max=1.0)
        return self._choose(torch.stack([1 - accept_B, accept_B], -1), live_B) == 1

    def _choose(self, probs_BV: Tensor, live_B: Tensor) -> Tensor:
        raise NotImplementedError


class _Known(_Followed):
    """Draws with given first choices for each chain; the next requested choice is raised."""

    def __init__(self, chosen_ND: Tensor) -> None:
        self._left = list(chosen_ND.unbind(1))

    def _choose(self, probs_BV: Tensor, live_B: Tensor) -> Tensor:
        if self._left:
            return self._left.pop(0)
        # A chain that is not live has one outcome.
        only_V = F.one_hot(torch.tensor(0), probs_BV.shape[1]).double()
        raise _Unknown(torch.where(live_B[:, None], probs_BV, only_V))


def simulated_matrix(step: Callable[[Tensor], Tensor], states_NT: Tensor, *, num_draws: int) -> Tensor:
    """Estimate the transition probabilities of any sampler from many draws.

    Args:
        step: maps sequences (B, T) to the next ones, with independent random numbers.
        states_NT: all sequences.
        num_draws: transitions from each state; the standard error of an entry p is ``sqrt(p (1 - p) / num_draws)``.

    Returns:
        (N, N), float64; test it with :func:`examine_draws`.

    Raises:
        InputError: two states are equal, or the sampler leaves the set of states.

    Example:
        >>> from seqwise.sampling import every_sequence
        >>> states_NT = every_sequence(2, 1)
        >>> simulated_matrix(lambda tokens_BT: 1 - tokens_BT, states_NT, num_draws=10).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    places = {key: place for place, key in enumerate(_keys(states_NT, 1))}
    if len(places) != len(states_NT):
        raise InputError("two of the listed states are the same")
    after = _keys(step(states_NT.repeat_interleave(num_draws, 0)), 1)
    missing = next((key for key in after if key not in places), None)
    if missing is not None:
        raise InputError(f"the sampler leads to {missing}, which is not among the states")
    column_M = torch.tensor([places[key] for key in after])
    row_M = torch.arange(len(states_NT)).repeat_interleave(num_draws)
    counts = torch.bincount(row_M * len(places) + column_M, minlength=len(places) ** 2)
    return counts.view(len(places), -1).double() / num_draws


@dataclass(frozen=True)
class MatrixReport:
    """Result of :func:`examine`.

    Attributes:
        stationarity: ``max |pi K - pi|``; 0 if the target is invariant.
        detailed_balance: ``max |pi_i K_ij - pi_j K_ji|``; a correct kernel may fail it, like sweeps in order.
        num_classes: number of communicating classes of the support of pi; 1 if irreducible.
        total_variation: distance between pi and the chain's long-run average, from the worst start in the support.
    """

    stationarity: float
    detailed_balance: float
    num_classes: int
    total_variation: float

    @property
    def irreducible(self) -> bool:
        """Whether every state of the support can reach every other."""
        return self.num_classes == 1

    def holds(self, tolerance: float = 1e-12) -> bool:
        """Whether the kernel samples from the target: the target is invariant, and every start converges to it."""
        return self.stationarity <= tolerance and self.irreducible


def examine(matrix_NN: Tensor, target_N: Tensor) -> MatrixReport:
    """Test whether a transition matrix leaves a distribution invariant and converges to it.

    Args:
        matrix_NN: probabilities from the row to the column; each row sums to 1.
        target_N: pi.

    Raises:
        InputError: a row or the target does not sum to 1.

    Example:
        >>> report = examine(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0.5, 0.5]))
        >>> report.stationarity, report.num_classes, report.holds()
        (0.0, 1, True)
    """
    matrix_NN, target_N = _distributions(matrix_NN, target_N)
    flow_NN = target_N[:, None] * matrix_NN
    reach_NN, limit_NN = (matrix_NN > 0) | torch.eye(len(target_N)).bool(), (matrix_NN + torch.eye(len(target_N))) / 2
    for _ in range(max(1, math.ceil(math.log2(len(target_N))))):
        reach_NN = (reach_NN.double() @ reach_NN.double()) > 0
    # The lazy chain stays with probability 1/2, so its powers converge even if the chain itself is periodic.
    for _ in range(60):
        limit_NN = limit_NN @ limit_NN
        limit_NN = limit_NN / limit_NN.sum(1, keepdim=True)
    support_N = target_N > 0
    both_NN = (reach_NN & reach_NN.T)[support_N][:, support_N]
    # A class is counted at its first member.
    num_classes = int((both_NN.double().tril(-1).sum(1) == 0).sum())
    return MatrixReport(
        float((target_N @ matrix_NN - target_N).abs().max()),
        float((flow_NN - flow_NN.T).abs().max()),
        num_classes,
        float((limit_NN[support_N] - target_N).abs().sum(1).max() / 2),
    )


@dataclass(frozen=True, eq=False)
class DrawsReport:
    """Result of :func:`examine_draws`.

    Attributes:
        gaps_N: ``(pi K - pi)_j`` in standard errors, for each state.
        largest: largest absolute gap.
        p_value: bound on the probability that a correct sampler has so large a gap at any state: two-sided, times N.
    """

    gaps_N: Tensor
    largest: float
    p_value: float

    def holds(self, level: float = 1e-3) -> bool:
        """Whether the draws do not reject the sampler; correct ones are rejected with probability at most ``level``."""
        return self.p_value >= level


def examine_draws(matrix_NN: Tensor, target_N: Tensor, *, num_draws: int) -> DrawsReport:
    """Test whether a simulated matrix leaves a distribution invariant.

    The gap ``(pi K - pi)_j`` has the variance ``sum_i pi_i^2 K_ij (1 - K_ij) / num_draws``, with one transition added
    to each side of every entry, so that unseen transitions do not count as impossible.

    Args:
        matrix_NN: from :func:`simulated_matrix`; each row sums to 1.
        target_N: pi.
        num_draws: number of transitions from each state.

    Raises:
        InputError: a row or the target does not sum to 1, or there are no draws.

    Not implemented: irreducibility. A sampler that never leaves a subset of the states may pass this test; use an exact
    matrix (:func:`examine`) or chains that start in all subsets. Gaps much smaller than a standard error also go
    unnoticed, and take more draws.

    Example:
        >>> matrix_NN, target_N = torch.tensor([[0.7, 0.3], [0.7, 0.3]]), torch.tensor([0.7, 0.3])
        >>> examine_draws(matrix_NN, target_N, num_draws=1000).holds()
        True
        >>> examine_draws(matrix_NN, torch.tensor([0.6, 0.4]), num_draws=1000).holds()
        False
    """
    if num_draws < 1:
        raise InputError(f"the number of draws from each state must be at least 1, got {num_draws}")
    matrix_NN, target_N = _distributions(matrix_NN, target_N)
    seen_NN = (matrix_NN * num_draws + 1) / (num_draws + 2)
    error_N = (target_N**2 @ (seen_NN * (1 - seen_NN)) / num_draws).sqrt()
    gaps_N = (target_N @ matrix_NN - target_N) / error_N
    largest = float(gaps_N.abs().max())
    return DrawsReport(gaps_N, largest, min(1.0, len(target_N) * math.erfc(largest / math.sqrt(2))))


class TableModel:
    """Masked model given by a table of scores, with one row for each position and each partially masked sequence.

    ``table`` is (T, (V + 1)^T, V); a sequence with masks, read as a number in base V + 1, is the row.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.vocab_size = table.shape[2]
        self.mask_id = self.vocab_size

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Tensor | None = None) -> Tensor:
        """See :class:`~seqwise.models.protocols.MaskedModel`; a context (N,) is added to the scores of token 0."""
        base_T = (self.vocab_size + 1) ** torch.arange(tokens_NT.shape[1] - 1, -1, -1)
        code_N = (tokens_NT.masked_fill(masked_NT, self.mask_id) * base_T).sum(1)
        rows_M, places_M = masked_NT.nonzero(as_tuple=True)
        logits_MV = self.table[places_M, code_N[rows_M]]
        if context is None:
            return logits_MV
        return logits_MV + context[rows_M, None] * F.one_hot(torch.tensor(0), self.vocab_size)


def table_model(*, num_positions: int, vocab_size: int, seed: int = 0, scale: float = 1.0) -> TableModel:
    """Make a masked model with random float64 scores, fixed by the seed, for tests of samplers.

    Args:
        num_positions: T.
        vocab_size: V.
        seed: random seed of the scores.
        scale: standard deviation of the scores.

    Example:
        >>> model = table_model(num_positions=2, vocab_size=3)
        >>> model.masked_logits(torch.tensor([[0, 1]]), torch.tensor([[True, False]])).shape
        torch.Size([1, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (num_positions, (vocab_size + 1) ** num_positions, vocab_size)
    return TableModel(scale * torch.randn(shape, generator=generator, dtype=torch.float64))


def _distributions(matrix_NN: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """Check both, and convert them to double precision."""
    matrix_NN, target_N = matrix_NN.double(), target_N.double()
    off = max(float((matrix_NN.sum(1) - 1).abs().max()), abs(float(target_N.sum()) - 1))
    if not off < 1e-6:
        raise InputError(f"probabilities should sum to 1 and are {off:.2g} off")
    return matrix_NN, target_N


def _random_states() -> dict[str, object]:
    """Return the states of global generators that other samplers may use."""
    _, words, *others = np.random.get_state(legacy=True)
    return {
        "torch's state": torch.get_rng_state().tolist(),
        "numpy's state": (np.asarray(words).tolist(), others),
        "Python's state": random.getstate(),
    }


def _repeats(kernel: Kernel, states: ChainState, group: int, path: list[int], before: Tensor, weight_N: Tensor) -> bool:
    """Whether a kernel repeats its result for the same outcomes of its choices."""
    try:
        after = kernel(_OnePath(path, len(weight_N), group), states)[0].tokens_BT
    except _Impossible:
        return False
    # Results of probability 0 may be anything.
    return torch.equal(after[(weight_N > 0).repeat_interleave(group)], before[(weight_N > 0).repeat_interleave(group)])


class _Impossible(Exception):
    """Raised when no state has this outcome."""


class _OnePath(_Followed):
    """Draws that follow a path, and take the first option beyond it; records each state's probability of this outcome.

    The chains of one state choose jointly: each takes a digit of the option's number.
    """

    def __init__(self, path: list[int], num_states: int, group: int) -> None:
        self.path, self.group = path, group
        self.options: list[int] = []
        self.weight_N = torch.ones(num_states, dtype=torch.float64)

    def _choose(self, probs_BV: Tensor, live_B: Tensor) -> Tensor:
        size, place = probs_BV.shape[1], len(self.options)
        option = self.path[place] if place < len(self.path) else 0
        self.options.append(size**self.group)
        choice_B = torch.tensor([option // size**g % size for g in range(self.group)]).repeat(len(self.weight_N))
        share_B = probs_BV.gather(1, choice_B[:, None]).squeeze(1)
        share_B = torch.where(live_B, share_B, (choice_B == 0).double())
        share_N = share_B.view(-1, self.group).prod(1)
        # States of probability 0 may hold anything, including NaN.
        self.weight_N = torch.where(self.weight_N == 0, 0.0, self.weight_N * share_N)
        if not bool((self.weight_N != 0).any()):
            raise _Impossible
        return choice_B


def _keys(tokens_BT: Tensor, group: int) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tokens_BT.reshape(len(tokens_BT) // group, -1).tolist()]


def every_sequence(vocab_size: int, length: int) -> Tensor:
    """Return all V^T sequences of a length, int64, (V^T, T), in lexicographic order.

    Example:
        >>> every_sequence(2, 2).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if vocab_size < 1 or length < 1:
        raise InputError(f"vocab_size and length must be at least 1, got {vocab_size} and {length}")
    if vocab_size**length > MOST_SEQUENCES:
        problem = f"there are {vocab_size}^{length} sequences, more than the limit of {MOST_SEQUENCES:,}"
        raise InputError(problem, hint="use shorter sequences or fewer tokens")
    powers_T = vocab_size ** torch.arange(length - 1, -1, -1)
    return torch.arange(vocab_size**length)[:, None] // powers_T % vocab_size
