"""Chains of a masked model, advanced sweep by sweep; pins and settings may change between sweeps.

Shapes: B chains, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.pages.explorer.questions import require_short
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling import begin_chains
from seqwise.runs.sampling_problems import Problem, problem_of
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import ChainState, Kernel, Trace, sample_chains

MOST_CHAINS = 8
"""Largest number of chains on a page."""

MOST_SWEEPS = 5000
"""Largest number of sweeps of a chain; all of them are kept."""


@dataclass(frozen=True, eq=False)
class Watched:
    """State of running chains, immutable."""

    run: MaskedRun
    problem: Problem
    settings: SampleSettings  # of the next sweeps
    kernel: Kernel  # of the next sweeps
    first: ChainState  # before the first sweep, without pins
    state: ChainState
    done: tuple[Trace, ...] = ()  # traces of single sweeps
    pinned: frozenset[int] = frozenset()  # positions, from 0
    since: int = 0  # number of sweeps at the last change of settings or pins

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Tokens of each chain."""
        return [self.run.codec.decode(ids) for ids in self.state.tokens_BT.tolist()]

    @property
    def changed_BT(self) -> Tensor:
        """Bool: positions that the last sweep changed."""
        if not self.done:
            return torch.zeros_like(self.state.free_BT)
        before_BT = self.done[-2].state.tokens_BT if len(self.done) > 1 else self.first.tokens_BT
        return self.state.tokens_BT != before_BT


def start(run: MaskedRun, text: str, settings: SampleSettings, *, source: str = "") -> Watched:
    """Start chains from a text with ``_`` at free positions."""
    if settings.num_chains > MOST_CHAINS:
        raise InputError(f"{settings.num_chains} chains are too many to watch", hint=f"use at most {MOST_CHAINS}")
    _require_replayable(settings)
    problem = problem_of(run, text.strip(), source=source.strip(), free=settings.free)
    require_short(problem.tokens or problem.source_ids)
    runner, state = begin_chains(run, problem, settings)
    return Watched(run, problem, settings, runner.kernel, state, state)


def _require_replayable(settings: SampleSettings) -> None:
    """Raise an InputError for replicas and mask-predict, whose sweeps are not repeated moves of one chain."""
    if settings.num_replicas > 1 or not settings.kernel.draws:
        hint = "choose metropolis-hastings, delayed-acceptance, exact-gibbs or gibbs"
        raise InputError(f"the kernel {settings.kernel.name} has no sweeps to watch", hint=hint)


def advance(watched: Watched) -> Watched:
    """Make one sweep."""
    if len(watched.done) >= MOST_SWEEPS:
        raise InputError(f"the chains have reached the limit of {MOST_SWEEPS:,} sweeps", hint="restart the chains")
    swept = sample_chains(watched.kernel, watched.state, 1, seed=watched.settings.seed)
    return replace(watched, state=swept.state, done=(*watched.done, swept))


def adjust(watched: Watched, settings: SampleSettings) -> Watched:
    """Change the settings of future sweeps; keep states and random numbers."""
    _require_replayable(settings)
    for name in ("energy", "num_chains", "seed", "contain", "without", "penalty"):
        if getattr(settings, name) != getattr(watched.settings, name):
            raise InputError(f"{name} cannot change while chains run", hint="restart the chains")
    if settings == watched.settings:
        return watched
    run, allowed_V = watched.run, watched.run.codec.allowed_V
    kernel = settings.build_kernel(run.model, watched.state.energy, None if bool(allowed_V.all()) else allowed_V)
    return replace(watched, settings=settings, kernel=kernel, since=len(watched.done))


def pin(watched: Watched, pinned: Sequence[int]) -> Watched:
    """Fix positions in each chain at their current tokens, and free all other free positions of the problem."""
    places = frozenset(pinned)
    if places == watched.pinned:
        return watched
    free_BT = watched.first.free_BT.clone()
    free_BT[:, sorted(places)] = False
    return replace(watched, state=replace(watched.state, free_BT=free_BT), pinned=places, since=len(watched.done))
