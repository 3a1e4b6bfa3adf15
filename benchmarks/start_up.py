"""How much CPU time does a command take before it does its work, compared with importing torch?

Four programs take turns, round by round, each in a process of its own on one thread:

- import torch: the minimum for every program that runs a model.
- ``seqwise --help``, which imports no torch.
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
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command import Ratio, a_parser, run
from seqwise.evaluation.signature import sign, signature_line

DATA = "the\tDT\ndog\tNN\nbarks\tVBZ\n\nPeter\tNNP\nruns\tVBZ\n\nEU\tNNP\nrejects\tVBZ\nthe\tDT\ncall\tNN\n"
TARGET = 1.0  # seconds beyond torch, of predict

TORCH, PREDICT = "import torch", "predict"
SEQWISE = ("-m", "seqwise")


def programs(folder: Path) -> dict[str, tuple[list[str], int]]:
    """The arguments of Python, and the exit code, of each program."""
    data, tagger = str(folder / "train.conll"), str(folder / "tagger")
    wrong = ["train", "--train", data, "--output", str(folder / "refused"), "--dropout", "2"]
    return {
        TORCH: (["-c", "import torch"], 0),
        "--help": ([*SEQWISE, "--help"], 0),
        PREDICT: ([*SEQWISE, "predict", tagger, "the dog runs"], 0),
        "train, refused": ([*SEQWISE, *wrong], 2),
    }


def cpu_seconds(arguments: Sequence[str], *, code: int = 0) -> float:
    """What Python takes with some arguments, on one thread.

    Raises:
        SystemExit: it ended with another exit code.
    """
    # Compiled modules are kept, as they are of an installed package.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != code:
        raise SystemExit(f"{' '.join(arguments)}: exit code {ended.returncode}: {ended.stderr.decode()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All programs, round by round."""
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
                one - torch for one, torch in zip(rounds[1:], seconds[TORCH][1:], strict=True)
            ),
        }
        for program, rounds in seconds.items()
    ]
    digest = hashlib.sha256(DATA.encode()).hexdigest()
    signature = sign(f"start_up; rounds {options.rounds}", seeds=[options.seed], data=digest)
    return {"rows": rows, "signature": asdict(signature), "signature_line": signature_line(signature)}


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """For the summary: seconds over importing torch."""
    return [
        Ratio("`seqwise predict` of a sentence: seconds beyond torch", row["beyond_torch"], most=TARGET)
        for row in result["rows"]
        if row["program"] == PREDICT
    ]


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = ["program          CPU seconds   beyond torch   target"]
    for row in result["rows"]:
        target = f"{TARGET:6.1f}" if row["program"] == PREDICT else ""
        lines.append(f"{row['program']:14} {row['cpu_seconds']:13.2f} {row['beyond_torch']:14.2f}   {target}".rstrip())
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it."""
    return run(a_parser("start_up", __doc__, rounds=7, seed="of the tagger"), measure, table, arguments)


if __name__ == "__main__":
    main()
