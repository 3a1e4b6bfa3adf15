"""What goes with a release: one version everywhere, and a package page on which every link leads somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

import seqwise

REPOSITORY = Path(__file__).resolve().parent.parent


def test_citation_and_changelog_have_the_version_of_the_package() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    releases = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert cited["version"] == releases[0] == seqwise.__version__


def test_the_package_page_has_no_link_or_picture_of_the_repository() -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed; make dist does it")
    spec = importlib.util.spec_from_file_location("package_page", REPOSITORY / "scripts" / "package_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    page = module.package_page(readme)
    linked = re.findall(r"\]\(([^)]*)\)", page)
    assert linked and all(target.startswith("https://") for target in linked)
    assert "![" not in page and "docs/hugging-face.md" in page
    assert re.findall(r"^#.*", page, flags=re.MULTILINE) == re.findall(r"^#.*", readme, flags=re.MULTILINE)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "src").rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_type_checkers_see_every_name_of_a_package(path: Path) -> None:
    """Names that are imported when they are asked for stand below ``if TYPE_CHECKING`` as well."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public: set[str] = set()
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            seen.add(node.name)
        elif isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            public |= set(ast.literal_eval(node.value)) if "__all__" in names else set()
            seen |= names
    assert public <= seen, public - seen
