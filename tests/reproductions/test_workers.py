"""Workers of reproductions: they end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import contextlib, os, sys, time
from functools import partial
from pathlib import Path
from rich.progress import Progress
from reproductions.workers import Job, run_jobs

def work(folder, name, report):
    (folder / f"{name}.part").write_text(str(os.getpid()))
    (folder / f"{name}.part").rename(folder / name)
    time.sleep(600)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    jobs = [Job(name, partial(work, folder, name)) for name in ("a", "b")]
    run_jobs(jobs, progress=lambda: contextlib.nullcontext(Progress(disable=True)))
"""


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that nobody has asked after."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("killed", "ab")
def test_all_end_with_a_worker_that_is_killed(killed: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, script, tmp_path]
    parent = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
        workers = {name: int((tmp_path / name).read_text()) for name in "ab"}
        os.kill(workers[killed], signal.SIGKILL)
        _, said = parent.communicate(timeout=30)
        assert parent.returncode == 1 and "InputError: a worker process was killed; the same command resumes" in said
        assert wait_for(lambda: not any(map(is_alive, workers.values())), 30)
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, script, tmp_path], start_new_session=True)
    try:
        assert wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
        workers = [int((tmp_path / name).read_text()) for name in "ab"]
        assert all(map(is_alive, workers)) and parent.pid not in workers
        parent.send_signal(how)
        parent.wait(30)
        assert wait_for(lambda: not any(map(is_alive, workers)), 30)
    finally:
        with_it = [parent.pid] if parent.poll() is None else []
        for pid in with_it:
            os.killpg(pid, signal.SIGKILL)
