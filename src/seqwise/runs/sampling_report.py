"""Report on chains: acceptance, energies, effective sample size, R-hat, and warnings."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from seqwise.runs.sampling import Group
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling.chains import tally
from seqwise.sampling.diagnostics import FEWEST_DRAWS, ChainReport, diagnose_chains, why_not_diagnosed
from seqwise.sampling.options import Proposing
from seqwise.sampling.problems import by_problem

Key = tuple[int, int]  # problem, and rank of the length


@dataclass
class SampleReport:
    """Report on chains, added block by block; ESS and R-hat need ArviZ.

    It excludes discarded sweeps and burn-in. ESS is summed over problems and lengths; the worst ones are named.
    """

    settings: SampleSettings
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _energy: float = field(default=0.0, init=False)
    _phrase: int = field(default=1, init=False)
    _diagnostics: _Diagnostics = field(default_factory=lambda: _Diagnostics(), init=False)

    def add(self, groups: Iterable[Group]) -> None:
        """Add the chains of some problems."""
        first = _first_counted(self.settings)
        diagnosed = self.settings.kernel.draws and why_not_diagnosed(_num_counted(self.settings)) is None
        for group in groups:
            trace, self._phrase = group.trace, max(self._phrase, group.longest_phrase)
            self._counts["chains"] += trace.energy_SB.shape[1]
            self._counts.update(tally([trace], sweeps=slice(first, None))._asdict())
            self._counts["energies"] += trace.energy_SB[first:].numel()
            self._energy += float(trace.energy_SB[first:].sum())
            if diagnosed:
                self._diagnostics.add(group, first)

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        settings, counts, counted = self.settings, self._counts, _num_counted(self.settings)
        proposals = max(counts["proposals"], 1)
        lines = [
            f"{counts['chains']} chains, {counted} of {settings.num_sweeps} sweeps counted:"
            f" accepted {counts['accepted'] / proposals:.1%}, novel {counts['novel'] / proposals:.1%},"
            f" mean energy {self._energy / max(counts['energies'], 1):.4g} nats"
        ]
        lines += _warnings(settings, self._phrase)
        if not settings.kernel.draws:
            return lines
        reason = why_not_diagnosed(counted)
        return [*lines, *(self._diagnostics.lines(counted) if reason is None else [reason])]


def _first_counted(settings: SampleSettings) -> int:
    """Return the number of initial sweeps that are not counted, as in ``diagnose_chains``."""
    burn_in = settings.burn_in if settings.burn_in < settings.num_sweeps else 0
    return max(settings.num_discarded, burn_in)


def _num_counted(settings: SampleSettings) -> int:
    return settings.num_sweeps - _first_counted(settings)


def _warnings(settings: SampleSettings, phrase: int) -> Iterator[str]:
    """Yield warnings about the settings and the length of the longest required phrase."""
    if settings.burn_in >= settings.num_sweeps:
        yield f"warning: burn-in takes {settings.burn_in} sweeps, so no sweep samples from the target"
    kernel = settings.kernel
    if isinstance(kernel, Proposing) and kernel.follows_target and kernel.nucleus < 1 and kernel.full_share == 0:
        yield "warning: with a nucleus alone, chains may never reach some sequences; add --full-share 0.05"
    # A phrase of n tokens moves if n positions are proposed together; visits in order group the same positions in
    # each sweep.
    if phrase > 1 and (getattr(kernel, "visits", "in-order") == "in-order" or kernel.largest_block < phrase):
        flags = f"--visits anywhere --blocks {phrase}"
        hint = f"{flags} lets it move" if isinstance(kernel, Proposing) else f"take another kernel with {flags}"
        yield (
            f"warning: a required phrase of {phrase} tokens may never move unless {phrase} positions are masked"
            f" together in every sweep: {hint}"
        )


@dataclass
class _Kind:
    """Warnings that differ only in numbers: their count, and the one of the worst-mixing chains."""

    rank: tuple[float, Key, int]
    warning: str
    count: int


@dataclass
class _Diagnostics:
    """Sums over the diagnostics of the chains of each problem."""

    problems: int = 0
    passes: int = 0
    seconds: float = 0.0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    # The minimum of each measure (of R-hat, negated), with the first problem that has it.
    worst: dict[str, tuple[float, Key]] = field(default_factory=dict)
    kinds: dict[str, _Kind] = field(default_factory=dict)

    def add(self, group: Group, first: int) -> None:
        self.passes += int(group.trace.passes_SB.sum())
        self.seconds += group.trace.seconds
        for problem, trace in zip(group.problems, by_problem(group.trace, group.problems), strict=True):
            self._add((problem.problem, problem.rank), diagnose_chains(trace, discard=first))

    def _add(self, key: Key, report: ChainReport) -> None:
        self.problems += 1
        ess, tail_ess, r_hat = (of["energy"] for of in (report.ess, report.tail_ess, report.r_hat))
        for name, value in (("ESS", ess), ("ESS of tails", tail_ess), ("R-hat", -r_hat)):
            if not math.isnan(value):
                self.sums[name] += value
                self.worst[name] = min(self.worst.get(name, (value, key)), (value, key))
        # NaN is worse than any number.
        agreement = -math.inf if math.isnan(r_hat) else -r_hat
        for place, warning in enumerate(report.warnings):
            name, rank = re.sub(r"inf|[0-9.]+", "", warning), (agreement, key, place)
            kind = self.kinds.setdefault(name, _Kind(rank, "", 0))
            kind.count += 1
            if rank <= kind.rank:
                kind.rank, kind.warning = rank, f"{_named(key)}: {warning}"

    def lines(self, num_counted: int) -> Iterator[str]:
        if num_counted < FEWEST_DRAWS:
            yield (
                f"effective sample size unknown: at least {FEWEST_DRAWS} draws per chain are needed,"
                f" and {num_counted} are counted"
            )
        elif "ESS" not in self.worst:
            yield "no effective sample size: the chains do not move"
        else:
            yield f"effective sample size of the energy {self._sum('ESS')}{self._rates()}"
            yield f"effective sample size of its tails {self._sum('ESS of tails')}"
        yield f"R-hat of the energy {self._worst('R-hat')}"
        for kind in sorted(self.kinds.values(), key=lambda kind: kind.rank):
            more = f" (and {kind.count - 1} more of {self.problems})" if kind.count > 1 else ""
            yield f"warning: {kind.warning}{more}"

    def _sum(self, name: str) -> str:
        return f"{self.sums[name]:.4g}" + (f", {self._worst(name)}" if self.problems > 1 else "")

    def _rates(self) -> str:
        # The time of sweeps before an interruption is unknown.
        ess = self.sums["ESS"]
        rate = f"; {ess / max(self.seconds, 1e-9):.3g} per second" if math.isfinite(self.seconds) else ""
        return f"{rate}, {ess / max(self.passes, 1):.3g} per pass"

    def _worst(self, name: str) -> str:
        if name not in self.worst:
            return "is not a number"
        value, key = self.worst[name]
        return f"{abs(value):.4g}" if self.problems == 1 else f"at worst {abs(value):.4g} ({_named(key)})"


def _named(key: Key) -> str:
    return f"problem {key[0] + 1}" + (f", length {key[1] + 1}" if key[1] else "")
