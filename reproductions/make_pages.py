"""Write docs/what-holds.md, docs/results.md, docs/results/*.md and the pages of pages/*.md from results/*.json."""

from __future__ import annotations

import sys
from pathlib import Path

from reproductions import what_holds_page
from reproductions.filled_pages import filled_pages
from reproductions.result_files import CHAPTERS, load_tables
from reproductions.result_pages import chapter_page, index_page

ROOT = Path(__file__).resolve().parent.parent


def pages(folder: Path) -> dict[str, str]:
    """Return every page by its path in docs/."""
    tables = load_tables(folder)
    chapters = {f"results/{chapter.page}.md": chapter_page(chapter, tables) for chapter in CHAPTERS}
    filled = filled_pages(tables)
    return {"what-holds.md": what_holds_page.page(tables), "results.md": index_page(tables), **chapters, **filled}


if __name__ == "__main__":
    for name, text in pages(ROOT / "results").items():
        target = ROOT / "docs" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(f"{target.relative_to(ROOT)} is written", file=sys.stderr)
