"""Synthetic tasks, with the best score that any model can reach."""

from __future__ import annotations

import torch

from seqwise.data.readers import Example
from seqwise.errors import InputError


def label_bias_toy(
    num_examples: int, *, length: int = 10, flip: float = 0.1, generator: torch.Generator
) -> list[Example]:
    """Draw sequences with label bias alone: the next input decides a label.

    With x_1 .. x_T uniform on 0 .. 9 and e_t = 1 with probability ``flip``,

        y_t = 2 x_t + ([x_{t+1} >= 5] xor e_t)  for t < T,    y_T = 2 x_T.

    After x_T nothing comes, so its bit is 0 and is not flipped.

    Args:
        num_examples: how many sequences to draw.
        length: T, at least 1.
        flip: the noise on the bit, in [0, 0.5].
        generator: the only source of randomness, on the CPU.

    Returns:
        Examples with sources of "0" .. "9" and targets of "0" .. "19", T tokens each; ``line`` counts from 1.

    Raises:
        InputError: ``num_examples`` or ``length`` below 1, or ``flip`` outside [0, 0.5].

    Example:
        >>> example, = label_bias_toy(1, length=4, flip=0.0, generator=torch.Generator().manual_seed(0))
        >>> example.source, example.target
        (('4', '9', '3', '0'), ('9', '18', '6', '0'))
    """
    _check(length, flip)
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


def toy_ceilings(length: int, flip: float) -> tuple[float, float]:
    """Return the best expected token accuracy on `label_bias_toy`, in percent: without look-ahead, and with it.

    x_t is seen, so only the bit can be wrong. At the T - 1 positions before the last, a model that must commit to y_t
    after x_1 .. x_t knows nothing of the bit: x_{t+1} is uniform and independent of x_1 .. x_t and of the labels so far
    (those depend on x_1 .. x_t and on independent flips), so the bit is 0 or 1 with probability 1/2, flipped or not.
    A model that may wait for x_{t+1} predicts [x_{t+1} >= 5] and errs only where it was flipped. The last bit is always
    0, which both know. Hence

        without = 100 ((T - 1) / 2 + 1) / T,    with = 100 ((T - 1) (1 - flip) + 1) / T.
    """
    _check(length, flip)
    without_look_ahead = 100 * ((length - 1) / 2 + 1) / length
    with_look_ahead = 100 * ((length - 1) * (1 - flip) + 1) / length
    return without_look_ahead, with_look_ahead


def _check(length: int, flip: float) -> None:
    if length < 1:
        raise InputError(f"length must be at least 1, got {length}")
    if not 0 <= flip <= 0.5:
        raise InputError(f"flip must be in [0, 0.5], got {flip}")
