"""How far do estimates of an any-order model's bound scatter? Their variance over that of plain Monte Carlo.

`any_order_bound` spreads the numbers of masks over strata and draws masked positions without replacement. LLaDA draws
the number of masks and the set of every pass independently. Here both read the same texts with the same models in
equally many passes. The texts are so short that all 2^T masks can be listed, so the bound and the variance of the
plain estimate are exact.

Shapes: B texts, T positions, M = 2^T masks, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from reproductions import Setup
from reproductions.beyond.stress import cmu_entries, cmu_version
from reproductions.cells import measure_by_seed
from reproductions.comparison import judge_by_seed
from reproductions.goyal_2021.energy_training import new_model
from reproductions.goyal_2021.enumerable import phoneme_sequences
from reproductions.goyal_2021.phonemes import numbered, split_sequences
from reproductions.outcome import Outcome
from reproductions.report import Claim, Table
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.data.readers import Example
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import any_order_bound

LENGTH = 10  # phonemes
NUM_TEXTS, ESTIMATES = 20, 500
"""Number of test words, and of estimates of each for a number of passes."""
PASSES = (2, 4, 8, 20, 40, 80)
CLAIMED = (8, 2 * LENGTH)  # passes; the scoring guide recommends two for each token
STEPS, BATCH = 3_000, 64
UNTRAINED, TRAINED = "random weights", "trained"
SHARPNESS = 3.0  # factor of the random weights, whose conditionals would be nearly uniform otherwise
QUARTER = 0.25
VARIANCE, BIAS = "variance over that of plain Monte Carlo", "mean error in standard errors"


@dataclass
class Listed:
    """Masked model of one text: scores that were computed for all masks."""

    vocab_size: int
    mask_id: int
    logits_MTV: Tensor  # of mask ``sum_t 2^t [t is masked]``

    def masked_logits(self, tokens_BT: Tensor, masked_BT: Tensor, context: Any = None) -> Tensor:
        """Look up the scores of masked positions."""
        rows_K, places_K = masked_BT.nonzero(as_tuple=True)
        masks_B = masked_BT.long() @ (2 ** torch.arange(masked_BT.shape[1]))
        return self.logits_MTV[masks_B[rows_K], places_K]


def every_mask(length: int) -> Tensor:
    """Return all masks in the order of their numbers, (M, T).

    Example:
        >>> every_mask(2).int().tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    return (torch.arange(2**length)[:, None] >> torch.arange(length)) % 2 == 1


@torch.no_grad()
def list_masks(model: MaskedModel, tokens_T: Tensor) -> Listed:
    """Score every mask of a text."""
    masked_MT = every_mask(len(tokens_T))
    logits_MTV = torch.zeros(*masked_MT.shape, model.vocab_size, dtype=torch.float64)
    # The empty mask has no scores.
    tokens_MT = tokens_T.expand(len(masked_MT) - 1, -1)
    logits_MTV[masked_MT] = model.masked_logits(tokens_MT, masked_MT[1:]).double()
    return Listed(model.vocab_size, model.mask_id, logits_MTV)


def exact_moments(listed: Listed, tokens_T: Tensor) -> tuple[float, float]:
    """Compute the bound, and the variance of one pass of plain Monte Carlo, from all masks.

    A pass draws the number of masks l uniformly from 1 .. T, then a set of l positions, and returns ``T / l`` times the
    sum of their log-probabilities.
    """
    length = len(tokens_T)
    masked_MT = every_mask(length)[1:]
    log_probs_MT = listed.logits_MTV[1:].log_softmax(-1)[:, torch.arange(length), tokens_T]
    count_M = masked_MT.sum(1)
    value_M = (log_probs_MT * masked_MT).sum(1) * length / count_M
    prob_M = torch.tensor([1 / (length * math.comb(length, count)) for count in count_M.tolist()], dtype=torch.float64)
    mean = prob_M @ value_M
    return float(mean), float(prob_M @ (value_M - mean) ** 2)


def words() -> list[list[int]]:
    """Return the pronunciations of ten phonemes, without stress, as numbers."""
    return numbered([word for word in phoneme_sequences(cmu_entries(), max_length=LENGTH) if len(word) == LENGTH])


