"""Reading the chains of a ``seqwise sample`` folder, and their diagnostics.

Shapes: S sweeps, B chains of one problem, K lags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqwise.data.records import read_json_lines
from seqwise.errors import InputError
from seqwise.pages.report.folders import Folder
from seqwise.runs.sampling_folder import trace_of
from seqwise.runs.sampling_settings import BURN_IN
from seqwise.sampling import ChainReport, Trace, diagnose_chains
from seqwise.sampling.diagnostics import FEWEST_SWEEPS, sweeps_left_out, why_not_diagnosed


@dataclass(frozen=True)
class SampleLine:
    """Line of ``samples.jsonl``; problem, chain and sweep are counted from 1."""

    problem: int
    chain: int
    sweep: int
    text: str
    energy: float


@dataclass(frozen=True, eq=False)
class ProblemChains:
    """Chains of one problem at one length."""

    problem: int  # from 1
    rank: int  # of the length, 0 for the likeliest one
    chains: Trace  # without tokens
    report: ChainReport | None  # None if it cannot be computed

    @property
    def name(self) -> str:
        """Problem and length, from 1."""
        return f"problem {self.problem}" + (f", length {self.rank + 1}" if self.rank else "")


@dataclass(frozen=True, eq=False)
class Sampling:
    """All chains of a folder."""

    first: int  # number of sweeps that are discarded or burn-in
    problems: Sequence[ProblemChains]
    samples: Sequence[SampleLine]  # printed so far
    no_report: str  # why there are no effective sample sizes, or ""

    @property
    def reports(self) -> list[ChainReport]:
        """Reports that could be computed."""
        return [problem.report for problem in self.problems if problem.report is not None]


def read_sampling(folder: Folder) -> Sampling:
    """Read all chains of a folder; sampling may still be running."""
    paths = sorted((folder.path / "chains").glob("*.jsonl"))
    if not paths:
        raise InputError("the folder contains no chains yet", path=folder.path, hint="wait for the first sweeps")
    blocks = sorted((block for path in paths for block in _read_chains(path)), key=lambda block: block[:2])
    first = _first_counted(folder.settings, [chains for _, _, chains in blocks])
    no_report = _why_no_report(folder, max(len(chains) for _, _, chains in blocks) - first)
    problems = []
    for problem, rank, chains in blocks:
        judged = not no_report and len(chains) - first >= FEWEST_SWEEPS
        report = diagnose_chains(chains, discard=first) if judged else None
        problems.append(ProblemChains(problem, rank, chains, report))
    return Sampling(first, problems, _read_samples(folder.path / "samples.jsonl"), no_report)


def _first_counted(settings: Mapping[str, Any], traces: Sequence[Trace]) -> int:
    """Count the sweeps that are discarded or flagged as burn-in; flags are ignored if they cover all sweeps."""
    discard = settings.get("discard")
    # As in SampleSettings.num_discarded.
    discard = min(BURN_IN, (settings.get("sweeps") or 33) // 2) if not isinstance(discard, int) else discard
    return min(max(sweeps_left_out(chains, discard) for chains in traces), max(map(len, traces)) - 1)


def _why_no_report(folder: Folder, counted: int) -> str:
    if folder.settings.get("kernel") == "mask-predict":
        return "mask-predict does not sample, so there is no effective sample size"
    return why_not_diagnosed(counted) or ""


def _read_samples(path: Path) -> list[SampleLine]:
    samples = []
    for number, record in read_json_lines(path, hint="use another copy") if path.is_file() else ():
        try:
            numbers = (int(record["problem"]), int(record["chain"]), int(record["sweep"]))
            samples.append(SampleLine(*numbers, str(record["text"]), float(record["energy"])))
        except (KeyError, TypeError, ValueError):
            raise InputError("not a sample", path=path, line=number, hint="use another copy") from None
    return samples


def _read_chains(path: Path) -> Iterator[tuple[int, int, Trace]]:
    """Yield the chains of each problem in a file, with the problem's number and the rank of its length."""
    records: list[dict[str, Any]] = []
    hint = "use another copy, or sample again"
    try:
        for number, record in read_json_lines(path, hint=hint):
            if record["sweep"] != number:
                raise InputError("the sweeps are damaged", path=path, line=number, hint=hint)
            records.append({name: value for name, value in record.items() if name != "tokens"})
        problems = [(int(problem), int(rank)) for problem, rank in records[0]["problems"]]
        num_chains = len(records[0]["energy"])
        trace = trace_of(records, num_chains=num_chains)
        traces = [trace.take(places_B) for places_B in torch.arange(num_chains).view(len(problems), -1)]
    except InputError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, RuntimeError):
        raise InputError("the sweeps are damaged", path=path, line=len(records) or None, hint=hint) from None
    for (problem, rank), chains in zip(problems, traces, strict=True):
        yield problem, rank, chains


def autocorrelation(values_SB: Tensor, *, lags: int) -> npt.NDArray[np.float64]:
    """Return the mean autocorrelation of the chains that move, for lags 0 to ``lags``; NaN where none does.

    ``rho_k = sum_s (x_s - m)(x_{s+k} - m) / sum_s (x_s - m)^2`` with m the mean of a chain.

    Source: Geyer (1992), Practical Markov Chain Monte Carlo, section 3.1, there for the autocovariance.
    """
    centred_SB = (values_SB - values_SB.mean(0)).double().numpy()
    variance_B = (centred_SB**2).sum(0)
    moving_B = variance_B > 1e-12 * max(1.0, float(np.abs(values_SB.numpy()).max(initial=0.0)) ** 2)
    if not moving_B.any():
        return np.full(lags + 1, math.nan)
    products = [
        (centred_SB[: len(centred_SB) - lag, moving_B] * centred_SB[lag:, moving_B]).sum(0) for lag in range(lags + 1)
    ]
    means: npt.NDArray[np.float64] = (np.stack(products) / variance_B[moving_B]).mean(1)
    return means
