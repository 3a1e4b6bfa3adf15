"""Jobs in worker processes, two at a time, each after the one that it needs; what they make lies in files."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Any

import torch
from rich.progress import Progress as ProgressBars
from rich.progress import TaskID

WORKERS = 2
"""How many jobs run at a time; 0: one after another in this process."""

ProgressFactory = Callable[[], AbstractContextManager[ProgressBars]]
"""Makes the progress bars of a reproduction."""

Report = Callable[[int, int, str], None]
"""Called by a job with the steps that are done, how many there will be, and a note."""

News = tuple[str, int, int, str]
"""A job's name and what it reported; an empty name ends the news."""


@dataclass(frozen=True)
class Job:
    """Something to do that leaves its result in files."""

    name: str  # told from all others, and printed
    # called with a :data:`Report`; a module-level function, or a ``functools.partial`` of one
    work: Callable[[Report], None]
    after: str | None = None  # the name of the job that has to be done before, where that is one of this list


def run_jobs(jobs: Sequence[Job], *, progress: ProgressFactory, num_workers: int | None = None) -> None:
    """Do every job, as many at a time as there are workers, each on one thread."""
    if not jobs:
        return
    with progress() as bars:
        whole = bars.add_task("cells", total=len(jobs), note="")
        tasks = {job.name: bars.add_task(job.name, total=None, visible=False, note="") for job in jobs}

        def finished(job: Job, seconds: float) -> None:
            bars.update(tasks[job.name], visible=False)
            bars.advance(whole)
            if bars.disable:  # no terminal: a line for each job instead of bars
                print(f"{job.name}: {seconds:.0f} s", file=sys.stderr, flush=True)

        if (WORKERS if num_workers is None else num_workers) == 0:
            for job in jobs:
                news: Queue[News] = Queue()
                finished(job, _do(job, news))
                while not news.empty():
                    _show(news.get(), bars, tasks)
        else:
            _in_processes(list(jobs), bars, tasks, finished, WORKERS if num_workers is None else num_workers)


def _in_processes(
    left: list[Job],
    bars: ProgressBars,
    tasks: Mapping[str, TaskID],
    finished: Callable[[Job, float], None],
    num_workers: int,
) -> None:
    context = multiprocessing.get_context("spawn")
    with _without_interrupts():
        manager = context.Manager()
    waiting, others = {job.name for job in left}, set(multiprocessing.active_children())
    with manager:
        news: Any = manager.Queue()
        listener = threading.Thread(target=_listen, args=(news, bars, tasks), daemon=True)
        listener.start()
        with concurrent.futures.ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_end_with_parent
        ) as pool:
            running: dict[concurrent.futures.Future[float], Job] = {}
            try:
                while left or running:
                    for job in [job for job in left if job.after not in waiting]:
                        left.remove(job)
                        with _without_interrupts():
                            running[pool.submit(_do, job, news)] = job
                    done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        job = running.pop(future)
                        finished(job, future.result())
                        waiting.remove(job.name)
            except BaseException:
                # The user waits for the message, not for the other jobs.
                for worker in set(multiprocessing.active_children()) - others:
                    worker.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                news.put(("", 0, 0, ""))
                listener.join()


def _end_with_parent() -> None:
    """End this worker when the process that started it has ended, in whatever way: nobody would read what it makes."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(job: Job, news: Queue[News]) -> float:
    """One job, in a worker or here; its CPU time."""
    # One thread each: the same numbers whatever the machine, and two jobs side by side on two cores.
    before, began = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)
    try:
        job.work(lambda step, steps, note: news.put((job.name, step, steps, note)))
    finally:
        torch.set_num_threads(before)
    return time.process_time() - began


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal; those started here leave it to this one, which stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(news: Queue[News], bars: ProgressBars, tasks: Mapping[str, TaskID]) -> None:
    while True:
        found = news.get()
        if not found[0]:
            return
        _show(found, bars, tasks)


def _show(found: News, bars: ProgressBars, tasks: Mapping[str, TaskID]) -> None:
    name, step, steps, note = found
    bars.update(tasks[name], completed=step, total=steps, note=note, visible=step < steps)
