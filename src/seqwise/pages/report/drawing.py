"""Beam lattices as SVG: slots by step, back-pointer weights as the opacity of lines, costs or log Z as colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from seqwise.evaluation.short_names import shorten_distinctly
from seqwise.pages.report.blocks import Table
from seqwise.pages.report.lattice import Lattice, Node

FAINTEST = 0.01
"""Smallest weight of a line that is drawn."""

STEP, SLOT, WIDTH, HEIGHT, LEFT, TOP = 104, 46, 74, 34, 34, 30  # position and size of slots
LONGEST, LONGEST_MIXED = 10, 6  # characters of a token that fit, alone and next to a weight


@dataclass(frozen=True)
class Palette:
    """Colour scale from white to orange, light enough for dark text."""

    low: float  # white
    high: float  # orange

    def colour(self, value: float) -> str:
        """Return the colour of a number, clipped to the ends."""
        span = self.high - self.low
        share = 0.0 if span <= 0 else min(max((value - self.low) / span, 0.0), 1.0)
        return "#" + "".join(f"{round(255 + share * (end - 255)):02x}" for end in (0xF5, 0xA0, 0x4C))


def lattice_palette(lattices: Sequence[Lattice]) -> Palette:
    """Return the palette for an input's lattices: from 0 to 1 for costs, else over the range of log Z."""
    nodes = [node for lattice in lattices for slots in lattice for node in slots if node.is_live]
    if any(node.cost is not None for node in nodes):
        return Palette(0.0, 1.0)
    values = [node.log_partition for node in nodes if node.log_partition is not None]
    return Palette(min(values, default=0.0), max(values, default=1.0))


def draw_lattice(
    lattice: Lattice,
    *,
    words: Sequence[str],
    title: str,
    step_names: Sequence[str],
    palette: Palette,
    gold: Sequence[int] | None = None,
    named_with: Sequence[Lattice] = (),
) -> Markup:
    """Draw a lattice: a box for each slot after a step, with its heaviest token, and lines from its parents.

    Boxes are coloured by the cost of the step, or by log Z without gold; a thick border marks gold tokens. ``words``
    are the names of tokens, ``title`` begins the description for screen readers, and abbreviated names are also
    distinct from those in the lattices ``named_with``.
    """
    short = _short_names([lattice, *named_with], words)
    num_slots = max(map(len, lattice), default=1)
    width, height = LEFT + STEP * len(lattice) + 8, TOP + SLOT * num_slots
    lines, boxes, heads = [], [], []
    live_before = [True]  # the empty output
    for place, nodes in enumerate(lattice):
        right = gold[place] if gold is not None and place < len(gold) else None
        for row, node in enumerate(nodes):
            if not node.is_live:
                continue
            lines += [
                _line(place, parent, row, weight)
                for parent, weight in enumerate(node.parents)
                if weight >= FAINTEST and live_before[parent]
            ]
            boxes.append(
                _box(node, place, row, words, short, palette, is_gold=bool(node.tokens and node.tokens[0][0] == right))
            )
        above = step_names[place] if place < len(step_names) else str(place + 1)
        x = LEFT + place * STEP + STEP - WIDTH // 2
        heads.append(Markup('<text x="{}" y="16">{}</text>').format(x, _cut(above)))
        live_before = [node.is_live for node in nodes]
    start = Markup('<circle cx="12" cy="{}" r="6"><title>the empty output</title></circle>').format(TOP + HEIGHT // 2)
    return Markup(
        '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}" class="lattice">'
        '<g class="lines">{3}</g><g class="boxes">{4}{5}</g><g class="heads">{6}</g></svg>'
    ).format(
        width, height, _in_words(lattice, title, words), _joined(lines), start, _joined(boxes), _joined(heads)
    )  # fmt: skip


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)


def _line(place: int, parent: int, row: int, weight: float) -> Markup:
    """Draw a line from the right side of a parent, or of the empty output, to the left side of a slot."""
    left = LEFT + place * STEP if place else 18
    return Markup('<path d="M{} {}L{} {}" opacity="{}"/>').format(
        left,
        TOP + parent * SLOT + HEIGHT // 2,
        LEFT + place * STEP + STEP - WIDTH,
        TOP + row * SLOT + HEIGHT // 2,
        _short(weight),
    )


