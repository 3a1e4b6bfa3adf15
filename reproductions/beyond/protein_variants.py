"""Variants of one protein at fixed Hamming distances, by several ways to choose them, and their energies.

At distance d the first d of a random order of the positions are free; every free position holds another residue than
the wild type, and all others hold the wild type's. Energies are E_local minus that of the wild type, in nats.

Shapes: N variants, T positions, D mutated positions, V residues, S sweeps, C chains.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import (
    Energy,
    Kernel,
    Trace,
    anneal_target,
    constraint,
    gibbs,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    sample_chains,
    shuffled,
    start_chains,
)
from seqwise.sampling.diagnostics import split_r_hat

COLDEST = 0.1
"""The temperature of the target in the last sweep of annealed chains."""


@dataclass(frozen=True)
class VariantSize:
    """Numbers of variants, chains and sweeps for one wild type."""

    distances: tuple[int, ...] = (1, 2, 4, 8, 16)  # Hamming distances
    mutants: int = 64  # random variants of each kind and distance
    # Of each sampler and distance; each starts from a different uniform mutant, so at most ``mutants``.
    chains: int = 4
    sweeps: int = 20  # fewest sweeps of a chain; the first quarter is not counted
    proposals: int = 64  # fewest proposals of a chain; at small distances it makes more sweeps

    def num_sweeps(self, distance: int) -> int:
        """Return the number of sweeps of each chain."""
        return max(self.sweeps, math.ceil(self.proposals / distance))


class WithoutWildType:
    """Masked model that gives the wild type's residues probability 0, for proposals of mutants."""

    def __init__(self, model: MaskedModel, wild_T: Tensor) -> None:
        self.model, self.wild_T = model, wild_T
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """See :class:`~seqwise.models.protocols.MaskedModel`."""
        wild_M = self.wild_T.expand_as(tokens_NT)[masked_NT]
        logits_MV = self.model.masked_logits(tokens_NT, masked_NT, context)
        return logits_MV.scatter(1, wild_M[:, None], -torch.inf)


def distance_is(wild_T: Tensor, distance: int) -> Callable[[Tensor], Tensor]:
    """Return the constraint that a sequence differs from the wild type at ``distance`` positions."""
    return lambda tokens_NT: (tokens_NT != wild_T).sum(1) == distance


