"""Lock for a single writer of an output folder; the operating system releases it when its holder dies."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from seqwise.data.durable import LOCK, WINDOWS
from seqwise.errors import InputError
from seqwise.training.processes import from_main_process, is_main_process

if WINDOWS:
    import msvcrt
else:
    import fcntl

# Offset of the byte that Windows locks; others cannot read it, so it is after the process id.
_LOCKED = 64

# Tries to open a lock file, each in vain if its last holder removes the folder at that moment.
_TRIES = 100

# Errors of file systems without locks, on which other writers are not kept out.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class InUseError(InputError):
    """Another process is writing to the folder."""


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make a folder and lock it against other writers; afterwards, remove it if it is empty.

    Of the processes that torchrun starts, rank 0 takes the lock for all. The lock uses ``flock``, or on Windows locked
    bytes, and ends with its holder in any case. On NFS it holds between machines if the server supports locks.

    Example:
        >>> folder = getfixture("tmp_path") / "run"
        >>> with sole_writer(folder):
        ...     with sole_writer(folder):
        ...         pass
        Traceback (most recent call last):
        ...
        seqwise.training.lock.InUseError: ...: process ... is writing to this folder; wait for it, or give another \
--output
        >>> folder.exists()
        False
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()] if is_main_process() else []
    handles: list[int] = []
    from_main_process(lambda: handles.append(_lock(folder)))
    try:
        yield
    finally:
        for handle in handles:
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(handle)
            if WINDOWS:  # which does not remove open files
                with suppress(OSError):
                    (folder / LOCK).unlink()
            with suppress(OSError):  # of the first folder that is not empty
                for path in missing:
                    path.rmdir()


@contextmanager
def next_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to a folder, and lock it as `sole_writer` does."""
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(sole_writer(folder))
                break
            except InUseError:
                time.sleep(0.05)
        yield
    with suppress(OSError):  # the process waited for could not remove it, if this one had opened its file in there
        folder.rmdir()


def _lock(folder: Path) -> int:
    """Return the open file that holds the lock."""
    path = folder / LOCK
    try:
        while True:
            handle = _open(path)
            _lock_file(handle, folder)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    break
            os.close(handle)  # its last holder has just removed it
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
    except OSError as error:
        if folder.exists() and not folder.is_dir():
            raise InputError("the output is a file", path=folder, hint="name a folder") from error
        problem = f"the folder cannot be {'written to' if os.path.isdir(folder) else 'made'} ({error.strerror})"
        raise InputError(problem, path=folder, hint="give another --output") from error
    return handle


def _open(path: Path) -> int:
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError, FileExistsError):
            return _open_once(path)
    return _open_once(path)


def _open_once(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _lock_file(handle: int, folder: Path) -> None:
    try:
        _lock_or_raise(handle)
    except BlockingIOError:
        os.lseek(handle, 0, os.SEEK_SET)
        process_id = os.read(handle, 20).decode(errors="replace")
        os.close(handle)
        holder = f"process {process_id}" if process_id else "another process"
        hint = "wait for it, or give another --output"
        raise InUseError(f"{holder} is writing to this folder", path=folder, hint=hint) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            os.close(handle)
            raise


def _lock_or_raise(handle: int) -> None:
    """Lock a file, or raise BlockingIOError if another process holds the lock."""
    if not WINDOWS:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    os.lseek(handle, _LOCKED, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except PermissionError as error:
        raise BlockingIOError(errno.EAGAIN, error.strerror) from None
    finally:
        os.lseek(handle, 0, os.SEEK_SET)
