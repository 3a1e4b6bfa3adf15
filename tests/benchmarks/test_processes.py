"""Peers in processes of their own: calls, missing peers, and the end of a process."""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])
    made: Callable[..., Any] = importlib.import_module("benchmarks.processes").own_process
    return made


def test_calls_are_answered_by_another_process(own_process: Callable[..., Any]) -> None:
    # The new process cannot import what a test defines.
    with own_process(attrgetter("function"), Namespace(function=eval)) as call:
        processes = {call("__import__('os').getpid()") for _ in range(2)}
        assert len(processes) == 1 and os.getpid() not in processes
    with pytest.raises(ProcessLookupError):
        os.kill(processes.pop(), 0)


def test_a_missing_peer_is_none(own_process: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    with own_process(importlib.import_module, "no_such_peer") as call:
        assert call is None
    assert "no_such_peer" in capfd.readouterr().err


def test_a_process_that_ends_ends_a_call(own_process: Callable[..., Any]) -> None:
    with own_process(attrgetter("function"), Namespace(function=os._exit)) as call, pytest.raises(EOFError):
        call(3)
