"""Signatures, hashes, JSON there and back, and tables at the widths people have."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from seqwise.errors import InputError
from seqwise.evaluation import report, signature
from seqwise.evaluation.report import Result, Table, load_table, save_table
from seqwise.evaluation.signature import Signature, describe_machine, sha256_of_examples, sign, signature_line

SIGNATURE = Signature("hinge, k = 3", (1, 2), "1a2b" * 16, "0.1.0", "2.13", "3.11", "CPU, 2 cores", "2026-01-31", "abc")


def table_of(num_measures: int) -> Table:
    results = [
        Result(system, f"measure {m}", 1 / 3 + m, SIGNATURE, low=m + 0.1, high=m + 0.7, p_value=0.0004, published=50)
        for system in ("greedy [bold]", "relaxed beam search with a rather long name, alpha = 10")
        for m in range(num_measures)
    ]
    return Table("Table 1 [of 2]", tuple(results), "p against greedy")


def rendered(table: Table, *, width: int, encoding: str = "utf-8", terminal: bool = False) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=stream, width=width, force_terminal=terminal, legacy_windows=False).print(table)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("num_measures", range(1, 11))
def test_every_number_is_whole_and_no_line_is_too_wide(width, num_measures):
    text = rendered(table_of(num_measures), width=width)
    assert max(map(len, text.splitlines())) <= width
    for m in range(num_measures):
        assert text.count(f"[{m + 0.1:.2f}, {m + 0.7:.2f}]") == 2
        assert len(re.findall(rf"(?<!\d){m}\.33%", text)) == 2
    assert text.count("p < 0.001") == text.count("paper 50.00") == 2 * num_measures
    assert "greedy [bold]" in text and "Table 1 [of 2]" in text and "p against greedy" in text
    assert "…" not in text and "\x1b" not in text


def test_measures_stand_side_by_side_where_they_fit():
    header = next(line for line in rendered(table_of(4), width=80).splitlines() if "measure 0" in line)
    assert "measure 3" in header
    narrow = rendered(table_of(12), width=80)
    assert not any("measure 0" in line and "measure 1" in line for line in narrow.splitlines())


def test_long_names_of_measures_are_whole_too():
    name = "phoneme error rate against the nearest of several reference pronunciations"
    table = Table("t", tuple(Result("s", f"{name} {n}", n, SIGNATURE) for n in range(3)))
    text = rendered(table, width=80)
    assert "…" not in text and "pronunciations" in text.replace("\n", "")
    assert all(f"{n}.00%" in text for n in range(3))


def test_signature_is_printed_once_and_terminals_get_style():
    text = rendered(table_of(2), width=400)
    assert text.count(signature_line(SIGNATURE)) == 1
    assert "\x1b[1m" in rendered(table_of(2), width=80, terminal=True)


def test_ascii_consoles_are_served():
    assert "measure 0" in rendered(table_of(2), width=80, encoding="ascii")


def test_missing_cells_stay_empty_and_an_empty_table_prints():
    table = Table("gaps", (Result("a", "x", 1, SIGNATURE), Result("b", "y", 2e-5, SIGNATURE, unit=" s")))
    text = rendered(table, width=80)
    assert "1.00%" in text and "2e-05 s" in text
    assert "nothing" in rendered(Table("nothing", ()), width=80)


def test_signature_line_holds_every_field_once_on_one_line():
    line = signature_line(SIGNATURE)
    assert line == (
        "method:hinge, k = 3 | seeds:1,2 | data:1a2b1a2b1a2b | seqwise:0.1.0 | torch:2.13 | python:3.11 | "
        "machine:CPU, 2 cores | date:2026-01-31 | revision:abc"
    )
    broken = Signature("two\nlines", (1,), "00", "0", "0", "0", "m", "d")
    assert signature_line(broken).startswith("method:two lines | seeds:1 |")
    assert "revision" not in signature_line(broken)


def test_sign_says_what_runs_here_and_no_host_name():
    signature = sign("greedy", seeds=range(3), data="00")
    assert signature.seeds == (0, 1, 2) and signature.python == platform.python_version()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", signature.date)
    assert re.search(r"\b\d+ cores?\b", describe_machine())
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", signature_line(signature))


def test_revision_is_that_of_the_checkout_that_tracks_the_file(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        named = ["-c", "user.name=n", "-c", "user.email=e"]
        signature.subprocess.run(["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    tracked, stray = tmp_path / "tracked.py", tmp_path / "stray.py"
    tracked.write_text("1")
    stray.write_text("1")
    git("add", "tracked.py")
    git("commit", "-m", "first")
    clean = signature._git_revision(tracked)
    assert clean is not None and re.fullmatch("[0-9a-f]{7,}", clean)
    assert signature._git_revision(stray) is None
    tracked.write_text("2")
    assert signature._git_revision(tracked) == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")
    assert signature._git_revision(tracked) is None


tokens = st.lists(st.text(max_size=3), max_size=3).map(tuple)
data_sets = st.lists(st.tuples(tokens, tokens), max_size=3)


@given(data_sets, data_sets)
def test_hashes_agree_exactly_when_sources_and_targets_do(first, second):
    def digest(pairs):
        return sha256_of_examples(SimpleNamespace(source=s, target=t, path="p", line=1) for s, t in pairs)

    assert (digest(first) == digest(second)) == (first == second)
    assert digest(first) == sha256_of_examples([SimpleNamespace(source=list(s), target=list(t)) for s, t in first])


numbers = st.floats(-1e300, 1e300)


@given(value=numbers, low=st.none() | numbers, system=st.text(), revision=st.none() | st.text())
def test_tables_load_back_equal_and_are_written_the_same_again(tmp_path_factory, value, low, system, revision):
    signature = Signature("m", (3,), "00", "0", "0", "0", "m", "d", revision)
    table = Table("t", (Result(system, "m", value, signature, low=low),), "n")
    path = tmp_path_factory.mktemp("tables") / "new" / "table.json"
    save_table(table, path)
    written = path.read_bytes()
    assert load_table(path) == table
    save_table(load_table(path), path)
    assert path.read_bytes() == written
    assert os.listdir(path.parent) == ["table.json"]


def test_keys_are_sorted_and_floats_are_short(tmp_path):
    save_table(Table("t", (Result("s", "m", 1 / 3, SIGNATURE),)), tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    assert "0.3333333333\n" in text
    content = json.loads(text)
    assert list(content) == sorted(content) and list(content["results"][0]) == sorted(content["results"][0])


def test_a_failed_write_leaves_the_old_table_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    save_table(Table("old", ()), path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", fail)
    with pytest.raises(InputError, match=r"t\.json: cannot be written: No space left"):
        save_table(Table("new", ()), path)
    assert load_table(path).title == "old" and os.listdir(tmp_path) == ["t.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"title": ', r"t\.json:2: not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not a table"),
        (b"{}", "not a table"),
        (b'{"title": 3, "results": []}', "title must be text"),
        (b'{"title": "t", "results": [], "more": 1}', "more"),
        (b'{"title": "t", "results": [{"system": "s"}]}', "not a table"),
        (b'{"title": "t", "results": ["s"]}', "not a table"),
    ],
)
def test_a_broken_file_is_named_with_its_mend(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_table(path)
    assert "t.json" in str(caught.value) and "make it again" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json: cannot be read"):
        load_table(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be written"):
        save_table(Table("t", ()), tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.7976931348623157e308, None, True, "1"])
def test_results_refuse_what_is_not_a_finite_number(value):
    with pytest.raises(InputError, match="finite number"):
        Result("s", "m", value, SIGNATURE)


def test_two_results_cannot_share_a_cell():
    with pytest.raises(InputError, match="two results"):
        Table("t", (Result("s", "m", 1, SIGNATURE), Result("s", "m", 2, SIGNATURE)))
