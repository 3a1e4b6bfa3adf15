"""The look-ahead: against a bidirectional LSTM, and in parts against whole sources."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from seqwise.models.look_ahead import LookAhead

LENGTHS = torch.tensor([6, 1, 4])


def an_example(look_ahead: int) -> tuple[LookAhead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(look_ahead)
    ahead = LookAhead(3, 4, look_ahead=look_ahead).double()
    return ahead, torch.randn(3, 6, 5, dtype=torch.float64), torch.randn(3, 6, 3, dtype=torch.float64)


@pytest.mark.parametrize("look_ahead", [5, 9])
def test_to_the_end_it_is_the_backward_direction_of_a_bidirectional_lstm(look_ahead: int) -> None:
    ahead, outputs_BSH, vectors_BSX = an_example(look_ahead)
    both = nn.LSTM(3, 4, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name, weight in ahead.lstm.named_parameters():
            getattr(both, f"{name}_reverse").copy_(weight)
    memory_BSM = ahead(outputs_BSH, vectors_BSX, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected_SH = both(vectors_BSX[row, :length])[0][:, 4:]
        torch.testing.assert_close(memory_BSM[row, :length, :5], outputs_BSH[row, :length])
        torch.testing.assert_close(memory_BSM[row, :length, 5:], expected_SH, atol=1e-12, rtol=0)


@pytest.mark.parametrize("look_ahead", [1, 2, 3])
def test_parts_are_read_as_the_whole(look_ahead: int) -> None:
    ahead, outputs_BSH, vectors_BSX = an_example(look_ahead)
    whole_BSM = ahead(outputs_BSH, vectors_BSX, torch.tensor([6, 6, 6]))
    for ends in ([0, 6], [0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 6], [0, 5, 6]):
        waiting, parts = None, []
        for start, end in pairwise(ends):
            part_BSM, waiting = ahead.read(outputs_BSH[:, start:end], vectors_BSX[:, start:end], waiting)
            parts.append(part_BSM)
            assert sum(part.shape[1] for part in parts) == max(end - look_ahead, 0)
        assert waiting is not None and waiting[0].shape == (3, look_ahead, 5)
        last_BSM, _ = ahead.read_end(waiting)
        torch.testing.assert_close(torch.cat([*parts, last_BSM], dim=1), whole_BSM, atol=1e-12, rtol=0)
    early, waiting = ahead.read(outputs_BSH[:, :1], vectors_BSX[:, :1], None)  # the source ends before the look-ahead
    only_BSM, _ = ahead.read_end(waiting)
    expected_BSM = ahead(outputs_BSH[:, :1], vectors_BSX[:, :1], torch.tensor([1, 1, 1]))
    assert early.shape == (3, 0, 9)
    torch.testing.assert_close(only_BSM, expected_BSM, atol=1e-12, rtol=0)


def test_padding_may_be_anything() -> None:
    ahead, outputs_BSH, vectors_BSX = an_example(2)
    spoiled_BSX = vectors_BSX.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        spoiled_BSX[row, length:] = torch.nan
    clean_BSM, dirty_BSM = (ahead(outputs_BSH, given_BSX, LENGTHS) for given_BSX in (vectors_BSX, spoiled_BSX))
    assert torch.equal(clean_BSM, dirty_BSM)
