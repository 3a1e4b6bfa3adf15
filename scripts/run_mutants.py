"""Test whether the tests detect small changes to the code: writes results/mutants.json.

Usage: python scripts/run_mutants.py [--mutants 600] [--seed 0] [--children 2] [--folder build/mutants] [--again]

mutmut makes all mutants of search, objectives and sampling; a sample of them, drawn with a fixed seed, is tested by the
tests that run the mutated function. Survivors are checked by mypy, which `make test` runs as well. Results are kept in
the folder, so that an interrupted run continues; --again tests survivors with the current tests. [tool.mutmut] in
pyproject.toml selects the code that is mutated and the tests that are run. scripts/equivalent_mutants.toml lists
survivors without effect, with reasons; some kinds, such as changed texts of messages, are recognised here.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seqwise.data.durable import write_atomically
from seqwise.evaluation.signature import sign

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "results" / "mutants.json"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"

# Exit codes of pytest, and those that mutmut adds.
STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "not run by any test", 33: "not run by any test"}
TIMED_OUT = (24, -24, 36, 152, 255)
UNCAUGHT = ("survived", "not run by any test")
MESSAGE = "Only the text of a message differs, which tests do not fix."
ON_THE_CPU = "Without a device, tensors are on the CPU, as in the tests; the simulated device has its own tests."
AS_LONG = "The sequences have the same length by construction; strict only detects mistakes in this code."
TYPES = "type_errors.json"
COPIED = ("benchmarks", "docs", "reproductions", "scripts", "src", "tests", "README.md", "pyproject.toml")


def main() -> None:
    """Make mutants, test a sample of them, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=600, help="number of mutants to test")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--children", type=int, default=2, help="number of processes")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants", help="folder in which the tests run")
    parser.add_argument("--again", action="store_true", help="test survivors with the current tests")
    parser.add_argument("--only-report", action="store_true", help="write the results so far, without testing")
    options = parser.parse_args()
    if not options.only_report:
        _prepare(options.folder)
        if options.again:
            for name in ("tests", "reproductions"):
                _copy(name, options.folder)
        chosen = _sample(options.folder, options.mutants, options.seed)
        codes = _exit_codes(options.folder)
        open_ones = ("not tested", *(UNCAUGHT if options.again else ()))
        waiting = [name for name in chosen if _status(codes[name]) in open_ones]
        if waiting:
            _mutmut(options.folder, "run", "--max-children", str(options.children), *waiting)
        _check_types(options.folder, chosen)
    chosen = _sample(options.folder, options.mutants, options.seed)
    write_atomically(RESULT, json.dumps(_report(options.folder, chosen, options.seed), indent=1) + "\n")
    print(f"{RESULT.relative_to(ROOT)} is written", file=sys.stderr)


def _prepare(folder: Path) -> None:
    """Copy the project, make all mutants, and record which tests run which function."""
    if (folder / "mutants" / "mutmut-stats.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        _copy(name, folder)
    _mutmut(folder, "run", "no.such.mutant", check=False)  # stops after making mutants and statistics
    if not (folder / "mutants" / "mutmut-stats.json").exists():
        raise SystemExit("mutmut has not written its statistics: do all tests pass without mutants?")


def _copy(name: str, folder: Path) -> None:
    source, target = ROOT / name, folder / name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _check_types(folder: Path, chosen: list[str]) -> None:
    """Check survivors by mypy, one after another, and keep its errors in the folder."""
    path, codes = folder / TYPES, _exit_codes(folder)
    errors: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name in chosen:
        if name in errors or _status(codes[name]) not in UNCAUGHT:
            continue
        file = folder / _changed_file(folder, name)
        source = file.read_bytes()
        try:
            _mutmut(folder, "apply", name)
            command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file.relative_to(folder))]
            done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE)
        finally:
            file.write_bytes(source)
        own = [line for line in done.stdout.splitlines() if file.name in line and ": error:" in line]
        errors[name] = own[0].partition(": error: ")[2] if own else ""
        write_atomically(path, json.dumps(errors, indent=1) + "\n")


def _mutmut(folder: Path, *arguments: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    shown = arguments[0] == "run"
    # Without PYTHONPATH, so that the mutated package is imported.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=check, text=True, stdout=None if shown else subprocess.PIPE
    )
    return done.stdout or ""


def _exit_codes(folder: Path) -> dict[str, int | None]:
    """Return the exit code of every mutant by name; None if it has not been tested."""
    codes: dict[str, int | None] = {}
    for path in sorted((folder / "mutants").rglob("*.py.meta")):
        codes |= json.loads(path.read_text("utf-8"))["exit_code_by_key"]
    return codes


def _sample(folder: Path, count: int, seed: int) -> list[str]:
    """Draw mutants by a hash of their names, so that a change of the code changes the sample only there."""

    def place(name: str) -> str:
        return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()

    return sorted(sorted(_exit_codes(folder), key=place)[:count])


def _status(code: int | None) -> str:
    if code is None:
        return "not tested"
    return "timed out" if code in TIMED_OUT else STATUS.get(code, "killed")


