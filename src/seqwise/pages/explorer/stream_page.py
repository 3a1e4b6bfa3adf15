"""Page of a left-to-right tagger: labels of words as they are typed or played, and their revisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from seqwise.errors import InputError
from seqwise.pages.explorer.searches import Setup
from seqwise.pages.explorer.stream_views import colours_view, lines_view, live_in_words
from seqwise.pages.explorer.streams import Live, Piece, pieces_of
from seqwise.pages.explorer.suggestions import Suggestions
from seqwise.pages.explorer.widgets import (
    begin_page,
    button,
    controls,
    html,
    score_and_size,
    section,
    slider,
    status_line,
    text_field,
    view,
)
from seqwise.pages.explorer.work import Job, latest
from seqwise.runs.run import OutputRun

SPEEDS = (0.5, 1, 2, 4, 8, 16, 32)  # words per second
WHOLE_FILE = -1  # choice of all examples


class StreamPage:
    """Page of one visitor."""

    live: Live | None = None
    playing = False

    def __init__(self, run: OutputRun, name: str, suggestions: Suggestions) -> None:
        from nicegui import ui

        self.run, self.suggestions = run, suggestions
        begin_page(f"seqwise explore: {name}", "Live lines: labels while the words arrive.")
        ui.link("Searches, step by step", "/")
        self.refresh = latest(self._read)
        self._make_controls()
        self.status = status_line()
        with section("The lines"):
            html(colours_view(getattr(run.model, "look_ahead", 0))).classes("view").mark("colours")
            self.words = ui.label("").props("aria-live=polite").mark("lines in words")
            self.lines = view("lines")
        ui.context.client.on_delete(self._stop)
        ui.timer(0.1, self.refresh, once=True)

    def _make_controls(self) -> None:
        from nicegui import ui

        with section("Text"):
            label = "Words, each labelled once a blank follows; a line end ends a sentence"
            self.text = ui.textarea(label, on_change=self._typed).classes("grow").props("outlined dense autogrow")
            self.text.mark("Text")
            texts = [text for text, _ in self.suggestions.texts]
            names = {WHOLE_FILE: "all examples", **{place: text[:60] for place, text in enumerate(texts)}}
            self.chooser = ui.select(names, label="Or an example", on_change=self._take_example)
            self.chooser.props("outlined dense").mark("Example")
            self.chooser.set_visibility(bool(texts))
            with controls():
                self.play = button("Play the text", self._play)
                self.stop = button("Stop", self._stop)
                self.speed = slider("Words per second", SPEEDS, 2, shown="{:g}".format)
        with section("Stream settings"), controls():
            self.score, self.k = score_and_size(self.run, self.refresh)
            rules = "A label is final: agree, margin(2), delay(2), never, or several joined by or"
            self.commit = text_field(rules, "Commit rule", "agree")
            self.commit.on("keydown.enter", self.refresh).on("blur", self.refresh)
        self._enable()

    def _stop(self) -> None:
        self.playing = False

    async def _typed(self) -> None:
        self._stop()
        await self.refresh()

    def _take_example(self) -> None:
        texts = [text for text, _ in self.suggestions.texts]
        if self.chooser.value is not None:
            chosen = texts if self.chooser.value == WHOLE_FILE else [texts[self.chooser.value]]
            self.text.value = "".join(f"{text}\n" for text in chosen)

    async def _read(self) -> None:
        """Label the typed text, unless a text is being played."""
        try:
            pieces = pieces_of(self.text.value or "")
        except InputError as error:
            self.status.complain(str(error))
            return
        if not self.playing and await self._follow(pieces):
            self.status.say("")

    async def _play(self) -> None:
        """Label the text from the beginning, word by word, at the chosen speed."""
        if self.playing:
            return
        self.playing, self.live = True, None
        self._enable()
        self.status.say("Playing.")
        count = 0
        try:
            pieces = pieces_of(self.text.value or "", ended=True)
            while self.playing and count < len(pieces):
                count += 1
                if not await self._follow(pieces[:count]):
                    return
                if pieces[count - 1] is not None:
                    await self._pause(1 / SPEEDS[self.speed.value])
            self.status.say("Played to the end." if count == len(pieces) else "Stopped.")
        except InputError as error:
            self.status.complain(str(error))
        finally:
            self.playing = False
            self._enable()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until Stop."""
        end = time.monotonic() + seconds
        while self.playing and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))

    def _enable(self) -> None:
        self.play.set_enabled(not self.playing)
        self.stop.set_enabled(self.playing)

    async def _follow(self, pieces: Sequence[Piece]) -> bool:
        """Label words in a thread, and show the lines; return whether all could be read."""
        from nicegui import run as threads

        await self.status.idle()
        done = False
        with self.status.work(Job("labels")):
            options = Setup("beam", self.score.value, self.k.value + 1), self.commit.value or ""
            if self.live is None or not self.live.continues_with(*options, pieces):
                self.live = await threads.io_bound(Live, self.run, *options)
            if self.live is not None:  # None: the server is shutting down
                await threads.io_bound(self.live.read, pieces)
                done = True
        if self.live is not None:
            self.words.set_text(live_in_words(self.live))
            self.lines.set_content(str(lines_view(self.live)))
        return done
