"""How do time and memory of a search grow with its width, its vocabulary, its length and its batch?

One of the four is varied, the others are fixed. Searches are local, over random models:

- hard: a hard beam without gradients, as in decoding.
- relaxed: a training step, which is the direct loss of a relaxed beam and its gradients.
- certified: the same over scores that differ widely, like those of trained models, so that few candidates are enough.

Both models have a hidden size of 64: an LSTM tagger, and for the length also a Transformer, whose state is a cache of
all steps so far. Times are CPU seconds of the process, the minimum over rounds; memory is that of the graph of a
training step, without parameters. The exponent e of ``seconds = c n^e`` is fitted to the larger half of the values;
below, Python's overhead dominates. Theory counts operations. Those of a hard beam grow with k, V, T and B. A relaxed
beam sums k V numbers for each of its k slots, or k n if n candidates are enough, and mixes k states into each. At each
step, a selection moves a Transformer's cache of T steps.

    python -m benchmarks.scaling
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import at_least, make_parser, run, signed
from benchmarks.relaxed_beam import System, saved_bytes
from seqwise.data import EncodedExample, collate
from seqwise.models import Tagger, Transformer
from seqwise.objectives import direct_loss, hamming_cost
from seqwise.search import HardTopK, SoftTopK, beam_search, local

ALPHA, HIDDEN = 4.0, 64
APART = 60.0
"""Factor of the scores that differ widely."""
LSTM, TRANSFORMER = "LSTM", "Transformer"
HARD, RELAXED, CERTIFIED = "hard", "relaxed", "certified"


@dataclass(frozen=True)
class Size:
    """Sizes of one search."""

    k: int = 4
    V: int = 1_000
    T: int = 16
    B: int = 8


@dataclass(frozen=True)
class Curve:
    """The varied size, its values, the model and the search, and the theoretical exponent."""

    varied: str
    values: tuple[int, ...]
    model: str
    search: str
    theory: float
    fixed: Size = Size()

    def sizes(self) -> list[Size]:
        """Return the measured sizes."""
        return [replace(self.fixed, **{self.varied: value}) for value in self.values]


WIDTHS, LENGTHS, BATCHES = (1, 2, 4, 8, 16, 32, 64), (8, 16, 32, 64, 128, 256, 512, 1024), (1, 4, 16, 64, 256)
VOCABULARIES, FEW = (10, 100, 1_000, 10_000, 64_000, 256_000), Size(B=2, T=8)
SHORT = Size(V=100, B=2)
CURVES = (
    *(Curve("k", WIDTHS, LSTM, search, theory) for search, theory in ((HARD, 1), (RELAXED, 2), (CERTIFIED, 2))),
    *(Curve("V", VOCABULARIES, LSTM, search, 1, FEW) for search in (HARD, RELAXED, CERTIFIED)),
    *(Curve("T", LENGTHS, LSTM, search, 1, SHORT) for search in (HARD, RELAXED)),
    Curve("T", LENGTHS[:-1], TRANSFORMER, HARD, 2, SHORT),
    Curve("T", LENGTHS[:-2], TRANSFORMER, RELAXED, 2, SHORT),
    *(Curve("B", BATCHES, LSTM, search, 1) for search in (HARD, RELAXED)),
)


def system_of(curve: Curve, size: Size, seed: int) -> System:
    """Make one search."""
    torch.manual_seed(seed)
    model: Any
    if curve.model == LSTM:
        model = Tagger(
            source_size=50, target_size=size.V, embedding_size=HIDDEN, label_embedding_size=HIDDEN, hidden_size=HIDDEN,
            dropout=0.0,
        )  # fmt: skip
    else:
        model = Transformer(
            source_size=50, target_size=size.V, hidden_size=HIDDEN, num_heads=4, feedforward_size=4 * HIDDEN,
            num_layers=2, dropout=0.0, end=0,
        )  # fmt: skip
        with torch.no_grad():
            model.head.bias[0] = -1e4  # an output that ends early would take fewer steps
    if curve.search == CERTIFIED:
        with torch.no_grad():
            model.head.weight.mul_(APART)
    draw = torch.Generator().manual_seed(seed)
    rows = [
        EncodedExample(
            tuple(torch.randint(50, (size.T,), generator=draw).tolist()),
            tuple(torch.randint(1, size.V, (size.T,), generator=draw).tolist()),
        )
        for _ in range(size.B)
    ]
    batch = collate(rows)

    def hard() -> Tensor:
        with torch.no_grad():
            return beam_search(model, model.encode(batch), HardTopK(size.k), num_steps=size.T, score=local).scores_BK

    def relaxed() -> Tensor:
        cost = hamming_cost(batch.targets_BT, size.V)
        selector = SoftTopK(size.k, ALPHA)
        beam = beam_search(model, model.encode(batch), selector, num_steps=size.T, score=local, cost=cost)
        return direct_loss(beam, ALPHA)

    return System(curve.search, hard if curve.search == HARD else relaxed, model, torch.device("cpu"))


def seconds_of(system: System, rounds: int) -> float:
    """Return the minimum over some rounds, after an untimed one."""
    least = math.inf
    for round_ in range(rounds + 1):
        start = time.process_time()
        if system.name == HARD:
            system.loss()
        else:
            system.step()
        if round_:
            least = min(least, time.process_time() - start)
    return least


def exponent(values: Sequence[int], measured: Sequence[float]) -> float:
    """Fit the slope of log against log over the larger half of the values, by least squares."""
    half = len(values) // 2
    points = [(math.log(value), math.log(found)) for value, found in zip(values[half:], measured[half:], strict=True)]
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((log_n - x) * (log_s - y) for log_n, log_s in points) / sum((log_n - x) ** 2 for log_n, _ in points)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all curves."""
    torch.set_num_threads(options.threads)
    rows = []
    for curve in CURVES:
        if options.only and curve.varied not in options.only:
            continue
        curve = replace(curve, values=curve.values[: options.points])
        seconds, kept = [], []
        for size in curve.sizes():
            system = system_of(curve, size, options.seed)
            seconds.append(seconds_of(system, options.rounds))
            kept.append(0 if curve.search == HARD else saved_bytes(system))
        row = {**asdict(curve), "seconds": seconds, "kept": kept, "exponent": exponent(curve.values, seconds)}
        rows.append(row | {"memory_exponent": exponent(curve.values, kept) if all(kept) else None})
        print(f"{curve.varied}, {curve.model}, {curve.search} done", flush=True)
    return {"rows": rows, **signed("growth of searches", options, data="random")}


