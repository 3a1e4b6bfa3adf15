"""Figure 6.1 of the thesis, panel of phonemes: an MLM of most of the CMU dictionary, projected with little data.

Data, model, and the exact NLL of a test set are those of `reproductions.goyal_2021.phonemes`. Of its sequences, 5,000
are kept for the methods, and the MLM is trained on the others; the thesis trains it on 65,000 of 75,000 entries. For
each number in the figure, log Z is summed exactly over all sequences of each length. This takes 7 CPU minutes for 39^6
sequences and ten seconds for 39^5, so sequences have at most five phonemes here, and six in the thesis.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from reproductions import Setup
from reproductions.cells import fingerprint_of, measure_by_seed, read_or_make
from reproductions.goyal_2021 import phonemes
from reproductions.goyal_2021.enumerable import phoneme_sequences
from reproductions.goyal_2021.figure_6_1 import METHODS, Curves, Run, make_outcome, start
from reproductions.goyal_2021.large_spaces import masked_logits, true_conditionals
from reproductions.goyal_2021.phonemes import Loss, Setting, Split
from reproductions.outcome import Outcome
from reproductions.workers import Report
from seqwise.data.readers import Example
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.models.masked import MaskedLSTM

SIZES = (100, 1_000, 5_000)
"""Numbers of training sequences of the methods; the MLM is trained on none of them."""
SETTING = Setting(max_length=5)
NUM_SEEDS = 3


def projection(teacher: MaskedLSTM, *, pseudolikelihood_weight: float) -> Loss:
    """Return the loss ``T KL(p_mlm(. | y\\t) || p(. | y\\t; theta))`` of each sequence at a position, as in Figure 6.1.

    With a weight, the pseudolikelihood of y is added.
    """

    def loss(model: MaskedLSTM, tokens_BT: Tensor, place: int) -> Tensor:
        length = tokens_BT.shape[1]
        with torch.no_grad():
            teacher_BV = masked_logits(teacher, tokens_BT)[:, place].log_softmax(-1)
        log_probs_BV = true_conditionals(model, tokens_BT, place)
        divergence_B = length * (teacher_BV.exp() * (teacher_BV - log_probs_BV)).sum(-1)
        if not pseudolikelihood_weight:
            return divergence_B
        return divergence_B - pseudolikelihood_weight * length * log_probs_BV.gather(1, tokens_BT[:, place, None])[:, 0]

    return loss


def split(sequences: Sequence[tuple[str, ...]], most: int, *, seed: int) -> tuple[Split, list[list[int]]]:
    """Number the sequences, keep ``most`` of them for the methods, and split the others for the MLM."""
    order = phonemes.numbered(sequences)
    random.Random(seed).shuffle(order)
    return phonemes.split_sequences(order[most:], seed=seed), order[:most]


def small_data(kept: Sequence[list[int]], size: int, data: Split) -> Split:
    """Take ``size`` of the kept sequences, a fifth of them for development; the test data are unchanged."""
    dev = size // 5
    return Split(phonemes.by_length(kept[dev:size]), phonemes.by_length(kept[:dev]), data.test)


def epochs_of(size: int, setting: Setting) -> int:
    """Return the number of epochs, which is larger for few sequences, because these make few steps per epoch."""
    return max(setting.epochs, min(6 * setting.epochs, 20_000 // size))


def measure(
    sequences: Sequence[tuple[str, ...]],
    sizes: Sequence[int],
    folder: Path,
    *,
    seed: int,
    setting: Setting,
    report: Report,
) -> Run:
    """Train an MLM, and each method on each amount of other data; return NLL on test data, with a cell per number."""
    data, kept = split(sequences, max(sizes), seed=seed)
    examples = sha256_of_examples(Example(sequence, ()) for sequence in sequences)
    mlm: MaskedLSTM | None = None

    def cell(name: str, size: int) -> dict[str, float]:
        path = folder / f"{name.replace(' ', '-')}-{size}.json"
        fingerprint = fingerprint_of(examples, name, str(size), str(max(sizes)), str(seed), json.dumps(asdict(setting)))

        def make() -> dict[str, dict[str, float]]:
            nonlocal mlm
            if mlm is None:  # not stored, because training takes seconds
                mlm = phonemes.new_model(len({s for each in sequences for s in each}), setting, seed=seed)
                phonemes.fit(mlm, phonemes.OBJECTIVES["MLM"], data, setting, seed=seed, report=report)
            return {"nll": _likelihoods(name, size, mlm, data, kept, setting, seed=seed, report=report)}

        return dict(read_or_make(path, fingerprint, make)["nll"])

    read = cell("MLM", 0)
    return read, {(method, size): cell(method, size)["raw"] for size in sizes for method in METHODS}


def _likelihoods(
    name: str,
    size: int,
    mlm: MaskedLSTM,
    data: Split,
    kept: Sequence[list[int]],
    setting: Setting,
    *,
    seed: int,
    report: Report,
) -> dict[str, float]:
    """Return NLL by E_raw and by E_local, with the shares of lengths in the MLM's data."""
    model = mlm
    if name != "MLM":
        new = partial(phonemes.new_model, mlm.vocab_size, setting, seed=seed)
        model, loss = start(name, mlm, new, phonemes.OBJECTIVES["PLL"], partial(projection, mlm))
        epochs = replace(setting, epochs=epochs_of(size, setting))
        phonemes.fit(model, loss, small_data(kept, size, data), epochs, seed=seed, report=report)
    lengths = sorted(data.train.keys() | data.test.keys())
    partitions = phonemes.log_partitions(model, lengths, setting, {}, save=report)
    return {
        reading: phonemes.likelihood_losses(model, data, partitions, place)[0]
        for place, reading in enumerate(("raw", "local"))
    }


def reproduce(setup: Setup, sizes: Sequence[int] = SIZES, setting: Setting = SETTING) -> Outcome | None:
    """Train 4 methods on some amounts of data with each of the first three seeds; None without a CMU dictionary.

    Source: Goyal's thesis (2021), Figure 6.1, panel of phonemes.
    """
    lexicon = phonemes.find_lexicon()
    if lexicon is None:
        return None
    sequences, setup = phoneme_sequences(lexicon, max_length=setting.max_length), setup.with_seeds(NUM_SEEDS)

    def measured(name: str, seed: int, report: Report) -> Run:
        folder = setup.folder / "figure-6.1-phonemes" / f"seed-{seed}"
        return measure(sequences, sizes, folder, seed=seed, setting=setting, report=report)

    name = f"phonemes, {setting.max_length} at most"
    runs = measure_by_seed([name], measured, setup)[name]
    (data, _) = split(sequences, max(sizes), seed=setup.seed)
    curves = Curves.of(name, runs, entropy=None, mlm_size=sum(map(len, data.train.values())))
    examples = sha256_of_examples(Example(sequence, ()) for sequence in sequences)
    signature = sign(f"figure-6.1: {name}", seeds=setup.seeds, data=examples)
    title = f"Figure 6.1, phonemes: NLL by number of sequences, of {len(sequences):,} in all"
    return make_outcome("figure-6.1-phonemes", title, [(curves, signature)], setup.folder)
