"""Per-example summands of a measure as text, from which a saved result can be recomputed.

Shapes: N examples, C sums; see `seqwise.evaluation.metrics`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, Floats, PerSeed, Sums

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PACKAGE = "seqwise.evaluation."


@dataclass(frozen=True)
class Values:
    """One measurement for each training seed, as text."""

    combine: str  # function that combines the sums, as "module:function" of `seqwise.evaluation`
    # For each training seed a text for each of the C sums. A text of digits and letters alone has one character for
    # each example: 0 to 9, then a to z for 10 to 35. Any other text has numbers between spaces.
    seeds: tuple[tuple[str, ...], ...]


def values_of(measured: PerSeed) -> Values:
    """Convert measurements to text."""
    runs = [measured] if isinstance(measured, Sums) else list(measured)
    combine = runs[0].combine
    module, function = getattr(combine, "__module__", ""), getattr(combine, "__qualname__", "")
    if not (module.startswith(PACKAGE) and hasattr(importlib.import_module(module), function)):
        raise InputError(f"{combine} is not a function of {PACKAGE[:-1]}", hint="move it there")
    name = f"{module.removeprefix(PACKAGE)}:{function}"
    return Values(name, tuple(tuple(_text(column_N) for column_N in run.columns_NC.T) for run in runs))


def values_by_seed(numbers: Sequence[float]) -> Values:
    """Convert a number for each training seed, exact without examples, to text."""
    return values_of([Counts([number]) for number in numbers])


def sums_of(values: Values) -> list[Sums]:
    """Return the measurements of `values_of`, one for each training seed."""
    module, _, function = values.combine.partition(":")
    try:
        combine = getattr(importlib.import_module(PACKAGE + module), function)
        return [Sums(np.stack([_numbers(text) for text in texts], axis=1), combine) for texts in values.seeds]
    except (AttributeError, ImportError, ValueError) as error:
        raise InputError(f"values of {values.combine!r} cannot be read ({error})") from error


def interval_text(numbers: Sequence[float], *, digits: int = 1, scale: float = 1.0) -> str:
    """Format a difference with its sign and its interval.

    Example:
        >>> interval_text((0.0123, -0.004, 0.03), scale=100)
        '+1.2 [-0.4, 3.0]'
    """
    value, low, high = (scale * number for number in numbers)
    return f"{value:+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _text(column_N: Floats) -> str:
    if ((column_N >= 0) & (column_N < len(DIGITS)) & (column_N == column_N.round())).all():
        return "".join(DIGITS[int(number)] for number in column_N)
    return " ".join(repr(float(f"{number:.10g}")) for number in column_N)


def _numbers(text: str) -> Floats:
    numbers = [DIGITS.index(digit) for digit in text] if text.isalnum() else [float(part) for part in text.split()]
    return np.array(numbers, dtype=np.float64)
