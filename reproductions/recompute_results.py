"""Recompute intervals, p-values and verdicts of results/*.json, or of given files, from the values in them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from reproductions.report import Claim, load_table
from reproductions.result_files import ELSEWHERE, RESULTS
from reproductions.verdicts import recompute
from seqwise.errors import InputError


def main(paths: list[Path]) -> int:
    """Print a line for each file and for each number that differs; return the exit status."""
    differs = False
    for path in paths:
        counts: Counter[str] = Counter()
        for item, problem in recompute(load_table(path)):
            counts["different" if problem else "the same"] += 1
            if problem:
                differs = True
                name = item.text if isinstance(item, Claim) else f"{item.system}, {item.measure}"
                print(f"{path.name}: {name}: {problem}")
        print(f"{path.name}: {', '.join(f'{count} {what}' for what, count in counts.items()) or 'nothing to compute'}")
    return int(differs)


if __name__ == "__main__":
    tables = sorted(path for path in RESULTS.glob("*.json") if path.stem not in ELSEWHERE)
    given = [Path(name) for name in sys.argv[1:]]
    if not all(path.is_file() for path in given):
        sys.exit("usage: python -m reproductions.recompute_results [FILE ...]")
    try:
        sys.exit(main(given or tables))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
