"""The corpora that the reproductions read, from ``corpora.toml``; and whether the files in a folder are theirs."""

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
    """Size and SHA-256 that a file has to have."""

    # of its bytes
    size: int
    sha256: str
    # of what is compressed in it, where it is compressed. A compressed file of other bytes is as good if its contents
    # are the same: reproductions read nothing else.
    contents: File | None = None
    url: str | None = None  # where it is published as it is, but for compression
    trees: str | None = None  # where the dependency trees are published that its supertags are made of


@dataclass(frozen=True)
class Corpus:
    """A folder of data."""

    contents: str  # what is in it
    sources: tuple[str, ...]  # public repositories with their commits, and what was taken from there
    licence: str  # under which it may be used
    files: Mapping[str, File]  # by name
    needed_by: tuple[str, ...] = ()  # reproductions that cannot run without it
    # reproductions that read it where it is, and something else where it is not
    read_where_present_by: tuple[str, ...] = ()


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
    """Measure size and SHA-256 of a file, and of its contents where its name says that it is compressed."""
    with path.open("rb") as stream:
        outside = _measure(stream)
    if path.suffix != ".gz":
        return outside
    with cast(BinaryIO, gzip.open(path)) as stream:
        return replace(outside, contents=_measure(stream))


def _measure(stream: BinaryIO, *, most: float = math.inf) -> File:
    """No more than ``most`` bytes are read and a chunk; what is larger is known by the bytes beyond."""
    digest, size = hashlib.sha256(), 0
    while size <= most and (chunk := stream.read(1 << 20)):
        digest.update(chunk)
        size += len(chunk)
    return File(size, digest.hexdigest())


def verify(folder: Path, files: Mapping[str, File]) -> Iterator[tuple[str, str]]:
    """Yield each file of a corpus with what is wrong with it, "" where nothing is."""
    for name, wanted in files.items():
        path = folder / name
        if not path.is_file():
            yield name, "is missing"
            continue
        with path.open("rb") as stream:
            measured = _measure(stream)
        if (measured.size, measured.sha256) == (wanted.size, wanted.sha256) or _has_contents(path, wanted.contents):
            yield name, ""
        elif measured.size != wanted.size:
            yield name, f"has {measured.size:,} bytes where {wanted.size:,} were expected"
        else:
            yield name, "its SHA-256 is another"


def _has_contents(path: Path, wanted: File | None) -> bool:
    """Whether a compressed file holds these contents, however it was compressed."""
    if wanted is None:
        return False
    try:
        with cast(BinaryIO, gzip.open(path)) as stream:
            measured = _measure(stream, most=wanted.size)
    except (OSError, EOFError, zlib.error):
        return False
    return (measured.size, measured.sha256) == (wanted.size, wanted.sha256)
