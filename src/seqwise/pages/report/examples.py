"""Lattices of an example for hard and relaxed beams, with local and raw scores, and a slider for alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqwise.data.readers import Example
from seqwise.pages.report.blocks import Block, Folded, Frames, Legend, Paragraph, plain_number
from seqwise.pages.report.drawing import Palette, draw_lattice, lattice_table
from seqwise.pages.report.folders import StageLog
from seqwise.pages.report.lattice import MOST_STEPS, Lattice, beam_lattice, drawn_steps
from seqwise.runs.measures import gold_ids, gold_text, step_names
from seqwise.runs.run import OutputRun
from seqwise.search.candidates import Score, global_, local
from seqwise.search.operators import mean_squared_gap
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

ALPHAS = tuple(2.0**power for power in range(-5, 7))
"""Positions of the slider; the hard beam follows the last one."""

MOST_SLOTS = 6
"""Largest number of slots that are drawn."""

SCORES: dict[str, Score] = {"local": local, "raw": global_}
"""Scores by their name on pages."""


@dataclass(frozen=True, eq=False)
class Searched:
    """Lattices of an example, for each score and alpha; the hard beam comes last."""

    name: str  # of the run
    run: OutputRun
    example: Example
    number: int  # of the example, from 1
    gold: tuple[int, ...] | None
    lattices: Mapping[str, Sequence[Lattice]]  # by score, the trained one first
    start: int  # of the slider
    k: int

    @property
    def all_lattices(self) -> list[Lattice]:
        """The lattices of all scores."""
        return [lattice for by_selector in self.lattices.values() for lattice in by_selector]


def search_example(run: OutputRun, example: Example, number: int, *, name: str, logs: Sequence[StageLog]) -> Searched:
    """Search an example with both scores, by a hard beam and by a relaxed beam for each alpha."""
    model, settings = run.model, run.settings
    (source,) = run.codec.encode_sources([example])
    gold = gold_ids(run, example)
    k = min(settings.beam_size, MOST_SLOTS)
    steps = drawn_steps(model, source, k=k, gold=gold)
    plain: list[Selector] = [*(SoftTopK(k, alpha, settings.divisor_of_alpha) for alpha in ALPHAS), HardTopK(k)]
    selectors = [run.codec.allowed(selector) for selector in plain]
    titles = sorted(SCORES, key=lambda title: (title == "raw") != (settings.trained_score == "global"))
    lattices = {
        title: [
            beam_lattice(model, source, selector, num_steps=steps, score=SCORES[title], gold=gold)
            for selector in selectors
        ]
        for title in titles
    }
    return Searched(name, run, example, number, gold, lattices, _start(run, logs), k)


def lattice_blocks(searched: Searched, palette: Palette) -> list[Block]:
    """Draw the lattices of an example with a slider over alpha, and fold their numbers."""
    run, name, number = searched.run, searched.name, searched.number
    words = run.codec.target_vocabulary.tokens
    names = [*(f"alpha {alpha:g}" for alpha in ALPHAS), "hard beam"]
    panels = [
        (
            f"{name}, {title} scores",
            [
                draw_lattice(
                    lattice,
                    words=words,
                    title=f"{name}, example {number}, {title} scores, {position}",
                    step_names=step_names(run, searched.example),
                    palette=palette,
                    gold=searched.gold,
                    named_with=searched.all_lattices,
                )
                for lattice, position in zip(by_selector, names, strict=True)
            ],
        )
        for title, by_selector in searched.lattices.items()
    ]
    frames = Frames(f"Alpha of {name} on example {number}", names, searched.start, panels)
    tables = [
        lattice_table(by_selector[place], f"Numbers: {name}, example {number}, {title} scores, {names[place]}", words)
        for place in dict.fromkeys((searched.start, len(ALPHAS)))
        for title, by_selector in searched.lattices.items()
    ]
    return [*_captions(searched), frames, Folded("Numbers", tables)]


def lattice_legend(searched: Sequence[Searched], log_partitions: Palette) -> Legend:
    """Make the legend of all lattices of a page."""
    costs = "edit distance" if any(each.run.settings.task != "tag" for each in searched) else "Hamming cost"
    if any(each.gold is not None for each in searched):
        return Legend(f"cost added by the step ({costs})", "0", "1")
    return Legend("log Z of the step, nats", plain_number(log_partitions.low), plain_number(log_partitions.high))


def _start(run: OutputRun, logs: Sequence[StageLog]) -> int:
    """Return the position of the soft-beam decoder's alpha, or that of the hard beam."""
    if not logs or "alpha" not in logs[-1].columns:
        return len(ALPHAS)
    _, last = run.settings.alpha.ends
    return min(range(len(ALPHAS)), key=lambda place: abs(math.log(ALPHAS[place] / last)))


def _captions(searched: Searched) -> list[Block]:
    """Make paragraphs of the input, of gold, and of steps and slots that are not drawn."""
    run, example = searched.run, searched.example
    lines = [f"Input: {run.codec.source_text(example)[:300]}"]
    if searched.gold is not None:
        lines.append(f"Gold: {gold_text(run, example)[:300]}")
    if run.settings.divisor_of_alpha is mean_squared_gap:
        lines.append("The unit of alpha is the mean squared gap between the best scores.")
    if max(len(lattice) for lattice in searched.all_lattices) == MOST_STEPS:
        lines.append(f"Only the first {MOST_STEPS} steps are drawn.")
    if searched.k < run.settings.beam_size:
        lines.append(f"The run was trained with a beam of {run.settings.beam_size}; this one has {searched.k} slots.")
    return [Paragraph(line) for line in lines]
