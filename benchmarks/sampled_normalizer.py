"""How much faster is training if only a fraction gamma of the positions is normalised, and what does it cost?

One log-linear language model for each gamma, and one trained by cross-entropy, take turns on the same batches in the
same order. The text is Europarl if ``SEQWISE_DATA`` names the corpora; otherwise words from a Zipf law, half of them
determined by the previous word.

    python -m benchmarks.sampled_normalizer
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import Ratio, at_least, make_parser, run, signed
from benchmarks.timing import median_ratio
from reproductions.andreas_klein_2015.log_linear import LogLinear, held_out
from reproductions.andreas_klein_2015.log_linear_training import (
    AdagradState,
    Normalization,
    adagrad_state,
    adagrad_step,
    exact_normalization,
    sampled_normalization,
)
from reproductions.andreas_klein_2015.streams import (
    Positions,
    Sentence,
    build_vocabulary,
    read_sentences,
    stream_positions,
)
from seqwise.data import Example, Vocabulary
from seqwise.evaluation.signature import sha256_of_examples

FOLDER = "lm-text-en"
FRACTIONS = (1.0, 0.1, 0.07, 0.01, 0.0)
LEAST_SPEEDUP, MOST_SPREAD = 10.0, 0.05
SYNTHETIC_TYPES, SYNTHETIC_WORDS = 16_000, 600_000


@dataclass
class System:
    """Model with its training method, and the seconds per 1,000 positions in each round of training."""

    name: str
    model: LogLinear
    state: AdagradState
    normalization: Normalization
    generator: torch.Generator
    seconds: list[float] = field(default_factory=list)

    def train(self, batches: Sequence[Positions], learning_rate: float) -> None:
        """Train for one round."""
        start = time.perf_counter()
        for batch in batches:
            adagrad_step(
                self.model,
                self.state,
                batch,
                self.normalization,
                learning_rate=learning_rate,
                generator=self.generator,
            )
        num_positions = sum(len(batch.words_N) for batch in batches)
        self.seconds.append(1000 * (time.perf_counter() - start) / num_positions)


def europarl(root: Path) -> tuple[str, list[Sentence]]:
    """Return a description of the text, and its sentences."""
    return "Europarl v7 English, first session days", list(read_sentences(sorted((root / FOLDER).glob("europarl-*"))))


def zipf_text(seed: int) -> tuple[str, list[Sentence]]:
    """Draw words from a Zipf law; with probability 1/2, a word is the fixed successor of the one before."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, SYNTHETIC_TYPES + 1)
    words = random.choice(SYNTHETIC_TYPES, SYNTHETIC_WORDS, p=weights / weights.sum())
    words[:SYNTHETIC_TYPES] = random.permutation(SYNTHETIC_TYPES)
    successor = random.permutation(words)[:SYNTHETIC_TYPES]  # frequent words follow more words
    for place in np.flatnonzero(random.random(SYNTHETIC_WORDS) < 0.5):
        if place > SYNTHETIC_TYPES:
            words[place] = successor[words[place - 1]]
    names = [f"w{word}" for word in words]
    return "synthetic: Zipf", [Sentence(tuple(names[i : i + 20])) for i in range(0, len(names), 20)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train the systems in turn, and evaluate them."""
    torch.set_num_threads(options.threads)
    root = os.environ.get("SEQWISE_DATA")
    text, sentences = europarl(Path(root)) if root else zipf_text(options.seed)
    training, validation = sentences[: -options.validation], sentences[-options.validation :]
    vocabulary = build_vocabulary(training)
    systems = [make_system(f"gamma = {fraction:g}", fraction, vocabulary, options) for fraction in FRACTIONS]
    systems.append(make_system("cross-entropy", None, vocabulary, options))

    def stream(part: list[Sentence], shuffle_buffer: int) -> list[Positions]:
        return list(
            stream_positions(
                part,
                vocabulary,
                context_size=systems[0].model.context_size,
                batch_size=options.batch,
                shuffle_buffer=shuffle_buffer,
                seed=options.seed,
            )
        )

    batches = stream(training, 2**17)
    if options.positions:
        batches = batches[: -(-options.positions // options.batch)]
    for number in range(options.rounds):
        batches_of_round = batches[number :: options.rounds]
        if not batches_of_round:
            raise SystemExit(f"{len(batches)} batches are too few for {options.rounds} rounds")
        # Another system begins each round, which spreads the effects of cache and memory.
        first = number % len(systems)
        for system in [*systems[first:], *systems[:first]]:
            system.train(batches_of_round, options.learning_rate)
        print(f"round {number + 1} of {options.rounds}", flush=True)
    held_out_batches = stream(validation, 0)
    rows = [
        {
            "system": system.name,
            "speedup": median_ratio(systems[0].seconds, system.seconds),
            "seconds_per_1000": statistics.median(system.seconds),
            "seconds_by_round": system.seconds,
            **held_out(system.model, held_out_batches)._asdict(),
        }
        for system in systems
    ]
    data = sha256_of_examples(Example(sentence.tokens, ()) for sentence in validation)
    return {
        "text": text,
        "vocabulary": len(vocabulary),
        "training_positions": sum(len(batch.words_N) for batch in batches),
        "features": [list(template) for template in systems[0].model.templates],
        "rows": rows,
        "comparison": compare(rows[0], rows[1], rows[FRACTIONS.index(0.0)], options.batch),
        **signed("sampled normaliser, log-linear language model", options, data=data),
    }


def make_system(name: str, fraction: float | None, vocabulary: Vocabulary, options: argparse.Namespace) -> System:
    """Make an untrained system; without a fraction, it is trained by cross-entropy."""
    model = LogLinear(vocabulary_size=len(vocabulary), num_weights=2**options.log_weights)
    normalization = (
        exact_normalization() if fraction is None else sampled_normalization(options.alpha, fraction=fraction)
    )
    generator = torch.Generator().manual_seed(options.seed)
    return System(name, model, adagrad_state(model, initial=options.initial), normalization, generator)


def compare(full: dict[str, Any], sampled: dict[str, Any], none: dict[str, Any], batch: int) -> dict[str, Any]:
    """Compare gamma = 0.1 with gamma = 1: the median ratio of times, a bound on it, and the difference in log Z.

    The share of the normaliser is the time that gamma = 0 saves. If all normalisers took the same time, a fraction
    gamma of them would leave ``gamma share + 1 - share`` of the time, less than 1 / gamma times as fast. In fact those
    of gamma = 1 are cheaper, since a window that several positions of a batch read is updated once.
    """
    speedup = median_ratio(full["seconds_by_round"], sampled["seconds_by_round"])
    difference = sampled["deviation"] - full["deviation"]
    share = 1 - median_ratio(none["seconds_by_round"], full["seconds_by_round"])
    fraction = math.ceil(round(0.1 * batch, 9)) / batch
    return {
        "speedup": speedup,
        "normalizer_share": share,
        "bound": 1 / (fraction * share + 1 - share),
        "deviation_difference": difference,
        "speedup_met": speedup >= LEAST_SPEEDUP,
        "deviation_met": abs(difference) <= MOST_SPREAD,
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the speed-up of sampling, for the summary."""
    what = "log-linear language model: speed of gamma = 0.1 over 1"
    return [Ratio(what, result["comparison"]["speedup"], least=LEAST_SPEEDUP)]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [
        f"{result['text']}; V = {result['vocabulary']:,}; {result['training_positions']:,} positions of training",
        f"{'':14}  s / 1,000  speed-up  mean |log Z - mean|  mean |log Z|  mean log Z  normalised NLL",
    ]
    lines += [
        f"{row['system']:14}  {row['seconds_per_1000']:9.4f}  {row['speedup']:8.1f}  {row['deviation']:19.3f}"
        f"  {row['risk']:12.3f}  {row['mean']:10.3f}  {row['negative_log_likelihood']:14.3f}"
        for row in result["rows"]
    ]
    found = result["comparison"]
    lines.append(
        f"gamma = 0.1 against 1: {found['speedup']:.1f} times as fast (target {LEAST_SPEEDUP:g}; at most"
        f" {found['bound']:.1f} if normalisers, {100 * found['normalizer_share']:.1f}% of the time, cost the same),"
        f" mean |log Z - mean| {found['deviation_difference']:+.3f} (target within {MOST_SPREAD:g})"
    )
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("sampled_normalizer", __doc__, rounds=20, seed="the order and the sample of positions")
    parser.add_argument("--positions", type=int, default=0, help="training positions for each system; 0: one epoch")
    parser.add_argument("--validation", type=at_least(1), default=1000, help="sentences at the end of the text")
    parser.add_argument("--batch", type=at_least(1), default=128, help="positions of a training step")
    parser.add_argument("--log-weights", type=at_least(1), default=24, help="base 2 logarithm of the size of the table")
    parser.add_argument("--alpha", type=float, default=1.0, help="weight of (log Z)^2")
    parser.add_argument("--learning-rate", type=float, default=1.0, help="learning rate of Adagrad")
    parser.add_argument("--initial", type=float, default=100.0, help="initial sum of squared gradients of Adagrad")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
