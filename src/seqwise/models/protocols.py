"""Protocols of models: all that search and sampling need from one."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from seqwise.data.batches import Batch


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


class StreamModel(StepModel, Protocol):
    """A tagger that reads its sources from left to right, and a label of which depends on nothing that comes later."""

    def require_left_to_right(self) -> None:
        """Raise an :class:`~seqwise.errors.InputError` if the sources cannot be read piece by piece."""
        ...

    def read(self, batch: Batch, past: Any) -> tuple[Any, Any]:
        """Read what comes next of each source, as many words of each.

        Args:
            batch: the next pieces of the sources.
            past: what the call for the pieces before returned; None at the beginning.

        Returns:
            The context of these pieces alone, whose steps are counted from 0, and the past of those that follow: a nest
            of tensors (B, ...). Inputs whose pasts are of several sizes may be put together, zeros at the end.
        """
        ...


class MaskedModel(Protocol):
    """A model that scores every token at positions which it does not see.

    In the notation of the thesis, ``f(w, h(y without t))`` for each masked position t.

    Attributes:
        vocab_size: V, how many tokens are scored.
        mask_id: what the model puts in the place of a masked token; it may lie outside 0..V-1.

    Shapes: N sequences, T positions of the longest, M masked positions in all of them, V vocabulary. The models of this
    package also take sequences of several lengths, with ``IGNORE`` after the end of the shorter ones, where nothing is
    read and nothing may be masked. Samplers and energies ask for one length at a time, which is all that a model must
    be able to do.
    """

    vocab_size: int
    mask_id: int

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Unnormalised scores (M, V) at the masked positions, in row-major order.

        The model puts the mask there itself, so that what ``tokens_NT`` holds at masked positions plays no part. The
        head is applied at masked positions only.
        """
        ...
