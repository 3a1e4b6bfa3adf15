"""Page of a masked model: running chains, with positions to pin and proposals to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from seqwise.errors import InputError
from seqwise.pages.explorer.chain_views import energy_view, sequences_view, sweep_in_words
from seqwise.pages.explorer.chains import MOST_CHAINS, Watched, adjust, advance, pin, start
from seqwise.pages.explorer.widgets import (
    begin_page,
    button,
    choice,
    controls,
    section,
    slider,
    status_line,
    text_field,
    view,
)
from seqwise.pages.explorer.work import Job
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_settings import SampleSettings

TEMPERATURES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
NUCLEI = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
BLOCKS = tuple(range(1, 9))
KERNELS = ("metropolis-hastings", "delayed-acceptance", "gibbs")

PAUSE = 0.15  # seconds between sweeps, so that the eye can follow
REDRAW = 1.0  # seconds between redrawings of the curves while chains run


class ChainPage:
    """Page of one visitor."""

    watched: Watched | None = None
    running = False
    drawn = 0.0

    def __init__(self, run: MaskedRun, name: str) -> None:
        from nicegui import ui

        self.run = run
        self.pinned: dict[int, Any] = {}
        begin_page(f"seqwise explore: {name}", "A masked model, sampled from as an energy of whole sequences.")
        with section("Setup"):
            self._make_problem_controls()
            self._make_proposal_controls()
        self.status = status_line()
        self._make_views()
        ui.context.client.on_delete(self._stop)
        ui.timer(0.1, self._begin, once=True)

    def _make_problem_controls(self) -> None:
        lengths = self.run.codec.lengths
        usual = max(lengths, key=lambda length: lengths[length]) if lengths else 6
        # For subwords and sources, the visitor sets the length.
        reads_source = self.run.codec.conditional
        blank = "" if reads_source else ("" if self.run.codec.units == "characters" else " ").join("_" * usual)
        with controls():
            self.source: Any = None
            if reads_source:
                self.source = text_field("Source", "Source")
            self.text = text_field("Sequence, with _ at each position to sample", "Sequence", blank)
            for field in (self.text, *([self.source] if self.source else [])):
                field.on("keydown.enter", self._begin)
        with controls():
            self.chains = slider("Chains", range(1, MOST_CHAINS + 1), 4)
            self.energy = choice("Energy", ("local", "raw"), "local")
            button("Restart", self._begin)

    def _make_proposal_controls(self) -> None:
        from nicegui import ui

        def enable_target() -> None:
            self.target.enable(when=self.kernel.value != "gibbs")

        ui.separator()
        ui.label("These may be changed while the chains run:").classes("quiet")
        with controls():
            self.kernel = choice("Kernel", KERNELS, KERNELS[0], enable_target)
        with controls():
            self.proposal = slider("Temperature of the proposal", TEMPERATURES, 1.0)
            self.nucleus = slider("Nucleus of the proposal", NUCLEI, 1.0)
        with controls():
            self.block = slider("Positions masked together", BLOCKS, 1)
            self.target = slider("Temperature of the target", TEMPERATURES, 1.0)

    def _make_views(self) -> None:
        from nicegui import ui

        with section("The chains"):
            with controls():
                self.start = button("Start", self._run)
                self.stop = button("Stop", self._stop)
                self.step = button("One sweep", self._sweep)
            self.words = ui.label("").mark("sweep in words")
            self.pins = controls().props('role=group aria-label="pinned positions"')
            self.pins.mark("pins")
            self.sequences = view("sequences")
        with section("Energy and acceptance"):
            legend = "Curves begin with the second sweep; a dotted line marks the last change of settings."
            ui.label(legend).classes("quiet")
            self.curves = view("curves")
        self._enable()

    def _settings(self) -> SampleSettings:
        """Return the chosen settings; Gibbs has no target and hence no target temperature."""
        kernel: Any = {
            "name": self.kernel.value,
            "blocks": (BLOCKS[self.block.value],),
            "proposal_temperature": TEMPERATURES[self.proposal.value],
            "nucleus": NUCLEI[self.nucleus.value],
        }
        if self.kernel.value != "gibbs":
            kernel["temperature"] = TEMPERATURES[self.target.value]
        return SampleSettings(kernel=kernel, energy=self.energy.value, chains=self.chains.value + 1)

    def _enable(self) -> None:
        self.start.set_enabled(self.watched is not None and not self.running)
        self.step.set_enabled(self.watched is not None and not self.running)
        self.stop.set_enabled(self.running)

    def _stop(self) -> None:
        self.running = False

    async def _in_thread(self, part: str, function: Callable[[], Watched]) -> bool:
        """Replace the watched chains by the result of a function; show a message and return false if it fails."""
        from nicegui import run as threads

        if self.status.job is not None:
            return False
        watched = None
        with self.status.work(Job(part)):
            watched = await threads.io_bound(function)
        if watched is not None:  # None: the server is shutting down
            self.watched = watched
        return watched is not None

    async def _begin(self) -> None:
        self.running = False
        await self.status.idle()
        try:
            settings = self._settings()
        except InputError as error:
            self.status.complain(str(error))
            return
        text, source = self.text.value or "", (self.source.value or "") if self.source else ""
        if await self._in_thread("initial sequences", lambda: start(self.run, text, settings, source=source)):
            self.status.say("Ready.")
            self._make_pins()
            self._show()
        self._enable()

    def _make_pins(self) -> None:
        """Make a checkbox for each free position of the problem."""
        from nicegui import ui

        assert self.watched is not None
        self.pins.clear()
        self.pinned = {}
        with self.pins:
            ui.label("Pin positions at their current tokens:").classes("quiet")
            for place in self.watched.first.free_BT[0].nonzero().flatten().tolist():
                box = ui.checkbox(str(place + 1), on_change=self._pins_changed)
                self.pinned[place] = box.props(f'dense aria-label="pin position {place + 1}"').mark(f"pin {place + 1}")

    def _pins_changed(self) -> None:
        if self.watched is not None and self.status.job is None:
            self._repin(self.watched)
            self._show()

    def _repin(self, watched: Watched) -> None:
        self.watched = pin(watched, [place for place, box in self.pinned.items() if box.value])

    async def _sweep(self) -> bool:
        """Make one sweep with the chosen settings; return false if it fails."""
        if self.watched is None or self.status.job is not None:
            return False
        try:
            self._repin(adjust(self.watched, self._settings()))
        except InputError as error:
            self.status.complain(str(error))
            return False
        watched = self.watched
        done = await self._in_thread(f"sweep {len(watched.done) + 1}", lambda: advance(watched))
        if done:
            self._show()
        return done

    async def _run(self) -> None:
        if self.running:
            return
        self.running = True
        self._enable()
        self.status.say("Running.")
        await self.status.idle()
        try:
            while self.running and await self._sweep():
                await asyncio.sleep(PAUSE)
        finally:
            if not self.running:
                self.status.say("Stopped.")
            self.running = False
            self._enable()
            self.drawn = 0.0
            self._show()

    def _show(self) -> None:
        assert self.watched is not None
        self.words.set_text(sweep_in_words(self.watched))
        self.sequences.set_content(str(sequences_view(self.watched)))
        if time.monotonic() - self.drawn > REDRAW or not self.running:
            self.curves.set_content(str(energy_view(self.watched)))
            self.drawn = time.monotonic()
