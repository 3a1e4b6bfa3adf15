"""How much longer does a training step take than a bare PyTorch loop, and through a search than with cross-entropy?

First, cross-entropy: ``fit``, with checkpoints, a log and bit-exact resumption, beside the dozen lines that one would
write by hand (fused AdamW, clipping, the same batches in the same order, the same losses at
the end). Then a step of a relaxed beam through a Hugging Face Marian, beside cross-entropy of the same model: its time
over k is that of a beam element. Scores of trained models differ widely, so those of the random Marian are scaled until
its softmax has the perplexity ``--perplexity`` along gold. Last, the encoder of taggers that read both ways:
forward and backward, over sources of a quarter of ``--length`` to all of it, beside ``nn.LSTM`` over a packed batch.

Times are CPU seconds of the process, of all steps but the first few; the systems take turns. A target is the aim,
reached or not.

    python -m benchmarks.training
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import MarianConfig, MarianMTModel

from benchmarks.command import Ratio, make_parser, run, signed
from benchmarks.timing import median_ratio, time_in_turn
from seqwise.data import EncodedExample, collate
from seqwise.data.batches import Batch, BatchSampler
from seqwise.hugging_face import step_model
from seqwise.models import Tagger, Transformer
from seqwise.models.lstm_steps import read_both_ways
from seqwise.objectives import cross_entropy_objective, relaxed_beam_objective
from seqwise.objectives.objective import Objective
from seqwise.training import fit
from seqwise.training.trainer import Progress

WARM_UP, RATE, CLIP, K, ALPHA = 5, 1e-3, 1.0, 3, 4.0
MOST, PER_ELEMENT = 1.1, 1.6
"""Targets: time of ``fit`` over that of a bare loop; a beam element in cross-entropies."""

MODELS: dict[str, tuple[int, int, Callable[[], nn.Module]]] = {  # source and target symbols
    "tagger": (
        8_000,
        400,
        lambda: Tagger(
            source_size=8_000, target_size=400, embedding_size=100, hidden_size=128, label_embedding_size=64,
            dropout=0.0,
        ),
    ),
    "Transformer": (
        4_000,
        4_000,
        lambda: Transformer(
            source_size=4_000, target_size=4_000, end=0, hidden_size=128, num_layers=2, num_heads=4,
            feedforward_size=512, dropout=0.0,
        ),
    ),
}  # fmt: skip


def examples_of(source_size: int, target_size: int, length: int, number: int, seed: int) -> list[EncodedExample]:
    """Draw random pairs of one length, whose outputs end with 0."""
    draw = torch.Generator().manual_seed(seed)
    sources = torch.randint(1, source_size, (number, length), generator=draw).tolist()
    targets = torch.randint(1, target_size, (number, length - 1), generator=draw).tolist()
    return [EncodedExample(tuple(x), (*y, 0)) for x, y in zip(sources, targets, strict=True)]


Loop = Callable[[Callable[[], nn.Module], Sequence[EncodedExample], argparse.Namespace], tuple[float, float]]
"""Function that trains a new model, and returns the seconds of all steps but the first few and the last loss."""


def by_fit(
    make: Callable[[], nn.Module], train: Sequence[EncodedExample], options: argparse.Namespace
) -> tuple[float, float]:
    """Train with this package."""
    torch.manual_seed(options.seed)
    times, losses = [], []

    def watch(progress: Progress) -> None:
        times.append(time.process_time())
        losses.append(progress.loss)

    with tempfile.TemporaryDirectory() as folder:
        fit(
            make(), cross_entropy_objective(), train, output=folder, steps=options.steps, learning_rate=RATE,
            decay="constant", seed=options.seed, batch_size=options.batch, clip=CLIP, save_every=options.steps,
            on_progress=watch,
        )  # fmt: skip
    return times[-1] - times[WARM_UP - 1], losses[-1]


def by_hand(
    make: Callable[[], nn.Module], train: Sequence[EncodedExample], options: argparse.Namespace
) -> tuple[float, float]:
    """Train by a bare loop."""
    torch.manual_seed(options.seed)
    model: Any = make().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    times, losses = [], []
    for places in islice(batches_of(train, options), options.steps):
        batch = collate([train[place] for place in places])
        logits_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        losses.append(loss.item())
        times.append(time.process_time())
    return times[-1] - times[WARM_UP - 1], losses[-1]


LOOPS: dict[str, Loop] = {"fit": by_fit, "bare": by_hand}


def batches_of(train: Sequence[EncodedExample], options: argparse.Namespace) -> Iterator[list[int]]:
    """Yield the batches of :func:`seqwise.training.fit`, epoch by epoch."""
    lengths = [(len(example.source_ids), len(example.target_ids)) for example in train]
    sampler = BatchSampler(lengths, batch_size=options.batch, seed=options.seed)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from sampler


def compare_loops(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time both loops on one model, in turn."""
    sources, targets, make = MODELS[name]
    train = examples_of(sources, targets, options.length, 8 * options.batch, options.seed)
    seconds: dict[str, list[float]] = {way: [] for way in LOOPS}
    losses: dict[str, float] = {}
    for number in range(options.rounds):
        for way in sorted(LOOPS, reverse=bool(number % 2)):
            taken, losses[way] = LOOPS[way](make, train, options)
            seconds[way].append(taken)
    if abs(losses["fit"] - losses["bare"]) > 1e-3 * losses["bare"]:
        raise SystemExit(f"{name}: {losses}: the loops do not train alike, so there is nothing to compare")
    tokens = (options.steps - WARM_UP) * options.batch * options.length
    return {
        "model": name,
        "tokens_a_second": {way: tokens / statistics.median(taken) for way, taken in seconds.items()},
        "ratio": median_ratio(seconds["fit"], seconds["bare"]),
        "seconds_by_round": seconds,
    }


