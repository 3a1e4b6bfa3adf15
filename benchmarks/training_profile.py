"""Where does the time of a training run go?

Training runs of the reproductions, with their own settings, on random data of the sizes of their corpora: a few dozen
steps as in ``seqwise train``, in CPU milliseconds per step. Shares are those of torch's own operations, by its
profiler. *Python* is the rest: the loop over positions, building and walking the graph, and the Trainer. *Optimiser* is
counted separately as well; its operations are among the others. The profiler itself makes shares a few per cent too
large.

With gold prefixes, LSTMs run in oneDNN with one call for all steps, and the matrix products are those of the models.
The third largest part is dropout, which can be switched off: on a CPU, torch draws its random numbers sequentially
(``bernoulli_``). In training through a search, a sixth to a quarter of the time moves data: states, scores and
costs follow the selection.

    python -m benchmarks.training_profile
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.command import at_least, make_parser, run, signed
from reproductions.beyond import stress, transformer_translation
from reproductions.goyal_2018 import exposure_bias
from seqwise.data import Example
from seqwise.runs.loading import new_run
from seqwise.runs.settings import Settings
from seqwise.runs.training import train_stage

WARM_UP = 5


class Subject(NamedTuple):
    """Training run: its settings, and the sizes of random data."""

    settings: Settings
    sources: int
    targets: int
    length: int


def subjects() -> dict[str, Subject]:
    """Return the training runs by name, those of a reproduction together."""
    of_stress = {system.folder: system.settings for system in stress.systems(0)}

    def family(task: str) -> dict[str, Settings]:
        plan = exposure_bias.PLANS[task]
        systems = exposure_bias.family(plan.start["cpu"], 0, steps_per_epoch=100, budget=plan.budget)
        return {key: system.settings for key, system in systems.items()}

    tags, translation = family("supertags"), family("translation")
    size = transformer_translation.SIZES["cpu"]
    own = size.training.with_changes(model="transformer", minimum_count=2, **size.shape)
    transformer = {key: one.settings for key, one in transformer_translation.family(own, size).items()}
    return {
        "stress, cross-entropy": Subject(of_stress["cross-entropy"], 40, 4, 6),
        "stress, relaxed beam": Subject(of_stress["global-from-ce"], 40, 4, 6),
        "stress, beam CRF": Subject(of_stress["beam-crf"], 40, 4, 6),
        "supertags, cross-entropy": Subject(tags["cross-entropy"], 5000, 317, 7),
        "supertags, sampling": Subject(tags["sampling-greedy"], 5000, 317, 7),
        "supertags, relaxed beam": Subject(tags["direct-mixed"], 5000, 317, 7),
        "LSTM translation, cross-entropy": Subject(translation["cross-entropy"], 2700, 2400, 9),
        "LSTM translation, relaxed beam": Subject(translation["direct-mixed"], 2700, 2400, 9),
        "Transformer, cross-entropy": Subject(transformer["cross-entropy"], 2700, 2400, 9),
        "Transformer, sampling, two-pass": Subject(transformer["sampling"], 2700, 2400, 9),
        "Transformer, relaxed beam": Subject(transformer["local"], 2700, 2400, 9),
    }


def examples_of(subject: Subject, count: int, seed: int) -> list[Example]:
    """Draw random examples that contain every token at least twice, so that vocabularies have their full size."""
    draw = torch.Generator().manual_seed(seed)
    shape = count, subject.length
    sources = torch.randint(subject.sources, shape, generator=draw).flatten().tolist()
    targets = torch.randint(subject.targets, shape, generator=draw).flatten().tolist()
    for tokens, size in ((sources, subject.sources), (targets, subject.targets)):
        tokens[: 2 * size] = [*range(size)] * 2
    step = subject.length
    return [
        Example(
            tuple(f"s{token}" for token in sources[at * step : (at + 1) * step]),
            tuple(f"t{token}" for token in targets[at * step : (at + 1) * step]),
        )
        for at in range(count)
    ]


KINDS = {
    "products": r"_?(add|b)*(mm|mv)(_|_activation)?|addr|dot|outer|einsum|_?linear(_pointwise)?|"
    r"matmul|.*conv.*|.*attention.*",
    "recurrent": r".*(rnn|lstm|gru).*",
    "normalisers": r"_*(log_?)?(softmax|sumexp)(_backward.*)?|(exp|log)(1p|m1|2)?_?|logaddexp2?",
    "choices": r"topk|sort|(arg|a)?(max|min)|kthvalue|multinomial|(max|min)imum",
    "moves": r"_?(index|gather|scatter|embedding|cat|copy|clone|fill|(new_)?(zeros?|ones|full|empty)|"
    r"where|chunk|stack|slice|select|"
    r"narrow|view|unsafe_view|reshape|expand|transpose|permute|t|(un)?squeeze|as_strided|to|contiguous|repeat|split|"
    r"flip|masked_fill|pad|resize|set|detach|unbind|alias)(_.*)?",
}
"""Kinds of operations of torch, with regular expressions of their whole names."""
REST = "other"


def kind_of(name: str) -> str:
    """Return the first kind that matches an operation of torch."""
    plain = name.rpartition("::")[2]
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, plain)), REST)


def profiled(subject: Subject, *, steps: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure CPU seconds per step without the profiler, in some training runs, and shares by kind with it, in one."""
    examples = examples_of(subject, max(subject.settings.batch_size * (steps + WARM_UP), 2 * subject.sources), seed)
    settings = subject.settings.with_changes(epochs=(steps + WARM_UP) * subject.settings.batch_size / len(examples))

    def trained(profile: Any) -> list[float]:
        run = new_run(examples, settings)
        marks: list[float] = []

        def on_progress(progress: Any) -> None:
            marks.append(time.process_time())
            if profile is not None and progress.step == WARM_UP:
                profile.start()

        with tempfile.TemporaryDirectory() as folder:
            train_stage(run, run.codec.encode(examples), settings, folder=Path(folder), on_progress=on_progress)
        return marks

    seconds = statistics.median(
        after - before
        for marks in (trained(None) for _ in range(rounds))
        for before, after in pairwise(marks[WARM_UP:])
    )
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    trained(profile)
    profile.stop()
    found = dict.fromkeys((*KINDS, REST), 0.0)
    operations: dict[str, float] = {}
    optimiser = 0.0
    for event in profile.key_averages():
        if event.key.startswith("Optimizer.step"):
            optimiser += event.cpu_time_total
        elif "::" in event.key and not event.key.startswith(("autograd::", "Optimizer")):
            found[kind_of(event.key)] += event.self_cpu_time_total
            operations[event.key] = event.self_cpu_time_total
    whole = seconds * 1e6 * steps
    largest = sorted(operations, key=lambda name: -operations[name])[:3]
    return {
        "milliseconds": 1000 * seconds,
        "shares": {name: value / whole for name, value in found.items()} | {"optimiser": optimiser / whole},
        "largest": {name.partition("::")[2]: operations[name] / whole for name in largest},
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Profile the training runs, one after another."""
    torch.set_num_threads(options.threads)
    sizes = {"steps": options.steps, "rounds": options.rounds, "seed": options.seed}
    rows = [
        {"training": name, **profiled(subject, **sizes)} for name, subject in subjects().items() if options.only in name
    ]
    return {"rows": rows, **signed("profile of training runs", options, data="random")}


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    kinds = (*KINDS, REST)
    heads = "".join(f"{name:>12}" for name in (*kinds, "Python", "optimiser"))
    lines = [f"{'':32}{'ms a step':>10}{heads}  largest operations"]
    for row in result["rows"]:
        shares = row["shares"]
        python = max(0.0, 1 - sum(shares[kind] for kind in kinds))
        numbers = "".join(
            f"{100 * value:11.0f}%" for value in (*(shares[kind] for kind in kinds), python, shares["optimiser"])
        )
        largest = ", ".join(f"{name} {100 * share:.0f}%" for name, share in row["largest"].items())
        lines.append(f"{row['training']:32}{row['milliseconds']:10.1f}{numbers}  {largest}")
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("training_profile", __doc__, rounds=1, seed="the data")
    parser.add_argument(
        "--steps", type=at_least(1), default=30, help="steps of each training run, after a few uncounted ones"
    )
    parser.add_argument("--only", default="", help="only training runs whose names contain this")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
