"""What a page is made of: sections of paragraphs, tables, figures and lattices, each with its part of ``page.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from markupsafe import Markup


class Ids:
    """Names for what is referred to inside the page, each handed out once.

    Example:
        >>> ids = Ids()
        >>> ids.new("figure"), ids.new("figure")
        ('figure-1', 'figure-2')
    """

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self, what: str) -> str:
        """The next one."""
        return f"{what}-{next(self._numbers)}"


@dataclass(frozen=True)
class Paragraph:
    """One paragraph of plain text."""

    text: str
    part: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Args:
        caption: what it holds.
        columns: the headings, that of the first column included.
        rows: as many cells each.
        folded: whether it is closed until it is asked for; its caption is what is asked by.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False
    part: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """A drawing, with what it shows in words.

    Args:
        id: unique in the page.
        title: what is drawn.
        text: the same in words with numbers; it is what a screen reader says.
        svg: the drawing itself, labelled by ``id`` with "-title" and "-text" behind it.
    """

    id: str
    title: str
    text: str
    svg: Markup
    part: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Frames:
    """Drawings of which one is seen at a time, chosen by a slider.

    Args:
        id: unique in the page.
        label: of the slider.
        names: of its positions, said and shown.
        start: the position to begin with.
        panels: title, and a drawing for each position.
    """

    id: str
    label: str
    names: Sequence[str]
    start: int
    panels: Sequence[tuple[str, Sequence[Markup]]]
    part: ClassVar[str] = "frames"


@dataclass(frozen=True)
class Key:
    """Which line is which run's: names with their numbers from 0."""

    names: Sequence[str]
    part: ClassVar[str] = "key"


Block = Paragraph | Table | Figure | Frames | Key
"""What stands below a heading."""


@dataclass(frozen=True)
class Section:
    """A heading, what stands below it, and smaller sections.

    Args:
        title: the heading.
        blocks: in their order.
        sections: after them.
    """

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


def plain_number(value: float) -> str:
    """A number with six significant digits, without an exponent where it needs none.

    Example:
        >>> plain_number(0.123456789), plain_number(3.0), plain_number(1e-9)
        ('0.123457', '3', '1e-09')
    """
    return f"{value:.6g}"
