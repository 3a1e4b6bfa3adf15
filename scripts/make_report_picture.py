"""Write docs/report.png: the first screen of a report in Chromium.

Needs chromium on the path, Playwright and Pillow. In a folder in which docs/guides/tagging.md was run:

    seqwise report plain auto --file test.tsv
    python scripts/make_report_picture.py report.html
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "report.png"
MOST_BYTES = 150_000


def main(report: str) -> None:
    """Take a picture of the verdict and the first figures, and write it with few colours.

    Raises:
        SystemExit: the picture is too large.
    """
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(Path(report).resolve().as_uri())
        edge = page.get_by_role("heading", name="Errors").bounding_box()
        assert edge is not None
        picture = page.screenshot(clip={"x": 0, "y": 0, "width": 1200, "height": edge["y"] - 12})
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(PICTURE, optimize=True)
    if PICTURE.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
