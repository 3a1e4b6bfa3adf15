"""Streams: tokens arrive one by one, labels are emitted, and some are revised before they are final.

Shapes: B streams of a batch, K slots of a beam, T open labels, D embedding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise import tree
from seqwise.data.batches import Batch
from seqwise.decoding import Decoder, as_decoder, evaluation_mode
from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.models.recurrent import LEFT_TO_RIGHT
from seqwise.names import DecoderName, ScoreName
from seqwise.runs.codecs import OutputCodec
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.run import Run, require_loaded, require_purpose
from seqwise.search.beam import Beam, unroll
from seqwise.search.candidates import Score, as_score
from seqwise.search.commits import COMMITTED, CommitRule, Committing, OpenLabels, as_commit_rule, best_labels
from seqwise.search.language import language_of
from seqwise.search.noise import no_noise

Ids = tuple[int, ...]
Name = TypeVar("Name", bound=Hashable)


class Update(NamedTuple):
    """Labels after new tokens of a stream: names for a run, ids for a model.

    Attributes:
        committed: labels that became final, in the order of the tokens. They are never retracted.
        partial: the best labels so far of the remaining tokens, which may still change. If the model looks ahead N
            tokens, the last N tokens have no label yet.
        retracted: labels of the previous ``partial`` from the first changed one on, to be erased from the end of a
            display (erasure: Arivazhagan et al., IWSLT 2020).
    """

    committed: tuple[Any, ...]
    partial: tuple[Any, ...]
    retracted: tuple[Any, ...]


class Streams:
    """Many streams searched as one batch; a stream joins when it is first fed and leaves when it is finished.

    The labels of a stream depend neither on the other streams nor on how its tokens are split over calls.

    Args:
        run_or_model, decoder, k, score, commit: see :class:`Stream`.

    Raises:
        InputError: see :class:`Stream`.

    Example:
        >>> from seqwise.models import Tagger
        >>> streams = Streams(Tagger(source_size=5, target_size=3).eval(), k=2, commit="delay(1)")
        >>> updates = streams.feed({"a": [1, 2, 3], "b": [4]})
        >>> [(len(update.committed), len(update.partial)) for update in updates.values()]
        [(2, 1), (0, 1)]
        >>> len(streams.finish("a").committed), streams.names
        (1, ('b',))
    """

    def __init__(
        self,
        run_or_model: Any,
        decoder: Decoder | DecoderName | None = None,
        *,
        k: int | None = None,
        score: Score | ScoreName | None = None,
        commit: CommitRule | str = "agree",
    ) -> None:
        require_loaded(run_or_model)
        self._model = run_or_model
        self._encode: Callable[[Sequence[Any]], tuple[Ids, list[Ids]]]
        self._encode = functools.partial(_encode_ids, run_or_model)
        self._labels: Callable[[Ids], tuple[Any, ...]] = tuple
        if isinstance(run_or_model, Run):
            require_purpose(run_or_model.codec, "predict")
            self._model = run_or_model.model
            self._encode = functools.partial(_encode_words, run_or_model.codec)
            self._labels = functools.partial(_label_names, run_or_model.codec.target_vocabulary.tokens)
        if not hasattr(self._model, "require_left_to_right"):
            problem = f"the model ({type(self._model).__name__}) needs the whole source, and a stream has no end"
            raise InputError(problem, hint=LEFT_TO_RIGHT)
        self._model.require_left_to_right()
        self._look_ahead: int = getattr(self._model, "look_ahead", 0)
        self._language = language_of(self._model)
        if self._language is not None and not getattr(self._language, "is_open_ended", False):
            problem = "a stream needs a language whose outputs may end after every token, and may always go on"
            raise InputError(problem, hint="predict whole sequences, or in Python set model.language to None")
        chosen = _decoder(run_or_model, decoder, k)
        if getattr(chosen.selector, "noise", no_noise) is not no_noise:
            raise InputError("a stream takes no selector with noise", hint="leave the noise out")
        self._selector = Committing(chosen.selector, as_commit_rule(commit))
        self._score = chosen.score if score is None else as_score(score)
        self._partial: dict[Hashable, Ids] = {}  # of all streams
        self._places: dict[Hashable, int] = {}  # rows of the state, of the streams with a label, in order
        self._state: _State | None = None
        self._held: dict[Hashable, list[Ids]] = {}  # words of streams that are too short for a first label

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of the streams that have joined and not left, in that order."""
        return tuple(self._partial)

    def score(self, name: Hashable) -> float:
        """Score of the best labels of a stream so far, summed over all its tokens."""
        self._require(name)
        if self._state is None or name not in self._places:
            return 0.0
        row = self._places[name]
        return float(self._state.dropped_B[row] + self._state.scores_BK[row].max())

    @torch.no_grad()
    def feed(self, tokens: Mapping[Name, Iterable[Any]]) -> dict[Name, Update]:
        """Read the next tokens of some streams and continue the search; an error leaves all streams unchanged.

        Args:
            tokens: new tokens of each stream, possibly none; an unknown name starts a stream.

        Raises:
            InputError: a token cannot be read, or the model has no positions left.
        """
        words = self._words(tokens)
        fed: dict[Hashable, list[Ids]] = {name: given for name, given in words.items() if given}
        held = dict[Hashable, list[Ids]]()
        if self._look_ahead:
            joining = {name: given for name, given in fed.items() if name not in self._places}
            joining = {name: self._held.get(name, []) + given for name, given in joining.items()}
            held = {name: given for name, given in joining.items() if len(given) <= self._look_ahead}
            fed = {name: given for name, given in (fed | joining).items() if name not in held}
        old, idle, new = list(self._places), list[Hashable](), list[Hashable]()
        if list(fed) != old:
            old, idle = [name for name in old if name in fed], [name for name in old if name not in fed]
            new = [name for name in fed if name not in self._places]
        committed: dict[Hashable, Ids] = {}
        parts: list[tuple[list[Hashable], _State]] = []
        if idle and self._state is not None:
            parts.append((idle, self._rows(idle)))
        with evaluation_mode(self._model):
            for names in _by_length(held):  # only to refuse now a word that cannot be read
                self._read([held[name] for name in names], None)
            if old:
                parts += self._advance(old, self._rows(old), fed, committed)
            if new:
                parts += self._advance(new, None, fed, committed)
        before = [self._partial.get(name, ()) for name in words]
        self._partial |= {name: () for name in words if name not in self._partial}
        self._held = {name: given for name, given in (self._held | held).items() if name not in fed}
        if parts:
            names = parts[0][0] if len(parts) == 1 else [name for part, _ in parts for name in part]
            self._put(names, _joined([state for _, state in parts]))
        return {
            name: self._update(partial, committed.get(name, ()), self._partial[name])
            for name, partial in zip(words, before, strict=True)
        }

    def finish(self, name: Hashable) -> Update:
        """Commit all labels of a stream that are open or still missing, and remove it.

        Raises:
            InputError: no stream has that name, or it is finished, or the last labels cannot be found; it is open then.
        """
        return self.finish_all([name])[name]

    def finish_all(self, names: Iterable[Name]) -> dict[Name, Update]:
        """Finish several streams at once, which saves time if the model looks ahead; after an error, all are open.

        Raises:
            InputError: see :meth:`finish`.
        """
        finished = list(dict.fromkeys(names))
        for name in finished:
            self._require(name)
        last = self._last_labels(finished) if self._look_ahead else self._partial
        updates = {name: self._update(self._partial[name], last[name], ()) for name in finished}
        for name in finished:
            # The next call of ``feed`` removes the row of the state, together with those of other finished streams.
            for known in (self._partial, self._places, self._held):
                known.pop(name, None)
        return updates

    @torch.no_grad()
    def _last_labels(self, names: Sequence[Hashable]) -> dict[Hashable, Ids]:
        """Search to the ends of streams whose model looks ahead, and return their open labels."""
        found: dict[Hashable, Ids] = dict.fromkeys(names, ())

        def search(group: list[Hashable], state: _State | None, past: Any, num_steps: int) -> None:
            context, past = self._model.read_end(past)
            state, committed = self._searched(state, context, past, num_steps)
            best = _labels(best_labels(state.labels_BKT, state.scores_BK))
            found.update({name: early + late for name, early, late in zip(group, committed, best, strict=True)})

        with evaluation_mode(self._model):
            if started := [name for name in names if name in self._places]:
                state = self._rows(started)
                search(started, state, state.past, self._look_ahead)
            for group in _by_length({name: self._held[name] for name in names if name in self._held}):
                words = [self._held[name] for name in group]
                search(group, None, self._read(words, None)[1], len(words[0]))
        return found

    def state_dict(self) -> dict[str, Any]:
        """State from which all streams continue bit for bit: names and nested tensors, for ``torch.save``."""
        rows = list(self._places)
        tensors = tree.map(torch.clone, self._rows(rows)._asdict()) if rows else {}
        held = dict(self._held)
        return {"streams": list(self._partial), "rows": rows, "tensors": tensors, "held": held, "sizes": self._sizes()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`; the run or model and the options must be the same.

        Raises:
            InputError: it is not such a state, or the model has other sizes, another dtype, or a language where that
                one had none.
        """
        hint = "give the state_dict of a stream of this run or model"
        try:
            names, rows, tensors = list(state["streams"]), list(state["rows"]), state["tensors"]
            held = dict(state["held"])
            restored = _State(**tensors) if rows else None
            width = self._model.embedding_VD.shape[1]
            fits = restored is None or restored.inputs_BKD.shape[::2] == (len(rows), width)
            own = self._sizes()
            fits = fits and state["sizes"] == own
            in_a_language = self._language is not None if restored is None else bool(restored.nodes)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(f"this is not the state of a stream ({error!r})", hint=hint) from None
        if not fits:
            raise InputError("the state is that of a model with other sizes or another dtype", hint=hint)
        if in_a_language != (self._language is not None):
            which = "a language" if in_a_language else "no language"
            raise InputError(f"the state is that of a model with {which}", hint=hint)
        device = self._model.embedding_VD.device
        self._partial, self._held = dict.fromkeys(names, ()), held
        self._put(rows, None if restored is None else tree.map(lambda leaf: leaf.to(device), restored))

    def _sizes(self) -> list[list[Any]]:
        """Return the look-ahead, and dtype and shape of each parameter, on which the tensors of the state depend."""
        is_module = isinstance(self._model, torch.nn.Module)
        parameters = self._model.parameters() if is_module else [self._model.embedding_VD]
        return [[self._look_ahead], *([str(parameter.dtype), *parameter.shape] for parameter in parameters)]

    def _put(self, names: list[Hashable], state: _State | None) -> None:
        """Set the state of all streams that have been fed, one per row, and read their partial labels from it."""
        self._places = {name: row for row, name in enumerate(names)}
        self._state = state
        if state is not None:
            self._partial |= zip(names, _labels(best_labels(state.labels_BKT, state.scores_BK)), strict=True)

    def _require(self, name: Hashable) -> None:
        if name not in self._partial:
            raise InputError(f"there is no stream {name!r}, or it is finished", hint="feed it first")

    def _words(self, tokens: Mapping[Name, Iterable[Any]]) -> dict[Name, list[Ids]]:
        """Return the ids of each word of each stream, encoded for all streams at once."""
        if not isinstance(tokens, Mapping):
            problem = f"a {type(tokens).__name__} where a mapping was expected"
            raise InputError(problem, hint="write feed({name: [token]}), or use a Stream")
        for given in tokens.values():
            if isinstance(given, str) or not isinstance(given, Iterable):
                problem = f"one {'text' if isinstance(given, str) else type(given).__name__} where tokens were expected"
                raise InputError(problem, hint="write feed([token]), or feed(text.split())")
        pieces = {name: list(given) for name, given in tokens.items()}
        before, encoded = self._encode([token for given in pieces.values() for token in given])
        words, end = {}, 0
        for name, given in pieces.items():
            start, end = end, end + len(given)
            words[name] = encoded[start:end]
        for name, given in words.items():
            if before and given and name not in self._places:
                given[0] = before + given[0]
        return words

    def _rows(self, names: Sequence[Hashable]) -> _State:
        """Return the state of some of the streams, in this order."""
        assert self._state is not None
        return _selected(self._state, [self._places[name] for name in names], len(self._state.scores_BK))

    def _advance(
        self,
        names: list[Hashable],
        state: _State | None,
        words: Mapping[Hashable, list[Ids]],
        committed: dict[Hashable, Ids],
    ) -> list[tuple[list[Hashable], _State]]:
        """Search to the end of each stream's words, in rounds of equally many words; return the final states."""
        parts, done = list[tuple[list[Hashable], _State]](), 0
        while True:
            lengths = [len(words[name]) for name in names]
            until = min(lengths)
            context, past = self._read([words[name][done:until] for name in names], state.past if state else None)
            num_steps = until - done - (0 if state else self._look_ahead)
            state, labels = self._searched(state, context, past, num_steps)
            for name, row in zip(names, labels, strict=True):
                if row:
                    committed[name] = committed.get(name, ()) + row
            if until == max(lengths):
                return [*parts, (names, state)]
            ended = [row for row, name in enumerate(names) if len(words[name]) == until]
            parts.append(([names[row] for row in ended], _selected(state, ended, len(names))))
            others = [row for row, name in enumerate(names) if len(words[name]) > until]
            state = _selected(state, others, len(names))
            names, done = [names[row] for row in others], until

    def _read(self, words: Sequence[Sequence[Ids]], past: Any) -> tuple[Any, Any]:
        """Return context and past after the same number of words of each input."""
        batch = _batch(words).to(self._model.embedding_VD.device)
        try:
            context, past = self._model.read(batch, past)
        except IndexError:
            raise InputError("a token is not an id of the model's vocabulary", hint="look it up there") from None
        return context, past

    def _searched(self, state: _State | None, context: Any, past: Any, num_steps: int) -> tuple[_State, list[Ids]]:
        """Continue the search by some labels of each input; return the state and committed labels."""
        beam = carry = None
        if state is not None:
            beam, carry = state.beam, state.carry
        columns: list[Tensor] = []
        steps = unroll(
            self._model,
            context,
            self._selector,
            num_steps=num_steps,
            score=self._score,
            language=self._language,
            carry=carry,
            beam=beam,
        )
        for step in steps:
            beam, carry = step.beam, step.carry
            columns.append(carry.committed_BT)
        assert beam is not None and carry is not None
        best_B = beam.scores_BK.amax(1)
        if bool(best_B.isnan().any()):  # comparisons with NaN would leave any labels as the best
            raise InputError("the model's scores are not numbers", hint="check its weights")
        if bool((best_B == -torch.inf).any()):
            raise InputError("the model excludes every label for a token", hint="check which tokens its scores exclude")
        return _State.of(past, beam, carry), _labels(torch.cat(columns, dim=1))

    def _update(self, before: Ids, committed: Ids, partial: Ids) -> Update:
        now = committed + partial if committed else partial
        retracted: Ids = ()
        if now[: len(before)] != before:
            retracted = before[next(place for place, label in enumerate(before) if now[place] != label) :]
        return Update(self._labels(committed), self._labels(partial), self._labels(retracted))


class Stream:
    """Label a sequence while it arrives, with the one search loop and labels that become final early.

    After each token, ``commit`` decides how many of the first labels are final, and slots that disagree with them are
    dropped. If none are dropped (``"never"``, ``"agree"``), the labels are those of the whole-sequence search. Global
    scores can revise a label when later tokens contradict it; local scores rarely can (label bias).

    Args:
        run_or_model: run of a tagger, whose tokens are words and whose labels are names; or a model
            (:class:`~seqwise.models.StreamModel`), whose labels are ids and whose tokens are words as in
            ``EncodedExample.source_ids``: an id each, or a tuple of the ids of the pieces. It must read from left to
            right: LSTM taggers, chains, and ``pretrained_tagger`` over a causal Hugging Face model.
        decoder: :class:`~seqwise.decoding.Decoder` or its name; by default that of the run, or "beam".
        k: beam size; by default the run's, or 5.
        score: replaces the score of the decoder: "local", "global", ``interpolated(0.5)``.
        commit: "agree" (if all slots agree), "margin(m)" (if the best slot leads by m), "delay(d)"
            (d tokens after a label is first shown), "never", or several joined by "or"; or a function,
            :data:`~seqwise.search.commits.CommitRule`.

    Memory and time per token depend on the number of open labels, not on the number of tokens so far. Only a delay
    bounds the number of open labels, so use "agree or delay(50)" for a stream without an end. A Hugging Face model
    keeps keys and values of all tokens, and its number of positions is limited.

    Raises:
        InputError: the model is not left-to-right, its language is not open-ended
            (:class:`~seqwise.search.automata.Automaton`), or the decoder, score or rule is unknown.

    Source: Brown et al. (ICASSP 1982), "partial traceback", for committing what all hypotheses share. Not
    implemented: models with an end token, selectors with noise.

    Example:
        >>> from seqwise.models import Tagger
        >>> stream = Stream(Tagger(source_size=5, target_size=3).eval(), k=3, score="global", commit="delay(1)")
        >>> update = stream.feed([4, 0])
        >>> len(update.committed), len(update.partial)
        (1, 1)
        >>> stream.finish().committed == update.partial
        True
    """

    def __init__(
        self,
        run_or_model: Any,
        decoder: Decoder | DecoderName | None = None,
        *,
        k: int | None = None,
        score: Score | ScoreName | None = None,
        commit: CommitRule | str = "agree",
    ) -> None:
        self._streams = Streams(run_or_model, decoder, k=k, score=score, commit=commit)
        self._streams.feed({_ONLY: ()})

    @property
    def score(self) -> float:
        """Score of the best labels so far, summed over all tokens."""
        self._require_open()
        return self._streams.score(_ONLY)

    def feed(self, tokens: Iterable[Any]) -> Update:
        """Read the next tokens and return the changes; an error leaves the stream unchanged.

        Raises:
            InputError: the stream is finished, or a token cannot be read.
        """
        self._require_open()
        return self._streams.feed({_ONLY: tokens})[_ONLY]

    def finish(self) -> Update:
        """Commit all labels that are open or still missing.

        Raises:
            InputError: the stream is finished, or the last labels cannot be found.
        """
        self._require_open()
        return self._streams.finish(_ONLY)

    def state_dict(self) -> dict[str, Any]:
        """State from which the stream continues bit for bit, for ``torch.save``."""
        return self._streams.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`; the run or model and the options must be the same.

        Raises:
            InputError: it is not such a state, or the model has other sizes, another dtype, or a language where that
                one had none.
        """
        if isinstance(state, Mapping) and not {_ONLY} >= set(state.get("streams", ())):
            problem = "the state is that of several streams"
            raise InputError(problem, hint="load it into Streams; give a Stream the state_dict of a Stream")
        self._streams.load_state_dict(state)

    def _require_open(self) -> None:
        if not self._streams.names:
            raise InputError("the stream is finished", hint="begin another Stream")


_ONLY = "stream"


class _State(NamedTuple):
    """State of B streams: the state of the encoder, the beam, and the carry of the selector."""

    past: Any
    scores_BK: Tensor
    inputs_BKD: Tensor
    decoder: Any
    labels_BKT: Tensor
    dropped_B: Tensor
    nodes: tuple[Tensor, ...] = ()  # of the slots in the language of the model, (B, K), if it has one

    @staticmethod
    def of(past: Any, beam: Beam, carry: OpenLabels) -> _State:
        """Return the state after some steps; the open labels are the history of the beam, and matrices are rebuilt."""
        if not (carry.inner is None or isinstance(carry.inner, Matrices)):
            raise InputError("the selector remembers more than its slots", hint="use HardTopK, SoftTopK or viterbi")
        nodes = () if beam.nodes_BK is None else (beam.nodes_BK,)
        return _State(past, beam.scores_BK, beam.inputs_BKD, beam.state, carry.labels_BKT, carry.dropped_B, nodes)

    @property
    def beam(self) -> Beam:
        """Beam to continue from."""
        zeros_BK = torch.zeros_like(self.scores_BK)
        nodes_BK = next(iter(self.nodes), None)
        return Beam(self.scores_BK, zeros_BK, zeros_BK, self.inputs_BKD, self.decoder, nodes_BK=nodes_BK)

    @property
    def carry(self) -> OpenLabels:
        """Carry to continue from."""
        return OpenLabels(self.labels_BKT, self.dropped_B, self.labels_BKT[:, 0, :0])


def _selected(state: _State, rows: list[int], num_rows: int) -> _State:
    if rows == list(range(num_rows)):
        return state
    rows_R = torch.tensor(rows, device=state.scores_BK.device)
    state = tree.map(lambda leaf: leaf[rows_R], state)
    closed_T = (state.labels_BKT[:, 0] == COMMITTED).all(0)
    return state._replace(labels_BKT=state.labels_BKT[..., int(closed_T.sum()) :])


def _joined(states: Sequence[_State]) -> _State:
    """Concatenate the rows of several states, padded with dead slots and closed columns."""
    if len(states) == 1:
        return states[0]
    num_slots = max(state.scores_BK.shape[1] for state in states)
    width = max(state.labels_BKT.shape[2] for state in states)

    def padded(state: _State) -> _State:
        slots, columns = num_slots - state.scores_BK.shape[1], width - state.labels_BKT.shape[2]
        labels_BKT = F.pad(state.labels_BKT, (0, 0, 0, slots))
        return state._replace(
            scores_BK=F.pad(state.scores_BK, (0, slots), value=-torch.inf),
            labels_BKT=F.pad(labels_BKT, (columns, 0), value=COMMITTED),
        )

    def stacked(*leaves: Tensor) -> Tensor:
        shape = [max(sizes) for sizes in zip(*(leaf.shape[1:] for leaf in leaves), strict=True)]
        return torch.cat([_zero_padded(leaf, shape) for leaf in leaves])

    first, *others = map(padded, states)
    return tree.map(stacked, first, *others)


def _zero_padded(leaf: Tensor, shape: Sequence[int]) -> Tensor:
    """Pad all dimensions but the first with zeros to a shape."""
    missing = [size - current for size, current in zip(shape, leaf.shape[1:], strict=True)]
    return F.pad(leaf, [number for size in reversed(missing) for number in (0, size)]) if any(missing) else leaf


def _by_length(words: Mapping[Hashable, Sequence[Ids]]) -> list[list[Hashable]]:
    """Return the names of inputs with the same number of words, together."""
    found: dict[int, list[Hashable]] = {}
    for name, given in words.items():
        found.setdefault(len(given), []).append(name)
    return list(found.values())


def _batch(words: Sequence[Sequence[Ids]]) -> Batch:
    """Make a batch of the pieces of some words of each input, with the fields that an encoder reads."""
    sources = [words_of[0] if len(words_of) == 1 else tuple(chain(*words_of)) for words_of in words]
    lengths = list(map(len, sources))
    longest = max(lengths)
    if min(lengths) < longest:
        sources = [source + (0,) * (longest - len(source)) for source in sources]
    sources_BS = torch.tensor(list(chain.from_iterable(sources))).view(len(sources), longest)
    lengths_B = torch.tensor(lengths)
    none_B0 = sources_BS.new_zeros(len(sources), 0)
    return Batch(sources_BS, lengths_B, none_B0, torch.zeros_like(lengths_B), torch.arange(len(sources)))


def _labels(labels_BT: Tensor) -> list[Ids]:
    """Return the labels of each input, without positions that are only marked as committed."""
    is_label_BT = labels_BT != COMMITTED
    labels, ends = labels_BT[is_label_BT].tolist(), is_label_BT.sum(1).cumsum(0).tolist()
    return [tuple(labels[start:end]) for start, end in pairwise([0, *ends])]


def _decoder(run_or_model: Any, decoder: Decoder | DecoderName | None, k: int | None) -> Decoder:
    if isinstance(decoder, Decoder):
        if k is not None:
            raise InputError("k is part of the decoder that is given", hint="leave k out, or give a name")
        return decoder
    if isinstance(run_or_model, Run):
        return choose_decoder(run_or_model.settings, decoder, beam_size=k)
    return as_decoder(decoder or "beam", k=5 if k is None else k)


def _encode_words(codec: OutputCodec, words: Sequence[Any]) -> tuple[Ids, list[Ids]]:
    """Return the ids before the first word of a source, and those of each word."""
    for word in words:
        # As readers do, which keep a no-break space and U+2028 inside a word.
        if not isinstance(word, str) or not word or set(word) & set(" \t\r\n"):
            raise InputError(f"{word!r} is not a token: a word without spaces", hint="split the text")
    return codec.encode_words(words)


def _label_names(names: Sequence[str], ids: Ids) -> tuple[str, ...]:
    return tuple(map(names.__getitem__, ids))


def _encode_ids(model: Any, tokens: Sequence[Any]) -> tuple[Ids, list[Ids]]:
    """Return the given ids of each word, with none before the first word."""
    words = [token if isinstance(token, tuple) else (token,) for token in tokens]
    ids, firsts = tuple(chain.from_iterable(words)), tuple(chain.from_iterable(word[:1] for word in words))
    # Counted together for speed: every first id begins a word, and no other id does.
    if not (set(map(type, ids)) <= {int} and model.most_steps(ids) == len(words) == model.most_steps(firsts)):
        for token, word in zip(tokens, words, strict=True):
            _require_word(model, token, word)
    return (), words


def _require_word(model: Any, token: Any, ids: tuple[Any, ...]) -> None:
    if not {type(number) for number in ids} <= {int}:
        raise InputError(f"{token!r} is not a token of a model: an id, or a tuple of ids")
    if model.most_steps(ids) != 1:
        raise InputError(f"{token!r} is not one word of this model", hint="give the ids of one word at a time")
