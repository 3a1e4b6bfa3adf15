"""Page of a trained tagger or transducer: searches of a typed input."""

from __future__ import annotations

from seqwise.pages.explorer.answers import Answer, answer
from seqwise.pages.explorer.questions import read_question
from seqwise.pages.explorer.search_views import (
    bias_view,
    errors_view,
    lattice_view,
    legend_view,
    outputs_view,
    step_in_words,
)
from seqwise.pages.explorer.searches import Setup
from seqwise.pages.explorer.suggestions import Suggestions
from seqwise.pages.explorer.widgets import (
    begin_page,
    button,
    choice,
    controls,
    raw_slider,
    score_and_size,
    section,
    slider,
    status_line,
    text_field,
    view,
)
from seqwise.pages.explorer.work import Job, Stopped, latest
from seqwise.pages.report.examples import ALPHAS
from seqwise.runs.run import OutputRun

SECONDS = 1.0  # of comparing examples before the page opens, and then at a time
MOST_OFFERED = 20


class SearchPage:
    """Page of one visitor.

    It opens on the example on which searches disagree most among those compared in a second; the others are compared in
    the background.
    """

    answer: Answer | None = None

    def __init__(self, run: OutputRun, name: str, suggestions: Suggestions, *, live: str | None = None) -> None:
        from nicegui import ui

        self.run, self.suggestions, settings = run, suggestions, run.settings
        trained = f"{settings.objective.name}, {settings.trained_score} scores, beam of {settings.beam_size}"
        begin_page(f"seqwise explore: {name}", f"A run of task {settings.task}, trained by {trained}.")
        if live is not None:
            ui.link("Live lines: labels while the words arrive", live)
        self.refresh = latest(self._compute)
        self._make_controls()
        self.status = status_line(self._stop)
        self._make_views()
        ui.context.client.on_delete(self._stop)
        if suggestions.texts:
            ui.timer(0.1, self._open_first, once=True)
        else:
            self.status.say(f"Type an input and press Search. {suggestions.note}")

    def _make_controls(self) -> None:
        from nicegui import ui

        with section("Input"):
            with controls():
                self.text = text_field("Input", "Input")
                self.right = text_field("Right output, if known", "Right output")
                button("Search", self.refresh)
            label = "Or an example, sorted by disagreement between searches"
            self.chooser = ui.select({}, label=label).props("outlined dense").mark("Example")
            self.chooser.set_visibility(bool(self.suggestions.texts))
            self._offer()
            self.chooser.on_value_change(self._take_example)
        self.text.on_value_change(self._forget_example)
        for field in (self.text, self.right):
            field.on("keydown.enter", self.refresh)
        with section("Search settings"), controls():
            self.search = choice("Search method", ("greedy", "beam", "relaxed beam"), "beam", self.refresh)
            self.score, self.k = score_and_size(self.run, self.refresh)
            self.alpha = slider("Alpha of the relaxed beam", ALPHAS, 1.0, self.refresh, shown="{:g}".format)

    def _make_views(self) -> None:
        from nicegui import ui

        with section("The search, step by step"):
            with controls():
                self.before = button("Step back", lambda: self._move(-1))
                self.after = button("Step forward", lambda: self._move(+1))
                self.step = raw_slider("step of the search", 1, 1, 1, lambda at: f"step {at}", self._show_step)
                self.step.element.classes("grow")
            self.words = ui.label("").props("aria-live=polite").mark("step in words")
            self.lattice = view("lattice")
            self.legend = view("legend")
        with section("Local and raw scores"):
            self.outputs = view("outputs")
        with section("Label bias: mass of each prefix"):
            self.bias = view("bias")
        with section("Search errors"):
            self.errors = view("errors")

    def _stop(self) -> None:
        if self.status.job:
            self.status.job.asked_to_stop.set()

    def _move(self, by: int) -> None:
        self.step.place(max(self.step.value + by, 1))
        self._show_step()

    async def _take_example(self) -> None:
        self.text.value, self.right.value = self.suggestions.texts[self.chooser.value]
        await self.refresh()

    def _forget_example(self) -> None:
        """Drop the right output of an example when another input is typed."""
        if self.chooser.value is None:
            return
        text, right = self.suggestions.texts[self.chooser.value]
        if self.text.value != text and self.right.value == right:
            self.right.value = ""

    async def _open_first(self) -> None:
        """Open the example with the most disagreement, and compare the others in the background."""
        from nicegui import run as threads

        with self.status.work(Job("the example on which searches disagree most")):
            await threads.io_bound(self.suggestions.compare_for, SECONDS)
        if not self.text.value:  # the visitor has not typed anything meanwhile
            self._offer()
            self.chooser.value = self.suggestions.order()[0]
        while not self.suggestions.is_complete and not self.chooser.is_deleted:
            # A server that is shutting down starts no thread and returns None at once: the loop would never end.
            if await threads.io_bound(self.suggestions.compare_for, SECONDS) is None:
                return
        if not self.chooser.is_deleted:
            self._offer()

    def _offer(self) -> None:
        """Offer the examples with the most disagreement, and the chosen one."""
        places, chosen = self.suggestions.order()[:MOST_OFFERED], self.chooser.value
        if chosen is not None and chosen not in places:
            places.append(chosen)
        names = {place: " → ".join(side[:60] for side in self.suggestions.texts[place]) for place in places}
        self.chooser.set_options(names, value=chosen)

    async def _compute(self) -> None:
        """Compute the answer in a thread, then replace the earlier one."""
        from nicegui import run as threads

        computed = None
        with self.status.work(Job()) as job:
            question = read_question(self.run, self.text.value or "", self.right.value or "")
            setup = Setup(self.search.value, self.score.value, self.k.value + 1, ALPHAS[self.alpha.value])
            known, on_part = self.answer, job.report
            try:
                computed = await threads.io_bound(answer, self.run, question, setup, known=known, on_part=on_part)
            except Stopped:
                self.status.say("Stopped; the results below are for an earlier input.")
        if computed is not None:  # None: the server is shutting down
            self._show(computed)
            unseen = ", ".join(dict.fromkeys(question.unseen.values()))
            note = f" Training never saw {unseen}, which counts as wrong." if unseen else ""
            self.status.say(f"Found for {self.run.codec.source_text(question.example)!r}.{note}")

    def _show(self, answer: Answer) -> None:
        same = self.answer is not None and self.answer.question == answer.question
        self.answer, last = answer, max(len(answer.lattice), 1)
        self.step.place(self.step.value if same else last, last=last)
        self.outputs.set_content(str(outputs_view(answer.outputs)))
        self.errors.set_content(str(errors_view(self.run, answer.errors, score=answer.setup.score)))
        self._show_step()

    def _show_step(self) -> None:
        answer = self.answer
        if answer is None or not answer.lattice:
            return
        step = min(self.step.value, len(answer.lattice))
        self.before.set_enabled(step > 1)
        self.after.set_enabled(step < len(answer.lattice))
        self.words.set_text(step_in_words(self.run, answer, step))
        self.legend.set_content(str(legend_view(answer)))
        self.lattice.set_content(str(lattice_view(self.run, answer, step)))
        self.bias.set_content(str(bias_view(self.run, answer.bias, step)))
