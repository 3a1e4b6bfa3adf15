"""Lines written in blocks: the file is the same whichever processes are killed, and however many resume."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from seqwise import InputError
from seqwise.runs import resumable_writer
from seqwise.runs.resumable_writer import write_in_blocks

NUMBERS, BLOCK = range(50), 3
WHOLE = "".join(f"{n} ü{n**2}\n" for n in NUMBERS)
CLAIM = {"model": "a", "inputs": "b"}


class Killed(BaseException):
    """Ends a simulated process."""


def squares(numbers: Sequence[int]) -> list[str]:
    return [f"{n} ü{n**2}" for n in numbers]


@pytest.fixture
def as_one_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write as the processes of one launch would, one after the other; some are killed after so many blocks."""

    def write(path: Path, count: int, *, blocks: Sequence[int] | None = None) -> None:
        said: list[object] = []

        def from_main_process(function: Callable[[], object]) -> object:
            said.extend([] if said else [function()])
            return said[0]

        for process in range(count):
            left = blocks[process] if blocks is not None else len(NUMBERS)

            def some(numbers: Sequence[int]) -> list[str]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return squares(numbers)

            for name, value in (("rank", process), ("is_main_process", False)):
                monkeypatch.setattr(resumable_writer, name, lambda value=value: value)
            monkeypatch.setattr(resumable_writer, "init_process_group", lambda **_: None)
            monkeypatch.setattr(resumable_writer, "wait_for_everyone", lambda: None)
            monkeypatch.setattr(resumable_writer, "from_main_process", from_main_process)
            monkeypatch.setattr(resumable_writer, "shard", lambda items, process=process: items[process::count])
            try:
                write_in_blocks(path, NUMBERS, some, claim=CLAIM, block=BLOCK)
            except Killed:
                assert blocks is not None
        monkeypatch.undo()

    return write


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_processes_resumes_after_any_other(
    as_one_of: Callable[..., None], tmp_path: Path, seed: int
) -> None:
    drawn, path = random.Random(seed), tmp_path / "out"
    for _ in range(3):
        count = drawn.randint(1, 4)
        as_one_of(path, count, blocks=[drawn.randint(0, 3) for _ in range(count)])
        # A process may die within a block, whose temporary file stays.
        (tmp_path / "out.partial" / f".{drawn.randrange(9)}.{drawn.randrange(99)}.partial").write_text("torn")
    write_in_blocks(path, NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert path.read_text() == WHOLE and [one.name for one in tmp_path.iterdir()] == ["out"]


def test_kept_blocks_are_not_computed_again(as_one_of: Callable[..., None], tmp_path: Path) -> None:
    path, made, counts = tmp_path / "out", [], []
    as_one_of(path, 3, blocks=[1, 2, 0])  # blocks 0, 1 and 4
    lines_of = lambda numbers: made.extend(numbers) or squares(numbers)  # noqa: E731
    write_in_blocks(path, NUMBERS, lines_of, claim=CLAIM, block=BLOCK, on_begin=counts.append)
    assert made == [n for n in NUMBERS if n // BLOCK not in (0, 1, 4)] and counts == [len(made)]
    assert path.read_text() == WHOLE


def test_parts_of_something_else_are_refused(as_one_of: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    as_one_of(path, 2, blocks=[1, 1])
    for claim, block, what in (({**CLAIM, "inputs": "c"}, BLOCK, "inputs"), (CLAIM, 4, "block")):
        with pytest.raises(InputError, match=f"out.partial: the file was started with another {what};"):
            write_in_blocks(path, NUMBERS, squares, claim=claim, block=block)
    assert not path.exists() and len(list((tmp_path / "out.partial").iterdir())) == 3  # the claim and two blocks


def test_a_folder_without_a_claim_is_taken_only_if_it_is_empty(tmp_path: Path) -> None:
    parts = tmp_path / "out.partial"
    parts.mkdir()
    (parts / "0").write_text("mine")
    with pytest.raises(InputError, match=r"out\.partial: the file was started with something else"):
        write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (parts / "0").read_text() == "mine"
    (parts / "0").rename(parts / ".claim.json.7.partial")  # killed while it wrote the claim
    write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert [one.name for one in tmp_path.iterdir()] == ["out"] and (tmp_path / "out").read_text() == WHOLE


def test_a_block_that_was_removed_meanwhile_is_named(
    as_one_of: Callable[..., None], tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "out"
    as_one_of(path, 1, blocks=[2])
    monkeypatch.setattr(resumable_writer, "wait_for_everyone", (tmp_path / "out.partial" / "1").unlink)
    with pytest.raises(InputError, match=r"out\.partial/1: the block is missing; run the same command again"):
        write_in_blocks(path, NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert not path.exists() and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_seen_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(resumable_writer, "rank", lambda: 1)
    monkeypatch.setattr(resumable_writer, "from_main_process", lambda _: [0])  # it made the folder elsewhere
    with pytest.raises(InputError, match=r"process 1 does not see the folder .* a disk that all machines share"):
        write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)


def test_what_cannot_be_cleaned_up_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def busy(path: Path, missing_ok: bool = False) -> None:
        if path.name == "3":
            raise OSError(16, "Device or resource busy")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", busy)
    write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (tmp_path / "out").read_text() == WHOLE


def test_a_device_or_a_folder_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder"):
        with pytest.raises(InputError, match=f"{path}: the output is a folder or a device; name a file"):
            write_in_blocks(path, NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_a_file_with_a_name_like_a_part_is_left_alone(tmp_path: Path) -> None:
    for name in ("out.partial-1", "xout.partial", "out.partially"):
        (tmp_path / name).write_text("mine")
    write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "out").read_text() == WHOLE


def test_files_of_others_beside_the_output_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "out.new").write_text("mine")
    write_in_blocks(tmp_path / "out", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (tmp_path / "out.new").read_text() == "mine" and (tmp_path / "out").read_text() == WHOLE
    assert len(list(tmp_path.iterdir())) == 2
    with monkeypatch.context() as patched, pytest.raises(InputError, match="No space left"):
        patched.setattr(resumable_writer, "rename_durably", fail)
        write_in_blocks(tmp_path / "full", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.new", "full.partial"}  # no copy of the output
    (tmp_path / "more.partial").write_text("mine")
    with pytest.raises(InputError, match=r"more\.partial: the file was started with something else"):
        write_in_blocks(tmp_path / "more", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (tmp_path / "more.partial").read_text() == "mine"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "there").mkdir()
    if exists:
        (tmp_path / "there" / "out").write_text("before")
    (tmp_path / "link").symlink_to("there/out")
    write_in_blocks(tmp_path / "link", NUMBERS, squares, claim=CLAIM, block=BLOCK)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "out").read_text() == WHOLE
    assert {path.name for path in tmp_path.rglob("*")} == {"link", "there", "out"}
