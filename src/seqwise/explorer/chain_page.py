"""Page of a masked model: running chains, with positions to pin and proposals to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from seqwise.errors import InputError
from seqwise.explorer.chain_views import energy_view, sequences_view, sweep_in_words
from seqwise.explorer.widgets import Status, Visit, begin_page, button, choice, html, section, slider, status_line
from seqwise.explorer.work import Job
from seqwise.runs.explore.chains import MOST_CHAINS, Watched, adjust, advance, pin, start
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_settings import SampleSettings

TEMPERATURES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
NUCLEI = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
BLOCKS = tuple(range(1, 9))
KERNELS = ("metropolis-hastings", "delayed-acceptance", "gibbs")

PAUSE = 0.15  # seconds between sweeps, so that one can follow
REDRAW = 1.0  # seconds between two drawings of the curves of running chains


@dataclass
class ChainVisit(Visit):
    """State of a visitor's page."""

    watched: Watched | None = None
    running: bool = False
    drawn: float = 0.0
    boxes: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Controls:
    """Widgets with the settings of the chains."""

    text: Any
    source: Any
    chains: Any
    energy: Any
    kernel: Any
    proposal: Any
    nucleus: Any
    block: Any
    target: Any

    def settings(self) -> SampleSettings:
        """Return the chosen settings; Gibbs has no target, and so no target temperature."""
        options: dict[str, Any] = {
            "blocks": (BLOCKS[self.block.value],),
            "proposal_temperature": TEMPERATURES[self.proposal.value],
            "nucleus": NUCLEI[self.nucleus.value],
        }
        if self.kernel.value != "gibbs":
            options["temperature"] = TEMPERATURES[self.target.value]
        kernel: Any = {"name": self.kernel.value, **options}
        return SampleSettings(kernel=kernel, energy=self.energy.value, chains=self.chains.value + 1)


@dataclass(frozen=True)
class Views:
    """Widgets that show the chains."""

    words: Any
    sequences: Any
    pins: Any
    curves: Any
    start: Any
    stop: Any
    step: Any


def chain_page(run: MaskedRun, name: str) -> None:
    """Make the page for a visitor."""
    from nicegui import ui

    visit = ChainVisit()
    begin_page(f"seqwise explore: {name}", "A masked model, sampled from as an energy of whole sequences.")

    async def again() -> None:
        visit.running = False
        await _begin(run, visit, controls, views, status)

    async def step() -> None:
        await _sweep(visit, controls, views, status)

    async def go() -> None:
        await _run(visit, controls, views, status)

    def halt() -> None:
        visit.running = False

    with section("What is sampled"):
        controls = _problem_controls(run, again)
    status = status_line(visit)
    views = _views(visit, go, halt, step)
    ui.context.client.on_delete(halt)
    ui.timer(0.1, again, once=True)


def _problem_controls(run: MaskedRun, again: Callable[[], Any]) -> Controls:
    from nicegui import ui

    lengths = run.codec.lengths
    usual = max(lengths, key=lambda length: lengths[length]) if lengths else 6
    # Of subwords and sources, the length is better left to whoever types.
    reads_source = run.codec.conditional
    blank = "" if reads_source else ("" if run.codec.units == "characters" else " ").join("_" * usual)
    with ui.element("div").classes("controls"):
        source = ui.input("Source").classes("grow").props("outlined dense").mark("Source") if reads_source else None
        text = ui.input("Sequence, _ for what is to be drawn", value=blank).classes("grow").props("outlined dense")
        text.mark("Sequence")
        for field in (text, *([source] if source else [])):
            field.on("keydown.enter", again)
    with ui.element("div").classes("controls"):
        chains = slider("Chains", range(1, MOST_CHAINS + 1), 4, lambda: None)
        energy = choice("Energy", ("local", "raw"), "local", lambda: None)
        button("Begin again", again)
    return Controls(text, source, chains, energy, *_proposal_controls())


def _proposal_controls() -> tuple[Any, ...]:
    from nicegui import ui

    ui.separator()
    ui.label("These may be changed while the chains run:").classes("quiet")
    with ui.element("div").classes("controls"):
        kernel = choice("Kernel", KERNELS, KERNELS[0], lambda: target.enable(when=kernel.value != "gibbs"))
    with ui.element("div").classes("controls"):
        proposal = slider("Temperature of the proposal", TEMPERATURES, 1.0, lambda: None)
        nucleus = slider("Nucleus of the proposal", NUCLEI, 1.0, lambda: None)
    with ui.element("div").classes("controls"):
        block = slider("Positions masked together", BLOCKS, 1, lambda: None)
        target = slider("Temperature of the target", TEMPERATURES, 1.0, lambda: None)
    return kernel, proposal, nucleus, block, target