def mutate(wild_T: Tensor, places_ND: Tensor, weights_V: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw a residue for each of the given places, by weights, but never the wild type's; (N, T)."""
    weights_NDV = weights_V.expand(*places_ND.shape, -1).scatter(2, wild_T[places_ND][..., None], 0.0)
    drawn_M = torch.multinomial(weights_NDV.flatten(0, 1), 1, generator=generator)
    return wild_T.repeat(len(places_ND), 1).scatter(1, places_ND, drawn_M.view(places_ND.shape))


def log_odds(log_probs_TV: Tensor, wild_T: Tensor, tokens_NT: Tensor) -> Tensor:
    """Add up single substitutions: ``sum_t log p(y_t | x without t) - log p(x_t | x without t)``, (N,).

    Source: Meier et al. (NeurIPS 2021), the score "masked marginals", with one mask at a time.
    """
    of_variants_NT = log_probs_TV.expand(len(tokens_NT), -1, -1).gather(2, tokens_NT[..., None]).squeeze(2)
    return (of_variants_NT - log_probs_TV.gather(1, wild_T[:, None]).squeeze(1)).sum(1)


def likeliest_substitutions(log_probs_TV: Tensor, wild_T: Tensor, places_D: Tensor) -> Tensor:
    """Return the variant with the highest log-odds that differs at exactly these places: int64 (T,)."""
    others_TV = log_probs_TV.scatter(1, wild_T[:, None], -torch.inf)
    return wild_T.scatter(0, places_D, others_TV[places_D].argmax(1))


def rank_correlation(first_N: Tensor, second_N: Tensor) -> float:
    """Return Spearman's rank correlation of numbers without ties; NaN for fewer than 3."""
    if len(first_N) < 3:
        return math.nan
    ranks_2N = torch.stack([each_N.argsort().argsort().double() for each_N in (first_N, second_N)])
    return float(torch.corrcoef(ranks_2N)[0, 1].clamp(-1, 1))


@torch.no_grad()
def measure_variants(
    model: MaskedModel,
    wild_T: Tensor,
    size: VariantSize,
    *,
    shares_V: Tensor,
    seed: int,
    report: Callable[[int, int, str], None] = lambda done, count, note: None,
) -> dict[str, dict[int, float]]:
    """Measure variants of one wild type; return numbers by quantity and distance.

    The free positions and the random mutants depend on the wild type only, so that the models of all seeds are measured
    on the same ones. The first residue, methionine in every protein, stays.
    """
    length = len(wild_T)
    chance = random.Random(" ".join(map(str, wild_T.tolist())))
    order_T = torch.tensor(chance.sample(range(1, length), length - 1))
    generator = torch.Generator().manual_seed(chance.getrandbits(63))
    start = start_chains(local_energy(model), wild_T[None])
    wild = _Wild(model, wild_T, float(start.energy_B[0]), start.logits[0][0].double().log_softmax(-1))
    found: dict[str, dict[int, float]] = {}
    for done, distance in enumerate(size.distances):
        report(done, len(size.distances), f"distance {distance}")
        places_D = order_T[:distance]
        numbers, starts_CT = _at_random(wild, places_D, size, shares_V, generator)
        numbers |= _by_chains(wild, starts_CT, places_D, size, seed)
        for name, value in numbers.items():
            if math.isfinite(value):
                found.setdefault(name, {})[distance] = value
    return found


@dataclass(frozen=True, eq=False)
class _Wild:
    """Wild type, its energy, and its log-probabilities with one position masked at a time."""

    model: MaskedModel
    wild_T: Tensor
    energy: float
    log_probs_TV: Tensor

    def energies(self, tokens_NT: Tensor) -> Tensor:
        """Return the energies of sequences minus that of the wild type, float64 (N,)."""
        unique_UT, place_N = tokens_NT.unique(dim=0, return_inverse=True)
        return -pseudo_log_likelihood(self.model, unique_UT).double().sum(1)[place_N] - self.energy


def _at_random(
    wild: _Wild, places_D: Tensor, size: VariantSize, shares_V: Tensor, generator: torch.Generator
) -> tuple[dict[str, float], Tensor]:
    """Measure variants that need no chains; return also uniform mutants, from which the chains start."""
    distance, length = len(places_D), len(wild.wild_T)
    same_ND, alike_V = places_D.expand(size.mutants, -1), torch.ones_like(shares_V)
    uniform_NT = mutate(wild.wild_T, same_ND, alike_V, generator=generator)
    unigram_NT = mutate(wild.wild_T, same_ND, shares_V, generator=generator)
    anywhere_NT = torch.rand(size.mutants, length - 1, generator=generator).argsort(1) + 1
    scattered_NT = mutate(wild.wild_T, anywhere_NT[:, :distance], alike_V, generator=generator).unique(dim=0)
    likeliest_T = likeliest_substitutions(wild.log_probs_TV, wild.wild_T, places_D)
    gain_N, odds_N = -wild.energies(scattered_NT), log_odds(wild.log_probs_TV, wild.wild_T, scattered_NT)
    numbers = {
        "uniform": float(wild.energies(uniform_NT).mean()),
        "unigram": float(wild.energies(unigram_NT).mean()),
        "log-odds": float(wild.energies(likeliest_T[None])),
        "rank correlation": rank_correlation(odds_N, gain_N),
        "error": float((odds_N - gain_N).abs().mean()),
    }
    return numbers, uniform_NT[: size.chains]


def _by_chains(wild: _Wild, starts_CT: Tensor, places_D: Tensor, size: VariantSize, seed: int) -> dict[str, float]:
    distance = len(places_D)
    free_CT = torch.zeros_like(starts_CT, dtype=torch.bool).index_fill(1, places_D, True)
    sweeps = size.num_sweeps(distance)
    discard = sweeps // 4
    # Chains of different distances use different random numbers.
    chain_C = torch.arange(len(starts_CT)) + distance * len(starts_CT)

    def chains(energy: Energy, kernel: Kernel) -> Trace:
        start = start_chains(energy, starts_CT, free_BT=free_CT, chain_B=chain_C)
        return sample_chains(kernel, start, sweeps, seed=seed)

    target = local_energy(wild.model) + constraint(distance_is(wild.wild_T, distance))
    proposal = masked_conditionals(wild.model)

    def metropolis(temperature: float) -> Kernel:
        return metropolis_hastings(target, proposal, visits=shuffled(), temperature=temperature)

    drawn = chains(target, metropolis(1.0))
    annealed = chains(target, anneal_target(metropolis, torch.linspace(1.0, COLDEST, sweeps).tolist()))
    other = masked_conditionals(WithoutWildType(wild.model, wild.wild_T))
    degenerate = chains(local_energy(wild.model), gibbs(other, visits=shuffled()))
    counted_SC = drawn.energy_SB[discard:] - wild.energy
    proposals = int(drawn.proposals_SB[discard:].sum())
    return {
        "mh": float(counted_SC.mean()),
        "annealed": float(annealed.energy_SB.min()) - wild.energy,
        "gibbs": float((degenerate.energy_SB[discard:] - wild.energy).mean()),
        "accepted": int(drawn.accepted_SB[discard:].sum()) / proposals,
        "novel": int(drawn.novel_SB[discard:].sum()) / proposals,
        "passes": int(drawn.passes_SB[discard:].sum()) / proposals,
        "r-hat": _r_hat(counted_SC),
    }


def _r_hat(values_SC: Tensor) -> float:
    """Return R-hat, or NaN if it cannot be computed."""
    try:
        return split_r_hat(values_SC)
    except InputError:  # no ArviZ, or too few sweeps
        return math.nan
