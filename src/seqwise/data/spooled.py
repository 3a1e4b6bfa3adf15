"""Examples by the million: a sequence of them that stays on the disk, so that memory does not grow with the file."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, overload

from seqwise.data.readers import Example

__all__ = ["in_blocks", "spooled"]

IN_MEMORY = 8192
BLOCK = 256


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
    rest = iter(examples)
    first = list(itertools.islice(rest, in_memory + 1))
    if len(first) <= in_memory:
        return first
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it is open for as long as the examples are used)
    starts, size = [], 0
    for block in _in_lists(itertools.chain(first, rest)):
        starts.append(file.tell())
        fields = [(one.source, one.target, one.path, one.line, one.key) for one in block]
        file.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        size += len(block)
    return _Spooled(file, starts, size)


def in_blocks(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """Slices of so many, the last one of what is left.

    Example:
        >>> [len(block) for block in in_blocks([Example(("a",), ())] * 5, 2)]
        [2, 2, 1]
    """
    return (examples[start : start + size] for start in range(0, len(examples), size))


def _in_lists(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while block := list(itertools.islice(examples, BLOCK)):
        yield block


@dataclass(frozen=True, eq=False)
class _Spooled(Sequence[Example]):
    """Blocks of a file, a line each; a block is read whenever something of it is asked for."""

    file: IO[bytes]
    starts: Sequence[int]
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Example]:
        return itertools.chain.from_iterable(map(self._block, range(len(self.starts))))

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...

    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        places = range(self.size)[place]
        if isinstance(places, int):
            return self._block(places // BLOCK)[places % BLOCK]
        if not places:
            return []
        low, high = min(places), max(places)
        first = low // BLOCK
        near = [one for number in range(first, high // BLOCK + 1) for one in self._block(number)]
        return [near[number - first * BLOCK] for number in places]

    def _block(self, number: int) -> list[Example]:
        self.file.seek(self.starts[number])
        fields = json.loads(self.file.readline())
        return [Example(tuple(source), tuple(target), *others) for source, target, *others in fields]
