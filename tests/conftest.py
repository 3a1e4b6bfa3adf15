"""Set-up of all tests: one thread, fixed seeds, no network, the command line, and the corpora where there are any."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

# Before torch is imported, and inherited by the commands that tests start. One thread: the tensors are tiny, so more
# threads only wait for each other, and the order of sums stays the same from machine to machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# GPUs would round the products of LSTMs to 10 bits.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
# A test that needs a hub is a mistake; it must fail at once, not depend on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch

from command_line import Command, Ended, exit_code

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

REPOSITORY = Path(__file__).resolve().parent.parent

# Looking for doctests, pytest would import it a second time; a process has one such device.
collect_ignore = ["pretended.py"]


# A job in the background, or under nohup, starts with SIGINT ignored; some tests send it to their own process.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests kill processes, not machines; waiting for the disk was a quarter of the time of those that train.
# The order of writes to the disk is tested in tests/reliability/test_killed_training.py.
os.fsync = lambda fd: None


@pytest.fixture(autouse=True, scope="module")
def collected_once() -> None:
    """Keep existing objects out of the garbage collector, which took half the time of training runs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Start each test from the same random state, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    # torch.manual_seed would also note the whole stack, for a GPU that may be asked for one day.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def seqwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run one command line in this process: its exit code and what it said."""
    return in_process(monkeypatch, capsys)


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m reproductions``."""
    from reproductions.command import app

    return in_process(monkeypatch, capsys, application=app, name="python -m reproductions")


@pytest.fixture
def corpora_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m reproductions.corpora``."""
    from reproductions.corpora.command import app

    return in_process(monkeypatch, capsys, application=app, name="python -m reproductions.corpora")


@pytest.fixture
def language_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m reproductions.andreas_klein_2015``."""
    from reproductions.andreas_klein_2015.command import app

    return in_process(monkeypatch, capsys, application=app, name="python -m reproductions.andreas_klein_2015")


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **application: Any) -> Command:
    """Run an application as a command line, at a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = exit_code(*arguments, **application)
        said = capsys.readouterr()
        # The line that names the device, which depends on the machine.
        asked = any(str(argument).startswith("--device") for argument in arguments)
        return Ended(code, said.out, said.err if asked else re.sub(r"^running on \S+\n", "", said.err))

    return run


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of the public corpora; tests that need it are skipped where it is absent."""
    named = os.environ.get("SEQWISE_DATA")
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            pytest.fail(f"SEQWISE_DATA names {folder}, which is not a folder", pytrace=False)
        return folder
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("corpora absent: set SEQWISE_DATA to the folder that holds them")
    return folder
