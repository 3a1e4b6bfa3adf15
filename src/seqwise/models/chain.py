"""Tagger whose scores form a linear chain, so that its log partition and best output can be computed exactly.

Shapes: B batch, J slots, S source length, T steps, D embedding of a fed label (here V), V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.hub import HubModel
from seqwise.models.products import Linear
from seqwise.models.recurrent import Context, Encoder, EncoderPast, read_along, require_position, shifted_right


class Chain(NamedTuple):
    """Output scores that decompose over neighbours: ``s(y) = sum_t u_t[y_t] + sum_{t > 1} A[y_{t-1}, y_t]``.

    Attributes:
        scores_BTV: u; positions beyond a row's length are ignored.
        transitions_VV: A, from the row's label to the column's; minus infinity forbids a transition.
        lengths_B: int64, number of labels of each output, at most T.
    """

    scores_BTV: Tensor
    transitions_VV: Tensor
    lengths_B: Tensor


def linear_chain(
    scores_BTV: Tensor,
    transitions_VV: Tensor,
    lengths_B: Tensor,
    *,
    start_V: Tensor | None = None,
    end_V: Tensor | None = None,
) -> Chain:
    """Make a chain; scores for starting and ending with a label are added to those of the first and last position.

    Args:
        scores_BTV: score of each label at each position.
        transitions_VV: score of a label (column) after another (row).
        lengths_B: int64, number of labels of each output.
        start_V: score of each label at the first position, or None.
        end_V: score of each label at the last position, or None.

    Raises:
        InputError: the shapes do not fit, or a length is negative or more than T.

    Example:
        >>> chain = linear_chain(
        ...     torch.zeros(1, 3, 2), torch.zeros(2, 2), torch.tensor([2]), start_V=torch.ones(2), end_V=torch.ones(2)
        ... )
        >>> chain.scores_BTV[0, :, 0]
        tensor([1., 1., 0.])
    """
    given = [scores_BTV, transitions_VV, lengths_B, *(ends_V for ends_V in (start_V, end_V) if ends_V is not None)]
    size_B, size_V = scores_BTV.shape[:1], scores_BTV.shape[2:]
    expected = [scores_BTV.shape[:3], size_V + size_V, size_B, *[size_V] * (len(given) - 3)]
    if scores_BTV.ndim != 3 or [tensor.shape for tensor in given] != expected:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
        problem = "a chain needs scores (B, T, V), transitions (V, V), lengths (B,) and scores of starts and ends (V,)"
        raise InputError(f"{problem}, got {shapes}")
    num_steps = scores_BTV.shape[1]
    if not bool(((lengths_B >= 0) & (lengths_B <= num_steps)).all()):
        raise InputError(f"the lengths of a chain must lie between 0 and {num_steps}, got {lengths_B.tolist()}")
    positions_T = torch.arange(num_steps, device=scores_BTV.device)
    for added_V, position_B1 in ((start_V, torch.zeros_like(lengths_B)[:, None]), (end_V, lengths_B[:, None] - 1)):
        if added_V is not None:
            scores_BTV = scores_BTV + torch.where((positions_T == position_B1)[..., None], added_V, 0.0)
    return Chain(scores_BTV, transitions_VV, lengths_B)


class ChainContext(NamedTuple):
    """Encoded sources: the score of each label at each position, without transitions, and the lengths."""

    scores_BSV: Tensor
    lengths_B: Tensor


class ChainTagger(nn.Module, HubModel):
    """LSTM tagger in which the score of a label depends only on the source and the previous label.

    ``f_t(y_t | y_{t-1}) = (W m_t + b)[y_t] + A[y_{t-1}, y_t]``, with m_t the encoder's output and a learned row of A in
    place of the first label's predecessor. As a step model, its label embeddings are the rows of A, its decoder state
    is empty, and its features are the scores themselves, so every search and objective applies. Normalised at each
    step, it is a maximum-entropy Markov model; normalised globally, a conditional random field, for which
    :meth:`chain` returns the input of :mod:`seqwise.objectives.chain`.

    Args:
        source_size: number of source symbols.
        target_size: number of labels V.
        embedding_size: size of a source embedding.
        hidden_size: size of the encoder (each direction).
        bidirectional: whether the encoder also reads from right to left.
        dropout: rate on embeddings and encoder outputs.
        num_characters, look_ahead: see :class:`~seqwise.models.Tagger`.

    Raises:
        InputError: a negative look-ahead, or one of a bidirectional encoder.

    Source: Lafferty et al. (ICML 2001); Lample et al. (NAACL 2016) for the LSTM. Not implemented: scores for ending
    with a label, for which a step model would need the length.

    Example:
        >>> model = ChainTagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8)
        >>> model.embedding_VD.shape
        torch.Size([3, 3])
    """

    end: int | None = None

    def __init__(
        self,
        *,
        source_size: int,
        target_size: int,
        embedding_size: int = 64,
        hidden_size: int = 96,
        bidirectional: bool = False,
        dropout: float = 0.1,
        num_characters: int = 0,
        look_ahead: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(
            vocabulary_size=source_size,
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            bidirectional=bidirectional,
            dropout=dropout,
            num_characters=num_characters,
            look_ahead=look_ahead,
        )
        self.label_scores = Linear(self.encoder.output_size, target_size)
        self.first_input_D = nn.Parameter(torch.zeros(target_size))
        self.transitions = nn.Embedding(target_size, target_size)
        nn.init.normal_(self.transitions.weight, std=0.1)  # the default, 1, would outweigh the source at first
        self.head = nn.Identity()

    @property
    def embedding_VD(self) -> Tensor:
        """The transitions: the embedding of a label holds the scores of the labels that may follow it."""
        return self.transitions.weight

    def most_steps(self, source_ids: Sequence[int]) -> int:
        """Return the number of labels of a source."""
        return self.encoder.num_outputs(source_ids)

    def encode(self, batch: Batch) -> ChainContext:
        """Read the sources and score every label at every position."""
        context = self.encoder(batch.sources_BS, batch.source_lengths_B)
        return ChainContext(self.label_scores(context.memory_BSM), context.lengths_B)

    def require_left_to_right(self) -> None:
        """Raise an InputError if the encoder also reads from right to left."""
        self.encoder.require_left_to_right()

    @property
    def look_ahead(self) -> int:
        """Number of tokens read after each before it is labelled."""
        return self.encoder.look_ahead

    def read(self, batch: Batch, past: EncoderPast | None) -> tuple[ChainContext, EncoderPast]:
        """Read the next part of the sources."""
        return self._scored(*self.encoder.read(batch.sources_BS, batch.source_lengths_B, past))

    def read_end(self, past: EncoderPast) -> tuple[ChainContext, EncoderPast]:
        """Read the ends of the sources."""
        return self._scored(*self.encoder.read_end(past))

    def _scored(self, context: Context, past: EncoderPast) -> tuple[ChainContext, EncoderPast]:
        return ChainContext(self.label_scores(context.memory_BSM), context.lengths_B), past

    def chain(self, context: ChainContext) -> Chain:
        """Return the chain of the outputs that are as long as their sources."""
        return linear_chain(context.scores_BSV, self.transitions.weight, context.lengths_B, start_V=self.first_input_D)

    def start(self, context: ChainContext) -> tuple[Tensor, Tensor]:
        """Return the scores of first labels, and an empty state."""
        batch_size = context.scores_BSV.shape[0]
        return self.first_input_D.expand(batch_size, 1, -1), context.scores_BSV.new_zeros(batch_size, 1, 0)

    def step(self, inputs_BJD: Tensor, state: Tensor, context: ChainContext, step: int) -> tuple[Tensor, Tensor]:
        """Add the transition scores of the previous label, or of a mixture of labels, to those of the source."""
        require_position(step, context.scores_BSV)
        return context.scores_BSV[:, step, None] + inputs_BJD, state

    def forced(self, context: ChainContext, inputs_BTD: Tensor) -> Tensor:
        """Compute features along given embeddings, all steps at once."""
        return read_along(context.scores_BSV, inputs_BTD) + inputs_BTD

    def teacher_forced(self, context: ChainContext, targets_BT: Tensor) -> Tensor:
        """Compute features along the gold labels; positions after the end of a row are arbitrary."""
        return self.forced(context, shifted_right(self.first_input_D, self.transitions, targets_BT))
