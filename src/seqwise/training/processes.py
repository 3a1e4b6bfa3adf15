"""Several processes that do one thing together, as ``torchrun`` starts them; without it there is one, of rank 0.

The environment says which: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``. (``PartialState`` of
accelerate imports torch, which ``--help`` can do without, and hands on neither the result of the main process nor its
error. Where both are in use, it joins the process group that is made here.)
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from seqwise.errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

NO_TIMEOUT = timedelta(days=365)
"""For work whose processes meet only when all of it is done."""


def rank() -> int:
    """Return the number of this process, from 0.

    Example:
        >>> rank(), world_size(), is_main_process()
        (0, 1, True)
    """
    return int(os.environ.get("RANK", 0)) if world_size() > 1 else 0


def world_size() -> int:
    """Return the number of processes on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main_process() -> bool:
    """Whether this is rank 0, which prints, and writes the files that there is one of."""
    return rank() == 0


def shard(items: Sequence[T]) -> Sequence[T]:
    """Return the items of this process: each item has one process, and neighbours have different ones."""
    return items[rank() :: world_size()]


def local_device() -> torch.device:
    """Return the GPU of this process, or the CPU where there is none; refuse more processes than GPUs."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if here > gpus:
        hint = f"start {gpus} on each, or hide the GPUs with CUDA_VISIBLE_DEVICES= to use CPUs"
        raise InputError(f"{here} processes on a machine with {gpus} GPUs", hint=hint)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def init_process_group(*, timeout: timedelta | None = None) -> None:
    """Join the other processes, if there are any and it has not been done.

    One waits for another 10 to 30 minutes if no timeout is given; a process that dies is noticed sooner.
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
    """Return the result of a function that the main process alone calls, or raise its InputError, in all processes.

    The others wait for it; the result has to survive pickling.
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
    result, refusal = outcome
    if refusal is not None:
        raise refusal
    return result


def wait_for_everyone() -> None:
    """Continue once every process has come here."""
    if world_size() > 1:
        from torch import distributed

        distributed.barrier()


@contextmanager
def silence_other_ranks() -> Iterator[None]:
    """Discard what the other ranks print; what they raise can be printed afterwards."""
    if is_main_process():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
