"""Look for known vulnerabilities of the versions in scripts/constraints.txt; ``make audit`` runs this.

Exit codes: 1 if a vulnerability is known; 0 if none is known, or if no index answers, which one line reports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from make_environment import CONSTRAINTS

ROOT = Path(__file__).resolve().parent.parent


def audited(output: str) -> list[dict[str, Any]]:
    """Return the packages that pip-audit has checked; none if no index has answered.

    >>> audited('{"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "?"}]}')
    [{'name': 'a', 'version': '1', 'vulns': []}]
    >>> audited("")
    []
    """
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        return []
    return [package for package in packages if "vulns" in package]


def report(packages: list[dict[str, Any]], count: int) -> tuple[int, list[str]]:
    """Return the exit code and the lines for the checked packages, out of ``count``.

    >>> report([], 9)
    (0, ['skipped: no index answers'])
    >>> report([{"name": "a", "version": "1", "vulns": []}], 1)
    (0, ['no known vulnerability in 1 of 1 packages'])
    >>> report([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["1.1", "2"]}]}], 1)
    (1, ['a 1: X-1, fixed in 1.1, 2'])
    """
    found = [
        f"{package['name']} {package['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none'}"
        for package in packages
        for flaw in package["vulns"]
    ]
    if found:
        return 1, found
    if not packages:
        return 0, ["skipped: no index answers"]
    return 0, [f"no known vulnerability in {len(packages)} of {count} packages"]


def main() -> int:
    constraints = ROOT / CONSTRAINTS
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=30"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), *options]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    count = sum("==" in line for line in constraints.read_text(encoding="utf-8").splitlines())
    code, lines = report(audited(output), count)
    for line in lines:
        print(f"seqwise audit: {line}")
    return code


if __name__ == "__main__":
    sys.exit(main())
