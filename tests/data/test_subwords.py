"""Subwords: nothing of a text is lost, and the same texts give the same pieces."""

from __future__ import annotations

import itertools
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqwise.data import Example, join_pieces, read_pairs, write_pairs
from seqwise.data.readers import each_input
from seqwise.data.subwords import learn_subwords, normalize_text, split_text
from seqwise.errors import InputError

TEXTS = ["the dog sees the other dog", "the other cat sees the dog", "a cat, a dog; <unk> </s> naïve"]
SUBWORDS = learn_subwords(TEXTS, size=40)
KNOWN = sorted(set("".join(map(normalize_text, TEXTS))))


# ------------------------------------------------------------------------------------------- round trips


@given(st.text(alphabet=KNOWN), st.integers(24, 60))
@settings(deadline=None, max_examples=150)
def test_nothing_of_a_text_of_known_characters_is_lost(text: str, size: int) -> None:
    subwords = learn_subwords(TEXTS, size=size)
    pieces = split_text(text, subwords)
    assert join_pieces(pieces) == normalize_text(text) == " ".join(text.split())
    assert set(pieces) <= set(subwords.pieces)


@pytest.mark.thorough
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4), st.integers(0, 20))
@settings(deadline=None, max_examples=300)
def test_texts_that_subwords_were_learnt_from_come_back(texts: list[str], more: int) -> None:
    """Any characters at all: emoji, marks, controls, unassigned ones, the sign that stands for blanks."""
    wanted = [normalize_text(text) for text in texts]
    if not any(wanted):
        with pytest.raises(InputError, match="no text to learn"):
            learn_subwords(texts, size=100)
        return
    size = len(set("".join(wanted)) | {" "}) + more
    subwords = learn_subwords(texts, size=size)
    assert [join_pieces(split_text(text, subwords)) for text in texts] == wanted
    assert len(subwords.pieces) <= size


@pytest.mark.thorough
@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        with pytest.raises(InputError, match="not UTF-8"):
            normalize_text(text)
        return
    once = normalize_text(text)
    assert normalize_text(once) == once == unicodedata.normalize("NFC", once)
    assert once.split() == once.split(" ") or once == ""


def test_equal_texts_in_other_bytes_are_one() -> None:
    assert normalize_text("  nai\u0308ve\u00a0\u2009dog\r\n") == "naïve dog"
    assert split_text("nai\u0308ve", SUBWORDS) == split_text("naïve", SUBWORDS)
    assert split_text(" \n\t\u2581", SUBWORDS) == split_text("", SUBWORDS) == ()


def test_an_unknown_character_is_one_unknown_piece() -> None:
    assert split_text("dogβγ dog", SUBWORDS).count("<unk>") == 2
    assert join_pieces(split_text("dβg", SUBWORDS)) == "d<unk>g"
    # What looks like a special token in a text is text.
    assert "<unk>" not in split_text("<unk> </s>", SUBWORDS) and "</s>" not in split_text("<unk> </s>", SUBWORDS)


# ------------------------------------------------------------------------------------------- what is learnt


def merged_by_hand(texts: Iterable[str], count: int) -> list[str]:
    """Byte-pair encoding by the book: count the pairs of neighbours, join the most frequent everywhere, again."""
    words = Counter(("▁", *word) for text in texts for word in text.split())
    found = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, number in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += number
        (best, most), *others = pairs.most_common()
        assert not others or others[0][1] < most, "a tie: choose other texts"
        found.append("".join(best))
        words = Counter({joined(word, best): number for word, number in words.items()})
    return found


def joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    for symbol in word:
        if result and (result[-1], symbol) == pair:
            result[-1] += symbol
        else:
            result.append(symbol)
    return tuple(result)


def test_the_most_frequent_pairs_are_merged_first() -> None:
    texts = ["ab " * 23, "abc " * 11, "cab " * 6, "ca " * 2, "d bd " * 4, "abcd"]
    characters = len(set("".join(texts)))
    expected = merged_by_hand(texts, 5)
    assert list(learn_subwords(texts, size=characters + 5).pieces[characters:]) == expected
    assert expected == ["ab", "▁ab", "▁abc", "▁c", "▁cab"]


def test_pieces_do_not_reach_across_blanks_and_singletons_are_not_merged() -> None:
    subwords = learn_subwords(["a b"] * 50, size=100)
    assert set(subwords.pieces) == {"▁", "a", "b", "▁a", "▁b"}
    assert learn_subwords(["xyz"], size=100).merges == ()


MANY = [f"w{i % 7}x{i % 5} {'ab' * (i % 4)}c" for i in range(300)]


@pytest.mark.thorough
def test_the_order_of_texts_and_the_process_do_not_matter() -> None:
    """There are many ties here, and the library keeps words in tables that are laid out anew in each process."""
    code = f"""
from seqwise.data.subwords import learn_subwords
print(repr(learn_subwords({MANY[::-1]!r}, size=45)))
"""
    elsewhere = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    here = learn_subwords(MANY, size=45)
    assert elsewhere.stdout == f"{here!r}\n" and len(here.merges) > 20


@pytest.mark.parametrize("size", [-1, 0, 1, 5])
def test_a_vocabulary_without_room_for_the_characters_says_how_many_there_are(size: int) -> None:
    with pytest.raises(InputError, match=rf"of {size} has no room for the 6 characters .*; ask for 6 or more"):
        learn_subwords(["lower low"], size=size)
    assert len(learn_subwords(["lower low"], size=6).pieces) == 6
    with pytest.raises(InputError, match="the 4 characters"):  # the sign of the blank comes with every first word
        learn_subwords(["low"], size=3)


def test_a_lone_surrogate_is_one_line() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        learn_subwords(["caf\udce9"], size=10)
    with pytest.raises(InputError, match="not UTF-8"):
        split_text("caf\udce9", SUBWORDS)


# ------------------------------------------------------------------------------------------- files


def test_texts_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(" Ein  Satz. \tA sentence.\nZwei\tTwo  three\n")
    examples = read_pairs(tmp_path / "pairs.tsv", source_units="text", target_units="text")
    assert [(e.source, e.target) for e in examples] == [
        (("Ein  Satz.",), ("A sentence.",)),
        (("Zwei",), ("Two  three",)),
    ]
    write_pairs(tmp_path / "again.tsv", examples, source_units="text", target_units="text")
    again = read_pairs(tmp_path / "again.tsv", source_units="text", target_units="text")
    assert [(e.source, e.target) for e in again] == [(e.source, e.target) for e in examples]
    with pytest.raises(InputError, match="would be read back differently"):
        write_pairs(tmp_path / "x.tsv", [Example(("a", "b"), ("c",))], source_units="text", target_units="text")
    (tmp_path / "blank.tsv").write_text("a\t \n")
    with pytest.raises(InputError, match=r"blank\.tsv:1: the target is empty"):
        read_pairs(tmp_path / "blank.tsv", source_units="text", target_units="text")
    with pytest.raises(InputError, match=r"pairs\.tsv:1: a pair where a source was expected; .*cut -f1"):
        list(each_input(tmp_path / "pairs.tsv", units="text"))
