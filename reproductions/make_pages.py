"""Write docs/what-holds.md, docs/results.md, docs/results/*.md and the pages of pages/*.md from results/*.json.

The pages/*.md are Jinja templates. A template calls ``value(file, measure, system)`` for a number, ``chosen(file,
system)`` for the test result of a system with the decoder that development data chose, ``evidence(file, claim)`` for
the difference and interval of a claim, ``claims(file)`` for all verdicts and claims, and ``systems(file, measure)`` for
the systems that have a measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reproductions import what_holds_page
from reproductions.report import Table
from reproductions.result_files import CHAPTERS, RESULTS, ROOT, Tables, by_stem, load_tables
from reproductions.result_pages import NUMBERS, chapter_page, index_page

TEMPLATES = Path(__file__).resolve().parent / "pages"
MADE = "<!-- Made by `make figures` from reproductions/pages/{name} and the files in results/; edit it there. -->\n\n"


def pages(folder: Path) -> dict[str, str]:
    """Return every page by its path in docs/."""
    tables = load_tables(folder)
    chapters = {f"results/{chapter.page}.md": chapter_page(chapter, tables) for chapter in CHAPTERS}
    filled = filled_pages(tables)
    return {"what-holds.md": what_holds_page.page(tables), "results.md": index_page(tables), **chapters, **filled}


def filled_pages(tables: Tables) -> dict[str, str]:
    """Fill in every template; returns the text of each page by its name in docs/.

    Raises:
        KeyError: a template names a number that no file has.
    """
    # Missing names must fail, and Markdown needs no escapes.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(_functions(by_stem(tables)))
    names = sorted(path.name for path in TEMPLATES.glob("*.md"))
    return {name: MADE.format(name=name) + environment.get_template(name).render() for name in names}


def _functions(tables: Mapping[str, Table]) -> dict[str, Callable[..., Any]]:
    def value(stem: str, measure: str, system: str, places: int = 1) -> str:
        for result in tables[stem].results:
            if (result.measure, result.system) == (measure, system):
                return f"{result.value:,.{places}f}"
        raise KeyError(f"{stem} has no {measure!r} of {system!r}")

    def chosen(stem: str, system: str) -> str:
        for result in tables[stem].results:
            if result.system == system and result.note == "chosen on dev":
                return f"{result.value:.1f}"
        raise KeyError(f"{stem} has no decoder chosen for {system!r}")

    def evidence(stem: str, text: str) -> str:
        for claim in tables[stem].claims:
            if claim.text.startswith(text):
                (interval,) = NUMBERS.findall(claim.evidence)
                return str(interval).replace("-", "−")
        raise KeyError(f"{stem} has no claim {text!r}")

    def claims(stem: str) -> list[tuple[str, str]]:
        return [(claim.verdict, claim.text) for claim in tables[stem].claims]

    def systems(stem: str, measure: str) -> list[str]:
        return [result.system for result in tables[stem].results if result.measure == measure]

    return {"value": value, "chosen": chosen, "evidence": evidence, "claims": claims, "systems": systems}


if __name__ == "__main__":
    for name, text in pages(RESULTS).items():
        target = ROOT / "docs" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
