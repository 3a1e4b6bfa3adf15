"""``seqwise debug-data``: every count against one by hand, and files that cannot be read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Command

TRAIN = """\
the D
cat B-X
sat I-X

the D
cat I-X

the D
cat B-X
sat I-X

"""
DEV = """\
the D
dog B-X
sat I-Y

the D
cat I-X

"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"train.conll": TRAIN, "dev.conll": DEV}.items():
        Path(name).write_text(text.replace(" ", "\t").replace("D\n", "O\n"), "utf-8")
    Path("pairs.tsv").write_text("ab\tx y\nab\tx\nc\tz\n", "utf-8")
    Path("dev.tsv").write_text("ab\tx y\nabd\tx\n", "utf-8")


def inspected(seqwise: Command, *arguments: str) -> list[dict[str, Any]]:
    done = seqwise("debug-data", *arguments, "--json")
    assert done.code == 0, done.err
    return list(json.loads(done.out))


def test_columns(files: None, seqwise: Command) -> None:
    train, dev = inspected(seqwise, "train.conll", "dev.conll")
    assert (train["summary"]["examples"], train["summary"]["source_tokens"], train["leaked"]) == (3, 8, None)
    assert (train["odd_inside"], train["first_odd"]) == (1, "train.conll:5")
    assert (train["duplicates"], train["contradictions"]) == (1, 0)
    assert {label["name"]: label["count"] for label in train["labels"]} == {"O": 3, "I-X": 3, "B-X": 2}
    assert (dev["summary"]["unseen_source_tokens"], dev["summary"]["unseen_target_tokens"]) == (1, 1)
    assert (dev["odd_inside"], dev["first_odd"]) == (2, "dev.conll:1")
    assert (dev["leaked"], dev["seen_sources"]) == (1, 1)
    assert dev["source_lengths"] == {"least": 2, "median": 2.5, "most_of_them": 3, "most": 3}
    assert next(label for label in dev["labels"] if label["name"] == "I-Y")["in_training_data"] == 0
    # the: O; cat: B-X; sat: I-X; dog, which is unknown: O or I-X, the most frequent of all.
    assert dev["baseline"]["accuracy"] == pytest.approx(2 / 5)


def test_pairs(files: None, seqwise: Command) -> None:
    train, dev = inspected(seqwise, "pairs.tsv", "dev.tsv", "--task", "transduce", "--source-units", "characters")
    assert (train["summary"]["source_tokens"], train["summary"]["target_tokens"]) == (5, 4)
    assert (train["duplicates"], train["contradictions"], train["labels"]) == (0, 1, [])
    assert (dev["leaked"], dev["seen_sources"], dev["summary"]["unseen_source_tokens"]) == (1, 1, 1)
    assert dev["baseline"]["sequence accuracy"] == 0.5
    # On the training pairs themselves it would be next to 100%.
    shown = seqwise("debug-data", "pairs.tsv", "dev.tsv", "--task", "transduce", "--source-units", "characters").out
    assert [file.count("baseline") for file in shown.split("\n\n")] == [0, 1]


def test_text_fits_a_terminal_and_names_what_is_odd(files: None, seqwise: Command) -> None:
    done = seqwise("debug-data", "train.conll", "dev.conll", "--labels", "1")
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    for piece in ("train.conll:5", "not in the training data: I-Y", "and 2 more", "in training 1 sentence,"):
        assert piece in done.out, piece


def test_words_in_another_unicode_form_are_counted(files: None, seqwise: Command) -> None:
    Path("composed.conll").write_text("caf\u00e9\tO\nna\u00efve\tO\n\n", "utf-8")
    Path("decomposed.conll").write_text("cafe\u0301\tO\nna\u00efve\tO\nnew\tO\ncafe\u0301\tO\n\n", "utf-8")
    composed, decomposed = inspected(seqwise, "composed.conll", "decomposed.conll")
    assert (composed["in_another_form"], decomposed["in_another_form"]) == (None, 2)
    shown = " ".join(seqwise("debug-data", "composed.conll", "decomposed.conll").out.split())
    assert "3 (75.0%) not in the training data 2 of them are there in another Unicode form (NFC, NFD" in shown
    assert "Unicode" not in seqwise("debug-data", "train.conll", "dev.conll").out


def test_a_file_without_blank_lines_is_named(files: None, seqwise: Command) -> None:
    for count, named in ((49, False), (50, True)):
        Path("one.conll").write_text("the\tO\ncat\tB-X\n" * (count // 2) + "the\tO\n" * (count % 2), "utf-8")
        (file,) = inspected(seqwise, "one.conll")
        assert (
            file["warning"] == "all 50 tokens are one sentence; is there a blank line after each sentence?"
        ) is named


def test_standard_input_is_read(files: None, seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from_files = inspected(seqwise, "train.conll", "dev.conll")
    for name, arguments in {"train.conll": ("-", "dev.conll"), "dev.conll": ("train.conll", "-")}.items():
        with Path(name).open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            from_input = json.dumps(inspected(seqwise, *arguments))
        assert from_input.count('"name": "<stdin>"') == 1
        assert json.loads(from_input.replace("<stdin>", name)) == from_files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.conll", "dev.conll", "train.conll"], "train.conll: the file is given twice"),
        (["-", "-"], "<stdin>: the file is given twice"),
        (["missing.conll"], "missing.conll"),
        (["train.conll", "--task", "both"], "--task must be tag or transduce"),
        (["train.conll", "--labels", "0"], "--labels must be at least 1"),
        (["pairs.tsv", "--task", "transduce", "--source-units", "bytes"], "bytes"),
        (["pairs.tsv", "--task", "transduce", "--source-units", "subwords"], "source_units: subwords are learned from"),
        (["pairs.tsv", "--task", "transduce", "--label-column", "7"], "label_column: has no effect here"),
        (["train.conll", "--source-units", "characters"], "source_units: has no effect here"),
        (["train.conll", "empty.conll"], "empty.conll"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(arguments: list[str], said: str, files: None, seqwise: Command) -> None:
    Path("empty.conll").write_text("", "utf-8")
    done = seqwise("debug-data", *arguments)
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1
