"""Sparse attention of BigBird and BigBirdPegasus, which Transformers switches off for good at a short input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_FIRST = "_seqwise_first_attention_type"


def switching_part(model: nn.Module) -> Any:
    """Return the part of a model that switches between sparse and full attention; None if there is none.

    The first time, it notes which of them is on.
    """
    part: Any = next((part for part in model.modules() if hasattr(type(part), "set_attention_type")), None)
    if part is not None:
        part.__dict__.setdefault(_FIRST, part.attention_type)
    return part


def attend_as_first(part: Any, length: int) -> None:
    """Switch the attention of a :func:`switching_part` back for an input of this length, if it is long enough.

    Transformers switches it off for shorter ones itself. Nothing is restored after a pass, because each switch makes
    new layers, which takes longer than a short pass.
    """
    if part is None or part.attention_type == part.__dict__[_FIRST]:
        return
    if length > (5 + 2 * part.config.num_random_blocks) * part.config.block_size:
        _switch(part, part.__dict__[_FIRST])


@contextmanager
def attention_restored(model: nn.Module) -> Iterator[None]:
    """Restore the kind of attention after an examination, which reads short inputs."""
    part = switching_part(model)
    before = None if part is None else part.attention_type
    try:
        yield
    finally:
        if part is not None:
            _switch(part, before)


def _switch(part: Any, kind: Any) -> None:
    with torch.random.fork_rng(devices=[]):  # the layers that are made are drawn before they get their weights
        part.set_attention_type(kind)
