"""What the source tree promises, read from its syntax trees: layers, names, docstrings, sizes."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import seqwise
from seqwise.decoding import DECODERS
from seqwise.names import (
    DECODER_NAMES,
    AlphaUnitName,
    EnergyName,
    Feeding,
    ScoreName,
    VisitsName,
)
from seqwise.sampling.energies import ENERGIES
from seqwise.sampling.proposals import VISITS
from seqwise.search.candidates import as_score
from seqwise.search.feeding import FEEDINGS
from seqwise.search.operators import ALPHA_UNITS

PACKAGE = Path(seqwise.__file__).resolve().parent

# Imports point only to the left of where they stand.
LAYERS = [
    "errors",
    "configuration",
    "schedules",
    "_lazy",
    "names",
    "devices",
    "tree",
    "data",
    "models",
    "search",
    "objectives",
    "sampling",
    "training",
    "decoding",
    "evaluation",
    "hugging_face",
    "runs",
    "pages",
    "cli",
]
MAX_LINES = 800


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    """Dotted name, path and syntax tree of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("seqwise", *(part for part in parts if part != "__init__")))
        yield name, path, ast.parse(path.read_text(encoding="utf-8"))


MODULES = list(modules())


def each_module() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "path", "syntax"), MODULES, ids=[name for name, _, _ in MODULES])


