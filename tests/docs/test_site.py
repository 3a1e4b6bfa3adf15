"""How the site is made: every room is in the reference, and names lead to where they are documented."""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from pages import DOCS
from test_architecture import LAYERS, MODULES, all_of

pytest.importorskip("sphinx", reason="the site is built with pip install 'seqwise[docs]'")


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_room_has_a_page(conf: Any) -> None:
    assert set(conf.ROOMS) | {"cli"} == {room for room in LAYERS if not room.startswith("_")}
    assert "seqwise.search.large_vocabulary.scan" in conf.modules_of("search")
    assert conf.modules_of("tree") == ["seqwise.tree"]
    page = conf.room_page("search", "Search")
    assert page.startswith("Search\n======\n") and ".. automodule:: seqwise.search.beam\n" in page


def test_every_public_name_is_in_the_reference(conf: Any) -> None:
    """Names in the ``__all__`` of a module, but for those of the command line; a module stands by its own name."""
    pages = "".join(conf.room_page(room, title) for room, title in conf.ROOMS.items())
    members = [line.split(", ") for line in re.findall(r"^   :members: (.*)$", pages, flags=re.MULTILINE)]
    documented = {name for line in members for name in line}
    assert sum(map(len, members)) == len(documented), "a name has two places"
    offered: dict[str, str] = {}
    for name, _, syntax in MODULES:
        listed = () if name.startswith("seqwise.cli") else all_of(syntax) or ()
        offered |= dict.fromkeys(listed, name)
    missing = {name: module for name, module in offered.items() if name not in documented}
    assert missing == {"energies": "seqwise"} and ".. automodule:: seqwise.sampling.energies\n" in pages
    assert documented <= offered.keys()


def test_the_page_on_the_command_line_has_every_command(conf: Any) -> None:
    page = conf.command_line_page()
    assert "\nseqwise train\n-------------\n" in page and "\nseqwise masked-model train\n" in page
    assert "--log-partition-weight" in page


def test_pages_are_there_as_markdown_and_listed(conf: Any, tmp_path: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in DOCS.rglob("*.md")}
    env = SimpleNamespace(found_docs={*pages, "api/index"}, doc2path=lambda name: pages.get(name, DOCS / "a.rst"))
    app = SimpleNamespace(env=env, outdir=tmp_path, builder=SimpleNamespace(format="html"))
    conf.write_markdown(app, None)
    listed = re.findall(r"^- \[.+?\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(f"{name}.md" for name in pages)
    assert all((tmp_path / name).read_text("utf-8") == (DOCS / name).read_text("utf-8") for name in listed)


@pytest.mark.parametrize(
    "name, found",
    [
        ("seqwise.beam_search", "seqwise.search.beam.beam_search"),
        ("seqwise.search.selectors.SoftTopK", "seqwise.search.selectors.SoftTopK"),
        ("seqwise.search.beam.Beam.scores_BK", "seqwise.search.beam.Beam"),
        ("seqwise.search.beam.no_such_name", None),
        ("torch.softmax", None),
    ],
)
def test_names_lead_to_where_they_are_documented(conf: Any, name: str, found: str | None) -> None:
    assert conf.documented_name(name) == found


def test_a_missing_docstring_is_a_warning(conf: Any, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("sphinx").propagate = True
    with caplog.at_level(logging.WARNING):
        conf.require_docstring(None, "function", "seqwise.documented", None, None, ["Something."])
        conf.require_docstring(None, "data", "seqwise.constant", None, None, [""])
        assert not caplog.records
        conf.require_docstring(None, "function", "seqwise.bare", None, None, ["", " "])
    (record,) = caplog.records
    assert record.getMessage() == "seqwise.bare is public and has no docstring"


@pytest.mark.parametrize("kind", ["data", "attribute", "property"])
def test_a_sentence_with_a_colon_is_no_type(conf: Any, kind: str) -> None:
    from sphinx.ext.napoleon import Config, GoogleDocstring

    def shown(lines: list[str]) -> str:
        return str(GoogleDocstring(lines, Config(), what=kind, name="seqwise.constant"))

    lines = ["Of one step: one line", "and another."]
    assert ":type:" in shown(lines)  # as napoleon reads it
    connected: dict[str, Any] = {}
    conf.setup(SimpleNamespace(connect=lambda _, do, priority=500: connected.update({do.__name__: (priority, do)})))
    (before, hide), (after, show) = connected["hide_colons"], connected["show_colons"]
    assert before < 500 < after, "napoleon's own priority"
    hide(None, kind, "seqwise.constant", None, None, lines)
    lines = shown(lines).split("\n")
    show(None, kind, "seqwise.constant", None, None, lines)
    assert "\n".join(lines).strip() == "Of one step: one line\nand another."


def test_names_of_constants_lead_somewhere_or_are_warnings(conf: Any) -> None:
    assert not any(re.match(pattern, "py:data") for pattern, _ in conf.nitpick_ignore_regex)
    # An alias can be called, and comes from typing; it is none of the foreign methods that are left out.
    for alias in (Callable[[int], str], Literal["a", "b"]):
        assert conf.leave_out_the_foreign(None, "data", "Alias", alias, False, None) is None
    assert conf.leave_out_the_foreign(None, "method", "forward", torch.nn.Module.forward, False, None) is True


def test_signs_that_are_no_markup_are_escaped(conf: Any) -> None:
    lines = ["mean |log Z| of global_ scores, ``|x|`` and :func:`global_`", "    >>> a | b", "====  ===="]
    conf.escape_signs(None, "module", "name", None, None, lines)
    assert lines[0] == r"mean \|log Z\| of global\_ scores, ``|x|`` and :func:`global_`"
    assert lines[1:] == ["    >>> a | b", "====  ===="]


def test_code_is_wrapped_where_it_does_not_fit(conf: Any) -> None:
    (style,) = conf.html_css_files
    (folder,) = conf.html_static_path
    assert "white-space: pre-wrap" in (DOCS / folder / style).read_text("utf-8")


def test_the_reference_is_no_part_of_the_repository() -> None:
    assert "/docs/api/" in (Path(DOCS).parent / ".gitignore").read_text("utf-8").splitlines()


@pytest.mark.thorough
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = ["sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet", str(DOCS), str(tmp_path)]
    built = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert (built.stderr, built.returncode) == ("", 0)
    assert "scheduled sampling" in (tmp_path / "searchindex.js").read_text("utf-8")
