"""Scores of tokens, words and texts without a model: sums, places in the text, records, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from seqwise import InputError
from seqwise.sampling.scores import Span, TextScore, TokenScores, located, pseudo_perplexity, with_contexts
from seqwise.sampling.scoring_settings import ScoringSettings, refuse_ignored

TEXT = "Dogs  bark."
SCORE = TextScore(
    ("dog", "##s", "[UNK]", "."),
    torch.tensor([-1.0, -0.5, -2.0, 0.0]),
    words_T=(3, 3, 4, 6),
    spans=((0, 3), (3, 4), None, (10, 11)),
    text=TEXT,
)


@pytest.mark.parametrize(("size", "num_tokens"), [(7, 1), (7, 5), (30_000, 40)])
def test_the_pseudo_perplexity_of_uniform_guesses_is_the_size_of_the_vocabulary(size: int, num_tokens: int) -> None:
    log_prob = num_tokens * math.log(1 / size)
    assert pseudo_perplexity(log_prob, num_tokens) == pytest.approx(size)
    tokens = TokenScores(("a",) * num_tokens, torch.full((num_tokens,), math.log(1 / size)).double())
    assert tokens.pseudo_perplexity == pytest.approx(size) and tokens.mean_log_prob == pytest.approx(-math.log(size))
    assert pseudo_perplexity(-701.0 * num_tokens, num_tokens) == pseudo_perplexity(-1e9, num_tokens) == math.exp(700)


# -------------------------------------------------------------------------------------------------- words


def test_a_word_is_the_sum_of_its_tokens_and_written_as_in_the_text() -> None:
    """Tokens without a known place are left out of those of their word; without any, the word is its tokens."""
    assert SCORE.words(TEXT) == [("Dogs", 0, 4, -1.5), ("[UNK]", None, None, -2.0), (".", 10, 11, 0.0)]
    assert [word.word for word in SCORE.words()] == ["dog##s", "[UNK]", "."]
    parts = TokenScores(
        ("a", "b", "c"), torch.tensor([-1.0, -2.0, -4.0]), words_T=(0, 0, 0), spans=(None, (4, 5), None)
    )
    assert parts.words("xxx b yy") == [("b", 4, 5, -7.0)]
    assert TokenScores(("a", "b"), torch.tensor([-1.0, -2.0])).words("a b") == [
        ("a", None, None, -1.0),
        ("b", None, None, -2.0),
    ]


def test_the_sum_of_a_word_is_exact() -> None:
    """Ten times 0.1 is 1, whatever the order of the sum would round it to."""
    tokens = TokenScores(("a",) * 10, torch.full((10,), -0.1, dtype=torch.float64), words_T=(0,) * 10)
    assert [word.log_prob for word in tokens.words()] == [-1.0]


# -------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("pieces", "text", "spans"),
    [
        (["the", "zebra", "ran"], "The  okapi ran", ((0, 3), None, (11, 14))),
        (["a", "a"], "a  a", ((0, 1), (3, 4))),  # from left to right
        (["a", "a"], "A a", ((0, 1), (2, 3))),  # in any case
        (["", "a"], "a", (None, (0, 1))),  # what is empty is nowhere
        (["b", "a"], "a b", (None, (0, 1))),  # what would pass over other text does not belong there
        (["a", "c", "b"], "a b c", ((0, 1), None, (2, 3))),
        (["x", "c"], "a b c", (None, (4, 5))),  # but what is missing may have been written so
        (["İ", "CAT"], "İ cat", ((0, 1), (2, 5))),  # where lower case is longer than what is written
        (["ΟΣ", "Λ"], "ΟΣΛ", ((0, 2), (2, 3))),  # a sigma's lower case depends on what follows it
        ([], "a", ()),
    ],
)
def test_pieces_are_found_where_they_follow_each_other(
    pieces: list[str], text: str, spans: tuple[Span | None, ...]
) -> None:
    assert located(pieces, text) == spans


# -------------------------------------------------------------------------------------------------- records


def test_a_record_holds_known_values_in_its_unit() -> None:
    """What is not given has no key, and no number is minus zero."""
    record: dict[str, Any] = {
        "text": TEXT,
        "log_prob": -3.5,
        "mean_log_prob": -0.875,
        "unit": "nats",
        "tokens": ["dog", "##s", "[UNK]", "."],
        "token_log_probs": [-1.0, -0.5, -2.0, 0.0],
        "words": [
            {"word": "Dogs", "start": 0, "end": 4, "surprisal": 1.5},
            {"word": "[UNK]", "start": None, "end": None, "surprisal": 2.0},
            {"word": ".", "start": 10, "end": 11, "surprisal": 0.0},
        ],
        "pseudo_perplexity": 2.3989,
    }
    assert SCORE.record() == record and "-0.0" not in json.dumps(SCORE.record())
    more = {"words_T": SCORE.words_T, "spans": SCORE.spans, "prefix": "See", "suffix": "!", "lower_bound": -4.0}
    full = TextScore(
        SCORE.tokens, SCORE.token_log_probs_T, text=TEXT, num_windows=3, num_unknown=1, is_pseudo=False, **more
    )
    record["perplexity"] = record.pop("pseudo_perplexity")
    assert full.record() == {
        **record, "prefix": "See", "suffix": "!", "lower_bound": -4.0, "windows": 3, "unknown": 1
    }  # fmt: skip
    bits = full.record("bits")
    assert bits["log_prob"] == round(-3.5 / math.log(2), 4) and bits["lower_bound"] == round(-4.0 / math.log(2), 4)
    assert bits["perplexity"] == record["perplexity"] and bits["unit"] == "bits"


def test_a_row_is_a_token_whose_words_are_counted_from_zero() -> None:
    rows = SCORE.rows("nats", number=7)
    assert rows == [
        {"number": 7, "token": token, "word": word, "start": start, "end": end}
        | {"log_prob": log_prob, "surprisal": -log_prob, "unit": "nats"}
        for token, word, start, end, log_prob in [
            ("dog", 0, 0, 3, -1.0),
            ("##s", 0, 3, 4, -0.5),
            ("[UNK]", 1, None, None, -2.0),
            (".", 3, 10, 11, 0.0),
        ]
    ]
    assert next(iter(rows[0])) == "number"
    plain = TextScore(("a", "b"), torch.tensor([-1.0, -2.0]), text="a b").rows("bits")
    assert [(row["word"], row["start"], row["unit"]) for row in plain] == [(0, None, "bits"), (1, None, "bits")]
    assert [row["surprisal"] for row in plain] == pytest.approx([1 / math.log(2), 2 / math.log(2)])


# -------------------------------------------------------------------------------------------------- what is given


def test_a_text_without_a_context_has_an_empty_one() -> None:
    assert with_contexts(iter(["a", "b"]), None) == [("a", "", ""), ("b", "", "")]
    assert with_contexts(["a", "b"], ["c", ""], ["", "d"]) == [("a", "c", ""), ("b", "", "d")]
    assert with_contexts([], []) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("one text", None, None), "one text was given"),
        ((["a"], "one prefix", None), "one text was given"),
        ((["a"], None, "one suffix"), "one text was given"),
        ((["a", "b"], ["c"], None), "1 prefixes for 2 texts"),
        ((["a"], None, ["c", "d"]), "2 suffixes for 1 texts"),
        ((["a", 3], None, None), "text 2: a text was expected, got int"),
        ((["a"], [None], None), "prefix 1: a text was expected, got NoneType"),
    ],
)
def test_invalid_texts_are_refused_with_their_place(given: tuple[Any, Any, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        with_contexts(*given)


@pytest.mark.parametrize(
    ("options", "readers"),
    [
        ({"pieces": "whole-word"}, {"masked"}),
        ({"start": "none"}, {"causal"}),
        ({"end": True}, {"causal", "encoder-decoder"}),
        ({}, None),
    ],
)
def test_pieces_a_start_and_an_end_are_refused_where_no_model_reads_them(
    options: dict[str, Any], readers: set[str] | None
) -> None:
    for kind in ("causal", "encoder-decoder", "masked"):
        if readers is None or kind in readers:
            refuse_ignored(ScoringSettings(**options), kind)
            continue
        with pytest.raises(InputError, match=f"^{next(iter(options))}: has no effect .* {kind}") as refused:
            refuse_ignored(ScoringSettings(**options), kind)
        assert readers <= set(str(refused.value).replace(";", "").split())
