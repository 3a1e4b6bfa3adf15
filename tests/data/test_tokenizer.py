"""Tokenizers in folders: they come back as they were, Hugging Face reads them too, and damaged ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seqwise.data import Tokenizer, Vocabulary, load_tokenizer, save_tokenizer
from seqwise.data.subwords import learn_subwords, normalize_text
from seqwise.data.tokenizer import reading_tokenizer, writing_tokenizer
from seqwise.errors import InputError

TOKENS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1, max_size=8, unique=True)
TEXTS = [("the dog sees the other dog",), ("the other cat sees the dog",), ("a naïve cat, <unk> </s>",)]
SUBWORDS: dict[str, Any] = {"units": "subwords", "subword_vocabulary": 40}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TOKENS, st.sampled_from(["words", "characters"]), st.booleans(), st.booleans())
def test_labels_of_any_characters_come_back(
    tmp_path: Path, tokens: list[str], units: Any, has_unknown: bool, has_end: bool
) -> None:
    """Empty ones, blanks, line ends, and ones that are called as special tokens are."""
    known = tuple(dict.fromkeys((*(["</s>"] if has_end else []), *tokens)))
    unknown, end = tokens[-1] if has_unknown else None, "</s>" if has_end else None
    assume(unknown is None or unknown != end)
    made = Tokenizer(Vocabulary(known, unknown=unknown, end=end), units)
    save_tokenizer(made, tmp_path)
    assert load_tokenizer(tmp_path) == made


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)), min_size=1), st.integers(1, 3)
)
def test_subwords_of_any_texts_come_back(tmp_path: Path, sides: list[tuple[str]], minimum_count: int) -> None:
    if not any(normalize_text(text) for (text,) in sides):
        return
    options: dict[str, Any] = {**SUBWORDS, "subword_vocabulary": 500}
    for made in (reading_tokenizer(sides, **options, minimum_count=minimum_count), writing_tokenizer(sides, **options)):
        save_tokenizer(made, tmp_path)
        back = load_tokenizer(tmp_path)
        assert back == made
        assert [back.encode(side) for side in sides] == [made.encode(side) for side in sides]


def test_rare_subwords_are_unknown_and_merged_all_the_same() -> None:
    made = reading_tokenizer(TEXTS, **SUBWORDS, minimum_count=3)
    pieces = set(made.subwords.pieces) if made.subwords is not None else set()
    assert made.vocabulary.tokens[0] == "<unk>" and set(made.vocabulary.tokens[1:]) < pieces
    rare = next(piece for piece in made.split(TEXTS[2]) if piece not in made.vocabulary.tokens)
    assert 0 in made.encode(TEXTS[2]) and rare in made.split(TEXTS[2])


def test_written_tokens_are_all_that_were_learnt() -> None:
    made = writing_tokenizer(TEXTS, **SUBWORDS, end="</s>")
    assert made.vocabulary.end == "</s>" and made.vocabulary.unknown is None
    assert set(made.vocabulary.tokens) == {"</s>", *learn_subwords((text for (text,) in TEXTS), size=40).pieces}
    with pytest.raises(InputError, match=r"a\.tsv:4: unknown token '<unk>'"):
        made.encode(("β",), path="a.tsv", line=4)


def test_hugging_face_reads_and_joins_them_alike(tmp_path: Path) -> None:
    text = ("the other  naïve dog",)
    writing = writing_tokenizer(TEXTS, **SUBWORDS, end="</s>")
    reading = reading_tokenizer(TEXTS, **SUBWORDS, minimum_count=1)
    for made in (writing, reading):
        save_tokenizer(made, tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        end = [] if made.vocabulary.end_id is None else [made.vocabulary.end_id]
        assert theirs(text[0])["input_ids"] == [*made.encode(text), *end]
        assert theirs.decode(made.encode(text)) == made.join(made.split(text)) == "the other naïve dog"
    sides = [("A", "B", "A")]
    for units, written in (("words", "A B"), ("characters", "AB")):
        save_tokenizer(writing_tokenizer(sides, units=units, subword_vocabulary=1, end="</s>"), tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs(written)["input_ids"] == [1, 2, 0] and theirs.decode([1, 2]) == written


def changed(file: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        fields = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(change(fields)))

    return write


def in_model(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return changed("tokenizer.json", lambda fields: fields | {"model": change(fields["model"])})


def in_config(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return changed("tokenizer_config.json", change)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (in_model(lambda model: model | {"vocab": ["a"]}), "the ids are not 0, 1, 2"),
        (in_model(lambda model: model | {"vocab": model["vocab"] | {"a": 1000}}), "the ids are not 0, 1, 2"),
        (in_model(lambda model: model | {"vocab": model["vocab"] | {"a": "1"}}), "the ids are not 0, 1, 2"),
        (in_model(lambda _: None), "the ids are not 0, 1, 2"),
        (in_model(lambda model: model | {"merges": "ab"}), "merges is not a list of pairs"),
        (in_model(lambda model: model | {"merges": [["a", "b", "c"]]}), "merges is not a list of pairs"),
        (in_model(lambda model: model | {"merges": [["a", 1]]}), "is not among the tokens"),
        (in_model(lambda model: model | {"merges": [["t", "zz"]]}), "'zz' is not among the tokens"),
        (in_model(lambda model: model | {"vocab": {"<unk>": 0}, "merges": []}), "the end token '</s>' is not in"),
        (changed("tokenizer.json", lambda _: []), "expected a JSON object"),
        (in_config(lambda fields: fields | {"units": "bytes"}), "units or vocabulary_size"),
        (
            changed("tokenizer_config.json", lambda fields: fields | {"vocabulary_size": None}),
            "units or vocabulary_size",
        ),
        (in_config(lambda fields: fields | {"eos_token": 0}), "must be a string or null"),
        (in_config(lambda fields: fields | {"eos_token": "zz"}), "the end token 'zz' is not"),
        (in_config(lambda fields: fields | {"vocabulary_size": 0}), "at least one token"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model": '), r"tokenizer\.json:\d+: invalid JSON"),
        (lambda folder: (folder / "tokenizer.json").write_text("[" * 200_000), "invalid tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("9" * 10_000), "invalid tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"), r"tokenizer\.json"),
        (lambda folder: (folder / "tokenizer.json").write_text(""), "the file is empty"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "no such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_folder_that_holds_no_tokenizer_is_refused(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    save_tokenizer(writing_tokenizer(TEXTS, **SUBWORDS, end="</s>"), tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=said) as error:
        load_tokenizer(tmp_path)
    assert str(error.value).startswith(str(tmp_path))
