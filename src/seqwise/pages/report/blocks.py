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
class Verdict:
    """Opening sentence of a page."""

    text: str
    part: ClassVar[str] = "verdict"


@dataclass(frozen=True)
class Table:
    """Table whose first column names its rows."""

    caption: str
    columns: Sequence[str]  # headings
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False  # whether only the caption is shown until it is clicked
    narrow: bool = False  # whether it may share a row with another one
    part: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """Drawing with a text description."""

    id: str  # unique in the page
    title: str
    text: str  # description with numbers, for screen readers
    svg: Markup  # labelled by the ids ``{id}-title`` and ``{id}-text``
    note: str = ""  # shown below the title
    part: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Frames:
    """Drawings that a slider shows one at a time."""

    id: str  # unique in the page
    label: str  # of the slider
    names: Sequence[str]  # of its positions
    start: int  # first position
    panels: Sequence[tuple[str, Sequence[Markup]]]  # title, and a drawing for each position
    part: ClassVar[str] = "frames"


@dataclass(frozen=True)
class Entry:
    """Item of a listing: lines with their names."""

    lines: Sequence[tuple[str, Markup]]


@dataclass(frozen=True)
class Listing:
    """List of entries."""

    caption: str
    entries: Sequence[Entry]
    folded: bool = False  # whether only the caption is shown until it is clicked
    part: ClassVar[str] = "listing"


@dataclass(frozen=True)
class Legend:
    """Legend of beam lattices: how boxes, borders and lines are drawn."""

    colour: str  # what the colour of a box stands for
    low: str  # number of the white end
    high: str  # number of the orange end
    part: ClassVar[str] = "legend"


@dataclass(frozen=True)
class Folded:
    """Blocks that appear when their title is clicked."""

    title: str
    blocks: Sequence[Block]
    is_open: bool = False
    part: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Key:
    """Legend of lines: names of runs, numbered from 0."""

    names: Sequence[str]
    part: ClassVar[str] = "key"


Block = Paragraph | Verdict | Table | Figure | Frames | Listing | Legend | Folded | Key
"""Content below a heading."""


@dataclass(frozen=True)
class Section:
    """Heading with its content and subsections."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()
    narrow: bool = False  # whether it may share a row with another one


def plain_number(value: float) -> str:
    """Format a number: integers in full, others with three significant digits.

    Example:
        >>> plain_number(0.123456789), plain_number(1234.0), plain_number(1234.5), plain_number(1e-9)
        ('0.123', '1,234', '1,234', '1e-09')
    """
    if value == round(value, 0) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}"
