"""Page of a trained tagger or transducer: searches of a typed input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from seqwise.explorer.search_views import bias_view, errors_view, lattice_view, outputs_view, step_in_words
from seqwise.explorer.widgets import (
    Slider,
    Status,
    Visit,
    begin_page,
    button,
    choice,
    html,
    raw_slider,
    section,
    slider,
    status_line,
)
from seqwise.explorer.work import Job, Stopped, latest
from seqwise.runs.explore.answers import Answer, answer
from seqwise.runs.explore.questions import Question, read_question
from seqwise.runs.explore.searches import MOST_SLOTS, Setup
from seqwise.runs.explore.suggestions import Suggestions
from seqwise.runs.report.examples import ALPHAS, SCORES
from seqwise.runs.run import OutputRun

FIRST_LOOK = 1.0  # seconds in which examples are compared before the page opens on one
MOST_OFFERED = 20


@dataclass
class SearchVisit(Visit):
    """State of a visitor's page."""

    answer: Answer | None = None


@dataclass(frozen=True)
class Controls:
    """Widgets with the input and the setup of a search."""

    text: Any
    right: Any
    chooser: Any
    search: Any
    score: Any
    k: Slider
    alpha: Slider

    def question(self, run: OutputRun) -> Question:
        """Read the typed input."""
        return read_question(run, self.text.value or "", self.right.value or "")

    def setup(self) -> Setup:
        """Return the chosen setup."""
        return Setup(self.search.value, self.score.value, self.k.value + 1, ALPHAS[self.alpha.value])


@dataclass(frozen=True)
class Views:
    """Widgets that show an answer."""

    step: Slider
    before: Any
    after: Any
    words: Any
    lattice: Any
    outputs: Any
    bias: Any
    errors: Any


def search_page(run: OutputRun, name: str, suggestions: Suggestions) -> None:
    """Make the page for a visitor.

    It opens on the example on which searches disagree most among those compared in a second; the others are compared in
    the background.
    """
    from nicegui import ui

    settings, visit = run.settings, SearchVisit()
    trained = f"{settings.objective.name}, {settings.trained_score} scores, beam of {settings.beam_size}"
    begin_page(f"seqwise explore: {name}", f"A run of task {settings.task}, trained by {trained}.")

    async def compute() -> None:
        await _compute(run, visit, controls, views, status)

    refresh = latest(compute)
    controls = _controls(run, refresh, suggestions)

    def stop() -> None:
        if visit.job:
            visit.job.asked_to_stop.set()

    status = status_line(visit, stop)
    views: Views = _views(lambda: _show_step(run, visit, views))
    ui.context.client.on_delete(stop)
    if suggestions.texts:
        ui.timer(0.1, lambda: _open_first(suggestions, visit, controls, status), once=True)
    else:
        status.say(f"Type an input and press Search. {suggestions.note}")


async def _open_first(suggestions: Suggestions, visit: SearchVisit, controls: Controls, status: Status) -> None:
    """Open the example with most disagreement, and compare the others in the background."""
    from nicegui import run as threads

    with status.work(visit, Job("the example on which searches disagree most")):
        await threads.io_bound(suggestions.look, FIRST_LOOK)
    if not controls.text.value:  # nor has the visitor typed anything meanwhile
        _offer(suggestions, controls.chooser)
        controls.chooser.value = suggestions.order()[0]
    while not suggestions.is_complete and not controls.chooser.is_deleted:
        # A server that is stopping starts no thread and answers None at once: the loop would keep it from ending.
        if await threads.io_bound(suggestions.look, FIRST_LOOK) is None:
            return
    if not controls.chooser.is_deleted:
        _offer(suggestions, controls.chooser)


def _offer(suggestions: Suggestions, chooser: Any) -> None:
    """Offer the examples with most disagreement, and the chosen one."""
    places = suggestions.order()[:MOST_OFFERED]
    if chooser.value is not None and chooser.value not in places:
        places.append(chooser.value)
    names = {place: " → ".join(side[:60] for side in suggestions.texts[place]) for place in places}
    chooser.set_options(names, value=chooser.value)


