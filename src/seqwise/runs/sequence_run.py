"""What scoring and sampling need of a run, whether it was trained here or is a model of transformers.

Shapes: V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example, FilePath
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.sampling.problems import Ways
from seqwise.sampling.starts import FREE

__all__ = ["FREE", "SequenceRun", "Ways", "fingerprint_of"]


class SequenceRun(Protocol):
    """A masked model with what it takes to read sequences, and to write them."""

    @property
    def model(self) -> Any:
        """A masked model, and an nn.Module, in evaluation mode."""
        ...

    @property
    def settings(self) -> MaskedModelSettings:
        """Which units its sequences and sources have, and the format of its files."""
        ...

    @property
    def lengths(self) -> Mapping[int, int]:
        """How many training sequences have each length; empty where that is not known."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether each sequence has a source."""
        ...

    @property
    def allowed_V(self) -> Tensor:
        """Bool (V,): the tokens that may be proposed."""
        ...

    @property
    def unknown_id(self) -> int | None:
        """The unknown symbol, or None."""
        ...

    def read(self, path: FilePath) -> Sequence[Example]:
        """The sequences of a file, as targets."""
        ...

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Examples to ids."""
        ...

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The tokens of ids."""
        ...

    def phrase(self, text: str) -> Ways:
        """How a phrase may stand in a sequence."""
        ...

    @property
    def spell(self) -> Callable[[Sequence[int]], str] | None:
        """From ids to the text in which a phrase is looked for as words; None where it is looked for as tokens."""
        ...

    def require_free(self, free: str) -> None:
        """Refuse a mark of free positions that could be taken for something else."""
        ...

    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        """The ids of a sequence, FREE where it has the mark of free positions."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """A sequence as it would stand in a file."""
        ...

    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        """The same of an example with the mark of free positions; what was given stays as it was written."""
        ...

    def example_text(self, example: Example) -> str:
        """The sequence of an example as it was written."""
        ...

    def source_text(self, example: Example) -> str:
        """The source of an example as it was written."""
        ...

    def fingerprint(self) -> str:
        """What tells the model, with its vocabulary, from others."""
        ...


def fingerprint_of(model: nn.Module, vocabulary: str) -> str:
    """SHA-256 of a vocabulary, written out, and of all tensors of a model with their names."""
    found = hashlib.sha256(vocabulary.encode("utf-8", "surrogatepass"))
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        # numpy knows no bfloat16; the bytes are the same.
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
