"""Streams against the whole-sequence search of the same model, however tokens are divided among calls and streams."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import resource
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import randomised
from parameters import quick
from recording import NumbersComputed
from seqwise import HardTopK, InputError, SoftTopK, Stream, Streams, Tagger, interpolated
from seqwise.data import EncodedExample, Example
from seqwise.decoding import Decoder, decode_examples
from seqwise.models import ChainTagger, EncoderDecoder
from seqwise.models.characters import spelt_source
from seqwise.runs import Run, predict, train_settings
from seqwise.runs.loading import build_codec, build_model
from seqwise.runs.run import OutputRun
from seqwise.search import Gumbel, StochasticTopK, global_, local, transitions, trie, viterbi

SCORES = {"local": local, "global": global_, "half-normalised": interpolated(0.5)}
SELECTORS = {"greedy": HardTopK(1), "hard": HardTopK(6), "relaxed": SoftTopK(3, 20.0), "viterbi": viterbi}
RULES = ["agree", "agree or delay(1)", "margin(0.5)", "delay(2)", "delay(0)", "never"]

SIZES: dict[str, Any] = {"source_size": 6, "target_size": 4, "embedding_size": 3, "hidden_size": 5}


def left_to_right(kind: str, seed: int = 0) -> Any:
    """A model in float64 whose hypotheses differ clearly."""
    kind, _, look_ahead = kind.partition(", ahead ")
    ahead = int(look_ahead or 0)
    if kind == "chain":
        return randomised(ChainTagger(**SIZES, look_ahead=ahead), seed, 1.0)
    characters = 3 * (kind == "spelt")
    model = Tagger(**SIZES, label_embedding_size=2, num_characters=characters, look_ahead=ahead)
    randomised(model, seed, 1.0)
    if model.encoder.characters is not None:
        model.encoder.characters.embedding.weight.data[-1] = 0.0  # what stands behind the end of a word
    return model


def words_of(kind: str, ids: Sequence[int]) -> list[Any]:
    """Tokens as a model of this kind takes them: an id, or that of a word and those of its characters."""
    if not kind.startswith("spelt"):
        return list(ids)
    return [spelt_source([token], [[token % 3] * (token + 1)]) for token in ids]


def whole(model: Any, words: Sequence[Any], decoder: Decoder) -> list[Any]:
    """Best hypotheses of the whole-sequence search: more than one where rounding alone tells them apart.

    Mixing draws the slots of a relaxed beam together.
    """
    source = tuple(x for word in words for x in (word if isinstance(word, tuple) else (word,)))
    ranked = decode_examples(model, [EncodedExample(source, ())], decoder, n_best=4)[0]
    return [hypothesis for hypothesis in ranked if hypothesis.score > ranked[0].score - 1e-9]


KINDS = ["tagger", "chain", "spelt", "tagger, ahead 1", "chain, ahead 3", "spelt, ahead 2"]
SOURCES = st.lists(st.integers(0, 5), min_size=1, max_size=9)
PIECES = st.sampled_from([1, 2, 4, 0])


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kind", quick(KINDS, "tagger", "spelt, ahead 2"))
@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_streams_end_as_the_whole_search_does(kind: str, selector: str, data: st.DataObject) -> None:
    """Any division into calls, streams that join and leave, three scores; nothing is committed early but in common.

    Before the end, there is a label for each token, but for those that are looked ahead.
    """
    model = left_to_right(kind, data.draw(st.integers(0, 5)))
    decoder = Decoder(SELECTORS[selector], SCORES[data.draw(st.sampled_from(sorted(SCORES)))])
    streams = Streams(model, decoder, commit=data.draw(st.sampled_from(["agree", "never"])))
    left = {name: words_of(kind, data.draw(SOURCES)) for name in range(data.draw(st.integers(1, 4)))}
    fed: dict[Any, list[Any]] = {name: [] for name in left}
    labels: dict[Any, tuple[int, ...]] = dict.fromkeys(left, ())
    while left:
        chosen = data.draw(st.sets(st.sampled_from(sorted(left)), min_size=1))
        pieces = {name: left[name][: data.draw(PIECES)] for name in chosen}
        for name, update in streams.feed(pieces).items():
            fed[name] += pieces[name]
            labels[name] += update.committed
            left[name] = left[name][len(pieces[name]) :]
            shown = labels[name] + update.partial
            assert len(shown) == max(len(fed[name]) - model.look_ahead, 0)
            best = whole(model, fed[name], decoder) if fed[name] else []
            if best and not model.look_ahead:
                assert shown in [hypothesis.tokens for hypothesis in best]
                assert streams.score(name) == pytest.approx(best[0].score, abs=1e-10)
            if not left[name]:
                last = streams.finish(name)
                assert labels[name] + last.committed in [hypothesis.tokens for hypothesis in best]
                kept = shown[: len(shown) - len(last.retracted)]
                assert (labels[name] + last.committed)[: len(kept)] == kept and shown[len(kept) :] == last.retracted
                assert last.partial == () and (model.look_ahead or not last.retracted)
                del left[name]
    assert streams.names == ()


@pytest.mark.parametrize("rule", quick(RULES, "agree or delay(1)"))
@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_commitments_do_not_depend_on_calls_or_other_streams(rule: str, data: st.DataObject) -> None:
    """Against one token at a time, alone: all that is committed and partial, what is retracted, and the score.

    With a look-ahead as well, where streams that are too short for a first label wait beside others.
    """
    kind, selector = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([HardTopK(4), SoftTopK(3, 1e4)]))
    model, decoder = left_to_right(kind, 1), Decoder(selector, global_)
    sources = [words_of(kind, data.draw(SOURCES)) for _ in range(3)]
    alone: list[list[tuple[Any, ...]]] = []
    for words in sources:
        stream, final = Stream(model, decoder, commit=rule), ()
        alone.append([((), (), 0.0)])
        for word in words:
            update = stream.feed([word])
            final += update.committed
            alone[-1].append((final, update.partial, stream.score))
    streams = Streams(model, decoder, commit=rule)
    shown: list[tuple[int, ...]] = [()] * 3
    counts, committed = [0] * 3, [()] * 3
    while any(count < len(words) for count, words in zip(counts, sources, strict=True)):
        sizes = [data.draw(PIECES) for _ in sources]
        pieces = {row: sources[row][counts[row] : counts[row] + size] for row, size in enumerate(sizes) if size}
        for row, update in streams.feed(pieces).items():
            counts[row] += len(pieces[row])
            committed[row] += update.committed  # type: ignore[operator]
            expected_final, expected_partial, score = alone[row][counts[row]]
            assert (committed[row], update.partial) == (expected_final, expected_partial)
            assert streams.score(row) == pytest.approx(score, abs=1e-10)
            # Who erases what is retracted, and writes what is new, shows what stands.
            now = update.committed + update.partial
            kept = shown[row][: len(shown[row]) - len(update.retracted)]
            assert shown[row][len(kept) :] == update.retracted
            assert now[: len(kept)] == kept
            assert not update.retracted or now[len(kept)] != update.retracted[0]
            shown[row] = update.partial


def test_a_stream_without_delay_is_greedy_and_global_scores_revise() -> None:
    model = left_to_right("tagger", 7)
    ids = [0, 3, 5, 1, 1, 4, 2, 0, 5]
    at_once = Stream(model, k=4, commit="delay(0)")
    assert at_once.feed(ids).committed == whole(model, ids, Decoder(HardTopK(1), local))[0].tokens
    assert at_once.finish() == ((), (), ())
    stream = Stream(model, k=4, score="global", commit="never")
    retracted = [stream.feed([token]).retracted for token in ids]
    assert any(retracted) and not all(retracted)


def saved(state: Any) -> bytes:
    """Bytes that torch saves."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def contents(state: Any) -> Any:
    """Bytes of all tensors in their places."""
    if isinstance(state, torch.Tensor):
        return state.shape, state.numpy().tobytes()
    if isinstance(state, dict):
        return {name: contents(value) for name, value in state.items()}
    return [contents(value) for value in state] if isinstance(state, list | tuple) else state


