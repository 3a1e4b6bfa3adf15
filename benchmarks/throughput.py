"""How many tokens per second do the commands take on one core?

Three commands run with models of the default sizes, on sentences of 12 to 28 words: Europarl if ``SEQWISE_DATA`` names
the corpora, otherwise words from a Zipf law.

- ``seqwise masked-model train``: words seen at least twice, a Transformer of two layers of 128 units.
- ``seqwise score`` with that model.
- ``seqwise predict`` with a left-to-right tagger and a beam of 5. Its labels are the last letters of words.

Each runs twice in each round, once with a tenth of the work. The result is the difference in CPU seconds of one thread,
which excludes starting Python and reading models. There is no peer: these figures serve to estimate costs
(docs/scale.md).

    python -m benchmarks.throughput
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.command import at_least, make_parser, run, signed
from benchmarks.sampled_normalizer import europarl, zipf_text
from benchmarks.timing import cpu_seconds
from reproductions.andreas_klein_2015.streams import Sentence
from seqwise.errors import InputError

SHORTEST, LONGEST = 12, 28
LESS = 10  # factor between the work of the two runs of a round


def lines_of(sentences: Sequence[Sentence], number: int) -> list[str]:
    """Return the first sentences of a medium length."""
    fitting = (sentence.tokens for sentence in sentences if SHORTEST <= len(sentence.tokens) <= LONGEST)
    lines = [" ".join(words) for words in islice(fitting, number)]
    if len(lines) < number:
        raise InputError(f"{len(lines)} sentences have a medium length, and {number} are needed", hint="lower --lines")
    return lines


def seconds_of(*arguments: object) -> float:
    """Run a command of seqwise, and return its CPU seconds."""
    return cpu_seconds(["-m", "seqwise", *map(str, arguments)])


def text_of(folder: Path, lines: Sequence[str], number: int) -> Path:
    """Write the first lines to a file, and return its path."""
    path = folder / f"{number}.txt"
    path.write_text("\n".join(lines[:number]) + "\n", "utf-8")
    return path


def make_models(folder: Path, lines: Sequence[str]) -> None:
    """Train the models that predict and score, for a tenth of an epoch: times do not depend on weights."""
    tagged = folder / "tagged.conll"
    rows = ("\n".join(f"{word}\t{word[-1]}" for word in line.split()) for line in lines)
    tagged.write_text("\n\n".join(rows) + "\n", "utf-8")
    seconds_of("train", "--train", tagged, "--encoder", "left-to-right", "--objective", "cross-entropy",
                "--epochs", "0.1", "--output", folder / "tagger")  # fmt: skip
    text = text_of(folder, lines, len(lines))
    seconds_of("masked-model", "train", text, "--epochs", "0.1", "--output", folder / "masked")


def train(folder: Path, lines: Sequence[str], number: int) -> float:
    """Train on a fraction of an epoch of all lines, so that the vocabulary stays the same."""
    output, text = folder / "trained", text_of(folder, lines, len(lines))
    seconds = seconds_of("masked-model", "train", text, "--epochs", number / len(lines), "--output", output)
    shutil.rmtree(output)
    return seconds


def score(folder: Path, lines: Sequence[str], number: int) -> float:
    """Score lines by pseudo-log-likelihood."""
    return seconds_of("score", folder / "masked", text_of(folder, lines, number))


def predict(folder: Path, lines: Sequence[str], number: int) -> float:
    """Label lines by beam search."""
    return seconds_of("predict", folder / "tagger", text_of(folder, lines, number), "--text", "--decoder", "beam")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all three commands, round by round."""
    root = os.environ.get("SEQWISE_DATA")
    text, sentences = europarl(Path(root)) if root else zipf_text(options.seed)
    # The first sentences of synthetic text contain each word once, so there is nothing to learn from them.
    lines = lines_of(sentences if root else sentences[::-1], options.lines)
    # Scoring takes a pass for each token of a sentence, so it gets fewer sentences.
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
        row = {"task": task.__name__, "tokens": tokens, "cpu_seconds_by_round": rounds}
        rows.append({**row, "tokens_per_second": tokens / statistics.median(rounds)})
    data = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return {"rows": rows, **signed(f"throughput; {text}", options, data=data)}


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    rows = [f"{row['task']:8} {row['tokens_per_second']:8,.0f} tokens a CPU second" for row in result["rows"]]
    return "\n".join([*rows, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("throughput", __doc__, rounds=3, seed="synthetic text; those of the commands are 0")
    parser.add_argument("--lines", type=at_least(1), default=4000, help="sentences; a quarter of them are scored")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
