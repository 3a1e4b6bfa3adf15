"""Elements of a page: sections of paragraphs, tables, figures and lattices, each with its macro in ``blocks.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from markupsafe import Markup


class Ids:
    """Unique ids of a page."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self, what: str) -> str:
        """Return the next id."""
        return f"{what}-{next(self._numbers)}"


@dataclass(frozen=True)
class Paragraph:
    """Paragraph of plain text."""

    text: str
    part: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Table:
    """Table whose first column names its rows."""

    caption: str
    columns: Sequence[str]  # headings
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False  # whether only the caption is shown until it is clicked
    part: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """Drawing with a description in words."""

    id: str  # unique in the page
    title: str
    text: str  # description with numbers, for screen readers too
    svg: Markup  # labelled by the ids ``{id}-title`` and ``{id}-text``
    part: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Frames:
    """Drawings of which a slider shows one at a time."""

    id: str  # unique in the page
    label: str  # of the slider
    names: Sequence[str]  # of its positions
    start: int  # first position
    panels: Sequence[tuple[str, Sequence[Markup]]]  # title, and a drawing for each position
    part: ClassVar[str] = "frames"


@dataclass(frozen=True)
class Key:
    """Legend of lines: names of runs, by their numbers from 0."""

    names: Sequence[str]
    part: ClassVar[str] = "key"


Block = Paragraph | Table | Figure | Frames | Key
"""Content below a heading."""


@dataclass(frozen=True)
class Section:
    """Heading with its content and subsections."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


def plain_number(value: float) -> str:
    """Write a number with six significant digits, without an exponent where possible.

    Example:
        >>> plain_number(0.123456789), plain_number(3.0), plain_number(1e-9)
        ('0.123457', '3', '1e-09')
    """
    return f"{value:.6g}"
