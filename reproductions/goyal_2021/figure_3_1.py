"""Figure 3.1: objectives along one parameter, through hard and through soft decisions.

A tagger translates "le chat crie ainsi" word by word, and the words after the animal depend on the animal that it was
fed. The parameter, theta, is the embedding of "chat", a single number. Source embeddings are not trained: they lie on a
line, chaton (kitten) at -2, chien (dog) at 0 and chat (cat) at 2. So when theta goes from -3 to 3, the decision changes
from kitten to dog to cat, as in the thesis (with each of the seeds 0 to 7). All other weights are trained, on toy data
in which a source word has several translations.

Each curve is a training objective, computed by the model with theta: scheduled sampling that never feeds gold (chapter
3), and the direct loss through a beam of two with local scores (chapter 4). Shapes: B batch, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproductions import Setup
from reproductions.figures import BLACK, BLUE, GREY, ORANGE, PINK, SKY, panels
from reproductions.outcome import Outcome
from reproductions.report import Result, Table
from seqwise.data import Batch, Example, Vocabulary, collate, encode_examples
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.models import Tagger
from seqwise.objectives import cross_entropy, direct_loss, hamming_cost
from seqwise.search import (
    Beam,
    HardTopK,
    SoftTopK,
    backtrace,
    beam_search,
    fed_logits,
    local,
)
from seqwise.search.feeding import FEEDINGS

ALPHAS = (1.0, 3.0, 10.0, 100.0)
INTERVAL = (-3.0, 3.0)
POINTS = 401
BEAM_SIZE = 2
BRACKET = 1e-9  # width to which switches of hard decisions are located; a continuous curve hardly changes over it
JUMP = 1e-4  # smallest change over this width that counts as a jump, in units of the objective
AWAY = 0.15  # smallest distance from all switches at which curves are compared

PLACES = {"chaton": -2.0, "chien": 0.0, "chat": 2.0, "le": 0.0, "crie": 0.0, "ainsi": 0.0}
ANIMALS = {
    "chaton": {"kitten": 7, "cat": 2, "dog": 1},
    "chien": {"dog": 8, "cat": 1, "kitten": 1},
    "chat": {"cat": 7, "kitten": 2, "dog": 1},
}
CRIES = {
    "kitten": {"mews softly": 7, "purrs softly": 2, "barks loudly": 1},
    "dog": {"barks loudly": 8, "mews softly": 1, "purrs softly": 1},
    "cat": {"purrs softly": 7, "mews softly": 2, "barks loudly": 1},
}
GOLD = Example(("le", "chat", "crie", "ainsi"), ("the", "cat", "purrs", "softly"))
ANIMAL = 1  # the position of the animal in a target

# Dashes distinguish curves without colour.
STYLES: dict[str, dict[str, Any]] = {
    "hard": {"color": ORANGE, "lw": 4, "solid_capstyle": "butt"},
    "gold fed": {"color": GREY},
    "alpha = 1": {"color": SKY, "ls": ":"},
    "alpha = 3": {"color": BLUE, "ls": "-."},
    "alpha = 10": {"color": PINK, "ls": "--"},
    "alpha = 100": {"color": BLACK},
}


@dataclass(frozen=True, eq=False)
class Toy:
    """Trained model, the sentence that the objectives are computed on, and the words of the target."""

    model: Tagger
    batch: Batch
    words: Vocabulary
    moved: int

    def at(self, theta: float) -> Toy:
        """Set the parameter to theta, in place, and return the toy."""
        with torch.no_grad():
            self.model.encoder.embedding.weight[self.moved, 0] = theta
        return self


@dataclass(frozen=True)
class Panel:
    """Curves of one panel."""

    name: str  # of the search
    title: str  # above the panel
    unit: str  # of the objectives
    label: str  # of the vertical axis
    decisions: Callable[[Toy], object]  # all hard decisions that the hard objective depends on, to be compared
    words: Callable[[Toy], Sequence[str]]  # output of the hard decisions
    # Objectives by name: "hard" first, "alpha = 1" and so on, and others to compare with.
    curves: Mapping[str, Callable[[Toy], float]]


@dataclass(frozen=True)
class Sweep:
    """Values of a panel's curves along theta."""

    thetas: Sequence[float]  # in ascending order
    values: Mapping[str, Sequence[float]]  # of each curve at each theta
    # Pairs of parameters at most 1e-9 apart, between which the hard decisions change.
    switches: Sequence[tuple[float, float]]
    across: Mapping[str, Sequence[float]]  # of each curve, the absolute change across each switch

    @property
    def jumps(self) -> list[float]:
        """Return the parameters at which the hard curve is discontinuous."""
        return [high for (_, high), change in zip(self.switches, self.across["hard"], strict=True) if change > JUMP]

    def largest_step(self, name: str) -> float:
        """Return the largest change of a curve between neighbouring points."""
        return max(abs(after - before) for before, after in pairwise(self.values[name]))

    def distance(self, name: str) -> float:
        """Return the largest distance of a curve to the hard one, at points away from all switches."""
        return max(
            abs(value - hard)
            for theta, value, hard in zip(self.thetas, self.values[name], self.values["hard"], strict=True)
            if all(abs(theta - high) >= AWAY for _, high in self.switches)
        )


