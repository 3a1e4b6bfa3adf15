"""Protein variants: a small masked Transformer as an energy, and samplers at fixed distances from wild types.

Not in the papers. The models are trained on only a thousand short sequences, and so are compared with unigrams and
bigrams of residues. Even a poor model's energy can be used to compare samplers.

::

    {train,dev,wild-types}.fasta
    seed-N/model/               a run, for seqwise score and seqwise sample; its record is seed-N/cell.json
    seed-N/variants/            a record for each wild type
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reproductions import Setup
from reproductions.beyond.protein_data import (
    Proteins,
    bigram_nats,
    choose_wild_types,
    proteins,
    residue_shares,
    unigram_nats,
)
from reproductions.beyond.protein_variants import VariantSize, measure_variants
from reproductions.cells import CellJob, fingerprint_of, run_cells, timed, train_seconds, trained_on
from reproductions.comparison import evidence_of, judge, signature_of_seeds
from reproductions.figures import BLUE, GREY, ORANGE, RED, SKY, interval_bars, panels
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.values import values_of
from reproductions.verdicts import EVERYWHERE, decide, interval_result
from reproductions.workers import Report
from seqwise.configuration.flat import plain_values
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.runs.inputs import read_sequences
from seqwise.runs.loading import load_run
from seqwise.runs.masked_model_settings import MaskedModelSettings, masked_settings
from seqwise.runs.masked_model_training import train_masked_model
from seqwise.runs.scoring import Scorer

RUN = "model"


@dataclass(frozen=True)
class Size:
    """Amounts of training and sampling."""

    settings: MaskedModelSettings  # without the seed
    wild_types: int  # number of held-out sequences to mutate
    lengths: tuple[int, int]  # their smallest and largest length
    variants: VariantSize


SIZES = {
    "cpu": Size(
        masked_settings(
            format="fasta", units="characters", hidden_size=64, num_layers=2, feedforward_size=256, masking="0.15",
            epochs=80.0, batch_size=32, learning_rate=3e-3,
        ),
        wild_types=10,
        lengths=(40, 60),
        variants=VariantSize(),
    )
}  # fmt: skip
"""Sizes by scale."""


def reproduce(setup: Setup) -> list[Outcome]:
    """Train a masked model with each seed, propose variants of held-out proteins, and compare their energies."""
    size, data, folder = SIZES[setup.scale], proteins(), setup.folder
    wild_types = choose_wild_types(data.test, count=size.wild_types, lengths=size.lengths)
    _write_files(folder, data, wild_types)
    jobs = [job for seed in setup.seeds for job in _jobs(folder, size, data, wild_types, seed)]
    records = run_cells(jobs, progress=setup.progress)
    models = records[:: 1 + len(wild_types)]
    cells = [records[place + 1 : place + 1 + len(wild_types)] for place in range(0, len(records), 1 + len(wild_types))]
    measured = Measured(
        data,
        size.variants.distances,
        nats=[model["nats"] for model in models],
        seconds=[model["seconds"] for model in models],
        variants=[[_by_distance(cell["variants"]) for cell in row] for row in cells],
        model_signature=_signature(models, setup.seeds, data.dev, data),
        variant_signature=_signature([cell for row in cells for cell in row], setup.seeds, wild_types, data),
    )
    figure, run = folder / "proteins.png", _home(folder, setup.seed) / RUN
    free = "".join(residue if place % 6 else "_" for place, residue in enumerate(wild_types[0].target, start=1))
    hints = (f"seqwise score {run} {folder / 'wild-types.fasta'}", f"seqwise sample {run} {free}")
    outcome = build_outcome(measured, {"figure": figure, "run": run}, hints)
    draw(outcome.table, figure)
    return [outcome]


def _home(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def _jobs(folder: Path, size: Size, data: Proteins, wild_types: Sequence[Example], seed: int) -> list[CellJob]:
    """Return the cells of one seed: the model, and its variants of each wild type."""
    home, name, settings = _home(folder, seed), f"proteins, seed {seed}", size.settings.with_changes(seed=seed)
    plain = json.dumps(plain_values(settings), sort_keys=True)
    trained = (plain, sha256_of_examples(data.train), sha256_of_examples(data.dev))
    jobs = [
        CellJob(
            name,
            home / "cell.json",
            partial(fingerprint_of, *trained),
            partial(train_model, folder, settings, home / RUN),
            folder=home,
        )
    ]
    variants, shares = json.dumps(asdict(size.variants), sort_keys=True), residue_shares(data.train)
    for place, wild_type in enumerate(wild_types):
        # No two chains share their random numbers.
        own = 1_000 * seed + place
        jobs.append(
            CellJob(
                f"{name}: {wild_type.key}",
                home / "variants" / f"{place:02}.json",
                partial(fingerprint_of, *trained, variants, sha256_of_examples([wild_type]), str(own)),
                partial(measure_wild_type, home / RUN, wild_type, size.variants, shares=shares, seed=own),
                after=name,
            )
        )
    return jobs


def train_model(folder: Path, settings: MaskedModelSettings, output: Path, report: Report) -> dict[str, Any]:
    """Train the model of one seed, from its last checkpoint if there is one, and measure it on development data."""
    dev = read_sequences(folder / "dev.fasta", settings)
    watch = timed(output, report)
    train_masked_model(folder / "train.fasta", output, settings, on_progress=lambda _, progress: watch(progress))
    scores = Scorer(load_run(output), pieces="original").score_examples(dev)
    report(1, 1, "")
    return {
        "nats": [-float(score.token_log_probs_T[1:].double().sum()) for score in scores],
        "seconds": train_seconds(output),
        # Made here and stored, so that a cell that is read back later is not signed as new.
        "signature": asdict(sign("proteins", seeds=[settings.seed], data=sha256_of_examples(dev))),
    }


def measure_wild_type(
    model: Path, wild_type: Example, size: VariantSize, report: Report, *, shares: Mapping[str, float], seed: int
) -> dict[str, Any]:
    """Propose variants of one wild type in all ways."""
    run = load_run(model)
    (encoded,) = run.codec.encode([wild_type])
    shares_V = torch.tensor([shares.get(residue, 0.0) for residue in run.codec.sequence.vocabulary.tokens])
    wild_T = torch.tensor(encoded.target_ids)
    variants = measure_variants(run.model, wild_T, size, shares_V=shares_V, seed=seed, report=report)
    report(1, 1, "")
    return {
        "wild type": wild_type.key,
        "variants": variants,
        "signature": asdict(sign("proteins", seeds=[seed], data=sha256_of_examples([wild_type]))),
    }


# ------------------------------------------------------------------------------------------------- files


def _write_files(folder: Path, data: Proteins, wild_types: Sequence[Example]) -> None:
    """Write the sequences as files, which ``seqwise score`` and ``seqwise masked-model train`` read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in (("train", data.train), ("dev", data.dev), ("wild-types", wild_types)):
        text = "".join(f">{example.key}\n{''.join(example.target)}\n" for example in examples)
        write_atomically(folder / f"{name}.fasta", text)


