"""Types of the pages' examples: what a reader copies into a typed program passes its checker."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from pages import DOCS, blocks

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# Functions of a page need no annotations, and its names may be given anew from block to block.
OF_A_SCRIPT = ("--allow-untyped-defs", "--allow-incomplete-defs", "--check-untyped-defs", "--allow-redefinition-new")


def modules(folder: Path) -> list[Path]:
    """Write the Python blocks of each page as one module, and return those that there are."""
    written = []
    for page in PAGES:
        code = "\n".join(block.code for block in blocks(page.read_text("utf-8"), "python"))
        if code:
            name = str(page.relative_to(ROOT).with_suffix("")).translate(str.maketrans("/-.", "___"))
            written.append(folder / f"{name}.py")
            written[-1].write_text(code, "utf-8")
    return written


def checked(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy over files, with the settings and the cache of the repository."""
    options = ["--config-file", "pyproject.toml", "--local-partial-types", "--no-warn-unused-ignores", *OF_A_SCRIPT]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_examples_have_the_types_of_the_library(tmp_path: Path) -> None:
    files = modules(tmp_path)
    assert len(files) > 10
    found = checked(*files)
    assert found.returncode == 0, found.stdout


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_examples_pass_pyright_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *map(str, modules(tmp_path))]
    found = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.thorough
def test_an_example_with_a_wrong_type_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from seqwise import HardTopK\n\nHardTopK('three')\n", "utf-8")
    assert "arg-type" in checked(wrong).stdout