def train(model: Any, train_BT: Tensor, *, seed: int, report: Report) -> None:
    """Train a masked model in place to fill a uniformly random number of masks: plain Monte Carlo of the bound."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    generator = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        tokens_BT = train_BT[torch.randint(len(train_BT), (BATCH,), generator=generator)]
        count_B = torch.randint(1, LENGTH + 1, (BATCH,), generator=generator)
        ranks_BT = torch.rand(BATCH, LENGTH, generator=generator).argsort(1).argsort(1)
        masked_BT = ranks_BT < count_B[:, None]
        rows_K, places_K = masked_BT.nonzero(as_tuple=True)
        log_probs_KV = model.masked_logits(tokens_BT, masked_BT).log_softmax(-1)
        log_probs_K = log_probs_KV.gather(1, tokens_BT[rows_K, places_K, None]).squeeze(1)
        loss = -(log_probs_K / count_B[rows_K]).sum() / BATCH  # nats a phoneme
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            report(step, STEPS, f"loss {loss.item():.3f}")


def measure(sequences: Sequence[list[int]], name: str, seed: int, report: Report) -> dict[tuple[int, str], float]:
    """Measure the estimates of one model by number of passes: their variance, and their mean error."""
    data = split_sequences(sequences, seed=seed)
    vocab_size = 1 + max(map(max, sequences))
    model = new_model(vocab_size, seed=seed, embedding_size=32, hidden_size=64, feedforward_size=64)
    if name == TRAINED:
        train(model, data.train[LENGTH], seed=seed, report=report)
    else:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(SHARPNESS)
    texts = data.test[LENGTH][:NUM_TEXTS]
    listed = [list_masks(model.eval(), tokens_T) for tokens_T in texts]
    moments = [exact_moments(each, tokens_T) for each, tokens_T in zip(listed, texts, strict=True)]
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for place, num_passes in enumerate(PASSES):
        report(place, len(PASSES), f"{num_passes} passes")
        estimates_BE = torch.tensor(
            [
                [any_order_bound(each, tokens_T, num_passes=num_passes, generator=generator) for _ in range(ESTIMATES)]
                for each, tokens_T in zip(listed, texts, strict=True)
            ],
            dtype=torch.float64,
        )
        exact_B, plain_B = torch.tensor(moments, dtype=torch.float64).T
        found[num_passes, VARIANCE] = float(estimates_BE.var(1).mean() / (plain_B / num_passes).mean())
        standard_error = math.sqrt(estimates_BE.var(1).sum().item() / ESTIMATES) / len(texts)
        found[num_passes, BIAS] = float((estimates_BE.mean(1) - exact_B).mean()) / standard_error
    return found


def reproduce(setup: Setup) -> list[Outcome]:
    """Compare the variance of two estimates of the bound, with models of pronunciations and with random weights.

    Source: Nie et al. (LLaDA, 2025), equation 6 and its estimate; the comparison is in no paper.
    """
    sequences = words()

    def measured(name: str, seed: int, report: Report) -> dict[tuple[int, str], float]:
        return measure(sequences, name, seed, report)

    found = measure_by_seed((TRAINED, UNTRAINED), measured, setup)
    data = sha256_of_examples([Example(tuple(map(str, word)), ()) for word in sequences])
    signature = sign("any-order-bound", seeds=setup.seeds, data=data, training=cmu_version())
    results, claims = [], []
    for name, runs in found.items():
        for num_passes, quantity in product(PASSES, (VARIANCE, BIAS)):
            values = [run[num_passes, quantity] for run in runs]
            row, column = f"{num_passes} passes", f"{name}, {quantity}"
            results.append(student_result(row, column, values, signature, unit=""))
        for num_passes in CLAIMED:
            values = [run[num_passes, VARIANCE] for run in runs]
            text = f"{name}, {num_passes} passes: at most a quarter of the variance of plain Monte Carlo."
            claims.append(judge_by_seed(text, "here", [QUARTER] * len(values), values, unit=""))
    worst = max(abs(run[num_passes, BIAS]) for runs in found.values() for run in runs for num_passes in PASSES)
    evidence = f"largest error of {len(found) * len(setup.seeds) * len(PASSES)} means: {worst:.1f} standard errors"
    claims.insert(0, Claim("The estimate is unbiased.", "here", "holds", evidence, kind="theorem"))
    title = "Bounds of any-order models: variance of the estimates"
    return [Outcome("any-order-bound", Table(title, tuple(results), claims=tuple(claims)), {})]
