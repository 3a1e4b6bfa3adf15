"""Draw the pictures of docs/ from results/*.json, from reproductions that take seconds, and from library calls.

Two are made elsewhere, because they show a run or a browser: explorer.png by scripts/make_explorer_picture.py, and
label-bias.png by the command in docs/label-bias.md.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from reproductions import run_reproduction, what_holds_page
from reproductions.beyond import frontier, masked_diffusion_audit, proteins, spelling, stress
from reproductions.figures import PALETTE, draw_curves, legend_below, panels
from reproductions.goyal_2021 import figure_6_1, sampler_figures
from reproductions.report import Table
from reproductions.result_files import NAMES, RESULTS, ROOT, by_stem, load_tables, reproduction_of
from seqwise import HardTopK, SoftTopK, Tagger, beam_search, direct_loss, hamming_cost, soft_top_k
from seqwise.cli.console import progress_bars
from seqwise.data import EncodedExample, collate
from seqwise.pages.report.lattice import Lattice, beam_lattice

GROWTH = RESULTS / "benchmarks" / "intel" / "scaling.json"

# Functions that draw a figure from a table alone, by the name of the table.
BY_TABLE: dict[str, Callable[[Table, Path], None]] = {
    "stress": stress.draw,
    "g2p": spelling.draw,
    "figure-6.1": figure_6_1.draw,
    "figure-6.1-phonemes": figure_6_1.draw,
    **{
        name: sampler_figures.draw
        for name in NAMES
        if reproduction_of(name).removeprefix("figure-") in sampler_figures.FIGURES
    },
    "proteins": proteins.draw,
    "masked-diffusion-audit": masked_diffusion_audit.draw,
    **{f"frontier-{corpus}": frontier.draw for corpus in frontier.CORPORA},
}
# Reproductions that take seconds, whose figures show points that are not in their tables.
RUN_AGAIN = ("figure-1", "figure-3.1")


def pictures() -> dict[str, Callable[[Path], None]]:
    """Return functions that draw the pictures, by their names in docs/; missing results have none."""
    tables = load_tables(RESULTS)
    drawn: dict[str, Callable[[Path], None]] = {
        "soft-top-k.png": draw_soft_top_k,
        "relaxed-beam.gif": draw_relaxed_beam,
        "what-holds.png": partial(what_holds_page.draw, tables),
    }
    if GROWTH.exists():
        drawn["scaling.png"] = draw_growth
    for stem, table in by_stem(tables).items():
        if table.curves:
            drawn[f"{stem}.png"] = partial(draw_curves, table)
        elif (name := stem.removesuffix("-converged")) in BY_TABLE:
            drawn[f"{stem}.png"] = partial(BY_TABLE[name], table)
        elif stem in RUN_AGAIN:
            drawn[f"{stem}.png"] = partial(draw_again, stem, table)
    return drawn


def draw_growth(path: Path) -> None:
    """Draw the growth of the seconds of searches, measured and in theory, with a panel for each varied size."""
    rows = json.loads(GROWTH.read_text("utf-8"))["rows"]
    names = {"k": "width k", "V": "vocabulary V", "T": "length T", "B": "batch B"}
    colours: dict[tuple[str, str], str] = {}
    with panels(path, columns=len(names), figsize=(13, 3.8), sharey=True) as (figure, row):
        for axes, (varied, name) in zip(row, names.items(), strict=True):
            for each in [each for each in rows if each["varied"] == varied]:
                which = each["model"], each["search"]
                colour = colours.setdefault(which, PALETTE[len(colours)])
                values, seconds = each["values"], each["seconds"]
                label = f"{each['model']}, {each['search']}"
                axes.loglog(values, seconds, "o-", color=colour, markersize=3, linewidth=1.2, label=label)
                theory = [seconds[-1] * (value / values[-1]) ** each["theory"] for value in values]
                above = [(x, y) for x, y in zip(values, theory, strict=True) if y > min(seconds)]
                axes.loglog(*zip(*above, strict=True), ":", color=colour, linewidth=1)
                axes.annotate(f" {each['exponent']:.2f}", (values[-1], seconds[-1]), color=colour, fontsize=7)
            most = max((each["values"] for each in rows if each["varied"] == varied), key=len)
            axes.set_xticks(
                most,
                [f"{value // 1000}k" if value >= 10_000 else f"{value:,}" for value in most],
                minor=False,
                fontsize=7,
            )
            axes.minorticks_off()
            axes.set(xlabel=name)
            axes.grid(alpha=0.3)
        row[0].set(ylabel="CPU seconds")
        legend_below(figure)


def draw_again(name: str, saved: Table, path: Path) -> None:
    """Run a reproduction again with the seed of its results, and save its figure if the numbers are the same."""
    (seed,) = saved.results[0].signature.seeds
    with TemporaryDirectory() as folder:
        (outcome,) = run_reproduction(name, Path(folder), seed=seed, scale=None, progress=progress_bars)
        if not same_numbers(outcome.table, saved):
            hint = f"python -m reproductions {name} --results results"
            raise SystemExit(f"results/{name}.json differs from what its reproduction gives now; {hint}")
        shutil.copyfile(outcome.files["figure"], path)


def same_numbers(one: Table, other: Table) -> bool:
    """Whether two tables have the same numbers, up to rounding differences between machines."""
    numbers, others = ({(each.system, each.measure): each.value for each in table.results} for table in (one, other))
    return numbers.keys() == others.keys() and all(
        math.isclose(value, others[key], rel_tol=1e-3, abs_tol=1e-6) for key, value in numbers.items()
    )


SCORES = (2.0, 1.6, 1.1, 0.2, -0.5)
K = 3
COLOURS = PALETTE[:5]


def weights_by_alpha() -> tuple[torch.Tensor, torch.Tensor]:
    """Return values of alpha, (A,), and the weights of every candidate in every slot at each, (A, K, V)."""
    alphas = torch.logspace(-1, 3, 161)
    scores_BJV = torch.tensor(SCORES)[None, None]
    return alphas, torch.stack([soft_top_k(scores_BJV, K, float(alpha))[0, :, 0] for alpha in alphas])


def draw_soft_top_k(path: Path) -> None:
    """Draw the weights of the candidates in each slot of the relaxed top-k, by alpha."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    alphas, weights_AKV = weights_by_alpha()
    figure, panels = pyplot.subplots(1, K, figsize=(9, 2.9), sharey=True, layout="constrained")
    for slot, axes in enumerate(panels):
        drawn = axes.stackplot(alphas.numpy(), weights_AKV[:, slot].T.numpy(), colors=COLOURS, alpha=0.9)
        axes.set(xscale="log", xlim=(0.1, 1000), ylim=(0, 1), xlabel="alpha")
        axes.set_title(f"slot {slot + 1}", loc="left", fontsize=10)
    panels[0].set_ylabel("weight")
    labels = [f"score {score:g}" for score in SCORES]
    figure.legend(drawn, labels, loc="outside lower center", frameon=False, ncols=len(labels))
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


