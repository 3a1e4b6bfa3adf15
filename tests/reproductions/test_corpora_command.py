"""`python -m reproductions.corpora`: the list is true, and damage is found."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Command
from reproductions import REPRODUCTIONS
from reproductions.corpora import catalogue, readers
from reproductions.corpora.catalogue import Corpus, File, find_corpus, measure_file

REPRODUCTION_FILES = Path(readers.__file__).parent.parent


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of corpora with one small corpus of two files, which is what the catalogue says there should be."""
    folder = tmp_path / "corpora"
    (folder / "cmudict").mkdir(parents=True)
    for name in ("one", "two"):
        (folder / "cmudict" / name).write_text(name * 1000)
    listed = {path.name: measure_file(path) for path in (folder / "cmudict").iterdir()}
    known: dict[str, Corpus] = {name: replace(one, files=listed) for name, one in catalogue.corpora().items()}
    monkeypatch.setattr(catalogue, "corpora", lambda: known)
    monkeypatch.setenv("SEQWISE_DATA", str(folder))
    return folder


def test_every_corpus_is_pinned_and_licensed() -> None:
    for corpus in catalogue.corpora().values():
        assert corpus.licence and corpus.sources
        assert all(re.match(r"github\.com/[\w.-]+/[\w.-]+@[0-9a-f]{12,40}( |$)", one) for one in corpus.sources)


def test_corpora_name_existing_reproductions() -> None:
    assert {name for one in catalogue.corpora().values() for name in (*one.needed_by, *one.optional_for)} <= set(
        REPRODUCTIONS
    )


def test_every_corpus_that_a_reproduction_reads_is_in_the_catalogue() -> None:
    """By the names in the code: those given to `corpus`, and those of the folders of column files."""
    source = "\n".join(path.read_text("utf-8") for path in REPRODUCTION_FILES.rglob("*.py") if path.stem != "catalogue")
    read = set(re.findall(r"\bcorpus\(\"([^\"]+)\"\)", source)) | {folder for folder, *_ in readers.SUPERTAGS.values()}
    read |= set(re.findall(r"columns(?:\(|, )\"([^\"]+)\"", source))
    assert len(read) >= 8
    used = {name for name, one in catalogue.corpora().items() if one.needed_by or one.optional_for}
    assert read == used


def test_the_table_is_that_of_the_corpora(corpora: Path) -> None:
    for name in catalogue.corpora():
        if (corpora / name).is_dir():
            there = {path.name for path in (corpora / name).iterdir()} - {"README.md"}
            assert there == set(find_corpus(name).files), name
    path = corpora / "cmudict" / "cmudict-0.7b.phones"
    assert find_corpus("cmudict").files[path.name] == File(
        path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    )


def test_list_says_what_is_here(copies: Path, corpora_command: Command) -> None:
    said = corpora_command("list").out
    assert "cmudict (here): CMU" in said and "supertag-erg (absent)" in said and f"SEQWISE_DATA is {copies}" in said
    (record,) = [json.loads(corpora_command("list", "--json").out)]
    assert record["SEQWISE_DATA"] == str(copies) and set(record["corpora"]) == set(catalogue.corpora())
    assert record["corpora"]["cmudict"]["here"] and not record["corpora"]["supertag-erg"]["here"]
    assert record["corpora"]["cmudict"]["files"]["one"]["size"] == 3000


def test_list_needs_no_data(corpora_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQWISE_DATA", raising=False)
    said = corpora_command("list").out
    assert "(here)" not in said and said.endswith("SEQWISE_DATA is not set\n")


def test_where(copies: Path, corpora_command: Command) -> None:
    assert corpora_command("where", "cmudict").out == f"{copies / 'cmudict'}\n"
    assert corpora_command("where", "cmudit").complaint.startswith("there is no corpus 'cmudit'; did you mean")
    assert "the corpus is missing" in corpora_command("where", "supertag-erg").complaint


def test_check_finds_every_kind_of_damage(copies: Path, corpora_command: Command) -> None:
    assert corpora_command("check").out == "cmudict: in order (2 files)\n"
    one, two = copies / "cmudict" / "one", copies / "cmudict" / "two"
    flipped = bytearray(one.read_bytes())
    flipped[1234] ^= 1
    one.write_bytes(flipped)
    ended = corpora_command("check", "cmudict")
    assert ended.code == 2 and "  one has another SHA-256\n" in ended.out and f"{one}: has another SHA-256" in ended.err
    two.write_bytes(two.read_bytes()[:-1])
    ended = corpora_command("check")
    assert "  two has 2,999 bytes where 3,000 were expected\n" in ended.out and ", and 1 more;" in ended.err
    two.unlink()
    assert "  two is missing\n" in corpora_command("check").out


def test_check_refuses_what_it_cannot_verify(
    copies: Path, corpora_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "there is no corpus 'x'" in corpora_command("check", "x").complaint
    assert "the corpus is missing" in corpora_command("check", "supertag-erg").complaint
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path / "nowhere"))
    assert "no corpus is present" in corpora_command("check").complaint
