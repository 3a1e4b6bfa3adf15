"""How the documentation site is made of docs/*.md and of the docstrings; `make docs` builds it, warnings are errors."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import seqwise

HERE = Path(__file__).parent
REFERENCE = HERE / "api"

project = "seqwise"
author = "The seqwise developers"
project_copyright = author
release = version = seqwise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"seqwise {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
root_doc = "index"

myst_heading_anchors = 3
highlight_language = "default"  # Python where it is Python; folders and equations are shown as they are
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False  # what is returned is told in words, not looked up

# Names in docstrings must lead somewhere. Classes cannot be held to that: annotations name those of other projects.
nitpicky = True
nitpick_ignore_regex = [("py:(class|obj|exc)", r".*")]
# An argument in an annotation that several classes have a field of.
suppress_warnings = ["ref.python"]

ROOMS = {
    "search": "Search",
    "objectives": "Objectives",
    "sampling": "Sampling",
    "models": "Models",
    "hugging_face": "Hugging Face models",
    "data": "Data",
    "configuration": "Settings",
    "schedules": "Schedules",
    "training": "Training",
    "decoding": "Decoding",
    "evaluation": "Evaluation",
    "runs": "Runs",
    "pages": "Reports and the explorer",
    "devices": "Devices",
    "errors": "Errors",
    "names": "Names of settings",
    "tree": "Nested states",
}
"""The pages of the reference, in order; `cli` is the page on the command line."""


def modules_of(room: str) -> list[str]:
    """Every public module of a room, the room itself first."""
    package = importlib.import_module(f"seqwise.{room}")
    inside = pkgutil.walk_packages(getattr(package, "__path__", []), f"{package.__name__}.")
    names = [package.__name__, *(module.name for module in inside)]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def public_names(room: str) -> set[str]:
    """The names in the ``__all__`` of a room and of the packages inside it; of a room that is one module, its own."""
    packages = [importlib.import_module(name) for name in modules_of(room)]
    return {name for package in packages for name in getattr(package, "__all__", ())}


def defined_in(module: str, names: set[str]) -> list[str]:
    """Those of the names that a module defines, in the order of its source."""
    found = importlib.import_module(module)
    of_aliases = ("typing", "types", "builtins", "collections.abc")
    own = {
        name
        for name in names & vars(found).keys()
        if getattr(vars(found)[name], "__module__", module) in (module, *of_aliases)
    }
    assigned = re.findall(r"^(?:class |def )?(\w+)(?=[(:]| = |: .* = )", inspect.getsource(found), flags=re.MULTILINE)
    return [name for name in dict.fromkeys(assigned) if name in own]


def section_on(module: str, names: set[str]) -> str:
    """What the reference says of one module: its docstring and its public names; "" where it has none of these."""
    is_package = hasattr(importlib.import_module(module), "__path__")
    own = [] if is_package else defined_in(module, names)
    if not own and not is_package and module.count(".") > 1:
        return ""
    title = f"``{module}``"
    members = f"   :members: {', '.join(own)}\n" if own else "   :no-members:\n"
    return f"{title}\n{'-' * len(title)}\n\n.. automodule:: {module}\n{members}\n"


def room_page(room: str, title: str) -> str:
    """One page of the reference."""
    names = public_names(room)
    return f"{title}\n{'=' * len(title)}\n\n" + "\n".join(section_on(module, names) for module in modules_of(room))


def command_line_page() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    from typer.main import get_command

    from seqwise.cli import app

    lines = ["The command line", "================", ""]

    def add(command: Any, path: str) -> None:
        context = command.make_context(path, [], resilient_parsing=True, terminal_width=80, max_content_width=80)
        help_text = "\n".join(f"   {line}".rstrip() for line in command.get_help(context).splitlines())
        lines.extend([path, "-" * len(path), "", ".. code-block:: text", "", help_text, ""])
        for name, inner in getattr(command, "commands", {}).items():
            add(inner, f"{path} {name}")

    add(get_command(app), "seqwise")
    return "\n".join(lines)


def write_reference(app: Any) -> None:
    """One page a room, and the contents of the reference."""
    REFERENCE.mkdir(exist_ok=True)
    pages = {room: room_page(room, title) for room, title in ROOMS.items()} | {"command-line": command_line_page()}
    contents = "\n".join(f"   {name}" for name in pages)
    pages["index"] = f"Reference\n=========\n\n.. toctree::\n   :maxdepth: 1\n\n{contents}\n"
    for old in REFERENCE.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        target = REFERENCE / f"{name}.rst"
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")


def require_docstring(app: Any, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """A public name without a docstring is a warning, and so an error."""
    documented = any(line.strip() for line in lines)
    if kind in ("module", "class", "function", "method", "property", "exception") and not documented:
        logging.getLogger(__name__).warning("%s is public and has no docstring", name)


NO_TYPE = "\ue000"


def hide_colons(app: Any, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep sentences with a colon whole: napoleon would read what stands before it on the first line as a type."""
    if kind in ("attribute", "data", "property") and lines:
        lines[0] = lines[0].replace(":", NO_TYPE)


