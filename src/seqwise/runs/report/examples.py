"""The lattices of chosen examples, hard and relaxed, by local and by raw scores, with a slider over alpha."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqwise.data.readers import Example
from seqwise.runs.measures import gold_ids, gold_text
from seqwise.runs.report.blocks import Block, Frames, Ids, Paragraph, Table, plain_number
from seqwise.runs.report.drawing import FAINTEST, Palette, draw_lattice
from seqwise.runs.report.folders import StageLog
from seqwise.runs.report.lattice import MOST_STEPS, Lattice, beam_lattice, drawn_steps
from seqwise.runs.run import OutputRun
from seqwise.search.candidates import global_, local
from seqwise.search.operators import ALPHA_UNITS
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

ALPHAS = tuple(2.0**power for power in range(-5, 7))
"""Where the slider stands still; behind the last one is the hard beam."""

MOST_SLOTS = 6
"""Larger beams than that are not drawn, but searched for anew with so many slots."""

SCORES = {"local": local, "raw": global_}


def lattice_blocks(
    run: OutputRun, example: Example, number: int, *, name: str, logs: Sequence[StageLog], ids: Ids
) -> list[Block]:
    """The lattices of one example."""
    model, settings = run.model, run.settings
    (source,) = run.codec.encode_sources([example])
    gold = gold_ids(run, example)
    k = min(settings.beam_size, MOST_SLOTS)
    steps = drawn_steps(model, source, k=k, gold=gold)
    unit = ALPHA_UNITS[settings.alpha_unit]
    plain: list[Selector] = [*(SoftTopK(k, alpha, unit) for alpha in ALPHAS), HardTopK(k)]
    selectors = [run.codec.allowed(one) for one in plain]
    searches = {
        title: [beam_lattice(model, source, one, num_steps=steps, score=score, gold=gold) for one in selectors]
        for title, score in SCORES.items()
    }
    drawn = [lattice for lattices in searches.values() for lattice in lattices]
    palette = lattice_palette(drawn)
    words = run.codec.target_vocabulary.tokens
    # A tagger reads its t-th input before it writes its t-th label; elsewhere nothing ties steps to inputs.
    step_names = list(example.source) if settings.task == "tag" else []
    names = [*(f"alpha {alpha:g}" for alpha in ALPHAS), "hard beam (alpha without limit)"]
    panels = [
        (
            f"{name}, {title} scores",
            [
                draw_lattice(
                    lattice,
                    name=words.__getitem__,
                    step_names=step_names,
                    palette=palette,
                    gold=gold,
                    beside=drawn,
                    description=lattice_in_words(
                        lattice, f"{name}, example {number}, {title} scores, {position}", words
                    ),
                )
                for lattice, position in zip(lattices, names, strict=True)
            ],
        )
        for title, lattices in searches.items()
    ]
    said = _caption(run, example, gold is not None, palette, k=k, steps=steps)
    start = _start(run, logs)
    frames = Frames(ids.new("lattice"), f"Alpha of {name} on example {number}", names, start, panels)
    tables = [
        lattice_table(lattices[place], f"Numbers: {name}, example {number}, {title} scores, {names[place]}", words)
        for place in dict.fromkeys((start, len(ALPHAS)))
        for title, lattices in searches.items()
    ]
    return [Paragraph(said), frames, *tables]


def lattice_table(lattice: Lattice, caption: str, words: Sequence[str]) -> Table:
    """What the boxes say when they are pointed at, for those who cannot.

    Example:
        >>> lattice_table(Lattice(()), "Numbers", []).columns
        ['step, slot', 'tokens', 'from', 'score', 'log Z']
    """
    has_gold = any(node.cost is not None for nodes in lattice.steps for node in nodes)
    columns = ["step, slot", "tokens", "from", "score", *(["cost", "cost in all"] if has_gold else []), "log Z"]
    rows = [
        [
            f"{step}, {slot}",
            ", ".join(f"{words[token]} {weight:.3f}" for token, weight in node.tokens),
            ", ".join(f"{parent} {weight:.3f}" for parent, weight in enumerate(node.parents, 1) if weight >= FAINTEST),
            f"{node.score:.4f}",
            *([f"{node.cost:.4f}", f"{node.total_cost:.4f}"] if has_gold else []),
            f"{node.log_partition:.4f}",
        ]
        for step, nodes in enumerate(lattice.steps, start=1)
        for slot, node in enumerate(nodes, start=1)
        if node.is_live
    ]
    return Table(caption, columns, rows, folded=True)


def _start(run: OutputRun, logs: Sequence[StageLog]) -> int:
    """The place of the alpha that the soft-beam decoder has, or of the hard beam."""
    if not logs or "alpha" not in logs[-1].columns:
        return len(ALPHAS)
    _, last = run.settings.alpha.ends
    return min(range(len(ALPHAS)), key=lambda place: abs(math.log(ALPHAS[place] / last)))


def lattice_palette(lattices: Sequence[Lattice]) -> Palette:
    """The colours of lattices that are compared: from 0 to 1 for costs of a step, else from the smallest log Z on.

    Example:
        >>> lattice_palette([Lattice(())])
        Palette(low=0.0, high=1.0)
    """
    nodes = [node for lattice in lattices for slots in lattice.steps for node in slots if node.is_live]
    if any(node.cost is not None for node in nodes):
        return Palette(0.0, 1.0)
    values = [node.log_partition for node in nodes]
    return Palette(min(values, default=0.0), max(values, default=1.0))


def _caption(run: OutputRun, example: Example, has_gold: bool, palette: Palette, *, k: int, steps: int) -> str:
    said = f"Input: {run.codec.source_text(example)[:300]}. "
    if has_gold:
        written = gold_text(run, example)
        cost = "Hamming cost" if run.settings.task == "tag" else "edit distance"
        said += f"Gold: {written[:300]}. Boxes are coloured by the {cost} that the step adds, white 0, orange 1. "
    else:
        said += (
            "There is no gold output. Boxes are coloured by log Z of the step, white "
            f"{plain_number(palette.low)}, orange {plain_number(palette.high)} nats. "
        )
    if run.settings.alpha_unit == "gaps":
        said += "Alpha counts in mean squared gaps of the best scores. "
    if steps == MOST_STEPS:
        said += f"Drawn are the first {MOST_STEPS} steps. "
    if k < run.settings.beam_size:
        said += f"The run was trained with a beam of {run.settings.beam_size}; this one has {k} slots."
    return said.strip()


def lattice_in_words(lattice: Lattice, what: str, words: Sequence[str]) -> str:
    """What the drawing comes to: the heaviest token of the best slot at each step, and the final score and cost.

    Example:
        >>> lattice_in_words(Lattice(()), "A beam", [])
        'A beam: no step.'
    """
    if not lattice.steps:
        return f"{what}: no step."
    best = [max(nodes, key=lambda node: node.score) for nodes in lattice.steps]
    heaviest = ", ".join(f"{words[node.tokens[0][0]]} {node.tokens[0][1]:.2f}" for node in best if node.tokens)
    cost = "" if best[-1].total_cost is None else f" and cost {best[-1].total_cost:.4f}"
    return f"{what}. Best slot step by step: {heaviest}. It ends with score {best[-1].score:.4f}{cost}."
