"""Write scripts/constraints.txt: the versions in .venv of all packages that seqwise, its demo and its tests need.

``make lock`` runs this with the Python of .venv. ``make setup LOCKED=1`` installs these versions, and ``make audit``
looks for known vulnerabilities in them. There are no hashes, because builds of torch differ between machines.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from make_environment import CONSTRAINTS, EXTRAS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


def wanted() -> list[str]:
    """Return the requirements in pyproject.toml, with the extras that make setup installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for name in EXTRAS.split(",") for line in extras[name])]


def versions(lines: Iterable[str], extras: Iterable[str], found: dict[str, str]) -> dict[str, str]:
    """Add to ``found`` the installed versions of requirements, and of their own requirements."""
    for line in lines:
        requirement = Requirement(line)
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        new = name not in found
        # Without the local part, which names a build: 2.13.0+cpu is version 2.13.0.
        found[name] = Version(version(name)).public
        if new or requirement.extras:
            versions(requires(name) or (), requirement.extras, found)
    return found


def main() -> int:
    try:
        found = versions(wanted(), (), {})
    except PackageNotFoundError as error:
        print(f"seqwise lock: {error.name} is not installed; run make setup first", file=sys.stderr)
        return 2
    head = f"# Made by make lock: versions of the last test run, on Python {platform.python_version()}; do not edit.\n"
    lines = "".join(f"{name}=={number}\n" for name, number in sorted(found.items()))
    (ROOT / CONSTRAINTS).write_text(head + lines, encoding="utf-8")
    print(f"{CONSTRAINTS} is written: {len(found)} packages", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