def imported(syntax: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """Every module that is imported, at the top or inside a function, with its line."""
    for node in ast.walk(syntax):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*above, *([node.module] if node.module else [])])
            # ``from seqwise import tree`` imports the module, not the package.
            if module != "seqwise":
                yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def layer(module: str) -> int | None:
    """The place of a module in the order, or None for the package itself and for strangers."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if parts[0] == "seqwise" and len(parts) > 1 and parts[1] in LAYERS else None


def all_of(syntax: ast.Module) -> list[str] | None:
    """What ``__all__`` lists, or None."""
    for node in syntax.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def listed_names() -> Iterator[tuple[str, str]]:
    """Module and name of all that a package imports from its modules and lists."""
    for package, path, syntax in MODULES:
        listed = all_of(syntax) or ()
        for node in ast.walk(syntax):
            if path.name == "__init__.py" and isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, alias.name) for alias in node.names if alias.name in listed)
        yield from ((package, name) for name in listed)


LISTED = set(listed_names())


@each_module()
def test_packages_list_what_is_public(name: str, path: Path, syntax: ast.Module) -> None:
    """And so do rooms that are one module; the names of other modules are for the package alone."""
    may_list = path.name == "__init__.py" or name.count(".") == 1
    assert may_list or all_of(syntax) is None, f"{path.name}: list public names in the package's __init__.py"


def test_the_tree_is_read() -> None:
    assert len(MODULES) > 15
    assert {"seqwise", "seqwise.tree", "seqwise.search.beam"} <= {name for name, _, _ in MODULES}


@each_module()
def test_imports_point_only_downwards(name: str, path: Path, syntax: ast.Module) -> None:
    if name in ("seqwise", "seqwise.__main__"):
        return
    own = layer(name)
    assert own is not None, f"{name} has no place in the order of layers"
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for module, line in imported(syntax, package):
        other = layer(module)
        if module.split(".")[0] == "seqwise" and module != "seqwise.__version__":
            assert other is not None, f"{path.name}:{line}: {name} imports {module} from the top of the package"
        same = module.split(".")[:2] == name.split(".")[:2]
        assert other is None or same or other < own, f"{path.name}:{line}: {name} imports {module}, from above"


def test_there_is_no_import_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE.parents[1] / "scripts"))
    measures = importlib.import_module("measure_code")
    assert not list(measures.cycles_of({name: measures.imported(name, syntax) for name, _, syntax in MODULES}))


@each_module()
def test_the_package_imports_nothing_beside_it(name: str, path: Path, syntax: ast.Module) -> None:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    beside = [m for m, _ in imported(syntax, package) if m.split(".")[0] in ("reproductions", "benchmarks", "tests")]
    assert not beside, f"{path.name} imports {beside[0]}, which the wheel does not carry"


@pytest.mark.thorough
@each_module()
def test_only_the_tree_module_knows_pytrees(name: str, path: Path, syntax: ast.Module) -> None:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    users = [line for module, line in imported(syntax, package) if "pytree" in module]
    users += [node.lineno for node in ast.walk(syntax) if isinstance(node, ast.Attribute) and "pytree" in node.attr]
    if name == "seqwise.tree":
        assert users
    else:
        assert not users, f"{path.name}:{users[0]} uses pytrees; use seqwise.tree"


@each_module()
def test_every_module_and_public_definition_has_a_docstring(name: str, path: Path, syntax: ast.Module) -> None:
    """Modules, and functions and classes without an underscore, with their methods.

    A constant that a package lists has a string below it, or a comment above or beside it.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not syntax.body:
        return
    assert ast.get_docstring(syntax), f"{path.name} has no docstring"
    undocumented = []

    for place, node in enumerate(syntax.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            members = [node, *(node.body if isinstance(node, ast.ClassDef) else [])]
            for member in members:
                if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    continue
                if member is node:
                    documented = ast.get_docstring(node)
                else:  # its own or, of an override, the overridden one's; ``forward`` is documented by its class
                    in_class = getattr(getattr(importlib.import_module(name), node.name), member.name)
                    documented = member.name.startswith("_") or member.name == "forward" or inspect.getdoc(in_class)
                if not documented:
                    undocumented.append((member.name, member.lineno))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            following = syntax.body[place + 1] if place + 1 < len(syntax.body) else None
            described = (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            )
            described |= "#" in lines[node.lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
            if not described:
                undocumented += [(n, node.lineno) for n in names if (name, n) in LISTED]
    places = ", ".join(f"{n} ({path.name}:{line})" for n, line in undocumented)
    assert not undocumented, f"without a docstring: {places}"


@each_module()
def test_every_listed_name_is_there(name: str, path: Path, syntax: ast.Module) -> None:
    listed = all_of(syntax)
    if listed is None:
        return
    assert len(listed) == len(set(listed))
    module = importlib.import_module(name)
    missing = [entry for entry in listed if not hasattr(module, entry)]
    assert not missing


@each_module()
def test_type_checkers_see_every_listed_name(name: str, path: Path, syntax: ast.Module) -> None:
    """Names that are imported when they are asked for stand below ``if TYPE_CHECKING`` as well."""
    seen: set[str] = set()
    for node in ast.walk(syntax):
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            seen.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            seen |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert set(all_of(syntax) or ()) <= seen


def lazily_imported(syntax: ast.Module) -> list[tuple[str, str]]:
    """Module and name of what a package imports for type checkers, and itself only when it is asked for."""
    blocks = [node for node in syntax.body if isinstance(node, ast.If) and "lazy_names" in ast.unparse(node.orelse)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom) and node.module]
    return [(str(node.module), alias.name) for node in imports for alias in node.names]


LAZY = [(package, *found) for package, _, syntax in MODULES for found in lazily_imported(syntax)]


@pytest.mark.parametrize(("package", "module", "name"), LAZY)
def test_a_name_that_is_imported_lazily_is_what_type_checkers_see(package: str, module: str, name: str) -> None:
    offered = importlib.import_module(package)
    if name in offered.__all__:
        assert name in dir(offered)
        assert getattr(offered, name) is getattr(importlib.import_module(module), name)


def test_every_name_of_a_setting_stands_for_something() -> None:
    assert tuple(DECODERS) == DECODER_NAMES
    for table, names in ((FEEDINGS, Feeding), (ENERGIES, EnergyName), (VISITS, VisitsName)):
        assert tuple(table) == get_args(names)
    assert len({as_score(name) for name in get_args(ScoreName)}) == 3
    assert tuple(ALPHA_UNITS) == get_args(AlphaUnitName)


def test_the_package_offers_what_the_design_names() -> None:
    assert {
        "peaked_softmax",
        "soft_top_k",
        "hard_top_k",
        "beam_search",
        "HardTopK",
        "SoftTopK",
        "Gumbel",
        "direct_loss",
        "hinge_loss",
        "hamming_cost",
        "self_normalized_cross_entropy",
    } <= set(seqwise.__all__)


@each_module()
def test_no_file_is_too_long(name: str, path: Path, syntax: ast.Module) -> None:
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= MAX_LINES, f"{path.name} has {length} lines"


@each_module()
def test_annotations_are_postponed_everywhere(name: str, path: Path, syntax: ast.Module) -> None:
    statements = [node for node in syntax.body if not isinstance(node, ast.Expr)]
    if statements:
        first = statements[0]
        assert isinstance(first, ast.ImportFrom)
        assert first.module == "__future__"
