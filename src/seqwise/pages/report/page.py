"""Rendering of sections as a self-contained HTML page, which is written atomically."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from seqwise.data.durable import write_atomically
from seqwise.errors import InputError
from seqwise.pages.report.blocks import Block, Section

MARKER = '<meta name="generator" content="seqwise report">'
"""Mark of a report, within its first 2048 bytes."""

MOST_BYTES = 5_000_000
"""Largest size of a page."""


def render_page(title: str, sections: Sequence[Section], *, refresh: int | None = None) -> str:
    """Render a page that reloads itself after ``refresh`` seconds.

    Text is escaped, and the content security policy allows only the page's own script.

    Example:
        >>> "<script>x" in render_page("<script>x", [])
        False
    """
    script = _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=sections,
            refresh=refresh,
            new_id=_new_ids(),
            marker=Markup(MARKER),
            style=Markup(block_style() + _part("page.css")),
            script=Markup(script),
            script_hash=digest,
        )
    )
    return page


def render_blocks(*blocks: Block) -> Markup:
    """Render blocks, with their text escaped; frames are excluded, as they need the page's script.

    Example:
        >>> from seqwise.pages.report.blocks import Paragraph
        >>> print(render_blocks(Paragraph("a < b")).strip())
        <p>a &lt; b</p>
    """
    module = _environment().get_template("blocks.html").make_module({"new_id": _new_ids()})
    return Markup("").join(map(module.draw, blocks))


def block_style() -> str:
    """Return the style sheet of blocks, with the colours of both themes."""
    return _part("blocks.css")


@cache
def _environment() -> Any:
    from jinja2 import DictLoader, Environment, StrictUndefined

    parts = DictLoader({name: _part(name) for name in ("blocks.html", "page.html")})
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False, loader=parts)


def _part(name: str) -> str:
    return resources.files("seqwise.pages.report").joinpath(name).read_text("utf-8")


def _new_ids() -> Callable[[str], str]:
    """Return a function from a word to an id that no other call has returned."""
    numbers = count(1)
    return lambda word: f"{word}-{next(numbers)}"


def require_own(output: Path) -> None:
    """Raise an InputError if the output exists and is not a report of seqwise."""
    if output.is_dir():
        raise InputError("the output is a folder", path=output, hint="name a file, such as report.html")
    if not output.exists():
        return
    try:
        with output.open("rb") as stream:
            own = MARKER.encode() in stream.read(2048)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=output, hint="give another --output") from error
    if not own:
        raise InputError("the file is not a seqwise report", path=output, hint="give another --output, or remove it")


def save_page(page: str, output: Path) -> None:
    """Write a page atomically, and make missing folders."""
    # A token may contain a lone surrogate, which UTF-8 cannot encode.
    page = page.encode("utf-8", "replace").decode("utf-8")
    size = len(page.encode("utf-8"))
    if size > MOST_BYTES:
        problem = f"the page would have {size / 1e6:.1f} MB, over the limit of {MOST_BYTES / 1e6:g}"
        raise InputError(problem, hint="ask for fewer --examples, or give fewer runs")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", path=output.parent) from error
    write_atomically(os.path.realpath(output), page)  # a symbolic link stays, and its target is written