EXAMPLE = EncodedExample((1, 2, 3, 4, 5), (3, 3, 1, 0, 1))
LABELS = "ABCD"
BEAM_ALPHAS = torch.logspace(-1.5, 4.5, 49).tolist()


def small_tagger() -> Tagger:
    """Return a tagger with random weights, scaled up so that its distributions are not nearly uniform."""
    torch.manual_seed(18)
    model = Tagger(source_size=10, target_size=len(LABELS), bidirectional=True).eval()
    with torch.no_grad():
        model.head.weight.mul_(10)
        model.head.bias.zero_()
        for name, weight in model.named_parameters():
            if "decoder" in name or "label" in name:
                weight.mul_(2)
    return model


@torch.no_grad()
def cost_of(model: Tagger, alpha: float | None) -> float:
    """Return the direct loss of the beam; without alpha, the cost of the hard beam's best output."""
    batch = collate([EXAMPLE])
    cost = hamming_cost(batch.targets_BT, len(LABELS))
    selector = HardTopK(K) if alpha is None else SoftTopK(K, alpha)
    beam = beam_search(model, model.encode(batch), selector, num_steps=batch.target_lengths_B, cost=cost)
    return beam.costs_BK[0, 0].item() if alpha is None else direct_loss(beam, alpha).item()


def draw_relaxed_beam(path: Path) -> None:
    """Animate a relaxed beam and its loss, from alpha near 0 to a hard beam."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.animation import FuncAnimation, PillowWriter

    model, steps = small_tagger(), len(EXAMPLE.source_ids)
    losses, limit = [cost_of(model, alpha) for alpha in BEAM_ALPHAS], cost_of(model, None)
    figure, (top, below) = pyplot.subplots(2, 1, figsize=(6.4, 4.6), height_ratios=(3, 1))
    figure.subplots_adjust(left=0.1, right=0.98, top=0.93, bottom=0.13, hspace=0.08)
    below.plot(BEAM_ALPHAS, losses, color=COLOURS[0])
    below.axhline(limit, color="black", linestyle=":", linewidth=1)
    below.set(xscale="log", xlabel="alpha", ylabel="direct loss", ylim=(0, steps))
    (dot,) = below.plot([], [], "o", color=COLOURS[4])

    def frame(place: int) -> None:
        alpha = BEAM_ALPHAS[place]
        top.clear()
        _draw_lattice(top, beam_lattice(model, EXAMPLE, SoftTopK(K, alpha), num_steps=steps), alpha)
        dot.set_data([alpha], [losses[place]])

    # The last frame is held for two seconds before the animation repeats.
    frames = [*range(len(BEAM_ALPHAS)), *[len(BEAM_ALPHAS) - 1] * 15]
    FuncAnimation(figure, frame, frames=frames).save(path, writer=PillowWriter(fps=8), dpi=80)
    pyplot.close(figure)


def _draw_lattice(axes: Any, lattice: Lattice, alpha: float) -> None:
    """Draw the slots of each step with their heaviest labels; opacity shows the weights of labels and back-pointers."""
    axes.set(xlim=(-0.4, len(lattice) + 0.4), ylim=(-K + 0.5, 0.6), xticks=[], yticks=[])
    axes.set_title(f"a relaxed beam at alpha = {alpha:.3g}", loc="left", fontsize=10)
    axes.plot(0, -(K - 1) / 2, "o", color="black", markersize=5)
    for step, nodes in enumerate(lattice, start=1):
        for slot, node in enumerate(nodes):
            for parent, weight in enumerate(node.parents):
                before = -parent if step > 1 else -(K - 1) / 2
                axes.plot(
                    [step - 1, step], [before, -slot], color="black", alpha=min(weight, 1), linewidth=1.5, zorder=1
                )
            token, weight = node.tokens[0]
            axes.scatter(step, -slot, s=520, color="white", edgecolors=COLOURS[token], linewidths=2, zorder=2)
            axes.scatter(step, -slot, s=520, color=COLOURS[token], alpha=min(weight**2, 1), zorder=3)
            axes.annotate(LABELS[token], (step, -slot), ha="center", va="center", zorder=4)


if __name__ == "__main__":
    for name, draw in pictures().items():
        target = ROOT / "docs" / name
        draw(target)
        print(f"{target.relative_to(ROOT)} is drawn", file=sys.stderr)
