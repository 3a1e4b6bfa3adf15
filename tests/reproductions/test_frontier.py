"""Streams of the frontier: delays, retractions, and agreement with the search of the whole sentence."""

from __future__ import annotations

import pytest

from reproductions.beyond.frontier import (
    AGREE,
    CORPORA,
    Course,
    commit_prefixes,
    course,
    read_again,
    stream,
    systems,
)
from reproductions.tuning import PATIENCE
from seqwise.data import Example
from seqwise.runs import Run, predict, train_settings
from seqwise.runs.loading import build_codec, build_model

WORDS = [Example(tuple(word), tuple(word.upper()), "x.tsv", 1) for word in ("abcab", "ca", "bbac", "c")]


def test_a_course_counts_delays_and_what_is_taken_back() -> None:
    shown = [("A",), ("A", "B"), ("C", "B", "A")]
    assert course(shown, [0, 0, 1]) == Course(("C", "B", "A"), 2 + 1 + 0, 2)
    assert course(shown[:2], [1, 2]) == Course(("A", "B"), 0, 0)


def test_prefixes_are_final_after_a_delay_and_never_change_then() -> None:
    outputs = [("A",), ("B", "C"), ("B", "D", "E")]
    assert commit_prefixes(outputs, 1) == Course(("B", "D", "E"), 1 + 1 + 0, 1 + 1)
    assert commit_prefixes(outputs, None).labels == outputs[-1]


@pytest.mark.parametrize("corpus", CORPORA)
def test_all_systems_are_ended_by_development_data_and_tuned_from_one_rate_on(corpus: str) -> None:
    """At the scale "converged"; at the quick one they have epochs and rates of their own."""
    to_the_end = [system.settings for system in systems(corpus, "converged", 1_000, 0).values()]
    assert {settings.patience for settings in to_the_end} == {PATIENCE}
    assert {settings.evaluate_every for settings in to_the_end} == {31}  # twice in 63 batches of 16
    assert len({settings.learning_rate for settings in to_the_end}) == 1
    quick = [system.settings for system in systems(corpus, "cpu", 1_000, 0).values()]
    assert {settings.evaluate_every for settings in quick} == {0}
    assert len({settings.learning_rate for settings in quick}) == 3


def test_streams_and_prefixes_end_as_the_whole_search_does() -> None:
    small = {"hidden_size": 4, "embedding_size": 4, "encoder": "left-to-right", "beam_size": 3, "minimum_count": 1}
    settings = train_settings(objective="beam-crf", **small)
    codec = build_codec(WORDS, settings)
    run = Run(settings, build_model(settings, codec), codec)
    whole = [best[0].tokens for best in predict(run, WORDS, "raw-beam")]
    assert [each.labels for each in stream(run, WORDS, "raw-beam", AGREE)] == whole
    again = read_again(run, WORDS, "raw-beam")
    assert [outputs[-1] for outputs in again] == whole
    # From left to right a prefix read again is what a stream shows.
    assert [commit_prefixes(outputs, None).retracted for outputs in again] == [
        each.retracted for each in stream(run, WORDS, "raw-beam", AGREE)
    ]
    assert all(each.delay == 0 for each in stream(run, WORDS, "raw-beam", "delay(0)"))
