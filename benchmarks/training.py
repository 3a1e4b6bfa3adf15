"""How much longer does a training step take than a bare PyTorch loop, and through a search than with cross-entropy?

First, cross-entropy: ``fit``, with checkpoints, a log and bit-exact resumption, beside the dozen lines that one would
write by hand (fused AdamW, clipping, the same batches in the same order, the same losses at the end).

Then ``fit`` beside JoeyNMT, which trains the same Transformer by its ``TrainManager``, from text files of the same
examples, in its own process. Sizes, initialisation, loss, clipping and learning rate are the same; there is no dropout,
no label smoothing and no validation, and both save a checkpoint at the end. What differs in JoeyNMT:

- Its head has no bias, and its first input is a row of its embeddings: together 0.2% of the weights.
- Its AdamW is not fused.
- It draws its own weights and its own order of batches.
- It splits the texts into words again in every epoch, and an end token replaces the last word of a source.
- It counts correct tokens in every step, and logs every hundredth step; ``fit`` logs every step.

Their losses in the first step and in the last may differ by at most 5% of the first. JoeyNMT is left out if it is not
installed.

Then a step of a relaxed beam through a Hugging Face Marian, beside cross-entropy of the same model: its time
over k is that of a beam element. Scores of trained models differ widely, so those of the random Marian are scaled until
its softmax has the perplexity ``--perplexity`` along gold. Last, the encoder of taggers that read both ways:
forward and backward, over sources of a quarter of ``--length`` to all of it, beside ``nn.LSTM`` over a packed batch.

Times are CPU seconds of the process, of all steps but the first few; the systems take turns. A target is the aim,
reached or not.

    python -m benchmarks.training
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import MarianConfig, MarianMTModel

from benchmarks.command import Ratio, at_least, make_parser, run, signed
from benchmarks.processes import own_process
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
MOST, PER_ELEMENT, LEAST = 1.1, 1.6, 1.2
"""Targets: time of ``fit`` over that of a bare loop; a beam element in cross-entropies; speed over JoeyNMT."""

PEER = "joeynmt"
SYMBOLS = 4_000
SIZES = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "feedforward_size": 512}
"""Source and target symbols, and sizes, of the Transformer."""

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
        SYMBOLS,
        SYMBOLS,
        lambda: Transformer(source_size=SYMBOLS, target_size=SYMBOLS, end=0, **SIZES, dropout=0.0),
    ),
}  # fmt: skip


def examples_of(source_size: int, target_size: int, length: int, number: int, seed: int) -> list[EncodedExample]:
    """Draw random pairs of one length, whose outputs end with 0."""
    draw = torch.Generator().manual_seed(seed)
    sources = torch.randint(1, source_size, (number, length), generator=draw).tolist()
    targets = torch.randint(1, target_size, (number, length - 1), generator=draw).tolist()
    return [EncodedExample(tuple(x), (*y, 0)) for x, y in zip(sources, targets, strict=True)]


class Run(NamedTuple):
    """CPU seconds of all steps of a training run but the first few, losses by step, and number of weights."""

    seconds: float
    losses: list[float]
    weights: int


Loop = Callable[[Callable[[], nn.Module], Sequence[EncodedExample], argparse.Namespace], Run]
"""Function that trains a new model."""


def by_fit(make: Callable[[], nn.Module], train: Sequence[EncodedExample], options: argparse.Namespace) -> Run:
    """Train with this package."""
    torch.manual_seed(options.seed)
    model, times, losses = make(), [], []

    def watch(progress: Progress) -> None:
        times.append(time.process_time())
        losses.append(progress.loss)

    with tempfile.TemporaryDirectory() as folder:
        fit(
            model, cross_entropy_objective(), train, output=folder, steps=options.steps, learning_rate=RATE,
            decay="constant", seed=options.seed, batch_size=options.batch, clip=CLIP, save_every=options.steps,
            on_progress=watch,
        )  # fmt: skip
    return Run(times[-1] - times[WARM_UP - 1], losses, number_of_weights(model))


def by_hand(make: Callable[[], nn.Module], train: Sequence[EncodedExample], options: argparse.Namespace) -> Run:
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
    return Run(times[-1] - times[WARM_UP - 1], losses, number_of_weights(model))


def number_of_weights(model: nn.Module) -> int:
    """Count the weights of a model."""
    return sum(weights.numel() for weights in model.parameters())


LOOPS: dict[str, Loop] = {"fit": by_fit, "bare": by_hand}


def batches_of(train: Sequence[EncodedExample], options: argparse.Namespace) -> Iterator[list[int]]:
    """Yield the batches of :func:`seqwise.training.fit`, epoch by epoch."""
    lengths = [(len(example.source_ids), len(example.target_ids)) for example in train]
    sampler = BatchSampler(lengths, batch_size=options.batch, seed=options.seed)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from sampler


def train_in_turn(trainers: dict[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Return the runs of every trainer in every round; the order alternates."""
    runs: dict[str, list[Run]] = {name: [] for name in trainers}
    for number in range(rounds):
        for name in sorted(trainers, reverse=bool(number % 2)):
            runs[name].append(trainers[name]())
    return runs


