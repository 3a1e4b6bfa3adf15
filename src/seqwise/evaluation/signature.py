"""Signature of a result: method, seeds, data, versions, machine, day and revision, on one line."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from seqwise.data.readers import Example
from seqwise.errors import InputError


@dataclass(frozen=True)
class Signature:
    """Provenance of a result; `sign` makes it, `signature_line` prints it.

    ``data`` is the SHA-256 of the evaluated examples, ``date`` the day in UTC, and ``revision`` the git revision of the
    source (ending in "-dirty" if the code was edited), or None outside a checkout. ``training`` lists the training
    data: the SHA-256 of the training examples, then each of their files with its SHA-256, or each package with its
    version; it is empty in results from before it was recorded.
    """

    method: str
    seeds: tuple[int, ...]
    data: str
    seqwise: str
    torch: str
    python: str
    machine: str
    date: str
    revision: str | None = None
    training: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("method", "data", "seqwise", "torch", "python", "machine", "date"):
            check_text(name, getattr(self, name))
        if self.revision is not None:
            check_text("revision", self.revision)
        if not all(isinstance(seed, int) for seed in self.seeds):
            raise InputError(f"seeds must be whole numbers, got {self.seeds!r}")
        for name in ("seeds", "training"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for source in self.training:
            check_text("training", source)


def sign(method: str, *, seeds: Iterable[int], data: str, training: Iterable[str] = ()) -> Signature:
    """Sign a result made now, on this machine, by this code."""
    return Signature(
        method=method,
        seeds=tuple(seeds),
        data=data,
        seqwise=_own_version(),
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=describe_machine(),
        date=datetime.now(UTC).date().isoformat(),
        revision=_git_revision(Path(__file__)),
        training=tuple(training),
    )


def signature_line(signature: Signature) -> str:
    """Format the signature on one line, with hashes of 12 digits and without empty fields."""
    shown = {field.name: getattr(signature, field.name) for field in fields(signature)}
    training = (re.sub(r"\b[0-9a-f]{64}\b", lambda digest: digest[0][:12], source) for source in signature.training)
    shown |= {
        "seeds": ",".join(map(str, signature.seeds)), "data": signature.data[:12], "training": ", ".join(training)
    }  # fmt: skip
    return " | ".join(f"{name}:{' '.join(text.split())}" for name, text in shown.items() if text)


def sha256_of_examples(examples: Iterable[Example]) -> str:
    """Compute the SHA-256, in hexadecimal, of the examples in order, each as a line of ASCII JSON.

    A line is ``[[source tokens],[target tokens]]``, without paths and line numbers.
    """
    digest = hashlib.sha256()
    for example in examples:
        line = json.dumps([list(example.source), list(example.target)], separators=(",", ":")) + "\n"
        digest.update(line.encode("ascii"))
    return digest.hexdigest()


def describe_machine() -> str:
    """Describe the processor, the cores available to this process, and the GPU; never the host or user."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [_processor(), f"{cores} core" if cores == 1 else f"{cores} cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def check_text(name: str, value: Any) -> None:
    """Raise an InputError if a field is not text."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r}")


def _own_version() -> str:
    try:
        return metadata.version("seqwise")
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """Return the name of the processor, on Linux from /proc/cpuinfo, which the platform module does not read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown processor"


def _git_revision(file: Path) -> str | None:
    """Return git's short name of the checkout that tracks ``file``, or None.

    An installed copy may lie inside another project's checkout, so the file must be tracked.
    """

    def answer(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        answer("ls-files", "--error-unmatch", file.name)
        revision = answer("describe", "--always", "--exclude=*")
        # Code alone counts: results that a reproduction writes into the checkout do not change what ran.
        edited = answer("status", "--porcelain", "--untracked-files=no", "--", ":(top)*.py")
        return f"{revision}-dirty" if edited else revision or None
    except (OSError, subprocess.SubprocessError):
        return None
