"""Sequences of examples on disk, so that memory does not grow with the size of the file."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar, overload

from seqwise.data.readers import Example

IN_MEMORY = 8192
BLOCK = 256

T = TypeVar("T")


def spooled(examples: Iterable[Example], *, in_memory: int = IN_MEMORY) -> Sequence[Example]:
    """Read all examples, into a list if they are few, else into an unnamed temporary file.

    An error in any example is therefore raised before the first is used. Access is fast in order or by slices.
    """
    return spooled_items(examples, to_plain, from_plain, in_memory=in_memory)


def spooled_items(
    items: Iterable[T], plain: Callable[[T], Any], item: Callable[[Any], T], *, in_memory: int = IN_MEMORY
) -> Sequence[T]:
    """Spool items that ``plain`` converts to JSON values and ``item`` converts back."""
    rest = iter(items)
    first = list(itertools.islice(rest, in_memory + 1))
    if len(first) <= in_memory:
        return first
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the items are used)
    starts, size = [], 0
    for block in _in_lists(itertools.chain(first, rest)):
        starts.append(file.tell())
        file.write(json.dumps(list(map(plain, block)), ensure_ascii=False).encode() + b"\n")
        size += len(block)
    return _Spooled(file, item, starts, size)


def to_plain(example: Example) -> Any:
    """Convert an example to a JSON value."""
    return example.source, example.target, example.path, example.line, example.key


def from_plain(fields: Any) -> Example:
    """Convert a JSON value to an example."""
    source, target, *place = fields
    return Example(tuple(source), tuple(target), *place)


def in_blocks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of the given size; the last may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _in_lists(items: Iterator[T]) -> Iterator[list[T]]:
    while block := list(itertools.islice(items, BLOCK)):
        yield block


@dataclass(frozen=True, eq=False)
class _Spooled(Sequence[T], Generic[T]):
    """Sequence over a file with a block of items per line; each access reads a block."""

    file: IO[bytes]
    item: Callable[[Any], T]
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
        return list(map(self.item, json.loads(self.file.readline())))