def _short_names(lattices: Sequence[Lattice], words: Sequence[str]) -> Callable[[str, int], str]:
    """Return a function that abbreviates the name of a token to a given length."""
    heaviest = {node.tokens[0][0] for lattice in lattices for nodes in lattice for node in nodes if node.tokens}
    names = tuple(words[token] for token in sorted(heaviest))
    return lambda name, longest: _shortened(names, longest)[name]


@lru_cache(maxsize=4)  # the same for every frame of a slider
def _shortened(names: tuple[str, ...], longest: int) -> dict[str, str]:
    return shorten_distinctly(names, longest=longest)


def _box(
    node: Node,
    place: int,
    row: int,
    words: Sequence[str],
    short: Callable[[str, int], str],
    palette: Palette,
    *,
    is_gold: bool,
) -> Markup:
    x, y = LEFT + place * STEP + STEP - WIDTH, TOP + row * SLOT
    shade = node.log_partition if node.cost is None else node.cost
    colour = palette.colour(palette.low if shade is None else shade)
    below = "ended" if shade is None else f"log Z {shade:.1f}" if node.cost is None else f"cost {shade:.2f}"
    if not node.tokens:
        return Markup("")
    token, weight = node.tokens[0]
    pure = weight > 0.995
    first = short(words[token], LONGEST) if pure else f"{short(words[token], LONGEST_MIXED)} {_short(weight, 2)}"
    return Markup(
        '<g{}><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" class="small">{}</text></g>'
    ).format(
        Markup(' class="gold"') if is_gold else "",
        _numbers(node, place, row, words),
        x, y, WIDTH, HEIGHT, colour, x + WIDTH // 2, y + 15, first, x + WIDTH // 2, y + 28, below,
    )  # fmt: skip


def _numbers(node: Node, place: int, row: int, words: Sequence[str]) -> str:
    """List the numbers of a slot."""
    parts = [f"step {place + 1}, slot {row + 1}: "]
    parts.append(", ".join(f"{words[token]} {_short(weight)}" for token, weight in node.tokens))
    parts.append(f"; score {node.score:.4f}")
    if node.cost is not None:
        parts.append(f"; cost {node.cost:.4f}, total {node.total_cost:.4f}")
    if node.log_partition is not None:
        parts.append(f"; log Z {node.log_partition:.4f}")
    if place:
        weights = ((parent, weight) for parent, weight in enumerate(node.parents) if weight >= FAINTEST)
        parts.append("; from " + ", ".join(f"slot {parent + 1} {_short(weight)}" for parent, weight in weights))
    return "".join(parts)


def _short(value: float, digits: int = 3) -> str:
    """Format a weight without its leading 0."""
    text = f"{value:.{digits}f}"
    return "1" if float(text) >= 1 else text.lstrip("0").rstrip("0") if float(text) else "0"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _in_words(lattice: Lattice, title: str, words: Sequence[str]) -> str:
    """Describe a lattice: the heaviest token of the best slot at each step, and the final score and cost."""
    if not lattice:
        return f"{title}: no steps."
    best = [max(nodes, key=lambda node: node.score) for nodes in lattice]
    heaviest = ", ".join(f"{words[node.tokens[0][0]]} {node.tokens[0][1]:.2f}" for node in best if node.tokens)
    cost = "" if best[-1].total_cost is None else f" and cost {best[-1].total_cost:.4f}"
    return f"{title}. Best slot step by step: {heaviest}. It ends with score {best[-1].score:.4f}{cost}."


def lattice_table(lattice: Lattice, caption: str, words: Sequence[str]) -> Table:
    """List the slots of a lattice in a folded table, for readers who cannot hover over boxes."""
    has_gold = any(node.cost is not None for nodes in lattice for node in nodes)
    columns = ["step, slot", "tokens", "from", "score", *(["cost", "total cost"] if has_gold else []), "log Z"]
    rows = [
        [
            f"{step}, {slot}",
            ", ".join(f"{words[token]} {weight:.3f}" for token, weight in node.tokens),
            ", ".join(f"{parent} {weight:.3f}" for parent, weight in enumerate(node.parents, 1) if weight >= FAINTEST),
            f"{node.score:.4f}",
            *([f"{node.cost:.4f}", f"{node.total_cost:.4f}"] if has_gold else []),
            "" if node.log_partition is None else f"{node.log_partition:.4f}",
        ]
        for step, nodes in enumerate(lattice, start=1)
        for slot, node in enumerate(nodes, start=1)
        if node.is_live
    ]
    return Table(caption, columns, rows, folded=True)
