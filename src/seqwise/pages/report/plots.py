"""Line plots as inline SVG, drawn by matplotlib, coloured by the page's style and described in words."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from seqwise.errors import InputError
from seqwise.pages.report.blocks import Figure, plain_number

LINE_STYLES = ("-", "--", "-.", ":")
"""Line styles, which distinguish lines in addition to colours."""

MOST_POINTS = 400
"""Largest number of points in a line; a longer one is drawn as means over several steps."""

COLOURS = 8  # --line-0 to --line-7 in the page's style
INK, GRID, LINE = "#010101", "#020202", "#0303{:02d}"  # colours that stand for those of the page's style


@dataclass(frozen=True)
class Line:
    """Line of a plot."""

    name: str
    xs: Sequence[float]  # in increasing order
    ys: Sequence[float]  # values that are not finite are left out
    number: int = 0  # of its colour and style, from 0


def line_plot(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    logarithmic: bool = False,
    shaded: tuple[float, float] | None = None,
    borders: Sequence[float] = (),
    unit: str = "",
    level: float | None = None,
) -> Figure:
    """Plot lines with a shaded range, vertical lines at ``borders`` and a horizontal one at ``level``."""
    panel = Panel("", lines, logarithmic=logarithmic, level=level, unit=unit)
    return panel_plot(title, [panel], x_label=x_label, shaded=shaded, borders=borders)


@dataclass(frozen=True)
class Panel:
    """Lines that share an axis."""

    label: str  # of the axis
    lines: Sequence[Line]
    logarithmic: bool = False
    level: float | None = None  # of a horizontal line
    unit: str = ""


def panel_plot(
    title: str,
    panels: Sequence[Panel],
    *,
    x_label: str,
    shaded: tuple[float, float] | None = None,
    borders: Sequence[float] = (),
    note: str = "",
) -> Figure:
    """Plot panels of lines above each other, on a common horizontal axis."""

    def draw(canvas: Any) -> None:
        rows: Any = canvas.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(rows, panels, strict=True):
            _draw_panel(axes, panel)
            if shaded is not None:
                axes.axvspan(*shaded, color=GRID, alpha=0.35, linewidth=0)
            for border in borders:
                axes.axvline(border, color=GRID, linewidth=1, linestyle=":")
        rows[-1].set_xlabel(x_label)

    height = 2.5 if len(panels) == 1 else 0.4 + 1.5 * len(panels)
    text = " ".join(
        f"{panel.label}: " * bool(panel.label) + _in_words(line, x_label, panel.unit)
        for panel in panels
        for line in panel.lines
    )
    width = -(-max(len(line.xs) for panel in panels for line in panel.lines) // MOST_POINTS)
    if width > 1:
        text += f" Each point is a mean over {width} steps."
    return _figure(title, text, draw, height=height, note=note)


def _draw_panel(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        xs, ys = thinned(line.xs, line.ys, most=MOST_POINTS)
        style: dict[str, Any] = {"color": _line_colour(line.number), "linestyle": LINE_STYLES[line.number % 4]}
        axes.plot(xs, ys, **style, marker="o" if len(xs) == 1 else None, linewidth=1.4)
    if panel.level is not None:
        axes.axhline(panel.level, color=GRID, linewidth=1)
    if panel.logarithmic and all(y > 0 for line in panel.lines for y in line.ys if math.isfinite(y)):
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    if panel.label:
        axes.set_title(panel.label, fontsize=9, loc="left")


@dataclass(frozen=True)
class Interval:
    """Value with its interval, a row of a plot."""

    name: str
    ends: tuple[float, float, float]  # value, low, high; without an interval, the last two are NaN
    number: int = 0  # of its colour, from 0
    is_chosen: bool = True  # drawn as a filled dot with its values; others as a ring
    text: str = ""  # of a difference, drawn above it


@dataclass(frozen=True)
class Rows:
    """Intervals under a title; rows of the same names share an axis."""

    title: str
    intervals: Sequence[Interval]


def interval_plot(
    title: str,
    groups: Sequence[Rows],
    differences: Rows | None,
    *,
    number_text: Callable[[float], str],
    level: float | None = None,
    note: str = "",
) -> Figure:
    """Plot groups of values with intervals and, below them, differences around a line at 0."""
    num_rows = sum(len(group.intervals) + 1 for group in groups)
    num_below = 0 if differences is None else len(differences.intervals)

    def draw(canvas: Any) -> None:
        heights = [num_rows, *([num_below + 0.6] if differences else [])]
        parts: Any = canvas.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_groups(parts[0], groups, number_text)
        if level is not None:
            parts[0].axvline(level, color=INK, linewidth=1, linestyle=":")
        if differences is not None:
            _draw_differences(parts[1], differences)

    text = " ".join(
        f"{group.title}, {row.name}: {number_text(value)}"
        + ("." if math.isnan(low) else f", between {number_text(low)} and {number_text(high)}.")
        for group in groups
        for row in group.intervals
        for value, low, high in (row.ends,)
    )
    if differences is not None:
        text += f" {differences.title}: {'; '.join(row.text for row in differences.intervals)}."
    height = 0.4 + 0.18 * num_rows + (0.5 + 0.3 * num_below if differences else 0)
    return _figure(title, text, draw, height=height, note=note)


def _draw_groups(axes: Any, groups: Sequence[Rows], number_text: Callable[[float], str]) -> None:
    place, ticks, labels = 0.0, [], []
    for group in groups:
        # Next to the names of the rows, above the first one.
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        colour = _line_colour(group.intervals[0].number)
        axes.annotate(group.title, (0, place), xytext=(-6, 0), ha="right", weight="bold", color=colour, **beside)
        for row in group.intervals:
            place += 1
            ticks.append(place)
            labels.append(row.name)
            _draw_interval(axes, row, place)
            if row.is_chosen:
                text = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
                axes.annotate(
                    number_text(row.ends[0]), (max(filter(math.isfinite, row.ends)), place), weight="bold", **text
                )
        place += 1.3
    axes.set_yticks(ticks, labels)
    axes.set_ylim(place - 0.7, -0.6)
    axes.margins(x=0.12)  # room for the numbers
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _draw_interval(axes: Any, row: Interval, place: float) -> None:
    value, low, high = row.ends
    colour = _line_colour(row.number)
    axes.plot([low, high], [place, place], color=colour, linewidth=2.2 if row.is_chosen else 1.2)
    face = colour if row.is_chosen else "none"
    size = 6 if row.is_chosen else 4
    axes.plot([value], [place], marker="o", markersize=size, color=colour, markerfacecolor=face, markeredgecolor=colour)


def _draw_differences(axes: Any, differences: Rows) -> None:
    for place, row in enumerate(differences.intervals):
        _draw_interval(axes, row, place)
        middle = row.ends[0] if math.isnan(row.ends[1]) else sum(row.ends[1:]) / 2
        axes.annotate(row.text, (middle, place), xytext=(0, 6), textcoords="offset points", ha="center",
                      fontsize=8, annotation_clip=False)  # fmt: skip
    axes.axvline(0, color=INK, linewidth=1)
    names = [row.name for row in differences.intervals]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.6, -0.9)
    ends = [0.0, *(end for row in differences.intervals for end in row.ends if math.isfinite(end))]
    margin = 0.75 * (max(ends) - min(ends)) or 1.0  # room for the text
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.set_title(differences.title, fontsize=9, loc="left")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _figure(title: str, text: str, draw: Callable[[Any], None], *, height: float, note: str = "") -> Figure:
    """Draw on a canvas and return its inline SVG."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise InputError("the plots of a report need matplotlib", hint="pip install 'seqwise[report]'") from error

    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(4.4, height), layout="constrained")
        draw(canvas)
        file = io.StringIO()
        canvas.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return Figure(title, text, partial(_inlined, file.getvalue()), note)


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with numbers at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def thinned(xs: Sequence[float], ys: Sequence[float], *, most: int) -> tuple[list[float], list[float]]:
    """Average neighbouring points to at most ``most``; points that are not finite are dropped."""
    width = -(-len(xs) // most)
    kept: tuple[list[float], list[float]] = ([], [])
    for start in range(0, len(xs), width):
        part = zip(xs[start : start + width], ys[start : start + width], strict=True)
        finite = [(x, y) for x, y in part if math.isfinite(y)]
        for column, values in zip(kept, zip(*finite, strict=True), strict=False):
            column.append(math.fsum(values) / len(values))
    return kept


def _in_words(line: Line, x_label: str, unit: str) -> str:
    points = [(x, y) for x, y in zip(line.xs, line.ys, strict=True) if math.isfinite(y)]
    unit = f" {unit}" if unit else ""
    if not points:
        return f"{line.name}: no finite values."
    (first, start), (last, end) = points[0], points[-1]
    where = x_label.split(",")[0]
    if len(points) == 1:
        return f"{line.name}: {plain_number(start)}{unit} at {where} {plain_number(first)}."
    values = [y for _, y in points]
    low, high = min(values), max(values)
    if low == high:
        return f"{line.name}: {plain_number(low)}{unit} throughout, {where} {first:g} to {last:g}."
    return (
        f"{line.name}: {plain_number(start)}{unit} at {where} {first:g}, {plain_number(end)} at {where} {last:g};"
        f" between {plain_number(low)} and {plain_number(high)}."
    )


_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "seqwise",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "path.simplify": True,
}


