"""Sequences on disk, so that memory does not grow with the size of the file."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Generic, TypeVar, overload

IN_MEMORY = 8192
BLOCK = 256

T = TypeVar("T")


def spooled(items: Iterable[T], *, in_memory: int = IN_MEMORY) -> Sequence[T]:
    """Read all items, into a list if they are few, else into an unnamed temporary file.

    An error in any item is therefore raised before the first is used. Access is fast in order or by slices.
    """
    rest = iter(items)
    first = list(itertools.islice(rest, in_memory + 1))
    if len(first) <= in_memory:
        return first
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the items are used)
    starts, size = [], 0
    rest = itertools.chain(first, rest)
    while block := list(itertools.islice(rest, BLOCK)):
        starts.append(file.tell())
        pickle.dump(block, file)  # read back by this process only: no other can open the file
        size += len(block)
    return _Spooled(file, starts, size)


def in_blocks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of the given size; the last may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True, eq=False)
class _Spooled(Sequence[T], Generic[T]):
    """Sequence over a file of blocks of items; each access reads a block."""

    file: IO[bytes]
    starts: Sequence[int]
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(map(self._block, range(len(self.starts))))

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        places = range(self.size)[place]
        if isinstance(places, int):
            return self._block(places // BLOCK)[places % BLOCK]
        if not places:
            return []
        low, high = min(places), max(places)
        first = low // BLOCK
        items = [item for number in range(first, high // BLOCK + 1) for item in self._block(number)]
        return [items[number - first * BLOCK] for number in places]

    def _block(self, number: int) -> list[T]:
        self.file.seek(self.starts[number])
        return list(pickle.load(self.file))
