"""``seqwise explore``: what it refuses, and its pages over the framework's own test client."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import Command
from explored import masked_run, served, speller, tagger
from seqwise.pages.explorer import chain_page, search_page, server, stream_page, widgets
from seqwise.pages.explorer.suggestions import Suggestions
from seqwise.pages.explorer.work import Stopped
from seqwise.runs import save_run

pytest.importorskip("nicegui", reason="the explorer needs NiceGUI: pip install 'seqwise[explore]'")
pytest.importorskip("matplotlib", reason="the explorer's curves need matplotlib")

# ---- The command ----------------------------------------------------------------------------------------------------


def test_without_nicegui_the_command_says_what_to_install(seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert seqwise("explore", "anything").complaint.endswith("; pip install 'seqwise[explore]'")


@pytest.mark.thorough
def test_neither_the_package_nor_the_commands_import_nicegui_and_the_explorer_imports_no_trainer() -> None:
    code = "import sys, seqwise.cli, seqwise.pages.explorer.server, seqwise.pages.explorer; "
    code += "assert not {'nicegui', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_looking_for_examples_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops answers every thread with None, at once: asked for ever, the process would never end."""
    from nicegui import run

    asked: list[object] = []

    async def stopping(*arguments: object) -> None:
        asked.append(arguments)
        assert len(asked) < 5, "it goes on asking"

    monkeypatch.setattr(run, "io_bound", stopping)
    widget = SimpleNamespace(value="typed", is_deleted=False)
    suggestions: Any = SimpleNamespace(compare_for=None, is_complete=False)
    status: Any = SimpleNamespace(work=lambda job: nullcontext())
    page: Any = SimpleNamespace(text=widget, chooser=widget, suggestions=suggestions, status=status)
    asyncio.run(search_page.SearchPage._open_first(page))


def test_folders_without_a_run_are_refused(seqwise: Command, tmp_path: Path) -> None:
    assert "there is no such run folder" in seqwise("explore", tmp_path / "gone").complaint
    assert "holds no trained model" in seqwise("explore", tmp_path).complaint
    (tmp_path / "configuration.yaml").write_text("task: tag\n")
    assert "holds no trained model" in seqwise("explore", tmp_path).complaint