def compare_objectives(options: argparse.Namespace) -> dict[str, Any]:
    """Time forward and backward of a Marian with each objective."""
    torch.manual_seed(options.seed)
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    layers = {"encoder_layers": options.layers, "decoder_layers": options.layers}
    config = MarianConfig(
        vocab_size=options.vocabulary, d_model=options.hidden, encoder_ffn_dim=4 * options.hidden,
        decoder_ffn_dim=4 * options.hidden, dropout=0.0, eos_token_id=0, pad_token_id=options.vocabulary - 1,
        decoder_start_token_id=options.vocabulary - 1, forced_eos_token_id=None, **heads, **layers,
    )  # fmt: skip
    model: Any = step_model(MarianMTModel(config).train())
    train = examples_of(options.vocabulary - 1, options.vocabulary - 1, options.length, options.batch, options.seed)
    batch, values = collate(train), {"alpha": ALPHA}
    set_perplexity(model, batch, options.perplexity)

    def step(objective: Objective) -> None:
        model.zero_grad(set_to_none=True)
        objective(model, batch, values).backward()

    systems = {"cross-entropy": cross_entropy_objective(), "relaxed beam": relaxed_beam_objective(k=K)}
    calls = {name: partial(step, objective) for name, objective in systems.items()}
    seconds = time_in_turn(calls, options.rounds, clock=time.process_time)
    ratio = median_ratio(seconds["relaxed beam"], seconds["cross-entropy"])
    medians = {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}
    return {"milliseconds": medians, "ratio": ratio, "per_element": ratio / K, "seconds_by_round": seconds}


