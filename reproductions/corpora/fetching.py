"""Corpora from the network: from their sources, where recipes read what these have or what is made of it, or a copy."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reproductions.corpora.catalogue import File, find_corpus, listed_files, measure_file, verify
from reproductions.corpora.dependencies import read_dependencies, write_supertags
from reproductions.corpora.downloads import download
from seqwise.data.durable import rename_durably
from seqwise.errors import InputError

__all__ = ["OnBytes", "fetch_corpus"]

OnBytes = Callable[[str, int, int | None], None]
"""Called with the name of a file, how many bytes of it are there, and how many it has, where that is known."""


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
            of the corpus, those files that are published as they are, or as dependency trees.
        on_bytes: see :data:`OnBytes`.

    Returns:
        The names of the files that were fetched, and of those that are not in order and cannot be had without a mirror.

    Raises:
        InputError: nothing of it can be had, or see :func:`~reproductions.corpora.downloads.download`; what was fetched
            before stays.

    Supertags are made of dependency trees here; the SHA-256 of what was made shows whether they are those that recipes
    read. Not implemented: making the files that were put together from several sources.
    """
    files = listed_files(name)
    wrong = [file for file, fault in verify(folder, files) if fault]
    originals = _originals(name, {file: files[file] for file in wrong}, mirror)
    if wrong and not originals and not {*wrong} & {*find_corpus(name).trees}:
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
    trees = {} if mirror is not None else {file: url for file, url in find_corpus(name).trees.items() if file in wrong}
    for file, url in trees.items():
        _make_supertags(
            url, folder / file, files[file], told=None if on_bytes is None else _of_file(on_bytes, file, None)
        )
    done = [*originals, *trees]
    return done, [file for file in wrong if file not in done]


def _make_supertags(url: str, target: Path, wanted: File, *, told: Callable[[int], None] | None) -> None:
    """From trees, whose own size is not known, to the very labels that are.

    Raises:
        InputError: the file holds no trees, or others.
    """
    trees, made = (target.with_name(f".{target.name}.{kind}") for kind in ("conllu", "original"))
    download(url, trees, size=None, sha256=None, on_bytes=told)
    try:
        try:
            sentences = read_dependencies(trees)
        except InputError as error:  # the file is gone when this is read
            where = "" if error.line is None else f"line {error.line}: "
            mend = "look at the source, or take the corpus from elsewhere, with --mirror"
            raise InputError(f"{url} holds no trees: {where}{error.problem}", mend=mend) from error
        write_supertags(made, sentences)
        if measure_file(made) != wanted.contents:
            mend = "nothing was kept; take the corpus from elsewhere, with --mirror"
            raise InputError(f"{url} holds other trees: what is made of them is another file", path=target, mend=mend)
        _compress(made, target)
    finally:
        trees.unlink(missing_ok=True)
        made.unlink(missing_ok=True)


def _of_file(on_bytes: OnBytes, file: str, size: int | None) -> Callable[[int], None]:
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
