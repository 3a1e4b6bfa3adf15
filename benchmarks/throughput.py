"""How many tokens per second do the commands take on one core?

Three commands run with models of the default sizes, on sentences of 12 to 28 words: Europarl if ``SEQWISE_DATA`` names
the corpora, otherwise words from a Zipf law.

- ``seqwise masked-model train``: words seen at least twice, a Transformer of two layers of 128 units.
- ``seqwise score`` with that model.
- ``seqwise predict`` with a left-to-right tagger and a beam of 5. Its labels are the last letters of words.

Each runs twice in each round, once with a tenth of the work. The result is the difference in CPU seconds of one thread,
without starting Python and reading models. There is no peer: these figures serve to estimate costs (docs/scale.md).

    python -m benchmarks.throughput
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.command import a_parser, run
from benchmarks.sampled_normalizer import europarl, zipf_text
from reproductions.andreas_klein_2015.streams import Sentence
from seqwise.errors import InputError
from seqwise.evaluation.signature import sign, signature_line

SHORTEST, LONGEST = 12, 28
LESS = 10  # the work of the shorter of two runs is this part of that of the longer


def lines_of(sentences: Sequence[Sentence], number: int) -> list[str]:
    """The first sentences of a length that is neither short nor long."""
    fitting = (one.tokens for one in sentences if SHORTEST <= len(one.tokens) <= LONGEST)
    lines = [" ".join(words) for words in islice(fitting, number)]
    if len(lines) < number:
        raise InputError(f"{len(lines)} sentences fit, and {number} are asked for", hint="lower --lines")
    return lines


def cpu_seconds(*arguments: object) -> float:
    """What one command takes, on one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "seqwise", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **threads})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def text_of(folder: Path, lines: Sequence[str], number: int) -> Path:
    """A file of the first lines."""
    path = folder / f"{number}.txt"
    path.write_text("\n".join(lines[:number]) + "\n", "utf-8")
    return path


def make_models(folder: Path, lines: Sequence[str]) -> None:
    """What predicts and scores: a tenth of an epoch will do, for time does not depend on weights."""
    tagged = folder / "tagged.conll"
    rows = ("\n".join(f"{word}\t{word[-1]}" for word in line.split()) for line in lines)
    tagged.write_text("\n\n".join(rows) + "\n", "utf-8")
    cpu_seconds("train", "--train", tagged, "--encoder", "left-to-right", "--objective", "cross-entropy",
                "--epochs", "0.1", "--output", folder / "tagger")  # fmt: skip
    text = text_of(folder, lines, len(lines))
    cpu_seconds("masked-model", "train", text, "--epochs", "0.1", "--output", folder / "masked")


def train(folder: Path, lines: Sequence[str], number: int) -> float:
    """A tenth of the lines is a tenth of an epoch of all of them: the vocabulary stays."""
    output, text = folder / "trained", text_of(folder, lines, len(lines))
    seconds = cpu_seconds("masked-model", "train", text, "--epochs", number / len(lines), "--output", output)
    shutil.rmtree(output)
    return seconds


def score(folder: Path, lines: Sequence[str], number: int) -> float:
    """Pseudo-log-likelihoods."""
    return cpu_seconds("score", folder / "masked", text_of(folder, lines, number))


def predict(folder: Path, lines: Sequence[str], number: int) -> float:
    """Labels, by a beam."""
    return cpu_seconds("predict", folder / "tagger", text_of(folder, lines, number), "--text", "--decoder", "beam")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All three, round by round."""
    root = os.environ.get("SEQWISE_DATA")
    text, sentences = europarl(Path(root)) if root else zipf_text(options.seed)
    # The first sentences of synthetic text hold each word once, from which there is nothing to learn.
    lines = lines_of(sentences if root else sentences[::-1], options.lines)
    # Scoring goes over a sentence once for each of its tokens, so it has fewer of them.
    tasks = ((train, options.lines), (score, options.lines // 4), (predict, options.lines))
    seconds: dict[str, list[float]] = {task.__name__: [] for task, _ in tasks}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder, lines)
        for _ in range(options.rounds):
            for task, number in tasks:
                seconds[task.__name__].append(task(folder, lines, number) - task(folder, lines, number // LESS))
    rows = []
    for task, number in tasks:
        tokens, rounds = sum(len(line.split()) for line in lines[number // LESS : number]), seconds[task.__name__]
        speed = tokens / statistics.median(rounds)
        rows.append(
            {
                "task": task.__name__,
                "tokens": tokens,
                "cpu_seconds_by_round": rounds,
                "tokens_per_second": speed,
            }
        )
    data = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    signature = sign(
        f"throughput; {text}; rounds {options.rounds}, lines {options.lines}", seeds=[options.seed], data=data
    )
    return {"rows": rows, "signature": asdict(signature), "signature_line": signature_line(signature)}


def table(result: dict[str, Any]) -> str:
    """For people."""
    rows = [f"{row['task']:8} {row['tokens_per_second']:8,.0f} tokens a CPU second" for row in result["rows"]]
    return "\n".join([*rows, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it."""
    parser = a_parser("throughput", __doc__, rounds=3, seed="of synthetic text; those of the commands are 0")
    parser.add_argument("--lines", type=int, default=4000, help="sentences; a quarter of them are scored")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
