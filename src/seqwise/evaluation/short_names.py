"""Distinct abbreviations of long names, for drawings with little space."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


def shorten_distinctly(names: Iterable[str], *, longest: int) -> dict[str, str]:
    """Abbreviate names to distinct short forms, in which "…" replaces their common parts.

    Each short form is unambiguous: as a pattern in which "…" matches any text, it matches only its own name. It keeps
    as much of the beginning as possible. If no such form is short enough, names are numbered.
    """
    distinct = list(dict.fromkeys(names))
    short = {name: name for name in distinct if len(name) <= longest}
    for name in distinct:
        if name not in short:
            others = [other for other in distinct if other != name]
            fitting = (form for form in _forms(name, longest) if not any(map(_pattern(form).fullmatch, others)))
            form = next(fitting, None)
            if form is not None:
                short[name] = form
    taken, number = set(short.values()), 0
    for name in distinct:
        while name not in short:
            number += 1
            form = f"{name[: max(longest - 1 - len(str(number)), 0)]}…{number}"
            if form not in taken:
                short[name] = form
    return {name: short[name] for name in distinct}


def _forms(name: str, longest: int) -> Iterator[str]:
    """Yield forms of the beginning and end around a gap, then of a part from the middle, without and with the end."""
    for head in range(longest - 1, 0, -1):
        yield f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"
    for tail in range(max(longest - 2, 0)):
        part = longest - 2 - tail
        for start in range(1, len(name) - part - tail):
            yield f"…{name[start : start + part]}…{name[len(name) - tail :]}"


def _pattern(form: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, form.split("…"))), re.DOTALL)
