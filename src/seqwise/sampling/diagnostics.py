"""Diagnostics of chains: acceptance, novelty, effective sample size and R-hat; labelled arrays for ArviZ.

A low energy does not show that a sampler is good: a sampler without a target can go below the target's mean.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.chains import Trace, tally

FEWEST_SWEEPS = 4
"""Smallest number of counted sweeps for a diagnosis."""

FEWEST_DRAWS = 10
"""Smallest number of draws per chain for an effective sample size, whose estimate is a constant for 4 to 9."""

MOST_R_HAT = 1.01
"""Largest R-hat of chains that agree (Vehtari et al. 2021)."""


@dataclass(frozen=True)
class ChainReport:
    """Result of :func:`diagnose_chains`, over the counted sweeps.

    Attributes:
        num_sweeps: number of counted sweeps.
        acceptance: acceptance rate, including proposals equal to the state.
        novelty: share of proposals that were accepted and changed the state.
        mean_energy: mean energy over sweeps and chains, at temperature 1.
        ess: effective sample size, over all chains, of the energy and of each feature; NaN if unknown: with fewer than
            10 sweeps, or if nothing moves.
        tail_ess: the smaller effective sample size of their 5% and 95% quantiles.
        r_hat: split rank-normalised R-hat of the energy and of each feature.
        ess_per_second: effective sample size of the energy per second of all sweeps, including discarded ones.
        ess_per_pass: effective sample size of the energy per masked sequence that a model has read in all sweeps.
        warnings: one line each; empty without signs of problems.
    """

    num_sweeps: int
    acceptance: float
    novelty: float
    mean_energy: float
    ess: dict[str, float]
    tail_ess: dict[str, float]
    r_hat: dict[str, float]
    ess_per_second: float
    ess_per_pass: float
    warnings: tuple[str, ...]


def effective_sample_size(values_SB: Tensor) -> float:
    """Compute the rank-normalised bulk ESS over all chains: the number of independent draws with the same precision.

    It is at most about ``S B log10(S B)``, and NaN below 10 sweeps.

    Source: Vehtari et al. (2021), Rank-normalization, folding, and localization.

    Example:
        >>> import pytest, torch
        >>> _ = pytest.importorskip("arviz_stats")
        >>> values_SB = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> bool(1500 < effective_sample_size(values_SB) < 2500)
        True
    """
    return _effective_sample_size(values_SB, method="bulk")


def tail_effective_sample_size(values_SB: Tensor) -> float:
    """Compute the tail ESS: the smaller effective sample size of the 5% and 95% quantiles.

    Source: Vehtari et al. (2021), section 4.3.
    """
    return _effective_sample_size(values_SB, method="tail", prob=(0.05, 0.95))


def _effective_sample_size(values_SB: Tensor, **method: Any) -> float:
    values_BS, stats = _array(values_SB), _array_stats()
    if len(values_SB) < FEWEST_DRAWS:
        return math.nan
    return float(stats.ess(values_BS, chain_axis=0, draw_axis=1, **method))


def split_r_hat(values_SB: Tensor) -> float:
    """Compute the split rank-normalised R-hat: 1 if chains agree, and each with its other half.

    It is NaN for a single chain, and if no chain moves and all agree.

    Source: Vehtari et al. (2021).
    """
    # NaN for chains that do not move, about which the report warns.
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(_array_stats().rhat(_array(values_SB), chain_axis=0, draw_axis=1, method="rank"))


def diagnose_chains(
    chains: Trace,
    *,
    discard: int = 0,
    features: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> ChainReport:
    """Compute acceptance, novelty, ESS and R-hat of the energy and of features, and warnings.

    The first ``discard`` sweeps, and all up to the last burn-in sweep, are left out. If the last sweep is itself
    flagged (degenerate Gibbs), flagged sweeps count, with a warning.

    Args:
        chains: trace of :func:`~seqwise.sampling.chains.sample_chains`, from dispersed starts.
        discard: minimum number of sweeps to discard.
        features: names and functions from tokens (S, B, T) to numbers (S, B).

    Raises:
        InputError: fewer than 4 sweeps are left, ArviZ is missing, or a feature is named "energy", lacks sequences or
            is not a number for each.

    Example:
        >>> import pytest, torch
        >>> _ = pytest.importorskip("arviz_stats")
        >>> from seqwise.sampling import exact_gibbs, local_energy, sample_chains, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3))
        >>> chains = sample_chains(exact_gibbs(target), start_chains(target, torch.zeros(4, 2).long()), 50)
        >>> diagnose_chains(chains, discard=5, features={"sum": lambda y: y.sum(-1)}).num_sweeps
        45
    """
    start = sweeps_left_out(chains, discard)
    values = _values(chains, start, features or {})
    still_B = (chains.novel_SB[start:].sum(0) == 0) & (values["energy"] == values["energy"][0]).all(0)
    # The effective sample size of a constant is undefined.
    constant = {name: bool(still_B.all() | (values_SB == values_SB[0, 0]).all()) for name, values_SB in values.items()}
    ess, tail_ess = (
        {name: math.nan if constant[name] else of(values_SB) for name, values_SB in values.items()}
        for of in (effective_sample_size, tail_effective_sample_size)
    )
    r_hat = {name: split_r_hat(values_SB) for name, values_SB in values.items()}
    warnings = []
    if not _follow_a_target(chains):
        warnings.append("the transitions follow no energy, or only warm up: their samples have no known target")
    num_sweeps, num_chains = chains.energy_SB[start:].shape
    if bool(still_B.any()):
        warnings.append(_stuck(chains, start, still_B))
    for name, value in r_hat.items():
        if num_chains == 1:
            warnings.append(f"R-hat of {name} needs at least two chains, better four, and there is one")
        elif bool(still_B.all()):
            break  # the warning about stuck chains is enough
        elif np.isnan(value):
            warnings.append(f"R-hat of {name} is undefined: {name} is constant over the counted sweeps")
        elif value > MOST_R_HAT:
            advice = _advice(ess[name], num_sweeps=num_sweeps, num_chains=num_chains, left_out=start)
            warnings.append(f"R-hat of {name} is {value:.3f}, above {MOST_R_HAT}: the chains disagree, {advice}")
    passes, counted = int(chains.passes_SB.sum()), tally([chains], sweeps=slice(start, None))
    return ChainReport(
        num_sweeps=len(chains) - start,
        acceptance=counted.acceptance,
        novelty=counted.novelty,
        mean_energy=float(values["energy"].mean()),
        ess=ess,
        tail_ess=tail_ess,
        r_hat=r_hat,
        ess_per_second=ess["energy"] / chains.seconds if chains.seconds > 0 else float("nan"),
        ess_per_pass=ess["energy"] / passes if passes else float("nan"),
        warnings=tuple(warnings),
    )


def why_not_diagnosed(num_counted: int) -> str | None:
    """Return why chains with a number of counted sweeps cannot be diagnosed, or None if they can."""
    if num_counted < FEWEST_SWEEPS:
        return f"effective sample size and R-hat need {FEWEST_SWEEPS} counted sweeps, and there are {num_counted}"
    if importlib.util.find_spec("arviz_stats") is None:
        return "effective sample size and R-hat need ArviZ: pip install 'seqwise[diagnostics]'"
    return None


def to_datatree(
    chains: Trace,
    *,
    discard: int = 0,
    features: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> Any:
    """Convert chains to an ``xarray.DataTree`` for ArviZ.

    The draws are the sweeps that :func:`~seqwise.sampling.diagnostics.diagnose_chains` counts, labelled by their
    numbers from 1.

    Args:
        chains: trace of :func:`~seqwise.sampling.chains.sample_chains`, or one of ``SampledTexts.chains``.
        discard: minimum number of sweeps to discard.
        features: names and functions from tokens (S, B, T) to numbers (S, B).

    Returns:
        Three groups, each of arrays (chain, draw): ``posterior`` has the energy and the features; ``sample_stats`` has
        ``proposals``, ``accepted``, ``novel`` and ``passes`` of each sweep; ``samples`` has the tokens
        (chain, draw, position) of the sweeps whose sequences are kept.

    Raises:
        InputError: no sweep is left, xarray is missing, or a feature is named "energy", lacks sequences or is not a
            number for each.

    Example:
        >>> import pytest, torch
        >>> _ = pytest.importorskip("xarray")
        >>> from seqwise.sampling import exact_gibbs, local_energy, sample_chains, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3))
        >>> chains = sample_chains(exact_gibbs(target), start_chains(target, torch.zeros(4, 2).long()), 50)
        >>> tree = to_datatree(chains, discard=5, features={"sum": lambda y: y.sum(-1)})
        >>> dict(tree.posterior.sizes), list(tree.posterior), tree.samples.tokens.shape
        ({'chain': 4, 'draw': 45}, ['energy', 'sum'], (4, 45, 2))
        >>> tree.posterior.attrs["tuning_steps"], int(tree.posterior.draw[0])
        (5, 6)
    """
    try:
        import xarray
    except ImportError as error:
        raise InputError("labelled arrays need xarray", hint="pip install 'seqwise[diagnostics]'") from error
    from seqwise import __version__

    start = sweeps_left_out(chains, discard)
    kept, tokens_NBT = _kept(chains, start)
    values = _values(chains, start, features or {})
    counts = {name: getattr(chains, f"{name}_SB")[start:] for name in ("proposals", "accepted", "novel", "passes")}
    draws = range(start + 1, len(chains) + 1)
    attributes = {
        "inference_library": "seqwise",
        "inference_library_version": __version__,
        "sampling_time": chains.seconds,
        "tuning_steps": start,
    }

    def dataset(arrays: Mapping[str, Tensor], draws: Any, *dimensions: str) -> Any:
        # (sweep, chain, ...) to (chain, draw, ...)
        variables = {
            name: (("chain", "draw", *dimensions), values_SB.detach().cpu().transpose(0, 1).numpy())
            for name, values_SB in arrays.items()
        }
        num_chains = chains.energy_SB.shape[1]
        return xarray.Dataset(variables, {"chain": range(num_chains), "draw": list(draws)}, attributes)

    return xarray.DataTree.from_dict(
        {
            "posterior": dataset(values, draws),
            "sample_stats": dataset(counts, draws),
            "samples": dataset({"tokens": tokens_NBT}, kept, "position"),
        }
    )


def sweeps_left_out(chains: Trace, discard: int = 0) -> int:
    """Return the number of initial sweeps to leave out: discarded ones, and all up to the last burn-in sweep.

    If the last sweep is flagged too, only discarded sweeps are left out.

    Example:
        >>> import torch
        >>> none_SB = torch.zeros(3, 1)
        >>> warmed_up = Trace(none_SB, none_SB, none_SB, none_SB, none_SB, torch.tensor([False, True, True]))
        >>> sweeps_left_out(warmed_up), sweeps_left_out(warmed_up, 2)
        (1, 2)
    """
    flagged = (~chains.invariant_S).nonzero().flatten().tolist()
    return max(discard, flagged[-1] + 1 if flagged and _follow_a_target(chains) else 0)


def _values(chains: Trace, start: int, features: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Tensor]:
    """Return the energy and the features of the counted sweeps, (S, B)."""
    if start >= len(chains):
        problem = f"no sweep counts: {start} of {len(chains)} are left out as discarded ones or burn-in"
        raise InputError(problem, hint="sample more sweeps, or discard fewer")
    if "energy" in features:
        raise InputError("a feature is called 'energy', the name of the chains' energy", hint="give it another name")
    values = {"energy": chains.energy_SB[start:]}
    if features:
        kept, tokens_NBT = _kept(chains, start)
        if len(kept) < len(values["energy"]):
            problem = f"features need the sequences of all {len(values['energy'])} counted sweeps; {len(kept)} are kept"
            raise InputError(problem, hint="give a trace that keeps them, or leave the features out")
        for name, feature in features.items():
            values[name] = feature(tokens_NBT)
            shape = list(values[name].shape)
            if shape != list(tokens_NBT.shape[:2]):
                problem = f"the feature {name!r} has the shape {shape}, not that of (sweeps, chains)"
                raise InputError(problem, hint="map tokens (sweeps, chains, positions) to a number for each sequence")
    return values


def _kept(chains: Trace, start: int) -> tuple[list[int], Tensor]:
    """Return the numbers of the counted sweeps whose sequences are kept, and these sequences, (N, B, T)."""
    kept = [sweep for sweep in sorted(chains.tokens) if sweep > start]
    return kept, chains.tokens_SBT[len(chains.tokens) - len(kept) :]


def _follow_a_target(chains: Trace) -> bool:
    return not len(chains) or bool(chains.invariant_S[-1])


def _stuck(chains: Trace, start: int, still_B: Tensor) -> str:
    """Warn of chains that do not move in any counted sweep, with a remedy."""
    proposals = int(chains.proposals_SB[start:, still_B].sum())
    rejected = proposals - int(chains.accepted_SB[start:, still_B].sum())
    advice = "raise the temperature of target and proposal, mask larger blocks, leave more positions free"
    if 2 * rejected > proposals:
        advice = "raise the temperature of the target, mask smaller blocks, propose at a temperature nearer to 1"
    who = "the chains do" if bool(still_B.all()) else f"{int(still_B.sum())} of {len(still_B)} chains did"
    why = f"{rejected:,} of {proposals:,} proposals were rejected, and the others changed nothing"
    return f"{who} not move: {why}; {advice}, or make hard constraints soft"


def _advice(ess: float, *, num_sweeps: int, num_chains: int, left_out: int) -> str:
    """Advise a number of sweeps for chains that mix this fast: ``R-hat^2 = 1 + chains / ESS``, with ESS growing in S.

    Source: Vats and Knudson (2021), Revisiting the Gelman-Rubin diagnostic, section 3.
    """
    those = " in total, including discarded ones" if left_out else ""
    if num_sweeps < FEWEST_DRAWS:
        return f"run {left_out + 2 * FEWEST_DRAWS:,} sweeps or more{those}: fewer do not show how many are needed"
    needed = num_sweeps * num_chains / (MOST_R_HAT**2 - 1) / ess if ess > 0 else 0.0
    if needed <= num_sweeps:  # the chains mix fast enough; something else makes them disagree
        return "run longer"
    needed += left_out
    unit = 10 ** (math.floor(math.log10(needed)) - 1)  # two significant digits
    return f"run about {unit * math.ceil(needed / unit):,} sweeps{those}"


def _array(values_SB: Tensor) -> Any:
    if values_SB.dim() != 2 or values_SB.shape[0] < FEWEST_SWEEPS or values_SB.shape[1] < 1:
        raise InputError(
            f"diagnostics need at least {FEWEST_SWEEPS} counted sweeps, got values of shape {list(values_SB.shape)}",
            hint="sample more sweeps, or discard fewer",
        )
    return values_SB.detach().cpu().double().numpy().T


def _array_stats() -> Any:
    try:
        from arviz_stats.base import array_stats
    except ImportError as error:
        raise InputError(
            "effective sample sizes and R-hat need ArviZ", hint="pip install 'seqwise[diagnostics]'"
        ) from error
    return array_stats
