"""Elements of a page: sections of paragraphs, tables, figures and lattices, each with its macro in ``blocks.html``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Paragraph:
    """Paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Verdict:
    """Opening sentence of a page."""

    text: str


@dataclass(frozen=True)
class Table:
    """Table whose first column names its rows."""

    caption: str
    columns: Sequence[str]  # headings
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False  # whether only the caption is shown until it is clicked
    narrow: bool = False  # whether it may share a row with another one


@dataclass(frozen=True)
class Figure:
    """Drawing with a text description."""

    title: str
    text: str  # description with numbers, for screen readers
    svg: Callable[[str], Markup]  # returns the drawing, labelled by the elements ``{id}-title`` and ``{id}-text``
    note: str = ""  # shown below the title


@dataclass(frozen=True)
class Frames:
    """Drawings that a slider shows one at a time."""

    label: str  # of the slider
    names: Sequence[str]  # of its positions
    start: int  # first position
    panels: Sequence[tuple[str, Sequence[Markup]]]  # title, and a drawing for each position


Entry = Sequence[tuple[str, Markup]]
"""Item of a listing: lines with their names."""


@dataclass(frozen=True)
class Listing:
    """List of entries."""

    caption: str
    entries: Sequence[Entry]
    folded: bool = False  # whether only the caption is shown until it is clicked


@dataclass(frozen=True)
class Legend:
    """Legend of beam lattices: how boxes, borders and lines are drawn."""

    colour: str  # what the colour of a box stands for
    low: str  # number of the white end
    high: str  # number of the orange end


@dataclass(frozen=True)
class Folded:
    """Blocks that appear when their title is clicked."""

    title: str
    blocks: Sequence[Block]
    is_open: bool = False


@dataclass(frozen=True)
class Key:
    """Legend of lines: names of runs, numbered from 0."""

    names: Sequence[str]


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
