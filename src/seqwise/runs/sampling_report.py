"""How far the samples of a masked run can be trusted, in a few lines.

Shapes: S sweeps, B chains of one task.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from seqwise.runs.samples import Group
from seqwise.runs.sampling import Sampled
from seqwise.runs.sampling_problems import Task
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import ChainReport, Chains, Energy, diagnose_chains, start_chains

__all__ = ["report_lines"]

FEWEST = 4  # sweeps by which chains can be judged

Reports = dict[tuple[int, int], ChainReport]  # by problem and rank of the length


def report_lines(sampled: Sampled, settings: SampleSettings) -> list[str]:
    """Acceptance, novelty and mean energy of all chains; ESS and R-hat where ArviZ is installed; and warnings.

    Counted are the sweeps that are neither discarded nor burn-in. ESS is summed over problems and lengths, whose chains
    are judged on their own; the worst of them are named.

    Args:
        sampled: what came of it.
        settings: of the sampling.

    Returns:
        A line each.
    """
    first = _first_counted(settings)
    counted = settings.num_sweeps - first
    totals = {
        name: sum(int(getattr(group.history, f"{name}_SB")[first:].sum()) for group in sampled.groups)
        for name in ("proposals", "accepted", "novel")
    }
    energies = torch.cat([group.history.energy_SB[first:].flatten() for group in sampled.groups])
    num_chains = settings.num_chains * sum(len(group.tasks) for group in sampled.groups)
    proposals = max(totals["proposals"], 1)
    lines = [
        f"{num_chains} chains, {counted} of {settings.num_sweeps} sweeps counted:"
        f" accepted {totals['accepted'] / proposals:.1%}, novel {totals['novel'] / proposals:.1%},"
        f" mean energy {float(energies.mean()):.4g} nats"
    ]
    if settings.burn_in >= settings.num_sweeps:
        lines.append(f"warning: burn-in takes {settings.burn_in} sweeps, so that none of these is of the target")
    if settings.nucleus < 1 and settings.full_share == 0 and settings.kernel not in ("gibbs", "mask-predict"):
        lines.append(
            "warning: from a nucleus alone chains may never leave a part of the sequences; --full-share 0.05 mends that"
        )
    if settings.kernel == "mask-predict":
        return lines
    if counted < FEWEST:
        return [*lines, f"no effective sample size: {FEWEST} sweeps are needed that count, and there are {counted}"]
    if importlib.util.find_spec("arviz_stats") is None:
        return [*lines, "no effective sample size and R-hat without ArviZ: pip install 'seqwise[diagnostics]'"]
    return [*lines, *_judged(sampled, settings, first)]


def _first_counted(settings: SampleSettings) -> int:
    """How many first sweeps are left out; burn-in to the end, as diagnose_chains has it, is described as it is."""
    followed = settings.burn_in < settings.num_sweeps
    return max(settings.num_discarded, settings.burn_in if followed else 0)


def _judged(sampled: Sampled, settings: SampleSettings, first: int) -> Iterator[str]:
    reports = {
        (task.problem, task.rank): diagnose_chains(chains, discard=first)
        for group in sampled.groups
        for task, chains in _tasks(group, settings)
    }
    passes = sum(int(group.history.passes_SB.sum()) for group in sampled.groups)
    ess = math.fsum(report.ess["energy"] for report in reports.values() if math.isfinite(report.ess["energy"]))
    line = f"effective sample size of the energy {ess:.4g}"
    if len(reports) > 1:
        line += f", {_worst(reports, 'ess', min)}"
    # The time of sweeps that were made before an interruption is not known.
    if all(group.made == settings.num_sweeps for group in sampled.groups):
        line += f"; {ess / max(sum(group.seconds for group in sampled.groups), 1e-9):.3g} a second"
    yield f"{line}, {ess / max(passes, 1):.3g} a pass"
    yield f"R-hat of the energy {_worst(reports, 'r_hat', max)}"
    yield from _warnings(reports)


def _worst(reports: Reports, name: str, choose: Callable[..., tuple[int, int]]) -> str:
    values = {key: getattr(report, name)["energy"] for key, report in reports.items()}
    finite = {key: value for key, value in values.items() if math.isfinite(value)}
    if not finite:
        return "is not a number"
    key = choose(finite, key=finite.__getitem__)
    return f"{finite[key]:.4g}" if len(reports) == 1 else f"at worst {finite[key]:.4g} ({_named(key)})"


def _named(key: tuple[int, int]) -> str:
    return f"problem {key[0] + 1}" + (f", length {key[1] + 1}" if key[1] else "")


def _warnings(reports: Reports) -> Iterator[str]:
    """One line for each kind of warning, with the problem whose chains agree least of those that it speaks of."""
    kinds: dict[str, list[str]] = defaultdict(list)
    # What is not a number agrees least of all; among equals the first problem is named.
    doubts = {key: report.r_hat["energy"] for key, report in reports.items()}
    for key in sorted(reports, key=lambda key: -doubts[key] if math.isfinite(doubts[key]) else -math.inf):
        for warning in reports[key].warnings:
            # What differs between problems are the numbers.
            kinds[re.sub(r"[0-9.]+", "", warning)].append(f"{_named(key)}: {warning}")
    for found in kinds.values():
        others = f" (and {len(found) - 1} more of {len(reports)})" if len(found) > 1 else ""
        yield f"warning: {found[0]}{others}"


def _tasks(group: Group, settings: SampleSettings) -> Iterator[tuple[Task, Chains]]:
    """The chains of each task; where they are and their tokens play no part in what is asked here."""
    each, history = settings.num_chains, group.history
    nowhere = start_chains(Energy(), torch.zeros(1, 1, dtype=torch.int64))
    for place, task in enumerate(group.tasks):
        energy_SB, proposals_SB, accepted_SB, novel_SB, passes_SB = (
            values_SB[:, place * each : (place + 1) * each]
            for values_SB in (
                history.energy_SB,
                history.proposals_SB,
                history.accepted_SB,
                history.novel_SB,
                history.passes_SB,
            )
        )
        yield (
            task,
            Chains(
                nowhere,
                torch.zeros(*energy_SB.shape, 0, dtype=torch.int64),
                energy_SB,
                proposals_SB,
                accepted_SB,
                novel_SB,
                passes_SB,
                history.invariant_S,
                group.seconds,
            ),
        )
