"""Lattices of an example, hard and relaxed, by local and by raw scores, with a slider over alpha."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqwise.data.readers import Example
from seqwise.runs.measures import gold_ids, gold_text, step_names
from seqwise.runs.report.blocks import Block, Frames, Ids, Paragraph, plain_number
from seqwise.runs.report.drawing import Palette, draw_lattice, lattice_palette, lattice_table
from seqwise.runs.report.folders import StageLog
from seqwise.runs.report.lattice import MOST_STEPS, beam_lattice, drawn_steps
from seqwise.runs.run import OutputRun
from seqwise.search.candidates import Score, global_, local
from seqwise.search.operators import ALPHA_UNITS
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

ALPHAS = tuple(2.0**power for power in range(-5, 7))
"""Positions of the slider; the last one is followed by the hard beam."""

MOST_SLOTS = 6
"""Larger beams are drawn with so many slots."""

SCORES: dict[str, Score] = {"local": local, "raw": global_}
"""Scores by their names on pages."""


def lattice_blocks(
    run: OutputRun, example: Example, number: int, *, name: str, logs: Sequence[StageLog], ids: Ids
) -> list[Block]:
    """Draw the lattices of an example, hard and for each alpha, by both scores."""
    model, settings = run.model, run.settings
    (source,) = run.codec.encode_sources([example])
    gold = gold_ids(run, example)
    k = min(settings.beam_size, MOST_SLOTS)
    steps = drawn_steps(model, source, k=k, gold=gold)
    unit = ALPHA_UNITS[settings.alpha_unit]
    plain: list[Selector] = [*(SoftTopK(k, alpha, unit) for alpha in ALPHAS), HardTopK(k)]
    selectors = [run.codec.allowed(selector) for selector in plain]
    searches = {
        title: [
            beam_lattice(model, source, selector, num_steps=steps, score=score, gold=gold) for selector in selectors
        ]
        for title, score in SCORES.items()
    }
    lattices = [lattice for by_selector in searches.values() for lattice in by_selector]
    palette = lattice_palette(lattices)
    words = run.codec.target_vocabulary.tokens
    names = [*(f"alpha {alpha:g}" for alpha in ALPHAS), "hard beam (alpha without limit)"]
    panels = [
        (
            f"{name}, {title} scores",
            [
                draw_lattice(
                    lattice,
                    words=words,
                    what=f"{name}, example {number}, {title} scores, {position}",
                    step_names=step_names(run, example),
                    palette=palette,
                    gold=gold,
                    beside=lattices,
                )
                for lattice, position in zip(by_selector, names, strict=True)
            ],
        )
        for title, by_selector in searches.items()
    ]
    caption = _caption(run, example, gold is not None, palette, k=k, steps=steps)
    start = _start(run, logs)
    frames = Frames(ids.new("lattice"), f"Alpha of {name} on example {number}", names, start, panels)
    tables = [
        lattice_table(by_selector[place], f"Numbers: {name}, example {number}, {title} scores, {names[place]}", words)
        for place in dict.fromkeys((start, len(ALPHAS)))
        for title, by_selector in searches.items()
    ]
    return [Paragraph(caption), frames, *tables]


def _start(run: OutputRun, logs: Sequence[StageLog]) -> int:
    """Return the position of the soft-beam decoder's alpha, or that of the hard beam."""
    if not logs or "alpha" not in logs[-1].columns:
        return len(ALPHAS)
    _, last = run.settings.alpha.ends
    return min(range(len(ALPHAS)), key=lambda place: abs(math.log(ALPHAS[place] / last)))


def _caption(run: OutputRun, example: Example, has_gold: bool, palette: Palette, *, k: int, steps: int) -> str:
    text = f"Input: {run.codec.source_text(example)[:300]}. "
    if has_gold:
        written = gold_text(run, example)
        cost = "Hamming cost" if run.settings.task == "tag" else "edit distance"
        text += f"Gold: {written[:300]}. Boxes are coloured by the {cost} that the step adds, white 0, orange 1. "
    else:
        text += (
            "There is no gold output. Boxes are coloured by log Z of the step, white "
            f"{plain_number(palette.low)}, orange {plain_number(palette.high)} nats. "
        )
    if run.settings.alpha_unit == "gaps":
        text += "Alpha counts in mean squared gaps of the best scores. "
    if steps == MOST_STEPS:
        text += f"Drawn are the first {MOST_STEPS} steps. "
    if k < run.settings.beam_size:
        text += f"The run was trained with a beam of {run.settings.beam_size}; this one has {k} slots."
    return text.strip()
