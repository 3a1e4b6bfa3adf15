"""What the tests of both forms of scheduled sampling share: a choice that is known, and a look at the coin."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from seqwise.search import Candidates, HardSelection


def token_zero(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> Any:
    zeros_B1 = torch.zeros(candidates.features_BJH.shape[0], 1, dtype=torch.long)
    return HardSelection(candidates.scores_BJV[:, :, 0], zeros_B1, zeros_B1), carry


def assert_coins(was_gold_BT: Tensor, probability: float) -> None:
    """The rate over all tokens, its spread over inputs and over steps, and the correlation of neighbours."""
    B, T = was_gold_BT.shape
    deviation = math.sqrt(probability * (1 - probability))
    assert abs(float(was_gold_BT.mean()) - probability) < 5 * deviation / math.sqrt(B * T)
    assert ((was_gold_BT.mean(0) - probability).abs() < 5 * deviation / math.sqrt(B)).all()
    assert float(was_gold_BT.mean(1).var()) == pytest.approx(deviation**2 / T, rel=0.15)
    correlation = torch.corrcoef(was_gold_BT.T) - torch.eye(T)
    assert correlation.abs().max() < 5 / math.sqrt(B)
