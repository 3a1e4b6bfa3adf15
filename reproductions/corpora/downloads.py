"""Files from the network: known beforehand by size and SHA-256, or by what is made of them, or not taken."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seqwise.data.durable import rename_durably, sha256_of_file
from seqwise.errors import InputError

__all__ = ["download"]

BLOCK = 1 << 16
ATTEMPTS = 4


def download(
    url: str,
    target: Path,
    *,
    size: int | None,
    sha256: str | None,
    most: int = 1 << 28,
    timeout: float = 30.0,
    pause: float = 1.0,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Fetch a file of which size and SHA-256 are known, and put it in place only if it has both.

    What has arrived of it stays beside the target as ``.NAME.partial``, and the next attempt, or the next call, asks
    for the rest. A connection that breaks off or stands still is tried again, three times; a server that sends
    something else is not believed: of what is too long no more than one block is read. A file of unknown size begins
    anew instead, and whoever asks for it has to judge what came.

    Args:
        url: http or https.
        target: the file; an existing one is replaced. Its folder is made.
        size: in bytes; None if it is not known.
        sha256: in hexadecimal digits; None if it is not known.
        most: bytes that a file of unknown size may have.
        timeout: seconds without a byte after which a connection stands still.
        pause: seconds before the second attempt; twice as long before each further one.
        on_bytes: called with the number of bytes that are there, as they come.

    Raises:
        InputError: the address cannot be used; the server does not answer, or refuses; what it sends is not the file.
        OSError: the disk is full, or may not be written.

    Example:
        >>> download("ftp://example.org/a", getfixture("tmp_path") / "a", size=1, sha256="00")
        Traceback (most recent call last):
        seqwise.errors.InputError: 'ftp://example.org/a' is no address of a file on the web; give one with http or https

    Not implemented: several connections; credentials other than those of a proxy.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"{url!r} is no address of a file on the web", mend="give one with http or https")
    partial = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        try:
            with _as_input_error(url):
                _fetch(url, partial, size=size, most=most, timeout=timeout, on_bytes=on_bytes or (lambda count: None))
            break
        except _BrokenOff as error:
            if attempt == ATTEMPTS - 1:
                mend = "run the same command again: what has arrived is kept"
                raise InputError(f"{url} broke off ({error})", path=partial, mend=mend) from error
            time.sleep(pause * 2**attempt)
    if sha256 is not None and sha256_of_file(partial) != sha256:
        partial.unlink()
        mend = "what was fetched has been removed; look at the source, or take the file from elsewhere"
        raise InputError(f"{url} is not the file that is wanted: its SHA-256 is another", path=target, mend=mend)
    rename_durably(partial, target)


class _BrokenOff(Exception):
    """The connection ended or stood still before the file was whole."""


@contextmanager
def _as_input_error(url: str) -> Iterator[None]:
    """What can go wrong on the way: by what may be over in a moment, and by what is not."""
    try:
        yield
    except urllib.error.HTTPError as error:
        if error.code in (408, 429) or error.code >= 500:
            raise _BrokenOff(f"the server says {error.code}") from error
        raise InputError(f"{url}: the server says {error.code} {error.reason}", mend="look at the address") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _BrokenOff(str(getattr(error, "reason", "")) or str(error) or type(error).__name__) from error


def _fetch(
    url: str, partial: Path, *, size: int | None, most: int, timeout: float, on_bytes: Callable[[int], None]
) -> None:
    """Go on with the partial file until it has as many bytes as the file."""
    have = partial.stat().st_size if partial.exists() else 0
    if size is None or have > size:
        partial.unlink(missing_ok=True)
        have = 0
    if have == size and size:
        return
    headers = {"User-Agent": "seqwise", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
        # A server may ignore the range and send all of it, or send another one than it was asked for.
        if not (answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")):
            have = 0
        said = answer.headers.get("Content-Length", "")
        wanted = size if size is not None else int(said) if said.isdecimal() else None
        limit = most if size is None else size
        with partial.open("r+b" if have else "wb") as file:
            file.seek(have)
            for block in _blocks(answer):
                if have + len(block) > limit:
                    file.truncate(0)
                    raise InputError(f"{url} is not the file that is wanted: it has more than {limit:,} bytes")
                file.write(block)
                have += len(block)
                on_bytes(have)
            file.flush()
            os.fsync(file.fileno())
    if wanted is not None and have < wanted:
        raise _BrokenOff(f"{have:,} of {wanted:,} bytes have come")


def _blocks(answer: Any) -> Iterator[bytes]:
    while block := answer.read1(BLOCK):
        yield block
