"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def grid(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown, ended by a line break."""
    titles = list(titles)
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (titles, *rows))
    return "\n".join([head, "|" + "---|" * len(titles), *body]) + "\n"