def table(result: dict[str, Any]) -> str:
    """Format the result as a table: milliseconds by value, and the exponents of time, theory and memory."""
    lines = []
    for varied in dict.fromkeys(row["varied"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["varied"] == varied]
        fixed = ", ".join(f"{name} = {value:,}" for name, value in rows[0]["fixed"].items() if name != varied)
        width = 9 * max(len(row["values"]) for row in rows)
        values = "".join(f"{value:>9,}" for value in max((row["values"] for row in rows), key=len))
        lines.append(f"{varied}, milliseconds ({fixed})")
        lines.append(f"{'':24}{values}   exponent  theory  of memory")
        for row in rows:
            found = "".join(f"{1000 * seconds:9.1f}" for seconds in row["seconds"]).ljust(width)
            memory = "" if row["memory_exponent"] is None else f"{row['memory_exponent']:.2f}"
            lines.append(
                f"{row['model'] + ', ' + row['search']:24}{found}{row['exponent']:11.2f}{row['theory']:8g}{memory:>11}"
            )
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("scaling", __doc__, rounds=2, seed="models and batches")
    parser.add_argument("--only", nargs="*", choices=["k", "V", "T", "B"], default=[], help="vary only these")
    parser.add_argument(
        "--points", type=at_least(3), default=9, help="number of values to measure, the smallest first; at least 3"
    )
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
