"""How long does the exact log Z of a linear chain take, with and without gradients, compared with pytorch-crf?

Both get the same chains: B inputs with T labels each, out of K, and random float32 scores of labels, transitions, first
and last labels. Times are those of log Z of every input, and of log Z with the gradients of its sum with respect to all
four kinds of scores. All inputs have length T. The score of gold, which a likelihood also needs, is left out.

- seqwise: ``chain_log_partition``, a rescaled recursion with one matrix product per step and its own backward
  recursion. The time of ``linear_chain``, which folds in first and last labels, is included. If transitions lie very
  far apart (``--spread 10``), it runs on logarithms, which takes longer.
- pytorch-crf: the normaliser of ``CRF``, ``_compute_normalizer``, which its likelihood calls and which has no public
  name: a log-sum-exp over K x K scores per step, with autograd. Without the package, seqwise is timed alone.

Values and gradients are compared before each shape is timed.

    python -m benchmarks.chain_log_partition
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import Ratio, at_least, make_parser, run, signed
from benchmarks.timing import median_ratio, time_in_turn
from seqwise.models import linear_chain
from seqwise.objectives import chain_log_partition

PEER = "pytorch-crf"
MOST_DIFFERENCE = 1e-2
"""Largest difference of two correct systems in float32, as a share of the largest entry of a tensor."""


@dataclass(frozen=True)
class Problem:
    """Chains of one shape."""

    scores_BTK: nn.Parameter
    transitions_KK: nn.Parameter
    start_K: nn.Parameter
    end_K: nn.Parameter

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return (self.scores_BTK, self.transitions_KK, self.start_K, self.end_K)


LogPartition = Callable[[], Tensor]
"""Function that computes log Z of every input of a problem, (B,)."""


def random_problem(batch: int, steps: int, labels: int, *, spread: float, generator: torch.Generator) -> Problem:
    """Draw scores from normal distributions; those of transitions have the standard deviation ``spread``."""
    shapes = ((batch, steps, labels), (labels, labels), (labels,), (labels,))
    scores, transitions, start, end = (torch.randn(shape, generator=generator) for shape in shapes)
    return Problem(*map(nn.Parameter, (scores, spread * transitions, start, end)))


def of_seqwise(problem: Problem) -> LogPartition:
    """Return log Z by the public functions of seqwise."""
    batch, steps, _ = problem.scores_BTK.shape
    lengths_B = torch.full((batch,), steps)

    def log_partition_B() -> Tensor:
        chain = linear_chain(
            problem.scores_BTK, problem.transitions_KK, lengths_B, start_V=problem.start_K, end_V=problem.end_K
        )
        return chain_log_partition(chain)

    return log_partition_B


def of_pytorch_crf(problem: Problem) -> LogPartition:
    """Return the normaliser of a CRF with the same parameters.

    Raises:
        ImportError: pytorch-crf is not installed.
    """
    import torchcrf

    crf = torchcrf.CRF(len(problem.start_K))
    crf.transitions = problem.transitions_KK
    crf.start_transitions, crf.end_transitions = problem.start_K, problem.end_K
    mask_TB = torch.ones(problem.scores_BTK.shape[:2], dtype=torch.bool).T
    return lambda: crf._compute_normalizer(problem.scores_BTK.transpose(0, 1), mask_TB)


def systems_of(problem: Problem) -> dict[str, LogPartition]:
    """Return the systems by name; the peer only if it is installed."""
    systems = {"seqwise": of_seqwise(problem)}
    try:
        systems[PEER] = of_pytorch_crf(problem)
    except ImportError:
        return systems
    return systems


def with_gradients(log_partition: LogPartition, problem: Problem) -> tuple[Tensor, ...]:
    """Compute log Z of every input, and the gradients of their sum."""
    log_partition_B = log_partition()
    # Outputs of one label have no transition; the gradient is then 0.
    gradients = torch.autograd.grad(log_partition_B.sum(), problem.leaves, materialize_grads=True)
    return (log_partition_B.detach(), *gradients)


def largest_difference(results: Sequence[tuple[Tensor, ...]]) -> float | None:
    """Return the largest difference of two systems, relative to the largest entry of a tensor; None of one system."""
    if len(results) == 1:
        return None
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=torch.finfo(b.dtype).tiny))
        for a, b in zip(*results, strict=True)
    )


def measure_shape(problem: Problem, rounds: int) -> dict[str, Any]:
    """Return one row: the difference of the systems, and their times."""
    systems = systems_of(problem)
    difference = largest_difference([with_gradients(system, problem) for system in systems.values()])
    if difference is not None and not difference <= MOST_DIFFERENCE:
        raise SystemExit(f"seqwise and {PEER} differ by {difference:.2g}: there is nothing to compare")

    def value(system: LogPartition) -> Tensor:
        with torch.no_grad():
            return system()

    seconds = {
        "log Z": time_in_turn({name: lambda s=system: value(s) for name, system in systems.items()}, rounds),
        "with gradients": time_in_turn(
            {name: lambda s=system: with_gradients(s, problem) for name, system in systems.items()}, rounds
        ),
    }
    return {
        "steps": problem.scores_BTK.shape[1],
        "labels": problem.scores_BTK.shape[2],
        "largest_difference": difference,
        **{
            what: {
                "milliseconds": {name: 1000 * statistics.median(times) for name, times in by_name.items()},
                "ratio": median_ratio(by_name[PEER], by_name["seqwise"]) if PEER in by_name else None,
                "seconds_by_round": by_name,
            }
            for what, by_name in seconds.items()
        },
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time every shape."""
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(options.seed)
    digest = hashlib.sha256()
    rows = []
    for steps in options.steps:
        for labels in options.labels:
            problem = random_problem(options.batch, steps, labels, spread=options.spread, generator=generator)
            for leaf in problem.leaves:
                digest.update(leaf.detach().numpy().tobytes())
            rows.append(measure_shape(problem, options.rounds))
            print(f"T = {steps}, K = {labels} done", flush=True)
    return {
        "peer": f"{PEER} {metadata.version(PEER)}" if rows[0]["largest_difference"] is not None else None,
        "batch": options.batch,
        "rows": rows,
        **signed("log partition of linear chains", options, data=digest.hexdigest()),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of the speed with gradients to that of the peer, for the summary."""
    rows = [row for row in result["rows"] if row["with gradients"]["ratio"] is not None]
    return [
        Ratio(
            f"log Z with gradients, T = {row['steps']:,}, K = {row['labels']}, over {PEER}",
            row["with gradients"]["ratio"],
        )
        for row in rows
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [
        f"milliseconds for {result['batch']} inputs, medians over rounds; ratio: {PEER} to seqwise",
        f"{'':16}" + "".join(f"  {what:^31}" for what in ("log Z", "with gradients")),
        f"{'T':>6}  {'K':>6}  " + f"  {'seqwise':>9}  {PEER:>11}  {'ratio':>7}" * 2,
    ]
    for row in result["rows"]:
        cells = ""
        for what in ("log Z", "with gradients"):
            found = row[what]
            cells += f"  {found['milliseconds']['seqwise']:9.2f}"
            cells += (
                f"  {'-':>11}  {'-':>7}"
                if found["ratio"] is None
                else f"  {found['milliseconds'][PEER]:11.2f}  {found['ratio']:7.1f}"
            )
        lines.append(f"{row['steps']:6}  {row['labels']:6}  " + cells)
    differences = [row["largest_difference"] for row in result["rows"]]
    lines.append(
        f"{PEER} is not installed, so seqwise was timed alone: pip install {PEER}==0.7.2"
        if result["peer"] is None
        else f"{result['peer']}; largest difference, as a share of the largest entry: {max(differences):.1g}"
    )
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("chain_log_partition", __doc__, rounds=20, seed="the scores")
    parser.add_argument(
        "--steps", type=at_least(1), nargs="+", default=[20, 60], help="T, number of labels of an input"
    )
    parser.add_argument("--labels", type=at_least(1), nargs="+", default=[9, 45, 317], help="K, number of labels")
    parser.add_argument("--batch", type=at_least(1), default=32, help="B, number of inputs")
    parser.add_argument("--spread", type=float, default=1.0, help="standard deviation of the scores of transitions")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
