"""Corpora from the network: from their sources where these have them as recipes read them, or from a copy of them."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from seqwise.data.downloads import download
from seqwise.data.durable import rename_durably
from seqwise.errors import InputError
from seqwise.recipes.catalogue import File, find_corpus, listed_files, verify

__all__ = ["OnBytes", "fetch_corpus"]

OnBytes = Callable[[str, int, int], None]
"""Called with the name of a file, how many bytes of it are there, and how many it has."""


@dataclass(frozen=True)
class _Original:
    """Where a file comes from, and what comes from there."""

    url: str
    file: File


def fetch_corpus(
    name: str, folder: Path, *, mirror: str | None = None, on_bytes: OnBytes | None = None
) -> tuple[list[str], list[str]]:
    """Fetch the files of a corpus that are not in order yet.

    Args:
        name: of the corpus.
        folder: that of the corpus; made if need be.
        mirror: the address of a folder of corpora, such as ``https://data.example.org/corpora``; None: from the sources
            of the corpus, those files that are published as they are.
        on_bytes: see :data:`OnBytes`.

    Returns:
        The names of the files that were fetched, and of those that are not in order and cannot be had without a mirror.

    Raises:
        InputError: nothing of it can be had, or see :func:`~seqwise.data.downloads.download`; what was fetched before
            stays.

    Not implemented: making the files that were put together from several sources; `seqwise data supertags` makes those
    of dependency trees.
    """
    files = listed_files(name)
    wrong = [file for file, fault in verify(folder, files) if fault]
    originals = _originals(name, {file: files[file] for file in wrong}, mirror)
    if wrong and not originals:
        problem = f"{name}: no source has its files as recipes read them"
        mend = "give --mirror URL, the address of a folder of corpora that has it, or copy it from such a folder"
        raise InputError(problem, mend=mend)
    for file, original in originals.items():
        target, packed = folder / file, files[file].contents == original.file
        arrived = folder / f".{file}.original" if packed else target
        told = None if on_bytes is None else _of_file(on_bytes, file, original.file.size)
        download(original.url, arrived, size=original.file.size, sha256=original.file.sha256, on_bytes=told)
        if packed:
            _compress(arrived, target)
    return list(originals), [file for file in wrong if file not in originals]


def _of_file(on_bytes: OnBytes, file: str, size: int) -> Callable[[int], None]:
    return lambda done: on_bytes(file, done, size)


def _originals(name: str, files: Mapping[str, File], mirror: str | None) -> dict[str, _Original]:
    if mirror is not None:
        base = f"{mirror.rstrip('/')}/{quote(name)}"
        return {file: _Original(f"{base}/{quote(file)}", wanted) for file, wanted in files.items()}
    urls = find_corpus(name).published
    return {file: _Original(urls[file], wanted.contents or wanted) for file, wanted in files.items() if file in urls}


def _compress(original: Path, target: Path) -> None:
    """The same contents as gzip, without the time, so that it comes out the same each time."""
    partial = target.with_name(f".{target.name}.packed")
    with (
        original.open("rb") as source,
        partial.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed)
    rename_durably(partial, target)
    original.unlink()