def test_a_port_in_use_and_one_out_of_range_are_refused(seqwise: Command, tmp_path: Path) -> None:
    save_run(tagger(), tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        complaint = seqwise("explore", tmp_path / "run", "--port", port).complaint
    assert f"port {port}" in complaint and "give another --port" in complaint
    assert "--port must be from 0 to 65535" in seqwise("explore", tmp_path / "run", "--port", 65536).complaint
    assert "no-such-host" in seqwise("explore", tmp_path / "run", "--host", "no-such-host.invalid").complaint


# ---- The pages ------------------------------------------------------------------------------------------------------

PATIENT = 600  # tenths of a second


class Visitor:
    """One visitor of a page, over the framework's test client."""

    def __init__(self, user: Any) -> None:
        self.user = user

    def widget(self, marks: str) -> Any:
        """The one widget of a name."""
        found = [one for one in self.user.client.elements.values() if sorted(one._markers) == sorted(marks.split())]
        assert len(found) == 1, (marks, found)
        return found[0]

    def click(self, name: str) -> None:
        """Press a button."""
        with self.user.client:
            from nicegui.testing.user_interaction import UserInteraction

            UserInteraction(self.user, {self.widget(name)}, name).click()

    def move(self, name: str, place: int) -> None:
        """Move a slider, as a browser does: it says where it is, as text."""
        with self.user.client:
            from nicegui.testing.user_interaction import UserInteraction

            UserInteraction(self.user, {self.widget(name)}, name).trigger("input", str(place))

    def text(self, marks: str) -> str:
        """What a label says, or a view holds."""
        widget = self.widget(marks)
        return str(getattr(widget, "text", None) or getattr(widget, "content", ""))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the page comes to."""
        for _ in range(PATIENT):
            if holds():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"it never came to that; status: {self.text('status')!r}")


def visit(run: Any, scenario: Callable[..., Awaitable[None]], *, visitors: int = 1, path: str = "/") -> None:
    """Open the page of a run for some visitors, and let them do something."""
    import httpx
    from nicegui import core
    from nicegui.testing import User
    from nicegui.testing.user_simulation import user_simulation

    async def main() -> None:
        async with user_simulation(root=server.page_of(run, "a run")) as user:
            clients = [
                httpx.AsyncClient(transport=httpx.ASGITransport(core.app), base_url="http://test")
                for _ in range(visitors - 1)
            ]
            users = [user, *map(User, clients)]
            for one in users:
                await one.open(path)
            try:
                await scenario(*map(Visitor, users))
            except Exception as error:  # raised when the server has ended: it would wait for its tasks for ever
                failed.append(error)
            for client in clients:
                await client.aclose()

    failed: list[Exception] = []
    asyncio.run(main())
    if failed:
        raise failed[0]


async def ask(one: Visitor, text: str, right: str = "") -> None:
    """Type, press Search, and wait for the answer."""
    one.widget("Input").value, one.widget("Right output").value = text, right
    one.click("Search")
    await one.until(lambda: one.text("status") == f"Found for {text!r}.")


def test_a_search_is_asked_for_followed_and_changed() -> None:
    async def scenario(one: Visitor) -> None:
        assert one.text("status").startswith("Type an input and press Search. The run was trained without")
        await ask(one, "a c b", "D N D")
        assert one.text("step in words").startswith("Step 3: ")
        assert one.text("lattice").count("<rect") == 9 and "it finds the best-scored output" in one.text("errors")
        one.click("Step back")
        assert one.text("step in words").startswith("Step 2: ") and one.text("lattice").count("<rect") == 6
        assert "after step 2" in one.text("bias")
        one.move("step of the search", 1)
        assert one.text("step in words").startswith("Step 1: ")
        one.click("Step forward")
        assert one.text("step in words").startswith("Step 2: ")
        one.widget("Scores").value = "raw"
        await one.until(lambda: "with other beam sizes, raw scores" in one.text("errors"))
        assert one.text("step in words").startswith("Step 2: ")
        one.widget("Search method").value = "greedy"
        await one.until(lambda: one.text("lattice").count("<rect") == 2)
        one.widget("Search method").value = "relaxed beam"
        await one.until(lambda: "with raw scores, alpha 1," in one.text("lattice"))
        one.move("Alpha of the relaxed beam", 0)
        await one.until(lambda: "alpha 0.03125," in one.text("lattice") and "mixes most" in one.text("step in words"))
        one.move("Slots of the beam, k", 0)
        await one.until(lambda: "of 1 slots" in one.text("lattice"))
        assert "<strong>beam of 1</strong>" in one.text("errors")

    visit(tagger(), scenario)


@pytest.mark.thorough
def test_the_page_opens_where_searches_disagree_most_with_the_k_of_the_run(tmp_path: Path) -> None:
    inputs = list(product("abc", repeat=3))
    (tmp_path / "dev.conll").write_text("\n".join("".join(f"{word}\tD\n" for word in one) for one in inputs))
    run = tagger(seed=11)
    run = replace(run, settings=run.settings.with_changes(dev=tmp_path / "dev.conll", beam_size=7))
    suggestions = Suggestions(run)
    suggestions.compare_for(60)
    first = " ".join(inputs[suggestions.order()[0]])
    assert first != "a a a"

    async def scenario(one: Visitor) -> None:
        await one.until(lambda: one.text("status") == f"Found for {first!r}.")
        assert (one.widget("Input").value, one.widget("Right output").value) == (first, "D D D")
        assert one.widget("Slots of the beam, k").props["aria-valuetext"] == "7"
        assert "beam of 7 slots" in one.text("lattice") and "<strong>beam of 7</strong>" in one.text("errors")
        await one.until(lambda: list(one.widget("Example").options) == suggestions.order()[:20])
        second = suggestions.order()[1]
        one.widget("Example").value = second
        await one.until(lambda: one.text("status") == f"Found for {' '.join(inputs[second])!r}.")
        assert one.widget("Right output").value == "D D D"
        one.widget("Input").value = "a"
        assert one.widget("Right output").value == "", "that of the example is not that of another input"

    visit(run, scenario)


def test_without_development_data_the_page_says_why_there_is_no_example(tmp_path: Path) -> None:
    async def scenario(one: Visitor) -> None:
        assert "gone.conll: no such file" in one.text("status") and "--file FILE" in one.text("status")
        assert not one.widget("Example").visible

    run = tagger()
    visit(replace(run, settings=run.settings.with_changes(dev=tmp_path / "gone.conll")), scenario)


def test_mistakes_are_shown_and_results_stay() -> None:
    async def scenario(one: Visitor) -> None:
        await ask(one, "a b")
        before = one.text("outputs")
        for text, right, message in (
            ("", "", "The input is empty"),
            ("a", "D N", "2 labels for 1 word"),
            ("q", "", "'q'"),
        ):
            one.widget("Input").value, one.widget("Right output").value = text, right
            one.click("Search")
            await one.until(lambda message=message: message in one.text("status"))  # type: ignore[misc]
        assert one.text("outputs") == before

    visit(tagger(), scenario)


def test_slow_work_shows_how_far_it_is_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    going, ended = threading.Event(), []
    real = search_page.answer

    def slow(*args: Any, on_part: Callable[[str, int, int], None], **options: Any) -> Any:
        on_part("label bias", 2, 4)
        going.wait(60)
        try:
            return real(*args, on_part=on_part, **options)
        except Stopped:
            ended.append("stopped")
            raise

    monkeypatch.setattr(widgets, "PATIENCE", 0.0)

    async def scenario(one: Visitor) -> None:
        await ask(one, "a b")
        monkeypatch.setattr(search_page, "answer", slow)
        one.widget("Input").value = "b a"
        one.click("Search")
        await one.until(lambda: one.text("status") == "Computing label bias …")
        assert one.widget("Stop computing").visible
        one.click("Stop computing")
        going.set()
        await one.until(lambda: one.text("status").startswith("Stopped; the results below are for an earlier"))
        assert ended == ["stopped"] and not one.widget("Stop computing").visible

    visit(tagger(), scenario)


def test_errors_of_the_model_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of memory\nat some line")

    async def scenario(one: Visitor) -> None:
        await ask(one, "a b")
        monkeypatch.setattr(search_page, "answer", broken)
        one.click("Search")
        await one.until(lambda: one.text("status") == "The model failed: out of memory")

    visit(tagger(), scenario)


@pytest.mark.thorough
def test_two_visitors_search_at_once_independently() -> None:
    async def scenario(one: Visitor, other: Visitor) -> None:
        other.widget("Search method").value = "relaxed beam"
        await asyncio.gather(ask(one, "a c b", "D N D"), ask(other, "b b"))
        assert one.widget("Input").value == "a c b" and other.widget("Input").value == "b b"
        assert one.widget("Search method").value == "beam"
        assert one.text("step in words").startswith("Step 3: ") and "relaxed" in other.text("lattice")
        for single, how in ((one, "beam of 3 slots with local"), (other, "relaxed beam of 3 slots with local")):
            single.click("Step back")
            single.click("Step forward")
            assert f'aria-label="{how}' in single.text("lattice")
        assert one.text("step in words").startswith("Step 3: ") and other.text("step in words").startswith("Step 2: ")
        assert "D N D" in one.text("outputs") and "the right output" not in other.text("outputs")
        found.append(other.text("outputs"))

    async def alone(single: Visitor) -> None:
        await ask(single, "b b")
        found.append(single.text("outputs"))

    found: list[str] = []
    visit(tagger(), scenario, visitors=2)
    visit(tagger(), alone)
    assert found[0] == found[1] != ""


def shown(one: Visitor) -> list[str]:
    """Words and labels of the live lines, with what was retracted."""
    return re.findall(r'<span class="token[^>]*>(.*?)</span>', one.text("lines"))


def test_a_line_is_labelled_while_it_is_typed(tmp_path: Path) -> None:
    async def scenario(one: Visitor) -> None:
        await one.until(lambda: one.text("lines in words").startswith("No words yet"))
        for text, count in (("a", 0), ("a ", 1), ("a c b", 2), ("a c b\n", 3), ("a c b\nc ", 4)):
            one.widget("Text").value = text
            await one.until(lambda count=count: len(shown(one)) == count)  # type: ignore[misc]
        assert one.text("lines in words").startswith("1 word in the last line: ")
        one.widget("Commit rule").value = "never"
        one.widget("Scores").value = "raw"
        await one.until(lambda: one.text("lines in words").startswith("1 word in the last line: 0 final, 1 may"))
        one.move("Slots of the beam, k", 0)
        one.widget("Text").value = "a zebra b "
        await one.until(lambda: "'zebra'" in one.text("status"))
        assert len(shown(one)) == 1
        one.widget("Text").value = "a b "
        await one.until(lambda: one.text("status") == "" and len(shown(one)) == 2)
        one.widget("Commit rule").value = "often"
        one.widget("Scores").value = "local"
        await one.until(lambda: one.text("status").startswith("No commit rule is called 'often'"))

    visit(tagger(), scenario, path=server.LIVE)


def test_a_text_or_the_examples_are_played_at_a_speed_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_page, "SPEEDS", (0.001, 2, 1000.0))
    (tmp_path / "dev.conll").write_text("a\tD\nb\tD\n\nc\tD\nc\tD\na\tD\n")
    run = tagger()
    run = replace(run, settings=run.settings.with_changes(dev=tmp_path / "dev.conll"))

    async def scenario(one: Visitor) -> None:
        one.widget("Example").value = stream_page.WHOLE_FILE
        await one.until(lambda: len(shown(one)) == 5)
        assert one.widget("Text").value == "a b\nc c a\n" and not one.widget("Stop").enabled
        one.move("Words per second", 0)
        one.click("Play the text")
        await one.until(lambda: len(shown(one)) == 1 and one.text("status") == "Playing.")
        assert one.widget("Stop").enabled and not one.widget("Play the text").enabled
        await asyncio.sleep(0.3)
        assert len(shown(one)) == 1
        one.click("Stop")
        await one.until(lambda: one.text("status") == "Stopped." and one.widget("Play the text").enabled)
        one.move("Words per second", 2)
        one.click("Play the text")
        await one.until(lambda: one.text("status") == "Played to the end.")
        assert len(shown(one)) == 5 and one.text("lines in words").startswith("3 words in the last line: 3 final, 0 ")

    visit(run, scenario, path=server.LIVE)


def test_live_lines_are_offered_for_streaming_models() -> None:
    async def offered(one: Visitor) -> None:
        links = [each.props["href"] for each in one.user.client.elements.values() if each.tag == "nicegui-link"]
        found.append((links, one.text("status")[:21]))

    found: list[tuple[list[str], str]] = []
    visit(tagger(), offered)
    visit(speller(), offered)
    visit(speller(), offered, path=server.LIVE)
    assert found == [(links, "Type an input and pre") for links in ([server.LIVE], [], [])]


def sweeps(one: Visitor) -> int:
    """How many sweeps the chains have made; running ones do not wait to be looked at."""
    found = re.match(r"Sweep ([\d,]+)\.", one.text("sweep in words"))
    return int(found[1].replace(",", "")) if found else 0


async def ready(one: Visitor) -> None:
    await one.until(lambda: one.text("status") == "Ready.")


def test_chains_are_stepped_pinned_run_stopped_and_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_page, "PAUSE", 0.0)

    async def scenario(one: Visitor) -> None:
        await ready(one)
        assert one.widget("Sequence").value == "_ _ _ _"
        assert one.text("sweep in words").startswith("Before the first sweep")
        one.widget("pin 2").value = True
        assert one.text("sequences").count('class="token pinned') == 4
        one.click("One sweep")
        await one.until(lambda: one.text("sweep in words").startswith("Sweep 1. Last sweep: "))
        assert "of 12 proposals" in one.text("sweep in words")
        one.move("Positions masked together", 1)
        one.click("One sweep")
        await one.until(lambda: "of 8 proposals" in one.text("sweep in words"))
        one.widget("Kernel").value = "gibbs"
        assert one.widget("Temperature of the target").props["disabled"]
        one.click("Start")
        await one.until(lambda: sweeps(one) >= 5)
        assert "follow no energy" in one.text("sweep in words") and not one.widget("Start").enabled
        one.click("Stop")
        await one.until(lambda: one.text("status") == "Stopped.")
        assert one.widget("Start").enabled and one.text("curves").count("<svg") == 2
        one.widget("Energy").value = "raw"
        one.move("Chains", 1)
        one.click("One sweep")
        await one.until(lambda: "cannot change while chains run" in one.text("status"))
        one.widget("Sequence").value = "_ a _"
        one.click("Restart")
        await one.until(lambda: one.text("sweep in words").startswith("Before the first"))
        assert one.text("sequences").count("chain 2") == 1 and "chain 3" not in one.text("sequences")
        one.widget("Sequence").value = "a"
        one.click("Restart")
        await one.until(lambda: "No position is free" in one.text("status"))

    visit(masked_run(), scenario)


def test_a_sweep_goes_by_the_proposal_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Visitor) -> None:
        await ready(one)
        seen = []
        real = chain_page.advance

        def noted(watched: Any) -> Any:
            seen.append(watched.settings)
            return real(watched)

        monkeypatch.setattr(chain_page, "advance", noted)
        one.move("Temperature of the proposal", chain_page.TEMPERATURES.index(2.0))
        one.move("Nucleus of the proposal", chain_page.NUCLEI.index(0.9))
        one.move("Temperature of the target", chain_page.TEMPERATURES.index(0.5))
        one.widget("Kernel").value = "delayed-acceptance"
        one.click("One sweep")
        await one.until(lambda: one.text("sweep in words").startswith("Sweep 1."))
        (settings,) = seen
        kernel = settings.kernel
        assert (kernel.proposal_temperature, kernel.nucleus, kernel.temperature) == (2.0, 0.9, 0.5)
        assert kernel.name == "delayed-acceptance"

    visit(masked_run(), scenario)


@pytest.mark.thorough
def test_the_chains_of_two_visitors_are_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_page, "PAUSE", 0.0)

    async def scenario(one: Visitor, other: Visitor) -> None:
        await asyncio.gather(ready(one), ready(other))
        one.click("Start")
        other.click("One sweep")
        await one.until(lambda: sweeps(one) >= 4)
        await other.until(lambda: other.text("sweep in words").startswith("Sweep 1."))
        one.click("Stop")
        await one.until(lambda: one.text("status") == "Stopped.")
        assert other.text("sweep in words").startswith("Sweep 1.") and other.text("status") == "Ready."

    visit(masked_run(), scenario, visitors=2)


# ---- The server -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_server_answers_on_this_machine_by_its_own_name_alone(tmp_path: Path) -> None:
    import http.client

    save_run(masked_run(), tmp_path / "mlm")
    with served(tmp_path / "mlm") as said:
        assert said.startswith("the explorer is at http://127.0.0.1:") and "Ctrl-C" in said
        port = int(said.rpartition(":")[2].partition(";")[0])

        def status(name: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/", headers={"Host": name})
            found = connection.getresponse().status
            connection.close()
            return found

        assert status(f"127.0.0.1:{port}") == status(f"localhost:{port}") == 200
        assert status("attacker.example") == 400