def make_toy(seed: int) -> Toy:
    """Train the tagger for a second, by cross-entropy on every translation of every sentence."""
    examples = [
        Example(("le", source, "crie", "ainsi"), ("the", animal, *cry.split()))
        for source, animals in ANIMALS.items()
        for animal, count in animals.items()
        for cry, times in CRIES[animal].items()
        for _ in range(count * times)
    ]
    sources = Vocabulary(tuple(PLACES))
    words = Vocabulary(tuple(dict.fromkeys(word for example in examples for word in example.target)))
    batch = collate(encode_examples(examples, sources, words))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Tagger(
            source_size=len(sources), target_size=len(words), embedding_size=1, hidden_size=8, label_embedding_size=3,
            dropout=0.0,
        ).double()  # fmt: skip
    embedding = model.encoder.embedding.weight.requires_grad_(False)
    embedding[:, 0] = torch.tensor(list(PLACES.values()))
    # The strong decay keeps scores smooth functions of theta, so that the figure resolves their crossings.
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.03, weight_decay=1.0)
    for _ in range(400):
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        optimizer.zero_grad()
        cross_entropy(model.head(features_BTH), batch.targets_BT).backward()
        optimizer.step()
    model.requires_grad_(False)
    gold = collate([encode_examples([GOLD], sources, words)[0]])
    return Toy(model, gold, words, moved=sources.encode(["chat"])[0])


def fed(toy: Toy, feeding: str, alpha: float = 1.0, gold_probability: float = 0.0) -> Tensor:
    """Return the scores at every step, by default without feeding gold."""
    context, targets_BT, otherwise = toy.model.encode(toy.batch), toy.batch.targets_BT, FEEDINGS[feeding](alpha)
    return fed_logits(toy.model, context, targets_BT, otherwise=otherwise, gold_probability=gold_probability)


def search(toy: Toy, selector: HardTopK | SoftTopK) -> Beam:
    """Search with local scores and Hamming costs, and return the last beam."""
    targets_BT = toy.batch.targets_BT
    cost = hamming_cost(targets_BT, len(toy.words))
    return beam_search(
        toy.model, toy.model.encode(toy.batch), selector, num_steps=targets_BT.shape[1], score=local, cost=cost
    )


