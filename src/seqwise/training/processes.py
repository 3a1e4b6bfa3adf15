"""Distributed processes, as started by ``torchrun``; without it, there is one process, of rank 0.

The environment sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``. (``PartialState`` of accelerate
imports torch, which ``--help`` does not need, and shares neither the result nor the error of the main process. If both
are used, it joins the process group that is made here.)
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from seqwise.errors import InputError
from seqwise.names import VISIBLE_GPUS

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

NO_TIMEOUT = timedelta(days=365)
"""Timeout for work whose processes synchronise only at the end."""


def rank() -> int:
    """Return the rank of this process, from 0.

    Example:
        >>> rank(), world_size(), is_main_process()
        (0, 1, True)
    """
    return int(os.environ.get("RANK", 0)) if world_size() > 1 else 0


def world_size() -> int:
    """Return the number of processes on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main_process() -> bool:
    """Whether this is rank 0, which prints and writes shared files."""
    return rank() == 0


def shard(items: Sequence[T]) -> Sequence[T]:
    """Return the items of this process: every N-th, for N processes."""
    return items[rank() :: world_size()]


DEVICE = "SEQWISE_DEVICE"
"""Environment variable with the device of commands; ``--device`` sets it, and workers inherit it."""

ONE_GPU = "SEQWISE_ONE_GPU"
"""Environment variable with the value of ``--device`` if it names one GPU, since all others are hidden."""


def local_device() -> torch.device:
    """Return the device of this process, which :data:`DEVICE` names; by default an accelerator if there is one.

    Raises:
        InputError: there is no such device, or there are more processes than GPUs.
    """
    import torch

    from seqwise.devices import find_device

    device = find_device(os.environ.get(DEVICE, "auto"), given=os.environ.get(ONE_GPU))
    if device.type != "cuda" or device.index is not None:
        return device
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if processes > gpus:
        hint = f"start {gpus} on each, or hide the GPUs with CUDA_VISIBLE_DEVICES= to use CPUs"
        raise InputError(f"{processes} processes on a machine with {gpus} GPUs", hint=hint)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def init_process_group(*, timeout: timedelta | None = None) -> None:
    """Join the process group, if there are other processes and this has not been done.

    The default timeout is 10 to 30 minutes; the death of a process is noticed sooner.
    """
    if world_size() == 1:
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=timeout)
    atexit.register(distributed.destroy_process_group)


def from_main_process(function: Callable[[], T]) -> T:
    """Call a function in the main process only, and return its result or raise its InputError in all processes.

    The others wait; the result must be picklable.
    """
    if world_size() == 1:
        return function()
    from torch import distributed

    outcome: list[Any] = [None, None]
    if is_main_process():
        try:
            outcome[0] = function()
        except InputError as error:
            outcome[1] = error
    distributed.broadcast_object_list(outcome, src=0)
    result, raised = outcome
    if raised is not None:
        raise raised
    return result


def from_all_processes(own: T) -> list[T]:
    """Gather a picklable value from every process, by rank, in all processes."""
    if world_size() == 1:
        return [own]
    from torch import distributed

    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, own)
    return values


def wait_for_everyone() -> None:
    """Wait until every process reaches this call."""
    if world_size() > 1:
        from torch import distributed

        distributed.barrier()


@contextmanager
def as_one_process() -> Iterator[None]:
    """Hide the other processes inside the context; each process keeps its own GPU, if any."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    gpus = os.environ.get(VISIBLE_GPUS)
    if "LOCAL_RANK" in before:
        local_rank = int(before["LOCAL_RANK"])
        # CUDA is not initialised yet, and the Hugging Face Trainer takes the first visible GPU.
        visible = [str(local_rank)] if gpus is None else gpus.split(",")[local_rank : local_rank + 1]
        os.environ[VISIBLE_GPUS] = ",".join(visible)
    try:
        yield
    finally:
        os.environ |= before
        if "LOCAL_RANK" in before:
            os.environ.pop(VISIBLE_GPUS)
            os.environ |= {} if gpus is None else {VISIBLE_GPUS: gpus}


@contextmanager
def silence_other_ranks() -> Iterator[None]:
    """Discard the output of other ranks; errors that they raise can be printed afterwards."""
    if is_main_process():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
