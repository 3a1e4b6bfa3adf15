"""Live lines of the explorer against the stream that they show."""

from __future__ import annotations

import re

import pytest

from explored import MARKUP, speller, tagger
from seqwise import Stream
from seqwise.errors import InputError
from seqwise.pages.explorer.searches import Setup
from seqwise.pages.explorer.stream_views import MOST_LINES, colours_view, lines_view, live_in_words
from seqwise.pages.explorer.streams import MOST_PIECES, Live, can_stream, pieces_of
from seqwise.runs.run import OutputRun

SETUP = Setup("beam", "raw", 3)
TEXT = "a c b c a b\n\nc c a\nb"


def reviser() -> OutputRun:
    """A tagger that takes labels of this text back."""
    for seed in range(50):
        run = tagger(seed=seed)
        stream = Stream(run, k=3, score="global", commit="delay(2)")
        if any(stream.feed([word]).retracted for word in "acbcab"):
            return run
    raise AssertionError("no tagger revises")


def test_text_is_split_into_words_that_are_whole_and_ends_of_lines_that_are_not_empty() -> None:
    assert pieces_of("") == pieces_of("\n \n") == pieces_of("th") == ()
    assert pieces_of("the old \t ma") == ("the", "old")
    assert pieces_of("10\u00a0km \n") == ("10\u00a0km", None)  # as in files of words and labels
    assert pieces_of("\na b\n\n\nc\r\nd") == ("a", "b", None, "c", None)
    assert pieces_of(TEXT, ended=True) == (*"acbcab", None, *"cca", None, "b", None)
    assert pieces_of("a b\n", ended=True) == ("a", "b", None)
    with pytest.raises(InputError, match=r"the text has 5,001 words and line ends, and a live line takes at most"):
        pieces_of("a " * (MOST_PIECES + 1))


def test_a_live_line_shows_what_the_stream_says_after_each_word() -> None:
    run, retracted = reviser(), 0
    live = Live(run, SETUP, "delay(2)")
    for number, text in enumerate(("a c b c a b", "c c a", "b")):
        stream = Stream(run, k=3, score="global", commit="delay(2)")
        labels: list[str] = []
        final = 0
        for count, word in enumerate(text.split(), start=1):
            live.take(word)
            update = stream.feed([word])
            gone = update.retracted
            retracted += len(gone)
            places = range(len(labels) - len(gone), len(labels))
            labels = [*labels[:final], *update.committed, *update.partial]
            final += len(update.committed)
            line = live.lines[-1]
            assert (len(live.lines), line.words) == (number + 1, text.split()[:count])
            assert (list(line.labels), line.num_final) == (labels, final)
            assert line.retracted == dict(zip(places, gone, strict=True))
            shown = re.findall(r'class="(token|token open)".*?title="\w+: .*?, (final|may change)"', last_line(live))
            assert shown == [("token", "final")] * final + [("token open", "may change")] * (count - final)
            assert last_line(live).count("<del ") == len(gone)
        live.take(None)
        assert (live.lines[-1].num_final, live.lines[-1].retracted) == (len(text.split()), {})
    assert live.num_retracted == retracted > 0 and live.num_words == 10
    assert live_in_words(live) == (
        "1 word in the last line: 1 final, 0 may change. "
        f"Retracted so far: {retracted}, {10 * retracted:.1f} for every 100 words."
    )


def last_line(live: Live) -> str:
    return str(lines_view(live)).rpartition("<p>")[2]


def test_words_without_a_label_yet_are_shown_and_get_one_at_the_end() -> None:
    live = Live(tagger(look_ahead=2), SETUP, "agree")
    live.take("a")
    assert last_line(live).count('title="a: no label yet"') == 1
    assert live_in_words(live).startswith("1 word in the last line: 0 final, 0 may change, 1 without a label.")
    live.read(pieces_of("a c b a "))
    assert (len(live.lines[-1].labels), last_line(live).count("no label yet")) == (2, 2)
    live.take(None)
    assert (len(live.lines[-1].labels), live.lines[-1].num_final, live.lines[-1].retracted) == (4, 4, {})
    assert "labelled 2 words later" in colours_view(2) and "later" not in colours_view()
    assert live_in_words(live).startswith("4 words in the last line: 4 final, 0 may change.")


def test_a_continued_text_is_followed_and_another_is_not() -> None:
    run, pieces = tagger(), pieces_of(TEXT, ended=True)
    live, whole = Live(run, SETUP, "agree"), Live(run, SETUP, "agree")
    whole.read(pieces)
    for count in (1, 4, 4, 8, len(pieces)):
        assert live.continues_with(SETUP, "agree", pieces[:count])
        live.read(pieces[:count])
    assert live.lines == whole.lines and live.pieces == [*pieces]
    assert not live.continues_with(SETUP, "agree", pieces[:-1])
    assert not live.continues_with(SETUP, "agree", ("b", *pieces))
    assert not live.continues_with(SETUP, "never", pieces)
    assert not live.continues_with(Setup("beam", "local", 3), "agree", pieces)


def test_an_unreadable_word_leaves_the_words_before_it() -> None:
    live = Live(tagger(), SETUP, "agree")
    with pytest.raises(InputError, match="unknown token 'zebra'"):
        live.read(pieces_of("a b\nzebra c "))
    assert [line.words for line in live.lines] == [["a", "b"]] and live.pieces == ["a", "b", None]
    live.read(pieces_of("a b\nc c "))
    assert [line.words for line in live.lines] == [["a", "b"], ["c", "c"]]


def test_what_is_shown_is_escaped_and_the_last_lines_only() -> None:
    live = Live(tagger(), SETUP, "agree")
    assert str(lines_view(live)) == "" and live_in_words(live).startswith("No words yet")
    live.read(pieces_of("a b c\n" * (MOST_LINES + 2)))
    view = str(lines_view(live))
    assert view.startswith("<p>2 earlier lines are not shown</p>") and view.count("<p>") == MOST_LINES + 1
    assert any(MARKUP in line.labels for line in live.lines) and MARKUP not in view
    assert "<del" in colours_view()


def test_runs_that_need_the_whole_input_have_no_live_lines() -> None:
    assert can_stream(tagger()) and can_stream(tagger(model="chain"))
    assert not can_stream(speller())
    with pytest.raises(InputError, match="no commit rule is called 'often'"):
        Live(tagger(), SETUP, "often")
