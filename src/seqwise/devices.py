"""Where tensors lie, and what that costs: devices without 64-bit floats, and calls that the host waits for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no 64-bit floats."""


def widest_float(device: torch.device) -> torch.dtype:
    """Return the most precise type of floats that a device has: float64, or float32.

    Example:
        >>> widest_float(torch.device("cpu")), widest_float(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def reading_is_free(values: Tensor) -> bool:
    """Whether the host may look at values without waiting: on a CPU, where a look can save work.

    Elsewhere a look at a value stops the host until the device has done all that was asked of it.

    Example:
        >>> reading_is_free(torch.zeros(3))
        True
    """
    return values.device.type == "cpu"


def worth_reading(values: Tensor, step: int) -> bool:
    """Whether to look at values after a step, counted from 1: always if that is free, else after every eighth.

    Example:
        >>> worth_reading(torch.zeros(3), 1)
        True
    """
    return reading_is_free(values) or step % 8 == 0


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device, which the host does not wait for.

    Example:
        >>> values = torch.zeros(3)
        >>> moved(values, torch.device("cpu")) is values
        True
    """
    # Apple's devices may still read from the host's memory when the call has returned.
    return values.to(device, non_blocking=device.type != "mps")


def device_of(model: Any) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any.

    Example:
        >>> device_of(nn.Linear(2, 3))
        device(type='cpu')
    """
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device
