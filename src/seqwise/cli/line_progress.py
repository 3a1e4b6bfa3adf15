"""Line-based progress, and estimates of the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rich.progress import Progress, Task, TaskID, TimeRemainingColumn
from rich.text import Text

from seqwise.cli.console import err


def _seconds_left(task: Task) -> int | None:
    """Estimate the seconds left from the last half minute, or from the task's field ``pace``, in seconds per step.

    A task's field ``seconds_left`` overrides the estimate.
    """
    given: float | None = task.fields.get("seconds_left")
    if given is not None:
        return round(given)
    if task.time_remaining is not None:
        return int(task.time_remaining)
    pace = task.fields.get("pace")
    return None if pace is None or task.remaining is None else round(pace * task.remaining)


def time_left(task: Task) -> str | None:
    """Format the time left, as a range from the task's field ``earliest_end`` if that is shorter."""
    seconds = _seconds_left(task)
    if seconds is None:
        return None
    earliest = round(task.fields.get("earliest_end", seconds))
    latest = f"{timedelta(seconds=seconds)}"
    return latest if earliest >= seconds else f"{timedelta(seconds=earliest)}-{latest}"


class TimeLeftColumn(TimeRemainingColumn):
    """Column of the time left."""

    def render(self, task: Task) -> Text:
        return Text(time_left(task) or "-:--:--", style="progress.remaining")


class LineProgress(Progress):
    """Progress in a log or pipe, where bars cannot be redrawn: a line at intervals."""

    def __init__(self, *, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console=err(), disable=True)
        self.every, self.clock = every, clock
        self.next_line = clock() + every

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        self.update(task_id, advance=advance)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a task, and print a line if the last one is old."""
        super().update(task_id, **changes)
        if self.clock() < self.next_line:
            return
        self.next_line = self.clock() + self.every
        task = self.tasks[self.task_ids.index(task_id)]
        total = "" if task.total is None else f" of {task.total:,.0f}"
        left = "" if time_left(task) is None else f", {time_left(task)} left"
        note = f"; {task.fields['note']}" if task.fields.get("note") else ""
        print(f"{task.description}: {task.completed:,.0f}{total}{left}{note}", file=sys.stderr, flush=True)
