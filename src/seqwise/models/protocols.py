"""What search needs from a model, and nothing else."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from seqwise.data.batches import Batch

__all__ = ["ParallelModel", "StepModel"]


class StepModel(Protocol):
    """A model that writes its output one token at a time, for J hypotheses of each of B inputs.

    In the notation of the thesis a step is ``h_t = r(h_{t-1}, e_t)`` and ``f(h_t, w)`` is :meth:`head` of the features.
    The fed embedding ``e_t`` is handed over as a vector, not as a token, so that a mixture can be fed as well.

    Attributes:
        end: the token that ends an output, or None where the output is exactly as long as the search
            (tagging).

    Shapes: B batch, J slots, V vocabulary, T target length, D embedding, H features.
    """

    end: int | None

    @property
    def embedding_VD(self) -> Tensor:
        """The embedding of every output token, as it is fed back."""
        ...

    def encode(self, batch: Batch) -> Any:
        """Read the sources once; the result is handed unchanged to :meth:`start` and :meth:`step`."""
        ...

    def start(self, context: Any) -> tuple[Tensor, Any]:
        """Return the first fed embedding, (B, 1, D), and a state whose leaves are (B, 1, ...)."""
        ...

    def step(self, inputs_BJD: Tensor, state: Any, context: Any, step: int) -> tuple[Tensor, Any]:
        """Consume the fed embeddings; return features of shape (B, J, H) and the next state."""
        ...

    def head(self, features: Tensor) -> Tensor:
        """Unnormalised scores f of every token: (..., H) to (..., V)."""
        ...

    def teacher_forced(self, context: Any, targets_BT: Tensor) -> Tensor:
        """Features (B, T, H) along the gold target, all steps at once; equal to T calls of :meth:`step`."""
        ...


class ParallelModel(StepModel, Protocol):
    """A step model that can take all its steps at once where everything that it is fed is known beforehand."""

    def forced(self, context: Any, inputs_BTD: Tensor) -> Tensor:
        """Features (B, T, H) along any fed embeddings, the first one included; equal to T calls of :meth:`step`."""
        ...
