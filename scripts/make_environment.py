"""Make .venv complete for seqwise; `make` runs this before every other target.

Standard library only: it runs on the machine's own Python, before anything is installed. A complete .venv is
recognised by its stamp, without the network. Any other .venv (an interrupted installation, one for another
pyproject.toml, a copied tree) is removed and made again. Only one process at a time does this.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

# The release this tree was last tested with; pyproject.toml states the oldest that works.
TORCH = "2.13.0"
EXTRAS = "demo,reproductions,translation,diagnostics,constraints,report,tune,explore,docs,integrations,test"
CONSTRAINTS = "scripts/constraints.txt"

# Settings of the caller that would make pip read or write somewhere other than .venv.
UNWANTED = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON")


class SetupError(Exception):
    """The environment could not be made; the message is one line that says what to do."""


def say(line: str) -> None:
    print(f"seqwise setup: {line}", flush=True)


# ---- Is .venv complete? ----------------------------------------------------------------------------------------------


def recipe(root: Path) -> str:
    """Hash everything that decides what .venv holds.

    Only the tables of pyproject.toml that an installation reads count, so that a changed lint rule costs nothing. The
    path counts because the scripts inside a virtual environment contain it: a copied .venv would run the original.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    tables = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("hatch")]
    parts = [json.dumps(tables, sort_keys=True), Path(__file__).read_text(encoding="utf-8"), str(root / ".venv")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stamp_path(root: Path) -> Path:
    return root / ".venv" / "seqwise-complete.json"


def interpreter_of(root: Path) -> str:
    return str((root / ".venv" / "bin" / "python").resolve())


def lock_of(root: Path) -> str:
    """Hash the exact versions that ``make setup LOCKED=1`` installs."""
    try:
        return hashlib.sha256((root / CONSTRAINTS).read_bytes()).hexdigest()
    except OSError:
        raise SetupError(f"there is no {CONSTRAINTS}; make lock writes it") from None


def is_complete(root: Path, *, wanted_python: str | None = None, wanted_lock: str | None = None) -> bool:
    """Whether .venv was completed from this recipe, and its interpreter still exists.

    `wanted_python` ("3.12") is the requested version of Python, and `wanted_lock` the exact packages; without them,
    any complete .venv is accepted.
    """
    try:
        stamp = json.loads(stamp_path(root).read_text(encoding="utf-8"))
        return (
            stamp["recipe"] == recipe(root)
            # An upgrade of the operating system may have put a newer Python behind the same link.
            and stamp["interpreter"] == interpreter_of(root)
            and Path(stamp["interpreter"]).exists()
            and wanted_python in (None, stamp["python"])
            and wanted_lock in (None, stamp.get("lock"))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_stamp(root: Path, lock: str | None) -> None:
    stamp = {"recipe": recipe(root), "interpreter": interpreter_of(root), "python": running_python(), "lock": lock}
    temporary = stamp_path(root).with_suffix(".new")
    temporary.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, stamp_path(root))


def running_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


# ---- One at a time, all or nothing -----------------------------------------------------------------------------------


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold the lock file; yields its descriptor.

    pip inherits the descriptor, and with it the lock: when this process is killed and pip lives on, the next make
    waits for that pip instead of removing the directory under it.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another make is setting up .venv; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def make_ready(
    root: Path,
    install: Callable[[Path, int], None],
    *,
    wanted_python: str | None = None,
    wanted_lock: str | None = None,
) -> bool:
    """Run `install(root, lock)` unless .venv is complete; return whether it ran."""

    def complete() -> bool:
        return is_complete(root, wanted_python=wanted_python, wanted_lock=wanted_lock)

    if complete():
        return False
    with exclusive(root / ".setup.lock") as lock:
        if complete():  # made by the process that held the lock
            return False
        if (root / ".venv").exists():
            say("the .venv here is incomplete or out of date: removing it")
        # The stamp is removed first: if this is killed, the rest must not count as complete. That of another checkout,
        # behind a link, stays.
        if not (root / ".venv").is_symlink():
            stamp_path(root).unlink(missing_ok=True)
        remove(root / ".venv")
        install(root, lock)
        write_stamp(root, wanted_lock)
    return True


# ---- Installing ------------------------------------------------------------------------------------------------------


def run(command: list[str], *, root: Path, lock: int, capture: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    # Temporary files are inside .venv: those of a killed pip are removed with it, and a small /tmp does not matter.
    environment |= {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "TMPDIR": str(temporary_folder(root))}
    streams = subprocess.PIPE if capture else None
    return subprocess.run(
        command, env=environment, cwd=root, pass_fds=(lock,), text=True, stdout=streams, stderr=streams, check=False
    )


def temporary_folder(root: Path) -> Path:
    return root / ".venv" / "tmp"


def python_in(root: Path) -> str:
    return str(root / ".venv" / "bin" / "python")


def pip_install(root: Path, lock: int, *arguments: str, pip: tuple[str, ...] = ("-m", "pip")) -> None:
    command = [python_in(root), *pip, "install", "-qq", "--no-input", *arguments]
    if run(command, root=root, lock=lock).returncode:
        raise SetupError(f"pip could not install {arguments[-1]} (its message is above); fix that and run make again")


def install_pip(root: Path, lock: int) -> None:
    """Put pip into .venv.

    Debian's Python has no ensurepip until python3-venv is installed, so the machine's own pip is the usual way: run as
    a program by the Python of .venv, it works in .venv and the system's "externally managed" mark does not concern it.
    """
    found = importlib.util.find_spec("pip")
    if found is not None and found.submodule_search_locations:
        # --ignore-installed: the machine's pip also finds the machine's packages, which .venv does not have.
        pip_install(root, lock, "--ignore-installed", "pip", pip=(found.submodule_search_locations[0],))
    elif run([python_in(root), "-m", "ensurepip"], root=root, lock=lock, capture=True).returncode:
        raise SetupError(f"{sys.executable} has no pip; install it (on Debian: apt-get install python3-pip)")


def has_nvidia_gpu() -> bool:
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    try:
        # Container images carry nvidia-smi without a GPU: only a line that names one counts.
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and listing.stdout.startswith("GPU")


def listed_versions(listing: str) -> set[str]:
    """Read the versions out of what `pip index versions` prints.

    >>> sorted(listed_versions("torch (2.1)\\nAvailable versions: 2.1, 2.0+cpu, 2.0"))
    ['2.0', '2.0+cpu', '2.1']
    """
    line = re.search(r"^Available versions:(.*)$", listing, flags=re.MULTILINE)
    return set(re.split(r"[,\s]+", line[1].strip())) if line else set()


def install_torch(root: Path, lock: int, *, nvidia: bool, system: str) -> None:
    """Install torch: the build for a GPU if there is one, else the CPU build if it is available.

    On Linux the default build includes several GB of CUDA libraries. `pip install --dry-run` would show whether there
    is a CPU build, but older pips download the whole file for it; the list of versions is one small page.
    """
    plain = f"torch=={TORCH}"
    if nvidia or system != "Linux":
        return pip_install(root, lock, plain)
    listing = run([python_in(root), "-m", "pip", "index", "versions", "torch"], root=root, lock=lock, capture=True)
    if f"{TORCH}+cpu" in listed_versions(listing.stdout):
        return pip_install(root, lock, f"{plain}+cpu")
    # uv knows where the CPU builds are published; --no-deps leaves everything else to pip and its settings.
    with contextlib.suppress(SetupError):
        pip_install(root, lock, "uv")
        uv = [python_in(root), "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--torch-backend=cpu"]
        if run([*uv, "--python", python_in(root), plain], root=root, lock=lock, capture=True).returncode == 0:
            return None
    say("no CPU build of torch is available: installing the default one, with several GB of CUDA libraries")
    return pip_install(root, lock, plain)


def install(root: Path, lock: int, *constraints: str) -> None:
    """Make .venv; `constraints` are options of pip that hold packages to versions."""
    started = time.monotonic()
    say(f"making .venv with Python {platform.python_version()}; this takes a minute or a few, once")
    venv.create(root / ".venv", symlinks=True)
    temporary_folder(root).mkdir()
    install_pip(root, lock)
    nvidia = has_nvidia_gpu()
    say(f"installing torch {TORCH} ({'NVIDIA GPU' if nvidia else 'no NVIDIA GPU'} found)")
    install_torch(root, lock, nvidia=nvidia, system=platform.system())
    say("installing seqwise and the packages that its demo and tests need")
    # torch is named again so that no other package can move it.
    pip_install(root, lock, f"torch=={TORCH}", *constraints, "--editable", f".[{EXTRAS}]")
    remove(temporary_folder(root))
    say(f"done in {time.monotonic() - started:.0f} s")


def install_locked(root: Path, lock: int) -> None:
    """Make .venv with the exact versions of the last test run."""
    install(root, lock, "--constraint", CONSTRAINTS)


def main() -> int:
    if sys.argv[1:]:
        print("seqwise setup: it takes no arguments; run make setup", file=sys.stderr)
        return 2
    root = Path(__file__).resolve().parent.parent
    if Path(sys.prefix).resolve() == (root / ".venv").resolve():
        # Running in the .venv that may be removed: continue with the Python that it was made from.
        base = getattr(sys, "_base_executable", sys.executable)
        os.execv(base, [base, __file__])
    # Like Ctrl-C, kill and a closed terminal also end the running pip.
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    wanted_python = running_python() if os.environ.get("PYTHON") else None
    try:
        if os.environ.get("LOCKED"):
            make_ready(root, install_locked, wanted_python=wanted_python, wanted_lock=lock_of(root))
        else:
            make_ready(root, install, wanted_python=wanted_python)
    except SetupError as error:
        print(f"seqwise setup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("seqwise setup: interrupted; the next make starts again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
