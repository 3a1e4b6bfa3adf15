"""Jobs in threads, with progress and a stop signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


class Stopped(Exception):
    """Raised inside a job when it is asked to stop."""


@dataclass
class Job:
    """Job in a thread; it records its progress, and the page may ask it to stop."""

    part: str = ""  # name of the current part
    share: float | None = None  # progress, from 0 to 1; None if unknown
    began: float = field(default_factory=time.monotonic)  # monotonic time
    asked_to_stop: threading.Event = field(default_factory=threading.Event)  # set by the page

    def report(self, part: str, done: int, total: int) -> None:
        """Record progress, or raise Stopped if asked to stop."""
        if self.asked_to_stop.is_set():
            raise Stopped
        self.part, self.share = part, done / total


def latest(work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Wrap a function so that one call runs at a time; calls made meanwhile are merged into one run after it.

    Example:
        >>> import asyncio
        >>> seen = []
        >>> async def work():
        ...     seen.append(len(seen))
        ...     await asyncio.sleep(0)
        >>> async def three_calls():
        ...     call = latest(work)
        ...     await asyncio.gather(call(), call(), call())
        >>> asyncio.run(three_calls())
        >>> seen
        [0, 1]
    """
    running = again = False

    async def call() -> None:
        nonlocal running, again
        if running:
            again = True
            return
        running = True
        try:
            again = True
            while again:
                again = False
                await work()
        finally:
            running = False

    return call
