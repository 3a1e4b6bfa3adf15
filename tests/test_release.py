"""What goes with a release: one version everywhere, and a package page on which every link leads somewhere."""

from __future__ import annotations

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
