"""FASTA as found in the wild: wrapped, compressed, commented, cut off."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqwise.data import Example, read_fasta
from seqwise.errors import InputError


def written(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_headers_lines_and_letters(tmp_path: Path) -> None:
    file = written(tmp_path / "a.fasta", "; old\n\n>sp|P1|X a b\nMAT LK\nvw*\n; within\nA-\n>\nG\n>P3\tz\n\nC\n")
    assert read_fasta(file) == [
        Example((), tuple("MATLKvw*A-"), str(file), 4, "sp|P1|X"),
        Example((), ("G",), str(file), 9, ""),
        Example((), ("C",), str(file), 12, "P3"),
    ]


def test_compressed_with_a_mark_and_crlf(tmp_path: Path) -> None:
    data = "\ufeff>a\r\nAC\r\nGT\r\n>b\r\nT".encode()
    plain, packed = written(tmp_path / "a.fa", data), written(tmp_path / "a.fa.gz", gzip.compress(data))
    for file in (plain, packed):
        assert [(one.key, "".join(one.target), one.line) for one in read_fasta(file)] == [
            ("a", "ACGT", 2),
            ("b", "T", 5),
        ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("MAT\n>P1\nMAT\n", "1: a sequence without a header; begin each sequence with a line such as >NAME"),
        ("\n;x\n >P1\nMAT\n", "3: a sequence without a header; begin each sequence with a line such as >NAME"),
        (">P1\nM\n>P2\n\n;x\n>P3\nT\n", "3: the sequence is empty; write its letters on the lines below the header"),
        (">P1\nM\n>P2 cut off", "3: the sequence is empty; write its letters on the lines below the header"),
        (";only\n;comments\n", " no example in the file"),
        ("", " the file is empty"),
        (b">P1\nM\xff\n", "2: byte 0xff at column 2 is not UTF-8"),
        (gzip.compress(b">P1\n" + bytes(range(65, 91)) * 999, mtime=0)[:-9], "2: damaged gzip file"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, data: str | bytes, complaint: str) -> None:
    file = written(tmp_path / "bad.fasta", data)
    with pytest.raises(InputError) as caught:
        read_fasta(file)
    assert str(caught.value).startswith(f"{file}:{complaint}")


entries = st.lists(
    st.tuples(
        st.text("ABCxyz012|_.", max_size=8),
        st.text("ACDEFGHIKLMNPQRSTVWYacgt*-_", min_size=1, max_size=70),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=6,
)


@given(entries)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_wrapping_the_letters_come_back(tmp_path: Path, entries: list[tuple[str, str, int]]) -> None:
    lines, places = [], []
    for name, letters, width in entries:
        lines.append(f">{name} described")
        places.append(len(lines) + 1)
        lines += [letters[first : first + width] for first in range(0, len(letters), width)]
    found = read_fasta(written(tmp_path / "a.fasta", "\n".join(lines) + "\n"))
    # Without a name, the first word of the header is the description.
    assert [one.key for one in found] == [name or "described" for name, _, _ in entries]
    assert ["".join(one.target) for one in found] == [letters for _, letters, _ in entries]
    assert [one.line for one in found] == places
    assert {one.source for one in found} == {()}
