"""The label-bias toy: its draws against the ceilings of its definition."""

from __future__ import annotations

import pytest
import torch

from seqwise.data.synthetic import label_bias_toy
from seqwise.errors import InputError


def test_drawn_examples_reach_the_ceilings_and_no_more():
    examples = label_bias_toy(20_000, length=10, flip=0.1, generator=torch.Generator().manual_seed(0))
    inputs_BT = torch.tensor([[int(token) for token in example.source] for example in examples])
    labels_BT = torch.tensor([[int(token) for token in example.target] for example in examples])
    assert torch.equal(labels_BT // 2, inputs_BT)
    bits_BT = labels_BT % 2
    assert not bits_BT[:, -1].any()
    high_BT = torch.cat([(inputs_BT[:, 1:] >= 5).long(), torch.zeros(20_000, 1, dtype=torch.long)], dim=1)
    # Standard errors: sqrt(9 * .09) / 10 / sqrt(20000) * 100 = .064 with look-ahead, .106 without; four of each.
    assert 100 * (bits_BT == high_BT).double().mean().item() == pytest.approx(91, abs=0.26)
    # Without look-ahead: the majority bit for each (position, this input, previous bit), fitted on these very examples.
    right = 0
    for t in range(10):
        previous_B = bits_BT[:, t - 1] if t else torch.zeros(20_000, dtype=torch.long)
        counts = torch.zeros(20, 2)
        counts.index_put_((2 * inputs_BT[:, t] + previous_B, bits_BT[:, t]), torch.ones(20_000), accumulate=True)
        right += int(counts.max(dim=1).values.sum())
    assert right / 2000 == pytest.approx(55, abs=1.4)  # fitting 20 majorities to noise gains about 1 point
    counts_V = torch.bincount(inputs_BT.flatten(), minlength=10).double()
    assert ((counts_V - 20_000) ** 2 / 20_000).sum() < 27.9  # chi-squared, 9 degrees, .001


def test_draws_depend_on_the_generator_only():
    def draw(seed: int, **options):
        return label_bias_toy(20, generator=torch.Generator().manual_seed(seed), **options)

    assert draw(3) == draw(3) != draw(4)
    assert [example.line for example in draw(3)] == list(range(1, 21))
    assert {len(example.source) for example in draw(3, length=1)} == {1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples must be at least 1, got 0"),
        ({"num_examples": 1, "length": 0}, "length must be at least 1, got 0"),
        ({"num_examples": 1, "flip": 0.6}, r"flip must be in \[0, 0.5\], got 0.6"),
        ({"num_examples": 1, "flip": float("nan")}, r"flip must be in \[0, 0.5\], got nan"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        label_bias_toy(**arguments, generator=torch.Generator())
