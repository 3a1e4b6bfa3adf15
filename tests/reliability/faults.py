"""Processes that are made to die, or whose disk is made to fail, at a chosen moment of writing.

Whatever changes the disk below a folder is an event: a file opened for writing, a flush, a rename, a removal, a new
folder, a file that torch or safetensors write past Python. An event has a name such as ``rename model/a #1``, the
second time that this happens in the process. Children are forked from one process that has imported everything, so
that a kill costs a fraction of a second. For Linux.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (
    "torch", "transformers", "transformers.trainer", "command_line", "seqwise.cli", "seqwise.runs.training",
    "seqwise.runs.loading", "seqwise.runs.scoring", "seqwise.runs.sampling",
    "reliability.faults",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What becomes of a process at an event.

    Args:
        event: its name.
        how: "kill"; "power", which also halves whatever had not been flushed; or the name of an error number, which the
            disk answers with this once.
    """

    event: str
    how: str = "kill"


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, what it said, and the events in order."""

    code: int
    out: str
    err: str
    events: list[str]


@dataclass(frozen=True)
class Child:
    """A process that was started."""

    process: Any
    scratch: Path

    def wait(self) -> Ended:
        """Until it has ended."""
        self.process.join(600)
        assert self.process.exitcode is not None, "the child does not end"
        said = [(self.scratch / name).read_text() if (self.scratch / name).exists() else "" for name in ("out", "err")]
        log = self.scratch / "events"
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return Ended(self.process.exitcode, said[0], said[1], events)

    def kill_after(self, seconds: float) -> Ended:
        """Kill it then, if it is still there; code -9 if it was."""
        self.process.join(seconds)
        self.process.kill()
        return self.wait()


def start(function: Callable[..., int], *arguments: Any, root: Path, fault: Fault | None = None) -> Child:
    """Call a module-level function in a new process that watches a folder."""
    scratch = root.with_name(f"{root.name}.scratch")
    scratch.mkdir(parents=True, exist_ok=True)
    for path in scratch.iterdir():
        path.unlink()
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    process = CONTEXT.Process(target=_child, args=(function, arguments, root.resolve(), scratch, fault))
    with pytest.MonkeyPatch.context() as patch:
        # The process that children are forked from may not be told our path otherwise, and import another seqwise.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        process.start()
    return Child(process, scratch)


def run(function: Callable[..., int], *arguments: Any, root: Path, fault: Fault | None = None) -> Ended:
    """Start it and wait."""
    return start(function, *arguments, root=root, fault=fault).wait()


def command(*arguments: object, **application: Any) -> int:
    """A command line of seqwise, or of another application, on one thread."""
    import torch

    from command_line import exit_code

    torch.set_num_threads(1)
    return exit_code(*arguments, **application)


def _child(
    function: Callable[..., int], arguments: tuple[Any, ...], root: Path, scratch: Path, fault: Fault | None
) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ["COLUMNS"] = "80"
    _Watch(root, scratch / "events", fault).begin()
    code = function(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


class _Watch:
    """Counts the events below a folder, writes them down, and strikes at one of them."""

    def __init__(self, root: Path, log: Path, fault: Fault | None) -> None:
        self.root, self.fault = root, fault
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self.seen: Counter[str] = Counter()
        self.asleep = False
        # By inode, which a rename does not change: how much of a file a power cut would leave.
        self.flushed = {path.stat().st_ino: path.stat().st_size for path in root.rglob("*") if path.is_file()}

    def begin(self) -> None:
        import safetensors.torch
        import torch

        self._fsync, save, serialize = os.fsync, torch.save, safetensors.torch.serialize_file

        def watched_save(content: Any, path: Any, *others: Any, **named: Any) -> None:
            self.native(path, lambda: save(content, path, *others, **named))

        def watched_serialize(tensors: Any, path: Any, *others: Any, **named: Any) -> None:
            self.native(path, lambda: serialize(tensors, path, *others, **named))

        os.fsync = self.fsync
        torch.save, safetensors.torch.serialize_file = watched_save, watched_serialize
        sys.addaudithook(self.audit)

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.asleep:
            return
        if name == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.event("open", path)
        elif name == "os.rename":
            self.event("rename", arguments[1])
        elif name in ("os.remove", "os.rmdir", "os.mkdir"):
            folder = arguments[-1]  # shutil.rmtree names what it removes by a handle of its folder
            inside = "" if folder == -1 else f"{os.readlink(f'/proc/self/fd/{folder}')}/"
            self.event(name.removeprefix("os."), inside + os.fspath(arguments[0]))

    def fsync(self, handle: int) -> None:
        # The real one takes long, and what it does cannot be seen without cutting the power.
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        self.event("fsync", path)
        if path.is_file():
            self.flushed[path.stat().st_ino] = path.stat().st_size

    def native(self, path: Any, write: Callable[[], None]) -> None:
        """A write past Python, whose errors come from the real device that is always full."""
        full = self.fault is not None and self.fault.how == "ENOSPC" and self.name("write", path) == self.fault.event
        if full:
            self.asleep = True
            os.symlink("/dev/full", path)
            try:
                write()
            finally:
                os.unlink(path)
                self.asleep = False
        self.event("write", path)
        write()

    def name(self, what: str, path: Any) -> str:
        own = os.path.relpath(os.path.abspath(os.fsdecode(path)), self.root)
        own = re.sub(r"\.[0-9]+\.partial$", ".N.partial", own)  # the number of the process
        number = self.seen[f"{what} {own}"]
        return f"{what} {own}" + (f" #{number}" if number else "")

    def event(self, what: str, path: Any) -> None:
        own = os.path.abspath(os.fsdecode(path))
        if own != str(self.root) and not own.startswith(f"{self.root}/"):
            return
        name = self.name(what, own)
        self.seen[name.partition(" #")[0]] += 1
        os.write(self.log, json.dumps(name).encode() + b"\n")
        if self.fault is not None and name == self.fault.event:
            self.asleep = True
            self.strike(own)

    def strike(self, path: str) -> None:
        assert self.fault is not None
        if self.fault.how == "power":
            for file in (file for file in self.root.rglob("*") if file.is_file()):
                size, safe = file.stat().st_size, self.flushed.get(file.stat().st_ino, 0)
                if size > safe:
                    os.truncate(file, (size + safe) // 2)
        if self.fault.how in ("kill", "power"):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        self.asleep = False
        number = getattr(errno, self.fault.how)
        raise OSError(number, os.strerror(number), path)
