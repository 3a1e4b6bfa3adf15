"""How much CPU time does a command take before it does its work, compared with importing torch?

Four programs take turns, round by round, each in its own process on one thread:

- import torch: the minimum for every program that runs a model.
- ``seqwise --help``, which does not import torch.
- predict: ``seqwise predict`` of one sentence, with a tagger that was trained on three.
- train, refused: ``seqwise train`` with a value that is out of range.

Times are seconds of CPU time, user and system together, medians over rounds. A first round, in which Python
compiles its imports, is not counted. ``beyond torch`` is the median of the differences by round. Its target for
predict is 1.0 at most.

    python -m benchmarks.start_up
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Ratio, make_parser, run, signed
from benchmarks.timing import cpu_seconds

DATA = "the\tDT\ndog\tNN\nbarks\tVBZ\n\nPeter\tNNP\nruns\tVBZ\n\nEU\tNNP\nrejects\tVBZ\nthe\tDT\ncall\tNN\n"
TARGET = 1.0  # seconds beyond torch, of predict

TORCH, PREDICT = "import torch", "predict"
SEQWISE = ("-m", "seqwise")


def programs(folder: Path) -> dict[str, tuple[list[str], int]]:
    """Return the arguments of Python and the exit code of each program."""
    data, tagger = str(folder / "train.conll"), str(folder / "tagger")
    wrong = ["train", "--train", data, "--output", str(folder / "refused"), "--dropout", "2"]
    return {
        TORCH: (["-c", "import torch"], 0),
        "--help": ([*SEQWISE, "--help"], 0),
        PREDICT: ([*SEQWISE, "predict", tagger, "the dog runs"], 0),
        "train, refused": ([*SEQWISE, *wrong], 2),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all programs, round by round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, tagger = folder / "train.conll", folder / "tagger"
        data.write_text(DATA, "utf-8")
        given = ["--train", str(data), "--output", str(tagger), "--seed", str(options.seed)]
        cpu_seconds([*SEQWISE, "train", *given])
        seconds: dict[str, list[float]] = {program: [] for program in programs(folder)}
        for _ in range(options.rounds + 1):
            for program, (arguments, code) in programs(folder).items():
                seconds[program].append(cpu_seconds(arguments, code=code))
    rows = [
        {
            "program": program,
            "cpu_seconds_by_round": rounds[1:],
            "cpu_seconds": statistics.median(rounds[1:]),
            "beyond_torch": statistics.median(
                taken - torch for taken, torch in zip(rounds[1:], seconds[TORCH][1:], strict=True)
            ),
        }
        for program, rounds in seconds.items()
    ]
    return {"rows": rows, **signed("start_up", options, data=hashlib.sha256(DATA.encode()).hexdigest())}


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the CPU seconds of predict beyond importing torch, for the summary."""
    return [
        Ratio("`seqwise predict` of a sentence: seconds beyond torch", row["beyond_torch"], most=TARGET)
        for row in result["rows"]
        if row["program"] == PREDICT
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = ["program          CPU seconds   beyond torch   target"]
    for row in result["rows"]:
        target = f"{TARGET:6.1f}" if row["program"] == PREDICT else ""
        lines.append(f"{row['program']:14} {row['cpu_seconds']:13.2f} {row['beyond_torch']:14.2f}   {target}".rstrip())
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    return run(make_parser("start_up", __doc__, rounds=7, seed="the tagger"), measure, table, arguments)


if __name__ == "__main__":
    main()
