"""Sparse attention of BigBird and BigBirdPegasus, which Transformers switches off for good at a short input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def switching_part(model: nn.Module) -> Any:
    """Return the part of a model that switches between sparse and full attention; None if there is none."""
    return next((part for part in model.modules() if hasattr(type(part), "set_attention_type")), None)


@contextmanager
def attention_restored(model: nn.Module) -> Iterator[None]:
    """Restore the kind of attention afterwards, so that long inputs are read as before any short one.

    Only without gradients: in training, layers that are recomputed must find the attention of the forward pass.
    """
    part = None if torch.is_grad_enabled() else switching_part(model)
    before = None if part is None else part.attention_type
    try:
        yield
    finally:
        if part is not None:
            part.set_attention_type(before)
