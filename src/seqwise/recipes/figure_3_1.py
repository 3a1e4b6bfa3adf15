"""Figure 3.1: objectives along one parameter, through hard decisions and through soft ones.

A tagger translates "le chat crie ainsi" word by word, and what it says the animal does depends on the animal that it
was fed. The one parameter, theta, is the embedding of "chat", a single number. Source embeddings are not trained: they
lie on a line, chaton (kitten) at -2, chien (dog) at 0 and chat (cat) at 2. So as theta goes from -3 to 3 the decision
goes from kitten over dog to cat, as in the thesis, whatever the seed; all other weights are trained on a toy in which
a source word has several translations.

Each curve is the objective that training uses, computed with theta in its place in the model: scheduled sampling that
never feeds gold (chapter 3), and the direct loss through a beam of two with local scores (chapter 4). Shapes: B batch,
T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import rich.box
import rich.table
import torch

from seqwise.data import Batch, Example, Vocabulary, collate, encode_examples
from seqwise.evaluation.report import Result, Table
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.models import Tagger
from seqwise.objectives import cross_entropy, direct_loss, hamming_cost
from seqwise.recipes.outcome import Outcome
from seqwise.recipes.systems import ProgressFactory
from seqwise.search import FEEDINGS, HardTopK, SoftTopK, backtrace, beam_search, fed_logits, local

__all__ = ["Panel", "Sweep", "Toy", "make_toy", "panels", "reproduce", "sweep"]

ALPHAS = (1.0, 5.0, 20.0, 100.0)
INTERVAL = (-3.0, 3.0)
POINTS = 401
BEAM_SIZE = 2
# A switch of the hard decisions is pinned down to this much of theta; a continuous curve hardly moves over it.
BRACKET = 1e-9
# What counts as a jump over the bracket, in units of the objective.
JUMP = 1e-4
# "Away from switches" is at least this far in theta.
AWAY = 0.15

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

# Okabe and Ito's palette, told apart by colour-blind readers too; line styles tell the curves apart without colour.
HARD, GOLD_FED = "#D55E00", "#999999"
SOFT = (("#56B4E9", ":"), ("#0072B2", "-."), ("#CC79A7", "--"), ("#332288", "-"))


@dataclass(frozen=True, eq=False)
class Toy:
    """A trained model, the sentence that the objectives are computed on, and the words of the target."""

    model: Tagger
    batch: Batch
    words: Vocabulary
    moved: int

    def at(self, theta: float) -> Toy:
        """The same toy, its one parameter set to theta; the model is changed in place."""
        with torch.no_grad():
            self.model.encoder.embedding.weight[self.moved, 0] = theta
        return self


Objective = Callable[[Toy], float]


@dataclass(frozen=True)
class Panel:
    """The curves of one panel.

    Args:
        name: of the search, with which the curves are named.
        title: above the panel.
        unit: of the objective.
        label: of the vertical axis.
        hard: the objective through hard decisions.
        decisions: all hard decisions that the objective depends on, to be compared.
        words: the words that the hard decisions write.
        soft: the objective for each alpha.
        others: continuous curves to compare with, by name.
    """

    name: str
    title: str
    unit: str
    label: str
    hard: Objective
    decisions: Callable[[Toy], Hashable]
    words: Callable[[Toy], Sequence[str]]
    soft: Mapping[float, Objective]
    others: Mapping[str, Objective]

    @property
    def curves(self) -> dict[str, Objective]:
        """Every curve by its name, the hard one first."""
        soft = {f"{self.name}, alpha = {alpha:g}": objective for alpha, objective in self.soft.items()}
        return {f"{self.name}, hard": self.hard, **self.others, **soft}


@dataclass(frozen=True)
class Sweep:
    """A panel's curves along theta.

    Attributes:
        thetas: in ascending order.
        values: of each curve at each theta.
        switches: pairs of parameters at most 1e-9 apart, between which the hard decisions change.
        across: of each curve, the absolute change across each switch.
        regions: between the jumps of the hard curve, the middle and the words written there.
    """

    thetas: tuple[float, ...]
    values: Mapping[str, tuple[float, ...]]
    switches: tuple[tuple[float, float], ...]
    across: Mapping[str, tuple[float, ...]]
    regions: tuple[tuple[float, tuple[str, ...]], ...]

    @property
    def hard(self) -> str:
        """The name of the hard curve."""
        return next(iter(self.values))

    @property
    def jumps(self) -> tuple[float, ...]:
        """Where the hard curve is discontinuous."""
        pairs = zip(self.switches, self.across[self.hard], strict=True)
        return tuple(high for (_, high), change in pairs if change > JUMP)

    def largest_step(self, name: str) -> float:
        """The largest change of a curve between neighbouring points."""
        values = self.values[name]
        return max(abs(after - before) for before, after in zip(values, values[1:], strict=False))

    def distance(self, name: str) -> float:
        """The largest distance of a curve to the hard one, at points away from all switches."""
        return max(
            abs(value - hard)
            for theta, value, hard in zip(self.thetas, self.values[name], self.values[self.hard], strict=True)
            if all(abs(theta - high) >= AWAY for _, high in self.switches)
        )


def make_toy(seed: int) -> Toy:
    """Train the tagger for a second, by cross-entropy on every translation of every sentence.

    Args:
        seed: of the weights.
    """
    examples = [
        Example(("le", source, "crie", "ainsi"), ("the", animal, *cry.split()))
        for source, animals in ANIMALS.items()
        for animal, count in animals.items()
        for cry, times in CRIES[animal].items()
        for _ in range(count * times)
    ]
    sources = Vocabulary(tuple(PLACES))
    words = Vocabulary(tuple(dict.fromkeys(word for example in examples for word in example.target)))
    batch = collate(list(enumerate(encode_examples(examples, sources, words))))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Tagger(
            source_size=len(sources), target_size=len(words), embedding_size=1, hidden_size=8, label_embedding_size=3,
            dropout=0.0,
        ).double()  # fmt: skip
    embedding = model.encoder.embedding.weight.requires_grad_(False)
    embedding[:, 0] = torch.tensor(list(PLACES.values()))
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.03)
    for _ in range(200):
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        optimizer.zero_grad()
        cross_entropy(model.head(features_BTH), batch.targets_BT).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.requires_grad_(False)
    gold = collate([(0, encode_examples([GOLD], sources, words)[0])])
    return Toy(model, gold, words, moved=sources.encode(["chat"])[0])


def fed(toy: Toy, feeding: str, alpha: float, gold_probability: float) -> torch.Tensor:
    """The scores at every step, under a feeding that may never or always feed gold."""
    targets_BT = toy.batch.targets_BT
    return fed_logits(
        toy.model, toy.model.encode(toy.batch), targets_BT, otherwise=FEEDINGS[feeding](alpha),
        gold_probability=gold_probability,
    )  # fmt: skip


def sampling(toy: Toy, *, feeding: str, alpha: float = 1.0, gold_probability: float = 0.0) -> float:
    """The scheduled sampling objective, in nats per token."""
    return cross_entropy(fed(toy, feeding, alpha, gold_probability), toy.batch.targets_BT).item()


def greedy_words(toy: Toy) -> tuple[str, ...]:
    """What greedy decoding writes."""
    return tuple(toy.words.decode(fed(toy, "greedy", 1.0, 0.0)[0].argmax(-1).tolist()))


def search(toy: Toy, selector: HardTopK | SoftTopK) -> Any:
    """The beam at the end of a search with local scores and Hamming costs."""
    targets_BT = toy.batch.targets_BT
    return beam_search(
        toy.model, toy.model.encode(toy.batch), selector, num_steps=targets_BT.shape[1], score=local,
        cost=hamming_cost(targets_BT, len(toy.words)),
    )  # fmt: skip


def hard_cost(toy: Toy) -> float:
    """The cost of the best hypothesis of the hard beam, which comes first."""
    return float(search(toy, HardTopK(BEAM_SIZE)).costs_BK[0, 0].item())


def soft_cost(toy: Toy, *, alpha: float) -> float:
    """The direct loss through the relaxed beam."""
    return direct_loss(search(toy, SoftTopK(BEAM_SIZE, alpha)), alpha).item()


def kept(toy: Toy) -> Hashable:
    """Every parent and token that the hard beam keeps, in order."""
    beam = search(toy, HardTopK(BEAM_SIZE))
    return tuple(str(chosen_BK.tolist()) for chosen_BK in (*beam.parents, *beam.tokens))


def best_words(toy: Toy) -> tuple[str, ...]:
    """The best hypothesis of the hard beam."""
    return tuple(toy.words.decode(backtrace(search(toy, HardTopK(BEAM_SIZE)))[0, 0].tolist()))


def panels(alphas: Sequence[float] = ALPHAS) -> list[Panel]:
    """Scheduled sampling, and the beam."""
    return [
        Panel(
            "scheduled sampling",
            "Scheduled sampling, greedy: what is fed",
            "nat",
            "cross-entropy (nats per token)",
            partial(sampling, feeding="greedy"),
            lambda toy: greedy_words(toy)[:-1],  # the last word is fed to nothing
            greedy_words,
            {alpha: partial(sampling, feeding="soft-greedy", alpha=alpha) for alpha in alphas},
            {"gold fed": partial(sampling, feeding="greedy", gold_probability=1.0)},
        ),
        Panel(
            "beam",
            f"Beam search, k = {BEAM_SIZE}: the best hypothesis",
            "words",
            "direct loss (wrong words)",
            hard_cost,
            kept,
            best_words,
            {alpha: partial(soft_cost, alpha=alpha) for alpha in alphas},
            {},
        ),
    ]


def sweep(toy: Toy, panel: Panel, *, points: int, tick: Callable[[], None] = lambda: None) -> Sweep:
    """Compute every curve of a panel at evenly spaced parameters, and pin down where hard decisions switch.

    Args:
        toy: trained; its one parameter is left where it was.
        panel: what to compute.
        points: how many parameters, both ends of the interval included.
        tick: called after each point.
    """
    before = float(toy.model.encoder.embedding.weight[toy.moved, 0])
    low, high = INTERVAL
    thetas = tuple(low + (high - low) * point / (points - 1) for point in range(points))
    values: dict[str, list[float]] = {name: [] for name in panel.curves}
    decisions = []
    for theta in thetas:
        toy.at(theta)
        for name, objective in panel.curves.items():
            values[name].append(objective(toy))
        decisions.append(panel.decisions(toy))
        tick()
    cells = zip(zip(thetas, thetas[1:], strict=False), zip(decisions, decisions[1:], strict=False), strict=True)
    switches = tuple(pin_down(toy, panel, *ends) for ends, (first, second) in cells if first != second)
    across = {
        name: tuple(abs(objective(toy.at(after)) - objective(toy.at(before))) for before, after in switches)
        for name, objective in panel.curves.items()
    }
    found = Sweep(thetas, {name: tuple(row) for name, row in values.items()}, switches, across, ())
    edges = (low, *found.jumps, high)
    middles = [(left + right) / 2 for left, right in zip(edges, edges[1:], strict=False)]
    found = replace(found, regions=tuple((middle, tuple(panel.words(toy.at(middle)))) for middle in middles))
    toy.at(before)
    return found


def pin_down(toy: Toy, panel: Panel, low: float, high: float) -> tuple[float, float]:
    """Bisect an interval at whose ends the decisions differ."""
    at_low = panel.decisions(toy.at(low))
    while high - low > BRACKET:
        middle = (low + high) / 2
        if panel.decisions(toy.at(middle)) == at_low:
            low = middle
        else:
            high = middle
    return low, high


def reproduce(folder: Path, *, seed: int, progress: ProgressFactory) -> list[Outcome]:
    """Draw both panels, and measure how continuous each curve is and how near to the hard one.

    Args:
        folder: takes the figure.
        seed: of the weights.
        progress: makes the progress bar.

    Source: thesis, section 3.3.1, Figure 3.1 (a drawing without numbers; this one is computed). The second panel, for
    the beam search of chapter 4, has no counterpart there. Not implemented: sampled decisions.
    """
    toy, drawn = make_toy(seed), panels()
    with progress() as bars:
        task = bars.add_task("points", total=POINTS * len(drawn), note="")
        sweeps = [sweep(toy, panel, points=POINTS, tick=partial(bars.advance, task)) for panel in drawn]
    figure = folder / "figure-3.1.png"
    draw(drawn, sweeps, figure)
    title = "Figure 3.1: objectives along one parameter, hard decisions and soft ones"
    signature = sign("figure-3.1", seeds=[seed], data=sha256_of_examples([GOLD]))
    results = [
        Result(curve, measure, value, replace(signature, method=f"figure-3.1: {curve}"), unit=unit)
        for curve, measure, value, unit in measured(drawn, sweeps)
    ]
    lesson = " ".join(teach(panel, found) for panel, found in zip(drawn, sweeps, strict=True))
    table = Table(title, tuple(results), lesson)
    return [Outcome("figure-3.1", table, grid(title, results), lesson, {"figure": figure})]


MEASURES = ("jumps", "largest change within 1e-9", "largest step", "largest distance to hard")


def measured(drawn: Sequence[Panel], sweeps: Sequence[Sweep]) -> Iterator[tuple[str, str, float, str]]:
    """Curve, measure, value and unit; the distance to the hard curve of the soft curves only."""
    jumps, within, step, distance = MEASURES
    for panel, found in zip(drawn, sweeps, strict=True):
        for name in found.values:
            yield name, jumps, sum(change > JUMP for change in found.across[name]), ""
            yield name, within, max(found.across[name], default=0.0), panel.unit
            yield name, step, found.largest_step(name), panel.unit
            if name != found.hard and name not in panel.others:
                yield name, distance, found.distance(name), panel.unit


def grid(title: str, results: Sequence[Result]) -> rich.table.Table:
    """The results for the terminal."""
    picture = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    picture.add_column("curve", no_wrap=True)
    for heading in ("jumps", "within 1e-9", "step", "from hard"):
        picture.add_column(heading, justify="right", no_wrap=True)
    values = {(result.system, result.measure): result.value for result in results}
    for name in dict.fromkeys(result.system for result in results):
        row = [values.get((name, measure)) for measure in MEASURES]
        picture.add_row(name, *("" if value is None else f"{value:.2g}" for value in row))
    picture.caption = (
        f"{POINTS} points; jumps: changes above {JUMP:g} within 1e-9 of the parameter; step: largest change between "
        f"neighbouring points; from hard: largest distance to the hard curve at least {AWAY:g} away from where its "
        "decisions switch; nats per token, for the beam wrong words"
    )
    picture.caption_justify = "left"
    return picture


def teach(panel: Panel, found: Sweep) -> str:
    """What a panel shows, in a sentence of its numbers."""
    names = dict(zip(panel.soft, (name for name in panel.curves if "alpha" in name), strict=True))
    softest, hardest = min(panel.soft), max(panel.soft)
    jump = max(found.across[found.hard], default=0.0)
    soft = max(max(found.across[name], default=0.0) for name in names.values())
    count = f"{len(found.jumps)} jump" + ("" if len(found.jumps) == 1 else "s")
    return (
        f"{panel.name.capitalize()}: hard decisions make {count} of up to {jump:.2g} {panel.unit}; over the same "
        f"1e-9 of the parameter no soft curve changes by more than {soft:.0e}; away from the switches the distance to "
        f"the hard curve falls from {found.distance(names[softest]):.2g} at alpha = {softest:g} to "
        f"{found.distance(names[hardest]):.2g} at alpha = {hardest:g}."
    )


def draw(drawn: Sequence[Panel], sweeps: Sequence[Sweep], path: Path) -> None:
    """Both panels side by side, saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(drawn), figsize=(10.5, 4.4), layout="constrained")
    for axes, panel, found in zip(row, drawn, sweeps, strict=True):
        names = list(panel.curves)
        for name in panel.others:
            axes.plot(found.thetas, found.values[name], color=GOLD_FED, lw=1.2, label=name)
        for name, alpha, (colour, style) in zip(names[-len(panel.soft) :], panel.soft, SOFT, strict=True):
            axes.plot(found.thetas, found.values[name], color=colour, ls=style, lw=1.5, label=f"α = {alpha:g}")
        # In pieces: a line drawn across a jump would look like a slope.
        edges = (-torch.inf, *found.jumps, torch.inf)
        for piece, (left, right) in enumerate(zip(edges, edges[1:], strict=False)):
            points = [place for place, theta in enumerate(found.thetas) if left <= theta < right]
            axes.plot(
                [found.thetas[place] for place in points],
                [found.values[found.hard][place] for place in points],
                color=HARD, lw=2.4, zorder=3, label=None if piece else "hard",
            )  # fmt: skip
        for jump in found.jumps:
            axes.axvline(jump, color=HARD, lw=0.8, ls=(0, (1, 3)))
        for middle, words in found.regions:
            axes.text(middle, 1.01, words[ANIMAL], transform=axes.get_xaxis_transform(), ha="center", color=HARD)
        axes.set_title(panel.title, loc="left", pad=22)
        axes.set_xlabel("θ, the embedding of “chat”")
        axes.set_ylabel(panel.label)
        axes.set_xlim(*INTERVAL)
        axes.set_ylim(bottom=0 if panel.others else -0.1)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=len(labels))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