def _controls(run: OutputRun, refresh: Any, suggestions: Suggestions) -> Controls:
    from nicegui import ui

    with section("Input"):
        with ui.element("div").classes("controls"):
            text = ui.input("Input").classes("grow").props("outlined dense").mark("Input")
            right = ui.input("Right output, if known").classes("grow").props("outlined dense").mark("Right output")
            button("Search", refresh)
        chooser = _example_chooser(suggestions, text, right, refresh)
    for field in (text, right):
        field.on("keydown.enter", refresh)
    with section("How it is searched"), ui.element("div").classes("controls"):
        search = choice("Kind of search", ("greedy", "beam", "relaxed beam"), "beam", refresh)
        score = choice("Scores", tuple(SCORES), "local" if run.settings.trained_score == "local" else "raw", refresh)
        k = slider("Slots of the beam, k", range(1, MOST_SLOTS + 1), min(run.settings.beam_size, MOST_SLOTS), refresh)
        alpha = slider("Alpha of the relaxed beam", ALPHAS, 1.0, refresh, shown="{:g}".format)
    return Controls(text, right, chooser, search, score, k, alpha)


def _example_chooser(suggestions: Suggestions, text: Any, right: Any, refresh: Any) -> Any:
    from nicegui import ui

    label = "Or an example, those on which the searches disagree most first"
    chooser = ui.select({}, label=label).props("outlined dense").mark("Example")
    chooser.set_visibility(bool(suggestions.texts))
    _offer(suggestions, chooser)

    async def take() -> None:
        text.value, right.value = suggestions.texts[chooser.value]
        await refresh()

    chooser.on_value_change(take)
    return chooser


def _views(show_step: Callable[[], None]) -> Views:
    from nicegui import ui

    with section("The search, step by step"):
        with ui.element("div").classes("controls"):
            before = button("Step back", lambda: _move(step, -1, show_step))
            after = button("Step on", lambda: _move(step, +1, show_step))
            step = raw_slider("step of the search", 1, 1, 1, lambda at: f"step {at}", show_step)
            step.element.classes("grow")
        words = ui.label("").props("aria-live=polite").mark("step in words")
        lattice = html(Markup("")).classes("view").mark("lattice")
        ui.label(
            "A box is a slot after a step: its heaviest token and, where it is a mixture, that token's weight. Lines"
            " lead to the slots it comes from, as opaque as their weights. Boxes are coloured by the task cost of the"
            " step, or by log Z where no right output is given; a thick border marks right tokens."
        ).classes("quiet")
    with section("Local against raw scores"):
        outputs = html(Markup("")).classes("view").mark("outputs")
    with section("Label bias: the mass of each prefix"):
        bias = html(Markup("")).classes("view").mark("bias")
    with section("Search errors"):
        errors = html(Markup("")).classes("view").mark("errors")
    return Views(step, before, after, words, lattice, outputs, bias, errors)


def _move(step: Slider, by: int, show_step: Callable[[], None]) -> None:
    step.place(max(step.value + by, 1))
    show_step()


async def _compute(run: OutputRun, visit: SearchVisit, controls: Controls, views: Views, status: Status) -> None:
    """Compute the answer in a thread, and show it; the earlier answer stays until then."""
    from nicegui import run as threads

    computed = None
    with status.work(visit, Job()) as job:
        question, setup = controls.question(run), controls.setup()
        try:
            computed = await threads.io_bound(answer, run, question, setup, known=visit.answer, on_part=job.report)
        except Stopped:
            status.say("Stopped; what is below belongs to an earlier question.")
    if computed is not None:  # None: the server is about to end
        _show(run, visit, computed, views)
        unseen = ", ".join(dict.fromkeys(question.unseen.values()))
        note = f" Training never saw {unseen}, which counts as wrong." if unseen else ""
        status.say(f"Found for {run.codec.source_text(question.example)!r}.{note}")


def _show(run: OutputRun, visit: SearchVisit, answer: Answer, views: Views) -> None:
    same = visit.answer is not None and visit.answer.question == answer.question
    visit.answer, last = answer, max(len(answer.lattice.steps), 1)
    views.step.place(views.step.value if same else last, last=last)
    views.outputs.set_content(str(outputs_view(answer.outputs)))
    views.errors.set_content(str(errors_view(run, answer.errors, score=answer.setup.score)))
    _show_step(run, visit, views)


def _show_step(run: OutputRun, visit: SearchVisit, views: Views) -> None:
    answer = visit.answer
    if answer is None or not answer.lattice.steps:
        return
    step = min(views.step.value, len(answer.lattice.steps))
    views.before.set_enabled(step > 1)
    views.after.set_enabled(step < len(answer.lattice.steps))
    views.words.set_text(step_in_words(run, answer, step))
    views.lattice.set_content(str(lattice_view(run, answer, step)))
    views.bias.set_content(str(bias_view(run, answer.bias, step)))
