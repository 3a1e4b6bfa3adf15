"""The Python, flags, commands and calls of the README work."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from command_line import Command
from pages import blocks, run_python
from seqwise.configuration import OneOf
from seqwise.configuration.flat import flags_of
from seqwise.objectives import ObjectiveConfig
from seqwise.runs.settings import SETTINGS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
CONSOLE = "\n".join(block.code for block in blocks(README, "console"))


@pytest.mark.thorough
def test_the_quickstarts_run(small_models: None) -> None:
    pytest.importorskip("arviz_stats")
    namespace: dict[str, Any] = {}
    for number, block in enumerate(blocks(README, "python"), start=1):
        assert len([line for line in block.code.splitlines() if line]) <= 10, "short is the point"
        printed = run_python(block.code, f"README.md, block {number}", namespace)
    assert len(namespace["sampled"].texts) == 4 and "R-hat" in printed


def test_commands_and_flags_exist(seqwise: Command) -> None:
    known = {flag.name for flag in flags_of(SETTINGS)}
    text = CONSOLE + "\n".join(re.findall(r"`(seqwise [^`]+)`", README))
    for command in re.findall(r"seqwise ([a-z-]+)", text):
        assert seqwise(command, "--help").code == 0, command
    for flag in re.findall(r"--([a-z-]+)", "".join(re.findall(r"seqwise train(.*)", text))):
        assert flag == "output" or flag.replace("-", "_") in known, flag


@pytest.mark.parametrize("page", [README, METHODS], ids=["README", "methods"])
def test_calls_of_the_methods_exist(page: str) -> None:
    choices = {flag.name: flag.choices for flag in flags_of(SETTINGS)}
    for flag, value in re.findall(r"`[^`]*--(objective|feeding|score|decoder|warm-start) ([a-z-]+)", page):
        assert flag == "decoder" or value in choices[flag.replace("-", "_")], value
    names = set(re.findall(r"`([A-Za-z]+_[a-z_]+|[A-Z][A-Za-z]+K)(?:\(.*?\))?`", page))
    modules = [importlib.import_module(f"seqwise{room}") for room in ("", ".search", ".sampling", ".hugging_face")]
    assert all(any(hasattr(module, name) for module in modules) for name in names), names


def test_every_objective_is_among_the_methods() -> None:
    assert [name for name in OneOf(ObjectiveConfig).members if f"`{name}`" not in METHODS] == []


def test_it_is_short_and_its_numbers_are_those_of_the_pages_made_from_results() -> None:
    assert len(README.splitlines()) <= 150
    section = README.split("## When it helps, and when it does not")[1].split("\n## ")[0]
    made = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.md"))
    numbers = re.findall(r"\d+\.\d+", section)
    assert numbers and [number for number in numbers if not re.search(rf"(?<![\d.]){number}(?!\d)", made)] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\$ make ([a-z]+)", CONSOLE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