def sampling_panel() -> Panel:
    """Return the panel of scheduled sampling."""

    def objective(toy: Toy, feeding: str, alpha: float = 1.0, gold_probability: float = 0.0) -> float:
        return cross_entropy(fed(toy, feeding, alpha, gold_probability), toy.batch.targets_BT).item()

    def words(toy: Toy) -> list[str]:
        return toy.words.decode(fed(toy, "greedy")[0].argmax(-1).tolist())

    return Panel(
        "scheduled sampling",
        "Scheduled sampling, by the animal fed",
        "nat",
        "cross-entropy (nats per token)",
        decisions=lambda toy: words(toy)[:-1],  # the last word is never fed
        words=words,
        curves={
            "hard": partial(objective, feeding="greedy"),
            "gold fed": partial(objective, feeding="greedy", gold_probability=1.0),
            **{f"alpha = {alpha:g}": partial(objective, feeding="soft-greedy", alpha=alpha) for alpha in ALPHAS},
        },
    )


def beam_panel() -> Panel:
    """Return the panel of the direct loss: through the hard beam, the cost of the best hypothesis."""

    def soft(toy: Toy, alpha: float) -> float:
        return direct_loss(search(toy, SoftTopK(BEAM_SIZE, alpha)), alpha).item()

    def kept(toy: Toy) -> list[list[list[int]]]:
        beam = search(toy, HardTopK(BEAM_SIZE))
        return [chosen_BK.tolist() for chosen_BK in (*beam.parents, *beam.tokens)]

    return Panel(
        "beam",
        f"Beam search, k = {BEAM_SIZE}, by the animal found",
        "words",
        "direct loss (wrong words)",
        decisions=kept,
        words=lambda toy: toy.words.decode(backtrace(search(toy, HardTopK(BEAM_SIZE)))[0, 0].tolist()),
        curves={
            "hard": lambda toy: search(toy, HardTopK(BEAM_SIZE)).costs_BK[0, 0].item(),
            **{f"alpha = {alpha:g}": partial(soft, alpha=alpha) for alpha in ALPHAS},
        },
    )


def sweep(toy: Toy, panel: Panel, *, points: int, tick: Callable[[], None] = lambda: None) -> Sweep:
    """Compute every curve of a panel at evenly spaced parameters, and locate the switches of hard decisions."""
    start = toy.model.encoder.embedding.weight[toy.moved, 0].item()
    low, high = INTERVAL
    thetas = [low + (high - low) * point / (points - 1) for point in range(points)]
    values: dict[str, list[float]] = {name: [] for name in panel.curves}
    for theta in thetas:
        toy.at(theta)
        for name, objective in panel.curves.items():
            values[name].append(objective(toy))
        tick()
    decided = [(theta, panel.decisions(toy.at(theta))) for theta in thetas]
    switches = [switch for left, right in pairwise(decided) for switch in locate(toy, panel, left, right)]
    across = {
        name: [abs(objective(toy.at(after)) - objective(toy.at(before))) for before, after in switches]
        for name, objective in panel.curves.items()
    }
    toy.at(start)
    return Sweep(thetas, values, switches, across)


Point = tuple[float, object]  # a parameter, and the hard decisions there


def locate(toy: Toy, panel: Panel, left: Point, right: Point) -> Iterator[tuple[float, float]]:
    """Yield brackets of the switches of decisions that bisection finds between two points.

    A switch that is reversed between two compared points is not found.
    """
    if left[1] == right[1]:
        return
    if right[0] - left[0] <= BRACKET:
        yield left[0], right[0]
        return
    theta = (left[0] + right[0]) / 2
    middle = theta, panel.decisions(toy.at(theta))
    yield from locate(toy, panel, left, middle)
    yield from locate(toy, panel, middle, right)


