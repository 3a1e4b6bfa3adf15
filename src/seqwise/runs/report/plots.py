"""Line plots as inline SVG: drawn by matplotlib, coloured by the page's style, described in words."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup, escape

from seqwise.errors import InputError
from seqwise.runs.report.blocks import Figure, Ids, plain_number

LINE_STYLES = ("-", "--", "-.", ":")
"""Line styles, which distinguish lines beside their colours."""

MOST_POINTS = 400
"""Longer lines are drawn by means over several steps."""

COLOURS = 8  # --line-0 to --line-7 in the page's style
INK, GRID, LINE = "#010101", "#020202", "#0303{:02d}"  # colours that stand for those of the page's style


@dataclass(frozen=True)
class Line:
    """Line of a plot."""

    name: str
    xs: Sequence[float]  # in rising order
    ys: Sequence[float]  # numbers that are not finite are left out
    number: int = 0  # of its colour and style, from 0


def line_plot(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    ids: Ids,
    logarithmic: bool = False,
    shaded: tuple[float, float] | None = None,
    borders: Sequence[float] = (),
    unit: str = "",
    level: float | None = None,
) -> Figure:
    """Draw lines, with a shaded range, vertical lines at ``borders`` and a horizontal one at ``level``."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise InputError("a report has plots, which need matplotlib", hint="pip install 'seqwise[report]'") from error

    drawn = [(line, *thinned(line.xs, line.ys, most=MOST_POINTS)) for line in lines]
    positive = all(y > 0 for line in lines for y in line.ys if math.isfinite(y))
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(4.4, 2.5), layout="constrained")
        axes: Any = canvas.subplots()
        for line, xs, ys in drawn:
            style: dict[str, Any] = {"color": _line_colour(line.number), "linestyle": LINE_STYLES[line.number % 4]}
            axes.plot(xs, ys, **style, marker="o" if len(xs) == 1 else None, linewidth=1.4)
        if shaded is not None:
            axes.axvspan(*shaded, color=GRID, alpha=0.35, linewidth=0)
        for border in borders:
            axes.axvline(border, color=GRID, linewidth=1, linestyle=":")
        if level is not None:
            axes.axhline(level, color=GRID, linewidth=1)
        if logarithmic and positive:
            axes.set_yscale("log")
            _plain_ticks(axes.yaxis)
        axes.set_xlabel(x_label)
        file = io.StringIO()
        canvas.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    name = ids.new("figure")
    text = " ".join(_in_words(line, x_label, unit) for line in lines)
    width = -(-max(len(line.xs) for line in lines) // MOST_POINTS)
    if width > 1:
        text += f" Drawn by means over {width} steps."
    return Figure(name, title, text, _inlined(file.getvalue(), name))


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with numbers at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def thinned(xs: Sequence[float], ys: Sequence[float], *, most: int) -> tuple[list[float], list[float]]:
    """Average neighbours, so that at most ``most`` points are left, without those that are not finite."""
    width = -(-len(xs) // most)
    kept: tuple[list[float], list[float]] = ([], [])
    for start in range(0, len(xs), width):
        part = [(x, y) for x, y in zip(xs[start : start + width], ys[start : start + width], strict=True)]
        finite = [(x, y) for x, y in part if math.isfinite(y)]
        for column, values in zip(kept, zip(*finite, strict=True), strict=False):
            column.append(math.fsum(values) / len(values))
    return kept


def _in_words(line: Line, x_label: str, unit: str) -> str:
    points = [(x, y) for x, y in zip(line.xs, line.ys, strict=True) if math.isfinite(y)]
    unit = f" {unit}" if unit else ""
    if not points:
        return f"{line.name}: no finite number."
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
    """Convert a document to inline SVG, with unique ids and the colours of the page, without outside references."""
    root = ElementTree.fromstring(document)
    for parent in list(root.iter()):
        for child in list(parent):
            # A style element would style the whole page.
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    referred = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", document))
    pieces: list[str] = []
    _write(root, pieces, name, referred, {"role": "img", "aria-labelledby": f"{name}-title {name}-text"})
    return Markup("".join(pieces))


def _write(element: Any, pieces: list[str], name: str, referred: set[str], more: dict[str, str]) -> None:
    """Write an element without name spaces, which HTML does not need."""
    tag = element.tag.rpartition("}")[2]
    attributes: dict[str, str] = {}
    for key, value in element.attrib.items():
        key = key.rpartition("}")[2]
        if key == "id":
            if value not in referred:
                continue
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value.removeprefix('#')}"
        elif key == "version" or (tag == "svg" and key in ("width", "height")):
            continue
        attributes[key] = _recoloured(re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", value))
    attributes |= more
    pieces.append(f"<{tag}" + "".join(f' {key}="{escape(value)}"' for key, value in attributes.items()) + ">")
    text = element.text or ""
    pieces.append(str(escape(text)) if text.strip() else "")  # blanks between elements are none of the drawing
    for child in element:
        _write(child, pieces, name, referred, {})
    pieces.append(f"</{tag}>")


def _recoloured(text: str) -> str:
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    return re.sub(r"#0303(\d\d)", lambda match: f"var(--line-{int(match[1])})", text)
