"""Progress where no bar can be redrawn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rich.progress import Progress, TaskID

from seqwise.cli.console import err

__all__ = ["LineProgress"]


class LineProgress(Progress):
    """Progress for a log or a pipe, which no bar can be redrawn in: a line now and then, none of what is soon over."""

    def __init__(self, *, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console=err(), disable=True)
        self.every, self.clock = every, clock
        self.next_line = clock() + every

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """One step, or more."""
        self.update(task_id, advance=advance)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and say how far it is if the last line is long ago."""
        super().update(task_id, **changes)
        if self.clock() < self.next_line:
            return
        self.next_line = self.clock() + self.every
        task = self.tasks[self.task_ids.index(task_id)]
        total = "" if task.total is None else f" of {task.total:,.0f}"
        left = "" if task.time_remaining is None else f", {timedelta(seconds=task.time_remaining)} left"
        note = f"; {task.fields['note']}" if task.fields.get("note") else ""
        print(f"{task.description}: {task.completed:,.0f}{total}{left}{note}", file=sys.stderr, flush=True)
