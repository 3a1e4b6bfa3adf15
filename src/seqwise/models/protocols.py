"""Protocols of models: everything that search and sampling need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError


class StepModel(Protocol):
    """Model that writes its output one token at a time, for J hypotheses of each of B inputs.

    In the notation of the thesis, a step is ``h_t = r(h_{t-1}, e_t)`` and ``f(h_t, w)`` is :meth:`head` of the
    features. The input embedding ``e_t`` is passed as a vector, not as a token, so that mixtures can be fed.

    Attributes:
        end: the token that ends an output, or None if the output is exactly as long as the search (tagging).

    Two more attributes are optional: ``language``, which restricts the outputs of searches
    (:mod:`seqwise.search.language`), and ``gradient_checkpointing``, whether the backward pass recomputes the steps of
    a search to save memory (``seqwise.search.segments``).

    Shapes: B batch, J slots, V vocabulary, T target length, D embedding, H features.
    """

    end: int | None

    @property
    def embedding_VD(self) -> Tensor:
        """The input embedding of every output token."""
        ...

    def encode(self, batch: Batch) -> Any:
        """Encode the sources once, into a nest of tensors with a row for each input, (B, ...).

        The searches pass it unchanged to :meth:`start` and :meth:`step`; objectives that score several outputs of each
        input repeat its rows.
        """
        ...

    def start(self, context: Any) -> tuple[Tensor, Any]:
        """Return the first input embedding, (B, 1, D), and a state whose leaves are (B, 1, ...)."""
        ...

    def step(self, inputs_BJD: Tensor, state: Any, context: Any, step: int) -> tuple[Tensor, Any]:
        """Read the input embeddings; return features of shape (B, J, H) and the next state."""
        ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Function that computes the unnormalised score f of every token from features: (..., H) to (..., V)."""
        ...

    def teacher_forced(self, context: Any, targets_BT: Tensor) -> Tensor:
        """Compute features (B, T, H) along the gold target, all steps at once; equal to T calls of :meth:`step`."""
        ...


class ParallelModel(StepModel, Protocol):
    """Step model that can take all steps at once if all its inputs are known."""

    def forced(self, context: Any, inputs_BTD: Tensor) -> Tensor:
        """Compute features (B, T, H) along given embeddings, the first included; equal to T calls of :meth:`step`."""
        ...


class StreamModel(StepModel, Protocol):
    """Tagger that reads its sources from left to right, so that no label depends on tokens beyond its look-ahead.

    Attributes:
        look_ahead: number N of tokens read after each before it is labelled; 0 if there is no such attribute.
    """

    def require_left_to_right(self) -> None:
        """Raise an :class:`~seqwise.errors.InputError` if the sources cannot be read in pieces."""
        ...

    def read(self, batch: Batch, past: Any) -> tuple[Any, Any]:
        """Read the next piece of each source, with the same number of words.

        Args:
            batch: the next pieces of the sources.
            past: the past that the previous call returned; None at the beginning.

        Returns:
            The context of these pieces alone, with steps counted from 0, and the past for the next pieces, a nest of
            tensors (B, ...). Pasts of different sizes may be batched, padded with zeros at the end. With a look-ahead,
            each context is N words behind: the first one lacks the last N words of the piece.
        """
        ...

    def read_end(self, past: Any) -> tuple[Any, Any]:
        """Read the ends of the sources; only called with a look-ahead.

        Returns:
            The context of the last N words, or of all words if there were fewer, and the past.
        """
        ...


def reads_left_to_right(model: object) -> bool:
    """Whether a model reads its source from left to right, as a :class:`StreamModel` does.

    Example:
        >>> from seqwise.models import Tagger
        >>> [reads_left_to_right(Tagger(source_size=5, target_size=3, bidirectional=both)) for both in (False, True)]
        [True, False]
    """
    if not hasattr(model, "require_left_to_right"):
        return False
    try:
        model.require_left_to_right()
    except InputError:
        return False
    return True


def require_evaluation_mode(model: object) -> None:
    """Raise an :class:`~seqwise.errors.InputError` if a model, or the one that it adapts, is in training mode."""
    if getattr(getattr(model, "model", model), "training", False):
        raise InputError("a model is in training mode, where dropout changes its scores", hint="call model.eval()")


class MaskedModel(Protocol):
    """Model that scores every token at masked positions.

    In the notation of the thesis, ``f(w, h(y without t))`` for each masked position t.

    Attributes:
        vocab_size: V, number of tokens that are scored.
        mask_id: id that replaces a masked token; it may lie outside 0..V-1.

    Shapes: N sequences, T positions of the longest, M masked positions in all of them, V vocabulary. The models of this
    package also take sequences of different lengths, padded with ``IGNORE``, which is not read and must not be masked.
    Samplers and energies only pass sequences of one length.

    Tokens and masked positions may be on the CPU whatever the model's device: samplers keep them there, and only the
    context and the scores are on the device.
    """

    vocab_size: int
    mask_id: int

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Compute unnormalised scores (M, V) at the masked positions, in row-major order.

        The model inserts the mask itself, so the values of ``tokens_NT`` at masked positions have no effect. The head
        is applied only at masked positions.
        """
        ...
