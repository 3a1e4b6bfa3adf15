"""What do self-normalisation and its sampled forms cost in a training step over a large vocabulary?

One step of an output layer takes features (N, H) and gold tokens, and returns the loss and the gradients of features,
weights and biases. All systems get the same input and take turns:

- cross-entropy: torch's ``linear`` and ``cross_entropy``, the reference.
- two passes: cross-entropy plus ``lambda (logsumexp)^2``, the obvious implementation.
- self-normalised: ``self_normalized_cross_entropy``, which shares one log-softmax.
- sampled: ``sampled_self_normalized_cross_entropy`` with log Z at a fraction gamma of the positions, and
  ``unnormalized_likelihood_loss`` (Andreas and Klein, 2015) likewise. With gamma = 1 it is the same function, and
  faster than cross-entropy, because it holds one copy of the scores (N, V). The gradient of the weights does not depend
  on gamma, which keeps the speed-up of gamma = 0.1 below 10.

    python -m benchmarks.self_normalization
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.command import Ratio, add_device, at_least, make_parser, run, signed
from benchmarks.timing import clock_of, median_ratio, time_in_turn
from seqwise.objectives import (
    sampled_self_normalized_cross_entropy,
    self_normalized_cross_entropy,
    unnormalized_likelihood_loss,
)

REFERENCE = "cross-entropy"
WEIGHT = 0.1
FRACTIONS = (1.0, 0.1, 0.01)
MOST_COST, LEAST_SPEEDUP = 1.2, 10.0
"""Targets: time of a self-normalised step over that of cross-entropy; speed of gamma = 0.1 over gamma = 1."""


def systems_of(
    features_NH: Tensor, weight_VH: Tensor, bias_V: Tensor, targets_N: Tensor
) -> dict[str, Callable[[], Tensor]]:
    """Return the losses by name."""
    layer = (features_NH, weight_VH, bias_V)

    def two_passes() -> Tensor:
        logits_NV = F.linear(*layer)
        return F.cross_entropy(logits_NV, targets_N) + WEIGHT * logits_NV.logsumexp(-1).square().mean()

    systems: dict[str, Callable[[], Tensor]] = {
        REFERENCE: lambda: F.cross_entropy(F.linear(*layer), targets_N),
        "two passes": two_passes,
        "self-normalised": lambda: self_normalized_cross_entropy(F.linear(*layer), targets_N, WEIGHT),
    }
    for fraction in FRACTIONS:
        systems[f"sampled, gamma = {fraction:g}"] = lambda g=fraction: sampled_self_normalized_cross_entropy(
            *layer, targets_N, weight=WEIGHT, fraction=g
        )
        systems[f"unnormalised, gamma = {fraction:g}"] = lambda g=fraction: unnormalized_likelihood_loss(
            *layer, targets_N, weight=WEIGHT, fraction=g
        )
    return systems


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every number of positions."""
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(options.seed)
    weight_VH = torch.randn(options.vocabulary, options.hidden, generator=generator).mul_(0.05)
    digest, rows = hashlib.sha256(weight_VH.numpy().tobytes()), []
    weight_VH = weight_VH.to(options.device).requires_grad_()
    bias_V = torch.zeros(options.vocabulary, device=options.device, requires_grad=True)
    for positions in options.positions:
        features_NH = torch.randn(positions, options.hidden, generator=generator)
        targets_N = torch.randint(options.vocabulary, (positions,), generator=generator).to(options.device)
        digest.update(features_NH.numpy().tobytes())
        features_NH = features_NH.to(options.device).requires_grad_()
        leaves = (features_NH, weight_VH, bias_V)
        systems = systems_of(*leaves, targets_N)
        check(systems)
        calls = {
            name: lambda s=system, of=leaves: torch.autograd.grad(s(), of, materialize_grads=True)
            for name, system in systems.items()
        }
        seconds = time_in_turn(calls, options.rounds, clock=clock_of(options.device))
        rows.append({"positions": positions, **compare(seconds)})
        print(f"N = {positions} done", flush=True)
    return {"rows": rows, **signed("self-normalisation", options, data=digest.hexdigest())}


def check(systems: dict[str, Callable[[], Tensor]]) -> None:
    """Compare losses that are equal by definition."""
    values = {name: system().item() for name, system in systems.items()}
    for one, other in (("two passes", "self-normalised"), ("self-normalised", "sampled, gamma = 1")):
        if not abs(values[one] - values[other]) <= 1e-4 * abs(values[other]):
            raise SystemExit(f"{one} gives {values[one]} and {other} {values[other]}: there is nothing to compare")


def compare(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, and ratios by round."""
    speedups, over_reference = (
        {
            form: median_ratio(seconds[whole.format(form)], seconds[f"{form}, gamma = 0.1"])
            for form in ("sampled", "unnormalised")
        }
        for whole in ("{}, gamma = 1", REFERENCE)
    )
    return {
        "milliseconds": {name: 1000 * statistics.median(times) for name, times in seconds.items()},
        "in_cross_entropies": {name: median_ratio(times, seconds[REFERENCE]) for name, times in seconds.items()},
        "speedup_of_a_tenth": speedups,
        "speedup_over_cross_entropy": over_reference,
        "seconds_by_round": seconds,
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the cost in cross-entropies and the speed-up of sampling, for the summary."""
    found = []
    for row in result["rows"]:
        what = f"self-normalisation, N = {row['positions']:,}"
        found.append(Ratio(f"{what}, over cross-entropy", row["in_cross_entropies"]["self-normalised"], most=MOST_COST))
        speedup = row["speedup_of_a_tenth"]["sampled"]
        found.append(Ratio(f"{what}, sampled: speed of gamma = 0.1 over 1", speedup, least=LEAST_SPEEDUP))
    return found


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = []
    for row in result["rows"]:
        lines.append(f"N = {row['positions']:,}{'':24}ms   steps of cross-entropy")
        lines += [
            f"  {name:28}{row['milliseconds'][name]:9.1f}{ratio:12.2f}"
            for name, ratio in row["in_cross_entropies"].items()
        ]
        cost, speedups = row["in_cross_entropies"]["self-normalised"], row["speedup_of_a_tenth"]
        over_reference = row["speedup_over_cross_entropy"]
        lines.append(
            f"  self-normalised: {cost:.2f} (target at most {MOST_COST:g}); gamma = 0.1 against 1: sampled"
            f" {speedups['sampled']:.1f}, unnormalised {speedups['unnormalised']:.1f} times as fast"
            f" (target {LEAST_SPEEDUP:g}); against cross-entropy {over_reference['sampled']:.1f} and"
            f" {over_reference['unnormalised']:.1f}"
        )
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("self_normalization", __doc__, rounds=15, seed="features, weights and gold tokens")
    parser.add_argument("--positions", type=at_least(1), nargs="+", default=[512, 2048], help="N, number of positions")
    parser.add_argument("--vocabulary", type=at_least(1), default=32_000, help="V, vocabulary size")
    parser.add_argument("--hidden", type=at_least(1), default=256, help="H, size of the features")
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