@pytest.mark.parametrize("selector", ["hard", "relaxed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_stream_goes_on_bit_for_bit(kind: str, selector: str) -> None:
    """From bytes as torch saves them: the same updates, scores, and bytes of the state."""
    model, decoder = left_to_right(kind), Decoder(SELECTORS[selector], global_)
    streams = Streams(model, decoder, commit="margin(1)")
    streams.feed({"a": words_of(kind, [1, 2, 3, 4]), "b": words_of(kind, [5, 0]), "c": ()})
    streams.feed({"a": words_of(kind, [2])})
    in_bytes = saved(streams.state_dict())
    restored = Streams(model, decoder, commit="margin(1)")
    restored.feed({"z": words_of(kind, [4])})  # which is forgotten
    restored.load_state_dict(torch.load(io.BytesIO(in_bytes), weights_only=True))
    assert contents(restored.state_dict()) == contents(streams.state_dict())
    assert restored.names == streams.names == ("a", "b", "c")
    for pieces in ({"b": [3, 3], "a": [1]}, {"c": [2, 0]}, {"a": [5], "b": [5], "c": [5]}):
        given_words = {name: words_of(kind, ids) for name, ids in pieces.items()}
        assert restored.feed(given_words) == streams.feed(given_words)
        assert contents(restored.state_dict()) == contents(streams.state_dict())
    assert [restored.finish(name) for name in "abc"] == [streams.finish(name) for name in "abc"]


def test_streams_that_finish_together_end_as_each_alone() -> None:
    """Longer than the look-ahead, shorter, of the same length, and never fed."""
    model = left_to_right("spelt, ahead 2")
    sources = {"a": [1, 2, 3, 4], "b": [5], "c": [0, 2], "d": [3, 3], "e": [2, 5, 0], "f": []}
    streams, alone = (Streams(model, k=3, score="global", commit="never") for _ in range(2))
    for each in (streams, alone):
        each.feed({name: words_of("spelt", ids) for name, ids in sources.items()})
    assert streams.finish_all("abdef") == {name: alone.finish(name) for name in "abdef"}
    assert streams.names == ("c",)
    with pytest.raises(InputError, match="there is no stream 'a'"):
        streams.finish_all("ca")
    assert streams.finish("c") == alone.finish("c")


def test_a_waiting_word_that_cannot_be_read_changes_no_stream() -> None:
    streams = Streams(left_to_right("tagger, ahead 2"), k=3, score="global", commit="never")
    streams.feed({"a": [1, 2, 3], "b": [4]})
    before = contents(streams.state_dict())
    with pytest.raises(InputError, match="not an id"):
        streams.feed({"a": [1], "b": [6], "c": [2]})
    assert contents(streams.state_dict()) == before and streams.names == ("a", "b")


def test_words_that_wait_for_a_look_ahead_are_restored() -> None:
    model = left_to_right("tagger, ahead 3")
    streams, restored = (Streams(model, k=3, score="global", commit="never") for _ in range(2))
    streams.feed({"a": [1, 2, 3], "b": [5, 0, 4, 4, 1], "c": []})
    assert streams.state_dict()["held"] == {"a": [(1,), (2,), (3,)]}
    restored.feed({"z": [4, 4]})
    restored.load_state_dict(torch.load(io.BytesIO(saved(streams.state_dict())), weights_only=True))
    assert contents(restored.state_dict()) == contents(streams.state_dict())
    for pieces in ({"b": [3], "c": [2]}, {"a": [5], "c": [1]}):
        assert restored.feed(pieces) == streams.feed(pieces)
    assert restored.state_dict()["held"] == {"c": [(2,), (1,)]}
    assert [restored.finish(name) for name in "abc"] == [streams.finish(name) for name in "abc"]
    restored.feed({"a": [1]})
    assert restored.state_dict()["held"] == {"a": [(1,)]}  # not the words of the one that is finished
    other = Streams(left_to_right("tagger, ahead 1"), k=3, score="global", commit="never")
    with pytest.raises(InputError, match="other sizes"):
        other.load_state_dict(streams.state_dict())


def test_streams_beside_a_finished_one_are_restored() -> None:
    model = left_to_right("tagger")
    streams, restored = (Streams(model, k=3, score="global", commit="never") for _ in range(2))
    streams.feed({"a": [1, 2, 3], "b": [5, 0, 4], "c": [2, 2, 2]})
    streams.finish("a")
    restored.load_state_dict(streams.state_dict())
    assert restored.names == ("b", "c")
    assert restored.score("c") == streams.score("c") != streams.score("b") == restored.score("b")
    assert restored.feed({"c": [1], "b": [3]}) == streams.feed({"c": [1], "b": [3]})


def test_a_finished_stream_is_restored_as_finished() -> None:
    model = left_to_right("tagger")
    stream, other = Stream(model), Stream(model)
    stream.feed([1])
    stream.finish()
    other.load_state_dict(stream.state_dict())
    with pytest.raises(InputError, match="the stream is finished; begin another Stream"):
        other.feed([1])


# -------------------------------------------------------------------------------------------------- runs


WORDS = [Example(("a", "b", "c"), ("A", "B", "C"), "x.tsv", 1), Example(("c", "a"), ("C", "A"), "x.tsv", 2)] * 2


def a_run(**changes: Any) -> OutputRun:
    """A run with new weights."""
    small = {"hidden_size": 4, "embedding_size": 4, "encoder": "left-to-right", "beam_size": 3}
    chosen = train_settings(**{"objective": "beam-crf", "minimum_count": 1, **small, **changes})
    codec = build_codec(WORDS, chosen)
    model = randomised(build_model(chosen, codec), 0, 1.0).float()
    return Run(chosen, model, codec)


@pytest.mark.parametrize(
    "changes",
    [{}, {"characters": True}, {"model": "chain"}, {"characters": True, "look_ahead": 2}],
    ids=["words", "characters", "chain", "look-ahead"],
)
@pytest.mark.parametrize("decoder", [None, "beam", "soft-beam"])
def test_a_stream_of_a_run_has_words_labels_and_its_decoder(decoder: Any, changes: dict[str, Any]) -> None:
    run, text = a_run(**changes), "a c b b a"
    best = predict(run, [text], decoder)[0][0]
    stream = Stream(run, decoder)
    update = stream.feed(text.split())
    if not changes.get("look_ahead"):
        assert stream.score == pytest.approx(best.score, abs=1e-5)
    assert update.committed + stream.finish().committed == best.tokens


def test_a_word_may_contain_blanks_that_do_not_separate_words() -> None:
    """A no-break space, as in French numbers, and U+2028 are characters of words, as in the files of training."""
    words = ("3\u00a0000", "x\u2028y", "\x85")
    chosen = train_settings(objective="beam-crf", minimum_count=1, hidden_size=4, encoder="left-to-right")
    codec = build_codec([Example(words, ("A", "B", "C"), "x.tsv", 1)] * 2, chosen)
    run = Run(chosen, randomised(build_model(chosen, codec), 0, 1.0).float(), codec)
    best = whole(run.model, codec.source_vocabulary.encode(words), Decoder(HardTopK(5), global_))
    names = [tuple(codec.target_vocabulary.tokens[label] for label in each.tokens) for each in best]
    assert Stream(run, commit="never").feed(words).partial in names
    for word in ("a\tb", "a\n", "\r"):
        with pytest.raises(InputError, match="is not a token: a word without spaces"):
            Stream(run).feed([word])


def test_an_unknown_word_is_read_as_unknown_or_refused_and_the_stream_goes_on() -> None:
    lenient = Stream(a_run(minimum_count=2), commit="never")
    assert len(lenient.feed(["zebra"]).partial) == 1
    strict, other = Stream(a_run()), Stream(a_run())
    strict.feed(["a"])
    with pytest.raises(InputError, match="unknown token 'zebra'; the nearest known token is"):
        strict.feed(["b", "zebra"])
    other.feed(["a"])
    assert strict.feed(["b"]) == other.feed(["b"])


# --------------------------------------------------------------------------------------------- bad input


def in_a_language(model: Any, **options: Any) -> Any:
    allowed_VV = ~torch.eye(3, dtype=torch.bool)  # no label twice in a row
    model.language = transitions(allowed_VV, **options)
    return model


def test_languages_that_a_stream_can_stay_in() -> None:
    assert transitions(~torch.eye(3, dtype=torch.bool)).is_open_ended
    assert not transitions(torch.tensor([[True, True], [False, False]])).is_open_ended  # nothing follows label 1
    assert not transitions(~torch.eye(3, dtype=torch.bool), last_V=torch.tensor([True, False, True])).is_open_ended
    assert not trie([(0, 1)]).is_open_ended


@pytest.mark.parametrize("commit", ["never", "delay(1)"])
@pytest.mark.parametrize("kind", ["tagger", "chain", "tagger, ahead 2", "chain, ahead 9"])
def test_streams_stay_in_the_language(kind: str, commit: str) -> None:
    """Whatever is fed at a time; without commitments, the labels are those of the search of the whole sequence."""
    model, decoder = in_a_language(left_to_right(kind)), Decoder(HardTopK(3), local)
    sources = {name: torch.randint(6, (length,)).tolist() for name, length in (("a", 7), ("b", 4), ("c", 9))}
    streams = Streams(model, decoder, commit=commit)
    labels: dict[Any, list[int]] = {name: [] for name in sources}
    for start in range(0, 9, 2):
        fed = {name: tokens[start : start + 2] for name, tokens in sources.items() if tokens[start : start + 2]}
        for name, update in streams.feed(fed).items():
            labels[name] += update.committed
    for name, tokens in sources.items():
        labels[name] += streams.finish(name).committed
        assert len(labels[name]) == len(tokens)
        assert all(a != b for a, b in itertools.pairwise(labels[name]))
        if commit == "never":
            (best,) = decode_examples(model, [EncodedExample(tuple(tokens), ())], decoder)
            assert tuple(labels[name]) == best[0].tokens


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            lambda: Stream(Tagger(**SIZES, bidirectional=True)),
            "the model reads its source both ways, and a stream has no end to read back from; train one "
            "with --encoder left-to-right, or over a causal model (--task tag --model gpt2)",
        ),
        (
            lambda: Stream(a_run(encoder="bidirectional")),
            "the model reads its source both ways, and a stream has no end to read back from; train one "
            "with --encoder left-to-right, or over a causal model (--task tag --model gpt2)",
        ),
        (
            lambda: Stream(EncoderDecoder(source_size=3, target_size=3, end=0)),
            "the model (EncoderDecoder) needs the whole source, and a stream has no end; train one "
            "with --encoder left-to-right, or over a causal model (--task tag --model gpt2)",
        ),
        (lambda: Stream(left_to_right("tagger"), commit="often"), "no commit rule is called 'often'; known are agree, "
         "delay(NUMBER), margin(NUMBER), never"),
        (lambda: Stream(left_to_right("tagger"), "beem"), "no decoder is called 'beem'; choose one of greedy, beam, "
         "renormalized-beam, interpolated-beam, raw-beam, soft-beam, viterbi"),
        (lambda: Stream(left_to_right("tagger"), score="raw"), "no score is called 'raw'; choose one of local, global, "
         "renormalized"),
        (
            lambda: Stream(in_a_language(left_to_right("tagger"), last_V=torch.tensor([True, False, True]))),
            "a stream needs a language whose outputs may end after every token, and may always go on; "
            "predict whole sequences, or in Python set model.language to None",
        ),
        (lambda: Stream(left_to_right("tagger"), k=0), "the beam size k must be at least 1, got 0"),
        (lambda: Stream(a_run(), k=0), "the beam size k must be at least 1, got 0"),
        (lambda: Stream("runs/tagger"), "'runs/tagger' is the name of a run; load it first: load_run('runs/tagger')"),
        (
            lambda: Stream(left_to_right("tagger"), Decoder(HardTopK(2), local), k=3),
            "k is part of the decoder that is given; leave k out, or give a name",
        ),
        (
            lambda: Stream(left_to_right("tagger"), Decoder(StochasticTopK(2), local)).feed([1]),
            "the selector remembers more than its slots; use HardTopK, SoftTopK or viterbi",
        ),
        (
            lambda: Stream(left_to_right("tagger"), Decoder(HardTopK(1, noise=Gumbel()), local)),
            "a stream takes no selector with noise; leave the noise out",
        ),
        (lambda: Stream(left_to_right("tagger")).feed(["1"]), "'1' is not a token of a model: an id, or a tuple of "
         "ids"),
        (lambda: Stream(left_to_right("tagger")).feed([True]), "True is not a token of a model: an id, or a tuple of "
         "ids"),
        (
            lambda: Stream(left_to_right("tagger")).feed([(1, 2)]),
            "(1, 2) is not one word of this model; give the ids of one word at a time",
        ),
        (
            lambda: Stream(left_to_right("tagger")).feed([6]),
            "a token is not an id of the model's vocabulary; look it up there",
        ),
        (
            lambda: Stream(left_to_right("tagger, ahead 2")).feed([6]),
            "a token is not an id of the model's vocabulary; look it up there",
        ),
        (lambda: Stream(a_run()).feed("a b"), "one text where tokens were expected; write feed([token]), or "
         "feed(text.split())"),
        (
            lambda: Stream(left_to_right("tagger")).feed(3),  # type: ignore[arg-type]
            "one int where tokens were expected; write feed([token]), or feed(text.split())",
        ),
        (lambda: Stream(a_run()).feed(["a b"]), "'a b' is not a token: a word without spaces; split the text"),
        (lambda: Stream(a_run()).feed([""]), "'' is not a token: a word without spaces; split the text"),
        (lambda: Stream(a_run()).feed([3]), "3 is not a token: a word without spaces; split the text"),
        (
            lambda: Streams(a_run()).feed(["a"]),  # type: ignore[arg-type]
            "a list where a mapping was expected; write feed({name: [token]}), or use a Stream",
        ),
        (lambda: Streams(a_run()).finish("x"), "there is no stream 'x', or it is finished; feed it first"),
        (
            lambda: Stream(a_run()).load_state_dict({"streams": []}),
            "this is not the state of a stream (KeyError('rows')); give the state_dict of a stream of this run or "
            "model",
        ),
    ],
)  # fmt: skip
def test_invalid_streams_are_refused_in_one_line(made: Any, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        made()
    assert str(refused.value) == problem


def test_one_stream_refuses_the_state_of_several() -> None:
    model = left_to_right("tagger")
    streams, stream = Streams(model), Stream(model)
    streams.feed({"a": [1, 2]})
    with pytest.raises(InputError, match="that of several streams"):
        stream.load_state_dict(streams.state_dict())


def test_a_state_of_another_model_is_refused() -> None:
    stream = Stream(left_to_right("tagger"))
    stream.feed([1])
    with pytest.raises(InputError, match="the state is that of a model with other sizes"):
        Stream(left_to_right("chain")).load_state_dict(stream.state_dict())


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (math.nan, "the model's scores are not numbers; check its weights"),
        (-math.inf, "the model excludes every label"),
    ],
)
def test_scores_that_leave_no_best_label_are_refused_and_the_stream_goes_on(number: float, problem: str) -> None:
    model = left_to_right("tagger")
    stream, biases_V = Stream(model, commit="never"), model.head.bias.data.clone()
    before = stream.feed([1, 2]).partial
    model.head.bias.data.fill_(number)
    with pytest.raises(InputError, match=problem):
        stream.feed([3])
    model.head.bias.data.copy_(biases_V)
    assert stream.feed([]).partial == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda: Tagger(**{**SIZES, "hidden_size": 6}, label_embedding_size=2).double(),
            "other sizes or another dtype",
        ),
        (
            lambda: Tagger(**{**SIZES, "target_size": 3}, label_embedding_size=2).double(),
            "other sizes or another dtype",
        ),
        (lambda: left_to_right("tagger").float(), "other sizes or another dtype"),
        (lambda: in_a_language(left_to_right("tagger")), "no language"),
    ],
    ids=["hidden size", "labels", "dtype", "language"],
)
def test_a_state_that_does_not_fit_is_refused_on_loading(change: Any, problem: str) -> None:
    """With the width of a label's embedding in common; the stream that refuses it goes on."""
    stream, other = Stream(left_to_right("tagger"), commit="never"), Stream(change(), commit="never")
    stream.feed([1, 2])
    state = torch.load(io.BytesIO(saved(stream.state_dict())), weights_only=True)
    before = other.feed([3]).partial
    with pytest.raises(InputError, match=f"the state is that of a model with {problem}; give the state_dict"):
        other.load_state_dict(state)
    assert other.feed([]).partial == before


