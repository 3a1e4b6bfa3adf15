"""Choosing a device, its widest float type, and avoiding synchronisation of host and device."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from seqwise.errors import InputError
from seqwise.names import VISIBLE_GPUS

__all__ = ["find_device"]

NAMES = "auto, cpu, cuda, cuda:N or mps"
"""Names of devices, as users give them."""

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no 64-bit floats."""


def find_device(name: str, *, given: str | None = None) -> torch.device:
    """Return the device with a name: auto (an accelerator if there is one, else the CPU), cpu, cuda, cuda:N or mps.

    If all GPUs but the one that the user named are hidden, ``given`` is the user's name of it, for messages.

    Raises:
        InputError: there is no such kind of device, or this machine has no such device.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return torch.device("cpu" if accelerator is None else accelerator.type)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}", hint=f"choose {NAMES}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    count = torch.accelerator.device_count() if accelerator is not None and accelerator.type == device.type else 0
    if (device.index or 0) >= count:
        if given is not None:  # what else the machine has cannot be seen
            hint = "choose auto, cpu or a GPU that nvidia-smi -L lists"
            raise InputError(f"this machine has no device {given!r}", hint=hint)
        has = "only the CPU"
        if accelerator is not None:
            has = f"{torch.accelerator.device_count()} of type {accelerator.type}"
        if device.type == "cuda" and VISIBLE_GPUS in os.environ:
            has += f" with {VISIBLE_GPUS}={os.environ[VISIBLE_GPUS]}"
        raise InputError(f"this machine has no device {name!r}", hint=f"it has {has}; choose auto or cpu")
    return device


def require_precision(device: torch.device, *, bf16: bool, fp16: bool, has_lstm: bool) -> None:
    """Raise an InputError if a device does not train in a 16-bit type.

    Example:
        >>> require_precision(torch.device("cpu"), bf16=False, fp16=True, has_lstm=False)
        Traceback (most recent call last):
        seqwise.errors.InputError: fp16: float16 needs a GPU, and there is none; leave it out
    """
    if device.type not in ("cpu", "mps"):
        return
    if fp16:
        raise InputError("fp16: float16 needs a GPU, and there is none", hint="leave it out")
    if bf16 and has_lstm:
        hint = "leave it out, or use another model"
        raise InputError("bf16: without a GPU, an LSTM does not compute in bfloat16", hint=hint)


def widest_float(device: torch.device) -> torch.dtype:
    """Return the most precise float type of a device: float64, or float32.

    Example:
        >>> widest_float(torch.device("cpu")), widest_float(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def reading_is_free(values: Tensor) -> bool:
    """Whether the host can read values without waiting, which is true on the CPU only.

    Elsewhere, reading a value blocks the host until the device has finished all queued operations.

    Example:
        >>> reading_is_free(torch.zeros(3))
        True
    """
    return values.device.type == "cpu"


def passes_are_cheap(values: Tensor) -> bool:
    """Whether many small operations take about as long as a few large ones, which is true on the CPU only.

    Elsewhere, starting an operation often takes longer than the operation.

    Example:
        >>> passes_are_cheap(torch.zeros(3))
        True
    """
    return values.device.type == "cpu"


def worth_reading(values: Tensor, step: int) -> bool:
    """Whether to read values after a step, counted from 1: always if that is free, else at every eighth step.

    Example:
        >>> worth_reading(torch.zeros(3), 1)
        True
    """
    return reading_is_free(values) or step % 8 == 0


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device, if they are not there yet, without blocking the host.

    Example:
        >>> values = torch.zeros(3)
        >>> moved(values, torch.device("cpu")) is values
        True
    """
    # With MPS, a non-blocking copy may still be reading the host's memory after the call has returned.
    return values.to(device, non_blocking=device.type != "mps")


def device_of(model: Any) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any.

    Example:
        >>> device_of(nn.Linear(2, 3))
        device(type='cpu')
    """
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def at_least_float32(values: Tensor) -> Tensor:
    """Convert values to float32 unless they are wider: a gap of 0.1 at score -50 is lost in bfloat16.

    Example:
        >>> [at_least_float32(torch.zeros(1, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
        [torch.float32, torch.float64]
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
