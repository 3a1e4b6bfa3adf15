"""Widgets of all pages: a frame, labelled controls and a status line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

from markupsafe import Markup, escape

from seqwise.errors import InputError, first_line
from seqwise.pages.explorer.searches import MOST_SLOTS
from seqwise.pages.explorer.work import Job
from seqwise.pages.report.examples import SCORES
from seqwise.pages.report.page import block_style
from seqwise.runs.run import OutputRun

ACCENT = "#0b57a4"  # white on it is easy to read
PATIENCE = 0.4  # seconds of work before progress is shown


def html(content: Markup, tag: str = "div") -> Any:
    """Make an element of escaped HTML."""
    from nicegui import ui

    return ui.html(str(content), sanitize=False, tag=tag)


def begin_page(title: str, subtitle: str) -> None:
    """Set the style and heading of a page."""
    from nicegui import ui

    own = resources.files("seqwise.pages.explorer").joinpath("explorer.css").read_text("utf-8")
    ui.add_css(block_style() + own)
    ui.colors(primary=ACCENT)
    ui.page_title(title)
    html(escape(title), tag="h1")
    html(escape(subtitle), tag="p")


@contextmanager
def section(title: str) -> Iterator[None]:
    """Open a section with a heading."""
    from nicegui import ui

    with ui.element("section").classes("card").props(f'aria-label="{title}"'):
        html(escape(title), tag="h2")
        yield


def controls() -> Any:
    """Make a row, to be filled with controls."""
    from nicegui import ui

    return ui.element("div").classes("controls")


def view(name: str) -> Any:
    """Make an empty element for HTML that changes."""
    return html(Markup("")).classes("view").mark(name)


def text_field(label: str, name: str, text: str = "") -> Any:
    """Make a one-line text field."""
    from nicegui import ui

    return ui.input(label, value=text).classes("grow").props("outlined dense").mark(name)


@dataclass
class Slider:
    """Native slider of the browser, with keyboard and screen-reader support."""

    element: Any
    value: int  # the position
    last: int  # the last position
    shown: Callable[[int], str]  # writes the value at a position
    label: Any = None  # widget that shows the value, or None

    def place(self, value: int, *, last: int | None = None) -> None:
        """Move the slider, and optionally change its range."""
        self.last = self.last if last is None else last
        self.value = min(value, self.last)
        self.element.props["max"], self.element.props["value"] = self.last, self.value
        self.element.props["aria-valuetext"] = self.shown(self.value)
        self.element.update()
        if self.label is not None:
            self.label.set_text(self.shown(self.value))

    def enable(self, *, when: bool) -> None:
        """Enable or disable the slider."""
        self.element.props["disabled"] = not when
        self.element.update()


def raw_slider(name: str, first: int, last: int, value: int, shown: Callable[[int], str], on_move: Any) -> Slider:
    """Make a slider over integers, without a visible label."""
    from nicegui import ui

    element = ui.element("input").props(f'type=range min={first} step=1 aria-label="{name}"').mark(name)
    made = Slider(element, value, last, shown)

    def moved(event: Any) -> Any:
        made.place(int(event.args))
        return on_move()

    element.on("input", moved, js_handler="(event) => emit(event.target.value)", throttle=0.05)
    made.place(value)
    return made


def slider(
    name: str,
    values: Sequence[float],
    start: float,
    on_change: Callable[[], Any] = lambda: None,
    *,
    shown: Callable[[float], str] = str,
) -> Slider:
    """Make a labelled slider over values; the chosen one is ``values[slider.value]``."""
    from nicegui import ui

    with ui.element("div").classes("named"):
        with ui.element("div").props("aria-hidden=true").classes("name"):
            ui.label(name)
            label = ui.label("")
        made = raw_slider(name, 0, len(values) - 1, list(values).index(start), lambda at: shown(values[at]), on_change)
    made.label = label
    made.place(made.value)
    return made


def choice(name: str, options: Sequence[str], start: str, on_change: Callable[[], Any] = lambda: None) -> Any:
    """Make radio buttons."""
    from nicegui import ui

    with ui.element("div").classes("named"):
        ui.label(name).classes("name").props("aria-hidden=true")
        made = ui.radio(list(options), value=start).props(f'inline dense aria-label="{name}"').mark(name)
    made.on_value_change(lambda: on_change())
    return made


def score_and_size(run: OutputRun, on_change: Callable[[], Any]) -> tuple[Any, Slider]:
    """Make the choice of a score and the slider of the beam size, which begin as the run was trained."""
    trained = "local" if run.settings.trained_score == "local" else "raw"
    size = min(run.settings.beam_size, MOST_SLOTS)
    return (
        choice("Scores", tuple(SCORES), trained, on_change),
        slider("Slots of the beam, k", range(1, MOST_SLOTS + 1), size, on_change),
    )


def button(name: str, on_click: Callable[[], Any]) -> Any:
    """Make a button."""
    from nicegui import ui

    return ui.button(name, on_click=on_click).props("no-caps unelevated").mark(name)


@dataclass
class Status:
    """Status line of a page, with its running job; screen readers announce its changes."""

    label: Any
    bar: Any
    while_busy: tuple[Any, ...]
    job: Job | None = None

    def say(self, text: str) -> None:
        """Show a message."""
        self.label.set_text(text)
        self.label.classes(remove="wrong")

    def complain(self, text: str) -> None:
        """Show an error."""
        self.label.set_text(text[:1].upper() + text[1:])
        self.label.classes(add="wrong")

    def show(self) -> None:
        """Show the progress of the job once it has taken a while; without a job, clear it."""
        job = self.job
        busy = job is not None and bool(job.part) and time.monotonic() - job.began > PATIENCE
        for widget in self.while_busy:
            widget.set_visibility(busy)
        if busy and job is not None:
            self.bar.set_value(job.share or 0.0)
            self.bar.props(
                add="indeterminate" if job.share is None else "", remove="" if job.share is None else "indeterminate"
            )
            self.say(f"Computing {job.part} …")

    @contextmanager
    def work(self, job: Job) -> Iterator[Job]:
        """Run a job; show errors, and raise those that the visitor cannot fix."""
        self.job = job
        try:
            yield job
        except InputError as error:
            self.complain(str(error))
        except Exception as error:
            # The visitor cannot fix this: the page shows one line, and the server's terminal has the traceback.
            self.complain(failure(error))
            raise
        finally:
            self.job = None
            self.show()

    async def idle(self) -> None:
        """Wait for the running job, such as the last sweep after Stop."""
        while self.job is not None:
            await asyncio.sleep(0.02)


def status_line(on_stop: Callable[[], Any] | None = None) -> Status:
    """Make a status line, with a progress bar and a stop button that are visible during a job."""
    from nicegui import ui

    with controls():
        label = ui.label("").classes("message grow").props("role=status").mark("status")
        stop = [] if on_stop is None else [button("Stop computing", on_stop)]
    bar = ui.linear_progress(0.0, show_value=False).props('aria-label="progress of the computation" instant-feedback')
    status = Status(label, bar, (bar, *stop))
    status.show()
    # The thread of a job must not touch widgets, so the page polls its progress.
    ui.timer(0.25, lambda: status.show() if status.job else None)
    return status


def failure(error: Exception) -> str:
    """Format the message of an internal error.

    Example:
        >>> failure(RuntimeError("out of memory\\nat line 7"))
        'the model failed: out of memory'
    """
    return f"the model failed: {first_line(error)}"
