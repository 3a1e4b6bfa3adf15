"""Vocabulary: order, unknown and end tokens."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqwise.data import Vocabulary
from seqwise.errors import InputError

TOKENS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1, max_size=8, unique=True)


def test_build_orders_specials_then_counts_then_tokens():
    sequences = [["b", "a", "c"], ["c", "b", "<unk>"], ["d", "c"]]
    built = Vocabulary.build(sequences, unknown="<unk>", end="</s>")
    assert built.tokens == ("<unk>", "</s>", "c", "b", "a", "d")
    assert built == Vocabulary.build([s[::-1] for s in reversed(sequences)], unknown="<unk>", end="</s>")
    assert Vocabulary.build(sequences, minimum_count=2, unknown="<unk>").tokens == ("<unk>", "c", "b")
    assert (built.end_id, Vocabulary(("a",)).end_id, len(built)) == (1, None, 6)


def test_unknown_tokens():
    assert Vocabulary(("?", "a"), unknown="?").encode(["a", "z"]) == [1, 0]
    with pytest.raises(InputError, match=r"^f\.tsv:3: unknown token 'i-per'; the nearest known token is 'I-PER'$"):
        Vocabulary(("</s>", "O", "I-LOC", "I-PER"), end="</s>").encode(["O", "i-per"], path="f.tsv", line=3)
    for character in "Aáâ":
        with pytest.raises(InputError, match=f"'{character}'; the nearest known token is 'a'$"):
            Vocabulary(("a", "z")).encode([character])
    with pytest.raises(InputError, match=r"unknown token 'x'; replace it$"):
        Vocabulary(("a", "z")).encode(["x"])
    with pytest.raises(InputError, match="nearest known token is 'a'") as caught:
        Vocabulary(("a",)).encode(["\n" * 500])
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_the_end_token_is_no_text():
    with pytest.raises(InputError, match=r"f:1: the text holds '\$'"):
        Vocabulary(("$", "a"), end="$").encode(["a", "$"], path="f", line=1)
    with pytest.raises(InputError, match="occurs in the text"):
        Vocabulary.build([["a", "$"]], end="$")


@pytest.mark.parametrize("index", [-1, 2, -100])
def test_decode_refuses_ids_outside(index):
    with pytest.raises(InputError, match=f"the id {index} is outside the vocabulary of 2"):
        Vocabulary(("a", "b")).decode([0, index])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": ()}, "at least one token"),
        ({"tokens": ("a", "a")}, "'a' occurs 2 times"),
        ({"tokens": ("a", 1)}, "1 is not a string"),
        ({"tokens": ("a",), "end": "b"}, "the end token 'b' is not"),
        ({"tokens": ("a",), "unknown": "b"}, "the unknown token 'b' is not"),
        ({"tokens": ("a",), "unknown": "a", "end": "a"}, "both"),
    ],
)
def test_unsound_vocabularies(arguments, message):
    with pytest.raises(InputError, match=message):
        Vocabulary(**arguments)


def test_build_refuses_no_text_and_rare_tokens_without_unknown():
    with pytest.raises(InputError, match="at least one token"):
        Vocabulary.build([])
    with pytest.raises(InputError, match="name an unknown token"):
        Vocabulary.build(["aab"], minimum_count=2)


@given(TOKENS)
def test_ids_come_back_as_their_tokens(tokens):
    vocabulary = Vocabulary(tuple(tokens), unknown=tokens[-1], end=tokens[0] if len(tokens) > 1 else None)
    assert vocabulary == pickle.loads(pickle.dumps(vocabulary))
    text = tokens[1:] if vocabulary.end is not None else tokens
    assert vocabulary.decode(vocabulary.encode(text)) == text
