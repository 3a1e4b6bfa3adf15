"""Print the oldest versions of packages that pyproject.toml declares, as requirements, for ``make test-oldest``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
EXTRAS = ("demo", "reproductions", "translation", "diagnostics", "constraints", "report", "tune")
"""Extras whose packages the tests use; packages of the extra ``test`` are not pinned."""


def oldest(requirements: list[str]) -> list[str]:
    """Turn ``name>=version`` into ``name==version``; other requirements stay as they are.

    Example:
        >>> oldest(["torch>=2.11", "ruff>=0.17.5,<0.18", "arviz-stats[xarray]>=0.6"])
        ['torch==2.11', 'ruff==0.17.5', 'arviz-stats[xarray]==0.6']
    """
    return [re.sub(r">=\s*([^,\s]+).*", r"==\1", requirement) for requirement in requirements]


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = (line for extra in EXTRAS for line in project["optional-dependencies"][extra])
    declared = [*project["dependencies"], *extras]
    # An extra may need a newer version than the core does.
    by_name = {re.split(r"[><=\[]", requirement)[0]: requirement for requirement in oldest(declared)}
    print("\n".join(by_name.values()))


if __name__ == "__main__":
    main()
