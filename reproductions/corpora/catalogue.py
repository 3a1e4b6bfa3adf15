"""Catalogue of the corpora of the reproductions, from ``corpora.toml``, and checks of their files."""

from __future__ import annotations

import gzip
import hashlib
import math
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

from pydantic import TypeAdapter

from seqwise.configuration.written import did_you_mean
from seqwise.errors import InputError

TABLE = Path(__file__).with_name("corpora.toml")


@dataclass(frozen=True)
class File:
    """Expected size and SHA-256 of a file."""

    size: int
    sha256: str
    # Of the decompressed contents of a compressed file; with the right contents, its compression does not matter.
    contents: File | None = None
    url: str | None = None  # of the file, compressed or not
    trees: str | None = None  # URL of the dependency trees that its supertags are made from


@dataclass(frozen=True)
class Corpus:
    """Folder of data."""

    contents: str  # description
    sources: tuple[str, ...]  # public repositories with their commits, and the parts that were taken
    licence: str
    files: Mapping[str, File]  # by name
    needed_by: tuple[str, ...] = ()  # reproductions that cannot run without it
    optional_for: tuple[str, ...] = ()  # reproductions that read it if it is present


@cache
def corpora() -> dict[str, Corpus]:
    """Read the catalogue: every corpus by the name of its folder."""
    return TypeAdapter(dict[str, Corpus]).validate_python(tomllib.loads(TABLE.read_text("utf-8")))


def find_corpus(name: str) -> Corpus:
    """Look a corpus up by name."""
    if name not in corpora():
        raise InputError(f"there is no corpus {name!r}", hint=did_you_mean(name, corpora()))
    return corpora()[name]


def measure_file(path: Path) -> File:
    """Measure size and SHA-256 of a file, and of its decompressed contents if its name ends in .gz."""
    with path.open("rb") as stream:
        outside = _measure(stream)
    if path.suffix != ".gz":
        return outside
    with cast(BinaryIO, gzip.open(path)) as stream:
        return replace(outside, contents=_measure(stream))


def _measure(stream: BinaryIO, *, most: float = math.inf) -> File:
    """Measure a stream; reading stops as soon as it is known to be longer than ``most`` bytes."""
    digest, size = hashlib.sha256(), 0
    while size <= most and (chunk := stream.read(1 << 20)):
        digest.update(chunk)
        size += len(chunk)
    return File(size, digest.hexdigest())


def verify(folder: Path, files: Mapping[str, File]) -> Iterator[tuple[str, str]]:
    """Yield each file of a corpus with its fault, "" if it has none."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            yield name, "is missing"
            continue
        with path.open("rb") as stream:
            measured = _measure(stream)
        if measured == File(expected.size, expected.sha256) or _has_contents(path, expected.contents):
            yield name, ""
        elif measured.size != expected.size:
            yield name, f"has {measured.size:,} bytes where {expected.size:,} were expected"
        else:
            yield name, "has another SHA-256"


def _has_contents(path: Path, expected: File | None) -> bool:
    """Whether a compressed file has these contents, however it was compressed."""
    if expected is None:
        return False
    try:
        with cast(BinaryIO, gzip.open(path)) as stream:
            return _measure(stream, most=expected.size) == File(expected.size, expected.sha256)
    except (OSError, EOFError, zlib.error):
        return False
