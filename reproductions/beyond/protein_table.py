"""What is said of protein variants: energies by distance and by the way they were chosen, claims, and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from reproductions.beyond.protein_data import Proteins, bigram_nats, unigram_nats
from reproductions.comparison import judge
from reproductions.figures import interval_bars
from reproductions.outcome import Outcome
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.report import Claim, Result, Table
from seqwise.evaluation.signature import Signature
from seqwise.evaluation.verdicts import interval_result

TITLE = "Proteins: the energy of variants at fixed distances of a wild type"
SOURCE = "not in the papers"
EXACT = 0.1  # nats by which log-odds may be off, in the mean, to be called the energy

ENERGIES = {
    "uniform": "uniform mutants",
    "unigram": "unigram mutants",
    "log-odds": "likeliest substitutions",
    "gibbs": "degenerate Gibbs",
    "mh": "Metropolis-Hastings",
    "annealed": "Metropolis-Hastings, annealed",
}
"""Ways to choose the residues at the same positions, and their rows; nats above the wild type."""
OTHERS = {
    "accepted": ("Metropolis-Hastings: accepted", "%"),
    "novel": ("Metropolis-Hastings: novel", "%"),
    "passes": ("Metropolis-Hastings: passes a proposal", ""),
    "rank correlation": ("log-odds: rank correlation with the energy", ""),
    "error": ("log-odds: mean distance from the energy", "nat"),
}
BASELINES: dict[str, Callable[..., list[float]]] = {"unigrams": unigram_nats, "bigrams": bigram_nats}
MODEL = "masked Transformer"


@dataclass(frozen=True, eq=False)
class Measured:
    """All numbers of the reproduction."""

    data: Proteins  # the sequences; of the development data those are, which models and counts are measured on
    distances: Sequence[int]  # Hamming distances
    # of each seed, for each development sequence minus the sum of ``log p(y_t | all others)``, t from 2 on
    nats: Sequence[Sequence[float]]
    seconds: Sequence[float]  # CPU seconds of each seed's training
    # of each seed and wild type, what :func:`~reproductions.beyond.protein_variants.measure_variants` gives
    variants: Sequence[Sequence[Mapping[str, Mapping[int, float]]]]
    # how they were made
    model_signature: Signature
    variant_signature: Signature

    def of(self, quantity: str, distance: int) -> list[Sums]:
        """A number for each wild type, by seed."""
        return [Counts([cell[quantity][distance] for cell in row]) for row in self.variants]

    def cross_entropies(self, system: str) -> list[Sums]:
        """Nats a residue on the development data, by seed; counts of residues are the same for all seeds."""
        residues = [len(one.target) - 1 for one in self.data.dev]
        if system == MODEL:
            return [Counts(nats, residues) for nats in self.nats]
        return [Counts(BASELINES[system](self.data.train, self.data.dev), residues)] * len(self.nats)

    def r_hats(self, distance: int) -> list[float]:
        """Of all seeds and wild types whose chains have one."""
        found = (cell.get("r-hat", {}).get(distance) for row in self.variants for cell in row)
        return [value for value in found if value is not None]


def build_outcome(measured: Measured, files: Mapping[str, Path], hints: tuple[str, ...]) -> Outcome:
    """The table, the claims and a grid for the terminal."""
    claims = examine(measured)
    results = [*_model_results(measured), *_variant_results(measured)]
    note = (
        f"{len(measured.data.train):,} training sequences, {len(measured.data.dev)} development sequences, "
        f"{len(measured.variants[0])} wild types; sequences that share words of residues are in one part. Energies: "
        "E_local minus that of the wild type, nats; of samplers the mean over chains and sweeps that count, of "
        "annealed ones the lowest."
    )
    lesson = "\n".join(f"{claim.verdict.upper()}: {claim.text} ({claim.evidence})" for claim in claims)
    table = Table(TITLE, tuple(results), note=note, claims=tuple(claims))
    return Outcome("proteins", table, _grid(measured, results), lesson, files, hints)


def examine(measured: Measured) -> list[Claim]:
    """Statements, put to paired tests over wild types (of models: over development sequences) and seeds."""
    models = {system: measured.cross_entropies(system) for system in (*BASELINES, MODEL)}
    first, last = measured.distances[0], measured.distances[-1]
    error, ranked = measured.of("error", first), {d: measured.of("rank correlation", d) for d in (first, last)}

    def predicts(system: str, told: str) -> Claim:
        text = f"The masked model predicts residues better than {system}{told}."
        return judge(text, SOURCE, models[system], models[MODEL], said="nats a residue: ", scale=1.0)

    return [
        predicts("unigrams", ""),
        predicts("bigrams", ", which know both neighbours"),
        _everywhere("At every distance Metropolis-Hastings finds lower energies than uniform mutations of the same "
                    "positions.", measured, "uniform", "mh"),
        _everywhere("At every distance Metropolis-Hastings finds lower energies than unigram mutations.",
                    measured, "unigram", "mh"),
        _everywhere("At every distance degenerate Gibbs has higher energies than Metropolis-Hastings.",
                    measured, "gibbs", "mh"),
        _everywhere("At every distance annealed Metropolis-Hastings comes by lower energies than the likeliest "
                    "substitutions have.", measured, "log-odds", "annealed"),
        judge(
            f"Log-odds of single positions are the energy of a single substitution (within {EXACT} nats in the mean).",
            SOURCE, [Counts([EXACT] * len(each)) for each in error], error, said=f"{EXACT} minus the distance: ",
            scale=1.0,
        ),
        judge(
            "The farther from the wild type, the less log-odds rank variants as the energy does.", SOURCE,
            ranked[first], ranked[last], said=f"rank correlation at {first} minus that at {last}: ", scale=1.0,
        ),
    ]  # fmt: skip


def _everywhere(text: str, measured: Measured, higher: str, lower: str) -> Claim:
    """Put "the first is higher than the second" to a test at each distance: it holds if it holds at all of them."""
    each = {
        distance: judge(text, SOURCE, measured.of(higher, distance), measured.of(lower, distance), scale=1.0)
        for distance in measured.distances
    }
    verdicts = {claim.verdict for claim in each.values()}
    evidence = "; ".join(f"d = {distance}: {claim.evidence}" for distance, claim in each.items())
    verdict = verdicts.pop() if len(verdicts) == 1 else "not seen"
    return Claim(text, SOURCE, verdict, f"{ENERGIES[higher]} minus {ENERGIES[lower]}, nats: {evidence}")


def _model_results(measured: Measured) -> list[Result]:
    found = []
    for system in (*BASELINES, MODEL):
        signature = replace(measured.model_signature, method=f"proteins: {system}")
        losses = measured.cross_entropies(system)
        found.append(interval_result(system, "pseudo-perplexity", losses, signature, unit="", rule="exp"))
    found.append(Result(MODEL, "training seconds", statistics.fmean(measured.seconds), signature, unit="s"))
    return found


def _variant_results(measured: Measured) -> list[Result]:
    found = []
    rows = {name: (row, "nat") for name, row in ENERGIES.items()} | OTHERS
    for quantity, (row, unit) in rows.items():
        signature = replace(measured.variant_signature, method=f"proteins: {row}")
        for distance in measured.distances:
            found.append(interval_result(row, f"d = {distance}", measured.of(quantity, distance), signature, unit=unit))
    for name, choose in (("median", statistics.median), ("worst", max)):
        signature = replace(measured.variant_signature, method=f"proteins: R-hat, {name}")
        for distance in measured.distances:
            r_hats = measured.r_hats(distance)
            if r_hats:
                row = f"Metropolis-Hastings: R-hat, {name}"
                found.append(Result(row, f"d = {distance}", choose(r_hats), signature, unit=""))
    return found


def _grid(measured: Measured, results: Sequence[Result]) -> rich.table.Table:
    grid = rich.table.Table(
        title=TITLE, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    grid.add_column("", overflow="fold")
    for distance in measured.distances:
        grid.add_column(f"d = {distance}", justify="right", no_wrap=True)
    cells = {(result.system, result.measure): result for result in results}
    for system in dict.fromkeys(result.system for result in results if result.measure.startswith("d = ")):
        if system == OTHERS["accepted"][0]:
            grid.add_section()
        row = (cells.get((system, f"d = {distance}")) for distance in measured.distances)
        grid.add_row(system, *("" if one is None else f"{one.value:.{1 if one.unit == '%' else 2}f}" for one in row))
    perplexities = (f"{one.system} {one.value:.2f}" for one in results if one.measure == "pseudo-perplexity")
    grid.caption = (
        f"energies in nats above the wild type, mean over {len(measured.variants[0])} wild types and "
        f"{len(measured.variants)} seeds; pseudo-perplexity of a residue: {', '.join(perplexities)}"
    )
    grid.caption_justify = "left"
    return grid


def draw(table: Table, path: Path) -> None:
    """Energy against distance, and how log-odds rank variants, with bootstrap 95% intervals; saved as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Okabe and Ito's palette: told apart by colour-blind readers too.
    styles = zip(ENERGIES, ("#999999", "#56B4E9", "#E69F00", "#D55E00", "#0072B2", "#0072B2"), "osD^vP", strict=True)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained", width_ratios=(3, 2))
    for quantity, colour, marker in styles:
        dashes = "--" if quantity == "annealed" else "-"
        row = ENERGIES[quantity]
        _line(left, _by_distance(table, row), {"color": colour, "marker": marker, "ls": dashes, "label": row})
    left.axhline(0.0, color="black", lw=1)
    left.set(xlabel="Hamming distance from the wild type", ylabel="energy minus that of the wild type (nats)")
    ranked = _by_distance(table, OTHERS["rank correlation"][0])
    _line(right, ranked, {"color": "#0072B2", "marker": "o", "label": "rank correlation"})
    right.set(xlabel="Hamming distance from the wild type", ylim=(None, 1.02))
    right.set_title("log-odds of single positions and the energy", loc="left", fontsize="medium")
    right.set_ylabel("rank correlation")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ranked), [str(distance) for distance in ranked])
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _by_distance(table: Table, row: str) -> dict[int, Result]:
    """A row's results by Hamming distance."""
    found = (result for result in table.results if result.system == row)
    return {int(result.measure.removeprefix("d = ")): result for result in found}


def _line(axes: Any, by_distance: Mapping[int, Result], how: Mapping[str, str]) -> None:
    results = list(by_distance.values())
    values = [one.value for one in results]
    axes.errorbar(list(by_distance), values, yerr=interval_bars(results), ms=5, capsize=2, lw=1.5, **how)
