"""Parameters of tests of which make test runs some, and make test-all all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *named: Any) -> list[Any]:
    """Mark all values but the named ones as thorough."""
    return [pytest.param(value, marks=[] if value in named else pytest.mark.thorough) for value in values]
