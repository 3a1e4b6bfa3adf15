"""Downloads of corpora by pooch: files checked by SHA-256, supertags made from trees, or everything from a mirror."""

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

    Returns the fetched files, and those that no source publishes. Not implemented: resuming inside a file; making the
    files that were combined from several sources.
    """
    files = find_corpus(name).files
    wrong = {file: files[file] for file, fault in verify(folder, files) if fault}
    published = [file for file, expected in wrong.items() if mirror or expected.url or expected.trees]
    if wrong and not published:
        problem = f"{name}: no source has these files in the form that the reproductions read"
        hint = "give --mirror URL, the address of a folder of corpora that has it, or copy it from such a folder"
        raise InputError(problem, hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        for file in published:
            expected, target = wrong[file], Path(scratch) / file
            if mirror:
                _download(f"{mirror.rstrip('/')}/{quote(name)}/{quote(file)}", target, expected.sha256, show_progress)
            elif expected.url:
                _download(expected.url, target, (expected.contents or expected).sha256, show_progress)
                _compress_as_expected(target, expected)
            elif expected.trees:
                _make_supertags(expected.trees, target, expected, show_progress)
            rename_durably(target, folder / file)
    return published, [file for file in wrong if file not in published]


def _download(url: str, target: Path, sha256: str | None, show_progress: bool) -> None:
    """Download a complete file with the given checksum, or nothing."""
    import pooch

    registry = {target.name: None if sha256 is None else f"sha256:{sha256}"}
    fetcher = pooch.create(target.parent, "", registry=registry, urls={target.name: url}, retry_if_failed=RETRIES)
    with _as_input_errors(url, target):
        fetcher.fetch(target.name, downloader=pooch.HTTPDownloader(progressbar=show_progress, timeout=TIMEOUT))


@contextmanager
def _as_input_errors(url: str, target: Path) -> Iterator[None]:
    """Turn errors of a download into an InputError."""
    import requests

    try:
        yield
    except requests.RequestException as error:
        raise InputError(f"{url} cannot be fetched ({error})", hint="check the address, or try again") from error
    except ValueError as error:  # from pooch: another checksum, or an unknown protocol
        reason = " ".join(str(error).split())
        hint = "nothing was kept; check the source, or use --mirror"
        raise InputError(f"{url} is not the file of the catalogue ({reason})", path=target.name, hint=hint) from error


def _make_supertags(url: str, target: Path, expected: File, show_progress: bool) -> None:
    """Download dependency trees, and make the supertags of the catalogue from them."""
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
    if measure_file(made) != expected.contents:
        hint = "nothing was kept; use --mirror"
        raise InputError(f"{url} contains other trees than those of the catalogue", path=target.name, hint=hint)
    made.rename(target)
    _compress_as_expected(target, expected)


def _compress_as_expected(path: Path, expected: File) -> None:
    """Compress a file in place if the catalogue has it compressed, without a timestamp, so that it is reproducible."""
    if expected.contents is None:
        return
    packed = path.with_name(f"{path.name}.packed")
    with (
        path.open("rb") as source,
        packed.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream,
    ):
        shutil.copyfileobj(source, stream)
    packed.replace(path)