@pytest.mark.parametrize(
    "act", [lambda stream: stream.feed([1]), lambda stream: stream.finish()], ids=["feed", "finish"]
)
def test_a_finished_stream_accepts_no_call(act: Any) -> None:
    stream = Stream(left_to_right("tagger"))
    stream.finish()
    with pytest.raises(InputError, match="the stream is finished; begin another Stream"):
        act(stream)


# ---------------------------------------------------------------------------------------- long streams


@pytest.mark.thorough
def test_memory_and_work_of_a_token_do_not_grow() -> None:
    """Twenty thousand tokens in float32, whose scores would lose their digits if they were not measured anew."""
    torch.manual_seed(0)
    model = Tagger(source_size=50, target_size=8, hidden_size=16).eval()
    stream = Stream(model, k=4, score="global", commit="delay(3)")
    generator, sizes, work, num_labels = torch.Generator().manual_seed(0), [], [], 0
    for block in range(20):
        ids = torch.randint(50, (1000,), generator=generator).tolist()
        with NumbersComputed() if block in (0, 19) else contextlib.nullcontext() as computed:
            update = stream.feed(ids)
        work += [computed.count] if computed is not None else []
        num_labels += len(update.committed)
        sizes.append((len(saved(stream.state_dict())), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        assert stream._streams._state is not None
        scores_BK = stream._streams._state.scores_BK
        assert float(scores_BK.max()) < 100 and math.isfinite(stream.score)
    assert num_labels + len(update.partial) == 20_000
    assert max(size for size, _ in sizes[1:]) < 1.2 * sizes[0][0]
    assert sizes[-1][1] < 1.05 * sizes[9][1]
    first, last = work
    assert 0 < last < 1.01 * first