def reproduce(setup: Setup) -> list[Outcome]:
    """Draw both panels, and measure the continuity of each curve and its distance to the hard one.

    Source: thesis, section 3.3.1, Figure 3.1 (a drawing without numbers; this one is computed). The second panel, for
    the beam search of chapter 4, has no counterpart there. Not implemented: sampled decisions.
    """
    toy, both = make_toy(setup.seed), (sampling_panel(), beam_panel())
    with setup.progress() as bars:
        task = bars.add_task("points", total=POINTS * len(both), note="")
        drawn = [(panel, sweep(toy, panel, points=POINTS, tick=partial(bars.advance, task))) for panel in both]
    figure = setup.folder / "figure-3.1.png"
    draw(toy, drawn, figure)
    title = "Figure 3.1: objectives along one parameter"
    signature = sign("figure-3.1", seeds=[setup.seed], data=sha256_of_examples([GOLD]))
    results = [
        Result(system, measure, value, replace(signature, method=f"figure-3.1: {system}"), unit=unit)
        for panel, found in drawn
        for system, measure, value, unit in measured(panel, found)
    ]
    lesson = " ".join(describe(panel, found) for panel, found in drawn)
    table = Table(title, tuple(results), lesson)
    return [Outcome("figure-3.1", table, {"figure": figure}, lesson)]


def measured(panel: Panel, found: Sweep) -> Iterator[tuple[str, str, float, str]]:
    """Yield system, measure, value and unit; only soft curves have a distance to the hard one."""
    for name, changes in found.across.items():
        system = f"{panel.name}, {name}"
        yield system, "jumps", sum(change > JUMP for change in changes), ""
        yield system, "largest change within 1e-9", max(changes, default=0.0), panel.unit
        yield system, "largest step", found.largest_step(name), panel.unit
        if name.startswith("alpha"):
            yield system, "largest distance to hard", found.distance(name), panel.unit


def digits(value: float) -> str:
    """Format a number with two digits, or as "<1e-12" within the rounding errors of float64."""
    return f"{value:.2g}" if value == 0 or value >= 1e-12 else "<1e-12"


def describe(panel: Panel, found: Sweep) -> str:
    """Summarise the numbers of a panel in a sentence."""
    softest, *_, hardest = [name for name in found.values if name.startswith("alpha")]
    continuous = max(max(changes, default=0.0) for name, changes in found.across.items() if name != "hard")
    return (
        f"{panel.name.capitalize()}: hard decisions make {len(found.jumps)} jump{'s' * (len(found.jumps) != 1)} of up "
        f"to {max(found.across['hard'], default=0.0):.2g} {panel.unit}; over the same 1e-9 of the parameter no other "
        f"curve changes by more than {continuous:.1g}; away from the switches the distance to the hard curve falls "
        f"from {digits(found.distance(softest))} at {softest} to {digits(found.distance(hardest))} at {hardest}."
    )


def draw(toy: Toy, drawn: Sequence[tuple[Panel, Sweep]], path: Path) -> None:
    """Draw the panels side by side."""
    with panels(path, len(drawn), figsize=(10.5, 4.4)) as (figure, row):
        for axes, (panel, found) in zip(row, drawn, strict=True):
            # The hard curve is drawn in pieces, because a line across a jump would look like a slope.
            for left, right in pairwise((INTERVAL[0], *found.jumps, INTERVAL[1])):
                points = zip(found.thetas, found.values["hard"], strict=True)
                piece = dict(point for point in points if left <= point[0] <= right)
                axes.plot(list(piece.keys()), list(piece.values()), **STYLES["hard"])
                animal = panel.words(toy.at((left + right) / 2))[ANIMAL]
                axes.text((left + right) / 2, 1.01, animal, transform=axes.get_xaxis_transform(), ha="center")
            for jump in found.jumps:
                axes.axvline(jump, color="black", lw=0.8, ls=(0, (1, 3)))
            for name in found.values:
                if name != "hard":
                    label = name.replace("alpha", "α")
                    axes.plot(found.thetas, found.values[name], lw=1.5, label=label, **STYLES[name])
            axes.set_title(panel.title, loc="left", pad=22)
            axes.set(xlabel="θ, the embedding of “chat”", ylabel=panel.label, xlim=INTERVAL)
            axes.grid(alpha=0.25)
        handles, labels = row[0].get_legend_handles_labels()
        row[0].set_ylim(bottom=0)
        lines = [*row[0].lines[:1], *handles]
        figure.legend(lines, ["hard", *labels], loc="outside lower center", frameon=False, ncols=6)
