"""Peers in processes of their own, so that their threads, imports and memory do not slow the other systems."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["own_process"]

Make = Callable[[argparse.Namespace], Callable[[Any], Any]]
"""Function that imports a peer and makes a function of one argument; a module must hold it by name."""


@contextmanager
def own_process(make: Make, options: argparse.Namespace) -> Iterator[Callable[[Any], Any] | None]:
    """Call ``make`` in a new process; yield a function that runs there, or None if the peer is not installed."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, make, options), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process ends a call

    def call(argument: Any) -> Any:
        ours.send(argument)
        return ours.recv()

    try:
        yield call if ours.recv() else None
        ours.close()
        process.join(10)
    finally:
        process.kill()
        process.join()


def serve(pipe: Connection, make: Make, options: argparse.Namespace) -> None:
    """Send whether the peer is installed; then answer calls until the pipe is closed."""
    try:
        run = make(options)
    except ImportError as error:
        print(f"left out: {error}", file=sys.stderr)
        pipe.send(False)
        return
    pipe.send(True)
    while True:
        try:
            argument = pipe.recv()
        except EOFError:
            return
        pipe.send(run(argument))