def compare_readers(options: argparse.Namespace) -> dict[str, Any]:
    """Time forward and backward of a bidirectional LSTM over sources of unequal lengths."""
    torch.manual_seed(options.seed)
    lstm = nn.LSTM(100, 128, batch_first=True, bidirectional=True)
    inputs_BSE = torch.randn(options.batch, options.length, 100)
    lengths_B = torch.randint(options.length // 4, options.length + 1, (options.batch,))
    lengths_B[0] = options.length
    real_BS = torch.arange(options.length) < lengths_B[:, None]

    def packed() -> Tensor:
        batch = pack_padded_sequence(inputs_BSE, lengths_B, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(lstm(batch)[0], batch_first=True)[0]

    def step(read: Callable[[], Tensor]) -> Tensor:
        lstm.zero_grad(set_to_none=True)
        outputs_NX = read()[real_BS]
        outputs_NX.square().sum().backward()
        return outputs_NX.detach()

    readers = {"each direction": lambda: read_both_ways(lstm, inputs_BSE, lengths_B), "packed": packed}
    torch.testing.assert_close(*(step(read) for read in readers.values()))
    calls = {name: partial(step, read) for name, read in readers.items()}
    seconds = time_in_turn(calls, 10 * options.rounds, clock=time.process_time)
    medians = {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}
    ratio = median_ratio(seconds["packed"], seconds["each direction"])
    return {"milliseconds": medians, "ratio": ratio, "seconds_by_round": seconds}


def set_perplexity(model: Any, batch: Batch, wanted: float) -> None:
    """Scale the last layer of a Marian, by bisection, to a mean perplexity of its softmax along gold."""
    norm = model.model.model.decoder.layers[-1].final_layer_norm
    before = [leaf.detach().clone() for leaf in (norm.weight, norm.bias)]

    @torch.no_grad()
    def perplexity(factor: float) -> float:
        for leaf, value in zip((norm.weight, norm.bias), before, strict=True):
            leaf.copy_(factor * value)
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        log_probs_BTV = model.head(features_BTH).log_softmax(-1)
        return float((-(log_probs_BTV.exp() * log_probs_BTV).sum(-1)).mean().exp())

    low, high = 1.0, 10_000.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if perplexity(middle) > wanted else (low, middle)
    perplexity(low)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the loops, the objectives and the encoders."""
    torch.set_num_threads(options.threads)
    rows = [compare_loops(name, options) for name in MODELS]
    marian, readers = compare_objectives(options), compare_readers(options)
    return {"rows": rows, "marian": marian, "readers": readers, **signed("training", options, data="random")}


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return times over those of a bare loop, and a beam element in cross-entropies, for the summary."""
    return [
        *(Ratio(f"`fit`, {row['model']}: time over a bare loop", row["ratio"], most=MOST) for row in result["rows"]),
        Ratio(
            "relaxed beam, Marian, V = 8,000: element over cross-entropy",
            result["marian"]["per_element"],
            most=PER_ELEMENT,
        ),
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [f"{'cross-entropy, tokens/s':24}{'fit':>9}{'bare loop':>11}   fit / bare, seconds (target {MOST:g})"]
    for row in result["rows"]:
        speeds = row["tokens_a_second"]
        lines.append(f"{row['model']:24}{speeds['fit']:9,.0f}{speeds['bare']:11,.0f}{row['ratio']:14.2f}")
    marian = result["marian"]
    lines += [f"Marian, {name + ', ms a step':28}{found:10.0f}" for name, found in marian["milliseconds"].items()]
    lines.append(f"a beam element: {marian['per_element']:.2f} cross-entropies (target {PER_ELEMENT:g})")
    readers = result["readers"]
    lines += [f"bidirectional LSTM, {name + ', ms':28}{found:10.1f}" for name, found in readers["milliseconds"].items()]
    lines.append(f"each direction by itself: {readers['ratio']:.2f} times as fast as packed")
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("training", __doc__, rounds=5, seed="models and batches")
    parser.add_argument("--steps", type=int, default=60, help="steps of each training run")
    parser.add_argument("--batch", type=int, default=16, help="examples of a batch")
    parser.add_argument("--length", type=int, default=20, help="tokens of a source, and of an output")
    parser.add_argument("--layers", type=int, default=3, help="layers of the Marian's encoder, and of its decoder")
    parser.add_argument("--hidden", type=int, default=256, help="size of the Marian's layers")
    parser.add_argument("--perplexity", type=float, default=10.0, help="perplexity of the Marian's softmax")
    parser.add_argument("--vocabulary", type=int, default=8_000, help="vocabulary size of the Marian")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
