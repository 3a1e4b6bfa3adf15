"""The explorer and reports in a real browser: every control used, at two widths, without an error or a serious finding.

Skipped where there is no Chromium, or no Playwright to drive it with: apt-get install chromium; pip install playwright
axe-playwright-python.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import run_main
from explored import masked_run, served, tagger
from seqwise.runs import save_run

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 1200)
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the path: apt-get install chromium")
    pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        # In a container Chromium's own sandbox cannot be set up; the pages are ours.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def visited(browser: Any, address: str, width: int, *, scheme: str = "light") -> Iterator[Any]:
    """A page of a browser; warnings on its console and requests to other addresses fail the test."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    own = (address.split("?")[0], address.replace("http:", "ws:"), "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(f"asks for {asked.url}"))
    page.goto(address)
    if address.startswith("http"):
        page.wait_for_function("window.did_handshake")  # what is typed before may not arrive
    yield page
    assert wrong == []
    context.close()


def require_accessible(page: Any) -> None:
    """No finding of axe that is serious or critical; and nothing wider than the window."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response
    assert found["passes"]  # that it has run at all
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait for something that the page comes to."""
    for _ in range(PATIENCE // 100):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError(page.get_by_role("status").inner_text())


def status_begins(page: Any, text: str) -> None:
    """Wait for the status line."""
    until(page, lambda: page.get_by_role("status").inner_text().startswith(text))


def move(page: Any, name: str, key: str) -> str:
    """Move a slider by the keyboard; what it then says of itself."""
    slider = page.get_by_role("slider", name=name)
    before = slider.get_attribute("aria-valuetext")
    slider.press(key)
    until(page, lambda: slider.get_attribute("aria-valuetext") != before)
    return str(slider.get_attribute("aria-valuetext"))


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("nicegui", reason="pip install 'seqwise[explore]'")
    folder = tmp_path_factory.mktemp("explored")
    save_run(tagger(), folder / "tagger")
    save_run(masked_run(), folder / "mlm")
    with served(folder / "tagger") as one, served(folder / "mlm") as other:
        found = {"tagger": one, "mlm": other}
        yield {name: line.removeprefix("the explorer is at ").partition(";")[0] for name, line in found.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_tagger(browser: Any, addresses: dict[str, str], tmp_path: Path, width: int, scheme: str) -> None:
    with visited(browser, addresses["tagger"], width, scheme=scheme) as page:
        page.get_by_role("textbox", name="Input", exact=True).fill("a c b")
        page.get_by_label("Right output, if known").fill("D N D")
        page.keyboard.press("Enter")
        status_begins(page, "Found for 'a c b'.")
        boxes = page.locator("svg.lattice rect")
        assert boxes.count() == 9
        page.get_by_role("button", name="Step back").click()
        until(page, lambda: boxes.count() == 6)
        page.get_by_role("button", name="Step forward").click()
        until(page, lambda: boxes.count() == 9)
        assert move(page, "step of the search", "ArrowLeft") == "step 2"
        until(page, lambda: boxes.count() == 6)
        page.get_by_role("radio", name="relaxed beam").click()
        page.get_by_role("radio", name="raw").click()
        until(page, lambda: "raw scores" in page.get_by_label("Search errors").inner_text())
        assert move(page, "Alpha of the relaxed beam", "ArrowLeft") == "0.5"
        assert move(page, "Slots of the beam", "ArrowRight") == "4"
        until(page, lambda: boxes.count() == 7)  # 3 after the first step, 4 after the second
        page.locator("summary").click()
        assert page.get_by_role("table", name="Values in the lattice").is_visible()
        require_accessible(page)
        page.screenshot(path=tmp_path / f"tagger-{width}-{scheme}.png", full_page=True)
        page.get_by_role("textbox", name="Input", exact=True).fill("a zebra b")
        page.get_by_role("button", name="Search", exact=True).click()
        until(page, lambda: "zebra" in page.get_by_role("status").inner_text())
        require_accessible(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_lines_of_a_tagger(
    browser: Any, addresses: dict[str, str], tmp_path: Path, width: int, scheme: str
) -> None:
    with visited(browser, addresses["tagger"], width, scheme=scheme) as page:
        page.get_by_role("link", name="Live lines").click()
        text, tokens = page.get_by_label("Words, each labelled"), page.get_by_label("The lines").locator("p .token")
        text.fill("a c b ")
        until(page, lambda: tokens.count() == 3)
        require_accessible(page)
        page.get_by_role("radio", name="raw").click()
        assert move(page, "Words per second", "End") == "32"
        page.get_by_role("button", name="Play the text").click()
        status_begins(page, "Played to the end.")
        assert tokens.count() == 3 and page.get_by_label("The lines").locator("p .open").count() == 0
        page.screenshot(path=tmp_path / f"live-{width}-{scheme}.png", full_page=True)
        text.fill("a zebra ")
        until(page, lambda: "zebra" in page.get_by_role("status").inner_text())
        require_accessible(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_masked_model(browser: Any, addresses: dict[str, str], tmp_path: Path, width: int) -> None:
    with visited(browser, addresses["mlm"], width) as page:
        status_begins(page, "Ready.")
        chains = page.get_by_label("The chains")

        def says(text: str) -> None:
            until(page, lambda: text in chains.inner_text())

        page.get_by_role("button", name="One sweep").click()
        says("Sweep 1. Last sweep: ")
        page.get_by_role("checkbox", name="pin position 2").click()
        until(page, lambda: page.locator(".pinned").count() == 4)
        for name, key, said in (
            ("Temperature of the proposal", "ArrowRight", "1.25"),
            ("Nucleus of the proposal", "ArrowLeft", "0.95"),
            ("Positions masked together", "ArrowRight", "2"),
            ("Temperature of the target", "ArrowLeft", "0.75"),
        ):
            assert move(page, name, key) == said
        page.get_by_role("button", name="Start", exact=True).click()
        until(page, lambda: re.search(r"Sweep ([3-9]|\d\d+)\.", chains.inner_text()) is not None)
        assert page.get_by_role("button", name="Start", exact=True).is_disabled()
        page.get_by_role("button", name="Stop").click()
        status_begins(page, "Stopped.")
        assert page.locator("figure svg").count() == 2
        page.get_by_role("radio", name="gibbs").click()
        page.get_by_role("button", name="One sweep").click()
        says("follow no energy")
        require_accessible(page)
        page.screenshot(path=tmp_path / f"mlm-{width}.png", full_page=True)
        page.get_by_role("radio", name="raw").click()
        move(page, "Chains", "ArrowLeft")
        page.get_by_label("Sequence, with _ at each position to sample").fill("_ a _")
        page.get_by_role("button", name="Restart").click()
        says("Before the first sweep")
        assert "chain 3" in chains.inner_text() and "chain 4" not in chains.inner_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a tagger that has been trained for a moment."""
    pytest.importorskip("matplotlib", reason="pip install 'seqwise[report]'")
    folder, chance = tmp_path_factory.mktemp("report"), random.Random(0)
    words = {"the": "D", "dog": "N", "runs": "V"}
    for name in ("train", "dev"):
        sentences = [chance.choices(list(words), k=3) for _ in range(12)]
        lines = ("".join(f"{word}\t{words[word]}\n" for word in one) for one in sentences)
        (folder / f"{name}.conll").write_text("\n".join(lines))
    data = ["--train", folder / "train.conll", "--dev", folder / "dev.conll", "--output", folder / "run"]
    sizes = ["--hidden-size=4", "--embedding-size=4", "--label-embedding-size=2", "--beam-size=2", "--epochs=1"]
    run_main("train", "--task=tag", "--objective=cross-entropy", *data, *sizes)
    run_main("report", folder / "run", "--examples=1", "--output", folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report(browser: Any, report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with visited(browser, report.as_uri(), width, scheme=scheme) as page:
        slider = page.get_by_role("slider")
        shown = page.locator("[data-frame]:not([hidden])")
        assert slider.get_attribute("aria-valuetext") == "hard beam" and shown.count() == 2
        slider.focus()
        page.keyboard.press("Home")
        assert slider.get_attribute("aria-valuetext") == "alpha 0.03125" and shown.count() == 2
        require_accessible(page)
        page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        require_accessible(page)
        page.screenshot(path=tmp_path / f"report-{width}-{scheme}.png", full_page=True)
