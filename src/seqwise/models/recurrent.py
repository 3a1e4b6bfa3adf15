"""LSTM step models: a tagger with fixed attention, and an encoder-decoder with dot attention.

Shapes: B batch, J slots, S source length, T target length, D embedding of an output token, M encoder output,
H decoder hidden size and features, V output vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.characters import CharacterConvolution, num_spelt_words
from seqwise.models.hub import HubModel
from seqwise.models.look_ahead import NO_LOOK_AHEAD, LookAhead, Waiting, require_look_ahead
from seqwise.models.lstm_steps import LSTMState, LSTMSteps, read_both_ways, run_lstm
from seqwise.models.products import Linear


class _Encoded(NamedTuple):
    memory_BSM: Tensor
    mask_BS: Tensor
    lengths_B: Tensor


class Context(_Encoded):
    """Encoded sources: encoder outputs, the mask of real positions, and their number."""

    @cached_property
    def steps(self) -> LSTMSteps:
        """Parts shared by all steps along these sources; each context has its own."""
        return LSTMSteps()


EncoderPast = tuple[Tensor, Tensor, Waiting | tuple[()]]
"""Hidden and cell state of a left-to-right encoder, (B, 1, H), and with a look-ahead the words that wait."""


class Encoder(nn.Module):
    """Embedding and one-layer LSTM; outputs at real positions do not depend on the padding.

    With characters, sources are spelt, and character features are concatenated with word embeddings. With a
    :class:`LookAhead`, another LSTM reads the embeddings of a word and of later ones.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_size: int,
        hidden_size: int,
        bidirectional: bool,
        dropout: float,
        num_characters: int = 0,
        look_ahead: int = 0,
    ) -> None:
        super().__init__()
        require_look_ahead(look_ahead)
        if look_ahead and bidirectional:
            raise InputError(NO_LOOK_AHEAD, hint="leave look_ahead out, or use bidirectional=False")
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.characters = CharacterConvolution(num_characters) if num_characters else None
        self.dropout = nn.Dropout(dropout)
        input_size = embedding_size + (self.characters.output_size if self.characters else 0)
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)
        self.ahead = LookAhead(input_size, hidden_size, look_ahead=look_ahead) if look_ahead else None
        self.output_size = hidden_size * (2 if bidirectional or look_ahead else 1)

    @property
    def look_ahead(self) -> int:
        """Number of words read after each."""
        return 0 if self.ahead is None else self.ahead.size

    def num_outputs(self, source_ids: Sequence[int]) -> int:
        """Count the words of a source."""
        return num_spelt_words(source_ids) if self.characters else len(source_ids)

    def forward(self, sources_BS: Tensor, lengths_B: Tensor) -> Context:
        embedded_BSE, lengths_B = self._embedded(sources_BS, lengths_B)
        if not self.lstm.bidirectional:
            memory_BSM, _ = run_lstm(self.lstm, embedded_BSE)
            if self.ahead is not None:
                memory_BSM = self.ahead(memory_BSM, embedded_BSE, lengths_B)
        else:  # an empty source is read as one padding symbol, whatever else is in the batch
            memory_BSM = read_both_ways(self.lstm, embedded_BSE, lengths_B.clamp(min=1))
        return self._context(memory_BSM, lengths_B)

    def require_left_to_right(self) -> None:
        """Raise an InputError if the encoder also reads from right to left."""
        if self.lstm.bidirectional:
            raise InputError(READS_BOTH_WAYS, hint=LEFT_TO_RIGHT)

    def read(self, sources_BS: Tensor, lengths_B: Tensor, past: EncoderPast | None) -> tuple[Context, EncoderPast]:
        """Read the next words of sources, the same number of each; see `seqwise.models.StreamModel`."""
        self.require_left_to_right()
        embedded_BSE, _ = self._embedded(sources_BS, lengths_B)
        if past is not None and embedded_BSE.shape[1] == 1:  # a call of nn.LSTM has a large overhead
            hidden_B1H, cell_B1H = LSTMSteps().step(self.lstm, embedded_BSE, past[:2])
            outputs_BSH = hidden_B1H
        else:
            initial = None if past is None else tuple(leaf.transpose(0, 1).contiguous() for leaf in past[:2])
            outputs_BSH, state = run_lstm(self.lstm, embedded_BSE, initial)
            hidden_B1H, cell_B1H = (leaf.transpose(0, 1) for leaf in state)
        waiting: Waiting | tuple[()] = ()
        if self.ahead is not None:
            outputs_BSH, waiting = self.ahead.read(outputs_BSH, embedded_BSE, (past[2] or None) if past else None)
        return self._part(outputs_BSH), (hidden_B1H, cell_B1H, waiting)

    def read_end(self, past: EncoderPast) -> tuple[Context, EncoderPast]:
        """Read the ends of sources with a look-ahead."""
        hidden_B1H, cell_B1H, waiting = past
        assert self.ahead is not None and waiting
        memory_BSM, waiting = self.ahead.read_end(waiting)
        return self._part(memory_BSM), (hidden_B1H, cell_B1H, waiting)

    def _part(self, memory_BSM: Tensor) -> Context:
        """Return the context of parts of equally many words."""
        return self._context(memory_BSM, torch.full((len(memory_BSM),), memory_BSM.shape[1], device=memory_BSM.device))

    def _embedded(self, sources_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the word embeddings, (B, S, E), and the number of words of each source."""
        if sources_BS.shape[1] == 0:  # all are empty, which nn.LSTM refuses
            sources_BS = F.pad(sources_BS, (0, 1))
        if self.characters is None:
            return self.dropout(self.embedding(sources_BS)), lengths_B
        words_BS, lengths_B, features_BSF = self.characters(sources_BS, lengths_B)
        return self.dropout(torch.cat([self.embedding(words_BS), features_BSF], dim=-1)), lengths_B

    def _context(self, memory_BSM: Tensor, lengths_B: Tensor) -> Context:
        mask_BS = torch.arange(memory_BSM.shape[1], device=memory_BSM.device) < lengths_B.clamp(min=1)[:, None]
        return Context(self.dropout(memory_BSM), mask_BS, lengths_B)


READS_BOTH_WAYS = "the model reads its source both ways, and a stream has no end to read back from"
LEFT_TO_RIGHT = "train one with --encoder left-to-right, or over a causal model (--task tag --model gpt2)"
ONE_LABEL_EACH = "a tagger writes a label for each token: build the vocabulary of labels without end='</s>'"


def require_position(step: int, encoded_BSX: Tensor) -> None:
    """Raise an InputError for a tagger's step beyond the longest source."""
    if step >= encoded_BSX.shape[1]:
        problem = f"step {step} of a tagger has no source position: the longest source has {encoded_BSX.shape[1]}"
        raise InputError(problem, hint=ONE_LABEL_EACH)


def read_along(encoded_BSX: Tensor, inputs_BTD: Tensor) -> Tensor:
    """Return the encoder outputs for T labels, (B, T, X); raise an InputError if labels outnumber tokens."""
    num_labels, num_tokens = inputs_BTD.shape[1], encoded_BSX.shape[1]
    if num_labels > num_tokens:
        raise InputError(f"{num_labels} labels for a source of {num_tokens} tokens", hint=ONE_LABEL_EACH)
    return encoded_BSX[:, :num_labels]


class FixedAttentionTagger(nn.Module):
    """Tagger with fixed attention over any encoder; see :class:`Tagger` for its equations.

    The encoder maps sources (B, S) and their lengths (B,) to a :class:`Context` with M = ``output_size``. If it has
    fewer outputs than source tokens, its ``num_outputs(source_ids)`` counts them.
    """

    end: int | None = None

    encoder: Any

    def __init__(
        self, *, encoder: nn.Module, target_size: int, hidden_size: int, label_embedding_size: int, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.first_input_D = nn.Parameter(torch.randn(label_embedding_size))
        self.label_embedding = nn.Embedding(target_size, label_embedding_size)
        output_size: int = self.encoder.output_size
        self.decoder = nn.LSTM(label_embedding_size + output_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = Linear(hidden_size, target_size)

    def most_steps(self, source_ids: Sequence[int]) -> int:
        """Return the number of labels of a source."""
        count = getattr(self.encoder, "num_outputs", len)
        return int(count(source_ids))

    @property
    def embedding_VD(self) -> Tensor:
        """The label embeddings."""
        return self.label_embedding.weight

    def encode(self, batch: Batch) -> Context:
        """Read the sources."""
        return self.encoder(batch.sources_BS, batch.source_lengths_B)

    def require_left_to_right(self) -> None:
        """Raise an InputError if the encoder cannot read a source in pieces."""
        if not hasattr(self.encoder, "read"):
            problem = f"a {type(self.encoder).__name__} needs the whole source, and a stream has no end"
            raise InputError(problem, hint=LEFT_TO_RIGHT)
        self.encoder.require_left_to_right()

    @property
    def look_ahead(self) -> int:
        """Number of tokens read after each before it is labelled."""
        return getattr(self.encoder, "look_ahead", 0)

    def read(self, batch: Batch, past: Any) -> tuple[Context, Any]:
        """Read the next part of the sources."""
        context, past = self.encoder.read(batch.sources_BS, batch.source_lengths_B, past)
        return context, past

    def read_end(self, past: Any) -> tuple[Context, Any]:
        """Read the ends of the sources."""
        context, past = self.encoder.read_end(past)
        return context, past

    def start(self, context: Context) -> tuple[Tensor, LSTMState]:
        """Return the learned first input and a state of zeros."""
        batch_size = context.memory_BSM.shape[0]
        zeros = context.memory_BSM.new_zeros(batch_size, 1, self.decoder.hidden_size)
        return self.first_input_D.expand(batch_size, 1, -1), (zeros, zeros)

    def step(self, inputs_BJD: Tensor, state: LSTMState, context: Context, step: int) -> tuple[Tensor, LSTMState]:
        """Read encoder output ``step``, the same for every slot."""
        require_position(step, context.memory_BSM)
        state = context.steps.step(self.decoder, inputs_BJD, state, context.memory_BSM, step)
        return self.dropout(state[0]), state

    def forced(self, context: Context, inputs_BTD: Tensor) -> Tensor:
        """Compute features along given embeddings, all steps at once."""
        if inputs_BTD.shape[1] == 0:  # nn.LSTM refuses an empty sequence
            return context.memory_BSM.new_zeros(len(inputs_BTD), 0, self.decoder.hidden_size)
        memory_BTM = read_along(context.memory_BSM, inputs_BTD)
        return self.dropout(run_lstm(self.decoder, torch.cat([inputs_BTD, memory_BTM], dim=-1))[0])

    def teacher_forced(self, context: Context, targets_BT: Tensor) -> Tensor:
        """Compute features along the gold labels; positions after the end of a row are arbitrary."""
        return self.forced(context, shifted_right(self.first_input_D, self.label_embedding, targets_BT))


class Tagger(FixedAttentionTagger, HubModel):
    """LSTM tagger with *fixed attention*: step i of the decoder reads only encoder output i.

    ``h_i = LSTM(h_{i-1}, [E[y_{i-1}]; m_i])``, ``f(h_i, w) = W_w . h_i + b_w``; the decoder starts from zeros. With a
    left-to-right encoder, the i-th decision sees only x_1..x_i (classical label bias), or x_1..x_{i+N} with a
    look-ahead of N; with a bidirectional one, the whole source.

    Args:
        source_size: number of source symbols.
        target_size: number of labels V.
        embedding_size: size of a source embedding.
        hidden_size: size of the encoder (each direction) and of the decoder.
        label_embedding_size: size D of a fed label.
        bidirectional: whether the encoder also reads from right to left.
        dropout: rate on embeddings, encoder outputs and features.
        num_characters: number of characters. If above 0, each word also has features of its characters
            (``CharacterConvolution``), and sources are made by :func:`~seqwise.models.characters.spelt_source`; if 0,
            sources are word ids.
        look_ahead: number N of words read after each before it is labelled: ``m_i = [h_i; b_i]``, where another LSTM
            reads from word i + N, or the last one, back to word i.

    Raises:
        InputError: a negative look-ahead, or one of a bidirectional encoder.

    Source: Goyal et al. (AAAI 2018), section 3; Goyal et al. (NAACL 2019), section 4. Not implemented: several layers.

    Example:
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> model.embedding_VD.shape
        torch.Size([3, 2])
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import spelt_source
        >>> model = Tagger(source_size=5, target_size=3, num_characters=9)
        >>> batch = collate([EncodedExample(spelt_source([4, 0], [[1, 2], [8]]), (0, 1))])
        >>> model.encode(batch).lengths_B
        tensor([2])
    """

    encoder: Encoder

    def __init__(
        self,
        *,
        source_size: int,
        target_size: int,
        embedding_size: int = 64,
        hidden_size: int = 96,
        label_embedding_size: int = 16,
        bidirectional: bool = False,
        dropout: float = 0.1,
        num_characters: int = 0,
        look_ahead: int = 0,
    ) -> None:
        encoder = Encoder(
            vocabulary_size=source_size,
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            bidirectional=bidirectional,
            dropout=dropout,
            num_characters=num_characters,
            look_ahead=look_ahead,
        )
        super().__init__(
            encoder=encoder,
            target_size=target_size,
            hidden_size=hidden_size,
            label_embedding_size=label_embedding_size,
            dropout=dropout,
        )


class EncoderDecoder(nn.Module, HubModel):
    """Encoder-decoder with a bidirectional LSTM encoder, an LSTM decoder and dot attention.

    ``h_t = LSTM(h_{t-1}, E[y_{t-1}])``, attention ``a_t = softmax(m W h_t)`` over real source positions,
    ``features = tanh(U [h_t; a_t . m])``; the decoder starts from a projection of the encoder's two final outputs.

    Args:
        source_size: number of source symbols.
        target_size: number of output symbols V, end token included.
        end: id of the token that ends an output.
        embedding_size: size of source and output embeddings.
        hidden_size: size of each encoder direction and of the decoder.
        dropout: rate on embeddings, encoder outputs and features.

    Source: Luong et al. (2015) as used by Goyal et al. (NAACL 2019), section 4.2. Not implemented: input feeding.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> model = EncoderDecoder(source_size=5, target_size=3, end=2, embedding_size=4, hidden_size=8)
        >>> batch = collate([EncodedExample((1, 4), (0, 1, 2))])
        >>> model.head(model.teacher_forced(model.encode(batch), batch.targets_BT)).shape  # f, (B, T, V)
        torch.Size([1, 3, 3])
    """

    end: int | None

    def __init__(
        self,
        *,
        source_size: int,
        target_size: int,
        end: int,
        embedding_size: int = 64,
        hidden_size: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.end = end
        self.encoder = Encoder(
            vocabulary_size=source_size,
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            bidirectional=True,
            dropout=dropout,
        )
        memory_size = self.encoder.output_size
        self.first_input_D = nn.Parameter(torch.randn(embedding_size))
        self.target_embedding = nn.Embedding(target_size, embedding_size)
        self.bridge = Linear(memory_size, hidden_size)
        self.decoder = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.query = Linear(hidden_size, memory_size, bias=False)
        self.combine = Linear(hidden_size + memory_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.head = Linear(hidden_size, target_size)

    @property
    def embedding_VD(self) -> Tensor:
        """The output embeddings."""
        return self.target_embedding.weight

    def encode(self, batch: Batch) -> Context:
        """Read the sources."""
        return self.encoder(batch.sources_BS, batch.source_lengths_B)

    def _initial_state(self, context: Context) -> LSTMState:
        forward_BSM, backward_BSM = context.memory_BSM.chunk(2, dim=-1)
        last_B = (context.lengths_B - 1).clamp(min=0)
        rows_B = torch.arange(last_B.shape[0], device=last_B.device)
        final_BM = torch.cat([forward_BSM[rows_B, last_B], backward_BSM[:, 0]], dim=-1)
        hidden_B1H = torch.tanh(self.bridge(final_BM)).unsqueeze(1)
        return hidden_B1H, torch.zeros_like(hidden_B1H)

    def start(self, context: Context) -> tuple[Tensor, LSTMState]:
        """Return the learned first input and the projected final encoder outputs."""
        return self.first_input_D.expand(context.memory_BSM.shape[0], 1, -1), self._initial_state(context)

    def _attend(self, hidden_BJH: Tensor, context: Context) -> Tensor:
        scores_BJS = self.query(hidden_BJH) @ context.memory_BSM.transpose(1, 2)
        scores_BJS = scores_BJS.masked_fill(~context.mask_BS[:, None], torch.finfo(scores_BJS.dtype).min)
        attended_BJM = scores_BJS.softmax(-1) @ context.memory_BSM
        return self.dropout(torch.tanh(self.combine(torch.cat([hidden_BJH, attended_BJM], dim=-1))))

    def step(self, inputs_BJD: Tensor, state: LSTMState, context: Context, step: int) -> tuple[Tensor, LSTMState]:
        """Read the input embeddings and attend to the source; the step number is ignored."""
        state = context.steps.step(self.decoder, inputs_BJD, state)
        return self._attend(state[0], context), state

    def forced(self, context: Context, inputs_BTD: Tensor) -> Tensor:
        """Compute features along given embeddings, all steps at once."""
        if inputs_BTD.shape[1] == 0:  # nn.LSTM refuses an empty sequence
            return context.memory_BSM.new_zeros(len(inputs_BTD), 0, self.decoder.hidden_size)
        initial = tuple(leaf.transpose(0, 1).contiguous() for leaf in self._initial_state(context))
        return self._attend(run_lstm(self.decoder, inputs_BTD, initial)[0], context)

    def teacher_forced(self, context: Context, targets_BT: Tensor) -> Tensor:
        """Compute features along the gold outputs; positions after the end of a row are arbitrary."""
        return self.forced(context, shifted_right(self.first_input_D, self.target_embedding, targets_BT))


def shifted_right(first_input_D: Tensor, embedding: nn.Embedding, targets_BT: Tensor) -> Tensor:
    """Return the inputs of teacher forcing: the first input, then all gold tokens but the last."""
    first_B1D = first_input_D.expand(targets_BT.shape[0], 1, -1)
    # Ignored positions have a negative index; inputs there only affect positions that are ignored as well.
    return torch.cat([first_B1D, embedding(targets_BT[:, :-1].clamp(min=0))], dim=1)[:, : targets_BT.shape[1]]
