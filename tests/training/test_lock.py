"""The lock of an output folder: what is refused, and the calls of Windows, in their place a table of locked bytes."""

from __future__ import annotations

import os
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seqwise.errors import InputError
from seqwise.training import lock


def test_a_second_writer_is_refused_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[tuple[int, int], int] = {}

    def locking(handle: int, mode: int, count: int) -> None:
        byte = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if byte in held:
            raise PermissionError(13, "Permission denied")
        held[byte] = handle

    fake: Any = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setattr(lock, "msvcrt", fake, raising=False)
    monkeypatch.setattr(lock, "WINDOWS", True)
    with lock.sole_writer(tmp_path / "run"):
        (tmp_path / "run" / "file").write_text("")
        with pytest.raises(InputError, match=f"process {os.getpid()} is writing"), lock.sole_writer(tmp_path / "run"):
            pass
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["file"]
    # What is locked lies behind the number of the process, which others read.
    assert {place for _, place in held} == {64}


def test_errors_tell_unwritable_folders_from_those_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / lock.LOCK).mkdir()
    with pytest.raises(InputError, match="the folder cannot be written to "), lock.sole_writer(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="the folder cannot be made "), lock.sole_writer(tmp_path / "file" / "folder"):
        pass


def test_writers_that_wait_for_each_other_are_alone_and_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    folder, inside, most = tmp_path / "deep" / ".cell", list[int](), list[int]()

    def write(number: int) -> None:
        for _ in range(100):
            with lock.next_writer(folder):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert most == [1] * 400
    assert not folder.exists()


def test_a_folder_that_its_last_writer_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, folder = os.open, tmp_path / "run"

    def removed_first(path: Path, *arguments: int) -> int:
        monkeypatch.setattr(os, "open", opened)
        folder.rmdir()
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", removed_first)
    with lock.sole_writer(folder):
        assert folder.exists()
