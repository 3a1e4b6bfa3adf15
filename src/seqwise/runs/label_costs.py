"""What wrongly choosing each label costs, as it is written in the settings."""

from __future__ import annotations

import math

from seqwise.errors import InputError

__all__ = ["parse_label_costs"]


def parse_label_costs(text: str) -> dict[str, float]:
    """``"O=2, B-PER=0.5"`` to numbers by label; a label may itself hold "=".

    Raises:
        InputError: an entry is not ``LABEL=NUMBER`` with a finite number greater than 0, or a label comes twice.

    Example:
        >>> parse_label_costs("O=2, B-PER=0.5")
        {'O': 2.0, 'B-PER': 0.5}
    """
    costs: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        label, _, number = (part.strip() for part in entry.rpartition("="))
        try:
            cost = float(number)
        except ValueError:
            cost = math.nan
        if not label or not 0 < cost < math.inf:
            raise InputError(f"{entry!r} is no cost of a label", mend="write LABEL=NUMBER, such as O=2")
        if label in costs:
            raise InputError(f"the label {label!r} has two costs", mend="give one")
        costs[label] = cost
    return costs
