"""How many tokens per second does a stream label, and with which latency, compared with searching whole sequences?

An LSTM tagger that reads from left to right, with a random head scaled to a perplexity, k = 5, raw scores; labels are
committed by ``agree or delay(50)``. All systems label the same tokens, and take turns, round by round:

- stream: ``Streams.feed`` with the next token of every stream in one call, as in live use.
- whole: one search of the whole sequences, as one batch. It needs all tokens to have arrived.
- re-run: after each token, one search of each prefix, as without a stream. Its cost grows with the prefix; the table
  has the search of the prefixes of 50 tokens.

Times are CPU seconds, on a GPU wall-clock seconds. ``x whole`` is the cost of a token in the streams over its cost in
the whole search; ``re-run`` is the cost of a re-run over that of the stream. Latencies are those of a call, in
milliseconds of wall-clock time. ``labels`` is the share of streams whose labels are those of the whole search. On a
GPU, the whole search reads its tokens by cuDNN, which rounds products to TF32 unless
``torch.backends.cudnn.allow_tf32`` is false, and a stream by single steps in float32, so near ties may be decided
differently.

    python -m benchmarks.streaming
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.command import Ratio, add_device, at_least, make_parser, run, signed
from benchmarks.relaxed_beam import Size, make_model, random_batch
from benchmarks.timing import clock_of, median_ratio, time_in_turn
from seqwise.decoding import Decoder, decode
from seqwise.models import Tagger
from seqwise.runs.streaming import Streams
from seqwise.search import HardTopK, global_

MOST_OF_WHOLE, LEAST_OF_RERUN = 1.3, 10.0
"""Targets: stream over whole search, with most streams; re-run over stream; both in seconds per token."""

PREFIX = 50
"""Length of the prefixes of a re-run."""


def labels_of_streams(model: Tagger, sources: Sequence[Sequence[int]], k: int, latencies: list[float]) -> list[Any]:
    """Feed one token to each stream per call until the sources end; return their labels."""
    streams = Streams(model, Decoder(HardTopK(k), global_), commit="agree or delay(50)")
    labels: list[list[int]] = [[] for _ in sources]
    for step in range(len(sources[0])):
        start = time.perf_counter()
        updates = streams.feed({name: [source[step]] for name, source in enumerate(sources)})
        latencies.append(time.perf_counter() - start)
        for name, update in updates.items():
            labels[name] += update.committed
    return [tuple(before) + streams.finish(name).committed for name, before in enumerate(labels)]


def searched_whole(model: Tagger, batch: Any, k: int) -> list[Any]:
    """Search whole sequences as one batch; return their labels."""
    with torch.no_grad():
        context = model.encode(batch)
        best = decode(model, context, Decoder(HardTopK(k), global_), num_steps=context.lengths_B)
    return [hypotheses[0].tokens for hypotheses in best]


def measure_streams(num_streams: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time all systems with one number of streams."""
    size = Size(options.labels, options.hidden, options.k, num_streams, options.steps)
    batch = random_batch(size, options.seed).to(options.device)
    model = make_model(size, batch, options.perplexity, options.seed).eval()
    prefix = random_batch(replace(size, steps=PREFIX), options.seed).to(options.device)
    sources, latencies = batch.sources_BS.tolist(), list[float]()
    calls: dict[str, Callable[[], object]] = {
        "stream": lambda: labels_of_streams(model, sources, size.k, latencies),
        "whole": lambda: searched_whole(model, batch, size.k),
        "re-run": lambda: searched_whole(model, prefix, size.k),
    }
    pairs = zip(labels_of_streams(model, sources, size.k, []), searched_whole(model, batch, size.k), strict=True)
    same = statistics.mean(float(streamed == searched) for streamed, searched in pairs)
    # A re-run labels one new token of each stream.
    labelled = {"stream": size.steps, "whole": size.steps, "re-run": 1}
    clock = clock_of(options.device, time.process_time)
    seconds = {
        name: [taken / (labelled[name] * num_streams) for taken in times]
        for name, times in time_in_turn(calls, options.rounds, clock=clock).items()
    }
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "streams": num_streams,
        "same_labels": same,
        "tokens_per_second": 1 / statistics.median(seconds["stream"]),
        "milliseconds_median": 1000 * cuts[49],
        "milliseconds_99": 1000 * cuts[98],
        "over_whole": median_ratio(seconds["stream"], seconds["whole"]),
        "rerun_over_stream": median_ratio(seconds["re-run"], seconds["stream"]),
        "seconds_per_token_by_round": seconds,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all numbers of streams."""
    torch.set_num_threads(options.threads)
    rows = [measure_streams(num_streams, options) for num_streams in options.streams]
    return {"rows": rows, **signed("streams beside whole searches, LSTM tagger", options, data="random")}


def _streams(number: int) -> str:
    return "1 stream" if number == 1 else f"{number:,} streams"


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the cost of a token over that in a whole search, and of a re-run over it, for the summary."""
    last = result["rows"][-1]
    title = f"{_streams(last['streams'])}: time of a token over a whole search"
    return [
        Ratio(title, last["over_whole"], most=MOST_OF_WHOLE),
        *(
            Ratio(f"re-run of a prefix over {_streams(row['streams'])}", row["rerun_over_stream"], least=LEAST_OF_RERUN)
            for row in result["rows"]
        ),
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = ["streams   tokens/s   ms, median   ms, 99%   x whole   re-run   labels"]
    lines += [
        f"{row['streams']:7}{row['tokens_per_second']:11,.0f}{row['milliseconds_median']:13.2f}"
        f"{row['milliseconds_99']:10.2f}{row['over_whole']:10.2f}{row['rerun_over_stream']:9.1f}"
        + ("   the same" if row["same_labels"] == 1 else f"   the same in {row['same_labels']:.1%}")
        for row in result["rows"]
    ]
    lines.append(f"targets: {MOST_OF_WHOLE:g} x whole at the most streams, re-run at least {LEAST_OF_RERUN:g}")
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("streaming", __doc__, rounds=5, seed="weights and tokens")
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 16, 256], help="numbers of streams")
    parser.add_argument("--steps", type=at_least(1), default=200, help="tokens of each stream")
    parser.add_argument("--labels", type=at_least(1), default=50, help="V, number of labels")
    parser.add_argument("--hidden", type=at_least(1), default=128, help="hidden size of the LSTMs")
    parser.add_argument("--k", type=at_least(1), default=5, help="beam size")
    parser.add_argument(
        "--perplexity", type=float, default=2.0, help="perplexity of the model's softmax, set by the head's scale"
    )
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
