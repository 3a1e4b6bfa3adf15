"""The set-up that `make` runs: all or nothing, one at a time, no CUDA libraries where they are of no use."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent

_spec = importlib.util.spec_from_file_location("make_environment", REPOSITORY / "scripts" / "make_environment.py")
assert _spec is not None and _spec.loader is not None
make_environment = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_environment)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    return tmp_path


class Installation:
    """Stands in for the real one: counts its runs and leaves what an environment minimally has."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, root: Path, lock: int) -> None:
        self.runs += 1
        binaries = root / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").symlink_to(sys.executable)


def killed(root: Path, lock: int) -> None:
    (root / ".venv" / "leftover").mkdir(parents=True)
    raise KeyboardInterrupt


def test_a_complete_environment_is_not_made_again(tree: Path) -> None:
    installation = Installation()
    assert make_environment.make_ready(tree, installation)
    assert not make_environment.make_ready(tree, installation)
    assert installation.runs == 1


def test_what_a_killed_installation_left_is_removed(tree: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_environment.make_ready(tree, killed)
    assert (tree / ".venv" / "leftover").exists()
    assert make_environment.make_ready(tree, Installation())
    assert not (tree / ".venv" / "leftover").exists()
    assert make_environment.is_complete(tree)


def test_killed_while_renewing_a_complete_environment(tree: Path) -> None:
    make_environment.make_ready(tree, Installation())
    with (tree / "pyproject.toml").open("a") as file:
        file.write("\n[tool.hatch.envs.extra]\n")
    with pytest.raises(KeyboardInterrupt):
        make_environment.make_ready(tree, killed)
    assert not make_environment.is_complete(tree)


@pytest.mark.parametrize(
    ("old", "new", "still_complete"),
    [
        ('"rich>=13.8"', '"rich>=14"', False),
        ("hatchling>=1.26", "hatchling>=1.27", False),
        ("line-length = 120", "line-length = 100", True),
    ],
)
def test_only_what_decides_the_installation_renews_it(tree: Path, old: str, new: str, still_complete: bool) -> None:
    make_environment.make_ready(tree, Installation())
    text = (tree / "pyproject.toml").read_text()
    assert old in text
    (tree / "pyproject.toml").write_text(text.replace(old, new))
    assert make_environment.is_complete(tree) is still_complete


def test_a_copied_environment_is_not_complete(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    make_environment.make_ready(tree, Installation())
    copy = tmp_path_factory.mktemp("copy") / "tree"
    shutil.copytree(tree, copy, symlinks=True)
    assert not make_environment.is_complete(copy)


def test_another_interpreter_is_not_complete(tree: Path) -> None:
    make_environment.make_ready(tree, Installation())
    assert make_environment.is_complete(tree, wanted_python=make_environment.running_python())
    assert not make_environment.is_complete(tree, wanted_python="3.99")
    link = tree / ".venv" / "bin" / "python"
    link.unlink()
    link.symlink_to("/bin/sh")
    assert not make_environment.is_complete(tree)


def test_exact_versions_are_made_anew_where_they_are_asked_for(tree: Path) -> None:
    with pytest.raises(make_environment.SetupError, match="make lock"):
        make_environment.lock_of(tree)
    (tree / "scripts").mkdir()
    (tree / make_environment.CONSTRAINTS).write_text("torch==1.0\n")
    first = make_environment.lock_of(tree)
    make_environment.make_ready(tree, Installation())
    assert make_environment.make_ready(tree, Installation(), wanted_lock=first)
    assert not make_environment.make_ready(tree, Installation(), wanted_lock=first)
    # The targets of make that do not ask for them are content with them.
    assert make_environment.is_complete(tree)
    (tree / make_environment.CONSTRAINTS).write_text("torch==1.1\n")
    assert not make_environment.is_complete(tree, wanted_lock=make_environment.lock_of(tree))


def test_exact_versions_are_handed_to_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(make_environment, "install", lambda root, lock, *options: asked.append(options))
    make_environment.install_locked(tmp_path, 0)
    assert asked == [("--constraint", "scripts/constraints.txt")]


def test_the_exact_versions_are_those_that_pyproject_allows() -> None:
    lines = (REPOSITORY / make_environment.CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# Made by make lock")
    # Names and versions, no paths, addresses or builds.
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines[1:])
    exact = dict(line.split("==") for line in lines[1:])
    assert exact["torch"] == make_environment.TORCH
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = make_environment.EXTRAS.split(",")
    for line in [*project["dependencies"], *(one for name in extras for one in project["optional-dependencies"][name])]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(exact[canonicalize_name(requirement.name)]), line


def test_an_audit_tells_silence_from_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("audit_dependencies")
    assert doctest.testmod(module) == (0, 5)
    said = json.dumps({"dependencies": [{"name": "a", "version": "1", "skip_reason": "not found"}]})
    assert module.report(module.audited(said), 1) == module.report(module.audited("no route to host"), 1)


@pytest.mark.parametrize("stamp", ["", "[]", "{}", "null", '{"recipe": 1}'])
def test_a_damaged_stamp_is_not_complete(tree: Path, stamp: str) -> None:
    make_environment.make_ready(tree, Installation())
    make_environment.stamp_path(tree).write_text(stamp)
    assert not make_environment.is_complete(tree)


def test_a_linked_environment_is_unlinked_and_its_target_left_alone(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").touch()
    (tree / ".venv").symlink_to(elsewhere)
    stamp = make_environment.stamp_path(tree)
    stamp.write_text("{}")
    assert make_environment.make_ready(tree, Installation())
    assert (elsewhere / "mine").exists() and (elsewhere / stamp.name).read_text() == "{}"


def test_arguments_are_refused_before_anything_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_environment.py", "--help"])
    monkeypatch.setattr(make_environment, "make_ready", None)
    assert make_environment.main() == 2


def test_the_lock_outlives_its_holder_in_a_child(tmp_path: Path) -> None:
    """A killed make leaves its pip running; the next make must wait for that pip."""
    path = tmp_path / "lock"
    with make_environment.exclusive(path) as lock:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.6)"], pass_fds=(lock,))
    # The block has closed its own descriptor: only the child holds the lock now.
    started = time.monotonic()
    with make_environment.exclusive(path):
        waited = time.monotonic() - started
    assert child.wait() == 0
    assert waited > 0.2


@pytest.mark.parametrize(
    ("listing", "nvidia", "system", "uv_code", "expected"),
    [
        ("Available versions: {t}+cpu, {t}, 2.0", False, "Linux", 0, ["torch=={t}+cpu"]),
        ("Available versions: {t}+cpu, {t}, 2.0", True, "Linux", 0, ["torch=={t}"]),
        ("Available versions: {t}, 2.0", False, "Darwin", 0, ["torch=={t}"]),
        ("Available versions: {t}, 2.0", False, "Linux", 0, ["uv", "uv: torch=={t}"]),
        ("Available versions: {t}, 2.0", False, "Linux", 1, ["uv", "uv: torch=={t}", "torch=={t}"]),
        ("", False, "Linux", 0, ["uv", "uv: torch=={t}"]),
    ],
)
def test_the_cpu_build_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    listing: str,
    nvidia: bool,
    system: str,
    uv_code: int,
    expected: list[str],
) -> None:
    installed: list[str] = []
    torch_version = make_environment.TORCH

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "uv" in command[:3]:
            installed.append(f"uv: {command[-1]}")
            assert "--torch-backend=cpu" in command
            return subprocess.CompletedProcess(command, uv_code, "", "")
        if "index" in command:
            return subprocess.CompletedProcess(command, 0, listing.format(t=torch_version), "")
        installed.append(command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(make_environment, "run", run)
    make_environment.install_torch(tmp_path, 0, nvidia=nvidia, system=system)
    assert installed == [name.format(t=torch_version) for name in expected]
    # The big download is announced, and only then.
    assert ("CUDA" in capsys.readouterr().out) is (len(expected) == 3)


@pytest.fixture
def candidates(tree: Path) -> Path:
    """A folder of stand-in interpreters, with make's own tools; each prints its name when it is chosen."""
    folder = tree / "bin"
    folder.mkdir()
    return folder


def stand_in(folder: Path, name: str, *, code: int) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then exit {code}; fi\necho chose {name}\n')
    path.chmod(0o755)


def make(tree: Path, candidates: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    return subprocess.run(
        [program, "setup", *arguments],
        cwd=tree,
        env={"PATH": str(candidates)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_interpreter_that_is_new_enough_is_chosen(tree: Path, candidates: Path) -> None:
    stand_in(candidates, "python3", code=1)
    stand_in(candidates, "python3.13", code=127)
    stand_in(candidates, "python3.12", code=0)
    stand_in(candidates, "python3.11", code=0)
    assert make(tree, candidates).stdout == "chose python3.12\n"
    assert make(tree, candidates, "PYTHON=python3.11").stdout == "chose python3.11\n"


def test_no_interpreter_is_one_clear_line(tree: Path, candidates: Path) -> None:
    stand_in(candidates, "python3", code=1)
    done = make(tree, candidates)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert done.returncode == 2
    assert len(lines) == 1 and "Python 3.11 or newer" in lines[0]


def test_no_package_index_is_written_into_the_set_up() -> None:
    """Where packages come from is the user's setting (a mirror, a proxy), never the repository's."""
    files = ["Makefile", "pyproject.toml", "scripts/make_environment.py", ".ci/run", ".pre-commit-config.yaml"]
    files += ["scripts/constraints.txt", "scripts/make_constraints.py", "scripts/audit_dependencies.py"]
    for name in files:
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|INDEX_URL", text), name


def test_ci_runs_what_a_developer_runs() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
