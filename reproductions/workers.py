"""Jobs in parallel worker processes, each after the job that it depends on; their results are files."""

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
"""Number of parallel jobs (``--workers``); 0: jobs run in this process, one at a time."""

ProgressFactory = Callable[[], AbstractContextManager[ProgressBars]]
"""Function that makes the progress bars of a reproduction."""

Report = Callable[[int, int, str], None]
"""Function that a job calls with the number of steps done, their total, and a note."""


@dataclass(frozen=True)
class Job:
    """Work that writes its result to files."""

    name: str  # unique; it is printed
    work: Callable[[Report], None]  # a module-level function, or a ``functools.partial`` of one
    after: str | None = None  # name of the job to wait for, if it is in the list


def run_jobs(jobs: Sequence[Job], *, progress: ProgressFactory) -> None:
    """Run every job, as many at a time as there are workers, each on one thread; an error in one stops the others."""
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
    reports = context.Queue()
    waiting, others = {job.name for job in left}, set(multiprocessing.active_children())
    workers: set[multiprocessing.process.BaseProcess] = set()

    def listen() -> None:
        while (report := reports.get()) is not None:
            show(*report)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    pool = concurrent.futures.ProcessPoolExecutor(
        WORKERS, mp_context=context, initializer=_begin_worker, initargs=(reports,)
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
                # The pool may not watch its newest worker before the next result arrives.
                if not done and any(worker.exitcode is not None for worker in workers):
                    raise BrokenProcessPool
                for future in done:
                    job = running.pop(future)
                    finish(job, future.result())
                    waiting.remove(job.name)
        except BaseException as error:
            # The user should see the message without waiting for the other jobs.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                hint = "the same command resumes; if memory has run out, give fewer --workers"
                raise InputError("a worker process was killed", hint=hint) from error
            raise
    # Not after an error: a worker that was terminated may have left the queue locked.
    reports.put(None)
    listener.join()


_reports: Any = None
"""Queue of the reports of a worker's jobs; set in workers only."""


def _begin_worker(reports: Any) -> None:
    """Store the queue, and exit as soon as the parent process has ended, for whatever reason."""
    global _reports
    _reports = reports
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do_in_worker(job: Job) -> float:
    return _do(job, lambda step, steps, note: _reports.put((job.name, step, steps, note)))


def _do(job: Job, report: Report) -> float:
    """Do a job, and return its CPU time."""
    began = time.process_time()
    with one_thread():
        job.work(report)
    return time.process_time() - began


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that numbers do not depend on the number of cores, and jobs can run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in processes started here; Ctrl-C reaches them all, but only this process stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
