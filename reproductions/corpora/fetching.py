"""Fetch corpora by pooch: files known by their SHA-256, supertags made of trees, or all of them from a mirror."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from reproductions.corpora.catalogue import File, find_corpus, measure_file, verify
from reproductions.corpora.dependencies import read_dependencies, write_supertags
from seqwise.data.durable import rename_durably
from seqwise.errors import InputError

RETRIES = 3
TIMEOUT = 30.0  # seconds without a byte


def fetch_corpus(
    name: str, folder: Path, *, mirror: str | None = None, show_progress: bool = False
) -> tuple[list[str], list[str]]:
    """Fetch the files of a corpus that are missing or damaged.

    Not implemented: resuming inside a file; making the files that were put together from several sources.
    """
    files = find_corpus(name).files
    wrong = {file: files[file] for file, fault in verify(folder, files) if fault}
    published = [file for file, wanted in wrong.items() if mirror or wanted.url or wanted.trees]
    if wrong and not published:
        problem = f"{name}: no source has these files in the form that the reproductions read"
        hint = "give --mirror URL, the address of a folder of corpora that has it, or copy it from such a folder"
        raise InputError(problem, hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        for file in published:
            wanted, arrived = wrong[file], Path(scratch) / file
            if mirror:
                _download(f"{mirror.rstrip('/')}/{quote(name)}/{quote(file)}", arrived, wanted.sha256, show_progress)
            elif wanted.url:
                _download(wanted.url, arrived, (wanted.contents or wanted).sha256, show_progress)
                _compress_where_wanted(arrived, wanted)
            elif wanted.trees:
                _make_supertags(wanted.trees, arrived, wanted, show_progress)
            rename_durably(arrived, folder / file)
    return published, [file for file in wrong if file not in published]


def _download(url: str, target: Path, sha256: str | None, show_progress: bool) -> None:
    """Download one file, whole and with the given sum, or none."""
    import pooch

    registry = {target.name: None if sha256 is None else f"sha256:{sha256}"}
    fetcher = pooch.create(target.parent, "", registry=registry, urls={target.name: url}, retry_if_failed=RETRIES)
    with _one_line(url, target):
        fetcher.fetch(target.name, downloader=pooch.HTTPDownloader(progressbar=show_progress, timeout=TIMEOUT))


@contextmanager
def _one_line(url: str, target: Path) -> Iterator[None]:
    import requests

    try:
        yield
    except requests.RequestException as error:
        raise InputError(f"{url} cannot be fetched ({error})", hint="check the address, or try again") from error
    except ValueError as error:  # pooch: the sum is another, or the protocol is unknown
        reason = " ".join(str(error).split())
        hint = "nothing was kept; check the source, or use --mirror"
        raise InputError(f"{url} is not the file of the catalogue ({reason})", path=target.name, hint=hint) from error


def _make_supertags(url: str, target: Path, wanted: File, show_progress: bool) -> None:
    """Turn dependency trees into the very labels that the catalogue names."""
    trees = target.with_name(f"{target.name}.conllu")
    _download(url, trees, None, show_progress)
    try:
        sentences = read_dependencies(trees)
    except InputError as error:
        where = "" if error.line is None else f"line {error.line}: "
        hint = "check the source, or use --mirror"
        raise InputError(f"{url} contains no trees: {where}{error.problem}", hint=hint) from error
    made = target.with_name("supertags")
    write_supertags(made, sentences)
    if measure_file(made) != wanted.contents:
        hint = "nothing was kept; use --mirror"
        raise InputError(f"{url} contains other trees than those of the catalogue", path=target.name, hint=hint)
    made.rename(target)
    _compress_where_wanted(target, wanted)


def _compress_where_wanted(path: Path, wanted: File) -> None:
    """Compress a file in place, without a time in it, so that it comes out the same each time."""
    if wanted.contents is None:
        return
    packed = path.with_name(f"{path.name}.packed")
    with (
        path.open("rb") as source,
        packed.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream,
    ):
        shutil.copyfileobj(source, stream)
    packed.replace(path)
