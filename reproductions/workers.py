"""Jobs in worker processes, several at a time, each after the one that it needs; what they make lies in files."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.progress import Progress as ProgressBars

from seqwise.errors import InputError

WORKERS = 2
"""How many jobs run at a time, as ``--workers`` says; 0: one after another in this process."""

ProgressFactory = Callable[[], AbstractContextManager[ProgressBars]]
"""Makes the progress bars of a reproduction."""

Report = Callable[[int, int, str], None]
"""Called by a job with the steps that are done, how many there will be, and a note."""


@dataclass(frozen=True)
class Job:
    """Something to do that leaves its result in files."""

    name: str  # told from all others, and printed
    work: Callable[[Report], None]  # a module-level function, or a ``functools.partial`` of one
    after: str | None = None  # the name of the job that has to be done before, where that is one of the list


def run_jobs(jobs: Sequence[Job], *, progress: ProgressFactory) -> None:
    """Do every job, as many at a time as there are workers, each on one thread.

    A mistake in one stops the others; what they have not written they will do again.
    """
    if not jobs:
        return
    with progress() as bars:
        whole = bars.add_task("cells", total=len(jobs), note="")
        tasks = {job.name: bars.add_task(job.name, total=None, visible=False, note="") for job in jobs}

        def show(name: str, step: int, steps: int, note: str) -> None:
            bars.update(tasks[name], completed=step, total=steps, note=note, visible=step < steps)

        def finish(job: Job, seconds: float) -> None:
            bars.update(tasks[job.name], visible=False)
            bars.advance(whole)
            if bars.disable:  # no terminal: a line for each job instead of bars
                print(f"{job.name}: {seconds:.0f} s", file=sys.stderr, flush=True)

        if WORKERS:
            _in_processes(list(jobs), show, finish)
        else:
            for job in jobs:
                finish(job, _do(job, partial(show, job.name)))


def _in_processes(
    left: list[Job], show: Callable[[str, int, int, str], None], finish: Callable[[Job, float], None]
) -> None:
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    waiting, others = {job.name for job in left}, set(multiprocessing.active_children())
    workers: set[multiprocessing.process.BaseProcess] = set()

    def listen() -> None:
        while (reported := news.get()) is not None:
            show(*reported)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    pool = concurrent.futures.ProcessPoolExecutor(
        WORKERS, mp_context=context, initializer=_begin_worker, initargs=(news,)
    )
    with pool:
        running: dict[concurrent.futures.Future[float], Job] = {}
        try:
            while left or running:
                for job in [job for job in left if job.after not in waiting]:
                    left.remove(job)
                    with _without_interrupts():
                        running[pool.submit(_do_in_worker, job)] = job
                workers |= set(multiprocessing.active_children()) - others
                done, _ = concurrent.futures.wait(running, 1.0, return_when=concurrent.futures.FIRST_COMPLETED)
                # The pool may begin to watch the last worker that it has started only with the next result.
                if not done and any(worker.exitcode is not None for worker in workers):
                    raise BrokenProcessPool
                for future in done:
                    job = running.pop(future)
                    finish(job, future.result())
                    waiting.remove(job.name)
        except BaseException as error:
            # The user waits for the message, not for the other jobs.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                hint = "the same command goes on; if the memory is full, give fewer --workers"
                raise InputError("a worker process was killed", hint=hint) from error
            raise
    # Not after a mistake: a worker that was terminated may have left the queue locked.
    news.put(None)
    listener.join()


_news: Any = None
"""Of a worker: the queue that takes what its jobs report."""


def _begin_worker(news: Any) -> None:
    """Keep the queue, and end this worker when the process that started it has ended, in whatever way."""
    global _news
    _news = news
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do_in_worker(job: Job) -> float:
    return _do(job, lambda step, steps, note: _news.put((job.name, step, steps, note)))


def _do(job: Job, report: Report) -> float:
    """Do a job; returns its CPU time."""
    began = time.process_time()
    with one_thread():
        job.work(report)
    return time.process_time() - began


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the same numbers whatever the machine, and two jobs side by side on two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal; those started here leave it to this one, which stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
