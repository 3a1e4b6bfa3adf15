"""What the README shows, runs: its Python, its flags, its reproductions and its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import run_python
from reproductions import REPRODUCTIONS
from seqwise.configuration import OneOf, flags_of
from seqwise.objectives import ObjectiveConfig
from seqwise.runs.settings import SETTINGS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = README.partition("## Models that you already have")[2].partition("\n## ")[0]
"""Its blocks go on from each other, with Hugging Face models: see test_hugging_face_page.py."""
PYTHON = re.findall(r"```python\n(.*?)```", README.replace(OTHERS, ""), flags=re.DOTALL)
CONSOLE = "\n".join(re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL))


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_a_python_block_runs(block: str) -> None:
    assert run_python(block, "README.md", {}).strip(), "the block prints nothing to look at"


def test_the_readme_has_the_library_in_about_twenty_lines() -> None:
    assert len(PYTHON) >= 1 and len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 22


def test_flags_and_their_values_exist() -> None:
    known = {flag.name: flag.choices for flag in flags_of(SETTINGS)}
    for command in re.findall(r"seqwise train((?:.|\\\n)*?)(?=\n\$|\n\n|$)", CONSOLE):
        for flag, value in re.findall(r"--([a-z-]+) (\S+)", command):
            assert flag == "output" or flag.replace("-", "_") in known, flag
            if flag in ("objective", "score", "task", "source-units"):
                assert value in known[flag.replace("-", "_")]


def test_reproductions_named_in_the_readme_exist() -> None:
    assert set(re.findall(r"`python -m reproductions ([a-z0-9.-]+)`", README)) <= set(REPRODUCTIONS)


def test_every_objective_is_named_and_no_number_is_missing() -> None:
    assert all(f"`{name}`" in README for name in OneOf(ObjectiveConfig).members)
    assert set(re.findall(r"\b[A-Z]{2,}_[A-Z]{2,}\b", README)) <= {"SEQWISE_DATA"}, "a place-holder is left"


def test_linked_files_exist() -> None:
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\$ make ([a-z]+)", CONSOLE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
