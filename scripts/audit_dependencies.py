"""Ask for known weaknesses in the versions of scripts/constraints.txt; ``make audit`` runs this.

Exit codes: 0 where none is known, or nobody answers, which is said in one line; 1 where there is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from make_environment import CONSTRAINTS

ROOT = Path(__file__).resolve().parent.parent


def answer(said: str) -> list[dict[str, Any]]:
    """The packages that pip-audit has found out about; none where it has reached nobody.

    >>> answer('{"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "?"}]}')
    [{'name': 'a', 'version': '1', 'vulns': []}]
    >>> answer("")
    []
    """
    try:
        packages: list[dict[str, Any]] = json.loads(said)["dependencies"]
    except (ValueError, KeyError):
        return []
    return [package for package in packages if "vulns" in package]


def judged(packages: list[dict[str, Any]], asked: int) -> tuple[int, list[str]]:
    """The exit code, and what is said of so many packages that were asked about.

    >>> judged([], 9)
    (0, ['skipped: nobody could be asked for known weaknesses'])
    >>> judged([{"name": "a", "version": "1", "vulns": []}], 1)
    (0, ['no known weakness in 1 of 1 packages'])
    >>> judged([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["1.1", "2"]}]}], 1)
    (1, ['a 1: X-1, fixed in 1.1, 2'])
    """
    found = [
        f"{package['name']} {package['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'none'}"
        for package in packages
        for one in package["vulns"]
    ]
    if found:
        return 1, found
    if not packages:
        return 0, ["skipped: nobody could be asked for known weaknesses"]
    return 0, [f"no known weakness in {len(packages)} of {asked} packages"]


def main() -> int:
    constraints = ROOT / CONSTRAINTS
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=30"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), *options]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    asked = sum("==" in line for line in constraints.read_text(encoding="utf-8").splitlines())
    code, lines = judged(answer(said), asked)
    for line in lines:
        print(f"seqwise audit: {line}")
    return code


if __name__ == "__main__":
    sys.exit(main())