def _by_distance(variants: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Convert distances to numbers; as names in JSON, they are text."""
    return {name: {int(distance): value for distance, value in row.items()} for name, row in variants.items()}


def _signature(
    records: Sequence[Mapping[str, Any]], seeds: Sequence[int], measured_on: Sequence[Example], data: Proteins
) -> Signature:
    """Return the common signature of all records, with these training data."""
    signed = signature_of_seeds([Signature(**record["signature"]) for record in records], method="proteins")
    training = trained_on(data.train, data.sources)
    return replace(signed, seeds=tuple(seeds), data=sha256_of_examples(measured_on), training=training)


# ------------------------------------------------------------------------------------------------- table

TITLE = "Proteins: the energy of variants at fixed distances of a wild type"
SOURCE = "not in the papers"
EXACT = 0.1  # largest mean error, in nats, at which log-odds count as the energy

ENERGIES = {
    "uniform": "uniform mutants",
    "unigram": "unigram mutants",
    "log-odds": "likeliest substitutions",
    "gibbs": "degenerate Gibbs",
    "mh": "Metropolis-Hastings",
    "annealed": "Metropolis-Hastings, annealed",
}
"""Rows of the ways to choose the residues at the same positions; energies are in nats above the wild type."""
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
    """Measurements of the reproduction."""

    data: Proteins
    distances: Sequence[int]  # Hamming distances
    nats: Sequence[Sequence[float]]  # of each seed and development sequence, minus its pseudo-log-likelihood
    seconds: Sequence[float]  # CPU seconds of each seed's training
    variants: Sequence[Sequence[Mapping[str, Mapping[int, float]]]]  # by seed and wild type, of measure_variants
    model_signature: Signature
    variant_signature: Signature

    def of(self, quantity: str, distance: int) -> list[Sums]:
        """Return a number for each wild type, by seed."""
        return [Counts([cell[quantity][distance] for cell in row]) for row in self.variants]

    def cross_entropies(self, system: str) -> list[Sums]:
        """Return nats per residue on the development data, by seed; the baselines are the same for all seeds."""
        residues = [len(example.target) - 1 for example in self.data.dev]
        if system == MODEL:
            return [Counts(nats, residues) for nats in self.nats]
        return [Counts(BASELINES[system](self.data.train, self.data.dev), residues)] * len(self.nats)

    def r_hats(self, distance: int) -> list[float]:
        """Return R-hat of all seeds and wild types whose chains have one."""
        found = (cell.get("r-hat", {}).get(distance) for row in self.variants for cell in row)
        return [value for value in found if value is not None]


def build_outcome(measured: Measured, files: Mapping[str, Path], hints: tuple[str, ...]) -> Outcome:
    """Make the table and the claims."""
    claims = examine(measured)
    results = [*_model_results(measured), *_variant_results(measured)]
    note = (
        f"{len(measured.data.train):,} training sequences, {len(measured.data.dev)} development sequences, "
        f"{len(measured.variants[0])} wild types; sequences that share residue words are in the same part. Energies: "
        "E_local minus that of the wild type, nats; for samplers, the mean over chains and counted sweeps; for "
        "annealed ones, the lowest."
    )
    table = Table(TITLE, tuple(results), note=note, claims=tuple(claims))
    return Outcome("proteins", table, files, hints=hints)


def examine(measured: Measured) -> list[Claim]:
    """Test the claims, paired over wild types (for models: over development sequences) and seeds."""
    models = {system: measured.cross_entropies(system) for system in (*BASELINES, MODEL)}
    first, last = measured.distances[0], measured.distances[-1]
    error, ranked = measured.of("error", first), {d: measured.of("rank correlation", d) for d in (first, last)}

    def predicts(system: str, remark: str) -> Claim:
        text = f"The masked model predicts residues better than {system}{remark}."
        return judge(text, SOURCE, models[system], models[MODEL], prefix="nats a residue: ", scale=1.0)

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
            SOURCE, [Counts([EXACT] * len(each)) for each in error], error, prefix=f"{EXACT} minus the distance: ",
            scale=1.0,
        ),
        judge(
            "The farther from the wild type, the less log-odds rank variants as the energy does.", SOURCE,
            ranked[first], ranked[last], prefix=f"rank correlation at {first} minus that at {last}: ", scale=1.0,
        ),
    ]  # fmt: skip


def _everywhere(text: str, measured: Measured, higher: str, lower: str) -> Claim:
    """Test that one way has higher energies than another at every distance."""
    pairs = [(measured.of(higher, distance), measured.of(lower, distance)) for distance in measured.distances]
    values = tuple(values_of(side) for pair in pairs for side in pair)
    verdict, numbers = decide(EVERYWHERE, *values)
    width = len(numbers) // len(pairs)  # of one test
    each = [evidence_of(numbers[place * width :][:width], *pair, 1.0) for place, pair in enumerate(pairs)]
    by_distance = zip(measured.distances, each, strict=True)
    numbers_text = "; ".join(f"d = {distance}: {text}" for distance, text in by_distance)
    evidence = f"{ENERGIES[higher]} minus {ENERGIES[lower]}, nats: {numbers_text}"
    return Claim(text, SOURCE, verdict, evidence, rule=EVERYWHERE, values=values, numbers=numbers)


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


def draw(table: Table, path: Path) -> None:
    """Draw energies and the rank correlation of log-odds by distance, with bootstrap 95% intervals."""
    styles = zip(ENERGIES, (GREY, SKY, ORANGE, RED, BLUE, BLUE), "osD^vP", strict=True)
    with panels(path, 2, figsize=(11, 4.6), width_ratios=(3, 2)) as (_, (left, right)):
        for quantity, colour, marker in styles:
            dashes = "--" if quantity == "annealed" else "-"
            row = ENERGIES[quantity]
            _line(left, _results_by_distance(table, row), color=colour, marker=marker, ls=dashes, label=row)
        left.axhline(0.0, color="black", lw=1)
        left.set(xlabel="Hamming distance from the wild type", ylabel="energy minus that of the wild type (nats)")
        ranked = _results_by_distance(table, OTHERS["rank correlation"][0])
        _line(right, ranked, color=BLUE, marker="o", label="rank correlation")
        right.set(xlabel="Hamming distance from the wild type", ylim=(None, 1.02))
        right.set_title("log-odds of single positions and the energy", loc="left", fontsize="medium")
        right.set_ylabel("rank correlation")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(ranked), [str(distance) for distance in ranked])
            axes.grid(alpha=0.25)
        left.legend(frameon=False, fontsize="small")


def _results_by_distance(table: Table, row: str) -> dict[int, Result]:
    results = (result for result in table.results if result.system == row)
    return {int(result.measure.removeprefix("d = ")): result for result in results}


def _line(axes: Any, by_distance: Mapping[int, Result], **style: str) -> None:
    results = list(by_distance.values())
    values = [result.value for result in results]
    axes.errorbar(list(by_distance), values, yerr=interval_bars(results), ms=5, capsize=2, lw=1.5, **style)
