"""Several processes that do one thing together, as ``torchrun`` starts them; without it there is one, the first.

What each has to know is in its environment: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``.
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

__all__ = [
    "WITHOUT_END",
    "from_first",
    "is_first",
    "join",
    "number_of",
    "only_first_speaks",
    "own_device",
    "rank",
    "share",
    "wait_for_all",
]

T = TypeVar("T")

WITHOUT_END = timedelta(days=365)
"""For work whose processes meet only when all of it is done."""


def rank() -> int:
    """The number of this process, from 0.

    Example:
        >>> rank(), number_of(), is_first()
        (0, 1, True)
    """
    return int(os.environ.get("RANK", 0)) if number_of() > 1 else 0


def number_of() -> int:
    """How many processes there are, on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_first() -> bool:
    """Whether this is the process that speaks, and writes what there is one of."""
    return rank() == 0


def share(items: Sequence[T]) -> Sequence[T]:
    """What of some items falls to this process: each item falls to one, and neighbours to different ones.

    Example:
        >>> share([3, 1, 2])
        [3, 1, 2]
    """
    return items[rank() :: number_of()]


def own_device() -> torch.device:
    """The GPU of this process, or the CPU where there is none.

    Raises:
        InputError: the machine has fewer GPUs than processes.

    Example:
        >>> own_device().type in ("cpu", "cuda")
        True
    """
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if here > gpus:
        mend = f"start {gpus} on each, or hide the GPUs with CUDA_VISIBLE_DEVICES= to use CPUs"
        raise InputError(f"{here} processes on a machine with {gpus} GPUs", mend=mend)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def join(*, patience: timedelta | None = None) -> None:
    """Meet the other processes, if there are any and they have not met; what follows may wait for them.

    Args:
        patience: how long one waits for another, 10 to 30 minutes if left out; a process that dies is noticed sooner.

    Raises:
        InputError: as :func:`own_device`.
    """
    if number_of() == 1:
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=patience)
    atexit.register(distributed.destroy_process_group)


def from_first(function: Callable[[], T]) -> T:
    """What a function returns, called by the first process alone; the others wait for it.

    Args:
        function: its result has to survive pickling.

    Raises:
        InputError: in all processes, if the function raises it.

    Example:
        >>> from_first(lambda: 7)
        7
    """
    if number_of() == 1:
        return function()
    from torch import distributed

    said: list[Any] = [None, None]
    if is_first():
        try:
            said[0] = function()
        except InputError as error:
            said[1] = error
    distributed.broadcast_object_list(said, src=0)
    found, refusal = said
    if refusal is not None:
        raise refusal
    return found


def wait_for_all() -> None:
    """Go on once every process has come here."""
    if number_of() > 1:
        from torch import distributed

        distributed.barrier()


@contextmanager
def only_first_speaks() -> Iterator[None]:
    """Within it, what the other processes print goes nowhere; what they raise can be printed after it."""
    if is_first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
