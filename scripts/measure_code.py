"""Measure the code: lines of each subpackage, import cycles, public names, and the files of one setting.

Usage: python scripts/measure_code.py [--setting alpha_unit]

Lines are those of Python files with docstrings, without blank lines at their ends; code is what remains of them without
docstrings, comments, imports, ``__all__`` and blank lines. Nothing is imported, all is read from syntax trees.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "seqwise"
BESIDE = ("reproductions", "benchmarks", "scripts", "tests")


def main() -> None:
    """Print all counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", default="alpha_unit", help="the setting whose files are listed")
    options = parser.parse_args()
    print(table("subpackage", {name: counted(files) for name, files in sorted(by_subpackage(PACKAGE).items())}))
    beside = {name: counted(python_files(ROOT / name)) for name in BESIDE}
    print(table("beside the package", {"package": counted(python_files(PACKAGE)), **beside}))
    imports = {name: imported(name, tree) for name, tree in modules(PACKAGE)}
    cycles = list(cycles_of(imports))
    print(f"modules: {len(imports)}; import cycles: {len(cycles)}")
    for cycle in cycles:
        print("  " + " -> ".join(cycle))
    public = public_names(PACKAGE)
    print(f"public names, in __all__ of packages: {sum(map(len, public.values()))}")
    files = mentioning(PACKAGE, options.setting)
    print(f"files of the package that name {options.setting!r}: {len(files)}")
    for path in files:
        print(f"  {path.relative_to(PACKAGE)}")


def table(title: str, numbers: Mapping[str, tuple[int, int]]) -> str:
    """Lines and code, a row for each name.

    Example:
        >>> print(table("subpackage", {"data": (7, 5), "search": (12, 8)}))
        subpackage  lines   code
        data            7      5
        search         12      8
    """
    width = max(len(title), *map(len, numbers))
    rows = (f"{name:<{width}}  {lines:5d}  {code:5d}" for name, (lines, code) in numbers.items())
    return "\n".join([f"{title:<{width}}  lines   code", *rows])


def python_files(folder: Path) -> list[Path]:
    """All Python files below a folder, in order."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def counted(files: Iterable[Path]) -> tuple[int, int]:
    """Count the lines of files, and the lines of code among them."""
    texts = [path.read_text(encoding="utf-8").rstrip() for path in files]
    return sum(len(text.splitlines()) for text in texts), sum(map(lines_of_code, texts))


def lines_of_code(text: str) -> int:
    """Count lines that are not blank, nor part of a docstring, comment, import or ``__all__``.

    Example:
        >>> lines_of_code("import os\\n\\ndef f():\\n    'Return 0.'\\n    # always\\n    return 0")
        2
    """
    excluded: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        is_list = isinstance(node, ast.Assign) and any(
            getattr(target, "id", "") == "__all__" for target in node.targets
        )
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if isinstance(node, ast.stmt) and (is_import or is_text or is_list):
            excluded.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in excluded)


def by_subpackage(package: Path) -> dict[str, list[Path]]:
    """Return the files of each subpackage, and of each module of the package itself."""
    files_by_name: dict[str, list[Path]] = defaultdict(list)
    for path in python_files(package):
        first = path.relative_to(package).parts[0]
        files_by_name[first].append(path)
    return dict(files_by_name)


def modules(package: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the dotted name and the syntax tree of every module."""
    for path in python_files(package):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        name = ".".join(part for part in parts if part != "__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(name: str, tree: ast.Module) -> set[str]:
    """Return the modules of the same package that a module imports at its top level."""
    package = name.partition(".")[0]
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == package:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] == package}
    return found - {name}


def cycles_of(imports: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield import cycles: sets of modules that import each other.

    Example:
        >>> list(cycles_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}))
        [['b', 'c']]
    """
    reached = {name: _reached(name, imports) for name in imports}
    done: set[str] = set()
    for name in sorted(imports):
        cycle = sorted(other for other in reached[name] if name in reached.get(other, ()))
        if cycle and name not in done:
            done.update(cycle)
            yield cycle


def _reached(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name in imports and name not in found:
            found.add(name)
            waiting += imports[name]
    return found


def public_names(package: Path) -> dict[str, list[str]]:
    """Return ``__all__`` of each package by its dotted name."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("__init__.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
                found[".".join((package.name, *path.relative_to(package).parts[:-1]))] = ast.literal_eval(node.value)
    return found


def mentioning(package: Path, name: str) -> list[Path]:
    """Return the files that contain a name."""
    return [path for path in python_files(package) if name in path.read_text(encoding="utf-8")]


if __name__ == "__main__":
    main()
