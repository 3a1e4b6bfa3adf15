"""A beam lattice as SVG: slots by step, back-pointer weights as the opacity of lines, costs or log Z as colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from seqwise.evaluation.short_names import shorten_distinctly
from seqwise.runs.report.lattice import Lattice, Node

FAINTEST = 0.01
"""Lines of less weight are not drawn."""

STEP, SLOT, WIDTH, HEIGHT, LEFT, TOP = 104, 46, 74, 34, 34, 30  # where a slot is drawn, and how large
LONGEST, LONGEST_MIXED = 10, 6  # characters of a token that fit, alone and beside a weight


@dataclass(frozen=True)
class Palette:
    """Colours for the numbers between two ends, light enough for dark text: white, then towards orange."""

    low: float  # what is white
    high: float  # what is deepest

    def colour(self, value: float) -> str:
        """The colour of a number; beyond the ends, that of the nearer end."""
        span = self.high - self.low
        share = 0.0 if span <= 0 else min(max((value - self.low) / span, 0.0), 1.0)
        return "#" + "".join(f"{round(255 + share * (end - 255)):02x}" for end in (0xF5, 0xA0, 0x4C))


def draw_lattice(
    lattice: Lattice,
    *,
    name: Callable[[int], str],
    step_names: Sequence[str],
    palette: Palette,
    description: str,
    gold: Sequence[int] | None = None,
    beside: Sequence[Lattice] = (),
) -> Markup:
    """Draw a lattice.

    A box is a slot after a step: its heaviest token and that token's weight. A line leads to the slot that it comes
    from, as opaque as the back-pointer weight. Boxes are coloured by the cost that the step added, or by log Z where
    there is no gold; a box has a thick border where its heaviest token is the gold one. Long names are shortened, and
    stay told apart.
    """
    short = _short_names([lattice, *beside], name)
    num_slots = max(map(len, lattice.steps), default=1)
    width, height = LEFT + STEP * len(lattice.steps) + 8, TOP + SLOT * num_slots
    lines, boxes, heads = [], [], []
    before: Sequence[Node | None] = (None,)
    for place, nodes in enumerate(lattice.steps):
        right = gold[place] if gold is not None and place < len(gold) else None
        for row, node in enumerate(nodes):
            if not node.is_live:
                continue
            lines += [
                _line(place, parent, row, weight)
                for parent, weight in enumerate(node.parents)
                if weight >= FAINTEST and (before[parent] is None or before[parent].is_live)  # type: ignore[union-attr]
            ]
            boxes.append(
                _box(node, place, row, name, short, palette, is_gold=bool(node.tokens and node.tokens[0][0] == right))
            )
        above = step_names[place] if place < len(step_names) else str(place + 1)
        x = LEFT + place * STEP + STEP - WIDTH // 2
        heads.append(Markup('<text x="{}" y="16">{}</text>').format(x, _cut(above)))
        before = nodes
    start = Markup('<circle cx="12" cy="{}" r="6"><title>the empty output</title></circle>').format(TOP + HEIGHT // 2)
    return Markup(
        '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}" class="lattice">'
        '<g class="lines">{3}</g><g class="boxes">{4}{5}</g><g class="heads">{6}</g></svg>'
    ).format(width, height, description, _joined(lines), start, _joined(boxes), _joined(heads))


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)


def _line(place: int, parent: int, row: int, weight: float) -> Markup:
    """From the right side of the slot before (of the empty output) to the left side of this one."""
    left = LEFT + place * STEP if place else 18
    return Markup('<path d="M{} {}L{} {}" opacity="{}"/>').format(
        left,
        TOP + parent * SLOT + HEIGHT // 2,
        LEFT + place * STEP + STEP - WIDTH,
        TOP + row * SLOT + HEIGHT // 2,
        _short(weight),
    )


def _short_names(lattices: Sequence[Lattice], name: Callable[[int], str]) -> Callable[[str, int], str]:
    """What boxes call a token, by its name and by how many characters there are for it."""
    heaviest = {node.tokens[0][0] for one in lattices for nodes in one.steps for node in nodes if node.tokens}
    names = tuple(name(token) for token in sorted(heaviest))
    return lambda whole, longest: _shortened(names, longest)[whole]


@lru_cache(maxsize=4)  # the same for every frame of a slider
def _shortened(names: tuple[str, ...], longest: int) -> dict[str, str]:
    return shorten_distinctly(names, longest=longest)


def _box(
    node: Node,
    place: int,
    row: int,
    name: Callable[[int], str],
    short: Callable[[str, int], str],
    palette: Palette,
    *,
    is_gold: bool,
) -> Markup:
    x, y = LEFT + place * STEP + STEP - WIDTH, TOP + row * SLOT
    colour = palette.colour(node.log_partition if node.cost is None else node.cost)
    below = f"log Z {node.log_partition:.1f}" if node.cost is None else f"cost {node.cost:.2f}"
    if not node.tokens:
        return Markup("")
    token, weight = node.tokens[0]
    pure = weight > 0.995
    first = short(name(token), LONGEST) if pure else f"{short(name(token), LONGEST_MIXED)} {_short(weight, 2)}"
    return Markup(
        '<g{}><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" class="small">{}</text></g>'
    ).format(
        Markup(' class="gold"') if is_gold else "",
        _said(node, place, row, name),
        x, y, WIDTH, HEIGHT, colour, x + WIDTH // 2, y + 15, first, x + WIDTH // 2, y + 28, below,
    )  # fmt: skip


def _said(node: Node, place: int, row: int, name: Callable[[int], str]) -> str:
    """All the numbers of a slot."""
    parts = [f"step {place + 1}, slot {row + 1}: "]
    parts.append(", ".join(f"{name(token)} {_short(weight)}" for token, weight in node.tokens))
    parts.append(f"; score {node.score:.4f}")
    if node.cost is not None:
        parts.append(f"; cost {node.cost:.4f}, in all {node.total_cost:.4f}")
    parts.append(f"; log Z {node.log_partition:.4f}")
    if place:
        weights = ((parent, weight) for parent, weight in enumerate(node.parents) if weight >= FAINTEST)
        parts.append("; from " + ", ".join(f"slot {parent + 1} {_short(weight)}" for parent, weight in weights))
    return "".join(parts)


def _short(value: float, digits: int = 3) -> str:
    """A weight, without its leading 0."""
    text = f"{value:.{digits}f}"
    return "1" if float(text) >= 1 else text.lstrip("0").rstrip("0") if float(text) else "0"


def _cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