def compare_loops(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time both loops on one model, in turn."""
    sources, targets, make = MODELS[name]
    train = examples_of(sources, targets, options.length, 8 * options.batch, options.seed)
    trainers = {way: partial(loop, make, train, options) for way, loop in LOOPS.items()}
    runs = train_in_turn(trainers, options.rounds)
    losses = {way: found[-1].losses[-1] for way, found in runs.items()}
    if abs(losses["fit"] - losses["bare"]) > 1e-3 * losses["bare"]:
        raise SystemExit(f"{name}: {losses}: the loops do not train alike, so there is nothing to compare")
    seconds = seconds_of(runs)
    return {
        "model": name,
        "tokens_a_second": tokens_a_second(seconds, options),
        "ratio": median_ratio(seconds["fit"], seconds["bare"]),
        "seconds_by_round": seconds,
    }


def seconds_of(runs: dict[str, list[Run]]) -> dict[str, list[float]]:
    """Return the CPU seconds by round."""
    return {name: [run.seconds for run in found] for name, found in runs.items()}


def tokens_a_second(seconds: dict[str, list[float]], options: argparse.Namespace) -> dict[str, float]:
    """Return the gold tokens per CPU second."""
    tokens = (options.steps - WARM_UP) * options.batch * options.length
    return {name: tokens / statistics.median(taken) for name, taken in seconds.items()}


def by_joeynmt(options: argparse.Namespace) -> Callable[[Sequence[EncodedExample]], Run]:
    """Make a function that trains the Transformer with JoeyNMT."""
    from joeynmt.config import parse_global_args, set_validation_args
    from joeynmt.prediction import prepare
    from joeynmt.training import TrainManager

    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore", module="joeynmt")  # of deprecated arguments
    torch.set_num_threads(options.threads)

    def train(examples: Sequence[EncodedExample]) -> Run:
        torch.manual_seed(options.seed)
        times, losses = [], []
        with tempfile.TemporaryDirectory() as folder:
            write_texts(examples, Path(folder))
            settings = parse_global_args(settings_of_joeynmt(Path(folder), options))
            model, data, development, _ = prepare(settings, rank=0, mode="train")
            manager = TrainManager(
                rank=0, model=model, model_dir=settings.model_dir, device=settings.device, autocast=settings.autocast,
                seed=settings.seed, train_args=settings.train, dev_args=set_validation_args(settings.test),
            )  # fmt: skip
            model.register_forward_hook(lambda model, inputs, outputs: losses.append(outputs[0].item()))
            manager.optimizer.register_step_post_hook(lambda *_: times.append(time.process_time()))
            manager.train_and_validate(data, development)
        losses = [loss / (options.batch * options.length) for loss in losses]  # they are sums over tokens
        return Run(times[-1] - times[WARM_UP - 1], losses, number_of_weights(model))

    return train


def write_texts(examples: Sequence[EncodedExample], folder: Path) -> None:
    """Write ids as words, without the last of each text: JoeyNMT appends an end token to both."""
    for name, texts in (("x", [x.source_ids for x in examples]), ("y", [x.target_ids for x in examples])):
        lines = [" ".join(str(word) for word in text[:-1]) for text in texts]
        (folder / f"train.{name}").write_text("\n".join(lines) + "\n", "utf-8")
    # It has four special tokens of its own; 1, 2 and 3 become unknown words.
    (folder / "words").write_text("\n".join(str(word) for word in range(4, SYMBOLS)) + "\n", "utf-8")


def settings_of_joeynmt(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings with which JoeyNMT trains the Transformer as :func:`by_fit` does."""
    size = SIZES["hidden_size"]
    part = {
        "type": "transformer", "num_layers": SIZES["num_layers"], "num_heads": SIZES["num_heads"], "hidden_size": size,
        "ff_size": SIZES["feedforward_size"], "dropout": 0.0, "layer_norm": "pre",
        "embeddings": {"embedding_dim": size, "scale": True, "dropout": 0.0},
    }  # fmt: skip
    texts = {"level": "word", "lowercase": False, "voc_file": str(folder / "words")}
    train = str(folder / "train")
    return {
        "name": "benchmark", "model_dir": str(folder), "use_cuda": False, "random_seed": options.seed,
        "data": {
            "train": train, "dev": train, "dataset_type": "plain",
            "src": {"lang": "x", **texts}, "trg": {"lang": "y", **texts},
        },
        "model": {
            "encoder": part, "decoder": part, "initializer": "xavier_uniform", "bias_initializer": "zeros",
            "embed_initializer": "normal", "embed_init_weight": size**-0.5,
        },
        "training": {
            "optimizer": "adamw", "learning_rate": RATE, "weight_decay": 0.0, "clip_grad_norm": CLIP,
            "normalization": "tokens", "label_smoothing": 0.0, "batch_size": options.batch, "batch_type": "sentence",
            "scheduling": "exponential", "decrease_factor": 1.0,  # constant
            "updates": options.steps, "epochs": options.steps, "validation_freq": 100 * options.steps,
        },
        "testing": {},
    }  # fmt: skip


def compare_peer(options: argparse.Namespace) -> dict[str, Any] | None:
    """Time ``fit`` and JoeyNMT on the Transformer, in turn; None if it is not installed."""
    sources, targets, make = MODELS["Transformer"]
    train = examples_of(sources, targets, options.length, 8 * options.batch, options.seed)
    with own_process(by_joeynmt, options) as train_there:
        if train_there is None:
            return None
        trainers = {"fit": partial(by_fit, make, train, options), PEER: partial(train_there, train)}
        runs = train_in_turn(trainers, options.rounds)
    seconds = seconds_of(runs)
    weights = {name: found[-1].weights for name, found in runs.items()}
    losses = {name: [found[-1].losses[0], found[-1].losses[-1]] for name, found in runs.items()}
    if abs(weights["fit"] - weights[PEER]) > 0.01 * weights["fit"]:
        raise SystemExit(f"{weights}: the models have different numbers of weights, so there is nothing to compare")
    if any(abs(a - b) > 0.05 * losses["fit"][0] for a, b in zip(losses["fit"], losses[PEER], strict=True)):
        raise SystemExit(f"{losses}: the systems do not train alike, so there is nothing to compare")
    return {
        "peer": f"{PEER} {metadata.version(PEER)}",
        "tokens_a_second": tokens_a_second(seconds, options),
        "ratio": median_ratio(seconds[PEER], seconds["fit"]),
        "weights": weights,
        "losses": losses,
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
    """Measure the loops, JoeyNMT, the objectives and the encoders."""
    torch.set_num_threads(options.threads)
    rows = [compare_loops(name, options) for name in MODELS]
    joeynmt, marian, readers = compare_peer(options), compare_objectives(options), compare_readers(options)
    return {
        "rows": rows,
        "joeynmt": joeynmt,
        "marian": marian,
        "readers": readers,
        **signed("training", options, data="random"),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return times over a bare loop, speed over JoeyNMT, and a beam element in cross-entropies, for the summary."""
    joeynmt = result["joeynmt"]
    label = "`fit`, Transformer: tokens a second over JoeyNMT"
    return [
        *(Ratio(f"`fit`, {row['model']}: time over a bare loop", row["ratio"], most=MOST) for row in result["rows"]),
        *([Ratio(label, joeynmt["ratio"], least=LEAST)] if joeynmt else []),
        Ratio(
            "relaxed beam, Marian, V = 8,000: a slot over cross-entropy",
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
    if joeynmt := result["joeynmt"]:
        speeds, weights, losses = joeynmt["tokens_a_second"], joeynmt["weights"], joeynmt["losses"]
        lines += [
            f"Transformer of {joeynmt['peer']}: {speeds[PEER]:,.0f} tokens/s, and fit in turn with it"
            f" {speeds['fit']:,.0f}: {joeynmt['ratio']:.2f} times as many (target {LEAST:g})",
            f"  weights {weights[PEER]:,} and {weights['fit']:,}; "
            f"loss from {losses[PEER][0]:.2f} to {losses[PEER][1]:.2f} and "
            f"from {losses['fit'][0]:.2f} to {losses['fit'][1]:.2f}",
        ]
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
    parser.add_argument("--steps", type=at_least(1), default=60, help="steps of each training run")
    parser.add_argument("--batch", type=at_least(1), default=16, help="examples of a batch")
    parser.add_argument("--length", type=at_least(1), default=20, help="tokens of a source, and of an output")
    parser.add_argument(
        "--layers", type=at_least(1), default=3, help="layers of the Marian's encoder, and of its decoder"
    )
    parser.add_argument("--hidden", type=at_least(1), default=256, help="size of the Marian's layers")
    parser.add_argument("--perplexity", type=float, default=10.0, help="perplexity of the Marian's softmax")
    parser.add_argument("--vocabulary", type=at_least(1), default=8_000, help="vocabulary size of the Marian")
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