def _line_colour(number: int) -> str:
    return LINE.format(number % COLOURS)


def _inlined(document: str, name: str) -> Markup:
    """Convert a document to inline SVG with ids that begin with a name and without external references."""
    root = ElementTree.fromstring(document)
    referred = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", document))
    for element in list(root.iter()):
        for child in list(element):
            # A style element would style the whole page.
            if child.tag.endswith(("}metadata", "}style")):
                element.remove(child)
        # HTML needs no namespaces, and whitespace between elements is not part of the drawing.
        element.tag = element.tag.rpartition("}")[2]
        attributes = ((key.rpartition("}")[2], value) for key, value in element.attrib.items())
        element.attrib = {
            key: _attribute(key, value, name) for key, value in attributes if key != "id" or value in referred
        }
        element.text, element.tail = (element.text if element.text and element.text.strip() else None), None
    for key in ("width", "height", "version"):
        del root.attrib[key]
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title {name}-text"}
    return Markup(ElementTree.tostring(root, encoding="unicode", method="html"))


def _attribute(key: str, value: str, name: str) -> str:
    """Return the value of an attribute, with the page's colours."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value.removeprefix('#')}"
    return _recoloured(value.replace("url(#", f"url(#{name}-"))


def _recoloured(text: str) -> str:
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    return re.sub(r"#0303(\d\d)", lambda match: f"var(--line-{int(match[1])})", text)