def _views(visit: ChainVisit, go: Any, halt: Any, step: Any) -> Views:
    from nicegui import ui

    with section("The chains"):
        with ui.element("div").classes("controls"):
            buttons = [button("Start", go), button("Stop", halt), button("One sweep", step)]
        words = ui.label("").mark("sweep in words")
        pins = ui.element("div").classes("controls").props('role=group aria-label="pinned positions"').mark("pins")
        sequences = html(Markup("")).classes("view").mark("sequences")
    with section("Energy and acceptance"):
        ui.label("Curves begin with the second sweep; a dotted line marks the last change of settings.").classes(
            "quiet"
        )
        curves = html(Markup("")).classes("view").mark("curves")
    views = Views(words, sequences, pins, curves, *buttons)
    _enable(visit, views)
    return views


def _enable(visit: ChainVisit, views: Views) -> None:
    views.start.set_enabled(visit.watched is not None and not visit.running)
    views.step.set_enabled(visit.watched is not None and not visit.running)
    views.stop.set_enabled(visit.running)


async def _in_thread(visit: ChainVisit, status: Status, part: str, function: Callable[[], Watched]) -> bool:
    """Replace the watched chains by the result of a function; false if it failed, with a message in the status line."""
    from nicegui import run as threads

    if visit.job is not None:
        return False
    watched = None
    with status.work(visit, Job(part)):
        watched = await threads.io_bound(function)
    if watched is not None:  # None: the server is about to end
        visit.watched = watched
    return watched is not None


async def _idle(visit: ChainVisit) -> None:
    """Wait for the running job, such as the last sweep after Stop."""
    while visit.job is not None:
        await asyncio.sleep(0.05)


async def _begin(run: MaskedRun, visit: ChainVisit, controls: Controls, views: Views, status: Status) -> None:
    await _idle(visit)
    try:
        settings = controls.settings()
    except InputError as error:
        status.complain(str(error))
        return
    text, source = controls.text.value or "", (controls.source.value or "") if controls.source else ""
    if await _in_thread(visit, status, "initial sequences", lambda: start(run, text, settings, source=source)):
        status.say("Ready.")
        _make_pins(visit, views)
        _show(visit, views)
    _enable(visit, views)


def _make_pins(visit: ChainVisit, views: Views) -> None:
    """Make a checkbox for each free position of the problem."""
    from nicegui import ui

    assert visit.watched is not None
    views.pins.clear()
    boxes: dict[int, Any] = {}

    def changed() -> None:
        if visit.watched is not None and visit.job is None:
            _repin(visit, boxes)
            _show(visit, views)

    with views.pins:
        ui.label("Pin positions where they stand:").classes("quiet")
        for place in visit.watched.first.free_BT[0].nonzero().flatten().tolist():
            boxes[place] = ui.checkbox(str(place + 1), on_change=changed).props(
                f'dense aria-label="pin position {place + 1}"'
            )
            boxes[place].mark(f"pin {place + 1}")
    visit.boxes = boxes


def _repin(visit: ChainVisit, boxes: dict[int, Any]) -> None:
    assert visit.watched is not None
    visit.watched = pin(visit.watched, [place for place, box in boxes.items() if box.value])


async def _sweep(visit: ChainVisit, controls: Controls, views: Views, status: Status) -> bool:
    """Make one sweep by the chosen settings; false if it failed."""
    if visit.watched is None or visit.job is not None:
        return False
    try:
        visit.watched = adjust(visit.watched, controls.settings())
        _repin(visit, visit.boxes)
    except InputError as error:
        status.complain(str(error))
        return False
    watched = visit.watched
    done = await _in_thread(visit, status, f"sweep {len(watched.done) + 1}", lambda: advance(watched))
    if done:
        _show(visit, views)
    return done


async def _run(visit: ChainVisit, controls: Controls, views: Views, status: Status) -> None:
    if visit.running:
        return
    visit.running = True
    _enable(visit, views)
    status.say("Running.")
    await _idle(visit)
    try:
        while visit.running and await _sweep(visit, controls, views, status):
            await asyncio.sleep(PAUSE)
    finally:
        if visit.running is False:
            status.say("Stopped.")
        visit.running = False
        _enable(visit, views)
        visit.drawn = 0.0
        _show(visit, views)


def _show(visit: ChainVisit, views: Views) -> None:
    assert visit.watched is not None
    views.words.set_text(sweep_in_words(visit.watched))
    views.sequences.set_content(str(sequences_view(visit.watched)))
    if time.monotonic() - visit.drawn > REDRAW or not visit.running:
        views.curves.set_content(str(energy_view(visit.watched)))
        visit.drawn = time.monotonic()