def show_colons(app: Any, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Put back what :func:`hide_colons` has hidden."""
    lines[:] = [line.replace(NO_TYPE, ":") for line in lines]


def escape_signs(app: Any, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Absolute values and names that end in an underscore are no markup."""
    for place, line in enumerate(lines):
        if ">>>" in line or set(line.strip()) <= {"=", " "}:
            continue
        # The parts at odd places are literals and roles.
        parts = re.split(r"(``.+?``|:[a-z]+:`.+?`|`.+?`)", line)
        parts[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[place] = "".join(parts)


def leave_out_the_foreign(app: Any, kind: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Nothing inherited from torch or transformers, whose docstrings follow other rules."""
    if not inspect.isclass(thing) and not inspect.isroutine(
        thing
    ):  # constants, and aliases such as Callable[[int], str]
        return None
    module = str(getattr(inspect.unwrap(thing), "__module__", "seqwise"))
    return None if module.startswith("seqwise") else True


def resolve_shorter_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Where a docstring names something by the path that users import it from, or as its module knows it."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains["py"].objects
    module, inside = node.get("py:module"), node.get("py:class")
    tried = [node["reftarget"], f"{module}.{node['reftarget']}", f"{module}.{inside}.{node['reftarget']}"]
    found = list(map(documented_name, tried))
    if node["reftype"] == "data":  # a constant does not know the module that it comes from: one of that name will do
        constants = [name for name in objects if name.endswith("." + node["reftarget"].rpartition(".")[2])]
        found += constants if len(constants) == 1 else []
    for full_name in filter(None, found):
        if full_name in objects:
            place = objects[full_name]
            return make_refnode(app.builder, node["refdoc"], place.docname, place.node_id, content, full_name)
    return None


def documented_name(name: str) -> str | None:
    """The path at which the reference has what can be imported by this one; of a field, that of its class."""
    parts = name.split(".")
    if parts[0] != "seqwise":
        return None
    owner: Any = None
    found: Any = seqwise
    for place, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:place]))
            except ImportError:
                return full_path(found) if part in getattr(found, "__annotations__", {}) else None
        owner, found = found, getattr(found, part)
    return full_path(found) or full_path(owner)


def full_path(thing: Any) -> str | None:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}.{name}" if module and name else None


def write_markdown(app: Any, error: Exception | None) -> None:
    """Put each page beside its HTML as Markdown, and list them in ``llms.txt`` for readers that are programs."""
    if error is not None or app.builder.format != "html":
        return
    lines = ["# seqwise", "", "> Neural sequence models that are trained, searched and sampled as whole sequences.", ""]
    for name in ["index", *sorted(app.env.found_docs - {"index"})]:
        source = Path(app.env.doc2path(name))
        if source.suffix != ".md":
            continue
        text = source.read_text("utf-8")
        target = Path(app.outdir) / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        lines.append(f"- [{title_of(text)}]({name}.md): {first_sentence(text)}".removesuffix(": "))
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def title_of(page: str) -> str:
    """The first heading of a page in Markdown."""
    return next(line for line in page.splitlines() if line.startswith("# ")).removeprefix("# ")


def first_sentence(page: str) -> str:
    """The first sentence below the heading, in one line, without links; "" where a page begins otherwise."""
    paragraphs = (part for part in page.split("\n\n") if part[:1].isalnum() and not part.startswith("Made by "))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(next(paragraphs, "").split()))
    return re.split(r"(?<=[.]) ", text)[0]


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", require_docstring)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("autodoc-process-docstring", escape_signs, priority=700)
    app.connect("autodoc-skip-member", leave_out_the_foreign)
    app.connect("missing-reference", resolve_shorter_name)
    app.connect("build-finished", write_markdown)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