def _report(folder: Path, chosen: list[str], seed: int) -> dict[str, Any]:
    codes = _exit_codes(folder)
    statuses = {name: _status(codes[name]) for name in chosen}
    path = folder / TYPES
    errors = json.loads(path.read_text("utf-8")) if path.exists() else {}
    reasons = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    survivors = []
    for name in chosen:
        if statuses[name] not in UNCAUGHT:
            continue
        if errors.get(name):
            statuses[name] = "refused by mypy"
            continue
        described = _described(folder, name)
        known = (
            entry["reason"]
            for entry in reasons
            if all(described[key] == entry[key] for key in ("file", "before", "after"))
        )
        reason = next(known, "") or reason_of_kind(described["before"], described["after"])
        survivors.append({**described, "status": statuses[name], "reason": reason})
        if reason:
            statuses[name] = "changes nothing"
    files = sorted(folder.glob("src/seqwise/*/**/*.py"))
    signature = sign(f"mutants of {len(codes)}, sampled", seeds=[seed], data=f"{len(files)} files")
    return {
        "mutants": len(codes),
        "sampled": len(chosen),
        "counts": dict(Counter(statuses.values()).most_common()),
        "by_room": {room: dict(counts) for room, counts in _by_room(statuses).items()},
        "survivors": sorted(survivors, key=lambda survivor: (survivor["file"], survivor["line"])),
        "signature": asdict(signature),
    }


def reason_of_kind(before: str, after: str) -> str:
    """Return why a mutant has no effect, if it is of a known kind, else an empty string.

    Example:
        >>> reason_of_kind('raise InputError("no label", hint="give one")', 'raise InputError("no label", hint=None)')
        'Only the text of a message differs, which tests do not fix.'
        >>> reason_of_kind('raise InputError("no label")', "raise InputError(None)")
        ''
    """
    first, second = _parsed(before), _parsed(after)
    if first is None or second is None:
        return ""
    if "InputError(" in before or before.startswith(("hint=", "problem = ", "hint = ")):
        return MESSAGE if _alike(_WithoutTexts(), first, second) else ""
    for name, reason in (("device", ON_THE_CPU), ("strict", AS_LONG)):
        if _alike(_Without(name), first, second):
            return reason
    return ""


def _alike(transformer: ast.NodeTransformer, first: ast.Module, second: ast.Module) -> bool:
    return ast.dump(transformer.visit(copy.deepcopy(first))) == ast.dump(transformer.visit(copy.deepcopy(second)))


def _parsed(line: str) -> ast.Module | None:
    for source in (line, f"_({line})"):  # a statement, or an argument on a line of its own
        try:
            return ast.parse(source)
        except SyntaxError:
            continue
    return None


class _WithoutTexts(ast.NodeTransformer):
    """Remove hints and empty all strings."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "hint"]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node


class _Without(ast.NodeTransformer):
    """Remove a keyword argument."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != self.name]
        return self.generic_visit(node)


def _by_room(statuses: dict[str, str]) -> dict[str, Counter[str]]:
    rooms: dict[str, Counter[str]] = {}
    for name, status in statuses.items():
        rooms.setdefault(name.split(".")[1], Counter())[status] += 1
    return dict(sorted(rooms.items()))


def _described(folder: Path, name: str) -> dict[str, Any]:
    """Return the file and line of a mutant, and the code before and after."""
    difference = _mutmut(folder, "show", name).splitlines()
    file = _changed_file(folder, name)
    first = _first_line((folder / file).read_text("utf-8"), name)
    offset, before, after, changed = 0, [], [], None
    for line in difference[difference.index(f"+++ {file}") + 1 :]:
        if line.startswith("@@"):
            offset = int(line.split()[1].lstrip("-").split(",")[0]) - 1
            continue
        if line.startswith("+"):
            after.append(line[1:].strip())
        elif line.startswith("-"):
            before.append(line[1:].strip())
        if changed is None and line[:1] in ("+", "-"):
            changed = offset
        offset += not line.startswith("+")
    return {
        "name": name,
        "file": file,
        "line": first + (changed or 0),
        "before": " ".join(before),
        "after": " ".join(after),
    }


def _changed_file(folder: Path, name: str) -> str:
    module = name.rpartition(".")[0].replace(".", "/")
    file = f"src/{module}.py"
    return file if (folder / file).exists() else f"src/{module}/__init__.py"


def _first_line(source: str, name: str) -> int:
    """Find the mutated function; names are ``module.x_function__mutmut_1`` or ``module.xǁClassǁmethod...``."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    path = mangled.split("ǁ")[1:] if "ǁ" in mangled else [mangled.removeprefix("x_")]
    return next(_lines_of(ast.parse(source), path), 1)


def _lines_of(node: ast.AST, path: list[str]) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef) or child.name != path[0]:
            continue
        if len(path) == 1:
            yield min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
        else:
            yield from _lines_of(child, path[1:])


if __name__ == "__main__":
    main()
