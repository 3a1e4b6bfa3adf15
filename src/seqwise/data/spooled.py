"""Examples by the million: a sequence of them that stays on the disk, so that memory does not grow with the file."""

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
    """Examples as a sequence: a list of a few, otherwise a file without a name that goes with the sequence.

    All are read at once, so that what is wrong with the last one is known before the first is used. They are best
    taken in their order, or slice by slice.

    Args:
        examples: read once.
        in_memory: up to so many make a list; the file is in the folder for temporary files (``TMPDIR``).

    Raises:
        OSError: there is no room for the file.

    Example:
        >>> examples = spooled((Example(("a", str(n)), (), line=n) for n in range(1000)), in_memory=10)
        >>> len(examples), examples[999].source, [one.line for one in examples[498:500]]
        (1000, ('a', '999'), [498, 499])
    """
    return spooled_items(examples, to_plain, from_plain, in_memory=in_memory)


def spooled_items(
    items: Iterable[T], plain: Callable[[T], Any], item: Callable[[Any], T], *, in_memory: int = IN_MEMORY
) -> Sequence[T]:
    """Spool, as :func:`spooled` does, whatever can be written as JSON.

    Args:
        items: read once.
        plain: an item as JSON has it.
        item: back from there.
        in_memory: see there.

    Raises:
        OSError: there is no room for the file.

    Example:
        >>> pairs = spooled_items(((n, str(n)) for n in range(1000)), list, tuple, in_memory=10)
        >>> len(pairs), pairs[-1]
        (1000, (999, '999'))
    """
    rest = iter(items)
    first = list(itertools.islice(rest, in_memory + 1))
    if len(first) <= in_memory:
        return first
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it is open for as long as the items are used)
    starts, size = [], 0
    for block in _in_lists(itertools.chain(first, rest)):
        starts.append(file.tell())
        file.write(json.dumps(list(map(plain, block)), ensure_ascii=False).encode() + b"\n")
        size += len(block)
    return _Spooled(file, item, starts, size)


def to_plain(example: Example) -> Any:
    """An example as JSON has it."""
    return example.source, example.target, example.path, example.line, example.key


def from_plain(fields: Any) -> Example:
    """The example that :func:`to_plain` was given.

    Example:
        >>> from_plain([["a"], [], "f", 3, ""])
        Example(source=('a',), target=(), path='f', line=3, key='')
    """
    source, target, *others = fields
    return Example(tuple(source), tuple(target), *others)


def in_blocks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of so many, the last one of what is left.

    Example:
        >>> [len(block) for block in in_blocks([Example(("a",), ())] * 5, 2)]
        [2, 2, 1]
    """
    return (items[start : start + size] for start in range(0, len(items), size))


def _in_lists(items: Iterator[T]) -> Iterator[list[T]]:
    while block := list(itertools.islice(items, BLOCK)):
        yield block


@dataclass(frozen=True, eq=False)
class _Spooled(Sequence[T], Generic[T]):
    """Blocks of a file, a line each; a block is read whenever something of it is asked for."""

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
        near = [one for number in range(first, high // BLOCK + 1) for one in self._block(number)]
        return [near[number - first * BLOCK] for number in places]

    def _block(self, number: int) -> list[T]:
        self.file.seek(self.starts[number])
        return list(map(self.item, json.loads(self.file.readline())))
