"""Files that are on disk when a function returns; the calls of another system."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from seqwise.data import durable
from seqwise.errors import InputError


def test_on_windows_only_files_that_can_be_written_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    really: Any = os.open

    def note(path: Any, flags: int, *mode: int) -> int:
        opened.append((Path(path).name, flags & (os.O_RDWR | os.O_WRONLY)))
        return int(really(path, flags, *mode))

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(durable, "WINDOWS", True)
    (tmp_path / "a").write_text("text")
    durable.rename_durably(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "text"
    assert [entry for entry in opened if entry[0] in ("a", "b", tmp_path.name)] == [("a", os.O_RDWR)]


def test_on_a_read_only_file_system_the_file_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))  # to remove a missing file is refused as well

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError) as raised:
        durable.write_atomically(tmp_path / "page.html", "text")
    assert (
        str(raised.value)
        == f"{tmp_path / 'page.html'}: cannot be written (Read-only file system); check free space and permissions"
    )
