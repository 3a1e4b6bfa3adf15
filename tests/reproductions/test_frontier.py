"""Streams of the frontier: delays, retractions, and agreement with the search of the whole sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reproductions.beyond import frontier
from reproductions.beyond.frontier import (
    AGAIN,
    AGREE,
    CORPORA,
    COST,
    LOCAL,
    Course,
    commit_prefixes,
    course,
    draw,
    read_again,
    stream,
    systems,
)
from reproductions.report import Result, Table
from reproductions.tuning import PATIENCE
from seqwise.data import Example
from seqwise.evaluation.signature import sign
from seqwise.runs import Run, predict, train_settings
from seqwise.runs.loading import build_codec, build_model

WORDS = [Example(tuple(word), tuple(word.upper()), "x.tsv", 1) for word in ("abcab", "ca", "bbac", "c")]


def test_a_course_counts_delays_and_what_is_taken_back() -> None:
    shown = [("A",), ("A", "B"), ("C", "B", "A")]
    assert course(shown, [0, 0, 1]) == Course(("C", "B", "A"), 2 + 1 + 0, 2)
    assert course(shown[:2], [1, 2]) == Course(("A", "B"), 0, 0)
    assert course([(), ("A",), ("B", "C")], [0, 0]) == Course(("B", "C"), 1, 1)  # with a look-ahead and an end


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


def test_a_look_ahead_delays_every_label_and_the_end_gives_the_last_ones() -> None:
    small = {"hidden_size": 4, "embedding_size": 4, "encoder": "left-to-right", "beam_size": 3, "minimum_count": 1}
    settings = train_settings(look_ahead=2, **small)
    codec = build_codec(WORDS, settings)
    run = Run(settings, build_model(settings, codec), codec)
    whole = [best[0].tokens for best in predict(run, WORDS, "beam")]
    assert [each.labels for each in stream(run, WORDS, "beam", AGREE)] == whole
    assert [each.delay for each in stream(run, WORDS, "beam", "delay(0)")] == [3 * 2 + 1 + 0, 1 + 0, 2 * 2 + 1 + 0, 0]


@pytest.mark.parametrize("changes", [{"look_ahead": 1}, {"encoder": "bidirectional"}])
def test_variants_are_the_other_systems_but_for_the_changes(changes: dict[str, Any]) -> None:
    plain, keys = systems("pmb", "cpu", 1_000, 0), [*frontier.PLAIN, frontier.CRF]
    varied = frontier.variants("pmb", "cpu", 1_000, keys, changes, 0)
    assert {*varied} == {*keys}
    for key, system in varied.items():
        assert system.settings == plain[key].settings.with_changes(**changes) != plain[key].settings


def test_the_figure_has_the_cost_of_each_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    costs = {LOCAL: {"delay(0)": 0.05, AGREE: 0.06}, AGAIN: {"delay(0)": 0.24, frontier.AT_THE_END: 0.24}}
    numbers = {"accuracy": 80.0, frontier.DELAY: 1.0, frontier.RETRACTED: 2.0}
    signature = sign("streams", seeds=[0], data="random")
    results = [
        Result(system, f"{rule}: {measure}", value, signature)
        for system, rules in costs.items()
        for rule, cost in rules.items()
        for measure, value in {**numbers, COST: cost}.items()
    ]
    labels: list[str] = []

    def kept(figure: Any, columns: int) -> None:
        labels.extend(figure.axes[0].get_legend_handles_labels()[1])

    monkeypatch.setattr(frontier, "legend_below", kept)
    draw(Table("streams", tuple(results)), tmp_path / "frontier.png")
    assert labels == [f"{LOCAL}: 0.06 ms a token", f"{AGAIN}: 0.24 ms a token"]
