"""Synthetic tasks."""

from __future__ import annotations

import torch

from seqwise.data.readers import Example
from seqwise.errors import InputError


def label_bias_toy(
    num_examples: int, *, length: int = 10, flip: float = 0.1, generator: torch.Generator
) -> list[Example]:
    """Draw sequences that show label bias: each label depends on the next input.

    With x_1 .. x_T uniform on 0 .. 9 and e_t = 1 with probability ``flip``,

        y_t = 2 x_t + ([x_{t+1} >= 5] xor e_t)  for t < T,    y_T = 2 x_T.

    There is no input after x_T, so its bit is 0 and is not flipped.

    Args:
        num_examples: number of sequences.
        length: T, at least 1.
        flip: flip probability of the bit, in [0, 0.5].
        generator: random generator, on the CPU.

    Returns:
        Examples with sources of "0" .. "9" and targets of "0" .. "19", T tokens each; ``line`` counts from 1.

    Raises:
        InputError: ``num_examples`` or ``length`` below 1, or ``flip`` outside [0, 0.5].

    Example:
        >>> example, = label_bias_toy(1, length=4, flip=0.0, generator=torch.Generator().manual_seed(0))
        >>> example.source, example.target
        (('4', '9', '3', '0'), ('9', '18', '6', '0'))
    """
    if length < 1:
        raise InputError(f"length must be at least 1, got {length}")
    if not 0 <= flip <= 0.5:
        raise InputError(f"flip must be in [0, 0.5], got {flip}")
    if num_examples < 1:
        raise InputError(f"num_examples must be at least 1, got {num_examples}")
    inputs_BT = torch.randint(10, (num_examples, length), generator=generator)
    flips_BT = torch.rand((num_examples, length - 1), generator=generator) < flip
    targets_BT = 2 * inputs_BT
    targets_BT[:, :-1] += (inputs_BT[:, 1:] >= 5) ^ flips_BT
    return [
        Example(tuple(map(str, source)), tuple(map(str, target)), "label_bias_toy", number)
        for number, (source, target) in enumerate(zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True), start=1)
    ]
