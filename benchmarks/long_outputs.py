"""How much memory and time does gradient checkpointing of a search take, compared with keeping every step?

The loss is the direct loss of a relaxed beam through the key-value cache of a GPT-2 with random weights, for an output
of T tokens. With gradient checkpointing, the backward pass recomputes the steps in segments of sqrt(T / 2).
The gradients are the same; on a GPU, whose products are in bfloat16, up to rounding.

- saved: bytes that the graph keeps between the passes, parameters aside.
- peak: the largest memory that the allocator holds during a step, beyond what it held before.

Times are CPU seconds of the process, or wall-clock seconds on a GPU: the minimum over rounds, in which both take turns.
In a small model, Python and the bookkeeping of checkpoints take more time than products. ``--long`` adds a T that is
timed once, and ``--gpt2`` a model of the size of GPT-2, timed once for each of its lengths.

    python -m benchmarks.long_outputs
    python -m benchmarks.long_outputs --steps 8 16 --rounds 1
    python -m benchmarks.long_outputs --gpt2 128         # 10 GB of memory
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.command import Ratio, add_device, at_least, make_parser, run, signed
from benchmarks.relaxed_beam import System, saved_bytes
from benchmarks.timing import clock_of, peak_bytes
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import step_model
from seqwise.objectives import relaxed_beam_objective

MOST_SAVED = {128: 0.25, 1024: 0.125}
"""Targets for memory from a length T on, as ratios to that without gradient checkpointing."""

MOST_TIME = 1.4
"""Target for time, as the same ratio."""


@dataclass(frozen=True)
class Size:
    """Sizes of a model and of its beam."""

    hidden: int = 768
    layers: int = 12
    vocabulary: int = 50257
    k: int = 5


def systems_of(steps: int, size: Size, options: argparse.Namespace) -> list[System]:
    """Return the systems without and with gradient checkpointing."""
    torch.manual_seed(options.seed)
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=max(4, size.hidden // 64),
        n_positions=steps + 8,
        bos_token_id=0,
        eos_token_id=1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model: Any = step_model(GPT2LMHeadModel(config).train().to(options.device))
    draw = torch.Generator().manual_seed(options.seed)
    prompt, target = (tuple(torch.randint(2, size.vocabulary, (n,), generator=draw).tolist()) for n in (4, steps - 1))
    batch = collate([EncodedExample(prompt, target)]).to(options.device)
    objective = relaxed_beam_objective(k=size.k)

    def system(name: str, *, checkpointing: bool) -> System:
        def loss() -> torch.Tensor:
            model.gradient_checkpointing = checkpointing
            return objective(model, batch, {"alpha": 4.0})

        return System(name, loss, model, options.device)

    return [system("kept", checkpointing=False), system("recomputed", checkpointing=True)]


def seconds_of(systems: Sequence[System], rounds: int) -> list[float]:
    """Return the minimum seconds of a step of each system, in turn."""
    minima = [float("inf")] * len(systems)
    for _ in range(rounds):
        for index, system in enumerate(systems):
            clock = clock_of(system.device, time.process_time)
            start = clock()
            system.step()
            minima[index] = min(minima[index], clock() - start)
    return minima


def gradients_of(system: System) -> torch.Tensor:
    """Return all gradients of one step."""
    system.step()
    return torch.cat([weight.grad.flatten() for weight in system.model.parameters() if weight.grad is not None])


def measure_length(steps: int, size: Size, rounds: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure memory, time and gradients for one length."""
    systems = systems_of(steps, size, options)
    kept, recomputed = (gradients_of(system) for system in systems)
    seconds = seconds_of(systems, rounds)
    return {
        "steps": steps,
        "difference": ((kept - recomputed).abs().max() / kept.abs().max()).item(),
        "saved": [saved_bytes(system) for system in systems],
        "peak": [peak_bytes(system.step, system.device) for system in systems],
        "seconds": seconds,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all lengths of all models."""
    torch.set_num_threads(options.threads)
    size = Size(options.hidden, options.layers, options.vocabulary, options.k)
    rounds = [*((steps, options.rounds) for steps in options.steps), *((steps, 1) for steps in options.long)]
    models = [(size, rounds), (Size(k=options.k), [(steps, 1) for steps in options.gpt2])]
    measured = [
        {"size": asdict(size), "rows": [measure_length(steps, size, count, options) for steps, count in lengths]}
        for size, lengths in models
        if lengths
    ]
    return {"models": measured, **signed("gradient checkpointing of a relaxed beam, GPT-2", options, data="random")}


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of memory and time of each model at the lengths that have a target, for the summary."""
    found = []
    for model in result["models"]:
        for row in model["rows"]:
            targets = [target for length, target in MOST_SAVED.items() if row["steps"] >= length]
            if not targets:
                continue
            kept, recomputed = row["saved"]
            what = f"gradient checkpointing, {_layers(model)}, T = {row['steps']}"
            found += [
                Ratio(f"{what}: memory", recomputed / kept, most=targets[-1]),
                Ratio(f"{what}: time", row["seconds"][1] / row["seconds"][0], most=MOST_TIME),
            ]
    return found


def _layers(model: dict[str, Any]) -> str:
    return "{layers} layers of {hidden}".format(**model["size"])


def table(result: dict[str, Any]) -> str:
    """Format the result as a table for each model."""
    lines = []
    for model in result["models"]:
        lines += [
            "GPT-2 of {}, V = {vocabulary}, k = {k}; one output of T tokens".format(_layers(model), **model["size"]),
            f"{'T':>5}  {'saved MB':>8}  share  {'peak MB':>8}  share  {'seconds':>7}  ratio  gradients differ by",
        ]
        for row in model["rows"]:
            (saved, saved_again), (peak, peak_again) = row["saved"], row["peak"]
            seconds, seconds_again = row["seconds"]
            lines.append(
                f"{row['steps']:5}  {saved / 1e6:8.1f}  {saved_again / saved:5.2f}  {peak / 1e6:8.1f}  "
                f"{peak_again / peak:5.2f}  {seconds:7.2f}  {seconds_again / seconds:5.2f}  {row['difference']:.0e}"
            )
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("long_outputs", __doc__, rounds=3, seed="the model and the output")
    parser.add_argument("--steps", type=at_least(1), nargs="*", default=[8, 16, 32, 64, 128], help="lengths T")
    parser.add_argument("--long", type=at_least(1), nargs="*", default=[], help="further lengths, timed once")
    parser.add_argument(
        "--gpt2", type=at_least(1), nargs="*", default=[], help="lengths for a model of the size of GPT-2"
    )
    parser.add_argument("--hidden", type=at_least(1), default=64, help="hidden size of the model")
    parser.add_argument("--layers", type=at_least(1), default=2, help="number of layers")
    parser.add_argument("--vocabulary", type=at_least(1), default=100, help="V, vocabulary size")
    parser.add_argument("--k", type=at_least(1), default=5, help="slots of the beam")
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
