"""The variance of estimates of any-order bounds: sums over masks against draws, and a small run."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from reproducing import read_back, setup
from reproductions.beyond import any_order_bound as bound
from seqwise.models import MaskedLSTM

TOKENS_T = torch.tensor([2, 0, 1, 1])


def model() -> MaskedLSTM:
    torch.manual_seed(0)
    lstm = MaskedLSTM(vocab_size=3, embedding_size=4, hidden_size=6, feedforward_size=6).double().eval()
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter *= 3.0
    return lstm


def test_listed_scores_are_the_models() -> None:
    lstm = model()
    listed = bound.list_masks(lstm, TOKENS_T)
    masked_BT = torch.tensor([mask for mask in itertools.product([False, True], repeat=4) if any(mask)])
    tokens_BT = TOKENS_T.expand(len(masked_BT), -1)
    with torch.no_grad():
        torch.testing.assert_close(listed.masked_logits(tokens_BT, masked_BT), lstm.masked_logits(tokens_BT, masked_BT))


def test_exact_moments_are_those_of_drawn_passes() -> None:
    """Each mask's probability and value by counting ordered draws, which shares no formula with the code."""
    lstm = model()
    values = []
    for count in range(1, 5):
        for order in itertools.permutations(range(4)):  # its first `count` positions are masked; 24 for each count
            masked_1T = torch.tensor([[place in order[:count] for place in range(4)]])
            with torch.no_grad():
                logits_KV = lstm.masked_logits(TOKENS_T[None], masked_1T).tolist()
            rows = zip(sorted(order[:count]), logits_KV, strict=True)
            log_probs = [row[TOKENS_T[place]] - math.log(math.fsum(map(math.exp, row))) for place, row in rows]
            values.append(4 * math.fsum(log_probs) / count)
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    listed = bound.list_masks(lstm, TOKENS_T)
    assert bound.exact_moments(listed, TOKENS_T) == (pytest.approx(mean, abs=1e-9), pytest.approx(variance, abs=1e-9))


def test_a_small_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [["K", "AE", "T"], ["T", "AE", "K"], ["K", "AA", "T"], ["T", "AA", "K"], ["T", "IY", "K"]]
    lexicon = [(str(number), [*start, *end]) for number, (start, end) in enumerate(itertools.product(words, words))]
    for name, value in {
        "LENGTH": 6, "NUM_TEXTS": 2, "ESTIMATES": 60, "PASSES": (8, 12), "CLAIMED": (12,), "STEPS": 5,
        "cmu_entries": lambda: lexicon,
    }.items():  # fmt: skip
        monkeypatch.setattr(bound, name, value)
    (outcome,) = bound.reproduce(setup(tmp_path, 0, 1))
    table = read_back(outcome, tmp_path)
    shares = {
        (result.system, result.measure): result.value for result in table.results if bound.VARIANCE in result.measure
    }
    assert len(shares) == 4
    # Sixty estimates of a text have a variance that is right within a half, at four standard errors of two texts.
    assert all(0 < share < 0.6 for share in shares.values())
    errors = [result.value for result in table.results if bound.BIAS in result.measure]
    assert all(abs(error) < 5 for error in errors)
    assert [claim.text for claim in table.claims if claim.kind != "theorem"] == [
        f"{name}, 12 passes: at most a quarter of the variance of plain Monte Carlo."
        for name in (bound.TRAINED, bound.UNTRAINED)
    ]
