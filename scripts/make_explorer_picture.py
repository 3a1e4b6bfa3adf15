"""Write docs/explorer.png: the explorer of a run in Chromium, after a search of one input.

Needs chromium on the path, Playwright, Pillow and the extra ``explore``:

    python scripts/make_explorer_picture.py RUN INPUT [RIGHT OUTPUT]
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "explorer.png"
MOST_BYTES = 200_000
PATIENCE = 120_000  # milliseconds


def take_picture(page: Any, address: str, text: str, right: str) -> bytes:
    """Search with a relaxed beam, and take a picture of the page down to the outputs."""
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.get_by_role("textbox", name="Input", exact=True).fill(text)
    page.get_by_label("Right output, if known").fill(right)
    page.get_by_role("radio", name="relaxed beam").click()
    page.get_by_text(f"Found for {text!r}.").wait_for()
    page.locator("svg.lattice").filter(has_text="").first.wait_for()
    page.wait_for_timeout(2000)  # until the last change is shown
    edge = page.get_by_label("Local and raw scores").bounding_box()
    picture: bytes = page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": 1000, "height": edge["y"] + edge["height"] + 12}
    )
    return picture


def main(folder: str, text: str, right: str = "") -> None:
    """Serve the run, take a picture of its page, and write it with few colours.

    Raises:
        SystemExit: the picture is too large.
    """
    from PIL import Image
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-c", "from seqwise.cli import main; main()", "explore", folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as driver:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("the explorer is at ").partition(";")[0]
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 900})
            picture = Image.open(io.BytesIO(take_picture(page, address, text, right)))
            picture.convert("RGB").quantize(64).save(PICTURE, optimize=True)
        finally:
            process.terminate()
    if PICTURE.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
