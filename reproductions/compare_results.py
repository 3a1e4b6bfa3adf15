"""Compare new results with those in results/, number by number and bit for bit.

Usage: python -m reproductions.compare_results FOLDER, as given to ``python -m reproductions NAME --results FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from reproductions.report import Result, Table, load_table
from reproductions.result_files import ELSEWHERE, RESULTS


def compare(again: Table, saved: Table) -> Iterator[tuple[Result, Result | None, bool]]:
    """Yield each new number, the saved one, and whether value, interval, p-value and values of examples are equal.

    Seconds, which vary from run to run, are left out.
    """
    before = {(each.system, each.measure): each for each in saved.results}
    for result in again.results:
        if result.unit != "s":
            other = before.get((result.system, result.measure))
            same = other is not None and all(
                getattr(result, name) == getattr(other, name) for name in ("value", "low", "high", "p_value", "values")
            )
            yield result, other, same


def main(folder: Path, results: Path = RESULTS) -> int:
    """Print a line for each file and for each number that differs; return the exit status."""
    differs = False
    for path in sorted(folder.glob("*.json")):
        if path.stem in ELSEWHERE or not (results / path.name).is_file():
            continue
        compared = list(compare(load_table(path), load_table(results / path.name)))
        for result, other, same in compared:
            if not same:
                then = "is not among the results" if other is None else f"was {other.value:.10g}"
                print(f"{path.name}: {result.system}, {result.measure}: {result.value:.10g}; {then}")
        count = sum(same for *_, same in compared)
        differs |= count < len(compared)
        print(f"{path.name}: {count} of {len(compared)} numbers are the same")
    return int(differs)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m reproductions.compare_results FOLDER")
    sys.exit(main(Path(sys.argv[1])))
